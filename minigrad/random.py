"""The state of random numbers: a seed and a counter. Numbers depend on nothing else.

Each random tensor takes the next value of the counter when its graph is built, so that neither the order of realization
nor the device changes it. A captured step replays with the counter it is entered with plus its own offsets.
"""
from __future__ import annotations

import operator
import os
from random import Random
from threading import Lock
from typing import Self

from minigrad.dtype import DType, float32, float64, uint32, uint64
from minigrad.errors import MinigradError
from minigrad.locks import free_in_children
from minigrad.ops import build as B
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape
from minigrad.ops.storage import RANDOM_BITS


class _State:
    def __init__(self) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.counter = 0
        self.starts = 0
        self.lock = free_in_children(Lock())


_state = _State()


def manual_seed(seed: int = 0) -> None:
    """Starts the sequence of random tensors that belongs to `seed`, an integer in 0..2**64-1."""
    given = _checked(seed)
    with _state.lock:
        _state.seed, _state.counter = given, 0
        _state.starts += 1


def _checked(seed: int) -> int:
    try:
        given = operator.index(seed)
    except TypeError:
        given = -1
    if not 0 <= given < 1 << 64:
        raise MinigradError(f"[manual_seed] expected a seed in 0..2**64-1, got {seed!r}")
    return given


class Generator:
    """Random numbers of a seed of its own, for the argument `generator` of loaders, samplers and splits. `device` is
    there for PyTorch's sake: such numbers are drawn by the host."""

    def __init__(self, device: object = None):
        del device
        self.manual_seed(int.from_bytes(os.urandom(8), "little"))

    def manual_seed(self, seed: int) -> Self:
        """Starts its sequence anew, with a seed in 0..2**64-1; returns itself."""
        self._seed = _checked(seed)
        self._numbers = Random(self._seed)
        return self

    def initial_seed(self) -> int:
        """The seed that its sequence began with."""
        return self._seed

    def draw(self) -> int:
        """The next number, in 0..2**63-1."""
        return self._numbers.getrandbits(63)


def counter() -> int:
    """The number of random tensors that were made since the seed was set."""
    return _state.counter


def seed() -> tuple[int, int]:
    """The seed in force, and how often one was set, by which a capture sees that it was set meanwhile."""
    return _state.seed, _state.starts


def advance(count: int) -> int:
    """Takes `count` values of the counter and returns the first."""
    with _state.lock:
        first = _state.counter
        _state.counter += count
        return first


def rewind(position: int) -> None:
    """Sets the counter back, to draw the same numbers again."""
    with _state.lock:
        _state.counter = position


def random_bits(shape: Shape, device: str) -> Node:
    """uint32 Node of fresh random bits."""
    key = B.scalar(_state.seed, "key", uint64, device)
    position = B.scalar(advance(1), "counter", uint32, device)
    return apply(RANDOM_BITS, key, position, extents=shape)


def uniform(shape: Shape, dtype: DType, device: str) -> Node:
    """Uniform in [0, 1): as many top bits as the type holds (float64: 32) over their range, so 1 never comes out."""
    bits = random_bits(shape, device)
    kept = {"float64": 32, "float32": 24, "float16": 11}.get(dtype.name, 8)
    top = B.shr(bits, B.full_like(bits, 32 - kept)) if kept < 32 else bits
    wide = B.cast(top, float64 if dtype is float64 else float32)
    return B.cast(B.mul(wide, B.full_like(wide, 2.0 ** -kept)), dtype)
