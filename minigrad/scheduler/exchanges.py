"""Exchanges of a schedule: values that processes combine while kernels go on (ops/exchange.py)."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from minigrad.errors import InternalError
from minigrad.scheduler.graph import Graph


@dataclass(frozen=True, slots=True)
class Exchange:
    """Values that are combined with those of other processes once all of them are there, and before somebody reads
    them: their slots and shapes, their dtype by name, and the params of the operation."""

    slots: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    how: str
    channel: int


def exchange_of(graph: Graph, k: int, slot: Callable[[int], int], others: Iterable[Exchange]) -> Exchange:
    """The exchange that Node k begins, with its operands in their slots, which no other exchange may have."""
    node, slots = graph.nodes[k], tuple([slot(i) for i in graph.inputs[k]])
    taken = {s for e in others for s in e.slots}
    if len(set(slots)) < len(slots) or not taken.isdisjoint(slots):
        raise InternalError(f"[schedule] {node} must not share its operands with another exchange")
    shapes: Any = tuple([n.shape for n in node.inputs])
    return Exchange(slots, shapes, node.inputs[0].dtype.name, **node.params)
