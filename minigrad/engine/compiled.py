"""Realizing on a compiled device: look the plan up by structure, or make it; then run it.

In the steady state of a training loop this is: number the graph, hash it, launch.
"""
from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from minigrad.config import current
from minigrad.engine.budget import within_budget
from minigrad.engine.collector import collector_paused
from minigrad.engine.donation import graph_with_assigns
from minigrad.engine.observe import Ran, dry_runs, observers
from minigrad.engine.plan import ExecutionPlan, HandOut, schedule_and_plan
from minigrad.engine.plan_store import plan_key, store_plan, stored_plan
from minigrad.engine.prepared import prepare, run_as, single
from minigrad.engine.stats import stats
from minigrad.engine.tuned import tuned
from minigrad.expr import bounds, variables
from minigrad.interned import remember
from minigrad.ops.kinds import Kind
from minigrad.ops.node import Node, sever
from minigrad.runtime.device import Buffer, Device
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import Graph, bindings, build_graph, expressions, resolve, structure
from minigrad.stores import Store, at_once, store

MAX_PLANS = 1024
plans: dict[tuple | Kind, ExecutionPlan] = {}
"""The plans that are known, by the structure of their graphs (`find_plan`); those of one operation over realized values
also by its Kind (`_note_single`), which `realize` looks up before any graph is made."""
_NONE: frozenset[int] = frozenset()


def run_compiled(targets: list[Node], device: str) -> None:
    """Schedules (or finds the plan), launches, and hands out the buffers."""
    start, schedules, launches = perf_counter(), stats.schedules, stats.launches
    dry = dry_runs[-1] if dry_runs else None
    stays_lazy = dry is not None and dry.keep_inputs
    graph, further, donatable = (build_graph(targets), [], set()) if stays_lazy else graph_with_assigns(targets)
    donated = frozenset([graph.position[n] for n in donatable]) if donatable else _NONE
    plan = find_plan(graph, donated, device) if dry is None else dry.plan(graph, donated, get_device(device))
    values = bindings(graph) if graph.symbolic else {}
    leaves = {k: graph.nodes[k].storage for k in graph.leaves}
    numbers = {k: graph.nodes[k].params["value"] for k in graph.scalars} if graph.scalars else {}
    highest = {}
    if values:
        highest = {v.name: bounds(v)[1] for n in graph.nodes for e in expressions(n) for v in variables(e)}
    stats.nodes += len(graph.nodes)
    planned = perf_counter()
    stats.schedule_s += planned - start
    stores = partial(_handing_out, plan, graph, leaves)
    if dry is None:
        buffers = run_again(plan, leaves, numbers, values, highest, stores)
    else:
        buffers = dry.run(plan, graph, leaves, values, highest)
        at_once(stores(buffers))
    launched = perf_counter()
    stats.launch_s += launched - planned
    if current().debug:
        from minigrad.engine.show import tell_run

        new = stats.schedules > schedules
        tell_run(graph, device, new, stats.launches - launches, planned - start, launched - planned)
    for observer in observers:
        observer.ran(Ran(plan, graph, leaves, numbers, values, highest, buffers))
    if len(leaves) + 1 == len(graph.nodes) and plan.prepared is not None and dry is None:
        _note_single(plan, graph)
    made = [graph.nodes[k] for k in graph.targets]
    for n in further:
        if n.storage is None:
            n.storage = resolve(n).storage
            made.append(n)
    if dry is not None:
        dry.give(made)
    if not stays_lazy:
        for k in graph.assigns:
            if graph.nodes[k].storage is not None:
                sever(graph.nodes[k])


def _handing_out(plan: ExecutionPlan, graph: Graph, leaves: dict[int, Buffer], buffers: list[Any]) -> list[Store]:
    """Stores that give the targets of a graph their storage; donated leaves lose theirs."""
    found: list[Store] = []
    for k in plan.schedule.donated:
        found += store(leaves[k], "version", leaves[k].version + 1), store(graph.nodes[k], "storage", None)
    targets = zip(graph.targets, plan.schedule.outputs, strict=True)
    return [*found, *[store(graph.nodes[k], "storage", buffers[slot]) for k, slot in targets]]


def run_again(plan: ExecutionPlan, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
              highest: dict[str, int], hand_out: HandOut) -> list[Any]:
    """`run_plan`, from the second time on in the form that its device keeps."""
    plan.runs += 1
    if plan.runs == 2 and plan.device.keeps_early:
        plan.prepared = prepare(plan, numbers, values)
    return run_as(plan.prepared, plan, leaves, numbers, values, highest, hand_out)


def _note_single(plan: ExecutionPlan, graph: Graph) -> None:
    """Enters a plan that ran as that of its Node's Kind, if it is one for a Node over realized values of known shapes.

    Of Nodes of one Kind, those that read a value twice have another plan: the one that ran last is found.
    """
    node, settings = graph.nodes[-1], current()
    if node.kind is None or settings.debug or len(plan.made) != 1 or graph.symbolic or graph.scalars or \
            graph.assigns or graph.aliases:
        return
    if plan.single is None:
        plan.single = single(plan, node, settings)
    remember(plans, node.kind, plan, MAX_PLANS)


def forget_plans() -> None:
    """Drops every plan in memory: what code generation decides has changed."""
    plans.clear()


def find_plan(graph: Graph, donated: frozenset[int], device: str) -> ExecutionPlan:
    """The plan for this structure on this device: known, on disk, or made now.

    One from disk that `packs` is made now where somebody who observes wants its kernels, to have constants in panels.
    """
    settings = current()
    kernels = bool(observers) and settings.packed_mb > 0 and any([observer.wants_kernels for observer in observers])
    key = (device, settings.planning, donated, graph.key())
    plan = plans.get(key)
    if plan is not None and not _lacks_kernels(plan, kernels):
        stats.plan_hits += 1
        return plan
    opened = tuned(device)
    with collector_paused():
        stored = plan_key(structure(graph), donated, opened)
        plan = known = stored_plan(stored, opened) if stored is not None else None
        if plan is not None and not _lacks_kernels(plan, kernels):
            stats.plan_loads += 1
        else:
            plan = new_plan(graph, donated, opened)
            if stored is not None and known is None:
                store_plan(stored, plan)
    remember(plans, key, plan, MAX_PLANS)
    return plan


def _lacks_kernels(plan: ExecutionPlan, packed: bool) -> bool:
    """True for a plan from disk whose kernels somebody who observes wants; `packed`: where those read constants."""
    return bool((packed and plan.packs) or (observers and not plan.schedule.steps and any(
        [observer.needs_kernels for observer in observers])))


def new_plan(graph: Graph, donated: frozenset[int], device: Device) -> ExecutionPlan:
    """Schedules, generates code and compiles."""
    before = stats.lower_s + stats.render_s + stats.compile_s
    plan = within_budget(lambda: schedule_and_plan(graph, donated, device))
    if current().debug > 1:
        from minigrad.engine.show import tell_plan

        tell_plan(plan.schedule, device.target, current().debug)
    stats.schedule_s -= stats.lower_s + stats.render_s + stats.compile_s - before
    stats.schedules += 1
    return plan
