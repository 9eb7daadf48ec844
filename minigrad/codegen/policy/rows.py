"""Row kernels: several reductions over a row and what follows from them, the row held in cache (softmax, norms)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from minigrad.codegen.kernel.access import MAX_STRIDE, Access, accesses, extent, steps_near, value_accesses
from minigrad.codegen.kernel.nodes import Define, Nest, is_sum
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import domain_order, lanes_along, parallel_prefix, widths
from minigrad.codegen.policy.reduction import CHAINS, chains, small_loops
from minigrad.expr import Index, Var, coefficient
from minigrad.target import Target


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


def plans(nest: Nest, target: Target) -> Iterator[Plan]:
    """One for each number of lanes along the rows, or one without lanes, and one for each along a variable of the
    domain whose elements follow each other."""
    found = accesses(nest)
    order, loops = domain_order(nest, found), list(inner_loops(nest))
    small = frozenset([name for own, _ in loops for name in small_loops(own)])

    def made(lane: Var | None, width: int, inner: Sequence[InnerLane]) -> Plan:
        last = [v for v in order if v is not lane] + [v for v in order if v is lane]
        counts = [ceil(extent(v) / (width if v is lane else 1)) for v in last]
        unroll = small if all([x.width == 1 for x in inner]) else frozenset[str]()
        return general_plan("rows", nest, Choice(
            tuple([v.name for v in last]), parallel_prefix(counts, target), edge="back",
            lanes=lane.name if lane is not None else "", width=width,
            inner={x.loop: (x.width, x.chains) for x in inner if x.loop not in unroll}, unroll=unroll,
            copies=frozenset([name for x in inner for name in x.copies])))

    options = [] if target.is_gpu else widths(nest, target)
    inner = [[inner_lane(own, touched, options[k:]) for own, touched in loops if own] for k in range(len(options) + 1)]
    across = [lanes for lanes in inner if any([x.width > 1 for x in lanes])]
    for lanes in across or inner[-1:]:
        yield made(None, 1, lanes)
    for v, width in lanes_along(order, found, nest, target):
        if isinstance(v.hi, int) or not across:  # what is known at run time only may be less than a vector
            yield made(v, width, [])


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


def inner_lane(loops: tuple[Var, ...], touched: Sequence[Access], options: list[int]) -> InnerLane:
    """The lanes of a sum or an inner domain, the first of some widths that its loop has."""
    near = {v: sum([1 for a in touched if a.step(v) and steps_near(a.offset, v)]) for v in loops}
    lane = max(loops, key=lambda v: near[v])
    width = next((w for w in options if w <= extent(lane) and near[lane]), 1)
    copies = [v.name for v in loops if width > 1 and any(steps_between(a.offset, v, lane) for a in touched)]
    if copies and extent(lane) <= CHAINS * width:
        copies.append(lane.name)
    return InnerLane(lane.name, width, 1 if copies else chains(extent(lane), width), tuple(copies))


def steps_between(offset: Index, v: Var, lane: Var) -> bool:
    """True where v goes from one element to the next of those that are read together for lanes near each other."""
    step, far = coefficient(offset, v), coefficient(offset, lane)
    return isinstance(step, int) and isinstance(far, int) and isinstance(v.hi, int) and (
        0 < step and step * extent(v) <= far <= MAX_STRIDE)
