"""Reductions, sums so far, searching, sorting and sets."""
from __future__ import annotations

from math import prod as count
from typing import Any, NamedTuple

from minigrad.array_api.elementwise import subtract
from minigrad.array_api.manipulation import concat
from minigrad.array_api.parts import as_parts, default, number, operands, real
from minigrad.array_api.types import Type
from minigrad.dtype import bool_, int64, uint64
from minigrad.errors import ShapeError
from minigrad.functions import cat
from minigrad.mixins.base import as_axes, as_axis
from minigrad.tensor import Tensor


def _sum_type(x: Any, dtype: Any) -> Type:
    """`dtype`, or that of sums: of integers the default one of their sign, of floats their own."""
    own = {"i": int64, "u": uint64}.get(x.dtype.kind, x.dtype)
    return default(dtype, own)


def _axes(name: str, x: Any, axis: Any) -> tuple[int, ...]:
    if axis is not None and not x.ndim and axis != ():
        raise ShapeError(f"[{name}] expected no axis of an array of shape [], got {axis}")
    return as_axes(name, axis, x.ndim)


def _reduced(t: Tensor, name: str, axes: tuple[int, ...], keepdims: bool, **options: Any) -> Tensor:
    """A reduction of a Tensor; along no axis the elements themselves."""
    if not axes and t.ndim:
        return getattr(t.unsqueeze(-1), name)(axis=(t.ndim,), keepdim=False, **options)
    if not t.ndim:
        return getattr(t.reshape(1), name)(axis=0, **options).reshape(())
    return getattr(t, name)(axis=axes, keepdim=keepdims, **options)


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Sums along axes, of all elements for None."""
    kind = _sum_type(as_parts("sum", x, "iufc"), dtype)
    axes = _axes("sum", x, axis)
    return x.cast(kind).map(lambda t: _reduced(t, "sum", axes, keepdims, dtype=t.dtype))


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Products along axes, of all elements for None."""
    kind = _sum_type(as_parts("prod", x, "iufc"), dtype)
    axes, given = _axes("prod", x, axis), x.cast(kind)
    if given.im is None:
        return given.map(lambda t: _reduced(t, "prod", axes, keepdims, dtype=t.dtype))
    rest = [a for a in range(x.ndim) if a not in axes]
    shape = [count([x.shape[a] for a in axes]), *[x.shape[a] for a in rest]]
    flat = given.map(lambda t: (t.permute(*axes, *rest) if x.ndim else t).reshape(shape))
    total = number(x, 1, kind).map(lambda t: t.expand(*flat.shape[1:]))
    for k in range(flat.shape[0]):
        total = total * flat[k, ...]
    shape = [1 if a in axes else d for a, d in enumerate(x.shape) if keepdims or a not in axes]
    return total.map(lambda t: t.reshape(shape))


def mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Means along axes, of all elements for None."""
    axes = _axes("mean", as_parts("mean", x, "fc"), axis)
    return x.map(lambda t: _reduced(t, "mean", axes, keepdims))


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """Variances along axes: squares of deviations, summed and divided by the number of elements less `correction`."""
    t = real("var", x)
    axes = _axes("var", x, axis)
    around = t - (_reduced(t, "mean", axes, True) if axes else t)
    total = _reduced(around * around, "sum", axes, keepdims)
    return type(x)(total / total.full_like(count([x.shape[a] for a in axes]) - correction))


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """Roots of `var`."""
    return type(x)(var(x, axis=axis, correction=correction, keepdims=keepdims).re.sqrt())


def max(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The greatest elements along axes; NaN where there is one."""
    return type(x)(_reduced(real("max", x, "iuf"), "amax", _axes("max", x, axis), keepdims))


def min(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The least elements along axes; NaN where there is one."""
    return type(x)(_reduced(real("min", x, "iuf"), "amin", _axes("min", x, axis), keepdims))


def _truth(x: Any) -> Tensor:
    true: Tensor = x.re != 0 if x.dtype is not bool_ else x.re
    return true if x.im is None else true | (x.im != 0)


def all(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """True where all elements along axes are other than 0."""
    return type(x)(_reduced(_truth(as_parts("all", x)), "all", _axes("all", x, axis), keepdims))


def any(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """True where some element along axes is other than 0."""
    return type(x)(_reduced(_truth(as_parts("any", x)), "any", _axes("any", x, axis), keepdims))


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements along axes are other than 0."""
    axes = _axes("count_nonzero", as_parts("count_nonzero", x), axis)
    return type(x)(_reduced(_truth(x).cast(int64), "sum", axes, keepdims, dtype=int64))


def _so_far(name: str, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Any:
    as_parts(name, x, "iufc")
    if axis is None and x.ndim != 1:
        raise ValueError(f"[{name}] expected an axis for an array of shape {list(x.shape)}")
    place, given = as_axis(name, 0 if axis is None else axis, x.ndim), x.cast(_sum_type(x, dtype))
    if name == "cumulative_sum":
        result = given.map(lambda t: t.cumsum(place, dtype=t.dtype))
    elif given.im is None:
        result = given.map(lambda t: t.cumprod(place, dtype=t.dtype))
    else:
        parts = [given[(slice(None),) * place + (slice(k, k + 1), ...)] for k in range(x.shape[place])]
        for k in range(1, len(parts)):
            parts[k] = parts[k - 1] * parts[k]
        result = concat(parts, axis=place) if parts else given
    if not include_initial:
        return result
    shape = (*x.shape[:place], 1, *x.shape[place + 1:])
    first = number(x, 0 if name == "cumulative_sum" else 1, given.dtype).map(lambda t: t.expand(*shape))
    return concat([first, result], axis=place)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Sums of the elements up to each along an axis, the empty sum first with `include_initial`."""
    return _so_far("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Products of the elements up to each along an axis, the empty one first with `include_initial`."""
    return _so_far("cumulative_prod", x, axis, dtype, include_initial)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th differences of neighbours along an axis, with arrays before and after it."""
    place = as_axis("diff", axis, as_parts("diff", x, "iufc").ndim)
    result = concat([a for a in (prepend, x, append) if a is not None], axis=place)
    before = (slice(None),) * place
    for _ in range(n):
        result = subtract(result[(*before, slice(1, None), ...)], result[(*before, slice(None, -1), ...)])
    return result


# Searching


def _position(name: str, x: Any, axis: int | None, keepdims: bool) -> Any:
    t = real(name, x, "iuf")
    if axis is not None:
        return type(x)(getattr(t, name)(as_axis(name, axis, x.ndim), keepdim=keepdims).cast(int64))
    found = getattr(t.reshape(-1), name)(0).cast(int64)
    return type(x)(found.reshape((1,) * x.ndim if keepdims else ()))


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The index of the first greatest element along an axis, of the flat array for None."""
    return _position("argmax", x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The index of the first least element along an axis, of the flat array for None."""
    return _position("argmin", x, axis, keepdims)


def nonzero(x: Any, /) -> tuple[Any, ...]:
    """The indices of elements other than 0, an array for each axis. It reads values."""
    if not as_parts("nonzero", x).ndim:
        raise ShapeError("[nonzero] expected an axis or more, got shape []")
    return tuple([type(x)(t.cast(int64)) for t in _truth(x).nonzero(as_tuple=True)])


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    """The index at which each element of x2 goes into x1, which is sorted or is so in the order of `sorter`."""
    if side not in ("left", "right"):
        raise ValueError(f"[searchsorted] expected side 'left' or 'right', got {side!r}")
    where, what = operands("searchsorted", "iuf", x1, x2)
    line = where.re if sorter is None else where.re[real("searchsorted", sorter, "iu")]
    return type(x1)(line.searchsorted(what.re.reshape(-1), side == "right").reshape(what.shape).cast(int64))


# Sorting


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along an axis, NaNs last, first with `descending`."""
    t = real("sort", x, "iuf")
    return type(x)(t.sort(as_axis("sort", axis, x.ndim), descending)[0])


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort along an axis; equal elements keep their order."""
    t = real("argsort", x, "iuf")
    return type(x)(t.argsort(as_axis("argsort", axis, x.ndim), descending).cast(int64))


# Sets


class UniqueAll(NamedTuple):
    """Distinct elements in order, where each comes first, which of them each element is, how often each comes."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Distinct elements in order, and how often each comes."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Distinct elements in order, and which of them each element is."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """Distinct elements, each NaN one of its own. It reads values, as their number depends on them."""
    as_parts("unique_all", x)
    kind, flat = type(x), x.map(lambda t: t.reshape(-1))
    order = flat.re.argsort()
    if flat.im is not None:  # by the imaginary part first, as the second sort keeps the order of equals
        order = flat.im.argsort()
        order = order[flat.re[order].argsort()]
    ordered, size = flat.map(lambda t: t[order]), order.shape[0]
    changes = (ordered.map(lambda t: t[1:]) != ordered.map(lambda t: t[:-1])).re
    starts = cat([Tensor.ones(_some(size), dtype="bool", device=order.device), changes])
    firsts = starts.nonzero(as_tuple=True)[0].cast(int64)
    groups = starts.cast(int64).cumsum(0) - 1
    inverse = groups[order.argsort()].reshape(x.shape)
    ends = cat([firsts[1:], Tensor.full((_some(size),), size, dtype=int64, device=order.device)])
    return UniqueAll(ordered.map(lambda t: t[firsts]), kind(order[firsts].cast(int64)), kind(inverse),
                     kind(ends - firsts))


def _some(size: Any) -> int:
    """1, or 0 of no elements."""
    return 1 if size else 0


def unique_counts(x: Any, /) -> UniqueCounts:
    """Distinct elements with counts."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Distinct elements, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """Distinct elements."""
    return unique_all(x).values
