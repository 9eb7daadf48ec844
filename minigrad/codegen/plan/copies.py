"""Copies of operands, as statements: what is copied at a place, and the loops that a worker makes a copy in."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.ir.nodes import If, Loop, Stmt, Store
from minigrad.codegen.plan.border import bordered
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.copy_loops import copy_loops
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.stage import Staged
from minigrad.codegen.plan.words import BIAS, word_of
from minigrad.dtype import uint32
from minigrad.expr import Index, Var, bounds
from minigrad.value import Value, const, free_variables, guard, substitute


def copied_value(ctx: Context, s: Staged, here: Position, conditions: tuple[Index, ...] = ()) -> Value:
    """The value that is copied at a place: 0 outside blocks with the edge guard, and where conditions do not
    hold."""
    zero = const(0, s.dtype)
    conditions = (*conditions, *ctx.within(here, free_variables(s.factor)))
    if s.called is not None:
        elements = [ctx.located(replace(here, places={**here.places, s.called.word: t})).at
                    for t in range(s.called.tile.group)]
        inside = word_of([substitute(s.factor, at) for at in elements], s.called.tile.kind,
                         s.called.biased and s.part is s.called.a)
    else:
        inside = substitute(s.factor, here.at)
    if inside.op == "guard" and inside.args[1] is zero and conditions:
        inside, conditions = inside.args[0], (*conditions, *inside.conditions)
    return guard(inside, zero, conditions)


def fills(ctx: Context, name: str, here: Position) -> list[Stmt]:
    """The copies of operands that a worker makes in a loop."""
    return [s for made in ctx.staged if made.filled == name and not made.step.items for s in fill(ctx, made, here)]


def fill(ctx: Context, s: Staged, here: Position) -> list[Stmt]:
    """The copy, in the loop in which it is made."""
    loops = ctx.loops
    places = {**loops.ones, **here.places}
    if s.called is not None:
        places[s.called.word] = 0
    conditions = tuple([-here.places[x] for x in s.once])
    here = replace(here, places=places)
    apart = bordered(ctx, s, here)
    out = apart if apart is not None else copy_loops(ctx, s.box, (s.factor,), here, lambda at, _, there: [
        Store(s.memory, s.box.at(at), copied_value(ctx, s, at), there)], s.step.transposed, s.step.transposed_by)
    out += _row_below(ctx, s, here)
    return [If(conditions, tuple(out))] if conditions else out


def _row_below(ctx: Context, s: Staged, here: Position) -> list[Stmt]:
    """The row of 128s below those of a copy."""
    called = ctx.tile
    if called is None or not called.biased or s.part is not called.a:
        return []
    places = {**here.places, called.row: ctx.loops.count(called.row, here)}
    loops = list[tuple[Var, Index]]()
    for c in s.box.layout:
        if c not in places:
            count = ctx.loops.count(c, here)
            loops.append((Var(ctx.name(c), 0, bounds(count)[1] - 1), count))
            places[c] = loops[-1][0]
    out: Stmt = Store(s.memory, s.box.at(Position(places)), const(BIAS, uint32))
    for x, count in reversed(loops):
        out = Loop(x, 0, count, "serial", (out,))
    return [out]
