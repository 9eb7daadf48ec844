"""Movement: operations that say which input element each output element is. Never a copy; it becomes index arithmetic
in kernels.

`window` maps output index (o, k) to input index o*stride + k*dilation - lo along chosen axes and gives `fill` outside;
the axis keeps its place with length o, the kernel axes are appended at the end. `unwindow` is its transpose.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from minigrad.dtype import DType
from minigrad.errors import ShapeError, quantity
from minigrad.expr import Index, Var, bounds, dim, product
from minigrad.ops.builders import B
from minigrad.ops.node import Node
from minigrad.ops.op import IndexMap, Mapped, Op, Shape

Indices = tuple[Index, ...]
Pairs = tuple[tuple[Index, Index], ...]
Dtypes = Sequence[DType]
_fresh = count()


def _check_rank(name: str, what: str, given: int, shape: Shape) -> None:
    if given != len(shape):
        raise ShapeError(f"[{name}] expected {len(shape)} {what} for shape {list(shape)}, got {given}")


# Reshape


def _reshape_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, to: Shape) -> tuple[Shape, DType]:
    if dim(product(to)) != dim(product(shapes[0])):
        raise ShapeError(f"[reshape] expected {quantity(product(shapes[0]), 'element')} like {list(shapes[0])}, "
                         f"got {list(to)} with {product(to)}")
    return to, dtypes[0]


@lru_cache(maxsize=4096)
def _groups(source: Shape, target: Shape) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The finest split of both shapes into runs of dims with equal products, those of length 1 left out."""
    groups, starts = [], (0, 0)
    axes, to = [i for i, d in enumerate(source) if d != 1], [j for j, d in enumerate(target) if d != 1]
    products: dict[Index, int] = {}
    running: Index = 1
    for i, axis in enumerate(axes):
        running = dim(running * source[axis])
        products[running] = i + 1
    running = 1
    for j, axis in enumerate(to):
        running = dim(running * target[axis])
        if running in products:
            groups.append((tuple(axes[starts[0]:products[running]]), tuple(to[starts[1]:j + 1])))
            starts = products[running], j + 1
    return tuple(groups)


def _reshape_source(index: Indices, *, in_shape: Shape, to: Shape) -> Mapped:
    """The input index of a reshape: dims of length 1 are index 0; within a run of dims with equal products (`_groups`)
    the flat index is divided up again."""
    result: list[Index] = [0] * len(in_shape)
    if 0 in in_shape:
        return Mapped(tuple(result))
    for ins, outs in _groups(in_shape, to):
        flat: Index = 0
        for j in outs:
            flat = flat * to[j] + index[j]
        for i in reversed(ins):
            d = in_shape[i]
            result[i] = flat if i == ins[0] else flat % d
            flat = flat // d if i != ins[0] else flat
    return Mapped(tuple(result))


# Permute, expand, flip, slice, pad


def _permute_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, order: tuple[int, ...]) -> tuple[Shape, DType]:
    if sorted(order) != list(range(len(shapes[0]))):
        raise ShapeError(f"[permute] expected an order of {len(shapes[0])} axes for {list(shapes[0])}, got {order}")
    return tuple([shapes[0][a] for a in order]), dtypes[0]


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _expand_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, to: Shape) -> tuple[Shape, DType]:
    shape = shapes[0]
    extra = len(to) - len(shape)
    if extra < 0 or any(d != 1 and d != e for d, e in zip(shape, to[extra:], strict=True)):
        raise ShapeError(f"[expand] expected a shape that {list(shape)} broadcasts to, got {list(to)}")
    return to, dtypes[0]


def _expand_vjp(node: Node, g: Node) -> tuple[Node]:
    shape, to = node.inputs[0].shape, node.shape
    extra = len(to) - len(shape)
    axes = tuple(i for i in range(len(to)) if i < extra or shape[i - extra] != to[i])
    return (B.reshape(B.sum(g, axes), shape),)


def _expand_source(index: Indices, *, in_shape: Shape, to: Shape) -> Mapped:
    extra = len(to) - len(in_shape)
    return Mapped(tuple([0 if d == 1 else i for d, i in zip(in_shape, index[extra:], strict=True)]))


def _flip_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, axes: tuple[int, ...]) -> tuple[Shape, DType]:
    if any(not 0 <= a < len(shapes[0]) for a in axes):
        raise ShapeError(f"[flip] expected axes below {len(shapes[0])}, got {axes} for {list(shapes[0])}")
    return shapes[0], dtypes[0]


def _flip_source(index: Indices, *, in_shape: Shape, axes: tuple[int, ...]) -> Mapped:
    return Mapped(tuple([in_shape[a] - 1 - i if a in axes else i for a, i in enumerate(index)]))


def _slice_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, starts: Indices, stops: Indices,
                 steps: tuple[int, ...]) -> tuple[Shape, DType]:
    """Elements start, start+step, ... below stop; 0 <= start <= stop <= length is checked where it is known."""
    shape = shapes[0]
    for part in (starts, stops, steps):
        _check_rank("slice", "numbers", len(part), shape)
    lengths: list[Index] = []
    for d, start, stop, step in zip(shape, starts, stops, steps, strict=True):
        if step < 1 or bounds(start)[1] < 0 or bounds(stop - start)[1] < 0 or bounds(d - stop)[1] < 0:
            raise ShapeError(f"[slice] expected 0 <= start <= stop <= length and a positive step for {list(shape)}, "
                             f"got starts {list(starts)}, stops {list(stops)}, steps {list(steps)}")
        lengths.append(dim(stop - start if step == 1 else (stop - start + step - 1) // step))
    return tuple(lengths), dtypes[0]


def _slice_vjp(node: Node, g: Node) -> tuple[Node]:
    p, shape = node.params, node.inputs[0].shape
    if all(s == 1 for s in p["steps"]):
        return (B.pad(g, tuple((a, d - b) for a, b, d in zip(p["starts"], p["stops"], shape, strict=True))),)
    zero = B.full(0, shape, g.dtype, g.device)
    return (B.assign(zero, g, tuple(zip(p["starts"], p["steps"], strict=True))),)


def _pad_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, pads: Pairs, fill: float,
               negative: bool) -> tuple[Shape, DType]:
    shape = shapes[0]
    _check_rank("pad", "pairs", len(pads), shape)
    if any(bounds(lo)[1] < 0 or bounds(hi)[1] < 0 for lo, hi in pads):
        raise ShapeError(f"[pad] expected pads of 0 or more, got {pads} for {list(shape)}")
    return tuple([dim(lo + d + hi) for d, (lo, hi) in zip(shape, pads, strict=True)]), dtypes[0]


def _pad_vjp(node: Node, g: Node) -> tuple[Node]:
    shape = node.inputs[0].shape
    starts = tuple(lo for lo, _ in node.params["pads"])
    stops = tuple(lo + d for lo, d in zip(starts, shape, strict=True))
    return (B.slice_(g, starts, stops),)


def _pad_reference(x: np.ndarray, *, pads: tuple[tuple[int, int], ...], fill: float, negative: bool, shape: Shape,
                   dtype: DType) -> np.ndarray:
    return np.pad(x, pads, constant_values=np.asarray(fill).astype(x.dtype)) if pads else x


def _pad_source(index: Indices, *, in_shape: Shape, pads: Pairs, fill: float, negative: bool) -> Mapped:
    source, conditions = [], []
    for d, i, (lo, hi) in zip(in_shape, index, pads, strict=True):
        source.append(i - lo)
        conditions += [i - lo] if lo != 0 else []
        conditions += [d - 1 - (i - lo)] if hi != 0 else []
    return Mapped(tuple(source), tuple(conditions), fill)


# Window and its transpose

_Ints = tuple[int, ...]


def window_lengths(name: str, lengths: Sequence[Index], kernel: _Ints, stride: _Ints, dilation: _Ints,
                    padding: tuple[tuple[int, int], ...]) -> tuple[Index, ...]:
    """The number of positions of the window along each axis."""
    out: list[Index] = []
    for n, k, s, d, (lo, hi) in zip(lengths, kernel, stride, dilation, padding, strict=True):
        room = n + lo + hi - d * (k - 1) - 1
        if k < 1 or s < 1 or d < 1 or bounds(room)[1] < 0:
            raise ShapeError(f"[{name}] expected a window that fits, got length {n} with kernel {k}, stride {s}, "
                             f"dilation {d}, padding {(lo, hi)}")
        out.append(dim(room // s + 1))
    return tuple(out)


def _window_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, axes: _Ints, kernel: _Ints, stride: _Ints,
                  dilation: _Ints, padding: tuple[tuple[int, int], ...], fill: float) -> tuple[Shape, DType]:
    shape = list(shapes[0])
    if any(not 0 <= a < len(shape) for a in axes):
        raise ShapeError(f"[window] expected axes below {len(shape)}, got {axes} for {shape}")
    lengths = window_lengths("window", [shape[a] for a in axes], kernel, stride, dilation, padding)
    for a, o in zip(axes, lengths, strict=True):
        shape[a] = o
    return (*shape, *kernel), dtypes[0]


def _window_vjp(node: Node, g: Node) -> tuple[Node]:
    p = node.params
    return (B.unwindow(g, p["axes"], p["kernel"], p["stride"], p["dilation"], p["padding"],
                       tuple(node.inputs[0].shape[a] for a in p["axes"])),)


def _positions(o: int, k: int, stride: int, dilation: int, lo: int) -> np.ndarray:
    """Input position of each (o, k)."""
    return np.arange(o)[:, None] * stride + np.arange(k)[None, :] * dilation - lo


def _window_reference(x: np.ndarray, *, axes: _Ints, kernel: _Ints, stride: _Ints, dilation: _Ints,
                      padding: tuple[tuple[int, int], ...], fill: float, shape: Shape, dtype: DType) -> np.ndarray:
    for axis, k, s, d, (lo, hi) in zip(axes, kernel, stride, dilation, padding, strict=True):
        pads = [(0, 0)] * x.ndim
        pads[axis] = (max(lo, 0), max(hi, 0))
        positions = (x.shape[axis] + lo + hi - d * (k - 1) - 1) // s + 1
        padded = np.pad(x, pads, constant_values=np.asarray(fill).astype(x.dtype))
        at = _positions(positions, k, s, d, min(lo, 0))
        x = np.moveaxis(np.take(padded, at, axis=axis), axis + 1, -1)
    return x


def _window_source(index: Indices, *, in_shape: Shape, axes: _Ints, kernel: _Ints, stride: _Ints, dilation: _Ints,
                   padding: tuple[tuple[int, int], ...], fill: float) -> Mapped:
    rank = len(in_shape)
    source = list(index[:rank])
    conditions: list[Index] = []
    for j, (axis, s, d, (lo, hi)) in enumerate(zip(axes, stride, dilation, padding, strict=True)):
        source[axis] = index[axis] * s + index[rank + j] * d - lo
        conditions += [source[axis]] if lo > 0 else []
        conditions += [in_shape[axis] - 1 - source[axis]] if hi > 0 else []
    return Mapped(tuple(source), tuple(conditions), fill)


def _unwindow_infer(shapes: Sequence[Shape], dtypes: Dtypes, *, axes: _Ints, kernel: _Ints, stride: _Ints,
                    dilation: _Ints, padding: tuple[tuple[int, int], ...], lengths: Shape) -> tuple[Shape, DType]:
    shape = list(shapes[0])
    rank = len(shape) - len(axes)
    expected = window_lengths("unwindow", lengths, kernel, stride, dilation, padding)
    got = tuple([shape[a] for a in axes])
    if got != expected or tuple(shape[rank:]) != kernel:
        raise ShapeError(f"[unwindow] expected {list(expected)} positions along axes {axes} and kernel {list(kernel)} "
                         f"at the end, got {shape}")
    for a, n in zip(axes, lengths, strict=True):
        shape[a] = n
    return tuple(shape[:rank]), dtypes[0]


def _unwindow_vjp(node: Node, g: Node) -> tuple[Node]:
    p = node.params
    return (B.window(g, p["axes"], p["kernel"], p["stride"], p["dilation"], p["padding"], 0),)


def _unwindow_reference(x: np.ndarray, *, axes: _Ints, kernel: _Ints, stride: _Ints, dilation: _Ints,
                        padding: tuple[tuple[int, int], ...], lengths: tuple[int, ...], shape: Shape, dtype: DType,
                        ) -> np.ndarray:
    wide = x.astype(np.float64) if dtype.is_float else x
    for axis, k, s, d, (lo, _), n in reversed(
            list(zip(axes, kernel, stride, dilation, padding, lengths, strict=True))):
        at = _positions(x.shape[axis], k, s, d, lo)
        inside = (at >= 0) & (at < n)
        source = np.moveaxis(np.moveaxis(wide, -1, 0), axis + 1, 0)
        out = np.zeros((n, *source.shape[2:]), source.dtype)
        np.add.at(out, at[inside], source[inside])
        wide = np.moveaxis(out, 0, axis)
    return wide


def _unwindow_source(index: Indices, *, in_shape: Shape, axes: _Ints, kernel: _Ints, stride: _Ints, dilation: _Ints,
                     padding: tuple[tuple[int, int], ...], lengths: Shape) -> Mapped:
    """out[p] = sum over k of g[(p + lo - k*dilation) / stride, k], where that divides and lies inside."""
    source: list[Index] = [*index]
    taps: list[Any] = []
    conditions: list[Index] = []
    for axis, k, s, d, (lo, _) in zip(axes, kernel, stride, dilation, padding, strict=True):
        tap = Var(f"_tap{next(_fresh)}", 0, k - 1)
        e = index[axis] + lo - tap * d
        source[axis] = e // s
        conditions += [e, (in_shape[axis] - 1) * s - e]
        conditions += [-(e % s)] if s > 1 else []
        taps.append(tap)
    return Mapped((*source, *taps), tuple(conditions), 0.0, tuple(taps))


RESHAPE = Op("reshape", _reshape_infer, lambda n, g: (B.reshape(g, n.inputs[0].shape),),
             lambda x, *, to, shape, dtype: x.reshape(to), IndexMap(_reshape_source))
PERMUTE = Op("permute", _permute_infer, lambda n, g: (B.permute(g, _inverse(n.params["order"])),),
             lambda x, *, order, shape, dtype: x.transpose(order),
             IndexMap(lambda index, *, in_shape, order: Mapped(tuple([index[a] for a in _inverse(order)]))))
EXPAND = Op("expand", _expand_infer, _expand_vjp, lambda x, *, to, shape, dtype: np.broadcast_to(x, to),
            IndexMap(_expand_source))
PAD = Op("pad", _pad_infer, _pad_vjp, _pad_reference, IndexMap(_pad_source))
SLICE = Op("slice", _slice_infer, _slice_vjp,
           lambda x, *, starts, stops, steps, shape, dtype: x[tuple(map(slice, starts, stops, steps))],
           IndexMap(lambda index, *, in_shape, starts, stops, steps: Mapped(
               tuple([a + i * s for a, i, s in zip(starts, index, steps, strict=True)]))))
FLIP = Op("flip", _flip_infer, lambda n, g: (B.flip(g, n.params["axes"]),),
          lambda x, *, axes, shape, dtype: np.flip(x, axes), IndexMap(_flip_source))
WINDOW = Op("window", _window_infer, _window_vjp, _window_reference, IndexMap(_window_source))
UNWINDOW = Op("unwindow", _unwindow_infer, _unwindow_vjp, _unwindow_reference, IndexMap(_unwindow_source))

MOVEMENT = (RESHAPE, PERMUTE, EXPAND, PAD, SLICE, FLIP, WINDOW, UNWINDOW)
