"""Nodes of data, made for `Tensor(...)` from numbers, lists, arrays and buffers."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from minigrad.dtype import DType, bfloat16, bool_, float32, float64, int32, int64, to_dtype
from minigrad.engine.transfer import upload
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Expr, Index
from minigrad.ops import build as B
from minigrad.ops.convert import convert
from minigrad.ops.identity import own
from minigrad.ops.kinds import Type, type_of
from minigrad.ops.movement import EXPAND, RESHAPE
from minigrad.ops.node import Node, apply, leaf
from minigrad.ops.storage import ALIASES, BUFFER, CONST, CONTIGUOUS
from minigrad.runtime.device import Buffer

_ids = count(1)


def next_id() -> int:
    """A number that keeps a Node of storage apart from all others."""
    return next(_ids)


def buffer_node(buffer: Buffer, shape: Sequence[Index], dtype: DType, device: str) -> Node:
    """A Node whose value is what `buffer` holds."""
    return _leaf(buffer, type_of(tuple(shape), dtype, device))


def leaf_of_same(node: Node, buffer: Buffer) -> Node:
    """A leaf of the type of a Node, whose value is what `buffer` holds."""
    return _leaf(buffer, node.type)


def _leaf(buffer: Buffer, what: Type) -> Node:
    return leaf(BUFFER, what, buffer, {"id": next(_ids), "extents": what.shape, "of": what.dtype})


def copy_of_constant(node: Node) -> Node | None:
    """A copy that is computed in place of a constant that is asked for, so that graphs with equal constants go on to
    know their number; None for any other Node."""
    while node.op in ALIASES and node.storage is None:
        node = node.inputs[0]
    if node.storage is not None or not (node.op is CONST or node.op is EXPAND or node.op is RESHAPE):
        return None
    return apply(CONTIGUOUS, node) if B.number_of(node) is not None else None


def leaf_of(data: Any, dtype: DType | None, device: str) -> Node:
    """The Node of new data: a constant for a number, else a buffer with a copy of it."""
    if isinstance(data, Expr):
        return own(B.const(data, dtype or int32, device))
    if isinstance(data, (bool, int, float)) and not isinstance(data, np.generic):
        kind = bool_ if isinstance(data, bool) else float32 if isinstance(data, float) else int32
        if kind is int32 and not -(1 << 31) <= data < 1 << 31:
            kind = int64
        return own(B.const(data, dtype or kind, device))
    array = _as_array(data, dtype)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    kind = dtype or to_dtype(array.dtype)
    if array.dtype != kind.np or kind is bfloat16:
        array = convert(array, kind)
    return buffer_node(upload(array, kind, device), array.shape, kind, device)


def _as_array(data: Any, dtype: DType | None) -> np.ndarray:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(data, np.uint8 if dtype is None else dtype.np)
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, np.generic):
        return np.asarray(data)
    try:
        array = np.array(data)
    except TypeError as error:  # its own way to become an array failed
        raise DTypeError(f"[Tensor] expected numbers, nested lists of them or an array, "
                         f"got a {type(data).__name__} that numpy cannot take: {error}") from None
    except ValueError as error:
        what = "lists of different lengths, or lists beside numbers" if "inhomogeneous" in str(error) else error
        raise ShapeError(f"[Tensor] expected nested lists of equal lengths, got {what}") from None
    if array.dtype == np.float64:
        return array if dtype is float64 else array.astype(np.float32)
    if array.dtype == np.int64 and (array.size == 0 or (-(1 << 31) <= array.min() and array.max() < 1 << 31)):
        return array.astype(np.int32 if array.size else np.float32)
    if array.dtype.kind not in "biuf":
        held = f" of {array.dtype}s" if array.ndim and array.dtype.kind != "O" else (
            f" of {type(array.flat[0]).__name__}" if array.size and array.ndim else "")
        raise DTypeError(f"[Tensor] expected numbers, nested lists of them or an array, "
                         f"got {type(data).__name__}{held}")
    return array
