"""Products of one row with quantised blocks by microkernels: `call block_product_q4_vnni at u`.

    for u parallel:                                          for u parallel:
      for q, i1: for r0, r1:                           ->      call block_product_q4_vnni(p0_staged, p1, p2, t0_kept)
        t0_kept[q, i1] = t0_kept[q, i1] + p0_staged[...] * ...

The loops inside u compute sums into the memory of `results`, from x, which is copied, and matrices as they lie.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.ir.nodes import Stmt
from minigrad.codegen.microkernels.block_product import product_named
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.plan.block_products import products_of
from minigrad.codegen.plan.here import Here
from minigrad.codegen.plan.loops import refuse
from minigrad.codegen.plan.steps.call import block_calls
from minigrad.errors import present

if TYPE_CHECKING:
    from minigrad.codegen.plan.build import Builder


def call_blocks(b: Builder, here: Here) -> list[Stmt]:
    """The sums of a nest, which microkernels put into the memory of its results. Raises PlanError where one is missing,
    or what it multiplies is not copied."""
    loops, results, calls = b.loops, present(b.gathered, "[plan] expected results"), block_calls(b.loops)
    found = present(products_of(b.nest), "[plan] expected products with blocks")
    outside = loops.order[:loops.order.index(calls[0].at) + 1]
    inside, out = loops.order[len(outside):], list[Stmt]()
    at = b.located(replace(here, places={**here.places, **dict.fromkeys(inside, 0)}))
    layout = tuple([v.name for v in found.over])
    for s in found.sums:
        step = next((c for c in calls if product_named(c.kernel) is s.product), None)
        x = next((m for m in b.staged if m.part is s.x and m.step.layout == layout and m.step.at in outside), None)
        if step is None or x is None:
            wanted = f"a copy of what it is multiplied by, as [{']['.join(layout)}]" if step is not None else "a call"
            raise refuse(calls[0], f"for {s.name} {wanted}", "none")
        kernel = present(find(step.kernel), f"[plan] expected the microkernel {step.kernel}")
        buffers = ((x.memory, x.box.at(at)), *((p.buffer, at.at[found.panel] * p.pitch + p.offset) for p in s.parts),
                   (results.memory[s.name], results.box.at(at)))
        counts = (loops.extent(layout[0]), loops.count(inside[0], here), *(p.pitch for p in s.parts))
        out.append(IRCall(kernel, buffers, (), counts))
    return out
