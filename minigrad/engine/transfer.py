"""Data of the host as Nodes, and values of Nodes as arrays."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.dtype import (
    DType,
    bfloat16,
    bfloat16_to_float32,
    float32_to_bfloat16,
    float64,
    int32,
    number_type,
    to_dtype,
    uint64,
)
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.storage import allocate, buffer_node
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Expr, evaluate
from minigrad.ops import build as B
from minigrad.ops.convert import convert, held, rounded
from minigrad.ops.identity import own
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import HostMemory
from minigrad.runtime.registry import get_device


def upload(array: np.ndarray, dtype: DType, device: str) -> Buffer:
    """A new buffer with the array's elements; bfloat16 takes float32 values or raw uint16."""
    raw = float32_to_bfloat16(array) if dtype is bfloat16 and array.dtype != np.uint16 else array
    raw = np.ascontiguousarray(raw, dtype.np)
    opened = get_device(device)
    buffer = allocate(opened, raw.nbytes)
    if raw.nbytes:
        opened.copy_in(buffer, raw)
    return announced(buffer)


def wrap(array: np.ndarray, device: str) -> Buffer:
    """A buffer over the array's own memory where the device reads host memory; else a copy."""
    opened = get_device(device)
    if isinstance(opened, HostMemory):
        return announced(opened.wrap(array))
    buffer = allocate(opened, array.nbytes)
    opened.copy_in(buffer, np.ascontiguousarray(array))
    return announced(buffer)


def announced(buffer: Buffer) -> Buffer:
    """`buffer`, after the observers heard of it."""
    for observer in observers:
        observer.uploaded(buffer)
    return buffer


def download(node: Node) -> np.ndarray:
    """A realized Node's elements as an array of its own; bfloat16 as float32."""
    shape = tuple(evaluate(e, {}) if isinstance(e, Expr) else e for e in node.shape)
    raw = np.empty(shape, node.dtype.np)
    if raw.nbytes:
        node.storage.device.copy_out(node.storage, raw)
    return bfloat16_to_float32(raw) if node.dtype is bfloat16 else raw


def cloned(source: Buffer, device: str | None = None) -> Buffer:
    """The same bytes in a new buffer, on another device if one is named."""
    if dry_runs:
        return dry_runs[-1].copy(source, source.device if device is None else get_device(device))
    target = allocate(source.device if device is None else get_device(device), source.nbytes)
    if source.nbytes and not (source.device.simulates and target.device.simulates):  # which have no bytes
        host = np.empty(source.nbytes, np.uint8)
        source.device.copy_out(source, host)
        target.device.copy_in(target, host)
    for observer in observers:
        observer.copied(source, target)
    return target


def leaf_of(data: Any, dtype: DType | None, device: str) -> Node:
    """The Node of new data: a constant for a number, else a buffer with a copy of it."""
    if isinstance(data, Expr):
        return own(B.const(data, dtype or int32, device))
    if isinstance(data, (bool, int, float)) and not isinstance(data, np.generic):
        kind = dtype or number_type(data)
        return own(B.const(held("Tensor", data, kind) if kind.is_int else data, kind, device))
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
    whole = dtype is not None and dtype.is_int
    exact = 1 << 53 if whole else 1 << 63
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and (np.abs(array) >= exact).any()):
        array = _digit_by_digit(data, array, dtype)
    if dtype is not None and whole and array.dtype.kind in "biuf":
        for end in (array.min(initial=0), array.max(initial=0)):
            held("Tensor", end.item(), dtype)
        return array
    if array.dtype == np.float64:
        return array if dtype is float64 else array.astype(np.float32)
    if array.dtype == np.int64 and (array.size == 0 or (-(1 << 31) <= array.min() and array.max() < 1 << 31)):
        return array.astype(np.int32 if array.size else np.float32)
    if array.dtype.kind not in "biuf":
        what = f" of {array.dtype}s" if array.ndim and array.dtype.kind != "O" else (
            f" of {type(array.flat[0]).__name__}" if array.size and array.ndim else "")
        raise DTypeError(f"[Tensor] expected numbers, nested lists of them or an array, "
                         f"got {type(data).__name__}{what}")
    return array


def _digit_by_digit(data: Any, array: np.ndarray, dtype: DType | None) -> np.ndarray:
    """The `array` of lists of Python numbers, without what numpy loses of integers beside floats, or of those of 2**63
    or more; as it is where they are none."""
    numbers = np.array(data, object)
    if not all([isinstance(n, (int, float)) for n in numbers.flat]):
        return array
    kind = dtype or (float64 if any([isinstance(n, float) for n in numbers.flat]) else uint64)
    if not kind.is_int:
        return np.array([rounded(n, float64) for n in numbers.flat]).reshape(numbers.shape)
    for n in numbers.flat:
        if held("Tensor", n, kind) < 0 and dtype is None:
            raise DTypeError(f"[Tensor] expected integers that one type holds, got {n} beside one beyond int64")
    return np.array([rounded(n, kind) for n in numbers.flat], kind.np).reshape(numbers.shape)
