"""Losses of sequences and of sets of labels as objects, and of triplets with any distance."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.losses import reduced
from minigrad.nn.legacy import with_old_reductions
from minigrad.nn.loss import Loss
from minigrad.tensor import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]


class CTCLoss(Loss):
    """Of log-probabilities [T, N, C], targets, and the lengths of both; see `Tensor.ctc_loss`."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:
        return as_tensor("CTCLoss", log_probs).ctc_loss(targets, input_lengths, target_lengths, self.blank,
                                                        self.reduction, self.zero_infinity)


class MultiMarginLoss(Loss):
    """Of scores [N, C] and classes [N]; see `Tensor.multi_margin_loss`."""

    @with_old_reductions
    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.p, self.margin, self.weight = p, margin, weight

    def forward(self, x: Tensor, target: Any) -> Tensor:
        return as_tensor("MultiMarginLoss", x).multi_margin_loss(target, self.p, self.margin, self.weight,
                                                                 self.reduction)


class MultiLabelMarginLoss(Loss):
    """Of scores and labels [N, C]; see `Tensor.multilabel_margin_loss`."""

    def forward(self, x: Tensor, target: Any) -> Tensor:
        return as_tensor("MultiLabelMarginLoss", x).multilabel_margin_loss(target, self.reduction)


class MultiLabelSoftMarginLoss(Loss):
    """Of logits and targets of 0 and 1 [N, C]; see `Tensor.multilabel_soft_margin_loss`."""

    @with_old_reductions
    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.weight = weight

    def forward(self, x: Tensor, target: Any) -> Tensor:
        return as_tensor("MultiLabelSoftMarginLoss", x).multilabel_soft_margin_loss(target, self.weight, self.reduction)


def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *,
                                      distance_function: Distance | None = None, margin: float = 1.0,
                                      swap: bool = False, reduction: str = "mean") -> Tensor:
    """max(0, d(x, positive) - d(x, negative) + margin), where d is `pairwise_distance` unless told; `swap` takes the
    smaller of the negative's distances to both."""
    if not margin > 0:
        raise ShapeError(f"[triplet_margin_with_distance_loss] expected a margin above 0, got {margin}")
    distance: Distance = Tensor.pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    far = far.minimum(distance(positive, negative)) if swap else far
    return reduced((distance(anchor, positive) - far + margin).relu(), reduction)


class TripletMarginWithDistanceLoss(Loss):
    """`functional.triplet_margin_with_distance_loss`."""

    def __init__(self, *, distance_function: Distance | None = None, margin: float = 1.0, swap: bool = False,
                 reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=self.distance_function,
                                                 margin=self.margin, swap=self.swap, reduction=self.reduction)
