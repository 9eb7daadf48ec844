"""Random numbers of samples: functions of a seed, an epoch and an index, and of nothing else."""
from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minigrad.errors import ConfigError
from minigrad.random import Generator
from minigrad.random import seed as current_seed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ORDER, DRAW, REPLACED, SPLIT = 1, 2, 3, 4
"""Purposes of numbers: the order of an epoch, the samples' own, samples with replacement, parts of a set."""


def scrambled(bits: np.ndarray) -> np.ndarray:
    """uint64 of any shape to uint64, one to one: the finisher of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def keys_of(seed: int, epoch: int, indices: Sequence[int] | np.ndarray, purpose: int = DRAW) -> np.ndarray:
    """uint64 [len(indices)]: a random number for each sample of an epoch, which no other one has."""
    bits = np.zeros(1, np.uint64)
    for number in (seed, purpose, epoch):
        bits = scrambled(bits ^ np.array([number % (1 << 64)], np.uint64))
    return scrambled(bits ^ np.asarray(indices, np.int64).reshape(-1).astype(np.uint64))


def permutation(seed: int, epoch: int, count: int, purpose: int = ORDER) -> np.ndarray:
    """int64 [count]: 0..count-1 in the random order of an epoch."""
    return np.argsort(keys_of(seed, epoch, np.arange(count), purpose), kind="stable")


def uniform(seed: int, epoch: int, count: int, purpose: int) -> np.ndarray:
    """float64 [count], uniform in [0, 1)."""
    return (keys_of(seed, epoch, np.arange(count), purpose) >> np.uint64(11)) * 2.0 ** -53


def start_generators(key: int) -> None:
    """Starts Python's and numpy's global generators anew."""
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])


@contextmanager
def kept_generators() -> Iterator[None]:
    """Python's and numpy's global generators are afterwards as they were."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def as_seed(op: str, generator: object) -> int:
    """The seed that an argument `generator` stands for: an integer, a Generator of minigrad or numpy, of which one
    number is drawn, or None: that of `minigrad.manual_seed`. Raises ConfigError."""
    if generator is None:
        return current_seed()[0]
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    if isinstance(generator, Generator):
        return generator.draw()
    if isinstance(generator, (int, np.integer)) and not isinstance(generator, bool):
        return int(generator) % (1 << 64)
    raise ConfigError(f"[{op}] expected generator to be a seed, a Generator or a numpy.random.Generator, got "
                      f"{generator!r}")
