"""Host memory: the four memory methods shared by the CPU device and the NUMPY executor.

A handle is a flat numpy uint8 array whose first byte is aligned to 64. `Buffer.address` holds the absolute address of
the buffer's first byte, computed once.
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from minigrad.errors import DeviceError, InternalError
from minigrad.ownership import held_by_at_most
from minigrad.platforms import at_fork
from minigrad.runtime.device import Buffer, Device, Launch, Program
from minigrad.runtime.large_pages import LargePages
from minigrad.target import Target

ALIGNMENT = 64
POOL_LIMIT_BYTES = 1 << 30

_memories: weakref.WeakSet[HostMemory] = weakref.WeakSet()


@lru_cache(maxsize=4096)
def bucket_size(nbytes: int) -> int:
    """The size really allocated for `nbytes`: steps of an eighth of the power of two below, at least 64.

    Nearby sizes share free memory, and at most an eighth is wasted.
    """
    if nbytes <= 512:
        return max(64, (nbytes + 63) & -64)
    step = 1 << max(6, nbytes.bit_length() - 4)
    return (nbytes + step - 1) & -step


_large_pages = LargePages()


def allocate_aligned(nbytes: int) -> np.ndarray:
    """A flat uint8 array of `nbytes` bytes, aligned to 64, in large pages where there are some; contents undefined."""
    piece = _large_pages.take(nbytes)
    if piece is not None:
        return piece[:]  # a view, as below: its base is what is given up with it
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


def address_of(buffer: Buffer) -> int:
    """The address of the buffer's first byte, kept in the buffer from the first call on."""
    if not buffer.address:
        if buffer.handle is None:
            raise InternalError("[launch] expected a live buffer, got one that was freed")
        buffer.address = buffer.device.address_of(buffer.handle) + buffer.offset
    return buffer.address


class HostMemory(Device):
    """alloc, free, copy_in and copy_out over numpy memory, with a bounded pool of free memory by size.

    Page faults of fresh memory cost as much as a pass over it, hence the pool.
    """

    queues = False

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[np.ndarray, int]]] = {}  # memory and its address, by size
        self._free_bytes = 0
        # Reentrant: the garbage collector may free buffers while this thread allocates.
        self._free_lock = threading.RLock()
        _memories.add(self)

    def alloc(self, nbytes: int) -> Buffer:
        """At least `nbytes` bytes, aligned to 64; contents undefined. Raises DeviceError when out of memory."""
        size = bucket_size(nbytes)
        with self._free_lock:
            free = self._free.get(size)
            if free:
                handle, address = free.pop()
                self._free_bytes -= size
                return Buffer(self, nbytes, handle, 0, None, address)
        try:
            handle = allocate_aligned(size)
        except MemoryError:
            self.trim()
            try:
                handle = allocate_aligned(size)
            except MemoryError:
                raise DeviceError(f"[alloc] expected {nbytes} bytes of host memory, got out of memory") from None
        return Buffer(self, nbytes, handle)

    def free(self, buffer: Buffer) -> None:
        """Gives the memory to the pool, unless it belongs to something else or an array still refers to it."""
        handle, address, buffer.handle, buffer.address = buffer.handle, buffer.address, None, 0
        if handle is None or buffer.base is not None or buffer.offset:
            return
        # A numpy view of the handle refers to the handle or to the array below it.
        below = handle.base
        if not isinstance(below, ndarray) or not held_by_at_most(1, [handle]) or not held_by_at_most(2, [below]):
            return
        size = handle.nbytes
        with self._free_lock:
            if size > POOL_LIMIT_BYTES // 2:
                return
            while self._free_bytes + size > POOL_LIMIT_BYTES and self._free:
                oldest = next(iter(self._free))
                self._free_bytes -= sum(h.nbytes for h, _ in self._free.pop(oldest))
            bucket = self._free.pop(size, [])
            bucket.append((handle, address))
            self._free[size] = bucket
            self._free_bytes += size

    def address_of(self, handle: np.ndarray) -> int:
        """The address of an array's first byte."""
        return handle.__array_interface__["data"][0]

    def trim(self) -> None:
        """Gives all pooled memory back to the system."""
        with self._free_lock:
            self._free.clear()
            self._free_bytes = 0

    def copy_in(self, buffer: Buffer, data: np.ndarray) -> None:
        """Copies a host array into the first `data.nbytes` bytes of the buffer."""
        _check_fits("copy_in", buffer, data)
        view = buffer.handle[buffer.offset:buffer.offset + data.nbytes]
        view[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def copy_out(self, buffer: Buffer, out: np.ndarray) -> None:
        """Fills a C-contiguous host array from the first `out.nbytes` bytes of the buffer."""
        _check_fits("copy_out", buffer, out)
        if not out.flags.c_contiguous:
            raise DeviceError(f"[copy_out] expected a C-contiguous array, got strides {out.strides}")
        out.reshape(-1).view(np.uint8)[:] = buffer.handle[buffer.offset:buffer.offset + out.nbytes]

    def wrap(self, array: np.ndarray) -> Buffer:
        """A buffer over the user's C-contiguous array, without a copy; the buffer keeps the array alive.

        Its address is aligned to the array's elements, not to 64. Raises DeviceError if the array is not contiguous or
        not aligned.
        """
        if not (array.flags.c_contiguous and array.flags.aligned):
            raise DeviceError(f"[wrap] expected a C-contiguous, aligned array, got strides {array.strides}")
        if not array.nbytes:
            return self.alloc(0)
        return Buffer(self, array.nbytes, array.reshape(-1).view(np.uint8), 0, array)


class NumpyDevice(HostMemory):
    """The device of the NUMPY executor's tensors: memory only. The engine runs their ops, so it loads no programs."""

    name = "NUMPY"
    target = Target("NUMPY", "none", "numpy", 4, 0, 1, features=frozenset({"fp64", "fp16"}))

    def load(self, programs: Iterable[Program]) -> list[Any]:
        """Raises DeviceError: operations run one by one."""
        raise DeviceError("[load] expected a device that runs programs, got NUMPY, which evaluates ops one by one")

    def launch(self, launches: list[Launch]) -> None:
        """Raises DeviceError: operations run one by one."""
        raise DeviceError("[launch] expected a device that runs programs, got NUMPY, which evaluates ops one by one")

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def elapsed(self) -> float:
        """0: operations run while they are called."""
        return 0.0


def _check_fits(op: str, buffer: Buffer, array: np.ndarray) -> None:
    if array.nbytes > buffer.nbytes:
        raise DeviceError(f"[{op}] expected at most {buffer.nbytes} bytes, got {array.nbytes} "
                          f"(shape {array.shape}, {array.dtype})")


def _after_fork() -> None:
    """Makes locks and pools anew in a child process, where other threads' locks stay locked and pools may be half
    changed."""
    global _large_pages
    _large_pages = LargePages()
    for memory in _memories:
        memory._free, memory._free_bytes, memory._free_lock = {}, 0, threading.RLock()


at_fork(after_in_child=_after_fork)
