"""The last columns of a contraction in panels, fewer than a vector: dot products beside the last tile.

    once per unit of work that has the last tile:     pack those columns of B, each contiguous along K
      after the last tile of some rows:               their sums, lanes along K where A is contiguous along it, then
                                                      across lanes; else lanes along the rows. A is still near
    at the end:                                       the nest's stores

Columns are read and written far apart, an element at a time: packing and storing go along them in lanes only where
there is something to compute.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, If, Loop, Stmt, Store
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.blocking import is_plain, row_bytes
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.codegen.transforms.math import FUNCTIONS
from minigrad.codegen.value_walk import Rewriter
from minigrad.expr import Index
from minigrad.value import Value, across, binary, const, guard, load, substitute, walk

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_panels import Block, PanelBuilder

LIGHT = 8
"""Operations of what is computed for an element by itself, or written out for every vector of a tile."""

DOT_SUMS = 24
"""Sums in registers at a time."""

CHAINS = 8
"""Of them, where lanes go along the rows."""


def dot_groups(rows: int, columns: int) -> list[int]:
    """How many columns are summed at a time, with so many rows."""
    count = -(-columns // max(1, DOT_SUMS // rows))
    return [columns // count + (k < columns % count) for k in range(count)]


def lanes_along_rows(c: Contraction) -> bool:
    """Whether A is not contiguous along K in memory."""
    return not is_plain(c.a) or row_bytes(c.a, c.k) > c.a.dtype.itemsize


class Dots:
    """The columns from `builder.sizes`' last one on, of a unit of work with rows m0 .. m0 + m_count."""

    def __init__(self, builder: PanelBuilder, m0: Index, m_count: Index):
        self.builder, self.m0, self.m_count = builder, m0, m_count
        self.columns, self.width = builder.form.dots, builder.form.width
        self.first, self.k = builder.sizes.n, builder.sizes.k
        self.steps = (self.k + (self.width - 1)) // self.width
        self.lead = builder.rows
        self.pitch = self.lead + (builder.sizes.unit_m + (self.width - 1)) // self.width * self.width

    def memory(self) -> list[Stmt]:
        """`b_dots[t][k]`, and the sums as `dots[t][row]`; a tile that reaches back begins before the unit's rows."""
        sizes = self.builder.form.memory[3:]
        return [Alloc(name, self.builder.dtype, size, "scratch")
                for name, size in zip(("b_dots", "dots"), sizes, strict=True)]

    def pack(self) -> Stmt:
        """The columns of B, 0 beyond the last step of the sum."""
        b, padded = self.builder, self.steps * self.width
        one = is_light(b.contraction.b)
        x, t = b.fresh("k", (padded if one else self.steps) - 1), b.fresh("t", self.columns - 1)
        lane = b.fresh("l", self.width - 1)
        place = x if one else x * self.width + lane
        here = self.inside(substitute(b.contraction.b, {**b.at, b.n: self.first + t, b.k: place}), place)
        body: Stmt = Loop(t, 0, self.columns, "unroll", (Store("b_dots", t * padded + place, here),))
        if not one:
            return Loop(x, 0, self.steps, "serial", (Loop(lane, 0, self.width, "vector", (body,)),))
        return Loop(x, 0, padded, "serial", (body,))

    def inside(self, value: Value, k: Index) -> Value:
        return guard(value, const(0, value.dtype), (self.k - 1 - k,)) if self.builder.form.edge_k else value

    def sums(self, block: Block, i: Index, row: Index) -> Iterator[Stmt]:
        """The sums of tile i, at `row`."""
        if lanes_along_rows(self.builder.contraction):
            yield self.sums_along_rows(block, i, row)
            return
        first = 0
        for count in dot_groups(self.builder.rows, self.columns):
            yield self.sums_along_k(row, first, count)
            first += count

    def place(self, t: Index, row: Index) -> Index:
        """Where the sum of a column is, for a row of the matrix."""
        return t * self.pitch + self.lead + row - self.m0

    def sums_along_k(self, row: Index, first: int, count: int) -> Stmt:
        """The sums of `count` columns from `first` on."""
        b, rows = self.builder, self.builder.rows
        x, u, t, lane = (b.fresh(stem, last) for stem, last in (
            ("k", self.steps - 1), ("u", rows - 1), ("t", count - 1), ("l", self.width - 1)))
        acc = f"sums_{b.count}"
        slot = u * count + t
        old = load(acc, (slot,), b.dtype)

        def each(s: Stmt) -> tuple[Stmt, ...]:
            return (Loop(u, 0, rows, "unroll", (Loop(t, 0, count, "unroll", (s,)),)),)

        k = x * self.width + lane
        left = self.inside(substitute(b.contraction.a, {**b.at, b.m: b.row(row) + u, b.k: k}), k)
        right = load("b_dots", ((first + t) * (self.steps * self.width) + k,), b.dtype)
        term = Store(acc, slot, accumulate(MONOIDS["sum"], old, binary("mul", left, right)))
        body = [Alloc(acc, b.dtype, rows * count, "register"), *each(Store(acc, slot, const(0, b.dtype))),
                Loop(x, 0, self.steps, "serial", each(term)),
                *each(Store("dots", self.place(first + t, b.row(row) + u), across("sum", old)))]
        return Loop(lane, 0, self.width, "vector", tuple(body))

    def sums_along_rows(self, block: Block, i: Index, row: Index) -> Stmt:
        """The sums over a block of K, added to those of the blocks before it. Steps of K go to several sums in turn."""
        b, chains = self.builder, max(1, CHAINS // self.columns)
        steps = block.k_count // chains
        left = block.k_count - steps * chains
        x, y, t, c, lane = (b.fresh(stem, last) for stem, last in (
            ("k", steps - 1), ("k", left - 1), ("t", self.columns - 1), ("c", chains - 1), ("l", b.rows - 1)))
        acc = f"sums_{b.count}"

        def each(s: Stmt, chains: int = chains) -> tuple[Stmt, ...]:
            return (Loop(c, 0, chains, "unroll", (Loop(t, 0, self.columns, "unroll", (s,)),)),)

        def term(slot: Index, k: Index) -> Stmt:
            here = b.left(i, b.row(row) + lane, lane, block.k0, k)
            column = load("b_dots", (t * (self.steps * self.width) + block.k0 + k,), b.dtype)
            return Store(acc, slot, accumulate(MONOIDS["sum"], load(acc, (slot,), b.dtype),
                                               binary("mul", here, column)))

        slot, to = c * self.columns + t, self.place(t, b.row(row) + lane)
        total = [load(acc, (chain * self.columns + t,), b.dtype) for chain in range(chains)]
        while len(total) > 1:
            total = [binary("add", *total[k:k + 2]) if k + 1 < len(total) else total[k]
                     for k in range(0, len(total), 2)]
        own = (b.row(row) + lane - row,) if b.form.edge_m else ()
        new = each(Store("dots", to, total[0], own), 1)
        if block.kb is not None:
            more = binary("add", load("dots", (to,), b.dtype), total[0])
            new = (If((block.kb - 1,), each(Store("dots", to, more, own), 1), new),)
        body = [Alloc(acc, b.dtype, chains * self.columns, "register"), *each(Store(acc, slot, const(0, b.dtype))),
                Loop(x, 0, steps, "serial", each(term(slot, x * chains + c))),
                *(() if isinstance(left, int) and left == 0 else
                  (Loop(y, 0, left, "serial", each(term(t, steps * chains + y), 1)),)), *new]
        return Loop(lane, 0, b.rows, "vector", tuple(body))

    def write(self) -> Stmt:
        """The nest's stores of these columns."""
        b, c = self.builder, self.builder.contraction
        one = is_light(*(s.value for s in c.outputs))
        stop = self.m_count if one else (self.m_count + (self.width - 1)) // self.width
        t, r, lane = b.fresh("t", self.columns - 1), b.fresh("r", stop - 1), b.fresh("l", self.width - 1)
        place = r if one else r * self.width + lane
        whole = one or isinstance(self.m_count, int) and self.m_count % self.width == 0
        total = load("dots", (self.place(t, self.m0 + place),), b.dtype)
        here = Rewriter({**b.at, b.m: self.m0 + place, b.n: self.first + t}, locals_={c.name: total})
        stores = tuple(Store(s.param, here.index(s.indices[0]), here.value(s.value),
                             () if whole else (self.m_count - 1 - place,)) for s in c.outputs)
        body = stores if one else (Loop(lane, 0, self.width, "vector", stores),)
        return Loop(t, 0, self.columns, "serial", (Loop(r, 0, stop, "serial", body),))


def is_short(*values: Value) -> bool:
    """Whether they are few operations together; what is read is not counted."""
    return sum(v.op not in ("const", "local", "load", "index") for v in walk(*values)) <= LIGHT


def is_light(*values: Value) -> bool:
    """Whether they are few operations, and no functions, which are worth lanes."""
    return is_short(*values) and not any(v.op in FUNCTIONS for v in walk(*values))


def when(conditions: tuple[Index, ...], body: list[Stmt]) -> list[Stmt]:
    """The statements where all conditions hold; those that are known to hold are left out."""
    left = tuple(e for e in conditions if not (isinstance(e, int) and e >= 0))
    return [If(left, tuple(body))] if left else body
