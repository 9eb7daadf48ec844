"""Functions of the places of elements: shapes, axes, joining, repeating, indices, broadcasting."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

from minigrad.array_api.parts import Parts, as_parts, common_type
from minigrad.dtype import int64
from minigrad.errors import OutOfRangeError, ShapeError
from minigrad.functions import broadcast_shapes as _broadcast
from minigrad.functions import cat
from minigrad.mixins.base import as_axes
from minigrad.tensor import Tensor


def _axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes from 0 in the order given. Raises OutOfRangeError and ShapeError."""
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    as_axes(name, given, ndim)
    if not ndim and given:
        raise OutOfRangeError(f"[{name}] expected no axis of an array of shape [], got {axis}")
    return tuple([a % ndim for a in given])


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of them broadcast to."""
    return tuple(_broadcast(*shapes)) if shapes else ()


def broadcast_to(x: Any, /, shape: tuple[int, ...]) -> Any:
    """The array with this shape."""
    if broadcast_shapes(as_parts("broadcast_to", x).shape, tuple(shape)) != tuple(shape):
        raise ShapeError(f"[broadcast_to] expected a shape that {list(x.shape)} broadcasts to, got {list(shape)}")
    return x.map(lambda t: t.expand(*shape) if shape else t + 0 if t.dtype.is_float else Tensor(t))


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """The arrays with one shape."""
    shape = broadcast_shapes(*[as_parts("broadcast_arrays", x).shape for x in arrays])
    return tuple([broadcast_to(x, shape) for x in arrays])


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """The arrays joined along an axis; flat for None."""
    given = [as_parts("concat", x) for x in arrays]
    dtype = common_type(*given)
    parts = [x.cast(dtype) for x in given]
    if axis is None:
        parts, axis = [x.map(lambda t: t.reshape(-1)) for x in parts], 0
    place = _axes("concat", axis, parts[0].ndim)[0]
    re, imaginary = cat([x.re for x in parts], dim=place), [x.im for x in parts if x.im is not None]
    return type(parts[0])(re, cat(imaginary, dim=place) if imaginary else None)


def stack(arrays: Any, /, *, axis: int = 0) -> Any:
    """Arrays of one shape joined along a new axis."""
    given = [as_parts("stack", x) for x in arrays]
    if len({x.shape for x in given}) != 1:
        raise ShapeError(f"[stack] expected arrays of one shape, got {[list(x.shape) for x in given]}")
    return concat([expand_dims(x, axis) for x in given], axis=_axes("stack", axis, given[0].ndim + 1)[0])


def expand_dims(x: Any, /, axis: int = 0) -> Any:
    """A new axis of size 1 there."""
    place = _axes("expand_dims", axis, as_parts("expand_dims", x).ndim + 1)[0]
    return x.map(lambda t: t.unsqueeze(place))


def squeeze(x: Any, /, axis: int | tuple[int, ...]) -> Any:
    """Without these axes, which are of size 1. Raises ShapeError where they are not."""
    places = _axes("squeeze", axis, as_parts("squeeze", x).ndim)
    if any([x.shape[a] != 1 for a in places]):
        raise ShapeError(f"[squeeze] expected axes of size 1, got {axis} of {list(x.shape)}")
    shape = [d for a, d in enumerate(x.shape) if a not in places]
    return x.map(lambda t: t.reshape(*shape) if shape else t.reshape(()))


def flip(x: Any, /, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """The order of elements reversed along axes, all for None."""
    ndim = as_parts("flip", x).ndim
    places = tuple(range(ndim)) if axis is None else _axes("flip", axis, ndim)
    return x.map(lambda t: t.flip(*places) if places else Tensor(t))


def moveaxis(x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Any:
    """Axes moved to other places; the others keep their order."""
    ndim = as_parts("moveaxis", x).ndim
    of, to = _axes("moveaxis", source, ndim), _axes("moveaxis", destination, ndim)
    if len(of) != len(to):
        raise ShapeError(f"[moveaxis] expected as many places as axes, got {source} and {destination}")
    order = [a for a in range(ndim) if a not in of]
    for place, axis in sorted(zip(to, of, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, tuple(order))


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Any:
    """The axes in another order."""
    order = _axes("permute_dims", tuple(axes), as_parts("permute_dims", x).ndim)
    if len(order) != x.ndim:
        raise ShapeError(f"[permute_dims] expected {x.ndim} axes, got {axes}")
    return x.map(lambda t: t.permute(*order) if order else Tensor(t))


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    """Each element so many times, along an axis or of the flat array."""
    as_parts("repeat", x)
    flat, place = (x.map(lambda t: t.reshape(-1)), 0) if axis is None else (x, _axes("repeat", axis, x.ndim)[0])
    count = repeats.re if isinstance(repeats, Parts) else index(repeats)
    if isinstance(count, Tensor) and count.shape in ((), (1,)):
        count = int(count.item())
    return flat.map(lambda t: t.repeat_interleave(count, place))


def reshape(x: Any, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Any:
    """The elements in another shape, one size of which may be -1."""
    if copy is False:
        raise ValueError("[reshape] expected leave to copy, got copy=False: no array is a view of another")
    sizes = list(map(index, shape))
    known = prod([d for d in sizes if d != -1])
    if -1 in sizes and known == 0:
        raise ShapeError(f"[reshape] expected a size for each axis where one is 0, got {shape}")
    return as_parts("reshape", x).map(lambda t: t.reshape(sizes))


def roll(x: Any, /, shift: int | tuple[int, ...], *, axis: int | tuple[int, ...] | None = None) -> Any:
    """Elements moved along axes, those that leave at an end coming in at the other; of the flat array for None."""
    as_parts("roll", x)
    if axis is None:
        count = sum(shift) if isinstance(shift, tuple) else shift
        return x.map(lambda t: t.reshape(-1).roll(count, 0).reshape(x.shape))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    for by, a in zip(shifts, axes, strict=True):
        place = _axes("roll", a, x.ndim)[0]
        x = x.map(lambda t, by=by, place=place: t.roll(by, place))
    return x


def tile(x: Any, repetitions: tuple[int, ...], /) -> Any:
    """The whole array so many times along each axis."""
    counts = tuple(map(index, repetitions))
    return as_parts("tile", x).map(lambda t: t.tile(*counts) if counts else Tensor(t))


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The arrays along an axis, without it."""
    place = _axes("unstack", axis, as_parts("unstack", x).ndim)[0]
    return tuple([x[(slice(None),) * place + (k, ...)] for k in range(x.shape[place])])


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Coordinates of a grid: each array along an axis of its own, the first two swapped for "xy"."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"[meshgrid] expected indexing 'xy' or 'ij', got {indexing!r}")
    count, grids = len(arrays), []
    places = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    for x, place in zip(arrays, places, strict=True):
        shape = [1] * count
        shape[place] = as_parts("meshgrid", x).shape[0]
        grids.append(reshape(x, tuple(shape)))
    common_type(*arrays)
    return broadcast_arrays(*grids)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """Elements along an axis by their indices."""
    if axis is None and as_parts("take", x).ndim != 1:
        raise ValueError(f"[take] expected an axis for an array of shape {list(x.shape)}")
    place = _axes("take", 0 if axis is None else axis, x.ndim)[0]
    chosen = as_parts("take", indices, "iu").re
    return x.map(lambda t: t[(slice(None),) * place + (chosen,)])


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """An element for each index, along an axis, of arrays that broadcast but there."""
    place = _axes("take_along_axis", axis, as_parts("take_along_axis", x).ndim)[0]
    chosen = as_parts("take_along_axis", indices, "iu").re.cast(int64)
    shapes = [list(x.shape), list(chosen.shape)]
    for shape in shapes:
        shape[place] = 1
    whole = list(broadcast_shapes(*map(tuple, shapes)))
    source, target = [*whole], [*whole]
    source[place], target[place] = x.shape[place], indices.shape[place]
    chosen = chosen.expand(*target)
    chosen = (chosen + x.shape[place]).where(condition=chosen < 0, other=chosen)
    return x.map(lambda t: t.expand(*source).gather(place, chosen))
