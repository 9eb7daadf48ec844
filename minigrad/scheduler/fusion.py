"""The fusion pass: which Nodes become one kernel (docs/decisions/0014-fusion-in-one-pass.md).

Nodes are met users first. Each one either joins the fusion group of the kernel that uses it, or is materialised: it
becomes the root of a group of its own. What decides is how it is accessed there, as index expressions over the root's
domain:

    constants                          always part of the user
    movement                           likewise, but for a window over what lies scattered in memory
    elementwise                        part of all users if evaluating it there costs less than writing and reading it
    reduction                          at the whole domain: its users are the epilogue
                                       at a prefix of the domain: a definition of the row (softmax, norms)
                                       inside a sum, through movement only: one merged sum (gradients of windows)
                                       else materialised

Every refusal keeps its reason in `Group.reasons`, which `show(stage="kernels")` prints.
"""
from __future__ import annotations

from minigrad.ops.op import Scan
from minigrad.ops.storage import CONST, IOTA
from minigrad.scheduler.cost import keys_read_once, measure_axes, moved, refuse_elementwise, refuse_movement
from minigrad.scheduler.graph import Graph
from minigrad.scheduler.groups import (
    ATTENTIONS,
    Accesses,
    Again,
    Fusion,
    accesses_by_group,
    join,
    peeled,
    start_group,
)
from minigrad.scheduler.rows import host_row, keep_row, refuse_reduction
from minigrad.target import Target

MAX_MEMBERS = 48
"""The most operations of one kernel: bounds its arguments, its compile time and the depth of its expression."""

MAX_ACCESSES = 4


def fuse(graph: Graph, extra: set[int], target: Target, again: Again | None = None) -> Fusion:
    """Fusion groups for everything in the graph; `extra` are further nodes to materialise besides the targets, `again`
    is about those that are computed again."""
    state = Fusion(graph, target, again=again)
    graph.look_around()
    measure_axes(state)
    forced = forced_roots(graph, extra, target)
    for k in reversed(range(len(graph.nodes))):
        kind = graph.kinds[k]
        if kind == "leaf":
            continue
        users = accesses_by_group(state, k)
        why = "it is asked for" if k in forced else refusal(state, k, kind, users)
        if why is None:
            for g, at in users.items():
                join(state, k, kind, g, at)
            continue
        host = host_row(state, k, users) if kind == "reduce" else None
        if host is not None:
            keep_row(state, k, host, users[host])
            continue
        if k not in forced:
            for g in users:
                state.groups[g].reasons.append(f"{graph.nodes[k].op.name}{list(graph.nodes[k].shape)}: {why}")
        start_group(state, k)
    return state


def forced_roots(graph: Graph, extra: set[int], target: Target) -> set[int]:
    """The nodes that must be materialised: targets, operands that effects need in memory, and effects themselves."""
    forced = {peeled(graph, k) for k in (*graph.targets, *extra)}
    for k, node in enumerate(graph.nodes):
        if graph.kinds[k] == "special" or node.op.name == "contiguous":
            forced.add(peeled(graph, k))
            if node.op.name in ("assign", "scatter"):
                forced.add(peeled(graph, graph.inputs[k][0]))
            elif node.op.name == "exchange":
                forced.update(graph.inputs[k])
            elif node.op.name in ATTENTIONS:
                once = keys_read_once(graph, k, target)
                forced.update(moved(graph, i) for i in graph.inputs[k] if i not in once)
            elif type(node.op.lower) is Scan:
                sources = [moved(graph, i) for i in graph.inputs[k]]
                forced.update(i for i in sources if graph.leaf[i] or graph.nodes[i].op not in (CONST, IOTA))
    return forced


def refusal(state: Fusion, k: int, kind: str, users: dict[int, Accesses]) -> str | None:
    """The reason why node `k` cannot be computed inside its users, None if it can."""
    if kind == "free":
        return None
    if kind == "move":
        return refuse_movement(state, k, users)
    if any(state.groups[g].size >= MAX_MEMBERS for g in users):
        return f"its kernel already has {MAX_MEMBERS} operations"
    if any(len(at) > MAX_ACCESSES for at in users.values()):
        return f"it is read at more than {MAX_ACCESSES} places"
    if kind == "reduce":
        if len(users) > 1:
            return f"a reduction with {len(users)} users"
        g, at = next(iter(users.items()))
        return refuse_reduction(state, k, state.groups[g], at)
    return refuse_elementwise(state, k, users)
