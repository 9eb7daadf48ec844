"""Sums whose outer variables carry a factor: the loops of `Plan.outer`.

    for b serial:
      prefetch what scales load AHEAD_SCALES bytes on
      part[u] = 0
      for c serial:
        prefetch what inner loads AHEAD bytes on, or Plan.ahead, once per outermost c
        part[u] += inner(b, c)                  for all copies u of the tile, and all terms
      acc[u] = fma(scale(b), part[u], acc[u])

Integers that were made floats are added up as integers, where their sum is so small that floats would be exact too.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Prefetch, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.monoid import Monoid
from minigrad.codegen.strategies.stream import scaled_terms
from minigrad.codegen.value_interval import interval
from minigrad.dtype import DType, float32, int32
from minigrad.errors import present
from minigrad.expr import Index, Var, product, subs, variables
from minigrad.value import Value, binary, cast, free_variables, load, substitute, walk

AHEAD, AHEAD_SCALES = 512, 192
"""Bytes from what is used to what is prefetched: some iterations of unpacking bits; likewise of scales, some blocks. Of
those the processor's own prefetching was late: 5-10% of a product."""

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
    ahead: list[Stmt] = []
    each: list[Stmt] = []
    early: list[Stmt] = []
    unrolled = frozenset(at[v] for v in inner if v.name in builder.plan.unroll)
    deeper = frozenset(at[v] for v in inner[1:])
    after: list[Stmt] = []
    results: list[tuple[str, DType, Index]] = []
    for monoid, body in bodies:
        dtype, total = body.dtype, builder.name("acc")
        start += builder.start(total, dtype, point.copies, monoid)
        results.append((total, dtype, point.slot))
        for scale, rest in scaled_terms(body, tuple(inner)):
            scale = substitute(present(scale, "[build] expected a factor in each term of a scaled sum"), at)
            rest = substitute(rest, at)
            early += [s for s in prefetches(point, scale, frozenset(), AHEAD_SCALES) if s not in early]
            part = builder.name("part")
            tile, slot = used_copies(point, rest)
            if monoid.name == "sum" and is_exact_in_integers(rest, product(v.hi + 1 for v in inner)):
                rest = rest.args[0]
            block += builder.start(part, rest.dtype, tile.copies, monoid)
            old = load(part, (slot,), rest.dtype)
            updates += unroll_over(tile, [IRStore(part, slot, accumulate(monoid, old, rest))])
            if not builder.plan.ahead:
                ahead += [s for s in prefetches(point, rest, unrolled, AHEAD) if s not in ahead]
            else:
                far = prefetches(point, rest, deeper, builder.plan.ahead)
                each += [s for s in far if s not in each]
            old = old if rest.dtype is dtype else cast(old, dtype)
            whole = accumulate(monoid, load(total, (point.slot,), dtype), binary("mul", scale, old))
            after += unroll_over(point, [IRStore(total, point.slot, whole)])
    loops = [*early, *block, *_inner_loops(builder, inner, at, updates, ahead, each), *after]
    for v in reversed(outer):
        loops = [Loop(at[v], 0, v.hi + 1, "serial", tuple(loops))]  # type: ignore[arg-type]
    return [*start, *loops], results


def _inner_loops(builder: Builder, inner: list[Var], at: dict[Var, Index], updates: list[Stmt], ahead: list[Stmt],
                 each: list[Stmt]) -> list[Stmt]:
    """The sums below the factors, with prefetches in the innermost loop that is one in the text, or before all, and
    those in `each` iteration of the outermost."""
    for v in reversed(inner):
        kind = "unroll" if v.name in builder.plan.unroll else "serial"
        if kind == "serial":
            updates, ahead = [*ahead, *updates], []
        if v is inner[0]:
            updates = [*each, *updates]
        updates = [Loop(at[v], 0, v.hi + 1, kind, tuple(updates))]  # type: ignore[arg-type,list-item]
    return [*ahead, *updates]


def prefetches(point: Point, value: Value, unrolled: frozenset[Index], ahead: int) -> list[Stmt]:
    """Prefetches of what the value will load along the lanes `ahead` bytes on, once per copy that reads elsewhere; not
    of loads that move with `unrolled` variables.

    Where a load moves with unrolled steps of the sum, its streams are dense enough for the processor to see them.
    """
    from minigrad.codegen.strategies.build import Point, unroll_over

    found: list[Stmt] = []
    for v in walk(value):
        if v.op != "load" or point.lane is None:
            continue
        name, (offset,) = v.attr
        used = variables(offset)
        if point.lane not in used or unrolled & used:
            continue
        tile = Point(point.at, tuple((u, f) for u, f in point.unrolled if u in used), point.lane)
        place = subs(offset, {point.lane: ahead * 8 // v.dtype.bits})
        found += unroll_over(tile, [Prefetch(name, place)])
    return found


def stream_ahead(bodies: list[tuple[Monoid, Value]], point: Point, ahead: int
                 ) -> Callable[[dict[Var, Index]], list[Stmt]] | None:
    """What prefetches a stream without factors so many bytes ahead, in each step of its sums; None for 0."""
    def prefetch(step: dict[Var, Index]) -> list[Stmt]:
        here = [substitute(body, {**point.at, **step}) for _, body in bodies]
        return [s for value in here for s in prefetches(point, value, frozenset(), ahead)]

    return prefetch if ahead and point.lane is not None else None


def is_exact_in_integers(value: Value, count: Index) -> bool:
    """Whether a sum of so many of a value, an int32 cast to float32, has no rounding in either type."""
    if value.op != "cast" or value.dtype is not float32 or value.args[0].dtype is not int32:
        return False
    return isinstance(count, int) and count * max(map(abs, interval(value.args[0]))) <= 1 << 24


def used_copies(point: Point, value: Value) -> tuple[Point, Index]:
    """The part of a tile that a value differs in, and the slot of each copy in a register of that size."""
    from minigrad.codegen.strategies.build import Point

    used = free_variables(value)
    tile = Point(point.at, tuple((u, f) for u, f in point.unrolled if u in used), point.lane)
    return tile, tile.slot
