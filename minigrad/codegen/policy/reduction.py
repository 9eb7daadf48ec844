"""Reductions without reuse: lanes along a variable of the domain or of the sums, chains enough to hide latency."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from minigrad.codegen.kernel.access import accesses, extent, reductions
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import domain_order, lanes_along, parallel_prefix
from minigrad.expr import Var
from minigrad.target import Target

CHAINS = 4
"""Independent accumulators: an add takes 3-4 cycles, two can start in each."""

UNROLL = 16
"""A reduction of at most this many terms is written out."""


def plans(nest: Nest, target: Target) -> Iterator[Plan]:
    """One for each variable and number of lanes along which elements follow each other; where none of a sum has such
    lanes, one without lanes."""
    found = accesses(nest)
    reduced = reductions(nest)
    over = list({v.name: v for r in reduced for v in r.over}.values())
    order, unroll = domain_order(nest, found), small_loops(over)

    def made(lane: Var | None, width: int, inner: list[tuple[str, int, int]], unroll: tuple[str, ...]) -> Plan:
        last = [v for v in order if v is not lane] + [v for v in order if v is lane]
        counts = [ceil(extent(v) / (width if v is lane else 1)) for v in last]
        return general_plan("reduction", nest, Choice(
            tuple([v.name for v in last]), parallel_prefix(counts, target),
            lanes=lane.name if lane is not None else "", width=width,
            inner={name: (lanes, chains) for name, lanes, chains in inner}, unroll=frozenset(unroll)))

    alone = [(r.over[-1].name, 1, chains(extent(r.over[-1]), 1)) for r in reduced if r.over[-1].name not in unroll]
    across = list(lanes_along(over, found, nest, target))
    for v, width in across:
        yield made(None, 1, same_place(reduced, v.name, width) or alone, tuple([n for n in unroll if n != v.name]))
    if not across:
        yield made(None, 1, alone, unroll)
    for v, width in lanes_along(order, found, nest, target):
        if isinstance(v.hi, int) or not across:  # what is known at run time only may be less than a vector
            yield made(v, width, alone, unroll)


def chains(length: int, width: int) -> int:
    """All chains where there are two vectors to add: shorter sums leave some empty, and share their programs."""
    return CHAINS if length >= 2 * width else 1


def same_place(reduced: list, name: str, width: int) -> list[tuple[str, int, int]]:
    """The variable at the same place in every reduction of the group, so that they can share their loops."""
    place = next(k for r in reduced for k, v in enumerate(r.over) if v.name == name)
    return [(r.over[place].name, width, chains(extent(r.over[place]), width))
            for r in reduced if place < len(r.over) and extent(r.over[place]) >= width]


def small_loops(over: Sequence[Var]) -> tuple[str, ...]:
    """The innermost of these variables, of a sum or an inner domain, whose loops are written out."""
    names: list[str] = []
    total = 1
    for v in reversed(over):
        if not isinstance(v.hi, int) or total * extent(v) > UNROLL or not extent(v):
            break
        total *= extent(v)
        names.append(v.name)
    return tuple(names)
