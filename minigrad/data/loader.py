"""`DataLoader`: batches of Tensors from a data set, with PyTorch's arguments, and a position that can be saved."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import cycle, islice, repeat
from time import perf_counter
from typing import Any

import numpy as np

from minigrad.data.collate import uploaded
from minigrad.data.dataset import IterableDataset
from minigrad.data.fetching import Exhausted, Fetcher, Request
from minigrad.data.keys import as_seed, kept_generators, keys_of
from minigrad.data.samplers import BatchSampler, RandomOrder, RandomSampler, SequentialSampler, length, start_epoch
from minigrad.data.workers import Workers, start_method
from minigrad.errors import ConfigError
from minigrad.tensor import Tensor


class DataLoader:
    """Batches of the samples of `dataset`, anew in each loop over it.

    Arguments are PyTorch's. `generator` is a seed or a Generator (None: the seed of `minigrad.manual_seed`), from
    which follow the order of each epoch and, by epoch and index, what Python's and numpy's global generators give in a
    sample: a run repeats whatever the number of workers. Arrays become Tensors on `device`; with `keys`, a batch has as
    its last part uint32 [N], random numbers of the samples, which augmentations take. `pin_memory` uploads a batch
    ahead. `epoch` counts the loops, `waited` the seconds of the last one in which the program waited for a batch.
    `state_dict` is the position, also within an epoch. Raises ConfigError.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Any] | None = None,
                 num_workers: int = 0, collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False,
                 drop_last: bool = False, timeout: float = 0, worker_init_fn: Callable[[int], object] | None = None,
                 multiprocessing_context: Any = None, generator: object = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True,
                 device: str | None = None, keys: bool = False):
        self.dataset, self.batch_size, self.num_workers = dataset, batch_size, num_workers
        self.collate_fn, self.pin_memory, self.drop_last, self.timeout = collate_fn, pin_memory, drop_last, timeout
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator, self.persistent_workers, self.in_order = generator, persistent_workers, in_order
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.device, self.keys = device or pin_memory_device or None, keys
        self.streams = isinstance(dataset, IterableDataset)
        self._check(shuffle, sampler, batch_sampler, prefetch_factor)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        if sampler is None and not self.streams:
            self.sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None and self.sampler is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.epoch, self.batch, self.waited = 0, 0, 0.0
        self._seed: int | None = None
        self._begun = False  # whether `epoch` is one that a loop has been over, or is in
        self._kept: Workers | None = None
        self._loops = 0

    def _check(self, shuffle: bool | None, sampler: Any, batch_sampler: Any, prefetch: int | None) -> None:
        for name, value in (("num_workers", self.num_workers), ("timeout", self.timeout)):
            if not isinstance(value, int | float) or value < 0 or (name != "timeout" and value != int(value)):
                raise ConfigError(f"[DataLoader] expected {name} of 0 or more, got {value!r}")
        if self.batch_size is not None and (not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1):
            raise ConfigError(f"[DataLoader] expected batch_size of 1 or more, or None, got {self.batch_size!r}")
        if not self.num_workers and (prefetch is not None or self.timeout or self.persistent_workers):
            raise ConfigError("[DataLoader] expected num_workers of 1 or more beside prefetch_factor, timeout or "
                              "persistent_workers, got 0")
        if prefetch is not None and (not isinstance(prefetch, int) or prefetch < 1):
            raise ConfigError(f"[DataLoader] expected prefetch_factor of 1 or more, got {prefetch!r}")
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None or self.keys):
            raise ConfigError("[DataLoader] expected no shuffle, sampler, batch_sampler or keys for samples that come "
                              "one after the other (IterableDataset)")
        if sampler is not None and shuffle:
            raise ConfigError("[DataLoader] expected a sampler or shuffle, got both")
        if batch_sampler is not None and (self.batch_size != 1 or shuffle or sampler is not None or self.drop_last):
            raise ConfigError("[DataLoader] expected a batch_sampler without batch_size, shuffle, sampler and "
                              "drop_last, got some of them besides")
        if self.batch_size is None and batch_sampler is None and (self.drop_last or self.keys):
            raise ConfigError("[DataLoader] expected a batch_size beside drop_last or keys, got None")
        if batch_sampler is not None:
            self.batch_size = None
        if not self.streams and not (hasattr(self.dataset, "__getitem__") and (
                sampler is not None or batch_sampler is not None or hasattr(self.dataset, "__len__"))):
            raise ConfigError("[DataLoader] expected a data set with len() and [], or an IterableDataset, got "
                              f"{type(self.dataset).__name__}")

    @property
    def seed(self) -> int:
        """The seed of orders and samples, decided at the first use."""
        if self._seed is None:
            self._seed = as_seed("DataLoader", self.generator)
        return self._seed

    def __len__(self) -> int:
        """The batches of an epoch."""
        if not self.streams:
            return length(self.sampler if self.batch_sampler is None else self.batch_sampler)
        count = len(self.dataset)
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self.epoch, self.batch = self.epoch + 1, 0
        self._begun = True
        return _Loop(self)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next loop the epoch of that number, from its start."""
        self.epoch, self.batch, self._begun = epoch, 0, False

    # Position

    def state_dict(self) -> dict[str, int]:
        """The position as plain numbers: the seed, the epoch and how many batches of it were given out; and what it
        counts in, the size of a batch and the number of batches (0: not known)."""
        return {"seed": self.seed, "epoch": self.epoch, "batch": self.batch, "batch_size": self.batch_size or 0,
                "batches": 0 if self.streams else len(self)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on from a position: the next loop gives what is left of that epoch. Raises ConfigError where the data
        set or the size of batches is another one."""
        now = self.state_dict()
        if set(state) != set(now):
            raise ConfigError(f"[DataLoader.load_state_dict] expected {', '.join(now)}, got {', '.join(state)}")
        for name, what in (("batch_size", "batches of {} samples"), ("batches", "{} batches in an epoch")):
            if state[name] != now[name]:
                raise ConfigError(f"[DataLoader.load_state_dict] expected {what.format(state[name])}, as when the "
                                  f"position was saved, got {now[name]}")
        self._seed, self.epoch, self.batch, self._begun = int(state["seed"]), state["epoch"], state["batch"], False

    # For a loop

    def requests(self) -> Iterator[Request]:
        """The batches to read in this epoch, from the position on."""
        self._loops += 1
        epoch, loop = self.epoch, self._loops
        if self.streams:
            return repeat(Request(loop, epoch, None))
        if isinstance(self.sampler, RandomOrder):
            self.sampler.follow(self.seed)
        source: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        start_epoch(source, epoch)
        lists = self.batch_sampler is not None
        return (Request(loop, epoch, list(i) if lists else i) for i in islice(iter(source), self.batch, None))

    def fetcher(self) -> Fetcher:
        """Makes what answers requests."""
        return Fetcher(self.dataset, self.collate_fn, self.seed, self.batch_size, self.drop_last)

    def workers(self) -> Workers:
        """The processes for a loop: those of the last one, if they stay."""
        if self._kept is not None and self._kept.workers and self._kept.fetcher.seed == self.seed:
            self._kept.drain()
            return self._kept
        made = Workers(self.num_workers, self.prefetch_factor or 2, self.fetcher(), self.seed, self.worker_init_fn,
                       start_method(self.multiprocessing_context), self.timeout, self.device)
        self._kept = made if self.persistent_workers else None
        return made

    def with_keys(self, batch: Any, request: Request) -> Any:
        """The batch, with the random numbers of its samples if the loader was asked for them."""
        if not self.keys:
            return batch
        numbers = (keys_of(self.seed, request.epoch, request.indices) >> np.uint64(32)).astype(np.uint32)
        drawn = Tensor(numbers, device=self.device)
        if isinstance(batch, Mapping):
            return {**batch, "keys": drawn}
        return [*batch, drawn] if isinstance(batch, list | tuple) else [batch, drawn]


class _Loop:
    """One loop over a loader: an iterator."""

    def __init__(self, loader: DataLoader):
        self.loader, self.epoch, self.batch = loader, loader.epoch, loader.batch
        self.skip = loader.batch if loader.streams else 0
        loader.waited = 0.0
        requests = loader.requests()
        # No generator knows this object: with the last reference to it, the processes end at once.
        self.batches = (_by_workers if loader.num_workers else _here)(loader, requests)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = perf_counter()
        for _ in range(self.skip):
            next(self.batches, None)
        self.skip = 0
        try:
            batch = next(self.batches)
        except StopIteration:
            if self.loader.epoch == self.epoch and self.loader._begun:
                self.loader.set_epoch(self.epoch + 1)
            raise
        self.batch += 1
        self.loader.epoch, self.loader.batch = self.epoch, self.batch
        self.loader.waited += perf_counter() - start
        return batch


def _here(loader: DataLoader, requests: Iterator[Request]) -> Iterator[Any]:
    """Batches that this process reads."""
    fetch = loader.fetcher()
    for request in requests:
        with kept_generators():
            batch = fetch(request)
        if isinstance(batch, Exhausted):
            return
        yield loader.with_keys(uploaded(batch, loader.device) if fetch.as_tensors else batch, request)


def _by_workers(loader: DataLoader, requests: Iterator[Request]) -> Iterator[Any]:
    """Batches that others read, who are there until the end of the loop or, if they are to stay, until an error."""
    workers = loader.workers()
    batches = _taken(loader, workers, requests)
    try:
        yield from _ahead(batches) if loader.pin_memory else batches
    except GeneratorExit:  # nobody wants more
        raise
    except BaseException:  # an error, or Ctrl-C
        workers.close()
        raise
    finally:
        if not loader.persistent_workers:
            workers.close()


def _taken(loader: DataLoader, workers: Workers, requests: Iterator[Request]) -> Iterator[Any]:
    """Batches in order. A worker is asked for one more whenever a batch of its was taken."""
    count, prefetch = loader.num_workers, loader.prefetch_factor or 2
    asked: list[deque[Request]] = [deque() for _ in range(count)]

    def ask(number: int) -> None:
        for request in islice(requests, 1):
            asked[number].append(request)
            workers.ask(number, request)

    for turn in range(count * prefetch):
        ask(turn % count)
    ended: set[int] = set()
    for number in cycle(range(count)):
        if number in ended:
            continue
        if not asked[number]:  # there were no more requests when it was its turn
            return
        request = asked[number].popleft()
        batch = workers.take(number)
        if isinstance(batch, Exhausted):
            ended.add(number)
            if len(ended) == count:
                return
            continue
        ask(number)
        yield loader.with_keys(batch, request)


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, the next of which is made before one is given out."""
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if len(held) > 1:
            yield held.pop(0)
    yield from held
