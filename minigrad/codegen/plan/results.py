"""Results by way of memory: `results at b as [i][c]`.

    for b:
      for tiles of i, c: for k: acc = acc + ...
        t0_kept[i, c] = acc
      for i: for c across lanes: o0[...] = f(t0_kept[i, c])

What a tile computes beyond the last element stays in that memory.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.ir.nodes import Stmt
from minigrad.codegen.kernel.nodes import Store
from minigrad.codegen.plan.context import Context, Gathered
from minigrad.codegen.plan.copy_loops import Make, copy_loops
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.statements import statements_of
from minigrad.codegen.plan.unscale import unscaled
from minigrad.codegen.plan.words import PAIRS
from minigrad.expr import Index
from minigrad.value import Value, binary, bitcast, load, walk


def results_leave(ctx: Context, g: Gathered, here: Position) -> list[Stmt]:
    """The statements after the sums, over all of their memory."""
    values, written = g.values, {s.param for s in g.rest if isinstance(s, Store)}
    again = any(v.op == "load" and v.buffer in written for v in walk(*values))

    def stored(at: Position, own: tuple[Index, ...], there: tuple[Index, ...]) -> list[Stmt]:
        found = {s.name: bitcast(_sum(ctx, g, s.name, at), s.value.dtype) for s in g.sums}
        return statements_of(ctx, g.rest, replace(at, masked=again), found, (*there, *own) if again else there)

    before = unscaled(ctx, g, here) if ctx.tile is not None and ctx.tile.tile.kind == PAIRS else []
    return [*before, *over_results(ctx, g, here, stored)]


def over_results(ctx: Context, g: Gathered, here: Position, make: Make) -> list[Stmt]:
    """The loops over that memory."""
    return copy_loops(ctx, g.box, g.values, here, make, g.step.transposed, g.step.transposed_by, outwards=True)


def _sum(ctx: Context, g: Gathered, name: str, here: Position) -> Value:
    """The part of a sum that there is at a place, without what a bias added to it."""
    tile = ctx.tile
    total = load(g.memory[name], (g.box.at(here),), g.dtypes[name])
    if tile is None or not tile.biased:
        return total
    below = replace(here, places={**here.places, tile.row: ctx.loops.count(tile.row, here)})
    return binary("sub", total, load(g.memory[name], (g.box.at(below),), g.dtypes[name]))
