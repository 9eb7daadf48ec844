"""Decoded samples kept in a mapped file, so that photos are decoded once and read from memory from then on."""
from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.data.dataset import Dataset, Indices
from minigrad.errors import FormatError, ShapeError
from minigrad.state.mapped import atomic_file, renamable

_HEADER = 4096
_MAGIC = "minigrad decoded samples 1"


class CachedDataset(Dataset):
    """The samples of `dataset`, (array, number), whose arrays are kept in the file at `path` once they were read.

    Arrays have to be of one shape and type. Each has a checksum there: what a process that was killed left half written
    is read anew. Processes may share the file, such as the workers of a loader. `changed`: a text that says which
    version of the samples these are; without it names, sizes and times of the files of an ImageFolder. A file of other
    samples is replaced. What is random in a sample does not belong in here: augment batches instead. Raises ShapeError
    for samples of other shapes, and FormatError where the file cannot be made.
    """

    def __init__(self, dataset: Any, path: str | Path, changed: str | None = None):
        self.dataset, self.path = dataset, Path(path).expanduser()
        self.targets: list[int] | None = None
        first, _ = _sample(dataset, 0)
        self.shape, self.dtype = first.shape, first.dtype
        version = _version_of(dataset) if changed is None else changed
        header = json.dumps({"format": _MAGIC, "count": len(dataset), "shape": list(self.shape),
                             "dtype": self.dtype.str, "version": version}).encode()
        try:
            self._open(header.ljust(_HEADER), len(dataset) * (first.nbytes + 8))
        except OSError as error:
            megabytes = len(dataset) * first.nbytes / 1e6
            raise FormatError(f"{self.path}: cannot keep {megabytes:,.0f} MB of decoded samples there: "
                              f"{(error.strerror or str(error)).lower()}") from None

    def _open(self, header: bytes, size: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        total = _HEADER + size
        if not self.path.is_file() or self.path.stat().st_size != total or not self._has(header):
            with atomic_file(self.path) as out:
                out.write(header)
                out.truncate(total)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(out.fileno(), 0, total)  # a full disk is an error here, not a signal later
        with open(self.path, "r+b", opener=renamable) as file:
            memory = mmap.mmap(file.fileno(), total)
        count = len(self.dataset)
        self.sums = np.frombuffer(memory, np.uint64, count, _HEADER)
        self.arrays = np.frombuffer(memory, self.dtype, offset=_HEADER + 8 * count).reshape(count, *self.shape)

    def _has(self, header: bytes) -> bool:
        with open(self.path, "rb") as file:
            return file.read(_HEADER) == header

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        row = self.arrays[index]
        if self.sums[index] == _sum_of(row):
            return row, self._target(index)
        array, target = _sample(self.dataset, index)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ShapeError(f"[CachedDataset] expected samples {self.dtype} {list(self.shape)} as the first, got "
                             f"{array.dtype} {list(array.shape)} at {index}; give images a size")
        row[:] = array
        self.sums[index] = _sum_of(array)
        return row, target

    def _target(self, index: int) -> Any:
        found = getattr(self.dataset, "targets", None)
        return self.dataset[index][1] if found is None else found[index]

    def take(self, indices: Indices) -> Any:
        """The samples at these indices as one batch, of arrays."""
        samples = [self[int(i)] for i in indices]
        return [np.stack([a for a, _ in samples]), np.array([t for _, t in samples])]

    @property
    def takes(self) -> bool:
        """True: nothing in a sample is random."""
        return True


def _sum_of(array: np.ndarray) -> np.uint64:
    """A checksum of bytes that no empty row has."""
    return np.uint64(zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) | 1 << 32)


def _sample(dataset: Any, index: int) -> tuple[np.ndarray, Any]:
    sample = dataset[index]
    if not isinstance(sample, tuple | list) or len(sample) != 2 or not isinstance(sample[0], np.ndarray):
        raise ShapeError("[CachedDataset] expected samples that are an array and a number, got "
                         f"{type(sample).__name__}")
    return sample[0], sample[1]


def _version_of(dataset: Any) -> str:
    """A digest of the files of an ImageFolder; of other data sets their type's name."""
    digest = hashlib.sha256(type(dataset).__name__.encode())
    for path, _ in getattr(dataset, "samples", ()):
        facts = os.stat(path)
        digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    digest.update(repr((getattr(dataset, "size", None), getattr(dataset, "mode", None))).encode())
    return digest.hexdigest()
