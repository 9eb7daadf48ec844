"""Bounds on lazy graphs: in Nodes, and in bytes of what they alone keep in memory.

    total = total + loss(batch)         a thousand batches of which nobody reads the total: each stays in memory

A graph that has grown too long is realized when the next operation is added to it. One that keeps too much is realized
when further data is made (`keepers`), which is where memory grows: what is added up is small, and lets go of the rest.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigrad.config import current
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.stats import stats
from minigrad.ops.node import Node, live_count, toposort
from minigrad.ops.op import Composite
from minigrad.scheduler.graph import bytes_of

MAX_UNREALIZED = 16_000
"""Nodes of one handle's graph; longer ones are realized when they are made."""

COMPOSITE = 3
"""The number of Nodes that a composite counts as."""

LOOKS = 4
"""The number of times that graphs are looked at while memory grows by as much as they may keep."""


def is_long(root: Node) -> bool:
    """True where a graph has more Nodes than it may."""
    if live_count() * COMPOSITE <= MAX_UNREALIZED:
        return False
    seen: set[Node] = {root}
    stack, size = [root], 0
    while stack:
        node = stack.pop()
        if node.storage is None:
            fresh = [i for i in node.inputs if i not in seen]
            seen.update(fresh)
            stack.extend(fresh)
            size += COMPOSITE if type(node.op.lower) is Composite else 1
            if size > MAX_UNREALIZED:
                return True
    return False


class Pressure:
    """`mark`: bytes of realized values from which graphs are looked at again."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark = 0


pressure = Pressure()


def expect_growth() -> None:
    """Looks at graphs again when memory has grown by a part of what they may keep."""
    pressure.mark = stats.mem_used + (current().lazy_mb << 20) // LOOKS


def keepers(tensors: Iterable[Any]) -> list[Any]:
    """Those Tensors that are to be realized, as their graphs keep more in memory than `config.lazy_mb`: their own
    values are small beside it. None while a capture or a dry run goes on, of which a realize would be a part."""
    limit = current().lazy_mb << 20
    if not limit or observers or dry_runs:
        return []
    expect_growth()
    if stats.mem_used <= limit:
        return []
    known = list(tensors)
    held = {t.node for t in known if t.node.storage is not None}
    lazy = [t for t in known if t.node.storage is None and not t.needs_grad]
    kept: dict[Node, int] = {}  # bytes of the largest value below a Node that no Tensor holds
    for node in toposort(*dict.fromkeys([t.node for t in lazy])):
        if node.storage is None:
            kept[node] = max([kept[i] for i in node.inputs], default=0)
        else:
            kept[node] = 0 if node in held else node.storage.nbytes
    found = [t for t in lazy if 2 * bytes_of(t.node) <= kept[t.node]]
    leaves = [n for n in toposort(*dict.fromkeys([t.node for t in found])) if n.storage is not None and n not in held]
    return found if sum([n.storage.nbytes for n in leaves]) > limit else []
