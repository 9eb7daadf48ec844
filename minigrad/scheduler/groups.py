"""Fusion groups of Nodes, on which the fusion pass works, and the places where each reads each Node."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.codegen.lowering.reads import read_at
from minigrad.expr import Index, Var, variables
from minigrad.ops.build import number_of
from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise, Generate, IndexMap, Scan
from minigrad.scheduler.graph import Graph, size
from minigrad.target import Target

ATTENTIONS = frozenset(("attention", "attention_sums", "attention_gradient"))
"""Operations with kernels of their own (codegen/lowering/attention.py)."""

MOST_APART = 4.0
"""The kernels that may run between two of which one computes a value again, if they are to become one."""

Accesses = tuple[tuple[Index, ...], ...]


@dataclass(slots=True)
class Group:
    """A fusion group: one kernel to be. Roots are materialised; members are computed inside; `domain` has the index
    variables of the first root. Further roots have its shape, or are reductions of a `row`, the variables that one row
    keeps, or `tails`: found by reducing over the first root once a part of it is stored, and kept at these indices."""

    roots: list[int]
    domain: tuple[Var, ...]
    members: dict[int, Accesses] = field(default_factory=dict)
    reductions: list[int] = field(default_factory=list)
    contraction: bool = False
    row: frozenset[Var] | None = None
    size: int = 0
    tails: dict[int, tuple[Index, ...]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Again:
    """`times` say when Nodes are to be computed, by the place of their kernels in order; `copies` are those that are
    computed again (recompute.py). `roots` are materialised, as they were before: kernels stay what they were, to the
    order of their sums."""

    times: dict[Node, float]
    copies: set[Node]
    roots: set[Node]


@dataclass(slots=True)
class Fusion:
    """The state and result of the pass: `group_of[k]` for materialised nodes, `inside[k]` the fusion groups that
    compute k.

    `varying`, `work` and `stored` are by node, `cones`, `reads`, `contractions`, `evaluations` and `scattered` memos of
    `cost.cone`, `operand_accesses`, `is_contraction`, `cost.count_evaluations` and `windows.is_scattered`. `again`:
    where values are computed again.
    """

    graph: Graph
    target: Target
    groups: list[Group] = field(default_factory=list)
    group_of: dict[int, int] = field(default_factory=dict)
    inside: dict[int, set[int]] = field(default_factory=dict)
    varying: list[tuple[bool, ...]] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    stored: list[bool] = field(default_factory=list)
    cones: dict[int, tuple[float, list[int]]] = field(default_factory=dict)
    reads: dict[tuple[int, int, tuple[Index, ...]], Accesses] = field(default_factory=dict)
    contractions: dict[int, bool] = field(default_factory=dict)
    evaluations: dict[tuple[Any, ...], float] = field(default_factory=dict)
    scattered: dict[tuple[int, tuple[int, ...]], bool] = field(default_factory=dict)
    again: Again | None = None

    def apart(self, some: Sequence[int], others: Sequence[int]) -> bool:
        """True where one of the nodes is computed again, long before or after the others: to compute them in one
        kernel would keep its value meanwhile."""
        if self.again is None:
            return False
        nodes, times, copies = self.graph.nodes, self.again.times, self.again.copies
        if not any([nodes[k] in copies for k in (*some, *others)]):
            return False
        return abs(max([times[nodes[k]] for k in some]) - max([times[nodes[k]] for k in others])) > MOST_APART


def peeled(graph: Graph, k: int) -> int:
    """The node with the same row-major elements below reshapes and `contiguous`: the one that is really kept in memory.

    A constant that is kept stands for itself: others that use it go on to know its number.
    """
    while not graph.leaf[k] and graph.nodes[k].op.name in ("reshape", "contiguous"):
        below = graph.inputs[k][0]
        if graph.nodes[k].op.name == "contiguous" and not graph.leaf[below] and number_of(
                graph.nodes[below]) is not None:
            break
        k = below
    return k


def used_variables(at: tuple[Index, ...]) -> frozenset[Var]:
    """The index variables that an access depends on."""
    return _NO_VARIABLES.union(*[variables(e) for e in at if type(e) is not int])


_NO_VARIABLES: frozenset[Var] = frozenset()


def start_group(state: Fusion, k: int) -> None:
    node = state.graph.nodes[k]
    shape = node.shape
    if node.op.name in ("assign", "scatter"):
        shape = state.graph.nodes[state.graph.inputs[k][1]].shape
    at = tuple(0 if e == 1 else Var(f"i{d}", 0, e - 1) for d, e in enumerate(shape))
    group = Group([k], tuple(v for v in at if isinstance(v, Var)))
    state.group_of[k] = len(state.groups)
    state.groups.append(group)
    group.members[k] = (at,)
    if state.graph.kinds[k] == "reduce":
        group.reductions.append(k)
        group.contraction = is_contraction(state, k)


def accesses_by_group(state: Fusion, k: int) -> dict[int, Accesses]:
    """The distinct index tuples at which each fusion group reads node `k`, by group."""
    graph, found = state.graph, dict[int, dict[tuple[Index, ...], None]]()
    users = graph.users[k]
    if len(users) == 1:
        return {g: accesses_by(state, users[0], k, g) for g in groups_with(state, users[0])}
    for u in dict.fromkeys(users):
        for g in groups_with(state, u):
            found.setdefault(g, {}).update(dict.fromkeys(accesses_by(state, u, k, g)))
    return {g: tuple(slot) for g, slot in found.items()}


def groups_with(state: Fusion, k: int) -> Sequence[int]:
    """The fusion groups that compute node `k`."""
    own = state.group_of.get(k)
    return sorted(state.inside.get(k, ())) if own is None else (own,)


def accesses_by(state: Fusion, user: int, k: int, g: int) -> Accesses:
    """The distinct indices at which `user`, in fusion group `g`, reads its operand `k`."""
    members = state.groups[g].members[user]
    if isinstance(state.graph.nodes[user].op.lower, Elementwise):
        return members
    if len(members) == 1:
        return operand_accesses(state, user, k, members[0])
    return tuple(dict.fromkeys([there for at in members for there in operand_accesses(state, user, k, at)]))


def operand_accesses(state: Fusion, user: int, k: int, at: tuple[Index, ...]) -> Accesses:
    """The indices at which `user`, evaluated at `at`, reads its operand `k`."""
    if isinstance(state.graph.nodes[user].op.lower, Elementwise):
        return (at,)
    key = user, k, at
    found = state.reads.get(key)
    if found is None:
        found = state.reads[key] = tuple(dict.fromkeys(_operand_accesses(state, user, k, at)))
    return found


def _operand_accesses(state: Fusion, user: int, k: int, at: tuple[Index, ...]) -> list[tuple[Index, ...]]:
    graph, node = state.graph, state.graph.nodes[user]
    name, lower = node.op.name, node.op.lower
    source = graph.nodes[k]
    if isinstance(lower, IndexMap):
        return [read_at(node, source, at).index]
    if graph.kinds[user] == "reduce":
        return [reduced_index(state, user, source.shape, at)]
    if name == "gather":
        places: list[tuple[Index, ...]] = []
        if graph.inputs[user][1] == k:
            places.append(at)
        if graph.inputs[user][0] == k:
            axis = node.params["axis"]
            chosen = Var(f"g{user}", 0, source.shape[axis] - 1)
            places.append((*at[:axis], chosen, *at[axis + 1:]))
        return places
    if isinstance(lower, Generate):
        return [()]
    if name in ATTENTIONS or type(lower) is Scan:
        return [tuple(0 if e == 1 else Var(f"a{user}_{n}_{d}", 0, e - 1) for d, e in enumerate(source.shape))
                for n, i in enumerate(graph.inputs[user]) if i == k]
    return [at]


def reduced_index(state: Fusion, user: int, shape: tuple[Index, ...], at: tuple[Index, ...]) -> tuple[Index, ...]:
    axes = state.graph.nodes[user].params["axes"]
    outer = iter(at)
    return tuple(next(outer) if d not in axes else 0 if e == 1 else Var(f"r{user}_{d}", 0, e - 1)
                 for d, e in enumerate(shape))


def domain_size(group: Group) -> int:
    return volume(group.domain)


def volume(loops: tuple[Var, ...]) -> int:
    """Iterations of a nest of loops."""
    total = 1
    for v in loops:
        total *= v.hi + 1 if type(v.hi) is int else size(v.hi + 1)
    return total


def is_contraction(state: Fusion, k: int) -> bool:
    """A sum whose operands are each smaller than the space it runs over: every element is used several times."""
    found = state.contractions.get(k)
    if found is None:
        found = state.contractions[k] = _is_contraction(state.graph, k)
    return found


def _is_contraction(graph: Graph, k: int) -> bool:
    if graph.nodes[k].op.name not in ("sum", "unwindow"):
        return False
    below = graph.inputs[k][0]
    total = graph.counts[below]
    while graph.kinds[below] in ("move", "reduce") and len(graph.users[below]) == 1:
        below = graph.inputs[below][0]
        total = max(total, graph.counts[below])
    if graph.nodes[below].op.name != "mul" or graph.leaf[below]:
        return False
    return all(largest_source(graph, i) * 2 <= total for i in graph.inputs[below])


def largest_source(graph: Graph, k: int) -> int:
    """Elements of the biggest array that an operand is read from, through movement and elementwise operations."""
    biggest, stack = 0, [k]
    seen: set[int] = set()
    while stack and len(seen) < 32:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        kind = graph.kinds[i]
        if kind == "move" or kind == "elementwise":
            stack.extend(graph.inputs[i])
        if kind != "move" and kind != "free" and graph.counts[i] > biggest:
            biggest = graph.counts[i]
    return biggest


def join(state: Fusion, k: int, kind: str, g: int, at: Accesses) -> None:
    group = state.groups[g]
    group.members[k] = at
    state.inside.setdefault(k, set()).add(g)
    if kind == "elementwise":
        group.size += 1
    if kind == "reduce":
        used = used_variables(at[0])
        if used <= frozenset(group.domain) and state.graph.counts[k] != domain_size(group):
            group.row = used
        elif used <= frozenset(group.domain):
            group.reductions.append(k)
        group.contraction |= is_contraction(state, k)
