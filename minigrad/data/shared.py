"""Memory that two processes share, which is gone with the last of them, however it ends.

It is a file without a name, whose descriptor the one process sends the other; on Windows, memory that both know by name
and size.
"""
from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np

_BY_NAME = sys.platform == "win32"


class SharedMemory:
    """Memory as large as what was written into it. `name` is known to the two processes alone; `fd` is the file of the
    one who made it."""

    def __init__(self, name: str, fd: int | None = None):
        self.name = name
        self.fd = _unnamed() if fd is None else fd
        self.size = 0
        self.view: mmap.mmap | None = None

    @staticmethod
    def received(channel: Any, name: str) -> SharedMemory:
        """The memory that another process sends."""
        return SharedMemory(name, -1 if _BY_NAME else reduction.recv_handle(channel))

    def send(self, channel: Any, receiver: int) -> None:
        """Sends it to the process `receiver`."""
        if not _BY_NAME:
            reduction.send_handle(channel, self.fd, receiver)

    def at_least(self, size: int) -> mmap.mmap:
        """The memory, mapped so far; who writes makes it as large first."""
        if self.view is None or self.size < size:
            larger = max(size, mmap.PAGESIZE)
            self.view = _mapped(self.fd, larger, f"{self.name}-{larger}")  # arrays in it keep the old one
            self.size = larger
        return self.view

    def write(self, arrays: Sequence[tuple[int, np.ndarray]], size: int) -> None:
        """Writes arrays at their offsets. Raises OSError where there is no memory for `size` bytes."""
        if self.fd >= 0 and (size > self.size or self.view is None):
            os.truncate(self.fd, max(size, mmap.PAGESIZE))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, max(size, mmap.PAGESIZE))  # an error here, not a signal below
        view = self.at_least(size)
        for offset, array in arrays:
            if array.nbytes:
                np.frombuffer(view, np.uint8, array.nbytes, offset)[:] = array.reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Forgets the memory."""
        self.view = None
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def _mapped(fd: int, size: int, name: str) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size, tagname=name)
    return mmap.mmap(fd, size)


def _unnamed() -> int:
    if _BY_NAME:
        return -1
    if hasattr(os, "memfd_create"):
        return os.memfd_create("minigrad-batch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
