"""Products of one row with quantised blocks by microkernels: `call block_product_q4_vnni at u`.

    for u parallel:                                          for u parallel:
      for q, i1: for r0, r1:                           ->      call block_product_q4_vnni(p0_staged, p1, p2, t0_kept)
        t0_kept[q, i1] = t0_kept[q, i1] + p0_staged[...] * ...

The loops inside u compute sums into the memory of `results`, from x, which is copied, and matrices as they lie.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.ir.nodes import Stmt
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.microkernels.block_product import panels_at_once, product_named
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.plan.block_products import products_of
from minigrad.codegen.plan.loops import Here, Loops
from minigrad.codegen.plan.text import refuse
from minigrad.errors import present

if TYPE_CHECKING:
    from minigrad.codegen.plan.build import Builder


def block_faults(nest: Nest, loops: Loops) -> Iterator[str]:
    """Messages about calls of such products."""
    calls = loops.blocks
    if not calls:
        return
    step, at, found = str(calls[0]), calls[0].at, products_of(nest)
    if found is None:
        yield f"{step}: expected sums that are products of one row with quantised blocks, got others"
        return
    for c in calls:
        if c.at != at or all(s.product is not product_named(c.kernel) for s in found.sums):
            yield f"{c}: expected one that computes some sum, at {at} as all others"
    inside, whole = loops.order[loops.order.index(at) + 1:], (found.lane, *found.over)
    if [loops.root[x] for x in inside] != [found.panel, *whole] or [x for x in whole if x.name in loops.split]:
        yield (f"{step}: expected loops of {found.panel} and all of {' '.join(v.name for v in whole)} inside {at}, "
               f"got {' '.join(inside)}")
        return
    panels, least = loops.extent(inside[0]), max(panels_at_once(c.kernel) for c in calls)
    if loops.stride(inside[0], Here()) != 1 or loops.cut_short(inside[0]) or not isinstance(panels, int) or \
            panels < least:
        yield f"{step}: expected blocks of {least} neighbours of {found.panel} at least, all equally long, inside {at}"
    if loops.results is None or (loops.results.at, loops.results.layout) != (at, inside[:2]):
        yield f"{step}: expected results at {at} as {''.join(f'[{x}]' for x in inside[:2])}"
    for x in (a.at for a in loops.ahead if a.at in inside):
        yield f"{step}: expected no prefetches inside {at}, got some at {x}"


def call_blocks(b: Builder, here: Here) -> list[Stmt]:
    """The sums of a nest, which microkernels put into the memory of its results. Raises PlanError where one is missing,
    or what it multiplies is not copied."""
    loops, results, calls = b.loops, present(b.gathered, "[plan] expected results"), b.loops.blocks
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
