"""Losses as objects, with PyTorch's arguments and defaults: called with predictions and targets."""
from __future__ import annotations

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.nn.legacy import with_old_reductions
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


class Loss(Layer):
    """`reduction` is 'mean', 'sum' or 'none'. Raises ShapeError for another one."""

    @with_old_reductions
    def __init__(self, *, reduction: str = "mean"):
        allowed = (*REDUCTIONS, "batchmean") if isinstance(self, KLDivLoss) else REDUCTIONS
        if reduction not in allowed:
            raise ShapeError(f"[{type(self).__name__}] expected reduction {', '.join(map(repr, allowed))}, "
                             f"got {reduction!r}")
        self.reduction = reduction


class CrossEntropyLoss(Loss):
    """Of logits [N, C, ...] with class indices [N, ...] or probabilities [N, C, ...]. `weight` [C] scales classes, rows
    of the class `ignore_index` do not count, `label_smoothing` is the share that all classes get alike."""

    @with_old_reductions
    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0):
        super().__init__(reduction=reduction)
        self.weight, self.ignore_index, self.label_smoothing = weight, ignore_index, label_smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("CrossEntropyLoss", x).cross_entropy(target, self.reduction, self.label_smoothing,
                                                              self.ignore_index, self.weight)


class NLLLoss(Loss):
    """Negative log likelihood of log-probabilities [N, C, ...] and class indices [N, ...]; see CrossEntropyLoss."""

    @with_old_reductions
    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.weight, self.ignore_index = weight, ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("NLLLoss", x).nll_loss(target, self.reduction, self.weight, self.ignore_index)


class BCELoss(Loss):
    """Binary cross-entropy of probabilities and targets in 0..1, of one shape. `weight` scales elements."""

    @with_old_reductions
    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.weight = weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        _same_shape("BCELoss", x, target)
        return x.binary_crossentropy(target, self.reduction, self.weight)


class BCEWithLogitsLoss(Loss):
    """Binary cross-entropy of logits and targets in 0..1, of one shape. `weight` scales elements, `pos_weight` their
    positive part."""

    @with_old_reductions
    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None):
        super().__init__(reduction=reduction)
        self.weight, self.pos_weight = weight, pos_weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        _same_shape("BCEWithLogitsLoss", x, target)
        return x.binary_crossentropy_logits(target, self.reduction, self.weight, self.pos_weight)


class MSELoss(Loss):
    """Squared distances."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("MSELoss", x).mse_loss(target, self.reduction)


class L1Loss(Loss):
    """Absolute distances."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("L1Loss", x).l1_loss(target, self.reduction)


class SmoothL1Loss(Loss):
    """d*d / (2 beta) of a distance d below beta, else d - beta/2."""

    @with_old_reductions
    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("SmoothL1Loss", x).smooth_l1_loss(target, self.reduction, self.beta)


class HuberLoss(Loss):
    """d*d / 2 of a distance d up to delta, else delta * (d - delta/2)."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("HuberLoss", x).huber_loss(target, self.reduction, self.delta)


class KLDivLoss(Loss):
    """t * (log(t) - x) of log-probabilities x and probabilities t, or their logarithms with `log_target`. The
    divergence itself is the reduction 'batchmean'."""

    @with_old_reductions
    def __init__(self, *, reduction: str = "mean", log_target: bool = False):
        super().__init__(reduction=reduction)
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("KLDivLoss", x).kl_div(target, self.reduction, self.log_target)


class GaussianNLLLoss(Loss):
    """(log(var) + (x - t)**2 / var) / 2 of means x and variances; `full` adds log(2 pi) / 2."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, x: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return as_tensor("GaussianNLLLoss", x).gaussian_nll_loss(target, var, self.reduction, self.full, self.eps)


class PoissonNLLLoss(Loss):
    """exp(x) - t*x of logarithms x of rates, or x - t*log(x + eps) of rates; `full` adds Stirling's log(t!)."""

    @with_old_reductions
    def __init__(self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("PoissonNLLLoss", x).poisson_nll_loss(target, self.log_input, self.full, self.eps,
                                                               self.reduction)


class MarginRankingLoss(Loss):
    """max(0, margin - t * (x - other)): t is 1 where x should be larger, -1 where `other` should."""

    @with_old_reductions
    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, x: Tensor, other: Tensor, target: Tensor) -> Tensor:
        return as_tensor("MarginRankingLoss", x).margin_ranking_loss(other, target, self.margin, self.reduction)


class HingeEmbeddingLoss(Loss):
    """Of distances x: x itself where t is 1, max(0, margin - x) where it is -1."""

    @with_old_reductions
    def __init__(self, margin: float = 1.0, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("HingeEmbeddingLoss", x).hinge_embedding_loss(target, self.margin, self.reduction)


class SoftMarginLoss(Loss):
    """log(1 + exp(-t * x)) for t of 1 or -1."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return as_tensor("SoftMarginLoss", x).soft_margin_loss(target, self.reduction)


class CosineEmbeddingLoss(Loss):
    """Of vectors [N, D]: 1 - cos where t is 1, max(0, cos - margin) where it is -1."""

    @with_old_reductions
    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, x: Tensor, other: Tensor, target: Tensor) -> Tensor:
        return as_tensor("CosineEmbeddingLoss", x).cosine_embedding_loss(other, target, self.margin, self.reduction)


class TripletMarginLoss(Loss):
    """max(0, d(x, positive) - d(x, negative) + margin) of p-norms d over the last axis; `swap` takes the smaller of the
    negative's distances to both."""

    @with_old_reductions
    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, *,
                 reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return as_tensor("TripletMarginLoss", x).triplet_margin_loss(
            positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction)


def _same_shape(name: str, x: Tensor, target: Tensor) -> None:
    if as_tensor(name, x).shape != as_tensor(name, target).shape:
        raise ShapeError(f"[{name}] expected a target of the input's shape {list(x.shape)}, got {list(target.shape)}")
