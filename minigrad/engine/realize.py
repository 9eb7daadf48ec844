"""realize: from lazy Nodes to buffers, device by device."""
from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.transfer import cloned
from minigrad.locks import free_in_children
from minigrad.ops import build as B
from minigrad.ops.kinds import copying
from minigrad.ops.movement import EXPAND, RESHAPE
from minigrad.ops.node import Node, apply
from minigrad.ops.storage import ALIASES, CONST, CONTIGUOUS
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import resolve

working = free_in_children(RLock())
"""Held while Nodes are computed, which two threads may want, and while a value that assigns overwrite is looked up."""


def realize(nodes: list[Node]) -> None:
    """Computes `nodes` together, device by device, and sets their storage, unless somebody only wants their graph."""
    if dry_runs and dry_runs[-1].only_graphs:
        return
    with working:
        waiting = [n for n in nodes if n.storage is None]
        if len(waiting) == 1:
            plan = _plans.get(waiting[0].kind)
            if plan is not None and plan.single(waiting[0]):
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
                dry_runs[-1].give([n])


def _run(targets: list[Node], device: str) -> None:
    if targets and device == "NUMPY":
        from minigrad.engine.reference import run

        run(targets, get_device(device))
        for observer in observers:
            observer.evaluated(device)
    elif targets:
        (_compiled or _load_compiled())(targets, device)


_compiled: Callable[[list[Node], str], None] | None = None
_plans: dict[Any, Any] = {}
"""The cache of plans, `compiled.plans`, once that is loaded."""


def _load_compiled() -> Callable[[list[Node], str], None]:
    """Loads scheduling and code generation on first use, once: the import statement takes 0.4 us each time."""
    global _compiled, _plans
    from minigrad.engine.compiled import plans, run_compiled

    _compiled, _plans = run_compiled, plans
    return run_compiled


def copy_of_constant(node: Node) -> Node | None:
    """A copy that is computed in place of a constant that is asked for, so that graphs with equal constants go on to
    know their number; None for any other Node."""
    while node.op in ALIASES and node.storage is None:
        node = node.inputs[0]
    if node.storage is not None or not (node.op is CONST or node.op is EXPAND or node.op is RESHAPE):
        return None
    return apply(CONTIGUOUS, node) if B.number_of(node) is not None else None


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
