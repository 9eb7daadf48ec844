"""Layers of two vectors: CosineSimilarity, PairwiseDistance, Bilinear."""
from __future__ import annotations

import math

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.mixins.rounding import rounded_once
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


class CosineSimilarity(Layer):
    """The cosine of the angle between vectors along the axis `dim`, whose norms are no less than `eps`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        self.dim, self.eps = dim, eps

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return as_tensor("CosineSimilarity", x).cosine_similarity(other, self.dim, self.eps)


class PairwiseDistance(Layer):
    """The p-norm of x - other + eps along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return as_tensor("PairwiseDistance", x).pairwise_distance(other, self.p, self.eps, self.keepdim)


class Bilinear(Layer):
    """y[k] = x1 @ weight[k] @ x2 + bias[k], for x1 [..., in1_features] and x2 [..., in2_features].

    `weight` is [out_features, in1_features, in2_features] and `bias` [out_features] (None without), both uniform in
    +-1/sqrt(in1_features).
    """

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True):
        shape = [as_count("Bilinear", "features", n, 1) for n in (out_features, in1_features, in2_features)]
        self.out_features, self.in1_features, self.in2_features = shape
        bound = 1 / math.sqrt(in1_features)
        self.weight = Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound, requires_grad=True) if bias else None

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return bilinear(x1, x2, self.weight, self.bias)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1 @ weight[k] @ x2 + bias[k] for each k, [..., out], of x1 [..., first], x2 [..., second] and a weight
    [out, first, second]."""
    outs, first, second = as_tensor("bilinear", weight).shape
    if as_tensor("Bilinear", input1).shape[-1:] != (first,) or as_tensor("Bilinear", input2).shape != (
            *input1.shape[:-1], second):
        raise ShapeError(f"[Bilinear] expected [..., {first}] and [..., {second}], got {list(input1.shape)} and "
                         f"{list(input2.shape)}")
    y = _of_rows(input1.reshape(-1, first), input2.reshape(-1, second), weight, bias)
    return y.reshape(*input1.shape[:-1], outs)


@rounded_once
def _of_rows(rows: Tensor, columns: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = Tensor.einsum("ni,kij,nj->nk", rows, weight, columns)
    return y if bias is None else y + bias
