"""Reductions without reuse: lanes along the contiguous axis, enough independent chains to hide latency."""
from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from minigrad.codegen.kernel.access import accesses, extent, reductions
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import best_lane, domain_order, parallel_prefix, widths
from minigrad.expr import Var
from minigrad.target import Target

CHAINS = 4
"""Independent accumulators: an add takes 3-4 cycles, two can start in each."""

UNROLL = 16
"""A reduction of at most this many terms is written out."""


def plan(nest: Nest, target: Target) -> Plan:
    found = accesses(nest)
    reduced = reductions(nest)
    over = list({v.name: v for r in reduced for v in r.over}.values())
    order = domain_order(nest, found)
    candidates = [(v, True) for v in nest.domain] + [(v, False) for v in over]
    best = best_lane(candidates, found, widths(nest, target)) if not target.is_gpu else None
    unroll = small_loops(over)
    inner: list[tuple[str, int, int]] = []
    lanes, width = "", 1
    if best is not None and any(best[0] is v for v in nest.domain):
        lanes, width = best[0].name, best[1]
        order = [o for o in order if o is not best[0]] + [best[0]]
    elif best is not None:
        unroll = tuple(n for n in unroll if n != best[0].name)
        inner = same_place(reduced, best[0].name, best[1])
    if not inner:
        inner = [(r.over[-1].name, 1, chains(extent(r.over[-1]), 1)) for r in reduced if r.over[-1].name not in unroll]
    blocks = [width if v.name == lanes else 1 for v in order]
    counts = [ceil(extent(v) / b) for v, b in zip(order, blocks, strict=True)]
    return general_plan("reduction", nest, Choice(
        tuple([v.name for v in order]), parallel_prefix(counts, target), lanes=lanes, width=width,
        inner={name: (lanes, chains) for name, lanes, chains in inner}, unroll=frozenset(unroll)))


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
