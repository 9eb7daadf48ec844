"""Public data sets by name: from a given folder, or fetched once from their homes into the cache."""
from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.data.dataset import ArrayDataset
from minigrad.data.fetch import Source, fetch
from minigrad.errors import FormatError

_IDX_TYPES = {8: np.uint8, 9: np.int8, 11: np.int16, 12: np.int32, 13: np.float32, 14: np.float64}


def read_idx(path: Path) -> np.ndarray:
    """The array in a file of the IDX format (MNIST's), gzipped or not. Raises FormatError for any other file."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        kind, axes = _IDX_TYPES[raw[2]], raw[3]
        shape = struct.unpack(f">{axes}I", raw[4:4 + 4 * axes])
        array = np.frombuffer(raw, np.dtype(kind).newbyteorder(">"), offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, KeyError, IndexError, ValueError) as error:
        raise FormatError(f"{path}: expected an array in the IDX format, got {error or type(error).__name__}") from None
    return array.astype(kind)


def _near(root: Path, folders: tuple[str, ...], name: str) -> Path | None:
    """A file below `root`, there or in one of `folders`, gzipped or not."""
    places = [root / folder / (name + end) for folder in ("", *folders) for end in ("", ".gz")]
    return next((path for path in places if path.is_file()), None)


class MNIST(ArrayDataset):
    """Digits in grey, 60,000 to train with and 10,000 to test: (uint8 [1, 28, 28], class).

    `root` is a folder that has the four files of the set, gzipped or not, `mnist.npz`, or torchvision's folders; what
    is missing is fetched into it, or, without `root`, into the cache. `transform` takes the array. Raises FormatError
    where files are missing and `download` is False, or do not have the contents expected.
    """

    classes = [str(digit) for digit in range(10)]
    homes: tuple[str, ...] = ("https://ossci-datasets.s3.amazonaws.com/mnist/",
                              "https://storage.googleapis.com/cvdf-datasets/mnist/")
    md5: Mapping[str, str] = {"train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                              "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
                              "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
                              "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c"}

    def __init__(self, root: str | Path | None = None, train: bool = True,
                 transform: Callable[[Any], Any] | None = None, download: bool = True):
        name = type(self).__name__
        folder = Path(current().cache_dir) / "data" / name if root is None else Path(root).expanduser()
        images, labels = _from_npz(folder, name, train) or self._from_idx(folder, train, download)
        if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise FormatError(f"{folder}: expected images [N, 28, 28] and labels [N], got {list(images.shape)} "
                              f"and {list(labels.shape)}")
        super().__init__(images[:, None], labels.astype(np.int64), transform=transform)

    @property
    def data(self) -> np.ndarray:
        """uint8 [N, 1, 28, 28]."""
        return self.arrays[0]

    @property
    def targets(self) -> np.ndarray:
        """int64 [N]."""
        return self.arrays[1]

    def _from_idx(self, folder: Path, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray]:
        start = "train" if train else "t10k"
        images, labels = [read_idx(self._file(folder, name, download)) for name in self.md5 if name.startswith(start)]
        return images, labels

    def _file(self, folder: Path, name: str, download: bool) -> Path:
        found = _near(folder, (f"{type(self).__name__}/raw", "raw"), name)
        if found is not None:
            return found
        if not download:
            raise FormatError(f"{folder}: expected {name} or {name}.gz there, found neither; download=True fetches it")
        return fetch(Source(tuple(f"{home}{name}.gz" for home in self.homes), "md5", self.md5[name]),
                     folder / f"{name}.gz")


class FashionMNIST(MNIST):
    """Clothing in grey, of the sizes and with the arguments of MNIST (Xiao, Rasul and Vollgraf, 2017)."""

    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    homes = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
    md5 = {"train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
           "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
           "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
           "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310"}


def _from_npz(folder: Path, name: str, train: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """(images, labels) of a file such as mnist.npz, whose arrays are x_train, y_train, x_test and y_test."""
    path = folder / f"{name.lower()}.npz"
    if not path.is_file():
        return None
    part = "train" if train else "test"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[f"x_{part}"], arrays[f"y_{part}"]
    except (OSError, ValueError, KeyError, zlib.error) as error:
        raise FormatError(f"{path}: expected arrays x_{part} and y_{part}, got {error}") from None
