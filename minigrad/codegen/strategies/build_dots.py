"""The last columns of a contraction in panels, fewer than a vector: dot products, lanes along K.

    once per unit of work that has the last tile:     pack those columns of B, each contiguous along K
      after the last tile of some rows:               their sums, lanes along K, then across lanes; A is still near
    at the end:                                       the nest's stores, lanes along M
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, If, Loop, Stmt, Store
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.strategies.build import accumulate
from minigrad.codegen.value_walk import Rewriter
from minigrad.expr import Index, Var
from minigrad.value import Value, across, binary, const, guard, load, substitute

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_panels import PanelBuilder

DOT_SUMS = 24
"""Sums in registers at a time."""


def dot_groups(rows: int, columns: int) -> list[int]:
    """How many columns are summed at a time, with so many rows."""
    count = -(-columns // max(1, DOT_SUMS // rows))
    return [columns // count + (k < columns % count) for k in range(count)]


class Dots:
    """The columns from `builder.sizes`' last one on, of a unit of work with rows m0 .. m0 + m_count."""

    def __init__(self, builder: PanelBuilder, m0: Index, m_count: Index):
        self.builder, self.m0, self.m_count = builder, m0, m_count
        self.columns, self.width = builder.plan.dots, builder.plan.width
        self.first, self.k = builder.sizes[1:]
        self.steps = -(-self.k // self.width)
        self.lead = builder.rows
        self.pitch = self.lead + -(-builder.plan.unit_m // self.width) * self.width

    def memory(self) -> list[Stmt]:
        """`b_dots[t][k]`, and the sums as `dots[t][row]`; a tile that reaches back begins before the unit's rows."""
        dtype = self.builder.dtype
        return [Alloc("b_dots", dtype, self.columns * self.steps * self.width, "scratch"),
                Alloc("dots", dtype, self.columns * self.pitch, "scratch")]

    def pack(self) -> Stmt:
        """The columns of B, 0 beyond the last step of the sum."""
        b = self.builder
        x, t, lane = b.fresh("k", self.steps - 1), b.fresh("t", self.columns - 1), b.fresh("l", self.width - 1)
        place = x * self.width + lane
        here = self.inside(substitute(b.contraction.b, {**b.at, b.n: self.first + t, b.k: place}), place)
        body = Store("b_dots", t * (self.steps * self.width) + place, here)
        return Loop(x, 0, self.steps, "serial", (
            Loop(lane, 0, self.width, "vector", (Loop(t, 0, self.columns, "unroll", (body,)),)),))

    def inside(self, value: Value, k: Index) -> Value:
        return guard(value, const(0, value.dtype), (self.k - 1 - k,)) if self.k % self.width else value

    def sums(self, row: Index) -> Iterator[Stmt]:
        """The sums of the tile at `row`, some columns at a time."""
        b, rows, first, whole = self.builder, self.builder.rows, 0, self.k // self.width
        for count in dot_groups(rows, self.columns):
            x, u, t, lane = (b.fresh(stem, last) for stem, last in (
                ("k", self.steps - 1), ("u", rows - 1), ("t", count - 1), ("l", self.width - 1)))
            acc = f"sums_{b.count}"

            def each(s: Stmt, u: Var = u, t: Var = t, count: int = count) -> tuple[Stmt, ...]:
                return (Loop(u, 0, rows, "unroll", (Loop(t, 0, count, "unroll", (s,)),)),)

            old = load(acc, (u * count + t,), b.dtype)

            def term(step: Index, u: Var = u, t: Var = t, lane: Var = lane, first: int = first,
                     old: Value = old) -> Value:
                k = step * self.width + lane
                left = substitute(b.contraction.a, {**b.at, b.m: b.row(row) + u, b.k: k})
                left = left if isinstance(step, Var) else self.inside(left, k)
                right = load("b_dots", ((first + t) * (self.steps * self.width) + k,), b.dtype)
                return accumulate(MONOIDS["sum"], old, binary("mul", left, right))

            body: list[Stmt] = [Alloc(acc, b.dtype, rows * count, "register"),
                                *each(Store(acc, u * count + t, const(0, b.dtype))),
                                Loop(x, 0, whole, "serial", each(Store(acc, u * count + t, term(x))))]
            if self.steps > whole:
                body += each(Store(acc, u * count + t, term(whole)))
            place = (first + t) * self.pitch + self.lead + b.row(row) - self.m0 + u
            body += each(Store("dots", place, across("sum", old)))
            yield Loop(lane, 0, self.width, "vector", tuple(body))
            first += count

    def write(self) -> Stmt:
        """The nest's stores of these columns."""
        b, c = self.builder, self.builder.contraction
        stop = -(-self.m_count // self.width) if isinstance(self.m_count, int) else (
            self.m_count + (self.width - 1)) // self.width
        t, r, lane = b.fresh("t", self.columns - 1), b.fresh("r", stop - 1), b.fresh("l", self.width - 1)
        place = r * self.width + lane
        whole = isinstance(self.m_count, int) and self.m_count % self.width == 0
        total = load("dots", (t * self.pitch + self.lead + place,), b.dtype)
        here = Rewriter({**b.at, b.m: self.m0 + place, b.n: self.first + t}, locals_={c.name: total})
        stores = tuple(Store(s.param, here.index(s.indices[0]), here.value(s.value),
                             () if whole else (self.m_count - 1 - place,)) for s in c.outputs)
        return Loop(t, 0, self.columns, "serial", (
            Loop(r, 0, stop, "serial", (Loop(lane, 0, self.width, "vector", stores),)),))


def when(conditions: tuple[Index, ...], body: list[Stmt]) -> list[Stmt]:
    """The statements where all conditions hold; those that are known to hold are left out."""
    left = tuple(e for e in conditions if not (isinstance(e, int) and e >= 0))
    return [If(left, tuple(body))] if left else body
