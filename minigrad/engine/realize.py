"""realize: from lazy Nodes to buffers. Look the plan up by structure, or make it; then run it.

In the steady state of a training loop this is: number the graph, hash it, launch.
"""
from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from minigrad.engine.observe import Ran, observers
from minigrad.engine.plan import ExecutionPlan, make_plan, run_plan
from minigrad.engine.stats import stats
from minigrad.engine.storage import allocate
from minigrad.engine.transfer import canonical_device, download, upload, wrap
from minigrad.expr import bounds, variables
from minigrad.handles import live
from minigrad.ops.node import Node, sever
from minigrad.runtime.device import Buffer
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import ALIASES, Graph, bindings, build_graph, expressions, resolve, structure
from minigrad.scheduler.schedule import schedule

__all__ = ["canonical_device", "download", "realize", "upload", "wrap"]

MAX_PLANS = 512
_plans: dict[tuple, ExecutionPlan] = {}


def realize(nodes: list[Node]) -> None:
    """Computes `nodes` together and sets their storage. Nodes of several devices run device by device."""
    waiting = [n for n in nodes if n.storage is None]
    if not waiting:
        return
    transfer_copies(waiting)
    for device in dict.fromkeys(n.device for n in waiting):
        here = list(dict.fromkeys(resolve(n) for n in waiting if n.device == device and resolve(n).storage is None))
        if here and device == "NUMPY":
            from minigrad.engine.reference import run

            run(here, get_device(device))
            for observer in observers:
                observer.evaluated(device)
        elif here:
            run_compiled(here, device)
    for n in waiting:
        if n.storage is None:
            n.storage = resolve(n).storage


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


def cloned(source: Buffer, device: str | None = None) -> Buffer:
    """The same bytes in a new buffer, on another device if one is named."""
    host = np.empty(source.nbytes, np.uint8)
    target = allocate(source.device if device is None else get_device(device), source.nbytes)
    if source.nbytes:
        source.device.copy_out(source, host)
        target.device.copy_in(target, host)
    for observer in observers:
        observer.copied(source, target)
    return target


# ---- donation: which buffers an assign may overwrite (ALGORITHMS 9) ----


def outside_references(roots: list[Node]) -> tuple[list[Node], dict[int, int]]:
    """All unrealized Nodes that `roots` reach with their realized inputs, and how often each is held from outside.

    Outside means: neither by a Node among them nor by this function; a Tensor, or a Node of another graph.
    """
    order: list[Node] = []
    inside: dict[int, int] = {}
    marked: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in marked:
            continue
        marked.add(id(node))
        order.append(node)
        if node.storage is None:
            for i in node.inputs:
                inside[id(i)] = inside.get(id(i), 0) + 1
                if id(i) not in marked:
                    stack.append(i)
    node = i = None  # type: ignore[assignment]
    outside = {}
    for k in range(len(order)):
        outside[id(order[k])] = sys.getrefcount(order[k]) - inside.get(id(order[k]), 0) - _OWN_REFERENCES
    return order, outside


_OWN_REFERENCES = 2
"""What the count above itself holds of a Node: the list and the call's argument. Calibrated below."""


def _calibrate() -> int:
    """References that `outside_references` holds itself, measured on a Node that nothing else holds."""
    inner = Node()
    inner.storage, inner.inputs = object(), ()
    outer = Node()
    outer.storage, outer.inputs = None, (inner,)
    key = id(inner)
    del inner
    return outside_references([outer])[1][key] + _OWN_REFERENCES


_OWN_REFERENCES = _calibrate()


def plan_assigns(targets: list[Node]) -> tuple[list[Node], set[Node]]:
    """(further targets, donatable leaves) where the graph has assigns.

    A leaf is donatable when no Tensor and no Node outside this graph reads it. What the user holds and would have to
    compute later from a donated leaf, and every assign that the user holds, is computed now.
    """
    order, outside = outside_references(targets)
    if not any(n.op.name == "assign" and n.storage is None for n in order):
        return [], set()
    beside = lazy_readers(order, targets[0].device)
    if beside:
        del order, outside  # a second list of the Nodes would be counted as another holder
        order, outside = outside_references([*targets, *beside])
    asked = {*targets, *beside}
    donatable: set[Node] = set()
    for a in order:
        if a.op.name == "assign" and a.storage is None:
            leaf = overwritten_leaf(a, outside)
            if leaf is not None:
                donatable.add(leaf)
    readers = dependants(order, donatable)
    held = [n for n in order if outside[id(n)] > 0 and n not in asked and n.storage is None
            and (n in readers or n.op.name == "assign")]
    return beside + held, donatable


def overwritten_leaf(assign: Node, outside: dict[int, int]) -> Node | None:
    """The realized Node that an assign may overwrite, if nobody else holds it; it gets a buffer of its own for that."""
    old = assign.inputs[0]
    while old.op.name in ALIASES and old.storage is None:
        if outside[id(old)] > 0:
            return None
        old = old.inputs[0]
    if old.storage is None or outside[id(old)] > 0:
        return None
    if sys.getrefcount(old.storage) > 2:
        old.storage = cloned(old.storage)
    return old


def lazy_readers(order: list[Node], device: str) -> list[Node]:
    """Lazy values held by Tensors beside this graph that read what its assigns replace, and share most of its work.

    A loss that was differentiated and is printed after the step, for one: computing it now costs little, later the
    whole forward pass and a second copy of every parameter.
    """
    known = {id(n) for n in order}
    replaced: set[Node] = set()
    for a in order:
        if a.op.name == "assign" and a.storage is None:
            replaced.update(chain(a.inputs[0]))
    readers = {id(n) for n in dependants(order, replaced)} | {id(n) for n in replaced}
    found: list[Node] = []
    limit = max(64, len(order) // 4)
    for tensor in live():
        node = tensor._node
        if id(node) in known or node.device != device or resolve(node).storage is not None:
            continue
        fresh, reads, stack, seen = 0, False, [node], {id(node)}
        while stack and fresh <= limit:
            n = stack.pop()
            if id(n) in known:
                reads |= id(n) in readers
                continue
            fresh += 1
            for i in n.inputs if n.storage is None else ():
                if id(i) not in seen:
                    seen.add(id(i))
                    stack.append(i)
        if reads and fresh <= limit:
            found.append(node)
    return list(dict.fromkeys(found))


def chain(node: Node) -> list[Node]:
    """A Node and what it is an alias of."""
    found = [node]
    while node.op.name in ALIASES and node.storage is None:
        node = node.inputs[0]
        found.append(node)
    return found


def dependants(order: list[Node], leaves: set[Node]) -> set[Node]:
    """The unrealized Nodes of `order` that need any of `leaves`."""
    users: dict[int, list[Node]] = {}
    for n in order:
        if n.storage is None:
            for i in n.inputs:
                users.setdefault(id(i), []).append(n)
    found: set[Node] = set()
    stack: list[Node] = list(leaves)
    while stack:
        for u in users.get(id(stack.pop()), ()):
            if u not in found:
                found.add(u)
                stack.append(u)
    return found


# ---- compiled devices ----


def run_compiled(targets: list[Node], device: str) -> None:
    """Schedules (or finds the plan), launches, and hands out the buffers."""
    start = perf_counter()
    further, donatable = plan_assigns(targets)
    wanted = list(dict.fromkeys([*targets, *(resolve(n) for n in further if resolve(n).storage is None)]))
    graph = build_graph(wanted)
    donated = frozenset(graph.position[n] for n in donatable if n in graph.position)
    plan = find_plan(graph, donated, device)
    values = bindings(graph)
    leaves = {k: n.storage for k, n in enumerate(graph.nodes) if graph.leaf[k]}
    numbers = {k: n.params["value"] for k, n in enumerate(graph.nodes) if n.op.name == "scalar" and not graph.leaf[k]}
    highest = {}
    if values:
        highest = {v.name: bounds(v)[1] for n in graph.nodes for e in expressions(n) for v in variables(e)}
    stats.nodes += len(graph.nodes)
    stats.schedule_s += perf_counter() - start
    start = perf_counter()
    buffers = run_plan(plan, leaves, numbers, values, highest)
    stats.launch_s += perf_counter() - start
    for observer in observers:
        observer.ran(Ran(plan, graph, leaves, numbers, values, highest, buffers))
    for k in plan.schedule.donated:
        graph.nodes[k].storage = None
    for node, slot in zip(wanted, plan.schedule.outputs, strict=True):
        node.storage = buffers[slot]
    for n in further:
        if n.storage is None:
            n.storage = resolve(n).storage
    for node in wanted:
        if node.op.name == "assign":
            sever(node)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: scheduling makes many small objects, none of them in cycles, a third of whose
    time would go into looking for cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def find_plan(graph: Graph, donated: frozenset[int], device: str) -> ExecutionPlan:
    """The plan for this structure on this device, made on first sight."""
    key = (device, donated, structure(graph))
    plan = _plans.get(key)
    if plan is not None:
        stats.plan_hits += 1
        return plan
    opened = get_device(device)
    before = perf_counter(), stats.lower_s + stats.render_s + stats.compile_s
    with collector_paused():
        plan = make_plan(schedule(graph, donated, opened.target), opened)
    inside = stats.lower_s + stats.render_s + stats.compile_s - before[1]
    stats.schedule_s -= inside
    stats.schedules += 1
    if len(_plans) >= MAX_PLANS:
        del _plans[next(iter(_plans))]
    _plans[key] = plan
    return plan
