"""Norms of vectors and matrices, and distances."""
from __future__ import annotations

import math
from typing import Any, Self, TypeVar

from minigrad.dtype import DType, to_dtype
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axes, as_axis, as_number, as_parameter, as_tensor, broadcast_shapes
from minigrad.mixins.reduce import Axis
from minigrad.mixins.rounding import rounded_once

_OF_MATRICES = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


class NormMixin(Base):
    """The gradient of a norm or distance is 0 where it is 0. Half types compute in float32."""

    __slots__ = ()

    def norm(self, p: Any = "fro", dim: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
             axis: Axis = None) -> Self:
        """(sum |x|**p)**(1/p) over axes, of all without them; p may be infinite, and 0 counts what is not 0. 'fro' is
        2, and 'nuc' the sum of the singular values of a matrix, or of those over two axes."""
        dim = axis if dim is None else dim
        p = as_number("norm", "p", p) if isinstance(p, Base) else p
        if p == "nuc":
            axes: Any = tuple(range(self.ndim)) if dim is None else dim
            return matrix_norm("norm", self, "nuc", axes, keepdim, dtype)
        if isinstance(p, str) and p != "fro":
            raise ShapeError(f"[norm] expected p as a number, 'fro' or 'nuc', got {p!r}")
        return vector_norm("norm", self, 2 if p is None or p == "fro" else p, dim, keepdim, dtype)

    @rounded_once
    def _norm(self, name: str, p: Any, axis: Axis, keepdim: bool) -> Self:
        """Of floats, in their type."""
        p = as_number(name, "p", p)
        axes = as_axes(name, axis, self.ndim)
        x = self
        if (p < 0 or math.isinf(p)) and 0 in [self.shape[a] for a in axes]:
            raise ShapeError(f"[{name}] expected elements for a norm of order {p}, got {list(self.shape)} over {axis}")
        if p == 2:
            return x.square().sum(axes, keepdim)._root()
        if p == 0:
            return x.ne(0).sum(axes, keepdim).cast(x.dtype)
        if math.isinf(p):
            return x.abs().max(axes, keepdim) if p > 0 else x.abs().min(axes, keepdim)
        if p == 1:
            return x.abs().sum(axes, keepdim)
        none = x.eq(0)
        powers = none.where(0 if p > 0 else math.inf, none.where(1, x).abs().pow(p))
        total = powers.sum(axes, keepdim)
        still = total.eq(0).bitwise_or(total.isinf())
        return still.where((total if p > 0 else 1 / total), still.where(1, total).pow(1 / p))

    @rounded_once
    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """x over its norm along an axis, which is no less than `eps`."""
        a, x = as_axes("normalize", dim, self.ndim), self._as_float()
        return x / x._norm("normalize", p, a, True).maximum(as_parameter("normalize", "eps", eps))

    @rounded_once
    def cosine_similarity(self, other: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along an axis, whose norms are no less than `eps`; shapes broadcast.
        """
        other = as_tensor("cosine_similarity", self._operand(other))
        shape = broadcast_shapes("cosine_similarity", self.shape, other.shape)
        a = as_axis("cosine_similarity", dim, max(len(shape), 1))
        x, y = self.expand(*shape)._as_float(), other.expand(*shape)._as_float()
        least = as_parameter("cosine_similarity", "eps", eps)
        lengths = x._norm("norm", 2, a, False).maximum(least) * y._norm("norm", 2, a, False).maximum(least)
        return (x * y).sum(a) / lengths

    @rounded_once
    def pairwise_distance(self, other: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm of x - other + eps along the last axis; shapes broadcast."""
        difference = self - as_tensor("pairwise_distance", self._operand(other)) + eps
        return vector_norm("pairwise_distance", difference, p, -1, keepdim)

    @rounded_once
    def dist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of x - other over all elements."""
        return vector_norm("dist", self - as_tensor("dist", self._operand(other)), p, None)

    @rounded_once
    def cdist(self, other: Self, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Self:
        """All distances between rows of x [..., P, D] and other [..., R, D]: p-norms [..., P, R]. Each is computed from
        differences, without the cancellation of a product, whatever `compute_mode` says."""
        other = as_tensor("cdist", self._operand(other))
        if self.ndim < 2 or other.ndim < 2 or self.shape[-1] != other.shape[-1]:
            raise ShapeError(f"[cdist] expected x [..., P, D] and other [..., R, D] with equal D, got "
                             f"{list(self.shape)} and {list(other.shape)}")
        if as_number("cdist", "p", p) < 0:
            raise ShapeError(f"[cdist] expected p of 0 or more, got {p}")
        return vector_norm("cdist", self.unsqueeze(-2) - other.unsqueeze(-3), p, -1)

    @rounded_once
    def pdist(self, p: float = 2.0) -> Self:
        """The distances of `cdist` between different rows of [N, D], each pair once: [N * (N - 1) / 2]."""
        if self.ndim != 2:
            raise ShapeError(f"[pdist] expected rows [N, D], got {list(self.shape)}")
        rows = self._known_length("pdist", 0)
        pairs = self.triu_indices(rows, rows, 1, device=self.device)
        return vector_norm("pdist", self.index_select(0, pairs[0]) - self.index_select(0, pairs[1]), p, -1)

    @rounded_once
    def renorm(self, p: float, dim: int, maxnorm: float) -> Self:
        """With slices along an axis whose p-norm is larger than `maxnorm` scaled down to it."""
        a, x = as_axis("renorm", dim, self.ndim), self._as_float()
        rest = tuple([i for i in range(self.ndim) if i != a])
        most = as_parameter("renorm", "maxnorm", maxnorm)
        if most < 0 or as_number("renorm", "p", p) <= 0:
            raise ShapeError(f"[renorm] expected p above 0 and maxnorm of 0 or more, got {p} and {maxnorm}")
        size = x._norm("renorm", p, rest, True) if rest else x.abs()
        return (size > most).where(x * (most / (size + 1e-7)), x)


T = TypeVar("T", bound=NormMixin)


def vector_norm(name: str, x: T, p: Any, axis: Axis, keepdim: bool = False, dtype: DType | str | None = None) -> T:
    """The p-norm of a tensor over axes, all for None; `name` is what errors call it."""
    return (x._as_float() if dtype is None else x.cast(to_dtype(dtype)))._norm(name, p, axis, keepdim)


def matrix_norm(name: str, x: T, p: Any, dim: Any, keepdim: bool = False, dtype: DType | str | None = None) -> T:
    """The norm of the matrices over two axes: 'fro', 'nuc' (the sum of singular values), 2 and -2 (the largest and the
    smallest), 1 and -1 (of the sums of columns' absolute values), inf and -inf (of rows'). Raises ShapeError."""
    if p not in _OF_MATRICES:
        raise ShapeError(f"[{name}] expected order 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2 of a matrix norm, got "
                         f"{p!r}")
    if not isinstance(dim, (tuple, list)) or len(dim) != 2 or len(as_axes(name, dim, x.ndim)) != 2:
        raise ShapeError(f"[{name}] expected two axes of {list(x.shape)}, got {dim!r}")
    if p == "fro":
        return vector_norm(name, x, 2, dim, keepdim, dtype)
    given = x._as_float() if dtype is None else x.cast(to_dtype(dtype))
    rows, columns = (as_axis(name, d, x.ndim) for d in dim)
    wide = given.cast(given.dtype.compute).movedim((rows, columns), (-2, -1))
    if p == "nuc" or abs(p) == 2:
        sizes: Any = wide.svd()[1]
    else:
        sizes = wide.abs().sum(-2 if abs(p) == 1 else -1)
    empty = 0 in x.shape and p != "nuc" and p > 0  # as in PyTorch; the smallest of nothing is refused
    result = sizes.sum(-1) if p == "nuc" or empty else sizes.max(-1) if p > 0 else sizes.min(-1)
    if keepdim:
        result = result.reshape(*[1 if a in (rows, columns) else d for a, d in enumerate(x.shape)])
    return result.cast(given.dtype)
