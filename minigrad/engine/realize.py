"""realize: from lazy Nodes to buffers, device by device."""
from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from minigrad.engine.direct import direct
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
        if len(waiting) == 1:
            run = direct.get(waiting[0].kind)
            if run is not None and run(waiting[0]):
                return
        if waiting:
            _compute(waiting)


def _compute(waiting: list[Node]) -> None:
    if copying:
        transfer_copies(waiting)
    for device in {n.device: None for n in waiting}:  # in order
        here = {resolve(n): None for n in waiting if n.device == device}
        _run([n for n in here if n.storage is None], device)
    for n in waiting:
        if n.storage is None:
            n.storage = resolve(n).storage
            if dry_runs:
                dry_runs[-1].give(n)


def _run(targets: list[Node], device: str) -> None:
    if targets and device == "NUMPY":
        from minigrad.engine.reference import run

        run(targets, get_device(device))
        for observer in observers:
            observer.evaluated(device)
    elif targets:
        run_compiled = _compiled or _load_compiled()
        run_compiled(targets, device)


_compiled: Callable[[list[Node], str], None] | None = None


def _load_compiled() -> Callable[[list[Node], str], None]:
    """Loads scheduling and code generation on first use, once: the import statement takes 0.4 us each time."""
    global _compiled
    from minigrad.engine.compiled import run_compiled

    _compiled = run_compiled
    return run_compiled


def transfer_copies(nodes: list[Node]) -> None:
    """Realizes copies between devices first, deepest first: their sources are computed, then moved by the host."""
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
