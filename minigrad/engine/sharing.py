"""Memory of realized values as others see it, and memory of others as values, without a copy.

Who is lent memory holds its Buffer, so that it is neither pooled nor handed out again meanwhile. Memory that others may
write, and theirs, is `shared`: no plan overwrites it, so that in-place operations give the tensor memory of its own,
and captures keep nothing that was made of it (docs/decisions/0035-shared-memory.md).
"""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.dtype import bfloat16, to_dtype
from minigrad.engine.storage import buffer_node, settle_down
from minigrad.engine.transfer import upload, wrap
from minigrad.errors import SharingError
from minigrad.expr import Expr, evaluate
from minigrad.handles import changed
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer
from minigrad.runtime.dlpack import imported
from minigrad.runtime.host import HostMemory, address_of
from minigrad.runtime.registry import get_device


class _Loan:
    """A holder of the Buffer that numpy reads an array from, and keeps."""

    __slots__ = ("buffer", "__array_interface__")

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype, writable: bool):
        self.buffer = buffer
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (address_of(buffer), not writable),
                                    "version": 3}


def on_host(node: Node) -> bool:
    """True where the memory of the Node's device is the host's."""
    return isinstance(get_device(node.device), HostMemory)


def lent(node: Node, writable: bool = False) -> np.ndarray:
    """The memory of a realized Node on the host as an array of its storage type, read-only unless `writable`."""
    settle_down(node)  # else a capture with donated results would write there again
    buffer = node.storage
    if writable:
        writable = not (isinstance(buffer.base, np.ndarray) and not buffer.base.flags.writeable)
        buffer.shared = True
    shape = tuple(evaluate(d, {}) if isinstance(d, Expr) else d for d in node.shape)
    array = np.asarray(_Loan(buffer, shape, node.dtype.np, writable))
    changed()  # the buffer is held by one more
    return array


def borrowed(producer: Any, device: str, copy: bool | None) -> Node:
    """A leaf over the memory of what has `__dlpack__`; over a copy on a device that does not read host memory, and of
    elements that do not lie in row-major order. Raises SharingError where `copy` is False and one is needed."""
    array, half = imported(producer, copy)
    kind = bfloat16 if half else to_dtype(array.dtype)
    direct = array.flags.c_contiguous and array.flags.aligned and isinstance(get_device(device), HostMemory)
    if direct:
        buffer = wrap(array, device)
        buffer.shared = True
    elif copy is False:
        raise SharingError(f"[from_dlpack] expected aligned elements in row-major order for the device {device} and "
                           f"copy=False, got strides {array.strides} of {list(array.shape)}")
    else:
        buffer = upload(array, kind, device)
    return buffer_node(buffer, array.shape, kind, device)
