"""Sums with lanes along a variable of the sum.

    for l vector:
      acc[u] = 0                                    for all copies u of the tile
      for r serial:
        prefetch the same place in the next tile    under Plan.ahead
        acc[u] = combine(acc[u], body(W*r + l))
      s[u] = across(acc[u])
    for r in what whole vectors leave serial:
      s[u] = combine(s[u], body(r))
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, Loop, Prefetch, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.monoid import Monoid
from minigrad.dtype import DType
from minigrad.errors import present
from minigrad.expr import Index, Var, subs, variables
from minigrad.value import Value, across, load, walk

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build import Builder, Point


def lane_sums(builder: Builder, over: tuple[Var, ...], bodies: list[tuple[Monoid, Value]], point: Point
              ) -> tuple[list[Stmt], list[tuple[str, DType, Index]]]:
    """Vector accumulators along a reduction variable, joined across lanes at the end; then what is left of it. The
    statements, and where the results are: (register, dtype, slot)."""
    from minigrad.codegen.strategies.build import unroll_over

    r = present(builder.lane_variable(over), "[build] expected a variable across lanes")
    width, chains = builder.plan.inner_of(r.name)
    over = tuple(v for v in over if v is not r) + (r,)
    sums = [builder.name("s") for _ in bodies]
    accs = [builder.name("acc") for _ in bodies]
    out: list[Stmt] = [Alloc(s, b.dtype, point.copies, "register") for s, (_, b) in zip(sums, bodies, strict=True)]
    lane = builder.fresh("l", width - 1)
    vector: list[Stmt] = []
    for acc, (monoid, body) in zip(accs, bodies, strict=True):
        vector += builder.start(acc, body.dtype, point.copies * chains, monoid)

    def update(mapping: dict[Var, Index], chain: Index) -> list[Stmt]:
        mapping = {**mapping, r: mapping[r] * width + lane}
        return builder.update(accs, bodies, point, mapping, point.slot * chains + (chain if chains > 1 else 0))

    def ahead(mapping: dict[Var, Index]) -> list[Stmt]:
        return next_tile(builder, bodies, point, {**mapping, r: mapping[r] * width}, r)

    steps = builder.plan.ahead
    vector += builder.loops(over, r, width, steps or chains, update, ahead if steps else None)
    for acc, s, (monoid, body) in zip(accs, sums, bodies, strict=True):
        vector += builder.join_chains(acc, body.dtype, monoid, point, chains)
        total = across(monoid.name, load(acc, (point.slot * chains,), body.dtype))
        vector += unroll_over(point, [IRStore(s, point.slot, total)])
    out.append(Loop(lane, 0, width, "vector", tuple(vector)))
    length = r.hi + 1
    if not isinstance(length, int) or length % width:
        x = builder.fresh(r.name, r.hi)
        others = {v: builder.fresh(v.name, v.hi) for v in over[:-1]}
        tail = builder.update(sums, bodies, point, {**others, r: x}, point.slot)
        tail = [Loop(x, length // width * width, length, "serial", tuple(tail))]
        for v in reversed(over[:-1]):
            tail = [Loop(others[v], 0, v.hi + 1, "serial", tuple(tail))]
        out += tail
    return out, [(s, b.dtype, point.slot) for s, (_, b) in zip(sums, bodies, strict=True)]


def next_tile(builder: Builder, bodies: list[tuple[Monoid, Value]], point: Point, mapping: dict[Var, Index], r: Var
              ) -> list[Stmt]:
    """Prefetches of the places `mapping` in the rows of the next tile, once per row, of what moves with both."""
    from minigrad.codegen.strategies.build import Point, unroll_over

    row = next(v for v in builder.nest.domain if v.name == builder.plan.order[0])
    found: list[Stmt] = []
    for v in walk(*[body for _, body in bodies]):
        if v.op != "load":
            continue
        name, (offset,) = v.attr
        if {row, r} <= set(variables(offset)):
            at = {**point.at, **mapping}
            place = subs(offset, {**at, row: at[row] + builder.plan.block(row.name)})
            used = variables(place)
            tile = Point(point.at, tuple((u, f) for u, f in point.unrolled if u in used), point.lane)
            found += [s for s in unroll_over(tile, [Prefetch(name, place)]) if s not in found]
    return found
