"""Samplers: in which order indices come. Those that are random start with `set_epoch`, which a loader calls."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from minigrad import distributed
from minigrad.data.keys import REPLACED, as_seed, permutation, uniform
from minigrad.errors import ConfigError, ShapeError


class Sampler:
    """Indices in some order, by `__iter__`; of any length."""

    def __init__(self, data_source: Any = None):
        del data_source

    def __iter__(self) -> Iterator[Any]:
        raise ConfigError(f"[{type(self).__name__}] expected a method __iter__")


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Sized):
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomOrder(Sampler):
    """A sampler of `count` indices that are a function of the seed and the epoch."""

    count: int
    epoch = 0

    def __init__(self, generator: object):
        self.generator = generator
        self._seed: int | None = None

    @property
    def seed(self) -> int:
        """The seed, decided at the first use."""
        if self._seed is None:
            self._seed = as_seed(type(self).__name__, self.generator)
        return self._seed

    def follow(self, seed: int) -> None:
        """Takes the seed of a loader, unless it was made with one of its own."""
        if self.generator is None:
            self._seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next loop over it is."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch
        self.epoch += 1
        return iter(self._drawn(epoch).tolist())

    def _drawn(self, epoch: int) -> np.ndarray:
        """The indices of an epoch."""
        raise NotImplementedError


class RandomSampler(RandomOrder):
    """All indices in a random order; with `replacement`, `num_samples` that are drawn each for itself."""

    def __init__(self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
                 generator: object = None):
        super().__init__(generator)
        self.data_source, self.replacement = data_source, replacement
        self.count = _count("RandomSampler", len(data_source) if num_samples is None else num_samples, num_samples)

    def _drawn(self, epoch: int) -> np.ndarray:
        total = len(self.data_source)
        if self.replacement:
            return (uniform(self.seed, epoch, self.count, REPLACED) * total).astype(np.int64)
        rounds = -(-self.count // max(1, total))
        orders = [permutation(self.seed, epoch * rounds + k, total) for k in range(rounds)]
        return np.concatenate([*orders, np.empty(0, np.int64)])[:self.count]


class SubsetRandomSampler(RandomOrder):
    """The given indices in a random order."""

    def __init__(self, indices: Sequence[int], generator: object = None):
        super().__init__(generator)
        self.indices, self.count = indices, len(indices)

    def _drawn(self, epoch: int) -> np.ndarray:
        return np.asarray(self.indices, np.int64)[permutation(self.seed, epoch, self.count)]


class WeightedRandomSampler(RandomOrder):
    """`num_samples` indices, each as likely as its weight says."""

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: object = None):
        super().__init__(generator)
        self.weights, self.replacement = np.asarray(weights, np.float64), replacement
        self.count = _count("WeightedRandomSampler", num_samples, num_samples)
        positive = int((self.weights > 0).sum()) if self.weights.ndim == 1 and (self.weights >= 0).all() else 0
        if positive == 0 or (not replacement and positive < num_samples):
            raise ShapeError("[WeightedRandomSampler] expected weights of 0 or more, "
                             f"{1 if replacement else num_samples} of them positive, got {positive} that are")

    def _drawn(self, epoch: int) -> np.ndarray:
        if self.replacement:
            ends = np.cumsum(self.weights)
            drawn = uniform(self.seed, epoch, self.count, REPLACED)
            return np.minimum(np.searchsorted(ends, drawn * ends[-1], side="right"), np.flatnonzero(self.weights)[-1])
        # The largest of log(u) / w are a sample without replacement (Efraimidis and Spirakis, 2006).
        drawn = 1 - uniform(self.seed, epoch, len(self.weights), REPLACED)
        ranks = np.log(drawn) / np.where(self.weights > 0, self.weights, 1e-300)
        return np.argsort(-ranks, kind="stable")[:self.count]


class DistributedSampler(RandomOrder):
    """The share of one of `num_replicas` processes: every one of them gets equally many indices, by repeating some at
    the end or, with `drop_last`, leaving some out. Without numbers it is the share of this process
    (`minigrad.distributed`)."""

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False):
        super().__init__(seed)
        num_replicas = distributed.size() if num_replicas is None else num_replicas
        rank = distributed.rank() if rank is None else rank
        if not isinstance(num_replicas, int) or num_replicas < 1:
            raise ConfigError(f"[DistributedSampler] expected a num_replicas of 1 or more, got {num_replicas!r}")
        if not 0 <= rank < num_replicas:
            raise ConfigError(f"[DistributedSampler] expected a rank in 0..{num_replicas - 1}, got {rank}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.drop_last = shuffle, drop_last
        total = len(dataset)
        self.count = total // num_replicas if drop_last else -(-total // num_replicas)

    def _drawn(self, epoch: int) -> np.ndarray:
        total = len(self.dataset)
        order = permutation(self.seed, epoch, total) if self.shuffle else np.arange(total)
        return np.resize(order, self.count * self.num_replicas)[self.rank::self.num_replicas]


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler; `drop_last` leaves out a shorter one at the end."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool):
        self.sampler, self.drop_last = sampler, drop_last
        self.batch_size = _count("BatchSampler", batch_size, batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next loop over it is."""
        start_epoch(self.sampler, epoch)

    def __len__(self) -> int:
        count = length(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))

    def _batches(self, order: Iterator[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in order:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


def length(sampler: Any) -> int:
    """The number of indices or batches of a sampler. Raises ConfigError for one that does not say it."""
    if not hasattr(sampler, "__len__"):
        raise ConfigError(f"[DataLoader] expected a sampler with len(), got {type(sampler).__name__}")
    return len(sampler)


def start_epoch(sampler: Any, epoch: int) -> None:
    """Tells a sampler the epoch, if it asks for it."""
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def _count(op: str, value: Any, given: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < (given is not None):
        raise ConfigError(f"[{op}] expected a positive number of samples, got {value!r}")
    return int(value)
