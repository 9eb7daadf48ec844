"""Accesses of sums to their operands: a plan stages, or loads in vectors, what moves along with the sums' variables."""
from __future__ import annotations

from heapq import heappop, heappush

from minigrad.expr import FloorDiv, Index, Mod, Var, coefficient, variables
from minigrad.ops.op import Elementwise
from minigrad.scheduler.groups import Fusion, Group, largest_source, operand_accesses, reduced_index, used_variables

MAX_PLACES = 4
"""The most places at which one node may be read for one element of an operand; beyond that it counts as scattered."""

MAX_LOOKED_AT = 256
"""The most Nodes behind an operand that are looked at; one with more counts as moving along."""


def is_digit(e: Index) -> bool:
    """True for a number, a variable, or what a reshape makes of one: digits of it, by // and %."""
    if isinstance(e, (int, Var)):
        return True
    return len(e.terms) == 1 and not e.const and len(e.terms[0][0]) == 1 and e.terms[0][1] == 1 and (
        isinstance(e.terms[0][0][0], (Var, FloorDiv, Mod)) and len(variables(e)) == 1)


def is_spread(state: Fusion, k: int) -> bool:
    """True where a node has more elements than anything that it is computed from, as the products of a sum have: all of
    its operands are repeated along some axis. The operands may be kept, the node is not."""
    graph, varying = state.graph, state.varying
    long = [d for d, e in enumerate(graph.nodes[k].shape) if e != 1]
    operands = [k] if graph.kinds[k] == "move" else [i for i in graph.inputs[k] if graph.kinds[i] != "free"]
    return bool(operands) and not any([all([varying[i][d] for d in long]) for i in operands])


def is_scattered(state: Fusion, k: int, group: Group, at: tuple[Index, ...]) -> bool:
    """True where a sum over node `k` reads places in memory that do not move along with it.

    So it is for images that were padded by reflection, of which one element is read from either side of the border, for
    upsampled ones, and for rows that were gathered.
    """
    domain = frozenset(group.domain)
    axes = tuple([d for d, e in enumerate(at) if type(e) is not int and not variables(e) <= domain])
    if not axes or not group.contraction or is_spread(state, k):
        return False
    found = state.scattered.get((k, axes))
    if found is None:
        found = state.scattered[k, axes] = not moves_along(state, k, axes, at, frozenset())
    batch = shared_variables(state, group) if found else frozenset[Var]()
    return found and not (batch and moves_along(state, k, axes, at, batch))


def shared_variables(state: Fusion, group: Group) -> frozenset[Var]:
    """The index variables along which both factors of a contraction vary, and which are not summed over: those of a
    batch of products."""
    found: set[Var] = set()
    for r in group.reductions:
        p = state.graph.inputs[r][0]
        factors = [state.varying[i] for i in state.graph.inputs[p]]
        if state.graph.nodes[p].op.name != "mul" or any([len(v) != len(state.varying[p]) for v in factors]):
            continue
        for at in group.members.get(r, (group.domain,)):
            if len(at) == len(state.graph.nodes[r].shape):
                index = reduced_index(state, r, state.graph.nodes[p].shape, at)
                both = [variables(e) for e, *varies in zip(index, *factors, strict=True) if all(varies)]
                found.update(*both)
    return frozenset(found) & frozenset(group.domain)


def moves_along(state: Fusion, k: int, axes: tuple[int, ...], place: tuple[Index, ...],
                batch: frozenset[Var]) -> bool:
    """True where everything that node `k` is computed from is read at places that are linear in its index along `axes`,
    with one coefficient for each. Numbers that are extracted from integers, such as quantised weights, count as
    linear. It is read at `place`; what is looked up by variables of a `batch` alone moves along with the others.
    """
    graph = state.graph
    at = tuple([Var(f"w{d}", 0, n - 1) if d in axes or not batch else e
                for d, (e, n) in enumerate(zip(place, graph.nodes[k].shape, strict=True))])
    along = [v for d in axes for v in (at[d],) if isinstance(v, Var)]
    places: dict[int, set[tuple[Index, ...]]] = {k: {at}}
    steps: dict[Var, int] = {}
    left, linear = [-k], True
    while left:
        i = -heappop(left)
        here, node = places[i], graph.nodes[i]
        if len(here) > MAX_PLACES:
            return False
        if graph.kinds[i] in ("leaf", "reduce", "special") or (i != k and node.op.name == "contiguous"):
            if node.dtype.is_int:
                return True
            linear = linear and all([_is_linear(e, v, steps) for index in here for e in index for v in along])
        elif node.op.name == "gather" and any([used_variables(index) & set(along) for index in here]):
            if not all([is_found_once(state, i, index, batch) for index in here]):
                return False
            if node.dtype.is_int:
                return True
            linear = linear and all([_is_linear(e, v, steps) for index in here for e in index for v in along])
        else:
            plain = isinstance(node.op.lower, Elementwise)  # it reads its operands where it is computed
            for j in dict.fromkeys(graph.inputs[i]):
                if j not in places:
                    places[j] = set()
                    heappush(left, -j)
                places[j].update(here if plain else [p for index in here for p in operand_accesses(state, i, j, index)])
        if len(places) > MAX_LOOKED_AT:
            return True
    return linear


def is_found_once(state: Fusion, k: int, at: tuple[Index, ...], batch: frozenset[Var]) -> bool:
    """True where a gather, read at `at`, looks places up by the variables of a batch alone: a matrix for each of
    several products."""
    varying = state.varying[state.graph.inputs[k][1]]
    looked = used_variables(tuple([e for e, varies in zip(at, varying, strict=True) if varies]))
    return bool(looked) and looked <= batch


def _is_linear(e: Index, v: Var, steps: dict[Var, int]) -> bool:
    """True where an index does not use `v`, or moves along with it as the indices before did."""
    if e is v:
        return steps.setdefault(v, 1) == 1
    if isinstance(e, int) or v not in variables(e):
        return True
    step = coefficient(e, v)
    return isinstance(step, int) and step == steps.setdefault(v, step)


def loses_tiles(state: Fusion, k: int, at: tuple[Index, ...], domain: frozenset[Var]) -> bool:
    """True for a product of matrices that has no rows, or no columns, left within a sum around it: without tiles it is
    a tenth as fast. Results that are large beside the matrices are never kept for that."""
    graph, node = state.graph, state.graph.nodes[k]
    below, = graph.inputs[k]
    user = graph.users[k][0]
    while graph.kinds[user] == "move":
        user = graph.users[user][0]
    if node.op.name != "sum" or graph.nodes[user].op.name != "sum" or graph.nodes[below].op.name != "mul":
        return False
    factors = graph.inputs[below]
    if graph.counts[k] > 16 * sum([largest_source(graph, i) for i in factors]):
        return False
    along = [d for d in range(len(graph.nodes[below].shape)) if d not in node.params["axes"]]
    own = [[e for d, e in zip(along, at, strict=True) if state.varying[i][d] and not state.varying[other][d]]
           for i, other in (factors, factors[::-1])]
    return all(own) and any([used_variables(tuple(found)).isdisjoint(domain) for found in own])
