"""One row times quantised blocks of weights, by a microkernel that has instructions for them (`block_product.py`).

    plan quantized
      split i0 -> u q by 88, back             units of panels
      bind parallel u
      bind vector i1
      stage p0 at u as [r0][r1][r2]           x
      results at u as [q][i1]
      call block_product_q4_vnni at u         the sums of a unit

There are as many units as workers: each splits x anew, which takes as long as two or three panels, and starts streams.
"""
from __future__ import annotations

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.kernel.value_walk import loaded
from minigrad.codegen.microkernels import block_product
from minigrad.codegen.plan.block_products import products_of
from minigrad.codegen.plan.steps import Bind, Call, Plan, Results, Split, Stage
from minigrad.target import Target


def plan(nest: Nest, target: Target) -> Plan | None:
    """None for everything but products of one row with blocks, and where no microkernel knows them. What is multiplied
    is copied: each x by a buffer that it reads, and no other one does."""
    suffix = block_product.suffix_for(target.features)
    if target.language != "llvm" or target.has_groups or suffix is None:
        return None
    found = products_of(nest)
    rows = [] if found is None else list(dict.fromkeys(s.x for s in found.sums))
    reads = [sorted(loaded(x)) for x in rows]
    if found is None or not all(reads) or len(set().union(*reads)) < sum(map(len, reads)):
        return None
    panels = extent(found.panel)
    units = min(target.units, panels // block_product.FEWEST_PANELS)
    panel, layout = found.panel.name, tuple([v.name for v in found.over])
    calls = dict.fromkeys(s.product.name + suffix for s in found.sums)
    return Plan("quantized", (
        Split(panel, "u", "q", -(-panels // units), "back"), Bind("parallel", ("u",)),
        Bind("vector", (found.lane.name,)), *(Stage(read[0], "u", layout) for read in reads),
        Results("u", ("q", found.lane.name)), *(Call(name, "u") for name in calls)))
