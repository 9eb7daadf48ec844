"""Losses: how far predictions are from targets, per element and then as their mean, their sum or as they are.

`reduction` is 'mean', 'sum' or 'none'. Targets broadcast where the losses are elementwise.
"""
from __future__ import annotations

import math
import warnings
from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axis, as_number, as_parameter, as_tensor, broadcast_shapes
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.ranges import check_indices
from minigrad.mixins.rounding import rounded_once
from minigrad.ops.cross_entropy import binary_cross_entropy, cross_entropy


class LossMixin(Base):
    """Methods of predictions that take targets."""

    __slots__ = ()

    # Of classes

    @rounded_once
    def cross_entropy(self, target: Any, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int | None = None, weight: Self | None = None) -> Self:
        """Of logits [N, C, ...] with class indices [N, ...] or probabilities [N, C, ...].

        Rows of the class `ignore_index` do not count (PyTorch's is -100 unless told; here none is). Other indices
        must be in 0..C-1 (see ranges.py). `weight` [C] scales the loss of each class; the mean over class indices is
        one weighted by it.
        """
        given, target = target, as_tensor("cross_entropy", self._operand(target))
        label_smoothing = as_number("cross_entropy", "label_smoothing", label_smoothing)
        if not 0 <= label_smoothing <= 1:
            raise ShapeError(f"[cross_entropy] expected a label_smoothing in 0..1, got {label_smoothing}")
        if not self.ndim:
            raise ShapeError("[cross_entropy] expected logits [N, C, ...] or [C], got shape []")
        axis = 1 if self.ndim > 1 else 0
        weight = self._class_weight("cross_entropy", weight, axis)
        if target.dtype.is_int and target.ndim == self.ndim - 1:
            check_indices("cross_entropy", target, self.shape[axis], given=given, ignored=ignore_index)
            if weight is not None:
                return self._weighted_cross_entropy(target, reduction, label_smoothing, ignore_index, weight)
            return self._class_cross_entropy(target, ignore_index, label_smoothing, reduction, axis)
        if target.shape != self.shape:
            raise ShapeError(f"[cross_entropy] expected class indices or probabilities for logits {list(self.shape)}, "
                             f"got {target.dtype} {list(target.shape)}")
        classes: Any = self.shape[axis]
        smooth = target * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else target
        smooth = smooth if weight is None else smooth * weight
        return reduced(-(self.log_softmax(axis) * smooth).sum(axis), reduction)

    def _class_weight(self, name: str, weight: Any, axis: int) -> Any:
        """Weights [C] in a shape that broadcasts with this tensor."""
        if weight is None:
            return None
        weight = as_tensor(name, self._operand(weight))
        if not self.ndim or weight.shape != (self.shape[axis],):
            raise ShapeError(f"[{name}] expected weights {list(self.shape[axis:axis + 1])} for classes of "
                             f"{list(self.shape)}, got {list(weight.shape)}")
        return weight.reshape(*[-1 if a == axis else 1 for a in range(self.ndim)])

    def _weighted_cross_entropy(self, target: Self, reduction: str, smoothing: float, ignore_index: int | None,
                                weight: Self) -> Self:
        axis = 1 if self.ndim > 1 else 0
        logs = self.log_softmax(axis)
        loss = logs._picked("cross_entropy", target, ignore_index, weight)
        total = loss[0] * (1 - smoothing)
        if smoothing:
            spread = -(logs * weight).sum(axis) * (smoothing / int(self.shape[axis]))
            total = total + (spread if ignore_index is None else target.ne(ignore_index).where(spread, 0))
        return total.sum() / loss[1].sum() if reduction == "mean" else reduced(total, reduction)

    def _picked(self, name: str, target: Self, ignore_index: int | None, weight: Self | None) -> tuple[Self, Self]:
        """(-weight * x at each row's class, the weights), both [N, ...] and 0 in rows that do not count."""
        axis = 1 if self.ndim > 1 else 0
        rows = tuple([d for a, d in enumerate(self.shape) if a != axis])
        if target.shape != rows or not self.ndim:
            raise ShapeError(f"[{name}] expected log-probabilities [N, C, ...] and classes [N, ...], "
                             f"got {list(self.shape)} and {list(target.shape)}")
        index = target.unsqueeze(axis)
        counts = self.full((), 1, dtype=self.dtype, device=self.device).expand(*rows) if weight is None else \
            weight.expand(*self.shape)._gather(axis, index).squeeze(axis)
        if ignore_index is not None:
            counts = target.ne(ignore_index).where(counts, 0)
        loss = -self._gather(axis, index).squeeze(axis)
        return counts.eq(0).where(0, loss * counts) if ignore_index is not None else loss * counts, counts

    @rounded_once
    def sparse_categorical_crossentropy(self, target: Self, ignore_index: int | None = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean", axis: int = -1) -> Self:
        """Cross-entropy of logits with class indices along `axis`; rows labelled `ignore_index` do not count."""
        axis = as_axis("cross_entropy", axis, self.ndim)
        target = self._indices("cross_entropy", target, self.shape[axis], ignored=ignore_index)
        label_smoothing = as_number("cross_entropy", "label_smoothing", label_smoothing)
        return self._class_cross_entropy(target, ignore_index, label_smoothing, reduction, axis)

    @as_one_node
    def _class_cross_entropy(self, target: Self, ignore_index: int | None, label_smoothing: float, reduction: str,
                             axis: int) -> Self:
        """`cross_entropy` of classes that are in range."""
        rows = tuple([d for a, d in enumerate(self.shape) if a != axis])
        if target.shape != rows:
            raise ShapeError(f"[cross_entropy] expected class indices {list(rows)} for logits {list(self.shape)}, "
                             f"got {list(target.shape)}")
        loss = self._wrap(cross_entropy(self._as_float().node, target.node, axis, label_smoothing), self)
        if ignore_index is None:
            return reduced(loss, reduction)
        counted = target.ne(ignore_index)
        loss = counted.where(loss, 0)
        return loss.sum() / counted.sum() if reduction == "mean" else reduced(loss, reduction)

    @rounded_once
    def nll_loss(self, target: Any, reduction: str = "mean", weight: Self | None = None,
                 ignore_index: int | None = None) -> Self:
        """Negative log likelihood of log-probabilities [N, C, ...] and class indices [N, ...]; `weight` and
        `ignore_index` are those of `cross_entropy`."""
        target = self._indices("nll_loss", target, self.shape[min(self.ndim - 1, 1)] if self.ndim else None,
                               ignored=ignore_index)
        weight = self._class_weight("nll_loss", weight, 1 if self.ndim > 1 else 0)
        loss, counts = self._picked("nll_loss", target, ignore_index, weight)
        if reduction == "mean" and (weight is not None or ignore_index is not None):
            return loss.sum() / counts.sum()
        return reduced(loss, reduction)

    @rounded_once
    def binary_crossentropy(self, target: Any, reduction: str = "mean", weight: Any = None) -> Self:
        """Of probabilities with targets in 0..1; logarithms are no less than -100, so that 0 and 1 are finite. `weight`
        scales elements."""
        x, y, parents = self._as_float()._pair("binary_cross_entropy", target)
        loss = self._wrap(binary_cross_entropy(x, y), *parents)
        return reduced(loss if weight is None else loss * weight, reduction)

    @rounded_once
    def binary_crossentropy_logits(self, target: Any, reduction: str = "mean", weight: Any = None,
                                   pos_weight: Any = None) -> Self:
        """Of logits with targets in 0..1, without overflow. `weight` scales elements, `pos_weight` their positive part.
        """
        if pos_weight is None:
            loss = self._softplus() - self * target
        else:
            share = self._operand(target) * (self._operand(pos_weight) - 1) + 1
            loss = self * (1 - target) + share * (-self)._softplus()
        return reduced(loss if weight is None else loss * weight, reduction)

    binary_cross_entropy, binary_cross_entropy_with_logits = binary_crossentropy, binary_crossentropy_logits

    # Of numbers

    def _less(self, name: str, target: Any) -> Self:
        """x - target. Warns where every prediction meets every target, as with [N, 1] and [N]."""
        target = self._operand(target)
        difference = self - target
        if difference.shape != self.shape and difference.shape != getattr(target, "shape", ()):
            warnings.warn(f"[{name}] expected a target that broadcasts to {list(self.shape)} or predictions that do to "
                          f"its shape, got {list(target.shape)}: differences are {list(difference.shape)}",
                          UserWarning, stacklevel=4)
        return difference

    @rounded_once
    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """Squared distance. Warns, as the others do, where both shapes broadcast: [N, 1] and [N] make [N, N]."""
        return reduced(self._less("mse_loss", target).square(), reduction)

    @rounded_once
    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        """Absolute distance."""
        return reduced(self._less("l1_loss", target).abs(), reduction)

    @rounded_once
    def smooth_l1_loss(self, target: Any, reduction: str = "mean", beta: float = 1.0) -> Self:
        """d*d / (2 beta) of a distance d below beta, else d - beta/2 (Girshick 2015)."""
        if as_parameter("smooth_l1_loss", "beta", beta) < 0:
            raise ShapeError(f"[smooth_l1_loss] expected a beta of 0 or more, got {beta}")
        if beta == 0:
            return self.l1_loss(target, reduction)
        d = self._less("smooth_l1_loss", target).abs()
        return reduced((d < beta).where(d * d * (0.5 / beta), d - 0.5 * beta), reduction)

    @rounded_once
    def huber_loss(self, target: Any, reduction: str = "mean", delta: float = 1.0) -> Self:
        """d*d / 2 of a distance d up to delta, else delta * (d - delta/2) (Huber 1964)."""
        if as_parameter("huber_loss", "delta", delta) <= 0:
            raise ShapeError(f"[huber_loss] expected a delta above 0, got {delta}")
        d = self._less("huber_loss", target).abs()
        return reduced((d <= delta).where(d * d * 0.5, (d - 0.5 * delta) * delta), reduction)

    # Of distributions

    @rounded_once
    def kl_div(self, target: Any, reduction: str = "mean", log_target: bool = False) -> Self:
        """t * (log(t) - x) of log-probabilities x and probabilities t, or their logarithms with `log_target`; 0 where t
        is 0. `reduction` may be 'batchmean': the sum over the length of the first axis, the divergence itself."""
        target = as_tensor("kl_div", self._operand(target))
        loss = target.exp() * (target - self) if log_target else target.xlogy(target) - target * self
        if reduction != "batchmean":
            return reduced(loss, reduction)
        if not self.ndim:
            raise ShapeError("[kl_div] expected a first axis for reduction 'batchmean', got shape []")
        return loss.sum() / self.shape[0]

    @rounded_once
    def gaussian_nll_loss(self, target: Any, var: Any, reduction: str = "mean", full: bool = False,
                          eps: float = 1e-6) -> Self:
        """(log(var) + (x - t)**2 / var) / 2 of means x and variances no less than eps; `full` adds log(2 pi) / 2."""
        least = as_number("gaussian_nll_loss", "eps", eps)
        if least <= 0:
            raise ShapeError(f"[gaussian_nll_loss] expected eps above 0, got {eps}")
        var = self.full_like(var) if isinstance(var, (int, float)) else as_tensor("gaussian_nll_loss",
                                                                                  self._operand(var))
        if var.shape == self.shape[:-1] != self.shape:
            var = var.unsqueeze(-1)  # one for all of a row
        if var.shape != self.shape and var.shape != (*self.shape[:-1], 1):
            raise ShapeError(f"[gaussian_nll_loss] expected variances {list(self.shape)}, one for each row or one "
                             f"number, got {list(var.shape)}")
        var = var + (var.maximum(least) - var).detach()
        loss = (var.log() + (self - target).square() / var) * 0.5
        return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)

    @rounded_once
    def poisson_nll_loss(self, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                         reduction: str = "mean") -> Self:
        """exp(x) - t*x of logarithms x of rates, or x - t*log(x + eps) of rates; `full` adds Stirling's log(t!) for
        t > 1."""
        target = as_tensor("poisson_nll_loss", self._operand(target))
        loss = self.exp() - target * self if log_input else self - target * (self + eps).log()
        if full:
            large = target > 1
            t = large.where(target, 1)
            loss = loss + large.where(t * t.log() - t + 0.5 * (t * (2 * math.pi)).log(), 0)
        return reduced(loss, reduction)

    # Of pairs

    @rounded_once
    def margin_ranking_loss(self, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Self:
        """max(0, margin - t * (x - other)): t is 1 where x should be larger, -1 where `other` should."""
        return reduced((margin - (self - other) * target).relu(), reduction)

    @rounded_once
    def hinge_embedding_loss(self, target: Any, margin: float = 1.0, reduction: str = "mean") -> Self:
        """Of distances x: x itself where t is 1, max(0, margin - x) where it is -1, else their sum."""
        target = as_tensor("hinge_embedding_loss", self._operand(target))
        rest = target.ne(1).where((margin - self).relu(), 0)
        return reduced(rest + target.ne(-1).where(self, 0), reduction)

    @rounded_once
    def soft_margin_loss(self, target: Any, reduction: str = "mean") -> Self:
        """log(1 + exp(-t * x)) for t of 1 or -1."""
        return reduced((-(self * target))._softplus(), reduction)

    @rounded_once
    def cosine_embedding_loss(self, other: Self, target: Any, margin: float = 0.0, reduction: str = "mean") -> Self:
        """Of vectors [N, D]: 1 - cos where t is 1, max(0, cos - margin) where it is -1."""
        target = as_tensor("cosine_embedding_loss", self._operand(target))
        cos = self.cosine_similarity(other, -1)
        broadcast_shapes("cosine_embedding_loss", cos.shape, target.shape)
        return reduced(target.eq(1).where(1 - cos, (cos - margin).relu()), reduction)

    @rounded_once
    def triplet_margin_loss(self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Self:
        """max(0, d(x, positive) - d(x, negative) + margin) with `pairwise_distance` d; `swap` takes the smaller of the
        negative's distances to both (Schroff et al. 2015)."""
        if as_parameter("triplet_margin_loss", "margin", margin) <= 0:
            raise ShapeError(f"[triplet_margin_loss] expected a margin above 0, got {margin}")
        near, far = self.pairwise_distance(positive, p, eps), self.pairwise_distance(negative, p, eps)
        far = far.minimum(positive.pairwise_distance(negative, p, eps)) if swap else far
        return reduced((near - far + margin).relu(), reduction)


def reduced(loss: Any, reduction: str) -> Any:
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(f"[loss] expected reduction mean, sum or none, got {reduction!r}")
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
