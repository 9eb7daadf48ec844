"""One operation over realized values, realized again and again: its plan is found by the Node's Kind alone.

    for batch in batches: y = (batch @ w).realize()

The graph of such a Node is the Node and its inputs. None is numbered, and no key is made, which took half of what the
host did for a product of small matrices.
"""
from __future__ import annotations

from time import perf_counter
from typing import Any

from minigrad.config import Config, current
from minigrad.engine.direct import Direct, direct
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.plan import ExecutionPlan, number
from minigrad.engine.prepared import PreparedPlan
from minigrad.engine.stats import stats
from minigrad.engine.storage import allocate
from minigrad.ops.node import Node
from minigrad.runtime.host import address_of
from minigrad.scheduler.graph import Graph

MOST = 512


def note_single(plan: ExecutionPlan, graph: Graph, settings: Config) -> None:
    """Remembers a plan that ran with these settings, if it is one for a Node over realized values of known shapes."""
    node = graph.nodes[-1]
    if type(plan.prepared) is not PreparedPlan or len(graph.leaves) + 1 != len(graph.nodes) or len(plan.made) != 1 or \
            graph.symbolic or graph.scalars or graph.assigns or graph.aliases or node.kind is None or settings.debug:
        return
    if len(direct) >= MOST:
        direct.clear()
    direct[node.kind] = _single(plan, plan.prepared, node, settings)


def _single(plan: ExecutionPlan, prepared: PreparedPlan, node: Node, settings: Config) -> Direct:
    """A run of a plan for Nodes of this one's Kind, of whose inputs as many are the same."""
    inputs = list(dict.fromkeys(node.inputs))
    count, pattern = len(inputs), _pattern(node)
    repeats = count < len(pattern)
    places = {**dict(plan.read), plan.made[0]: count}  # leaves are numbered in the order of inputs
    slots, order = prepared.lasting, [places[k] for k in prepared.lasting]
    device, nbytes, planning = plan.device, number(plan.sizes[plan.made[0]], {}), settings.planning
    none: dict[Any, Any] = {}

    def run(node: Node) -> bool:
        if observers or dry_runs:
            return False
        now = current()
        if now is not settings and (now.planning != planning or now.debug):
            return False
        inputs: Any = node.inputs
        if len({*inputs}) != count:
            return False
        if repeats:
            if _pattern(node) != pattern:
                return False
            inputs = dict.fromkeys(inputs)
        held = [i.storage for i in inputs]
        if None in held:
            return False
        start = perf_counter()
        made = allocate(device, nbytes)
        held.append(made)
        addresses = [b.address or address_of(b) for b in held]
        prepared.run_patched(slots, [addresses[k] for k in order], none, none, none, now.threads)
        node.storage = made
        stats.nodes += count + 1
        stats.plan_hits += 1
        stats.launch_s += perf_counter() - start
        return True

    return run


def _pattern(node: Node) -> list[int]:
    """The position among the inputs where each input stands first: equal for Nodes that read the same ones twice."""
    return list(map(node.inputs.index, node.inputs))
