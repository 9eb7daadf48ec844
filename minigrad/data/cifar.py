"""CIFAR-10 and CIFAR-100, from their binary files: no pickles."""
from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.data.dataset import ArrayDataset
from minigrad.data.fetch import Source, fetch
from minigrad.errors import FormatError

_PIXELS = 3 * 32 * 32


class CIFAR10(ArrayDataset):
    """Photos of ten classes, 50,000 to train with and 10,000 to test: (uint8 [3, 32, 32], class).

    `root` is a folder that has the set's binary files, in the archive's folder or not, or the archive; what is missing
    is fetched into it, or, without `root`, into the cache. Raises FormatError as MNIST does.
    """

    classes: list[str] = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    folder = "cifar-10-batches-bin"
    archive = "cifar-10-binary.tar.gz"
    md5 = "c32a1d4ab5d03f1284b67883e8d87530"
    home = "https://www.cs.toronto.edu/~kriz/"
    parts = {True: [f"data_batch_{k}.bin" for k in range(1, 6)], False: ["test_batch.bin"]}
    labels = 1  # bytes before the pixels; the last one is the class

    def __init__(self, root: str | Path | None = None, train: bool = True,
                 transform: Callable[[Any], Any] | None = None, download: bool = True):
        name = type(self).__name__
        base = Path(current().cache_dir) / "data" / name if root is None else Path(root).expanduser()
        rows = np.concatenate([self._rows(self._file(base, part, download)) for part in self.parts[train]])
        images = np.ascontiguousarray(rows[:, self.labels:]).reshape(-1, 3, 32, 32)
        super().__init__(images, rows[:, self.labels - 1].astype(np.int64), transform=transform)

    @property
    def data(self) -> np.ndarray:
        """uint8 [N, 3, 32, 32]."""
        return self.arrays[0]

    @property
    def targets(self) -> np.ndarray:
        """int64 [N]."""
        return self.arrays[1]

    def _rows(self, path: Path) -> np.ndarray:
        raw = np.fromfile(path, np.uint8)
        width = self.labels + _PIXELS
        if not raw.size or raw.size % width:
            raise FormatError(f"{path}: expected rows of {width} bytes, got {raw.size} bytes")
        rows = raw.reshape(-1, width)
        if self.classes and (rows[:, self.labels - 1] >= len(self.classes)).any():
            raise FormatError(f"{path}: expected classes below {len(self.classes)}, got "
                              f"{rows[:, self.labels - 1].max()}")
        return rows

    def _file(self, base: Path, name: str, download: bool) -> Path:
        for path in (base / name, base / self.folder / name):
            if path.is_file():
                return path
        archive = base / self.archive
        if not archive.is_file():
            if not download:
                raise FormatError(f"{base}: expected {name}, {self.folder}/{name} or {self.archive} there, found none; "
                                  "download=True fetches it")
            fetch(Source((self.home + self.archive,), "md5", self.md5), archive)
        try:
            with tarfile.open(archive) as opened:
                opened.extractall(base, filter="data")
        except (OSError, EOFError, tarfile.TarError) as error:
            raise FormatError(f"{archive}: expected the archive of {type(self).__name__}, got: {error}") from None
        if not (base / self.folder / name).is_file():
            raise FormatError(f"{archive}: expected {self.folder}/{name} in it, found none")
        return base / self.folder / name


class CIFAR100(CIFAR10):
    """Photos of a hundred classes, of the sizes and with the arguments of CIFAR10; classes are the fine ones, by their
    numbers."""

    classes = [str(k) for k in range(100)]
    folder = "cifar-100-binary"
    archive = "cifar-100-binary.tar.gz"
    md5 = "03b5dce01913d631647c71ecec9e9cb8"
    parts = {True: ["train.bin"], False: ["test.bin"]}
    labels = 2
