"""Rules of movement, indexing and assignment, from minigrad's Nodes to ONNX nodes (`writer.py`)."""
from __future__ import annotations

import numpy as np

from minigrad.dtype import bool_, int32, int64
from minigrad.expr import Index
from minigrad.onnx.refusal import Unsupported, refuse
from minigrad.onnx.writer import Rule, Writer, carrier, wide_array
from minigrad.ops import movement as M
from minigrad.ops import storage as S
from minigrad.ops.indexed import GATHER, SCATTER
from minigrad.ops.node import Node
from minigrad.ops.op import Op

LARGE = 1 << 10
"""Elements from which on 0, 1, 2, ... are counted by a node, rather than stored."""


def _same(w: Writer, node: Node) -> str:
    return w.of(node)


# Sources


def _const(w: Writer, node: Node) -> str:
    value = node.params["value"]
    if isinstance(value, int | float):
        dtype = node.dtype
        array = np.asarray(value, np.float32 if dtype.name == "bfloat16" else dtype.np)
        return w.constant(wide_array(array, dtype))
    number = w.op("Squeeze", w.index(value))
    return number if carrier(node.dtype) is int64 else w.cast(number, node.dtype)


def _random(w: Writer, node: Node) -> str:
    raise Unsupported("[onnx] random numbers are not supported; draw them outside, and pass them as an input")


def _iota(w: Writer, node: Node) -> str:
    size = node.params["size"]
    if isinstance(size, int) and size < LARGE:
        return w.constant(np.arange(size, dtype=np.int32))
    return w.cast(_count(w, size), int32)


def _count(w: Writer, size: Index) -> str:
    """0, 1, ... below a size, int64."""
    if isinstance(size, int) and size < LARGE:
        return w.constant(np.arange(size))
    return w.op("Range", w.constant(0, np.int64), w.op("Squeeze", w.index(size)), w.constant(1, np.int64))


# Movement


def _expand(w: Writer, node: Node) -> str:
    return w.op("Expand", w.of(node), w.sizes(node.shape))


def _flip(w: Writer, node: Node) -> str:
    axes = node.params["axes"]
    least, count = np.iinfo(np.int64).min, len(axes)
    return w.op("Slice", w.of(node), w.constant([-1] * count, np.int64), w.constant([least] * count, np.int64),
                w.constant(axes, np.int64), w.constant([-1] * count, np.int64))


def _slice(w: Writer, node: Node) -> str:
    p, shape = node.params, node.inputs[0].shape
    cut = [a for a, d in enumerate(shape) if p["starts"][a] != 0 or p["stops"][a] != d or p["steps"][a] != 1]
    return sliced(w, w.of(node), {a: (p["starts"][a], p["stops"][a], p["steps"][a]) for a in cut})


def sliced(w: Writer, x: str, parts: dict[int, tuple[Index, Index, int]]) -> str:
    """x from start to stop by step along axes."""
    starts, stops, steps = zip(*parts.values(), strict=True) if parts else ((), (), ())
    return w.op("Slice", x, w.sizes(starts), w.sizes(stops), w.constant([*parts], np.int64),
                w.constant(steps, np.int64)) if parts else x


def _pad(w: Writer, node: Node) -> str:
    pads, fill, dtype = node.params["pads"], node.params["fill"], node.dtype
    return padded(w, w.of(node), [*pads], w.constant(fill, carrier(dtype)), dtype is bool_)


def padded(w: Writer, x: str, pads: list[tuple[Index, Index]], fill: str, logical: bool = False) -> str:
    """x with so many elements before and after along each axis; bools are padded as integers."""
    ends = w.sizes([lo for lo, _ in pads] + [hi for _, hi in pads])
    if not logical:
        return w.op("Pad", x, ends, fill)
    return w.cast(w.op("Pad", w.cast(x, int32), ends, w.cast(fill, int32)), bool_)


def window(w: Writer, node: Node) -> str:
    """Each axis by a Gather of the positions of all taps."""
    p, x, rank = node.params, w.of(node), len(node.inputs[0].shape)
    fill = w.constant(p["fill"], carrier(node.dtype))
    for n, axis in enumerate(p["axes"]):
        length, (lo, hi), kernel = node.inputs[0].shape[axis], p["padding"][n], p["kernel"][n]
        if not isinstance(length, int):
            raise refuse(f"[onnx] writing windows along an axis of size {length}", "axes of known sizes")
        pads: list[tuple[Index, Index]] = [(0, 0)] * (rank + n)
        pads[axis] = max(lo, 0), max(hi, 0)
        if pads[axis] != (0, 0):
            x = padded(w, x, pads, fill, node.dtype is bool_)
        at = np.arange(node.shape[axis])[:, None] * p["stride"][n] + np.arange(kernel) * p["dilation"][n] - min(lo, 0)
        x = w.op("Gather", x, w.constant(at, np.int64), axis=axis)
        order = [a for a in range(rank + n + 1) if a != axis + 1]
        x = w.transpose(x, [*order, axis + 1])
    return x


def unwindow(w: Writer, node: Node) -> str:
    """The transpose, last axis first: elements are added where they came from."""
    p, x = node.params, w.of(node)
    shape: list[Index] = list(node.inputs[0].shape)
    for n in reversed(range(len(p["axes"]))):
        axis, (lo, _), length = p["axes"][n], p["padding"][n], p["lengths"][n]
        positions, kernel = shape[axis], shape.pop()
        if not isinstance(positions, int) or not isinstance(kernel, int) or not isinstance(length, int):
            raise refuse(f"[onnx] writing windows along an axis of size {length}", "axes of known sizes")
        at = (np.arange(positions)[:, None] * p["stride"][n] + np.arange(kernel) * p["dilation"][n] - lo).ravel()
        inside = np.flatnonzero((at >= 0) & (at < length))
        rest = [a for a in range(len(shape)) if a != axis]
        x = w.transpose(x, [axis, len(shape), *rest])
        others = [shape[a] for a in rest]
        x = w.op("Gather", w.reshape(x, (positions * kernel, *others)), w.constant(inside, np.int64), axis=0)
        zeros = w.op("Expand", w.like(0, node.dtype), w.sizes([length, *others]))
        x = w.op("ScatterND", zeros, w.constant(at[inside][:, None], np.int64), x, reduction="add")
        shape[axis] = length
        x = w.transpose(x, np.argsort([axis, *rest]).tolist())
    return w.narrowed(x, node.dtype)


# Indexing


def _index(w: Writer, node: Node, axis: int) -> str:
    """The indices of a Node as int64, in place of those outside the axis its ends."""
    index = node.inputs[1]
    x = w.values[index] if carrier(index.dtype) is int64 else w.cast(w.values[index], int64)
    return _clamped(w, x, node.inputs[0].shape[axis])


def _clamped(w: Writer, x: str, length: Index) -> str:
    last = w.op("Sub", w.index(length), w.constant([1], np.int64)) if not isinstance(length, int) else w.constant(
        max(length - 1, 0), np.int64)
    return w.op("Min", w.op("Max", x, w.constant(0, np.int64)), last)


def _gather(w: Writer, node: Node) -> str:
    axis, (x, index) = node.params["axis"], node.inputs
    rows = index.inputs[0] if index.op is M.EXPAND else index
    rank = len(x.shape)
    if index.op is M.EXPAND and len(rows.shape) <= rank and all(
            d == 1 for a, d in enumerate((1,) * (rank - len(rows.shape)) + rows.shape) if a != axis) and all(
            index.shape[a] == x.shape[a] for a in range(rank) if a != axis):
        name = w.values[rows] if carrier(rows.dtype) is int64 else w.cast(w.values[rows], int64)
        flat = _clamped(w, w.op("Reshape", name, w.constant([-1], np.int64)), x.shape[axis])
        return w.op("Gather", w.values[x], flat, axis=axis)
    parts: dict[int, tuple[Index, Index, int]] = {
        a: (0, n, 1) for a, (n, d) in enumerate(zip(index.shape, x.shape, strict=True)) if a != axis and n != d}
    return w.op("GatherElements", sliced(w, w.values[x], parts), _index(w, node, axis), axis=axis)


def _scatter(w: Writer, node: Node) -> str:
    axis, reduction = node.params["axis"], node.params["reduction"]
    base, value = w.of(node), w.of(node, 2)
    if node.dtype is bool_:
        base, value = w.cast(base, int32), w.cast(value, int32)
    found = w.op("ScatterElements", base, _index(w, node, axis), value, axis=axis,
                 reduction="none" if reduction == "set" else reduction)
    return w.cast(found, bool_) if node.dtype is bool_ else w.narrowed(found, node.dtype)


def _assign(w: Writer, node: Node) -> str:
    """The parts before and behind the region along an axis, with the region between them, which is a part of the target
    with a region replaced along the other axes."""
    target, value = node.inputs
    region = {a: part for a, part in enumerate(node.params["region"]) if value.shape[a] != target.shape[a]}
    return _assigned(w, w.values[target], target.shape, w.values[value], value.shape, region)


def _assigned(w: Writer, target: str, shape: tuple[Index, ...], value: str, lengths: tuple[Index, ...],
              region: dict[int, tuple[Index, int]]) -> str:
    if not region:
        return value
    axis = next(iter(region))
    start, step = region[axis]
    rest = {a: part for a, part in region.items() if a != axis}
    stop = start + (lengths[axis] - 1) * step + 1
    if rest:
        part = sliced(w, target, {axis: (start, stop, step)})
        value = _assigned(w, part, shape, value, lengths, rest)
    if step == 1:
        before, behind = (sliced(w, target, {axis: ends}) for ends in ((0, start, 1), (stop, shape[axis], 1)))
        return w.op("Concat", before, value, behind, axis=axis)
    moved = [axis, *[a for a in range(len(shape)) if a != axis]]
    at = w.op("Add", w.op("Mul", _count(w, lengths[axis]), w.constant(step, np.int64)), w.index(start))
    found = w.op("ScatterND", w.transpose(target, moved), w.op("Unsqueeze", at, w.constant([1], np.int64)),
                 w.transpose(value, moved))
    return w.transpose(found, np.argsort(moved).tolist())


SHAPES: dict[Op, Rule] = {
    S.CONST: _const, S.SCALAR: _random, S.IOTA: _iota, S.COPY: _same, S.CONTIGUOUS: _same, S.DETACH: _same,
    S.SAME: _same, S.ASSIGN: _assign, GATHER: _gather, SCATTER: _scatter, M.EXPAND: _expand, M.FLIP: _flip,
    M.SLICE: _slice, M.PAD: _pad, M.WINDOW: window, M.UNWINDOW: unwindow,
    M.RESHAPE: lambda w, node: w.reshape(w.of(node), node.shape),
    M.PERMUTE: lambda w, node: w.transpose(w.of(node), node.params["order"]),
}
