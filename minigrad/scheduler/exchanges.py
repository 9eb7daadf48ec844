"""Exchanges of a schedule: values that processes combine while kernels go on (ops/exchange.py)."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.errors import InternalError
from minigrad.ops.node import Node


@dataclass(frozen=True, slots=True)
class Exchange:
    """Values that are combined with those of other processes once all of them are there, and before somebody reads
    them: their slots and shapes, their dtype by name, and the params of the operation."""

    slots: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    how: str
    channel: int


def exchange_of(node: Node, slots: Sequence[int], others: Iterable[Exchange]) -> Exchange:
    """The exchange that a Node begins, with its operands in these slots, which no other exchange may have."""
    taken = {s for e in others for s in e.slots}
    if len(set(slots)) < len(slots) or not taken.isdisjoint(slots):
        raise InternalError(f"[schedule] {node} must not share its operands with another exchange")
    shapes: Any = tuple([n.shape for n in node.inputs])
    return Exchange(tuple(slots), shapes, node.inputs[0].dtype.name, **node.params)
