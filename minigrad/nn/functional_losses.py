"""The losses of `functional.py`, with PyTorch's order of arguments."""
from __future__ import annotations

from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.nn.legacy import with_old_reductions
from minigrad.tensor import Tensor


@with_old_reductions
def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """Of logits [N, C, ...] with class indices [N, ...] or probabilities; see `Tensor.cross_entropy`."""
    return as_tensor("cross_entropy", input).cross_entropy(target, reduction, label_smoothing, ignore_index, weight)


@with_old_reductions
def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:
    """Negative log likelihood of log-probabilities [N, C, ...] and class indices [N, ...]."""
    return as_tensor("nll_loss", input).nll_loss(target, reduction, weight, ignore_index)


@with_old_reductions
def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                         reduction: str = "mean") -> Tensor:
    """Of probabilities with targets in 0..1."""
    return as_tensor("binary_cross_entropy", input).binary_cross_entropy(target, reduction, weight)


@with_old_reductions
def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                                     reduction: str = "mean", pos_weight: Tensor | None = None) -> Tensor:
    """Of logits with targets in 0..1."""
    return as_tensor("binary_cross_entropy_with_logits", input).binary_cross_entropy_with_logits(
        target, reduction, weight, pos_weight)


def _weighed(name: str, input: Any, target: Any, weight: Any, reduction: str, *, share: bool = True,
             **options: Any) -> Tensor:
    """The loss `name`, whose elements a `weight` of the input's shape scales; its mean is then one of as much weight,
    or of as many elements without `share`."""
    x = as_tensor(name, input)
    if weight is None:
        return getattr(x, name)(target, reduction=reduction, **options)
    if as_tensor(name, weight).shape != x.shape:
        raise ShapeError(f"[{name}] expected a weight of the input's shape {list(x.shape)}, got {list(weight.shape)}")
    elements = getattr(x, name)(target, reduction="none", **options) * weight
    if reduction == "mean":
        return elements.sum() / weight.sum() if share else elements.mean()
    if reduction not in ("sum", "none"):
        raise ShapeError(f"[{name}] expected reduction 'mean', 'sum', 'none', got {reduction!r}")
    return elements.sum() if reduction == "sum" else elements


@with_old_reductions
def mse_loss(input: Tensor, target: Any, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """Squared distance, times `weight`, of whose sum it is the mean then."""
    return _weighed("mse_loss", input, target, weight, reduction)


@with_old_reductions
def l1_loss(input: Tensor, target: Any, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """Absolute distance, times `weight`, of whose sum it is the mean then."""
    return _weighed("l1_loss", input, target, weight, reduction)


def huber_loss(input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0,
               weight: Tensor | None = None) -> Tensor:
    """d*d / 2 of a distance d up to delta, else delta * (d - delta/2), times `weight`."""
    return _weighed("huber_loss", input, target, weight, reduction, share=False, delta=delta)


@with_old_reductions
def smooth_l1_loss(input: Tensor, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d*d / (2 beta) of a distance d below beta, else d - beta/2."""
    return as_tensor("smooth_l1_loss", input).smooth_l1_loss(target, reduction, beta)


@with_old_reductions
def soft_margin_loss(input: Tensor, target: Any, *, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-t * x)) for t of 1 or -1."""
    return as_tensor("soft_margin_loss", input).soft_margin_loss(target, reduction)


@with_old_reductions
def kl_div(input: Tensor, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """t * (log(t) - x) of log-probabilities x and probabilities t; see `Tensor.kl_div`."""
    return as_tensor("kl_div", input).kl_div(target, reduction, log_target)


def gaussian_nll_loss(input: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6,
                      reduction: str = "mean") -> Tensor:
    """(log(var) + (x - t)**2 / var) / 2 of means x and variances; `full` adds log(2 pi) / 2."""
    return as_tensor("gaussian_nll_loss", input).gaussian_nll_loss(target, var, reduction, full, eps)


@with_old_reductions
def poisson_nll_loss(input: Tensor, target: Any, log_input: bool = True, full: bool = False, *, eps: float = 1e-8,
                     reduction: str = "mean") -> Tensor:
    """exp(x) - t*x of logarithms x of rates, or x - t*log(x + eps) of rates; see `Tensor.poisson_nll_loss`."""
    return as_tensor("poisson_nll_loss", input).poisson_nll_loss(target, log_input, full, eps, reduction)


@with_old_reductions
def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0, *,
                        reduction: str = "mean") -> Tensor:
    """max(0, margin - t * (x - other)): t is 1 where x should be larger, -1 where the other should."""
    return as_tensor("margin_ranking_loss", input1).margin_ranking_loss(input2, target, margin, reduction)


@with_old_reductions
def hinge_embedding_loss(input: Tensor, target: Any, margin: float = 1.0, *, reduction: str = "mean") -> Tensor:
    """Of distances x: x itself where t is 1, max(0, margin - x) where it is -1."""
    return as_tensor("hinge_embedding_loss", input).hinge_embedding_loss(target, margin, reduction)


@with_old_reductions
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0, *,
                          reduction: str = "mean") -> Tensor:
    """Of vectors [N, D]: 1 - cos where t is 1, max(0, cos - margin) where it is -1."""
    return as_tensor("cosine_embedding_loss", input1).cosine_embedding_loss(input2, target, margin, reduction)


@with_old_reductions
def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2,
                        eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean") -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin); see `Tensor.triplet_margin_loss`."""
    return as_tensor("triplet_margin_loss", anchor).triplet_margin_loss(positive, negative, margin, p, eps, swap,
                                                                        reduction)


@with_old_reductions
def multi_margin_loss(input: Tensor, target: Any, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, *,
                      reduction: str = "mean") -> Tensor:
    """Of scores [N, C] and classes [N]; see `Tensor.multi_margin_loss`."""
    return as_tensor("multi_margin_loss", input).multi_margin_loss(target, p, margin, weight, reduction)


@with_old_reductions
def multilabel_margin_loss(input: Tensor, target: Any, *, reduction: str = "mean") -> Tensor:
    """Of scores and labels [N, C]; see `Tensor.multilabel_margin_loss`."""
    return as_tensor("multilabel_margin_loss", input).multilabel_margin_loss(target, reduction)


@with_old_reductions
def multilabel_soft_margin_loss(input: Tensor, target: Any, weight: Tensor | None = None, *,
                                reduction: str = "mean") -> Tensor:
    """Of logits and targets of 0 and 1 [N, C]; see `Tensor.multilabel_soft_margin_loss`."""
    return as_tensor("multilabel_soft_margin_loss", input).multilabel_soft_margin_loss(target, weight, reduction)


def ctc_loss(log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
             reduction: str = "mean", zero_infinity: bool = False) -> Tensor:
    """Of log-probabilities [T, N, C], targets, and the lengths of both; see `Tensor.ctc_loss`."""
    return as_tensor("ctc_loss", log_probs).ctc_loss(targets, input_lengths, target_lengths, blank, reduction,
                                                     zero_infinity)
