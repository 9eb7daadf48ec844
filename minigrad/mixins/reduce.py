"""Reductions along axes: `axis` (or `dim`, as in PyTorch) is an int, several, or None for all; `keepdim` keeps them
with length 1. `max` and `min` give values alone with an `axis`, and values with their indices with a `dim`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

from minigrad.dtype import DType, bool_, int32, int64, to_dtype, uint8, uint32, uint64
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axes, as_axis, as_number
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import functions
from minigrad.ops.node import Node
from minigrad.ops.storage import place_type

Axis = int | Sequence[int] | None


class Extreme(NamedTuple):
    """Elements along an axis, such as the largest ones, and where they are."""

    values: Any
    indices: Any


def accumulating(dtype: DType) -> DType:
    """The type that products of matrices are summed in: small integers and bool give 32-bit ones."""
    if dtype is bool_ or (dtype.is_int and dtype.bits < 32):
        return uint32 if dtype.kind == "u" else int32
    return dtype


def summing(dtype: DType) -> DType:
    """The type of sums and products of elements: int64 for bool and all integers but uint64."""
    return dtype if dtype.is_float or dtype is uint64 else int64


class ReduceMixin(Base):
    """Sums, extremes, statistics, and what normalises by them."""

    __slots__ = ()

    def _reduce(self, name: str, build: Callable[[Node, tuple[int, ...]], Node], axis: Axis, keepdim: bool) -> Self:
        axes = as_axes(name, axis, self.ndim)
        result = build(self.node, axes)
        if keepdim:
            result = B.reshape(result, tuple([1 if i in axes else d for i, d in enumerate(self.shape)]))
        return self._wrap(result, self)

    def _accumulating(self, dtype: DType | str | None) -> Self:
        """In the type that products of matrices are summed in."""
        kind = accumulating(self.dtype) if dtype is None else to_dtype(dtype)
        return self if kind is self.dtype else self.cast(kind)

    def _summing(self, dtype: DType | str | None) -> Self:
        """In the type that elements are summed in."""
        kind = summing(self.dtype) if dtype is None else to_dtype(dtype)
        return self if kind is self.dtype else self.cast(kind)

    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
            dim: Axis = None) -> Self:
        """Half types accumulate in float32; bool and integers give int64, unless `dtype` says otherwise."""
        return self._summing(dtype)._reduce("sum", B.sum, axis if dim is None else dim, keepdim)

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
             dim: Axis = None) -> Self:
        """The product, of the type of `sum`."""
        if dtype is not None and to_dtype(dtype) is bool_:
            return self.all(axis, keepdim, dim=dim)
        return self._summing(dtype)._prod(axis if dim is None else dim, keepdim)

    @rounded_once
    def _prod(self, axis: Axis, keepdim: bool) -> Self:
        return self._reduce("prod", B.prod, axis, keepdim)

    def max(self, axis: Axis = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """The largest element, NaN if there is one. With `dim`, PyTorch's name for one axis, as there: (values,
        indices) of the first one, which its gradient goes to; else values alone. Of two tensors, `maximum`. Raises
        ShapeError over nothing."""
        if isinstance(axis, Base):
            return cast(Any, self).maximum(axis)
        if dim is not None:
            return self._extreme(self.argmax(dim, keepdim=True), dim, keepdim)
        if self.dtype is bool_:
            return self.int()._reduce("max", B.max, axis, keepdim).bool()
        return self._reduce("max", B.max, axis, keepdim)

    def _extreme(self, indices: Any, dim: int, keepdim: bool) -> Extreme:
        if self.ndim == 0:
            return Extreme(self, indices)
        values = cast(Any, self)._gather(dim, indices)
        return Extreme(values, indices) if keepdim else Extreme(values.squeeze(dim), indices.squeeze(dim))

    def min(self, axis: Axis = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """The smallest element, NaN if there is one, or (values, indices) with `dim`, as `max`."""
        if isinstance(axis, Base):
            return cast(Any, self).minimum(axis)
        if dim is not None:
            return self._extreme(self.argmin(dim, keepdim=True), dim, keepdim)
        if self.dtype is bool_:
            return self.int()._reduce("min", B.min, axis, keepdim).bool()
        return self._reduce("min", B.min, axis, keepdim)

    def any(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        """True where an element is not 0, as bool; of uint8, as PyTorch, as uint8."""
        return self._truth_like(self.bool()._count(axis if dim is None else dim, keepdim).ne(0))

    def all(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        """True where no element is 0, as bool; of uint8, as PyTorch, as uint8."""
        return self._truth_like(self.bool().logical_not()._count(axis if dim is None else dim, keepdim).eq(0))

    def _count(self, axis: Axis, keepdim: bool) -> Self:
        """The number of these bools that are True, in a type that holds it."""
        return self.sum(axis, keepdim, place_type(self.numel() + 1))

    def _truth_like(self, truth: Self) -> Self:
        return truth.cast(uint8) if self.dtype is uint8 else truth

    def mean(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, *,
             dim: Axis = None) -> Self:
        """The mean; integers give float32. Of nothing: NaN."""
        x = self._as_float() if dtype is None else self.cast(dtype)
        return x._mean(axis if dim is None else dim, keepdim)

    @rounded_once
    def _mean(self, axis: Axis, keepdim: bool) -> Self:
        return self._reduce("mean", functions.mean, axis, keepdim)

    def var(self, axis: Axis | bool = None, unbiased: bool | None = None, keepdim: bool = False, *, dim: Axis = None,
            correction: float | None = None) -> Self:
        """Mean squared deviation, over count - correction, which is 1. `unbiased`, which may come first, says 1 or 0
        for the correction."""
        if isinstance(axis, bool):
            axis, unbiased = None, axis
        free = as_number("var", "correction", 1 if correction is None else correction)
        return self._as_float()._variance(axis if dim is None else dim, free if unbiased is None else int(unbiased),
                                          keepdim)

    @rounded_once
    def _variance(self, axis: Axis, correction: float, keepdim: bool) -> Self:
        return self._reduce("var", lambda x, axes: functions.variance(x, axes, correction), axis, keepdim)

    @rounded_once
    def std(self, axis: Axis | bool = None, unbiased: bool | None = None, keepdim: bool = False, *, dim: Axis = None,
            correction: float | None = None) -> Self:
        """The root of `var`; where it is 0, so is its gradient."""
        return self.var(axis, unbiased, keepdim, dim=dim, correction=correction)._root()

    @rounded_once
    def var_mean(self, axis: Axis | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
                 dim: Axis = None, correction: float | None = None) -> tuple[Self, Self]:
        return self._and_mean(self.var, axis, unbiased, keepdim, dim, correction)

    @rounded_once
    def std_mean(self, axis: Axis | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
                 dim: Axis = None, correction: float | None = None) -> tuple[Self, Self]:
        return self._and_mean(self.std, axis, unbiased, keepdim, dim, correction)

    def _and_mean(self, spread: Callable[..., Self], axis: Any, unbiased: Any, keepdim: bool, dim: Axis,
                  correction: Any) -> tuple[Self, Self]:
        along = None if isinstance(axis, bool) else axis
        return spread(axis, unbiased, keepdim, dim=dim, correction=correction), self.mean(along, keepdim, dim=dim)

    def argmax(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Self:
        """Index of the first largest element (the first NaN, if any) as int32, or int64 where that does not hold it;
        into the flat tensor without an axis."""
        axis = axis if dim is None else dim
        if axis is None and 0 in self.shape:
            raise ShapeError(f"[argmax] expected at least one element, got {list(self.shape)}")
        if axis is None:
            return self.flatten().argmax(0).reshape(*([1] * self.ndim if keepdim else []))
        a = as_axis("argmax", axis, max(self.ndim, 1))
        x = self.int() if self.dtype is bool_ else self
        x = x if x.ndim else x.reshape(1)
        if x.shape[a] == 0:
            raise ShapeError(f"[argmax] expected at least one element along axis {axis}, got {list(self.shape)}")
        hit = x.eq(x.max(a, keepdim=True)).bitwise_or(x.isnan())
        n = x.shape[a]
        shape = [n if i == a else 1 for i in range(x.ndim)]
        kind = place_type(n + 1)
        falling = B.sub(B.full(n, (n,), kind, self.device), B.cast(B.iota(n, self.device), kind))
        return (n - hit.where(self._wrap(falling).reshape(*shape), 0).max(a, keepdim)) if self.ndim else self.int() * 0

    def argmin(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Self:
        """Index of the first smallest element (the first NaN, if any), of the type of `argmax`."""
        if self.dtype.is_float:
            return (-self).argmax(axis, keepdim, dim=dim)
        return self.bitwise_not().argmax(axis, keepdim, dim=dim)

    def logsumexp(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        """log(sum(exp(x))), without overflow; of nothing: -inf."""
        return self._as_float()._logsumexp(axis if dim is None else dim, keepdim)

    @rounded_once
    def _logsumexp(self, axis: Axis, keepdim: bool) -> Self:
        if 0 in [self.shape[a] for a in as_axes("logsumexp", axis, self.ndim)]:
            return self.sum(axis, keepdim).log()
        return self._reduce("logsumexp", functions.logsumexp, axis, keepdim)

    def softmax(self, axis: Axis = -1, dtype: DType | str | None = None, *, dim: Axis = None) -> Self:
        """exp(x) / sum(exp(x)) along an axis, without overflow; half types compute in float32."""
        return self._over_axes("softmax", functions.softmax, axis if dim is None else dim, dtype)

    def log_softmax(self, axis: Axis = -1, dtype: DType | str | None = None, *, dim: Axis = None) -> Self:
        """log(softmax(x)), accurate; half types compute in float32."""
        return self._over_axes("log_softmax", functions.log_softmax, axis if dim is None else dim, dtype)

    def _over_axes(self, name: str, build: Callable[[Node, tuple[int, ...]], Node], axis: Axis,
                   dtype: DType | str | None) -> Self:
        x = self._as_float() if dtype is None else self.cast(dtype)
        axes = as_axes(name, axis, self.ndim)
        return x if 0 in self.shape else x._normalise(lambda node: build(node, axes))

    def layernorm(self, axis: Axis = -1, eps: float = 1e-5) -> Self:
        """(x - mean) / sqrt(var + eps) over the axes; half types compute in float32."""
        axes, eps = as_axes("layernorm", axis, self.ndim), as_number("layernorm", "eps", eps)
        return self._normalise(lambda node: functions.standardize(node, axes, eps))

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6) -> Self:
        """x / sqrt(mean(x*x) + eps) over the axes; half types compute in float32."""
        axes, eps = as_axes("rms_norm", axis, self.ndim), as_number("rms_norm", "eps", eps)
        return self._normalise(lambda node: functions.rms_norm(node, axes, eps))

    def rmsnorm(self, eps: float = 1e-6, axis: Axis = -1) -> Self:
        return self.rms_norm(axis, eps)

    def _normalise(self, build: Callable[[Node], Node]) -> Self:
        x = self._as_float()
        return x.cast(x.dtype.compute)._unary(build).cast(x.dtype)
