"""Data sets: samples by index, or one after the other."""
from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from minigrad.data.collate import collate_arrays
from minigrad.data.keys import SPLIT, as_seed, permutation
from minigrad.errors import MinigradError, OutOfRangeError, ShapeError
from minigrad.tensor import Tensor

Indices = Sequence[int] | np.ndarray


class Dataset:
    """Samples by index. Others than these need not derive from it: a loader takes what has `len` and `[]`."""

    def __getitem__(self, index: Any) -> Any:
        raise MinigradError(f"[{type(self).__name__}] expected a method __getitem__")

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])

    @property
    def takes(self) -> bool:
        """True where `take` is the quick way to a batch, and nothing in it is random."""
        return False

    def take(self, indices: Indices) -> Any:
        """The samples at these indices as one batch of numpy arrays, whose first axis counts them."""
        return collate_arrays([self[int(i)] for i in indices])


class IterableDataset(Dataset):
    """Samples that come one after the other, from `__iter__`. Each worker of a loader has a copy, and `get_worker_info`
    tells it which samples are its own."""

    def __iter__(self) -> Iterator[Any]:
        raise MinigradError(f"[{type(self).__name__}] expected a method __iter__")


class ArrayDataset(Dataset):
    """Arrays, Tensors or lists of one length: sample i is a tuple of their elements i, the first one changed by
    `transform`, if there is one. Raises ShapeError where lengths differ."""

    def __init__(self, *arrays: Any, transform: Callable[[Any], Any] | None = None):
        if not arrays:
            raise ShapeError("[ArrayDataset] expected at least one array, got none")
        self.arrays = tuple([a.numpy() if isinstance(a, Tensor) else np.asarray(a) for a in arrays])
        self.transform = transform
        if any(a.ndim == 0 for a in self.arrays) or len({len(a) for a in self.arrays}) > 1:
            raise ShapeError("[ArrayDataset] expected arrays of one length, got shapes "
                             + ", ".join(str(list(a.shape)) for a in self.arrays))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        first, *others = [a[index] for a in self.arrays]
        return (first if self.transform is None else self.transform(first), *others)

    @property
    def takes(self) -> bool:
        return self.transform is None and type(self).__getitem__ is ArrayDataset.__getitem__

    def take(self, indices: Indices) -> Any:
        if not self.takes:
            return super().take(indices)
        return [a[np.asarray(indices)] for a in self.arrays]


class TensorDataset(ArrayDataset):
    """Tensors of one length: sample i is a tuple of their elements i, which are Tensors. Raises ShapeError where
    lengths differ."""

    def __init__(self, *tensors: Any):
        super().__init__(*tensors)
        self.tensors = tuple([t if isinstance(t, Tensor) else Tensor(a)
                              for t, a in zip(tensors, self.arrays, strict=True)])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple([Tensor(np.asarray(a[index]), t.dtype, t.device)
                      for a, t in zip(self.arrays, self.tensors, strict=True)])

    @property
    def takes(self) -> bool:
        return type(self).__getitem__ is TensorDataset.__getitem__


class Subset(Dataset):
    """The samples of another data set at `indices`."""

    def __init__(self, dataset: Any, indices: Indices):
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(self.indices[index])]

    @property
    def takes(self) -> bool:
        return quick(self.dataset)

    def take(self, indices: Indices) -> Any:
        if not self.takes:
            return super().take(indices)
        return self.dataset.take(np.asarray(self.indices)[np.asarray(indices)])


class ConcatDataset(Dataset):
    """The samples of several data sets, one after the other."""

    def __init__(self, datasets: Sequence[Any]):
        self.datasets = list(datasets)
        if not self.datasets:
            raise ShapeError("[ConcatDataset] expected at least one data set, got none")
        self.ends = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Any:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise OutOfRangeError(f"[ConcatDataset] expected an index below {len(self)}, got {index}")
        part = bisect_right(self.ends, place)
        return self.datasets[part][place - (self.ends[part - 1] if part else 0)]


def random_split(dataset: Any, lengths: Sequence[float], generator: object = None) -> list[Subset]:
    """Subsets of these lengths, or of these fractions of the whole, which share no sample. `generator` is a seed, a
    Generator or one of numpy's. Raises ShapeError where lengths do not add up."""
    total = len(dataset)
    counts = [int(n) for n in lengths]
    if lengths and all(isinstance(n, float) for n in lengths) and math.isclose(sum(lengths), 1):
        counts = [math.floor(total * n) for n in lengths]
        for k in range(total - sum(counts)):  # what is left, one each, as PyTorch does
            counts[k % len(counts)] += 1
    if sum(counts) != total or min(counts, default=0) < 0:
        raise ShapeError(f"[random_split] expected lengths that add up to {total}, or fractions to 1, "
                         f"got {list(lengths)}")
    order = permutation(as_seed("random_split", generator), 0, total, SPLIT)
    ends = [0, *accumulate(counts)]
    return [Subset(dataset, order[a:b]) for a, b in pairwise(ends)]


def quick(dataset: Any) -> bool:
    """True for a data set that gives whole batches by `take`."""
    return isinstance(dataset, Dataset) and dataset.takes
