"""Gather and scatter along one axis, with torch's meaning of the operands.

gather: out[.., i, ..] = x[.., index[.., i, ..], ..].  scatter: base with value[.., i, ..] combined into
[.., index[.., i, ..], ..], in index order, so that the last `set` wins. Indices outside the axis are clamped into it.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.dtype import DType, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index, bounds
from minigrad.ops.builders import B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op, Shape, Storage

REDUCTIONS = ("set", "add", "mul", "max", "min")
_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_index(name: str, shape: Shape, index: Shape, dtype: DType, axis: int) -> None:
    if not dtype.is_int:
        raise DTypeError(f"[{name}] expected an integer index, got {dtype}")
    if len(index) != len(shape) or not 0 <= axis < len(shape):
        raise ShapeError(f"[{name}] expected an index of rank {len(shape)} and an axis below it, "
                         f"got index {list(index)} and axis {axis} for {list(shape)}")
    for a, (n, d) in enumerate(zip(index, shape, strict=True)):
        if a != axis and n != d and bounds(d - n)[0] < 0:
            raise ShapeError(f"[{name}] expected an index no longer than {list(shape)} beside axis {axis}, "
                             f"got {list(index)}")


def _gather_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, axis: int) -> tuple[Shape, DType]:
    _check_index("gather", shapes[0], shapes[1], dtypes[1], axis)
    if shapes[0][axis] == 0 and 0 not in shapes[1]:
        raise ShapeError(f"[gather] expected something to gather from, got {list(shapes[0])} along axis {axis}")
    return shapes[1], dtypes[0]


def _gather_vjp(node: Node, g: Node) -> tuple[Node, None]:
    x, index = node.inputs
    return B.scatter(B.full_like(x, 0), index, g, node.params["axis"], "add"), None


def _inside(index: np.ndarray, length: int) -> np.ndarray:
    return np.clip(index.astype(np.int64), 0, max(length - 1, 0))


def _gather_reference(x: np.ndarray, index: np.ndarray, *, axis: int, shape: Shape, dtype: DType) -> np.ndarray:
    part = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(index.shape))
    if not index.size:
        return np.empty(index.shape, x.dtype)
    return np.take_along_axis(x[part], _inside(index, x.shape[axis]), axis)


def _scatter_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, axis: int, reduction: str,
                   ) -> tuple[Shape, DType]:
    _check_index("scatter", shapes[0], shapes[1], dtypes[1], axis)
    if shapes[1] != shapes[2]:
        raise ShapeError(f"[scatter] expected values of the index's shape {list(shapes[1])}, got {list(shapes[2])}")
    if dtypes[0] is not dtypes[2]:
        raise DTypeError(f"[scatter] expected values of the base's dtype {dtypes[0]}, got {dtypes[2]}")
    if reduction not in REDUCTIONS:
        raise ShapeError(f"[scatter] expected a reduction among {', '.join(REDUCTIONS)}, got {reduction!r}")
    return shapes[0], dtypes[0]


def _set_vjp(node: Node, g: Node) -> tuple[Node, None, Node]:
    """Only the last writer of an element gets its gradient; overwritten elements of the base get none."""
    _, index, value = node.inputs
    axis = node.params["axis"]
    writer = B.reshape(B.iota(B.numel(value.shape), value.device), value.shape)
    none = B.full(-1, node.shape, writer.dtype, node.device)
    last = B.scatter(none, index, writer, axis, "set")
    won = B.eq(B.gather(last, index, axis), writer)
    dvalue = B.where(won, B.gather(g, index, axis), B.full(0, value.shape, g.dtype, g.device))
    return B.where(B.eq(last, none), g, B.full_like(g, 0)), None, dvalue


def _mul_vjp(node: Node, g: Node) -> tuple[Node, None, Node]:
    """Of each factor, the product of the others: of those that are not 0, unless another one is 0."""
    base, index, value = node.inputs
    axis = node.params["axis"]
    base_is_0, value_is_0 = (B.eq(x, B.full_like(x, 0)) for x in (base, value))
    factors = [B.where(is_0, B.full_like(x, 1), x) for is_0, x in ((base_is_0, base), (value_is_0, value))]
    product = B.mul(g, B.scatter(factors[0], index, factors[1], axis, "mul"))
    zeros = B.scatter(B.cast(base_is_0, int32), index, B.cast(value_is_0, int32), axis, "add")

    def others(product: Node, zeros: Node, factor: Node, is_0: Node) -> Node:
        counted = B.eq(zeros, B.cast(is_0, int32))
        return B.where(counted, B.div(product, factor), B.full_like(product, 0))

    picked = B.gather(product, index, axis), B.gather(zeros, index, axis)
    return others(product, zeros, factors[0], base_is_0), None, others(*picked, factors[1], value_is_0)


def _scatter_vjp(node: Node, g: Node) -> tuple[Node | None, None, Node | None]:
    base, index, value = node.inputs
    axis, reduction = node.params["axis"], node.params["reduction"]
    if not node.dtype.is_float:
        return None, None, None
    if reduction == "set":
        return _set_vjp(node, g)
    if reduction == "add":
        return g, None, B.gather(g, index, axis)
    if reduction == "mul":
        return _mul_vjp(node, g)
    from_base = B.cast(B.eq(base, node), g.dtype)
    from_value = B.cast(B.eq(value, B.gather(node, index, axis)), g.dtype)
    share = B.div(g, B.scatter(from_base, index, from_value, axis, "add"))
    return B.mul(from_base, share), None, B.mul(from_value, B.gather(share, index, axis))


def _scatter_reference(base: np.ndarray, index: np.ndarray, value: np.ndarray, *, axis: int, reduction: str,
                       shape: Shape, dtype: DType) -> np.ndarray:
    out = base.copy()
    if not index.size or not out.size:
        return out
    at: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    at[axis] = _inside(index, base.shape[axis])
    if reduction == "set":
        out[tuple(at)] = value  # numpy too leaves the last of several values
        return out
    wide = out.astype(np.float64) if reduction == "add" and dtype.is_float else out
    _COMBINE[reduction].at(wide, tuple(at), value)
    return wide.astype(out.dtype, copy=False)


def scattered_wide(node: Node, inputs: Sequence[Node], dtype: DType) -> Node:
    """The Node that adds values to their places in a wider type."""
    base, index, value = inputs
    total = B.scatter(B.cast(base, dtype), index, B.cast(value, dtype), node.params["axis"], "add")
    return B.cast(total, node.dtype)


def scattered_in_parts(node: Node, inputs: Sequence[Node], parts: int) -> Node:
    """The Node that adds each of so many parts of the values to places of its own, and then these to the base."""
    base, index, value = inputs
    axis, dtype = node.params["axis"], node.dtype.compute
    size = -(-index.shape[axis] // parts)
    padding = tuple([(0, parts * size - n if a == axis else 0) for a, n in enumerate(index.shape)])

    def cut(x: Node) -> Node:
        return B.reshape(B.pad(x, padding, 0), (*x.shape[:axis], parts, size, *x.shape[axis + 1:]))

    places = B.full(0, (*base.shape[:axis], parts, *base.shape[axis:]), dtype, base.device)
    added = B.scatter(places, cut(index), cut(B.cast(value, dtype)), axis + 1, "add")
    total = B.add(B.cast(base, dtype), B.reshape(B.sum(added, (axis,)), base.shape))
    return B.cast(total, node.dtype)


GATHER = Op("gather", _gather_infer, _gather_vjp, _gather_reference, Storage("gather"))
SCATTER = Op("scatter", _scatter_infer, _scatter_vjp, _scatter_reference, Storage("scatter"))



# Placed


def _placed_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], length: Index) -> tuple[Shape, DType]:
    _check_index("placed", shapes[0], shapes[1], dtypes[1], len(shapes[0]) - 1)
    return (*shapes[0][:-1], length), dtypes[0]


def _placed(x: Node, index: Node, length: Index) -> Node:
    return B.scatter(B.full(0, (*x.shape[:-1], length), x.dtype, x.device), index, x, len(x.shape) - 1, "set")


def _placed_vjp(node: Node, g: Node) -> tuple[Node, None]:
    return B.gather(g, node.inputs[1], len(g.shape) - 1), None


PLACED = composite("placed", _placed_infer, _placed, _placed_vjp)


def placed(x: Node, index: Node, length: Index) -> Node:
    """Zeros [..., length] with the elements of x at indices along the last axis. Each has the gradient of its place,
    also where another one is written there: these are equal where they come from max pooling."""
    return apply(PLACED, x, index, length=length)


INDEXED = (GATHER, SCATTER, PLACED)
