"""Loops over memory that is laid out by coordinates: those of a copy, and of results.

Coordinates that what is read or stored steps through as one are one loop, lanes go along the last one, and the whole
runs in square blocks where the other side is contiguous along another.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.codegen.ir.walk import map_all
from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.coordinates import loop_of, parse_coordinate, room
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.rows import lanes_of
from minigrad.codegen.plan.runs import Run, runs_of
from minigrad.expr import Index, Var, bounds, emin, subs
from minigrad.value import Value, substitute

Make = Callable[[Position, tuple[Index, ...], tuple[Index, ...]], list[Stmt]]
"""Makes the statements of a place, given conditions under which it is no other vector's as well, and under which there
is one."""


def copy_loops(ctx: Context, memory: Box, values: Sequence[Value], here: Position, make: Make, transposed: str = "",
          transposed_by: int = 1, outwards: bool = False) -> list[Stmt]:
    """Loops over memory, lanes along its last coordinate. With `transposed_by`, as many steps along
    `transposed` are written out inside, so that square blocks are transposed in registers; `outwards`, lanes go along
    that, and the last coordinate is written out. Of a coordinate `kx%2` each place has loops of its own."""
    out: list[Stmt] = []
    parts = [parse_coordinate(c) for c in memory.layout if "%" in c]
    for residues in product(*(range(n) for _, _, n in parts)):
        fixed = {x: r for (x, _, _), r in zip(parts, residues, strict=True)}
        if all(r < room(ctx.loops, x) for x, r in fixed.items()):
            places: dict[str, Index] = {**here.places, **fixed}
            runs = runs_of(ctx, memory, values, here, places, fixed)
            out += _loops(ctx, runs, here, places, make, (transposed, transposed_by if transposed else 1), outwards)
    return out


def _loops(ctx: Context, runs: list[Run], here: Position, places: dict[str, Index], make: Make,
           transposed: tuple[str, int], outwards: bool) -> list[Stmt]:
    """The loops over runs. What whole vectors leave is another one that reaches back, or has fewer elements."""
    if not runs:  # all loops are open
        return make(ctx.located(replace(here, places=places, copies=())), (), ())
    if any([r.count == 0 for r in runs]):
        return []
    along = transposed[0]
    while along in ctx.loops.fused and not any(r.has(along) for r in runs):
        along = ctx.loops.fused[along].inner
    lanes, written = runs[-1], next((r for r in runs[:-1] if r.has(along)), None)
    if written is not None and outwards:
        lanes, written = written, lanes
    width = lanes_of(ctx.loops)
    inner = [r for r in ((written, lanes) if outwards else (lanes, written)) if r is not None]
    opened, blocks = list[tuple[Var, Index, str]](), list[tuple[Var, Index, str]]()
    own, there, exact = list[Index](), list[Index](), dict[Var, Index]()
    for run in [*(r for r in runs if r not in inner), *inner]:
        count, name = run.count, f"{loop_of(run.parts[-1][0])}_{'o' if outwards else 'c'}"
        size = _lanes(count, width) if run is lanes else _written(count, transposed[1]) if run is written else 1
        stop = (count + (size - 1)) // size
        x, at = Var(ctx.name(name), 0, max(bounds(stop)[1] - 1, 0)), Var(f"{name}_at", 0, max(bounds(count)[1] - 1, 0))
        block: Index = x if stop != 1 else 0
        if stop != 1:
            opened.append((x, stop, "serial"))
        exact[at] = block
        if size > 1:
            step = Var(ctx.name("l" if run is lanes else "u"), 0, size - 1)
            blocks.insert(0 if run is lanes else len(blocks), (step, size, "vector" if run is lanes else "unroll"))
            back = bounds(count)[0] >= size and not (isinstance(count, int) and count % size == 0)
            exact[at] = (emin(block * size, count - size) if back else block * size) + step
            own.append(exact[at] - block * size)
            there.append(count - 1 - exact[at])
        run.put(ctx.loops, at, places)
    made = make(ctx.located(replace(here, places=places, copies=())),
                *(tuple([e for e in found if bounds(e)[0] < 0]) for found in (own, there)))
    out = list(map_all(tuple(made), lambda v: substitute(v, exact), lambda e: subs(e, exact),
                       lambda _, e: subs(e, exact)))
    for x, stop, kind in reversed([*opened, *blocks]):
        out = [Loop(x, 0, stop, kind, tuple(out))]
    return out


def _lanes(count: Index, width: int) -> int:
    """Lanes for a row: fewer where half of them cover it."""
    most = bounds(count)[1]
    while width > 1 and width // 2 >= most:
        width //= 2
    return width


def _written(count: Index, most: int) -> int:
    """Elements of a row that are written out."""
    return min(bounds(count)[0], most) if isinstance(count, int) or bounds(count)[0] >= most else 1
