"""Sibling reductions: kernels that run over the same space and read the same operand become one with several outputs.

Batch norm's mean and variance, and the two sums of its gradient, each read a whole activation once instead of twice.
"""
from __future__ import annotations

from minigrad.scheduler.fusion import Fusion, Group
from minigrad.scheduler.graph import numel


def merge_siblings(state: Fusion) -> None:
    """Merges what it may, smallest group number first, so that the result is deterministic."""
    buckets: dict[tuple, list[int]] = {}
    for g, group in enumerate(state.groups):
        key = reduction_space(state, group)
        if key is not None:
            buckets.setdefault(key, []).append(g)
    for candidates in buckets.values():
        for i, a in enumerate(candidates):
            for b in candidates[i + 1:]:
                if state.groups[a].roots and state.groups[b].roots and may_merge(state, a, b):
                    merge(state, a, b)


def reduction_space(state: Fusion, group: Group) -> tuple | None:
    """(output shape, input shape, axes) of a group that is one plain reduction, else None."""
    if len(group.roots) != 1 or group.reductions != group.roots or group.contraction or group.row is not None:
        return None
    root = group.roots[0]
    node = state.graph.nodes[root]
    if "axes" not in node.params:
        return None
    return node.shape, state.graph.nodes[state.graph.inputs[root][0]].shape, node.params["axes"], node.device


def dependencies(state: Fusion, g: int) -> set[int]:
    """Groups whose roots group `g` reads."""
    found = {state.group_of[i] for m in state.groups[g].members for i in state.graph.inputs[m] if i in state.group_of}
    return found - {g}


def ancestors(state: Fusion) -> list[int]:
    """Bit sets of everything each group needs, directly or not."""
    result = [0] * len(state.groups)
    done = [False] * len(state.groups)
    for start in range(len(state.groups)):
        stack = [(start, False)]
        while stack:
            g, ready = stack.pop()
            if done[g]:
                continue
            needs = dependencies(state, g) if state.groups[g].roots else set()
            if ready:
                for d in needs:
                    result[g] |= result[d] | 1 << d
                done[g] = True
            else:
                stack.append((g, True))
                stack += [(d, False) for d in needs if not done[d]]
    return result


def may_merge(state: Fusion, a: int, b: int) -> bool:
    """They share a large operand, and no path leads from one to the other through a third group."""
    shared = operands(state, a) & operands(state, b)
    space = numel(state.graph.nodes[state.graph.inputs[state.groups[a].roots[0]][0]].shape)
    if not any(2 * numel(state.graph.nodes[k].shape) >= space for k in shared):
        return False
    above = ancestors(state)
    for x, y in ((a, b), (b, a)):
        if above[y] >> x & 1 and any(above[d] >> x & 1 for d in dependencies(state, y) - {x}):
            return False
    return True


def operands(state: Fusion, g: int) -> set[int]:
    """Materialised nodes and leaves that a group reads."""
    graph = state.graph
    return {i for m in state.groups[g].members for i in graph.inputs[m]
            if graph.leaf[i] or (i in state.group_of and state.group_of[i] != g)}


def merge(state: Fusion, a: int, b: int) -> None:
    """Joins two groups; the one that needs the other comes first, as its lowering meets the other's reduction."""
    first, second = (b, a) if a in dependencies(state, b) else (a, b)
    keep, gone = state.groups[first], state.groups[second]
    keep.roots += gone.roots
    keep.reductions += gone.reductions
    keep.members.update(gone.members)
    keep.size += gone.size
    for k in gone.roots:
        state.group_of[k] = first
    for m in gone.members:
        inside = state.inside.get(m)
        if inside and second in inside:
            inside.discard(second)
            inside.add(first)
    state.groups[second] = Group([], ())
