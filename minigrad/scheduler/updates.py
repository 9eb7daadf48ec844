"""Updates of a target that are a kernel less than they say: scatters that are assigned to what they scatter into.

    x[places] = y:   s = scatter(x, places, y); x' = assign(x, s)     ->     x' = scatter(x, places, y), where x lies
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from minigrad.codegen.lowering.lower import Lowered, lower_group
from minigrad.errors import present
from minigrad.ops import storage
from minigrad.ops.node import Node, apply
from minigrad.scheduler.groups import Fusion, peeled
from minigrad.scheduler.merge import covers


def assigned_to(state: Fusion, g: int, k: int, readers: Collection[int]) -> int:
    """The group of the assign that is all that a scatter, position `k` of group `g`, is for, where it replaces the
    whole of the scatter's own target; else `g`. `readers` are the groups that read the scatter."""
    graph = state.graph
    group = next(iter(readers)) if len(readers) == 1 else g
    if graph.nodes[k].op.name != "scatter" or group == g or len(state.groups[group].roots) != 1:
        return g
    update, = state.groups[group].roots
    if graph.nodes[update].op.name != "assign" or not covers(state, update):
        return g
    target, value = [peeled(graph, i) for i in graph.inputs[update]]
    return group if value == k and target == peeled(graph, graph.inputs[k][0]) else g


def lower_copy(source: Node, node: Node) -> Lowered:
    """The kernel that copies a buffer element by element."""
    same = apply(storage.CONTIGUOUS, source)
    lowered = present(lower_group((same,), lambda n: n is source, "copy"), "[schedule] expected a kernel that copies")
    return replace(lowered, nodes=(node, *lowered.nodes[1:]))
