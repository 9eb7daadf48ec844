"""Row kernels: several reductions over a row and what follows from them, the row held in cache (softmax, norms)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from minigrad.codegen.kernel import Nest
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.spaces import is_sum
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.strategies.access import MAX_STRIDE, Access, accesses, extent, value_accesses
from minigrad.codegen.strategies.lanes import best_lane, domain_order, memory_cost, parallel_prefix, widths
from minigrad.codegen.strategies.reduction import chains, small_loops
from minigrad.expr import Var
from minigrad.target import Target


def plan(nest: Nest, target: Target) -> Plan:
    found = accesses(nest)
    order = domain_order(nest, found)
    options = widths(nest, target) if not target.is_gpu else []
    inner = [choice for loops, touched in inner_loops(nest) for choice in inner_lane(loops, touched, options)]
    unroll = set[str]()
    if all([width == 1 for _, width, _ in inner]):
        unroll = {name for loops, _ in inner_loops(nest) for name in small_loops(loops)}
    best = best_lane([(v, True) for v in nest.domain], found, options, near=MAX_STRIDE, edge="back")
    lanes, width = "", 1
    if best is not None and best[2] < inner_cost(nest, inner):
        lanes, width, inner = best[0].name, best[1], []
        order = [o for o in order if o is not best[0]] + [best[0]]
    counts = [ceil(extent(v) / (width if v.name == lanes else 1)) for v in order]
    return general_plan("rows", nest, Choice(
        tuple([v.name for v in order]), parallel_prefix(counts, target), edge="back", lanes=lanes, width=width,
        inner={name: (lanes, chains) for name, lanes, chains in inner if name not in unroll}, unroll=frozenset(unroll)))


def inner_loops(nest: Nest) -> Iterator[tuple[tuple[Var, ...], Sequence[Access]]]:
    """(variables, accesses) of each reduction and inner domain of a row."""
    for s in nest.body:
        if isinstance(s, Nest):
            yield s.domain, accesses(s, s.domain)
            yield from inner_loops(s)
        elif is_sum(s):
            yield s.value.over, value_accesses(s.value.args[0], s.value.over)


def inner_lane(loops: tuple[Var, ...], touched: Sequence[Access], options: list[int]) -> list[tuple[str, int, int]]:
    best = best_lane([(v, False) for v in loops], touched, options)
    if best is None:
        last = loops[-1] if loops else None
        return [(last.name, 1, chains(extent(last), 1))] if last is not None else []
    return [(best[0].name, best[1], chains(extent(best[0]), best[1]))]


def inner_cost(nest: Nest, inner: list[tuple[str, int, int]]) -> float:
    """Memory operations per row with the chosen inner lanes."""
    by_name = {n: w for n, w, _ in inner}
    total = 0.0
    for loops, touched in inner_loops(nest):
        lane = next((v for v in loops if by_name.get(v.name, 1) > 1), None)
        if lane is None:
            total += memory_cost(touched, Var("none", 0, 0), 1, False)
        else:
            total += memory_cost(touched, lane, by_name[lane.name], False)
    return total
