"""Values between numpy arrays and realized Nodes."""
from __future__ import annotations

import numpy as np

from minigrad.dtype import DType, bfloat16, bfloat16_to_float32, float32_to_bfloat16
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.storage import allocate
from minigrad.expr import Expr, evaluate
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import HostMemory
from minigrad.runtime.registry import canonical as canonical_device
from minigrad.runtime.registry import get_device

__all__ = ["canonical_device", "cloned", "download", "upload", "wrap"]


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
    host = np.empty(source.nbytes, np.uint8)
    target = allocate(source.device if device is None else get_device(device), source.nbytes)
    if source.nbytes:
        source.device.copy_out(source, host)
        target.device.copy_in(target, host)
    for observer in observers:
        observer.copied(source, target)
    return target
