"""Lists of Tensors as arguments and results of a captured function: taken apart, known again, put together quickly."""
from __future__ import annotations

from collections.abc import Sequence
from operator import call, is_
from typing import Any
from weakref import ref

from minigrad.engine.storage import Spares
from minigrad.handles import changes
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


class Known:
    """Sets of Tensors that were found to fit: one fits again while no Tensor was changed (`handles.changes`)."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: list[tuple[object, list[ref[Tensor]]]] = []

    def fit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these very Tensors are known to fit."""
        mark = changes.mark
        return any([known is mark and all(map(is_, map(call, refs), tensors)) for known, refs in self._sets])

    def add(self, tensors: Sequence[Tensor], mark: object) -> None:
        """Notes that these fit, as was found after `mark` was read."""
        self._sets = [(mark, [ref(t) for t in tensors]), *self._sets[:KEPT - 1]]


class Results:
    """A list or tuple of new Tensors, each with memory of its own: `order` says which of the `makers` makes each."""

    __slots__ = ("kind", "makers", "order")

    def __init__(self, kind: type, makers: list[Spares], order: list[int]):
        self.kind, self.makers, self.order = kind, makers, order

    def together(self, nodes: list[Any]) -> Any:
        """The value, over the leaves that the makers made."""
        over = Tensor._over
        made = [over(nodes[k]) for k in self.order]
        return made if self.kind is list else tuple(made)
