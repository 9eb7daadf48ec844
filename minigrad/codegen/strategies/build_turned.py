"""Packed contractions whose operand with windows is A: a weight gradient. Rows of a tile are taps of one box.

    for blocks of K:
      pack boxes of A, each element once, and B [k, n]
      for tiles of N: for rows of M that are no taps: for k: taps x vectors accumulators
    write back, across the output's contiguous variable
"""
from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.codegen.strategies.build_squares import write_squares
from minigrad.codegen.strategies.launch import ceil_div
from minigrad.codegen.strategies.sides import Block, Boxes, Side, boxes
from minigrad.codegen.strategies.windows import axes_of_a, within
from minigrad.expr import Index, Var
from minigrad.value import load

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_packed import PackedBuilder


def turned_block(builder: PackedBuilder, m: Side, n: Side, k: Side, loops: list[tuple[Var, Index]]) -> list[Stmt]:
    """One iteration of the parallel loop; `loops` are those over blocks of K."""
    c, plan = builder.contraction, builder.plan
    builder.count += 1
    a = boxes(f"a_{builder.count}", within(axes_of_a(c), plan.m), k, m, 1, c.a.dtype.itemsize)
    b = builder.memory("b", k.most, n.most, plan.vectors)
    out = builder.memory("c", m.most + plan.width - 1, n.most, plan.vectors)
    inner = [*builder.pack_boxes(a, c.a, m), *builder.pack(b, c.b, k, n, plan.b_lanes),
             *_tiles(builder, a, b, out, m, n, k, tuple(-t for t, _ in loops))]
    return builder.whole((a, b), out, loops, inner, write_squares(builder, out, m, n))


def _tiles(builder: PackedBuilder, a: Boxes, b: Block, out: Block, m: Side, n: Side, k: Side, first: tuple[Index, ...]
           ) -> list[Stmt]:
    """out += a @ b; where `first` holds, out = a @ b."""
    plan, dtype = builder.plan, builder.contraction.a.dtype
    columns = plan.vectors * plan.width
    j = builder.fresh("j", ceil_div(n.count, columns) - 1)
    lane = builder.fresh("l", plan.width - 1)
    u, v = builder.fresh("u", plan.rows - 1), builder.fresh("v", plan.vectors - 1)
    down: list[tuple[Var, Index]] = []
    taps: dict[Var, Index] = {}
    row, inside = cast(Index, 0), 1
    for var, part, count, pitch in reversed(m.inside()):
        here = min(part, plan.rows // inside)
        if here == part:
            taps[var] = u // inside % part
        elif here > 1:
            x = builder.fresh(var.name, part // here - 1)
            down.insert(0, (x, part // here))
            taps[var] = x * here + u // inside
        else:
            taps[var] = x = builder.fresh(var.name, count - 1)
            down.insert(0, (x, count))
        inside *= here
        row = row + taps[var] * pitch
    place, step = a.place(taps), cast(Index, 0)
    steps: list[tuple[Var, Index, str]] = []
    pitches = {v: pitch * a.image_size for v, pitch in zip(a.images.variables, a.images.pitches, strict=True)}
    pitches |= {axis.x: pitch for axis, pitch in zip(a.layout.axes, a.layout.pitches, strict=True)}
    for var, _, count, pitch in k.inside():
        x = builder.fresh(var.name, count - 1)
        steps.append((x, count, "serial"))
        place, step = place + x * pitches[var], step + x * pitch
    column = j * columns + v * plan.width + lane
    left, right = load(a.name, (place,), dtype), load(b.name, (step * b.pitch + column,), dtype)
    nest: Stmt = builder.microkernel(lane, (u, v), left, right, steps, out, row * out.pitch + column, first)
    for x, count in reversed(down):
        nest = Loop(x, 0, count, "serial", (nest,))
    return [Loop(j, 0, ceil_div(n.count, columns), "serial", (nest,))]
