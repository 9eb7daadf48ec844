"""Squares of packed contractions: what lies across the lanes, whole vectors of it transposed in registers."""
from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minigrad.codegen.ir.nodes import If, Loop, Stmt, Store
from minigrad.codegen.strategies.launch import ceil_div
from minigrad.codegen.strategies.sides import Block, Run, places_of
from minigrad.expr import Index, Var, bounds, emin
from minigrad.value import Value, const, guard, substitute

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_packed import PackedBuilder

def pack_squares(builder: PackedBuilder, block: Block, value: Value, runs: tuple[list[Run], list[Run], list[Run]],
                 at: dict[Var, Index]) -> list[Stmt]:
    """block[row * pitch + column] = value for runs of rows and of columns, in squares that are read along the last of
    the runs of rows, those near each other (`runs_in_squares`); the last one of a long run reaches back over the one
    before it."""
    rows, columns, near = runs
    width, across = builder.plan.width, columns[-1]
    lane, stop = builder.fresh("l", width - 1), ceil_div(near[-1].count, width)
    x, y = builder.fresh("x", stop - 1), builder.fresh(across.last.name, ceil_div(across.count, width) - 1)
    long = bounds(near[-1].count)[0] >= width
    steps = [builder.fresh("u", (width if long else cast(int, run.count)) - 1) for run in near]
    place: dict[Var, Index] = {run.last: u for run, u in zip(near, steps, strict=True)}
    if long:
        place[near[-1].last] = emin(x * width, near[-1].count - width) + steps[-1]
    place[across.last] = y * width + lane
    outer = [(r, builder.fresh(r.last.name, r.count - 1)) for r in (*rows[:len(rows) - len(near)], *columns[:-1])]
    place |= {r.last: v for r, v in outer}
    here = substitute(value, {**at, **{v: at[v] + step for v, step in place.items()}})
    to = places_of(rows)(place) * block.pitch + places_of(columns)(place)
    zero, over = const(0, here.dtype), across.count - 1 - place[across.last]

    def square(inside: tuple[Index, ...]) -> tuple[Stmt, ...]:
        made: Stmt = Store(block.name, to, guard(here, zero, inside))
        for u in reversed(steps):
            made = Loop(u, 0, u.hi + 1, "unroll", (made,))
        return (made,)

    body = square(())
    if not isinstance(across.count, int) or across.count % width:
        body = (If((across.count - (y + 1) * width,), body, square((over,))),)
    loops = [*((v, r.count, "serial") for r, v in outer), (y, ceil_div(across.count, width), "serial"),
             *([(x, stop, "serial")] if long else []), (lane, width, "vector")]
    for var, end, kind in reversed(loops):
        body = (Loop(var, 0, end, kind, body),)
    return list(body)
