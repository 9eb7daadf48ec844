"""Elementwise kernels: one domain variable across lanes, a few vectors per iteration, the rest parallel."""
from __future__ import annotations

from math import ceil

from minigrad.codegen.kernel.access import accesses, extent, steps_near
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import best_lane, domain_order, parallel_prefix, widths
from minigrad.target import Target
from minigrad.value import walk

VECTORS = 4
"""Vectors per iteration of a light kernel: enough to hide the loop's own work."""

HEAVY = 40
"""A body with this many operations needs no second vector to be busy."""

GATHERED = 3
"""Operations per lane of a load whose lanes are far apart."""


def plan(nest: Nest, target: Target) -> Plan:
    found = accesses(nest)
    order = domain_order(nest, found)
    best = None
    if not target.is_gpu:
        apart = machine(target).declared.strided_stores
        best = best_lane([(v, True) for v in nest.domain], found, widths(nest, target), apart)
    size = sum(1 for s in nest.body if not isinstance(s, Nest) for _ in walk(s.value))
    lanes, width, tile = "", 1, 1
    if best is not None:
        v, width, _ = best
        lanes = v.name
        size += GATHERED * width * sum([a.kind == "load" and not steps_near(a.offset, v) for a in found])
        order = [o for o in order if o is not v] + [v]
        while size * tile * 2 <= HEAVY and tile < VECTORS and extent(v) % (width * tile * 2) == 0:
            tile *= 2
    blocks = [width * tile if v.name == lanes else 1 for v in order]
    counts = [ceil(extent(v) / b) for v, b in zip(order, blocks, strict=True)]
    return general_plan("pointwise", nest, Choice(tuple([v.name for v in order]), parallel_prefix(counts, target),
                                                  {lanes: tile}, lanes=lanes, width=width))
