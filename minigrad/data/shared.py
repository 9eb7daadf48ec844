"""Memory that two processes share: a file without a name, which is gone with the last of them, however it ends."""
from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np


class SharedMemory:
    """A file without a name, as large as what was written into it; `fd` is what another process maps it by."""

    def __init__(self, fd: int | None = None):
        self.fd = _unnamed() if fd is None else fd
        self.size = 0
        self.view: mmap.mmap | None = None

    def at_least(self, size: int) -> mmap.mmap:
        """The memory, mapped so far; who writes makes it as large first."""
        if self.view is None or self.size < size:
            self.view = None  # arrays in it keep the old one
            self.size = max(size, mmap.PAGESIZE)
            self.view = mmap.mmap(self.fd, self.size)
        return self.view

    def write(self, arrays: Sequence[tuple[int, np.ndarray]], size: int) -> None:
        """Writes arrays at their offsets. Raises OSError where there is no memory for `size` bytes."""
        if size > self.size or self.view is None:
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


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("minigrad-batch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
