"""Kernel + nest + plan -> loop IR: the one builder. What its parts know is in context.py, the names of
loops in loops.py, statements in statements.py, sums in sums.py.

A Kernel says what each element of an output is. The builder evaluates that at an index inside the loops that the plan
names; each split says what becomes of a block that is not whole, so that every plan that passes `check` gives the same
numbers, apart from the rounding of sums in parts.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigrad.codegen.ir.launch import function_of, spread
from minigrad.codegen.ir.nodes import Function, If, Loop, Stmt
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.plan.ahead import outputs_ahead
from minigrad.codegen.plan.call import call_blocks, call_tile
from minigrad.codegen.plan.check import check
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.copies import fills
from minigrad.codegen.plan.groups import copied_first
from minigrad.codegen.plan.loop_nest import loop_of
from minigrad.codegen.plan.loops import Cut, Loops
from minigrad.codegen.plan.matrix_units import Wave, with_wave
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.results import results_leave
from minigrad.codegen.plan.statements import copy_by_copy, tile_of
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.codegen.plan.steps.call import block_calls
from minigrad.codegen.plan.sums import kept_sums
from minigrad.codegen.plan.tiles import Tiled, with_tile
from minigrad.expr import Var, bounds


def build(kernel: Kernel, nest: Nest, plan: Plan, name: str) -> Function:
    """The loops of one nest of a flat kernel. Raises PlanError where the plan is not one for it."""
    loops, wave, tile = with_microkernels(resolve(nest, plan))
    check(kernel, loops)
    return function(Context(kernel, loops, wave, tile), name)


def with_microkernels(loops: Loops) -> tuple[Loops, Wave | None, Tiled | None]:
    """The loops with those of a matrix unit or a tile. Raises PlanError where the ones inside a call are others."""
    loops, wave = with_wave(loops)
    loops, tile = with_tile(loops)
    return loops, wave, tile


def function(ctx: Context, name: str) -> Function:
    """The function of a nest: workers, and what each of them does."""
    loops = ctx.loops
    head = [x for x in ctx.outer if loops.kind[x] in ("parallel", "group")]
    p, total, places = spread([loops.count(x, Position()) for x in head], head[0] if len(head) == 1 else ctx.name("p"))
    here = ctx.located(Position(dict(zip(head, places, strict=True))))
    body = [*(s for x in head for s in (*fills(ctx, x, here), *outputs_ahead(ctx, x, here))),
            *copied_first(ctx, here), *_domain(ctx, len(head), here)]
    if ctx.items is not None:
        body = [Loop(ctx.items.var, 0, ctx.items.count, "item", tuple(body))]
    kind = "parallel" if ctx.items is None else "group"
    return function_of(ctx.kernel, name, Loop(p, 0, total, kind, (*ctx.memory, *body)))


def _domain(ctx: Context, k: int, here: Position) -> list[Stmt]:
    """The loops of the domain from the k-th on, then the nest's statements."""
    left = [x for x in (*ctx.outer[k:], *ctx.copies) if x not in here.omitted]
    outer = k < len(ctx.outer)
    for x in left[:1] if outer else left:
        s = ctx.undecided(x, here)
        if s is not None:
            return _whole_or_rest(ctx, s, here, lambda at: _domain(ctx, k, at))
    if not outer and ctx.gathered is not None:
        sums = call_blocks(ctx, here) if block_calls(ctx.loops) else _kept(ctx, 0, here)
        return [*sums, *results_leave(ctx, ctx.gathered, here)]
    if not outer and ctx.middle:
        return _kept(ctx, 0, here)
    if not outer:
        return tile_of(ctx, ctx.loops.units, replace(here, copies=tuple(left)))
    if ctx.outer[k] in here.omitted:
        return _domain(ctx, k + 1, here)
    return loop_of(ctx, ctx.outer[k], here, lambda at: _domain(ctx, k + 1, at))


def _whole_or_rest(ctx: Context, s: Cut, here: Position, inner: Callable[[Position], list[Stmt]]) -> list[Stmt]:
    """A block of a split of the domain: whole, or what is left of it one by one."""
    base, length = ctx.loops.start(s, here), ctx.loops.count(s.loop, here)
    x = Var(s.loop, 0, length - 1)
    start = length // s.size * s.size if isinstance(length, int) else base  # only the last block is not whole
    rest = Loop(x, start, length, "serial", tuple(inner(ctx.instead(here, s, x))))
    if bounds(length)[1] < s.size:
        return [rest]
    whole = inner(replace(here, full_splits=here.full_splits | {s.loop}))
    return [If((length - base - s.size,), tuple(whole), (rest,))]


def _kept(ctx: Context, k: int, here: Position) -> list[Stmt]:
    """Loops of a sum and of the domain inside them, from the k-th on: its accumulators stay in memory from one
    iteration of the sum's to the next."""
    if k < len(ctx.middle):
        return loop_of(ctx, ctx.middle[k], here, lambda at: _kept(ctx, k + 1, at))
    if ctx.tile is not None:
        return call_tile(ctx, ctx.tile, here)
    first, *rest = ctx.loops.units
    here = replace(here, copies=ctx.copies)
    sums, results = kept_sums(ctx, first, here)  # type: ignore[arg-type]
    if ctx.gathered is not None:
        return [*sums.begin(here), *sums.steps(here), *sums.join(here), *sums.keep(here, ())]
    done = [*sums.join(here), *copy_by_copy(ctx, rest, here, results)]
    return [*sums.begin(here), *sums.steps(here), *sums.keep(here, done)]
