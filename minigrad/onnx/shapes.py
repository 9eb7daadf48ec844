"""Operators that move numbers: shapes, slices, gathers and scatters."""
from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from minigrad import Tensor, dtypes
from minigrad.expr import Expr
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, refuse
from minigrad.onnx.symbolic import sizes_array
from minigrad.onnx.values import DTYPES, Narrow, element_of


def moved(function: Any) -> Operator:
    """The operator that is `function(n, x)` of its first input, which may have any type."""
    def run(n: Node) -> Any:
        x = n.wide(0)
        return Narrow(function(n, x.tensor), x.element) if isinstance(x, Narrow) else function(n, x)
    return run


def reshape(n: Node, x: Tensor) -> Tensor:
    """Other axes over the same numbers: 0 keeps a size (unless allowzero), -1 is what is left."""
    sizes = n.ints(1, "shape")
    if not n.attribute("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if -1 in sizes and 0 in x.shape:
        rest = int(np.prod([s for s in sizes if s != -1]))
        sizes = [0 if s == -1 and rest else s for s in sizes]
    return x.reshape(*sizes)


def flatten(n: Node, x: Any) -> Tensor:
    """Two axes: those before `axis`, and the rest."""
    axis = n.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def squeeze(n: Node, x: Tensor) -> Tensor:
    """Drops axes of size 1."""
    axes = n.ints(1, "axes")
    drop = {i for i, s in enumerate(x.shape) if s == 1} if axes is None else {a % x.ndim for a in axes}
    if any(x.shape[a] != 1 for a in drop):
        raise Invalid(f"expected axes {sorted(drop)} of size 1, got shape {list(x.shape)}")
    return x.reshape(*[s for i, s in enumerate(x.shape) if i not in drop])


def unsqueeze(n: Node, x: Tensor) -> Tensor:
    """Puts axes of size 1 in."""
    axes = n.ints(1, "axes")
    rank = x.ndim + len(axes)
    places, sizes = {a % rank for a in axes}, iter(x.shape)
    return x.reshape(*[1 if i in places else next(sizes) for i in range(rank)])


def tile(n: Node, x: Tensor) -> Tensor:
    """The numbers again and again along each axis."""
    counts = n.ints(1, "")
    if len(counts) != x.ndim or any(isinstance(c, int) and c < 0 for c in counts):
        raise Invalid(f"expected {x.ndim} counts of 0 or more, got {counts}")
    return x.repeat(*counts) if x.ndim else x


def expand(n: Node, x: Any) -> Tensor:
    """Broadcasts to a shape, both ways."""
    sizes, shape = n.ints(1, "shape"), tuple(x.shape)
    if any(isinstance(size, Expr) for size in (*sizes, *shape)):
        sizes, own = [1] * (len(shape) - len(sizes)) + sizes, (1,) * (len(sizes) - len(shape)) + shape
        return x.expand(*[b if isinstance(a, int) and a == 1 else a for a, b in zip(own, sizes, strict=True)])
    return x.expand(*np.broadcast_shapes(shape, tuple(sizes)))


def slices(n: Node, x: Tensor) -> Tensor:
    """x[start:end:step] of some axes."""
    starts, ends = n.ints(1, "starts"), n.ints(2, "ends")
    axes, steps = n.ints(3, "axes") or list(range(len(starts))), n.ints(4, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis = axis % x.ndim
        size = x.shape[axis]
        if any(isinstance(v, Expr) for v in (start, end, size)):
            x = _open_slice(x, axis, start, end, step)
            continue
        first, stop, step = slice(start, end if not (step < 0 and end < -size) else None, step).indices(size)
        places = range(first, stop, step)
        if step < 0:
            x, first, step = x.flip(axis), size - 1 - first, -step
        key: list[Any] = [slice(None)] * x.ndim
        key[axis] = slice(first, first + (len(places) - 1) * step + 1, step) if len(places) else slice(0, 0)
        x = x[tuple(key)]
    return x


def _open_slice(x: Any, axis: int, start: Any, end: Any, step: int) -> Tensor:
    """x[start:end] of an axis, where a size or an end is a Variable."""
    size, last = x.shape[axis], not isinstance(end, Expr) and end >= 2**31 - 1
    if step != 1 or (not last and not isinstance(end, Expr) and end >= 0 and isinstance(size, Expr)):
        raise refuse(f"a slice to {end} in steps of {step} of an open size", "those to the end or to a size")
    key: list[Any] = [slice(None)] * x.ndim
    first, stop = (size + v if not isinstance(v, Expr) and v < 0 else v for v in (start, end))
    key[axis] = slice(first, size if last else stop)
    return x[tuple(key)]


def pad(n: Node, x: Tensor) -> Tensor:
    """Numbers around, or away where the widths are negative."""
    name = "pads" if n.opset > 1 else "paddings"
    widths, mode = n.ints(1, name), n.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    axes = [int(a) % x.ndim for a in n.ints(3, "", None) or range(x.ndim)]
    value = n.scalar(2, 0) if n.opset >= 11 else n.attribute("value", 0.0)
    around = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        around[axis] = (widths[i], widths[i + len(axes)])
    return padded(x, around, mode, value)


def padded(x: Any, around: list[tuple[int, int]], mode: Any = "constant", value: Any = 0) -> Tensor:
    """x with widths before and after each axis. Negative widths cut."""
    if mode == "constant":
        if not any(a or b for a, b in around):
            return x
        return x.pad([w for pair in reversed(around) for w in pair], value=value)
    for axis, (before, after) in enumerate(around):
        if before or after:
            places = np.pad(np.arange(x.shape[axis]), (max(before, 0), max(after, 0)), mode=mode)
            places = places[max(-before, 0):len(places) - max(-after, 0)]
            x = x.index_select(axis, Tensor(places.astype(np.int64), device=x.device))
    return x


def concat(n: Node) -> Any:
    """The inputs after one another along an axis."""
    axis = n.attribute("axis", 1)
    values = [n.wide(i) for i in range(len(n.values))]
    if isinstance(values[0], Narrow):
        wide = [v.tensor for v in values if isinstance(v, Narrow)]
        return Narrow(wide[0].cat(*wide[1:], dim=axis), values[0].element)
    xs = n.tensors()
    return xs[0].cat(*xs[1:], dim=axis) if len(xs) > 1 else xs[0]


def split(n: Node) -> list[Any]:
    """Parts of an axis: of given sizes, or as many as there are outputs."""
    x = n.tensor(0)
    axis = n.attribute("axis", 0) % x.ndim
    size, sizes = x.shape[axis], n.ints(1, "split")
    if sizes is None:
        parts = n.attribute("num_outputs") or len(n.proto.output)
        each = -(-size // parts)
        sizes = [max(0, min(each, size - i * each)) for i in range(parts)]
    if sum(sizes) != size:
        raise Invalid(f"expected sizes that add up to {size}, got {sizes}")
    starts = np.cumsum([0, *sizes])
    return [x.narrow(axis, int(start), length) for start, length in zip(starts, sizes, strict=False)]


def shape_of(n: Node) -> np.ndarray:
    """The sizes of the axes from `start` to `end`."""
    value: Any = n.values[0]
    sizes = tuple(value.shape)[n.attribute("start", 0):n.attribute("end")]
    return sizes_array(sizes, (len(sizes),))


def constant(n: Node) -> np.ndarray:
    """The value that its attribute has."""
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        value = n.attribute(name)
        if value is not None:
            kind = {"value_float": np.float32, "value_floats": np.float32}.get(name, np.int64)
            return value if name == "value" else np.array(value, kind)
    raise Invalid("expected a value of numbers")


def constant_of_shape(n: Node) -> Any:
    """One number everywhere."""
    value = n.attribute("value", np.zeros(1, np.float32))
    sizes = tuple(n.ints(0, ""))
    return Tensor.full(sizes, value.item(), dtype=value.dtype.name, device=n.device)


def eye_like(n: Node) -> Tensor:
    """Ones on a diagonal of a matrix of its input's shape."""
    x = n.tensor(0)
    dtype = DTYPES[n.attribute("dtype", element_of(x))]
    rows, columns = (Tensor.arange(size, device=x.device) for size in x.shape)
    return (rows.reshape(-1, 1) + n.attribute("k", 0) == columns.reshape(1, -1)).cast(dtype)


def number_range(n: Node) -> Any:
    """start, start + delta, ... below limit."""
    start, limit, delta = (n.scalar(i) for i in range(3))
    if isinstance(limit, Expr) and not isinstance(start, Expr) and (start, delta) == (0, 1):
        return Tensor.arange(limit, device=n.device).cast(DTYPES[TensorProto.INT64])
    dtype = DTYPES[element_of(n.values[0])]
    count = max(0, int(np.ceil((limit - start) / delta)))
    return (Tensor.arange(count, device=n.device).cast(dtype) * delta + start).cast(dtype)


def depth_to_space(n: Node, x: Tensor) -> Tensor:
    """Channels into blocks of places."""
    b, (N, C, H, W) = n.required("blocksize"), x.shape
    if n.choice("mode", "DCR", ("DCR", "CRD")) == "DCR":
        y = x.reshape(N, b, b, C // (b * b), H, W).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(N, C // (b * b), b, b, H, W).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(N, C // (b * b), H * b, W * b)


def space_to_depth(n: Node, x: Tensor) -> Tensor:
    """Blocks of places into channels."""
    b, (N, C, H, W) = n.required("blocksize"), x.shape
    y = x.reshape(N, C, H // b, b, W // b, b)
    order = (0, 3, 5, 1, 2, 4) if n.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return y.permute(*order).reshape(N, C * b * b, H // b, W // b)


def center_crop_pad(n: Node, x: Tensor) -> Tensor:
    """Cuts or pads both ends of axes to sizes."""
    axes = n.attribute("axes") or list(range(x.ndim))
    around = [(0, 0)] * x.ndim
    for axis, size in zip(axes, n.ints(1, ""), strict=True):
        more = size - x.shape[axis % x.ndim]
        before = more // 2 if more >= 0 else -((-more) // 2)
        around[axis % x.ndim] = (before, more - before)
    return padded(x, around)


def reverse_sequence(n: Node) -> Tensor:
    """The first numbers of each row the other way around."""
    x, lengths = n.tensor(0), n.tensor(1)
    batch, time = n.attribute("batch_axis", 1), n.attribute("time_axis", 0)
    shape = [1] * x.ndim
    shape[batch] = x.shape[batch]
    lengths = lengths.reshape(*shape)
    shape = [1] * x.ndim
    shape[time] = x.shape[time]
    places = Tensor.arange(x.shape[time], device=x.device).cast(lengths.dtype).reshape(*shape)
    return x.gather(time, (places < lengths).where(lengths - 1 - places, places).expand(*x.shape))


def trilu(n: Node, x: Tensor) -> Tensor:
    """The upper or lower triangle of matrices."""
    return x.triu(int(n.scalar(1, 0))) if n.attribute("upper", 1) else x.tril(int(n.scalar(1, 0)))


def one_hot(n: Node) -> Tensor:
    """The second of two values at the index's place of a new axis, the first elsewhere."""
    index, depth, values = n.tensor(0), int(n.scalar(1)), n.tensor(2)
    index = index.cast(dtypes.int64)
    axis = n.attribute("axis", -1) % (index.ndim + 1)
    shape = [1] * (index.ndim + 1)
    shape[axis] = depth
    index = (index < 0).where(index + depth, index).unsqueeze(axis)
    return (index == Tensor.arange(depth, device=index.device).reshape(*shape)).where(values[1], values[0])


def wrapped(index: Tensor, size: int) -> Tensor:
    """An index without negative numbers."""
    index = index.cast(dtypes.int64)
    return (index < 0).where(index + size, index)


def gather(n: Node, x: Tensor) -> Tensor:
    """Slices of an axis."""
    axis, index = n.attribute("axis", 0) % x.ndim, n.values[1]
    if isinstance(index, np.ndarray) and index.ndim == 0:
        place = int(index)
        if not -x.shape[axis] <= place < x.shape[axis]:
            raise Invalid(f"expected an index within axis {axis} of size {x.shape[axis]}, got {place}")
        return x.select(axis, place)
    places = n.tensor(1)
    y = x.index_select(axis, wrapped(places, x.shape[axis]).reshape(-1))
    return y.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1:])


def gather_elements(n: Node, x: Tensor) -> Tensor:
    """Numbers of an axis."""
    axis = n.attribute("axis", 0) % x.ndim
    return x.gather(axis, wrapped(n.tensor(1), x.shape[axis]))


def gather_nd(n: Node, x: Any) -> Tensor:
    """Slices at index tuples; the first batch_dims axes go together."""
    index, batch = n.tensor(1).cast(dtypes.int64), n.attribute("batch_dims", 0)
    keys: list[Any] = []
    for axis in range(batch):
        shape = [1] * (index.ndim - 1)
        shape[axis] = x.shape[axis]
        keys.append(Tensor.arange(x.shape[axis], device=x.device).cast(dtypes.int64).reshape(*shape))
    keys += [wrapped(index.select(-1, i), x.shape[batch + i]) for i in range(index.shape[-1])]
    return x[tuple(keys)]


REDUCTIONS = {"none": "", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(n: Node) -> Tensor:
    """Numbers of updates at the places of an index along an axis."""
    x, updates = n.tensor(0), n.tensor(2)
    axis = n.attribute("axis", 0) % x.ndim
    index, reduce = wrapped(n.tensor(1), x.shape[axis]), REDUCTIONS[n.choice("reduction", "none", tuple(REDUCTIONS))]
    return x.scatter_reduce(axis, index, updates, reduce) if reduce else x.scatter(axis, index, updates)


def scatter_nd(n: Node) -> Tensor:
    """Slices of updates at index tuples."""
    x, index, updates = n.tensor(0), n.tensor(1).cast(dtypes.int64), n.tensor(2)
    reduce = REDUCTIONS[n.choice("reduction", "none", tuple(REDUCTIONS))]
    depth, shape = index.shape[-1], tuple(x.shape)
    rest = int(np.prod(shape[depth:]))
    flat, place = x.reshape(-1), Tensor.zeros(*index.shape[:-1], dtype=dtypes.int64, device=x.device)
    for i in range(depth):
        place = place * shape[i] + wrapped(index.select(-1, i), shape[i])
    place = (place.reshape(-1, 1) * rest + Tensor.arange(rest, device=x.device).reshape(1, -1)).reshape(-1)
    source = updates.reshape(-1)
    y = flat.scatter_reduce(0, place, source, reduce) if reduce else flat.scatter(0, place, source)
    return y.reshape(*shape)


def tensor_scatter(n: Node) -> Tensor:
    """A cache with new slices from an index on, circular on request."""
    x, update = n.tensor(0), n.tensor(1)
    axis = n.attribute("axis", -2) % x.ndim
    starts = n.tensor(2, Tensor.zeros(x.shape[0], dtype=dtypes.int64, device=x.device))
    along = [1] * x.ndim
    along[axis] = update.shape[axis]
    places = Tensor.arange(update.shape[axis], device=x.device).reshape(*along)
    places = places + starts.reshape(-1, *[1] * (x.ndim - 1)).cast(places.dtype)
    if n.choice("mode", "linear", ("linear", "circular")) == "circular":
        places = places.remainder(x.shape[axis])
    return x.scatter(axis, places.cast(dtypes.int64).expand(*update.shape), update)


def top_k(n: Node) -> list[Tensor]:
    """The k largest or smallest numbers of an axis and their places."""
    x = n.tensor(0)
    k = int(n.scalar(1)) if n.opset >= 10 else n.required("k")
    found = x.topk(k, n.attribute("axis", -1), bool(n.attribute("largest", 1)), bool(n.attribute("sorted", 1)))
    return [found[0], found[1].cast(dtypes.int64)]


def compress(n: Node) -> Tensor:
    """Slices of an axis where a condition is true."""
    x, places, axis = n.tensor(0), np.flatnonzero(n.known(1)), n.attribute("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return x.index_select(axis, n.constant(places.astype(np.int64)).reshape(-1))


def unique(n: Node) -> list[Any]:
    """The different numbers or slices, where they are first, and which each is."""
    x, axis = n.known(0), n.attribute("axis")
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not n.attribute("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts, inverse = np.take(values, order, axis or 0), first[order], counts[order], rank[inverse]
    return [n.constant(values), *[n.constant(v.astype(np.int64)) for v in (first, inverse, counts)]]


TABLE: dict[str, Operator] = {
    "Reshape": moved(reshape), "Flatten": moved(flatten), "Squeeze": moved(squeeze), "Unsqueeze": moved(unsqueeze),
    "Transpose": moved(lambda n, x: x.permute(*n.attribute("perm", list(range(x.ndim))[::-1])) if x.ndim else x),
    "Expand": moved(expand), "Tile": moved(tile),
    "Slice": moved(slices), "Pad": moved(pad), "Concat": concat, "Split": split, "Shape": shape_of,
    "Size": lambda n: sizes_array([prod(tuple(n.values[0].shape))], ()),
    "Constant": constant, "ConstantOfShape": constant_of_shape, "EyeLike": eye_like, "Range": number_range,
    "DepthToSpace": moved(depth_to_space), "SpaceToDepth": moved(space_to_depth), "Trilu": moved(trilu),
    "CenterCropPad": moved(center_crop_pad), "ReverseSequence": reverse_sequence, "OneHot": one_hot,
    "Gather": moved(gather), "GatherElements": moved(gather_elements), "GatherND": moved(gather_nd),
    "Scatter": scatter_elements, "ScatterElements": scatter_elements, "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter, "TopK": top_k, "Compress": compress, "Unique": unique,
    "NonZero": lambda n: n.constant(np.array(np.nonzero(np.atleast_1d(n.known(0))), np.int64)),
}
