"""Sums of words of bfloat16 made right, as they are of operands times a scale (`words.py`).

    sums = sums / scale^2; seen: one of them is no finite number
    if seen: for rows: for vectors: if one of these is no finite number: compute such ones again, in float32, from the
                                                                         operands as they are

The latter has no speed to speak of, and is there for operands that are infinite or NaN, or as large as 2^100.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.ir.nodes import Alloc, If, Let, Loop, Stmt, Store
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Define
from minigrad.codegen.plan.context import Context, Gathered
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.words import SCALE
from minigrad.dtype import float32, int32
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds
from minigrad.value import Value, ValueIndex, across, binary, const, guard, load, local, substitute, unary, where

MAX = 3.4028234663852886e38
_NO, _YES = const(0, int32), const(1, int32)


def unscaled(ctx: Context, g: Gathered, here: Position) -> list[Stmt]:
    """The sums in memory as those of the operands themselves."""
    sum_, = g.sums
    memory, seen, odd, total = g.memory[sum_.name], ctx.name("seen"), ctx.name("odd"), ctx.name("total")
    columns = present(ctx.tile, "[plan] expected a tile of words").tile.columns
    lanes = min(16, columns & -columns)
    lane = Var(ctx.name("l"), 0, lanes - 1)
    some = ValueIndex(load(seen, (0,), int32), 0, 1) - 1

    def look(at: Position, inside: tuple[Index, ...]) -> list[Stmt]:
        place = g.box.at(at)
        sums = binary("mul", load(memory, (place,), float32), const(SCALE ** -2, float32))
        found = guard(_odd(local(total, float32)), _NO, inside)
        return [Let(total, sums), Store(memory, place, local(total, float32)),
                Store(odd, 0, binary("or", load(odd, (0,), int32), found))]

    def repair(at: Position, inside: tuple[Index, ...]) -> list[Stmt]:
        found = guard(_odd(load(memory, (g.box.at(at),), float32)), _NO, inside)
        return [Loop(lane, 0, lanes, "vector", (Store(seen, 0, across("max", found)),)),
                If((some,), (Loop(lane, 0, lanes, "vector", tuple(_again(ctx, g, sum_, at, inside))),))]

    first = Loop(lane, 0, lanes, "vector", (
        Alloc(odd, int32, 1, "register"), Store(odd, 0, _NO), *_vectors(ctx, g, here, lane, look),
        Store(seen, 0, across("max", load(odd, (0,), int32)))))
    return [Alloc(seen, int32, 1, "scratch"), first, If((some,), tuple(_vectors(ctx, g, here, lane, repair)))]


def _odd(x: Value) -> Value:
    """1 for what is infinite or NaN, else 0."""
    return where(binary("le", unary("abs", x), const(MAX, float32)), _NO, _YES)


def _vectors(ctx: Context, g: Gathered, here: Position, lane: Var,
             make: Callable[[Position, tuple[Index, ...]], list[Stmt]]) -> list[Stmt]:
    """Loops over the vectors of the memory of sums; what is done at a place, and what holds for one within its row."""
    loops, places, lanes = list[tuple[Var, Index]](), dict(here.places), bounds(lane)[1] + 1
    for c in g.box.layout:
        count = ctx.loops.count(c, here)
        stop = ceil_div(count, lanes) if c == g.box.layout[-1] else count
        loops.append((Var(ctx.name(f"{c}_o"), 0, max(bounds(stop)[1] - 1, 0)), stop))
        places[c] = loops[-1][0]
    places[c] = loops[-1][0] * lanes + lane
    out = make(replace(here, places=places), (count - 1 - places[c],))
    for x, stop in reversed(loops):
        out = [Loop(x, 0, stop, "serial", tuple(out))]
    return out


def _again(ctx: Context, g: Gathered, s: Define, here: Position, inside: tuple[Index, ...]) -> list[Stmt]:
    """Those of a vector that are no finite numbers, computed from the operands."""
    steps = [Var(ctx.name(v.name), 0, v.hi) for v in s.value.over]
    at = {**ctx.located(here).at, **dict(zip(s.value.over, steps, strict=True))}
    memory, acc, place, zero = g.memory[s.name], ctx.name("again"), g.box.at(here), const(0, float32)
    x, y = (guard(substitute(x, at), zero, inside) for x in s.value.args[0].args)
    out: Stmt = Store(acc, 0, accumulate(MONOIDS["sum"], load(acc, (0,), float32), binary("mul", x, y)))
    for v in reversed(steps):
        out = Loop(v, 0, v.hi + 1, "serial", (out,))
    old = load(memory, (place,), float32)
    repaired = where(binary("eq", _odd(old), _YES), load(acc, (0,), float32), old)
    return [Alloc(acc, float32, 1, "register"), Store(acc, 0, zero), out, Store(memory, place, repaired, inside)]
