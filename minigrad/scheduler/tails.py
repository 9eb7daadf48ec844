"""Tails: a reduction over rows of what an elementwise kernel has just stored, found while the row is in the cache.

    for i0<N, i1<C:
      for i2<H, i3<W:
        o0[i0, i1, i2, i3] = silu(...)
      o1[i0, i1] = sum(r0<H, r1<W: o0[i0, i1, r0, r1]) / n         squeeze-excite's pooling

The kernel reads its own output, which saves reading that from memory again, and one launch.
"""
from __future__ import annotations

from minigrad.expr import Index, Var
from minigrad.scheduler.cost import cores
from minigrad.scheduler.graph import size
from minigrad.scheduler.groups import Fusion, Group, operand_accesses, used_variables, volume
from minigrad.scheduler.merge import Merger
from minigrad.scheduler.rows import MAX_ROOTS


def merge_tails(state: Fusion, merger: Merger) -> None:
    """Joins every reduction to the fusion group that makes its operand, where that is possible."""
    if state.target.is_gpu and not state.target.has_groups:
        return  # a work-item per row would be too few, and several cannot wait for each other
    for g in range(len(state.groups)):
        source = operand_of(state, merger, g)
        if source is None:
            continue
        maker = state.group_of[source]
        if source == state.groups[maker].roots[0] and may_follow(state, merger, g, maker):
            where = state.groups[g].members[state.groups[g].roots[0]][0]
            root = state.groups[g].roots[0]
            merger.join(maker, g)
            state.groups[maker].tails[root] = where


def operand_of(state: Fusion, merger: Merger, g: int) -> int | None:
    """The one materialised value that all reductions of a fusion group run over; None for other groups."""
    group, graph = state.groups[g], state.graph
    if len(group.roots) != 1 or not group.reductions or group.contraction or group.row is not None:
        return None
    if graph.kinds[group.roots[0]] not in ("elementwise", "reduce"):
        return None
    below = {graph.inputs[k][0] for k in group.reductions}
    source = below.pop() if len(below) == 1 else None
    if source is not None and source not in state.group_of and state.target.is_gpu:
        source = computed_from(state, group, source)
    return source if source in state.group_of and source in merger.operands(g) else None


def computed_from(state: Fusion, group: Group, value: int) -> int | None:
    """The one materialised value as large as `value` that it is computed from in its fusion group, None where there is
    none.

    A GPU computes activations again rather than have them stored; a processor has them stored, at its costs.
    """
    graph, found, stack, seen = state.graph, set(), [value], {value}
    while stack:
        k = stack.pop()
        if k in state.group_of and k not in group.members:
            if graph.counts[k] == graph.counts[value]:
                found.add(k)
        elif k in group.members:
            stack += [i for i in graph.inputs[k] if i not in seen]
            seen.update(graph.inputs[k])
    return found.pop() if len(found) == 1 else None


def may_follow(state: Fusion, merger: Merger, g: int, maker: int) -> bool:
    """True where fusion group `g` reduces rows of the first root of `maker` that it may find after each of them."""
    group, made = state.groups[g], state.groups[maker]
    source = made.roots[0]
    if state.graph.kinds[source] != "elementwise" or made.reductions or made.contraction:
        return False
    if len(made.roots) >= MAX_ROOTS or state.apart(group.roots, made.roots):
        return False
    domain, rows = frozenset(made.domain), frozenset(group.domain)
    if not rows < domain or not (made.row or frozenset()) <= rows:
        return False
    if made.row is None and volume(group.domain) < 2 * cores(state.target):
        return False
    if made.tails and any(used_variables(at) != rows for at in made.tails.values()):
        return False
    return reads_rows(state, group, made, source) and not merger.path_between(g, maker)


def reads_rows(state: Fusion, group: Group, made: Group, source: int) -> bool:
    """True where every access to `source` is a whole row of it, at the index that the maker stores."""
    stored = made.members[source][0]
    for u in state.graph.users[source]:
        for at in group.members.get(u, ()):
            for there in operand_accesses(state, u, source, at):
                if not all(follows(e, i) for e, i in zip(there, stored, strict=True)):
                    return False
                if {e for e in there if isinstance(e, Var) and e in made.domain} != set(group.domain):
                    return False
    return True


def follows(read: Index, stored: Index) -> bool:
    """True for the same index, and for a reduction variable that runs over all of it."""
    if read == stored:
        return True
    return isinstance(read, Var) and isinstance(stored, Var) and read.name.startswith("r") and \
        size(read.hi) == size(stored.hi) and read.hi == stored.hi
