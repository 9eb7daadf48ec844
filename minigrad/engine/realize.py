"""realize: from lazy Nodes to buffers, device by device."""
from __future__ import annotations

from threading import RLock

from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.transfer import cloned
from minigrad.locks import free_in_children
from minigrad.ops.kinds import copying
from minigrad.ops.node import Node
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import resolve

_working = free_in_children(RLock())
"""Held while Nodes are computed: two threads may want the same ones, and assigns overwrite what others read."""


def realize(nodes: list[Node]) -> None:
    """Computes `nodes` together and sets their storage. Nodes of several devices run device by device."""
    with _working:
        waiting = [n for n in nodes if n.storage is None]
        if waiting:
            _compute(waiting)


def _compute(waiting: list[Node]) -> None:
    if copying:
        transfer_copies(waiting)
    for device in dict.fromkeys([n.device for n in waiting]):
        sources = [resolve(n) for n in waiting if n.device == device]
        here = list(dict.fromkeys([n for n in sources if n.storage is None]))
        if here and device == "NUMPY":
            from minigrad.engine.reference import run

            run(here, get_device(device))
            for observer in observers:
                observer.evaluated(device)
        elif here:
            from minigrad.engine.compiled import run_compiled  # scheduling and code generation load on first use

            run_compiled(here, device)
    for n in waiting:
        if n.storage is None:
            n.storage = resolve(n).storage
            if dry_runs:
                dry_runs[-1].give(n)


def transfer_copies(nodes: list[Node]) -> None:
    """Copies between devices are realized first, deepest first: their sources are computed, then moved by the host."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in nodes]
    while stack:
        node, ready = stack.pop()
        if ready:
            if node.storage is None:
                realize([node.inputs[0]])
                node.storage = cloned(node.inputs[0].storage, node.device)
            continue
        if node in seen or node.storage is not None:
            continue
        seen.add(node)
        if node.op.name == "copy":
            stack.append((node, True))
        stack.extend((i, False) for i in node.inputs)
