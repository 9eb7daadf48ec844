"""Further names of PyTorch, for what other methods do already or nearly."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np

from minigrad.dtype import DType, bool_, int8, int16, promote, to_dtype, uint8
from minigrad.errors import DTypeError, OutOfRangeError, ShapeError, quantity
from minigrad.expr import bounds
from minigrad.mixins.base import (
    Base,
    as_axis,
    as_count,
    as_index,
    as_number,
    as_position,
    as_shape,
    as_tensor,
    broadcast_shapes,
    is_index,
)
from minigrad.mixins.movement import spread
from minigrad.mixins.reduce import Axis
from minigrad.mixins.rounding import rounded_once


class AliasMixin(Base):
    """Every method is one expression of others."""

    __slots__ = ()

    # Shapes

    def dim(self) -> int:
        return self.ndim

    def nelement(self) -> Any:
        return self.numel()

    def t(self) -> Self:
        """The transpose of a matrix; fewer axes stay as they are."""
        if self.ndim > 2:
            raise ShapeError(f"[t] expected at most 2 axes, got {list(self.shape)}; use transpose or mT")
        return self.transpose(0, 1) if self.ndim == 2 else self._wrap(self.node, self)

    @property
    def mT(self) -> Self:  # noqa: N802  (PyTorch's name)
        """The last two axes exchanged."""
        return self.transpose(-1, -2)

    def ravel(self) -> Self:
        return self.flatten()

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        return self.transpose(axis0, axis1)

    def narrow(self, dim: int, start: Any, length: int) -> Self:
        """`length` elements of an axis from `start` on, which counts from the end where it is negative. Raises
        OutOfRangeError."""
        a, length = as_axis("narrow", dim, self.ndim), as_count("narrow", "length", length)
        n, given, start = self.shape[a], start, as_index(start)
        if start is None:
            raise ShapeError(f"[narrow] expected start as an integer, got {given!r}")
        start = n + start if isinstance(start, int) and start < 0 else start
        if bounds(start)[1] < 0 or bounds(n - start)[1] < 0 or bounds(n - start - length)[1] < 0:
            raise OutOfRangeError(f"[narrow] expected start in {-n}..{n} and no more than the {quantity(n, 'element')} "
                                  f"along axis {a} of {list(self.shape)}, got start {given} and length {length}")
        return self.shrink(tuple([(start, start + length) if i == a else (0, n) for i, n in enumerate(self.shape)]))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """All slices along an axis, without it; none where it is empty."""
        return tuple([part.squeeze(dim) for part in self.split(1, dim) if part.shape[dim] != 0])

    def tile(self, *repeats: Any, dims: Any = ()) -> Self:
        """`repeat`, where fewer counts than axes mean the last ones."""
        counts = spread(repeats or (dims,))
        return self.repeat(*[1] * (self.ndim - len(counts)), *counts)

    def select(self, dim: int, index: Any) -> Self:
        """One slice along an axis, without it."""
        return self[(*[slice(None)] * as_axis("select", dim, self.ndim), index)]

    def diff(self, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Self:
        """Each element less the one before it along an axis, `n` times, of bools whether the two differ; with other
        tensors joined before and behind the axis first, where n is not 0."""
        a, count = as_axis("diff", dim, self.ndim), as_count("diff", "n", n)
        ends = [() if t is None else (as_tensor("diff", self._operand(t)),) for t in (prepend, append)]
        parts = [*ends[0], self, *ends[1]]
        x = parts[0].cat(*parts[1:], dim=a) if count and len(parts) > 1 else self
        while count and x.shape[a] != 0:
            after, before = x._cut(a, 1, x.shape[a]), x._cut(a, 0, x.shape[a] - 1)
            x, count = after.ne(before) if x.dtype is bool_ else after - before, count - 1
        return x

    def flipud(self) -> Self:
        return self.flip(as_axis("flipud", 0, self.ndim))

    def fliplr(self) -> Self:
        return self.flip(as_axis("fliplr", 1, self.ndim))

    def sequential(self, layers: Iterable[Callable[[Any], Any]]) -> Any:
        """The result of the layers, called one after another."""
        x: Any = self
        for layer in layers:
            x = layer(x)
        return x

    def view_as(self, other: Self) -> Self:
        return self.reshape(*other.shape)

    def argwhere(self) -> Self:
        """`nonzero`."""
        return self.nonzero()

    reshape_as = view_as

    # Types and new tensors

    def type_as(self, other: Self) -> Self:
        return self.cast(other.dtype)

    def byte(self) -> Self:
        return self.cast(uint8)

    def char(self) -> Self:
        return self.cast(int8)

    def short(self) -> Self:
        return self.cast(int16)

    def cpu(self) -> Any:
        """The same values on the device CPU."""
        return self.to("CPU")

    def new_full(self, size: Any, fill_value: Any, **options: Any) -> Self:
        """A tensor of another shape with this one's type and device."""
        return self.full(size, fill_value, **{"dtype": self.dtype, "device": self.device, **options})

    def new_zeros(self, *size: Any, **options: Any) -> Self:
        return self.new_full(as_shape(size), 0, **options)

    def new_ones(self, *size: Any, **options: Any) -> Self:
        return self.new_full(as_shape(size), 1, **options)

    def new_empty(self, *size: Any, **options: Any) -> Self:
        return self.new_zeros(*size, **options)

    def new_tensor(self, data: Any, **options: Any) -> Self:
        """A tensor of other data with this one's type and device."""
        kind, device = options.get("dtype") or self.dtype, options.get("device") or self.device
        return self._from_data(data, to_dtype(kind), device)

    def empty_like(self, **options: Any) -> Self:
        """A tensor of this shape whose values do not matter (they are 0)."""
        return self.zeros_like(**options)

    def type(self, dtype: Any = None) -> Any:
        """In another type, which may be one such as LongTensor; without one, the name of this one."""
        if dtype is None:
            return self.dtype.name
        of_tensors = getattr(dtype, "dtype", None)
        return self.cast(of_tensors if isinstance(of_tensors, DType) else dtype)

    # Products

    def vdot(self, other: Any) -> Self:
        """The sum of products of two vectors."""
        return self.dot(other)

    def addmv(self, mat: Self, vec: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * (mat @ vec)."""
        return self._plus_product("addmv", mat, vec, beta, alpha)

    @rounded_once
    def addr(self, vec1: Self, vec2: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * the products of every element of one vector with every element of the other; of bools, by
        or and and."""
        return self._blended(as_tensor("addr", vec1).outer(vec2), beta, alpha)

    def addmm(self, mat1: Self, mat2: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * (mat1 @ mat2)."""
        return self._plus_product("addmm", mat1, mat2, beta, alpha)

    def _plus_product(self, name: str, left: Any, right: Any, beta: Any, alpha: Any, batches: bool = False) -> Self:
        """beta * x + alpha * (left @ right), the product summed over the first axis if `batches` says so; half types
        are rounded once, integers multiply by integers."""
        kind = promote(as_tensor(name, left).dtype, as_tensor(name, right).dtype)
        product = left.dot(right, dtype=kind.compute if kind.is_float else kind)
        product = product.sum(0, dtype=product.dtype) if batches else product
        return self.cast(self.dtype.compute)._blended(product, beta, alpha).cast(promote(self.dtype, kind))

    def _blended(self, other: Self, beta: Any, alpha: Any) -> Self:
        """beta * x + alpha * other; x does not count, be it NaN, where beta is 0."""
        kind = promote(self.dtype, other.dtype)
        if not kind.is_float:  # of bools, these are or and and
            beta, alpha = (bool(v) if kind is bool_ else int(v) for v in (beta, alpha))
        x, y = self.cast(kind), other.cast(kind)
        added = y if alpha == 1 else y * alpha
        return added.expand(*broadcast_shapes("add", x.shape, y.shape)) if beta == 0 else (
            added + (x if beta == 1 else x * beta))

    def mm(self, mat2: Any) -> Self:
        return self.dot(mat2)

    def bmm(self, mat2: Any) -> Self:
        return self.dot(mat2)

    def mv(self, vec: Any) -> Self:
        return self.dot(vec)

    def rot90(self, k: int = 1, dims: Any = (0, 1)) -> Self:
        """The tensor rotated k times by 90 degrees, from the first axis towards the second."""
        k, given = as_index(k), k
        if k is None or not isinstance(dims, (tuple, list)) or len(dims) != 2:
            raise ShapeError(f"[rot90] expected k as an integer and two axes, got {given!r} and {dims!r}")
        a, b = self._two_axes("rot90", dims[0], dims[1], self.ndim)
        turns: list[Callable[[], Self]] = [lambda: self, lambda: self.flip(b).transpose(a, b),
                                           lambda: self.flip(a, b), lambda: self.flip(a).transpose(a, b)]
        return turns[k % 4]()

    def tensor_split(self, sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """As many parts along an axis, the first ones longer by one where it does not divide, or parts that end before
        each of some indices. A tensor of one or the other is read."""
        n: Any = self.shape[as_axis("tensor_split", dim, self.ndim)]
        sections = self._sections("tensor_split", sections)
        if is_index(sections):
            count = as_count("tensor_split", "sections", sections, 1)
            return self.split([n // count + (i < n % count) for i in range(count)], dim)
        if not isinstance(sections, (tuple, list)) or not all(is_index(e) for e in sections):
            raise ShapeError(f"[tensor_split] expected an integer or a list of them, got {sections!r}")
        ends = [min(max(e + n if e < 0 else e, 0), n) for e in map(as_index, sections)]
        starts = [0, *ends]
        return tuple([self.narrow(dim, s, max(e - s, 0)) for s, e in zip(starts, [*ends, n], strict=True)])

    def _sections(self, name: str, sections: Any) -> Any:
        """Sections or indices, those of an array or a tensor as Python's integers."""
        if not isinstance(sections, (np.ndarray, type(self))):
            return sections
        sections = self._indices(name, sections)
        if sections.ndim > 1:
            raise ShapeError(f"[{name}] expected a number of sections or indices [k], got {list(sections.shape)}")
        return sections.numpy().tolist()

    def select_scatter(self, src: Self, dim: int, index: int) -> Self:
        """x with `src` as one slice of an axis. Raises OutOfRangeError."""
        a = as_axis("select_scatter", dim, self.ndim)
        if not is_index(index):
            raise ShapeError(f"[select_scatter] expected an integer index, got {index!r}")
        place: Any = as_position("select_scatter", as_index(index), self.shape, a)
        return self.slice_scatter(src.unsqueeze(a), a, place, place + 1)

    def slice_scatter(self, src: Self, dim: int = 0, start: int | None = None, end: int | None = None,
                      step: int = 1) -> Self:
        """x with `src` in place of the elements start:end:step of an axis."""
        key = (*[slice(None)] * as_axis("slice_scatter", dim, self.ndim), slice(start, end, step))
        result = self._wrap(self.node, self)
        result[key] = src
        return result

    # Reductions

    def amax(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        return self.max(axis if dim is None else dim, keepdim)

    def amin(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        return self.min(axis if dim is None else dim, keepdim)

    def count_nonzero(self, axis: Axis = None, *, dim: Axis = None) -> Self:
        """The number of elements that are not 0, as int32."""
        return self.ne(0).sum(axis, dim=dim)

    def nansum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
               dim: Axis = None) -> Self:
        """The sum without NaN."""
        x = self.isnan().where(0, self) if self.dtype.is_float else self
        return x.sum(axis, keepdim, dtype, dim=dim)

    def nanmean(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
                dim: Axis = None) -> Self:
        """The mean of the elements that are not NaN."""
        x = self._as_float() if dtype is None else self.cast(dtype)
        return x.nansum(axis, keepdim, dim=dim) / self.eq(self).sum(axis, keepdim, dim=dim)

    def trace(self) -> Self:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise ShapeError(f"[trace] expected a matrix, got {list(self.shape)}")
        return self.diagonal().sum()

    # Elementwise

    def clamp_min(self, min: Any) -> Self:
        return self.clip(min, None)

    def clamp_max(self, max: Any) -> Self:
        return self.clip(None, max)

    @rounded_once
    def addcmul(self, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Self:
        """x + value * tensor1 * tensor2."""
        return self + tensor1 * tensor2 * value

    @rounded_once
    def addcdiv(self, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Self:
        """x + value * tensor1 / tensor2."""
        return self + tensor1 / tensor2 * value

    def frac(self) -> Self:
        """x - trunc(x)."""
        return self - self.trunc()

    def isposinf(self) -> Self:
        return self.eq(math.inf)

    def isneginf(self) -> Self:
        return self.eq(-math.inf)

    def logical_and(self, other: Any) -> Self:
        return self.ne(0).bitwise_and(self._truth(other))

    def logical_or(self, other: Any) -> Self:
        return self.ne(0).bitwise_or(self._truth(other))

    def logical_xor(self, other: Any) -> Self:
        return self.ne(0).bitwise_xor(self._truth(other))

    def _truth(self, other: Any) -> Any:
        other = self._operand(other)
        return other.ne(0) if isinstance(other, type(self)) else bool(other)

    def isclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Self:
        """abs(x - other) <= atol + rtol * abs(other), or equal; NaN is close to NaN with `equal_nan`, else to nothing.
        Tensors have the same type."""
        other = self._operand(other)
        if as_number("isclose", "rtol", rtol) < 0 or as_number("isclose", "atol", atol) < 0:
            raise ShapeError(f"[isclose] expected rtol and atol of 0 or more, got {rtol} and {atol}")
        if isinstance(other, type(self)) and other.dtype is not self.dtype:
            raise DTypeError(f"[isclose] expected tensors of the same type, got {self.dtype} and {other.dtype}")
        if self.dtype is bool_:
            return self.eq(other)
        distance = (self - other).abs()
        close = self.eq(other).bitwise_or((distance <= abs(other) * rtol + atol).bitwise_and(distance.isfinite()))
        return close.bitwise_or(self.ne(self).bitwise_and(other != other)) if equal_nan else close  # noqa: PLR0124

    def equal(self, other: Any) -> Any:
        """True where shapes and all elements are equal, as a Python bool: it reads the values."""
        other = as_tensor("equal", self._operand(other))
        return other.shape == self.shape and bool(self.eq(other).all())

    def allclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
        """True where all elements are close, as a Python bool: it reads the values."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())
