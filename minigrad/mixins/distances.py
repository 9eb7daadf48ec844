"""Norms, distances and products of pairs of vectors."""
from __future__ import annotations

import math
from typing import Any, Self, cast

from minigrad.dtype import DType
from minigrad.errors import ShapeError
from minigrad.mixins.base import as_axes, as_axis, as_count, as_number, as_tensor, broadcast_shapes
from minigrad.mixins.reduce import Axis
from minigrad.mixins.rounding import rounded_once
from minigrad.mixins.statistics import StatisticsMixin
from minigrad.ops import build as B


class DistanceMixin(StatisticsMixin):
    """The gradient of a norm or distance is 0 where it is 0."""

    __slots__ = ()

    def norm(self, p: Any = "fro", dim: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
             axis: Axis = None) -> Self:
        """(sum |x|**p)**(1/p) over axes, of all without them; p is 2 unless told, may be infinite, and 0 counts what is
        not 0. 'nuc': the sum of singular values of matrices, which are the last two axes unless told."""
        x = self if dtype is None else self.cast(dtype)
        dim = axis if dim is None else dim
        if p == "nuc":
            return x._nuclear_norm(dim, keepdim)
        if isinstance(p, str) and p != "fro":
            raise ShapeError(f"[norm] expected p as a number, 'fro' or 'nuc', got {p!r}")
        return x._norm("norm", 2 if p is None or p == "fro" else p, dim, keepdim)

    def _nuclear_norm(self, dim: Axis, keepdim: bool) -> Self:
        axes = as_axes("norm", (-2, -1) if dim is None else dim, self.ndim)
        if len(axes) != 2:
            raise ShapeError(f"[norm] expected two axes for p = 'nuc', got {dim!r} of {list(self.shape)}")
        total = cast(Any, self.movedim(axes, (-2, -1))).svd()[1].sum(-1)
        shape: Any = [1 if a in axes else n for a, n in enumerate(self.shape)]
        return total.reshape(*shape) if keepdim else total

    @rounded_once
    def _norm(self, name: str, p: Any, axis: Axis, keepdim: bool) -> Self:
        p = as_number(name, "p", p)
        axes = as_axes(name, axis, self.ndim)
        x = self._as_float()
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
        a = as_axis("normalize", dim, max(self.ndim, 1))
        return self / self._norm("normalize", p, a, True).maximum(as_number("normalize", "eps", eps))

    @rounded_once
    def cosine_similarity(self, other: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along an axis, whose norms are no less than `eps`; shapes broadcast.
        """
        other = as_tensor("cosine_similarity", self._operand(other))
        shape = broadcast_shapes("cosine_similarity", self.shape, other.shape)
        a = as_axis("cosine_similarity", dim, max(len(shape), 1))
        x, y = self.expand(*shape)._as_float(), other.expand(*shape)._as_float()
        least = as_number("cosine_similarity", "eps", eps)
        lengths = x._norm("norm", 2, a, False).maximum(least) * y._norm("norm", 2, a, False).maximum(least)
        return (x * y).sum(a) / lengths

    @rounded_once
    def pairwise_distance(self, other: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm of x - other + eps along the last axis; shapes broadcast."""
        return (self - as_tensor("pairwise_distance", self._operand(other)) + eps)._norm(
            "pairwise_distance", p, -1, keepdim)

    @rounded_once
    def dist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of x - other over all elements."""
        return (self - as_tensor("dist", self._operand(other)))._norm("dist", p, None, False)

    @rounded_once
    def cdist(self, other: Self, p: float = 2.0, compute_mode: str | None = None) -> Self:
        """All distances between rows of x [..., P, D] and other [..., R, D]: p-norms [..., P, R]. Each is computed from
        differences, without the cancellation of a product, whatever `compute_mode` says."""
        other = as_tensor("cdist", self._operand(other))
        if self.ndim < 2 or other.ndim < 2 or self.shape[-1] != other.shape[-1]:
            raise ShapeError(f"[cdist] expected x [..., P, D] and other [..., R, D] with equal D, got "
                             f"{list(self.shape)} and {list(other.shape)}")
        return (self.unsqueeze(-2) - other.unsqueeze(-3))._norm("cdist", p, -1, False)

    @rounded_once
    def pdist(self, p: float = 2.0) -> Self:
        """The distances of `cdist` between different rows of [N, D], each pair once: [N * (N - 1) / 2]."""
        if self.ndim != 2:
            raise ShapeError(f"[pdist] expected rows [N, D], got {list(self.shape)}")
        rows = self._known_length("pdist", 0)
        pairs = self.triu_indices(rows, rows, 1, device=self.device)
        return (self.index_select(0, pairs[0]) - self.index_select(0, pairs[1]))._norm("pdist", p, -1, False)

    @rounded_once
    def renorm(self, p: float, dim: int, maxnorm: float) -> Self:
        """With slices along an axis whose p-norm is larger than `maxnorm` scaled down to it."""
        a = as_axis("renorm", dim, self.ndim)
        rest = tuple([i for i in range(self.ndim) if i != a])
        most = as_number("renorm", "maxnorm", maxnorm)
        size = self._norm("renorm", p, rest, True) if rest else self.abs()
        return (size > most).where(self * (most / (size + 1e-7)), self)

    def movedim(self, source: Any, destination: Any) -> Self:
        """One axis moved to another place, or several to as many, the others in their order."""
        sides = [v if isinstance(v, (tuple, list)) else (v,) for v in (source, destination)]
        starts, stops = ([as_axis("movedim", a, self.ndim or 1) for a in side] for side in sides)
        if len(starts) != len(stops) or len(set(starts)) != len(starts) or len(set(stops)) != len(stops):
            raise ShapeError(f"[movedim] expected as many axes as places, each once, got {source!r} and "
                             f"{destination!r}")
        rest = iter([a for a in range(self.ndim) if a not in starts])
        moved = dict(zip(stops, starts, strict=True))
        return self.permute(*[moved[a] if a in moved else next(rest) for a in range(self.ndim)])

    def aminmax(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> tuple[Self, Self]:
        """(the smallest, the largest) along axes."""
        axis = axis if dim is None else dim
        return self.min(axis, keepdim), self.max(axis, keepdim)

    # Products

    def kron(self, other: Self) -> Self:
        """Kronecker's product: every element of x times the whole of `other`."""
        other = as_tensor("kron", self._operand(other))
        rank = max(self.ndim, other.ndim)
        a, b = (1,) * (rank - self.ndim) + self.shape, (1,) * (rank - other.ndim) + other.shape
        x = self.reshape(*[d for n in a for d in (n, 1)])
        y = other.reshape(*[d for n in b for d in (1, n)])
        shape: Any = [m * n for m, n in zip(a, b, strict=True)]  # type: ignore[operator]
        return (x * y).reshape(*shape)

    def cross(self, other: Self, dim: int = -1) -> Self:
        """The vector product of vectors of 3 elements along an axis."""
        other = as_tensor("cross", self._operand(other))
        shape = broadcast_shapes("cross", self.shape, other.shape)
        a = as_axis("cross", dim, len(shape))
        if shape[a] != 3:
            raise ShapeError(f"[cross] expected 3 elements along axis {dim}, got {list(shape)}")
        x, y = self.expand(*shape), other.expand(*shape)
        return x.roll(-1, a) * y.roll(-2, a) - x.roll(-2, a) * y.roll(-1, a)

    def inner(self, other: Any) -> Self:
        """Sums of products over the last axes of both."""
        other = as_tensor("inner", self._operand(other))
        return self.tensordot(other, ([-1], [-1])) if self.ndim and other.ndim else self * other

    def tensordot(self, other: Any, dims: Any = 2) -> Self:
        """Sums of products over the last `dims` axes of x and the first of `other`, or over pairs of axes (of x, of
        other)."""
        other = as_tensor("tensordot", self._operand(other))
        if isinstance(dims, (tuple, list)):
            sides = [list(d) if isinstance(d, (tuple, list)) else [d] for d in dims]
            if len(sides) != 2 or len(sides[0]) != len(sides[1]):
                raise ShapeError(f"[tensordot] expected as many axes of both, got {dims!r}")
        else:
            count = as_count("tensordot", "dims", dims)
            sides = [list(range(self.ndim - count, self.ndim)), list(range(count))]
        mine = [as_axis("tensordot", a, self.ndim) for a in sides[0]]
        theirs = [as_axis("tensordot", a, other.ndim) for a in sides[1]]
        summed, across = [self.shape[a] for a in mine], [other.shape[a] for a in theirs]
        if summed != across:
            raise ShapeError(f"[tensordot] expected equal lengths, got {summed} of {list(self.shape)} and {across} of "
                             f"{list(other.shape)}")
        rows = [a for a in range(self.ndim) if a not in mine]
        columns = [a for a in range(other.ndim) if a not in theirs]
        free, others = tuple([self.shape[a] for a in rows]), tuple([other.shape[a] for a in columns])
        x = self.permute(*rows, *mine).reshape(B.numel(free), B.numel(tuple(summed)))
        y = other.permute(*theirs, *columns).reshape(B.numel(tuple(summed)), B.numel(others))
        return x.dot(y).reshape(*free, *others)

    def baddbmm(self, left: Self, right: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * (left @ right)."""
        return cast(Any, self)._plus_product("baddbmm", left, right, beta, alpha)

    def matrix_power(self, n: int) -> Self:
        """The product of n copies of square matrices [..., M, M], the identity for 0."""
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[matrix_power] expected square matrices, got {list(self.shape)}")
        count, square = as_count("matrix_power", "n", n), self
        result = None
        while count:
            if count & 1:
                result = square if result is None else result.dot(square)
            count >>= 1
            square = square.dot(square) if count else square
        size: Any = self.shape[-1]
        return self.eye(size, dtype=self.dtype, device=self.device).expand(*self.shape) if result is None else result

    def matrix_exp(self) -> Self:
        """The exponential of square matrices [..., M, M] of floats: the sum of A**k / k!. Integers become float32, half
        types compute in it.

        Matrices are halved until their norm is small, at most 20 times; of these a polynomial of degree 16 is taken,
        and squared as often. Nothing is read, so that each squaring is computed for all matrices.

        Source: Bader, Blanes & Casas 2019, https://arxiv.org/abs/1710.10989 (section 2: Taylor with scaling)
        """
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[matrix_exp] expected square matrices, got {list(self.shape)}")
        given = self._as_float()
        a = given.cast(given.dtype.compute)
        if 0 in a.shape:
            return given
        limit = 0.5 if a.dtype.name == "float64" else 1.0
        size = a.detach().abs().sum(-2).max(-1).reshape(*a.shape[:-2], 1, 1)
        halvings = (size > limit).where((size / limit).log2().ceil(), 0).clip(0, 20)
        a = a * (-halvings).exp2()
        n: Any = a.shape[-1]
        one = self.eye(n, dtype=a.dtype, device=a.device)
        powers = [one, a, a.dot(a)]
        powers += [powers[2].dot(a), powers[2].dot(powers[2])]
        result = powers[4] * (1 / math.factorial(16))
        for k in (12, 8, 4, 0):  # by blocks of four: Paterson and Stockmeyer
            block = sum( [powers[j] * (1 / math.factorial(k + j)) for j in range(4)], start=0.0)
            result = (result if k == 12 else result.dot(powers[4])) + block
        for k in range(20):
            result = (halvings > k).where(result.dot(result), result)
        return result.cast(given.dtype)
