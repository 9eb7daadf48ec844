"""Lists of Tensors as arguments and results of a captured function: taken apart, known again, put together quickly."""
from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any
from weakref import ref

import numpy as np

from minigrad.engine.storage import Spares, SpareSets
from minigrad.tensor import Tensor

KEPT = 4
"""Sets of arguments that are known again."""


def lengths_of(keys: tuple) -> tuple[tuple, tuple[int, ...]]:
    """(keys of all Tensors, for each argument how many it holds, -1 for one that is no list) of an arguments' key."""
    flat: list[Any] = []
    lengths = []
    for key in keys:
        if type(key) is tuple and len(key) == 2 and key[0] == "list" and type(key[1]) is tuple:
            flat += key[1]
            lengths.append(len(key[1]))
        else:
            flat.append(key)
            lengths.append(-1)
    return tuple(flat), tuple(lengths)


def taken_apart(args: tuple, lengths: tuple[int, ...]) -> list[Any] | None:
    """What `args` and the lists among them hold, in order; None where they are other ones than `lengths` says."""
    if len(args) != len(lengths):
        return None
    flat: list[Any] = []
    for value, length in zip(args, lengths, strict=True):
        if length < 0:
            flat.append(value)
        elif type(value) is list and len(value) == length:
            flat += value
        else:
            return None
    return flat


class _Set:
    """Tensors that fit while `changes.mark` is `mark` and none of them has died, and what was noted with them."""

    __slots__ = ("mark", "ids", "words", "dead", "refs")

    def __init__(self, tensors: Sequence[Tensor], mark: object, ids: bytes, words: np.ndarray):
        self.mark, self.ids, self.words = mark, ids, words
        self.dead: list[ref] = []
        self.refs = [ref(t, self.dead.append) for t in tensors]


class Known:
    """Sets of Tensors that were found to fit: one fits again while no Tensor was changed (`handles.changes`)."""

    __slots__ = ("_sets", "_pack")

    def __init__(self, count: int) -> None:
        """Each set has `count` Tensors."""
        self._sets: list[_Set] = []
        self._pack = Struct(f"{count}Q").pack

    def fit(self, tensors: Sequence[Any], mark: object) -> np.ndarray | None:
        """What was noted with these very objects, if they are known to fit. `mark` was read before."""
        ids = self._pack(*map(id, tensors))  # bytes are compared at once
        for known in self._sets:
            if known.mark is mark and known.ids == ids and not known.dead:
                return known.words
        return None

    def add(self, tensors: Sequence[Tensor], mark: object, words: np.ndarray) -> None:
        """Notes that these fit, as was found after `mark` was read, with the addresses of their values."""
        known = _Set(tensors, mark, self._pack(*map(id, tensors)), words)
        self._sets = [known, *[s for s in self._sets if not s.dead][:KEPT - 1]]


class Results:
    """A list or tuple of new Tensors, each with memory of its own: `order` says which of the `makers` makes each."""

    __slots__ = ("kind", "spares", "order")

    def __init__(self, kind: type, makers: list[Spares], order: list[int]):
        self.kind, self.spares = kind, SpareSets(makers)
        self.order = None if order == sorted(order) else order

    def together(self, nodes: list[Any]) -> Any:
        """The value, over the leaves that the makers made."""
        made = Tensor._over_each(nodes if self.order is None else [nodes[k] for k in self.order])
        return made if self.kind is list else tuple(made)
