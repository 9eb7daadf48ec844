"""Sums whose outer variables carry a factor: the loops of `Plan.outer`.

    for b serial:
      part[u] = 0
      for c serial: part[u] += inner(b, c)      for all copies u of the tile, and all terms
      acc[u] = fma(scale(b), part[u], acc[u])
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.monoid import Monoid
from minigrad.codegen.strategies.stream import scaled_terms
from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.value import Value, binary, free_variables, load, substitute

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build import Builder, Point


def scaled_sums(builder: Builder, over: tuple[Var, ...], bodies: list[tuple[Monoid, Value]], point: Point
                ) -> tuple[list[Stmt], list[tuple[str, DType, Index]]]:
    """The statements of sums with scaled terms over one space, and where the results are: (register, dtype, slot)."""
    from minigrad.codegen.strategies.build import accumulate, unroll_over

    outer = [v for v in over if v.name in builder.plan.outer]
    inner = [v for v in over if v.name not in builder.plan.outer]
    at: dict[Var, Index] = {**point.at, **{v: builder.fresh(v.name, v.hi) for v in over}}
    start: list[Stmt] = []
    block: list[Stmt] = []
    updates: list[Stmt] = []
    after: list[Stmt] = []
    results: list[tuple[str, DType, Index]] = []
    for monoid, body in bodies:
        dtype, total = body.dtype, builder.name("acc")
        start += builder.start(total, dtype, point.copies, monoid)
        results.append((total, dtype, point.slot))
        for scale, rest in scaled_terms(body, tuple(inner)):
            assert scale is not None
            scale, rest = substitute(scale, at), substitute(rest, at)
            part = builder.name("part")
            tile, slot = used_copies(point, rest)
            block += builder.start(part, dtype, tile.copies, monoid)
            old = load(part, (slot,), dtype)
            updates += unroll_over(tile, [IRStore(part, slot, accumulate(monoid, old, rest))])
            whole = accumulate(monoid, load(total, (point.slot,), dtype), binary("mul", scale, old))
            after += unroll_over(point, [IRStore(total, point.slot, whole)])
    for v in reversed(inner):
        kind = "unroll" if v.name in builder.plan.unroll else "serial"
        updates = [Loop(at[v], 0, v.hi + 1, kind, tuple(updates))]  # type: ignore[arg-type]
    loops = [*block, *updates, *after]
    for v in reversed(outer):
        loops = [Loop(at[v], 0, v.hi + 1, "serial", tuple(loops))]  # type: ignore[arg-type]
    return [*start, *loops], results


def used_copies(point: Point, value: Value) -> tuple[Point, Index]:
    """The part of a tile that a value differs in, and the slot of each copy in a register of that size."""
    from minigrad.codegen.strategies.build import Point

    used = free_variables(value)
    tile = Point(point.at, tuple((u, f) for u, f in point.unrolled if u in used), point.lane)
    return tile, tile.slot
