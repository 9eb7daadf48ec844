"""What becomes of the sums of packed contractions of bfloat16 (`bfloat16.py`).

    sums = sums / scale^2; seen: one of them is no finite number
    if seen: for rows: for vectors: if one of these is no finite number: compute such ones again, in float32, from the
                                                                         operands as they are

The latter has no speed to speak of, and is there for operands that are infinite or NaN, or as large as 2^100.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, If, Let, Loop, Stmt, Store
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.bfloat16 import KIND, SCALE, in_pairs
from minigrad.codegen.strategies.launch import ceil_div
from minigrad.codegen.strategies.narrow import in_words
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.codegen.strategies.sides import Block, Side, expressions_of, places_of, runs_of
from minigrad.dtype import float32, int32
from minigrad.expr import Index, Var
from minigrad.value import Value, ValueIndex, across, binary, const, guard, load, local, substitute, unary, where

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_packed import PackedBuilder

MAX = 3.4028234663852886e38
_NO, _YES = const(0, int32), const(1, int32)


def over_words(c: Contraction, words: str) -> Contraction:
    """The contraction over the words that a plan packs, '' for elements."""
    return in_pairs(c) if words == KIND else in_words(c, words) if words else c


def unscaled(builder: PackedBuilder, whole: Contraction, out: Block, m: Side, n: Side) -> list[Stmt]:
    """The sums of a block, `whole` being the contraction of the numbers themselves. Nothing for other words."""
    if builder.plan.words != KIND:
        return []
    width = builder.plan.width
    builder.count += 1
    seen, part, total = (f"{stem}_{builder.count}" for stem in ("seen", "odd", "total"))
    vectors = ceil_div(n.count, width)
    row, y, lane = builder.fresh("i", m.count - 1), builder.fresh("y", vectors - 1), builder.fresh("l", width - 1)
    place, column = row * out.pitch + y * width + lane, y * width + lane
    sums = binary("mul", load(out.name, (place,), float32), const(SCALE ** -2, float32))
    odd = guard(_odd(local(total, float32)), _NO, (n.count - 1 - column,))
    body = (Let(total, sums), Store(out.name, place, local(total, float32)),
            Store(part, 0, binary("or", load(part, (0,), int32), odd)))
    look = Loop(lane, 0, width, "vector", (
        Alloc(part, int32, 1, "register"), Store(part, 0, _NO),
        Loop(row, 0, m.count, "serial", (Loop(y, 0, vectors, "serial", body),)),
        Store(seen, 0, across("max", load(part, (0,), int32)))))
    return [Alloc(seen, int32, 1, "scratch"), look, If((_holds(seen),), tuple(_again(builder, whole, out, m, n, seen)))]


def _odd(x: Value) -> Value:
    """1 for what is infinite or NaN, else 0."""
    return where(binary("le", unary("abs", x), const(MAX, float32)), _NO, _YES)


def _holds(seen: str) -> Index:
    return ValueIndex(load(seen, (0,), int32), 0, 1) - 1


def _again(builder: PackedBuilder, whole: Contraction, out: Block, m: Side, n: Side, seen: str) -> list[Stmt]:
    """Those that are no finite numbers, computed from the operands."""
    expressions = [e for x in (whole.a, whole.b) for e in expressions_of(x)]
    row_runs, column_runs = runs_of(m, expressions), runs_of(n, expressions)
    row, column = places_of(row_runs), places_of(column_runs)
    acc = f"again_{builder.count}"

    def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
        """One vector, where `seen` says so."""
        at, steps = dict(at), [(v, builder.fresh(v.name, v.hi)) for v in whole.k]
        at |= dict(steps)
        zero, offset = const(0, float32), row(place) * out.pitch + column(place)
        old = load(out.name, (offset,), float32)
        product = binary("mul", *(guard(substitute(x, at), zero, conditions) for x in (whole.a, whole.b)))
        total: tuple[Stmt, ...] = (Store(acc, 0, accumulate(MONOIDS["sum"], load(acc, (0,), float32), product)),)
        for v, x in reversed(steps):
            total = (Loop(x, 0, v.hi + 1, "serial", total),)
        repaired = where(binary("eq", _odd(old), _YES), load(acc, (0,), float32), old)
        look = Store(seen, 0, across("max", guard(_odd(old), _NO, conditions)))
        again = (Alloc(acc, float32, 1, "register"), Store(acc, 0, zero), *total,
                 Store(out.name, offset, repaired, conditions))
        width = builder.plan.width
        return [Loop(lane, 0, width, "vector", (look,)),
                If((_holds(seen),), (Loop(lane, 0, width, "vector", again),))]

    return builder.sweep([*row_runs, *column_runs], column_runs[-1], builder.plan.width, {**m.origin, **n.origin}, body,
                         own_lanes=True)
