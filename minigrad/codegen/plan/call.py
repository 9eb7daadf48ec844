"""Calls of microkernels that compute the sums of a nest, into the memory of its results.

    for j: for i:                                               for j: for i:
      for l vector: for k: for u, v unroll:               ->      call tile_...(p0_staged[...], p1_staged[...],
        acc[u, v] += p0_staged[...] * p1_staged[...]                            t0_kept[...], steps, pitches, old)

    for u parallel:                                             for u parallel:
      for q, i1: for r0, r1:                              ->      call block_product_q4_vnni(p0_staged, p1, p2, t0_kept)
        t0_kept[q, i1] = t0_kept[q, i1] + p0_staged[...] * ...

The former is one call of a register tile after another (`tiles.py`), the latter all sums inside a loop as products of
one row, which is copied, with quantised blocks, which are read as they lie.
"""
from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.ir.nodes import If, Loop, Stmt
from minigrad.codegen.microkernels.block_product import product_named
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.plan.block_products import products_of
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.loops import refuse
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.stage import Staged
from minigrad.codegen.plan.steps.call import block_calls
from minigrad.codegen.plan.tiles import Tiled
from minigrad.codegen.transforms.bounded_sums import TERMS
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds, emax, emin, product
from minigrad.value import Value


def call_tile(ctx: Context, called: Tiled, here: Position) -> list[Stmt]:
    """The calls: products of a block added to the sums there are, or, of the first one, in their place. Each adds at
    most TERMS of floats, all about as many (docs/decisions/0042-long-sums.md)."""
    inside = ctx.loops.order[ctx.loops.order.index(called.step.at) + 1:]
    corner = replace(here, places={**here.places, **dict.fromkeys(inside, 0)})
    gathered = present(ctx.gathered, "[plan] expected results by way of memory")
    memory, = gathered.memory.values()
    panels = [_panel(ctx, called, *side) for side in ((called.a, called.row), (called.b, called.column))]
    count, size = _count(ctx, called, here), TERMS // called.tile.group
    steps = [1 if called.tile.a_along == "k" else panels[0][1], panels[1][1]]
    old = [-here.places[x] for x in ctx.middle if ctx.loops.space[x] and ctx.loops.count(x, here) != 1]

    def call(first: Index, count: Index, more: int) -> IRCall:
        at = [(s.memory, s.box.at(corner) + first * step) for (s, _), step in zip(panels, steps, strict=True)]
        return IRCall(called.kernel, (*at, (memory, gathered.box.at(corner))), (), (
            count, *[pitch for _, pitch in panels], gathered.box.pitches[-2], more))

    most = bounds(count)[1]
    if not called.tile.sum.is_float or most <= size:
        return [If(tuple(old), (call(0, count, 0),), (call(0, count, 1),))] if old else [call(0, count, 0)]
    size = ceil_div(most, ceil_div(most, size))
    x = Var(ctx.name("part"), 0, ceil_div(most, size) - 1)
    first, more = call(0, emin(count, size), 0), call(x * size, emin(count - x * size, size), 1)
    later = Loop(x, 0, ceil_div(count, size), "serial", (more,))
    return [If(tuple(old), (first, replace(later, start=1)), (later,))] if old else [first, replace(later, start=1)]


def _count(ctx: Context, called: Tiled, here: Position) -> Index:
    """Steps of a block; no one begins beyond the end of the sum."""
    count = product([ctx.loops.count(x, here) for x in called.steps])
    return count if bounds(count)[0] >= 0 else emax(count, 0)


def _panel(ctx: Context, called: Tiled, operand: Value, coordinate: str) -> tuple[Staged, Index]:
    """The copy of an operand, and how far its rows are apart. Raises PlanError where it is none for the tile."""
    loops, in_rows = ctx.loops, operand is called.a and called.tile.a_along == "k"
    for s in [s for s in ctx.staged if s.part is operand]:
        own = [(c, pitch) for c, pitch in zip(s.box.layout, s.box.pitches, strict=True)
               if c == coordinate or c in called.steps]
        if {c for c, _ in own} != {coordinate, *called.steps}:
            continue
        (row, pitch), steps = (own[0], own[1:]) if in_rows else (own[-1], own[:-1])
        even = [x == y * loops.most(c) and not loops.cut_short(c)
                for (_, x), (c, y) in pairwise(steps)]
        if row == coordinate and own[-1][1] == 1 and all(even):
            return s, pitch if in_rows else steps[-1][1]
    expected = f"[{coordinate}][steps]" if in_rows else f"[steps][{coordinate}]"
    raise refuse(called.step, f"a copy as {expected} of all steps inside {called.step.at}, evenly apart", "none")


def call_blocks(ctx: Context, here: Position) -> list[Stmt]:
    """The sums of a nest, which microkernels put into the memory of its results. Raises PlanError where one is missing,
    or what it multiplies is not copied."""
    loops, results, calls = ctx.loops, present(ctx.gathered, "[plan] expected results"), block_calls(ctx.loops)
    found = present(products_of(ctx.nest), "[plan] expected products with blocks")
    outside = loops.order[:loops.order.index(calls[0].at) + 1]
    inside, out = loops.order[len(outside):], list[Stmt]()
    at = ctx.located(replace(here, places={**here.places, **dict.fromkeys(inside, 0)}))
    layout = tuple([v.name for v in found.over])
    for s in found.sums:
        step = next((c for c in calls if product_named(c.kernel) is s.product), None)
        x = next((m for m in ctx.staged if m.part is s.x and m.step.layout == layout and m.step.at in outside), None)
        if step is None or x is None:
            wanted = f"a copy of what it is multiplied by, as [{']['.join(layout)}]" if step is not None else "a call"
            raise refuse(calls[0], f"for {s.name} {wanted}", "none")
        kernel = present(find(step.kernel), f"[plan] expected the microkernel {step.kernel}")
        buffers = ((x.memory, x.box.at(at)), *((p.buffer, at.at[found.panel] * p.pitch + p.offset) for p in s.parts),
                   (results.memory[s.name], results.box.at(at)))
        counts = (loops.extent(layout[0]), loops.count(inside[0], here), *(p.pitch for p in s.parts))
        out.append(IRCall(kernel, buffers, (), counts))
    return out
