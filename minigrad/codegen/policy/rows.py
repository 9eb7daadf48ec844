"""Row kernels: several reductions over a row and what follows from them, the row held in cache (softmax, norms)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from minigrad.codegen.kernel.access import MAX_STRIDE, Access, accesses, extent, value_accesses
from minigrad.codegen.kernel.nodes import Define, Nest, is_sum
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import best_lane, domain_order, memory_cost, parallel_prefix, widths
from minigrad.codegen.policy.reduction import CHAINS, chains, small_loops
from minigrad.expr import Index, Var, coefficient
from minigrad.target import Target

ROW_GATHER = 2.5
"""Cost of one lane of a gather, as `GATHER`: rows are read several times."""


def is_row_kernel(nest: Nest) -> bool:
    """Something happens per row besides one group of reductions: an inner domain, or a reduction of a reduction."""
    if any(isinstance(s, Nest) for s in nest.body):
        return True
    known: set[str] = set()
    for s in nest.body:
        if is_sum(s):
            if known & locals_of(s.value):
                return True
            known.add(s.name)
        elif isinstance(s, Define) and known & locals_of(s.value):
            known.add(s.name)
    return False


def plan(nest: Nest, target: Target) -> Plan:
    found = accesses(nest)
    order = domain_order(nest, found)
    options = widths(nest, target) if not target.is_gpu else []
    inner = [choice for loops, touched in inner_loops(nest) for choice in inner_lane(loops, touched, options)]
    unroll = set[str]()
    if all([choice.width == 1 for choice in inner]):
        unroll = {name for loops, _ in inner_loops(nest) for name in small_loops(loops)}
    best = best_lane([(v, True) for v in nest.domain], found, options, near=MAX_STRIDE, edge="back",
                     gather=ROW_GATHER)
    lanes, width = "", 1
    if best is not None and best[2] < inner_cost(nest, inner):
        lanes, width, inner = best[0].name, best[1], []
        order = [o for o in order if o is not best[0]] + [best[0]]
    counts = [ceil(extent(v) / (width if v.name == lanes else 1)) for v in order]
    return general_plan("rows", nest, Choice(
        tuple([v.name for v in order]), parallel_prefix(counts, target), edge="back", lanes=lanes, width=width,
        inner={x.loop: (x.width, x.chains) for x in inner if x.loop not in unroll}, unroll=frozenset(unroll),
        copies=frozenset([name for x in inner for name in x.copies])))


def inner_loops(nest: Nest) -> Iterator[tuple[tuple[Var, ...], Sequence[Access]]]:
    """(variables, accesses) of each reduction and inner domain of a row."""
    for s in nest.body:
        if isinstance(s, Nest):
            yield s.domain, accesses(s, s.domain)
            yield from inner_loops(s)
        elif is_sum(s):
            yield s.value.over, value_accesses(s.value.args[0], s.value.over)


@dataclass(frozen=True, slots=True)
class InnerLane:
    """The loop of a sum or an inner domain across lanes, if `width` is more than 1; its chains; and the `copies`, loops
    that step between its lanes."""

    loop: str
    width: int
    chains: int
    copies: tuple[str, ...] = ()


def inner_lane(loops: tuple[Var, ...], touched: Sequence[Access], options: list[int]) -> list[InnerLane]:
    if not loops:
        return []
    best = best_lane([(v, False) for v in loops], touched, options, near=MAX_STRIDE, gather=ROW_GATHER)
    lane, width = (best[0], best[1]) if best is not None else (loops[-1], 1)
    copies = [v.name for v in loops if best is not None and any(steps_between(a.offset, v, lane) for a in touched)]
    if copies and extent(lane) <= CHAINS * width:
        copies.append(lane.name)
    return [InnerLane(lane.name, width, 1 if copies else chains(extent(lane), width), tuple(copies))]


def steps_between(offset: Index, v: Var, lane: Var) -> bool:
    """True where v goes from one element to the next of those that are read together for lanes near each other."""
    step, far = coefficient(offset, v), coefficient(offset, lane)
    return isinstance(step, int) and isinstance(far, int) and isinstance(v.hi, int) and (
        0 < step and step * extent(v) <= far <= MAX_STRIDE)


def inner_cost(nest: Nest, inner: list[InnerLane]) -> float:
    """Memory operations per row with the chosen inner lanes."""
    by_name = {x.loop: x.width for x in inner}
    total = 0.0
    for loops, touched in inner_loops(nest):
        lane = next((v for v in loops if by_name.get(v.name, 1) > 1), None)
        if lane is None:
            total += memory_cost(touched, Var("none", 0, 0), 1, False)
        else:
            total += memory_cost(touched, lane, by_name[lane.name], False, near=MAX_STRIDE, gather=ROW_GATHER)
    return total
