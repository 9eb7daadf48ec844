"""The place of a reduction: inside the kernel that uses it, in a row of one of several that use it, or in its own
kernel.

    at the whole domain of its user       the user is its epilogue
    at some variables of it               a definition of the row (softmax, norms)
    inside a sum, through movement only   one merged sum (gradients of windows)

A row may also keep its reductions for others: batch norm's statistics are found by the kernel that normalises, and the
two sums of its gradient by the kernel that makes the gradient, so that what they run over is read once.
"""
from __future__ import annotations

from collections.abc import Collection

from minigrad.errors import quantity
from minigrad.expr import Index, Var
from minigrad.scheduler.cost import cone, cores
from minigrad.scheduler.graph import size
from minigrad.scheduler.groups import Accesses, Fusion, Group, domain_size, is_contraction, used_variables, volume
from minigrad.scheduler.windows import loses_tiles

MAX_ROOTS = 6
"""The most outputs of a row kernel."""


def refuse_reduction(state: Fusion, k: int, group: Group, accesses: Accesses) -> str | None:
    if len(accesses) != 1:
        return f"a reduction read at {quantity(len(accesses), 'place')}"
    at = accesses[0]
    used = used_variables(at)
    domain = frozenset(group.domain)
    if not used <= domain:
        return "a reduction inside another one" if not merges(state, k) or loses_tiles(state, k, at, domain) else None
    plain = [e for e in at if not isinstance(e, int)]
    if any(not isinstance(e, Var) for e in plain) and not bijective(state, k, at, group):
        return "a reduction read through a non-trivial index"
    contraction = is_contraction(state, k)
    if contraction and state.graph.nodes[group.roots[0]].op.name == "scatter":
        return "a contraction, whose elements are put into places"
    if used == domain and state.graph.counts[k] == domain_size(group):
        if group.row is not None:
            return "its users work row by row"
        if (contraction or group.contraction) and group.reductions:
            return "a contraction beside another reduction"
        return None
    if contraction or group.contraction:
        return "a contraction read along a row"
    if any(not isinstance(e, Var) for e in plain):
        return "a row read through a non-trivial index"
    if group.row is not None and group.row != used:
        return "another row"
    if group.row is None and group.reductions:
        return "its users work on the whole domain"
    rows = 1
    for v in used:
        rows *= size(v.hi + 1)
    if rows < 2 * cores(state.target) and domain_size(group) > 1 << 15:
        return f"only {quantity(rows, 'row')} for {quantity(domain_size(group), 'element')}"
    return None


def bijective(state: Fusion, k: int, at: tuple[Index, ...], group: Group) -> bool:
    """True where the reduction's element and the root's element determine each other: reshapes and permutes between."""
    return state.graph.counts[k] == domain_size(group)


def merges(state: Fusion, k: int) -> bool:
    """True for a sum that only movement with zero filling separates from the sum around it."""
    graph = state.graph
    if graph.nodes[k].op.name not in ("sum", "unwindow"):
        return False
    while True:
        if len(graph.users[k]) != 1:
            return False
        k = graph.users[k][0]
        if k in state.group_of and graph.kinds[k] != "reduce":
            return False
        node = graph.nodes[k]
        if graph.kinds[k] == "reduce":
            return node.op.name in ("sum", "unwindow")
        if graph.kinds[k] != "move" or node.params.get("fill", 0) != 0:
            return False


def host_row(state: Fusion, k: int, users: dict[int, Accesses]) -> int | None:
    """The fusion group whose rows find the reduction `k` and keep it for all its users; None where a kernel of its own
    is better.

    The group must read what the reduction reads, and must not need what others compute from the reduction.
    """
    source = state.graph.inputs[k][0]
    for g, at in users.items():
        group = state.groups[g]
        if len(group.roots) >= MAX_ROOTS or not group.domain or state.graph.kinds[group.roots[0]] == "special":
            continue
        if refuse_reduction(state, k, group, at) is not None or not is_row(state, k, group, at[0]):
            continue
        if state.apart(group.roots, [k]):
            continue
        if shares_operand(state, source, group) and not waits_for(state, users, k, g):
            return g
    return None


def is_row(state: Fusion, k: int, group: Group, at: tuple[Index, ...]) -> bool:
    """True where a reduction that may join belongs to a row, not to the whole domain or to another sum, and the rows
    find all of it, not only the part that the fusion group reads."""
    used, count = used_variables(at), state.graph.counts[k]
    return used <= frozenset(group.domain) and count != domain_size(group) and count == volume(tuple(used))


def shares_operand(state: Fusion, source: int, group: Group) -> bool:
    """True where the fusion group reads something in memory, of half its domain at least, that the reduction reads."""
    enough = domain_size(group)
    read = {i for i in cone(state, source)[1] if 2 * state.graph.counts[i] >= enough}
    return bool(read) and any(i in read for root in group.roots for j in state.graph.inputs[root]
                              for i in cone(state, j)[1])


def waits_for(state: Fusion, readers: Collection[int], k: int, g: int) -> bool:
    """True where fusion group `g` needs, directly or through others, another one of the groups that read node `k`.

    A group waits for all that it reads, also for operands of only its other outputs. What is decided after `k` adds no
    way back here: it reads Nodes that stand before `k`.
    """
    stack, seen = [g], {g}
    while stack:
        for m in state.groups[stack.pop()].members:
            for i in state.graph.inputs[m]:
                made = state.group_of.get(i) if i > k else None
                if made is None or made in seen:
                    continue
                if made in readers:
                    return True
                seen.add(made)
                stack.append(made)
    return False


def keep_row(state: Fusion, k: int, g: int, at: Accesses) -> None:
    """Makes the reduction a definition of the fusion group's rows and one of its outputs."""
    group = state.groups[g]
    group.members[k] = at
    group.row = used_variables(at[0])
    group.roots.append(k)
    state.group_of[k] = g
