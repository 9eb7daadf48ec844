"""Model files as memory: mapped, not read, and every slice checked against the file's size."""
from __future__ import annotations

import errno
import glob
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from minigrad.dtype import DType
from minigrad.errors import FormatError
from minigrad.state.fields import shape_of
from minigrad.tensor import Tensor

if sys.platform == "win32":
    import _winapi
    import msvcrt


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file's bytes as a numpy uint8 array whose pages are fetched when touched.

    The mapping is private: writing into an array over it (an `assign` to a loaded tensor) changes this process's copy
    of the page, never the file. What minigrad saves is a new file that takes the name (`atomic_file`), so that a mapped
    one stays as it was. A program that shortens the mapped file itself, as `shutil.copy` and `numpy.save` may, ends the
    process that reads on (SIGBUS).
    """

    path: Path
    data: np.ndarray
    pages: mmap.mmap

    @staticmethod
    def open(path: str | os.PathLike | IO[bytes]) -> MappedFile:
        """Maps `path`, or reads an open file from its position to its end. Raises FormatError for an empty file,
        OSError where the system refuses."""
        if not isinstance(path, str | os.PathLike):
            return _read(path)
        file = Path(path)
        if file.stat().st_size == 0:
            raise FormatError(f"{file}: the file is empty; download it again")
        with open(file, "rb", opener=renamable) as opened:
            pages = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        return MappedFile(file, np.frombuffer(pages, np.uint8), pages)

    def part(self, offset: int, nbytes: int, what: str) -> np.ndarray:
        """Bytes [offset, offset + nbytes), without a copy; `what` names them in the FormatError for a file that is too
        short."""
        if offset < 0 or nbytes < 0 or offset + nbytes > len(self.data):
            raise FormatError(f"{self.path}: truncated or corrupt: {what} takes bytes {offset} to {offset + nbytes}, "
                              f"the file has {len(self.data)}; download it again")
        return self.data[offset:offset + nbytes]

    def array(self, offset: int, dtype: DType, shape: tuple[int, ...], what: str) -> np.ndarray:
        """An array of `shape` elements in storage type `dtype.np`; a copy only where the offset is not aligned for it.
        Raises FormatError for impossible shapes."""
        shape = shape_of(shape, self.path, what)
        part = self.part(offset, math.prod(shape) * dtype.itemsize, what)
        return np.require(part.view(dtype.np), requirements="A").reshape(shape)


def renamable(path: str, flags: int) -> int:
    """Opens a file, which others may rename meanwhile: Python's own way keeps them from it on Windows."""
    if sys.platform == "win32":
        access, share_all, exists, normal = 0xC0000000 if flags & os.O_RDWR else 0x80000000, 7, 3, 0x80
        return msvcrt.open_osfhandle(_winapi.CreateFile(path, access, share_all, 0, exists, normal, 0), flags)
    return os.open(path, flags)


def _read(stream: IO[bytes]) -> MappedFile:
    """Reads what is left of an open file."""
    name, content = str(getattr(stream, "name", f"<{type(stream).__name__}>")), stream.read()
    if not content:
        raise FormatError(f"{name}: the file is empty, or was read to its end before; seek(0) goes back to its start")
    pages = mmap.mmap(-1, len(content))
    pages[:] = content
    return MappedFile(Path(name), np.frombuffer(pages, np.uint8), pages)


def give_back(part: np.ndarray) -> None:
    """Lets the system have the memory of a mapped array's pages, which come from the file again when they are touched.
    What was written into them is lost."""
    pages: Any = part
    while isinstance(pages, np.ndarray):
        pages = pages.base
    pages = pages.obj if isinstance(pages, memoryview) else pages
    if not isinstance(pages, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = part.ctypes.data - np.frombuffer(pages, np.uint8, 1).ctypes.data
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        pages.madvise(mmap.MADV_DONTNEED, first, end - first)


def as_tensor(array: np.ndarray, dtype: DType, device: str | None = None) -> Tensor:
    """The Tensor over a mapped array (storage type `dtype.np`): no copy until a device needs one."""
    return Tensor.from_blob(array, dtype=dtype, device=device)


@contextmanager
def atomic_file(target: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file open for writing that takes the name `target` when the block ends well, and disappears otherwise; with
    `durable` it is on the disk before it has the name. Raises OSError where there can be none."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(target.parent))
    temporary = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as out:
            yield out
            if durable:
                out.flush()
                os.fsync(out.fileno())
        _take_name(temporary, target)
        if durable:
            _sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _take_name(temporary: Path, target: Path) -> None:
    """Gives a file the name of another one. Windows lets nobody take the name of a file that is mapped; but that may be
    called something else, and goes with a later file of its name."""
    try:
        os.replace(temporary, target)
    except PermissionError:
        if sys.platform != "win32":
            raise
        os.rename(target, f"{target}.{time.time_ns()}.old")
        os.replace(temporary, target)
    if sys.platform == "win32":
        for old in target.parent.glob(f"{glob.escape(target.name)}.*.old"):
            with suppress(OSError):
                old.unlink()


def _sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, where the system can say so."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(opened)
    except OSError:
        pass
    finally:
        os.close(opened)
