"""Running statistics that layers have moved and that are not computed yet: an optimizer's step does it in its plan, so
that a graph of all batches so far does not grow behind them."""
from __future__ import annotations

from threading import local
from weakref import ref

from minigrad.tensor import Tensor


class _Moved(local):
    """A thread's own, as Nodes are."""

    def __init__(self) -> None:
        self.tensors: dict[int, ref[Tensor]] = {}


_moved = _Moved()


def note_moved(*statistics: Tensor) -> None:
    """Says that these have new values."""
    for t in statistics:
        _moved.tensors[id(t)] = ref(t)


def take_moved() -> list[Tensor]:
    """Those with new values that still live; they are forgotten."""
    found = [t for t in [r() for r in _moved.tensors.values()] if t is not None]
    _moved.tensors.clear()
    return found
