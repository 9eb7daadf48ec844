"""Products of pairs of vectors and matrices."""
from __future__ import annotations

import math
from typing import Any, Self, cast

from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axis, as_count, as_index, as_tensor, broadcast_shapes
from minigrad.mixins.reduce import Axis
from minigrad.ops import build as B


class DistanceMixin(Base):
    __slots__ = ()

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

    moveaxis = movedim

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
        shape: Any = [m * n for m, n in zip(a, b, strict=True)]
        return (x * y).reshape(*shape)

    def cross(self, other: Self, dim: int = -1) -> Self:
        """The vector product of vectors of 3 elements along an axis; the others broadcast."""
        other = as_tensor("cross", self._operand(other))
        shape = broadcast_shapes("cross", self.shape, other.shape)
        a = as_axis("cross", dim, len(shape))
        if any(t.shape[a - len(shape)] != 3 for t in (self, other) if t.ndim >= len(shape) - a):
            raise ShapeError(f"[cross] expected 3 elements along axis {dim}, got {list(self.shape)} and "
                             f"{list(other.shape)}")
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
        if summed != across and all(m == n or 1 in (m, n) for m, n in zip(summed, across, strict=True)):
            # As in PyTorch, an axis of length 1 stands for its elements' sum on the other side.
            x = self.sum([a for a, n in zip(mine, across, strict=True) if n == 1], True, self.dtype)
            y = other.sum([a for a, n in zip(theirs, summed, strict=True) if n == 1], True, other.dtype)
            return x.tensordot(y, (mine, theirs))
        if summed != across:
            raise ShapeError(f"[tensordot] expected equal lengths, got {summed} of {list(self.shape)} and {across} of "
                             f"{list(other.shape)}")
        rows = [a for a in range(self.ndim) if a not in mine]
        columns = [a for a in range(other.ndim) if a not in theirs]
        free, others = tuple([self.shape[a] for a in rows]), tuple([other.shape[a] for a in columns])
        x = self.permute(*rows, *mine).reshape(B.numel(free), B.numel(tuple(summed)))
        y = other.permute(*theirs, *columns).reshape(B.numel(tuple(summed)), B.numel(others))
        return x.dot(y).reshape(*free, *others)

    def baddbmm(self, batch1: Self, batch2: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * (batch1 @ batch2)."""
        return cast(Any, self)._plus_product("baddbmm", batch1, batch2, beta, alpha)

    def matrix_power(self, n: int) -> Self:
        """The product of n copies of square matrices [..., M, M], the identity for 0, of inverses for less."""
        power = as_index(n)
        if self.ndim < 2 or self.shape[-1] != self.shape[-2] or not isinstance(power, int):
            raise ShapeError(f"[matrix_power] expected square matrices and n as an integer, got {list(self.shape)} and "
                             f"{n!r}")
        count = abs(power)
        square: Any = self if power >= 0 else self.inverse()
        result = None
        while count:
            if count & 1:
                result = square if result is None else result.dot(square)
            count >>= 1
            square = square.dot(square) if count else square
        size: Any = self.shape[-1]
        return self.eye(size, dtype=self.dtype, device=self.device).expand(*self.shape) if result is None else result

    def matrix_exp(self) -> Self:
        """The exponential of square matrices [..., M, M] of floats: the sum of A**k / k!, computed in float64. Integers
        become float32.

        Matrices are halved until their norm is small, at most 20 times; of these a polynomial of degree 16 is taken,
        and squared as often. Nothing is read, so that each squaring is computed for all matrices.

        Source: Bader, Blanes & Casas 2019, https://arxiv.org/abs/1710.10989 (section 2: Taylor with scaling)
        """
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[matrix_exp] expected square matrices, got {list(self.shape)}")
        given = self._as_float()
        if 0 in given.shape:
            return given
        a = given._in_double()
        limit = 0.75 if a.dtype.name == "float64" else 2.5  # what the polynomial leaves out is less than rounding
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
