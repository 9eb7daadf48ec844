"""Requests for batches, and the one function that answers them, in a worker or in the main process."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from minigrad.data.collate import as_lists, collate_arrays
from minigrad.data.dataset import IterableDataset, quick
from minigrad.data.keys import keys_of, start_generators


@dataclass(frozen=True)
class Request:
    """The samples of a batch in an epoch, for one of the loops over a loader. `indices`: a list; one index, for the
    sample without a batch around it; or, of samples that come one after the other, None."""

    loop: int
    epoch: int
    indices: Any

    def text(self) -> str:
        """The samples, in words."""
        if self.indices is None:
            return "the next samples"
        if not isinstance(self.indices, list):
            return f"sample {self.indices}"
        shown = ", ".join(str(i) for i in self.indices[:4])
        return f"samples {shown}{', ...' if len(self.indices) > 4 else ''}"


class Exhausted:
    """Comes instead of a batch when samples that come one after the other have ended."""


class Fetcher:
    """Answers requests with batches. `as_tensors`: the arrays in a batch are to become Tensors."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | None, seed: int, batch_size: int | None,
                 drop_last: bool):
        self.dataset, self.collate, self.seed = dataset, collate, seed
        self.batch_size, self.drop_last = batch_size, drop_last
        self.as_tensors = collate is None
        self.loop = 0
        self.stream: Iterator[Any] = iter(())

    def __call__(self, request: Request) -> Any:
        if isinstance(self.dataset, IterableDataset):
            return self._next(request)
        indices = request.indices
        if not isinstance(indices, list):
            return self._sample(request.epoch, indices, self.collate)
        if self.collate is None and quick(self.dataset):
            return self.dataset.take(indices)
        keys = keys_of(self.seed, request.epoch, indices).tolist()
        samples = []
        for index, key in zip(indices, keys, strict=True):
            start_generators(key)
            samples.append(self.dataset[index])
        return (self.collate or collate_arrays)(samples)

    def _sample(self, epoch: int, index: Any, convert: Callable[[Any], Any] | None) -> Any:
        start_generators(int(keys_of(self.seed, epoch, [hash(index)])[0]))
        sample = self.dataset[index]
        return as_lists(sample) if convert is None else convert(sample)

    def _next(self, request: Request) -> Any:
        if request.loop != self.loop:
            self.loop, self.stream = request.loop, iter(self.dataset)
        if self.batch_size is None:
            for sample in self.stream:
                return as_lists(sample) if self.collate is None else self.collate(sample)
            return Exhausted()
        samples = list(islice(self.stream, self.batch_size))
        if not samples or (self.drop_last and len(samples) < self.batch_size):
            return Exhausted()
        return (self.collate or collate_arrays)(samples)
