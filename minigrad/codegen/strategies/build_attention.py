"""Attention + AttentionPlan -> loop IR. The nest is the one in attention.py."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from minigrad.codegen.ir.launch import Names, ceil_div, function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Function, Loop, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.nodes import Store as KernelStore
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.plan.other_plans import AttentionPlan
from minigrad.codegen.policy.attention import DOT, Attention, Mix, recognise
from minigrad.codegen.policy.attention_gradient import Gradient
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, coefficient, emax, emin, subs
from minigrad.value import Value, binary, const, guard, load, unary

Element = Callable[[Index], Value]


def build_attention(kernel: Kernel, nest: Nest, plan: AttentionPlan, name: str) -> Function:
    """The loop nest of an attention."""
    return AttentionBuilder(kernel, nest, plan).function(name)


def places(parts: Attention, rows: int) -> tuple[Var, Index, dict[Var, Index], Index]:
    """(the parallel variable, its stop, what the batch's variables are there, the first row) of blocks of rows."""
    p, total, places = spread([*(v.hi + 1 for v in parts.batch), ceil_div(parts.row.hi + 1, rows)])
    return p, total, dict(zip(parts.batch, places, strict=False)), places[-1] * rows


def last_key(parts: Attention | Gradient, at: dict[Var, Index], origin: Index, rows: int) -> Index:
    """The last key that any of the block's rows looks at."""
    last = parts.key.hi
    final = emin(origin + rows - 1, parts.row.hi)
    for e in parts.conditions:
        row, key = coefficient(e, parts.row), coefficient(e, parts.key)
        if key == -1 and isinstance(row, int) and row >= 0:
            last = emin(last, emax(subs(e, {parts.key: 0, parts.row: final, **at}), 0))
    return last


def first_key(parts: Attention, at: dict[Var, Index], origin: Index) -> Index:
    """The first key that any row from `origin` on looks at."""
    first: Index = 0
    for e in parts.conditions:
        row, key = coefficient(e, parts.row), coefficient(e, parts.key)
        if key == 1 and isinstance(row, int) and row <= 0:
            first = emax(first, -subs(e, {parts.key: 0, parts.row: origin, **at}))
    return emin(first, parts.key.hi)


class AttentionBuilder(Names):
    def __init__(self, kernel: Kernel, nest: Nest, plan: AttentionPlan):
        found = recognise(nest)
        if found is None:
            raise InternalError(f"[build] expected an attention for {plan}, got {kernel.name}")
        self.kernel, self.nest, self.parts, self.plan = kernel, nest, found, plan
        self.dtype = found.q.dtype
        self.lanes = plan.vectors * plan.width
        self.columns = -(-extent(found.mix.column) // plan.rows) * plan.rows if found.mix else 0
        super().__init__()
        self.lane = Var("lane", 0, plan.width - 1)
        self.at: dict[Var, Index] = {}

    def function(self, name: str) -> Function:
        parts = self.parts
        p, total, self.at, self.origin = places(parts, self.lanes)
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", tuple(self.block())))

    # ---- one block of rows ----

    def block(self) -> list[Stmt]:
        parts, plan = self.parts, self.plan
        sizes = {"transposed": extent(parts.depth), "scores": plan.keys, "mixed": self.columns, "top": 1, "total": 1,
                 "shrink": 1}
        memory: list[Stmt] = [Alloc(n, self.dtype, rows * self.lanes, "scratch") for n, rows in sizes.items() if rows]
        stop = last_key(parts, self.at, self.origin, self.lanes) + 1
        b = self.fresh("block", ceil_div(bounds(stop)[1], plan.keys) - 1)
        first = b * plan.keys
        count = emin(stop - first, plan.keys)
        keys = [*self.scores(first, count), *self.weights(first, count)]
        keys += self.mix(parts.mix, first, count) if parts.mix else ()
        start = first_key(parts, self.at, self.origin) // plan.keys
        loop = Loop(b, start, ceil_div(stop, plan.keys), "serial", tuple(keys))
        return [*memory, *self.transpose(), *self.start(), loop, *self.finish()]

    def in_lanes(self, body: Callable[[Index], list[Stmt]]) -> Loop:
        """body(position of the row in the block) for all rows, a vector of them at a time."""
        v = self.fresh("v", self.plan.vectors - 1)
        each = Loop(v, 0, self.plan.vectors, "unroll", tuple(body(v * self.plan.width + self.lane)))
        return Loop(self.lane, 0, self.plan.width, "vector", (each,))

    def transpose(self) -> list[Stmt]:
        """transposed[e][row] = q; rows beyond the last one repeat it."""
        parts = self.parts
        e = self.fresh("e", parts.depth.hi)

        def body(row: Index) -> list[Stmt]:
            at = {**self.at, parts.row: self.row(row), parts.depth: e}
            return [Store("transposed", e * self.lanes + row, Rewriter(at).value(parts.q))]

        return [Loop(e, 0, parts.depth.hi + 1, "serial", (self.in_lanes(body),))]

    def row(self, position: Index) -> Index:
        """The row at a position of the block; the last one for positions behind it."""
        length, row = self.parts.row.hi + 1, self.origin + position
        return row if isinstance(length, int) and length % self.lanes == 0 else emin(row, length - 1)

    def start(self) -> list[Stmt]:
        columns = self.fresh("f", self.columns - 1)
        zero, least = const(0, self.dtype), const(-math.inf, self.dtype)
        clear = self.in_lanes(lambda row: [Store("mixed", columns * self.lanes + row, zero)])
        start = self.in_lanes(lambda row: [Store("top", row, least), Store("total", row, zero)])
        return [start, Loop(columns, 0, self.columns, "serial", (clear,))] if self.columns else [start]

    # ---- one block of keys ----

    def tile(self, count: Index, terms: Index, factor: Callable[[Index, Index], Value], memory: str, into: str,
             before: Callable[[Index, Index], Value] | None = None) -> Loop:
        """into[x][row] = sum over t < terms of factor(x, t) * memory[t][row], for x < count; added to before(x, row),
        if there is any, when it is whole."""
        plan = self.plan
        x = self.fresh("x", ceil_div(bounds(count)[1], plan.rows) - 1)
        t, u = self.fresh("t", terms - 1), self.fresh("u", plan.rows - 1)
        v = self.fresh("v", plan.vectors - 1)
        acc = self.name("acc")
        slot, row = u * plan.vectors + v, v * plan.width + self.lane
        place = x * plan.rows + u
        old = load(acc, (slot,), self.dtype)
        term = binary("mul", factor(place, t), load(memory, (t * self.lanes + row,), self.dtype))

        def each(s: Stmt) -> Loop:
            return Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),))

        total = old if before is None else binary("add", before(place, row), old)
        body = (Alloc(acc, self.dtype, plan.rows * plan.vectors, "register"),
                each(Store(acc, slot, const(0, self.dtype))),
                Loop(t, 0, terms, "serial", (each(Store(acc, slot, accumulate(MONOIDS["sum"], old, term))),)),
                each(Store(into, place * self.lanes + row, total)))
        vector = Loop(self.lane, 0, plan.width, "vector", body)
        return Loop(x, 0, ceil_div(count, plan.rows), "serial", (vector,))

    def scores(self, first: Index, count: Index) -> list[Stmt]:
        """The products of keys and rows. Keys beyond the last one repeat it; nobody looks at them."""
        parts = self.parts

        def factor(x: Index, t: Index) -> Value:
            key = emin(first + x, parts.key.hi)
            return Rewriter({**self.at, parts.key: key, parts.depth: t}).value(parts.k)

        return [self.tile(count, parts.depth.hi + 1, factor, "transposed", "scores")]

    def weights(self, first: Index, count: Index) -> list[Stmt]:
        """scores become exp(score - top), with the top of all blocks so far; total and shrink follow."""
        parts, plan, dtype = self.parts, self.plan, self.dtype
        j, i = self.fresh("j", plan.keys - 1), self.fresh("j", plan.keys - 1)
        v = self.fresh("v", plan.vectors - 1)
        row = v * plan.width + self.lane
        zero, least = const(0, dtype), const(-math.inf, dtype)
        self.count += 1
        tops, sums = f"tops_{self.count}", f"sums_{self.count}"
        top, part = load(tops, (v,), dtype), load(sums, (v,), dtype)
        here, there = j * self.lanes + row, i * self.lanes + row
        at = {**self.at, parts.row: self.row(row), parts.key: first + j}
        score = Rewriter(at, locals_={DOT: load("scores", (here,), dtype)}).value(parts.score)
        score = guard(score, least, tuple(subs(e, at) for e in parts.conditions))
        safe = shift_of(top)
        shrink = unary("exp", binary("sub", load("top", (row,), dtype), safe))
        total = binary("mul", load("total", (row,), dtype), load("shrink", (row,), dtype))
        weight = unary("exp", binary("sub", load("scores", (there,), dtype), top))

        def each(*s: Stmt) -> Loop:
            return Loop(v, 0, plan.vectors, "unroll", s)

        body = (Alloc(tops, dtype, plan.vectors, "register"), Alloc(sums, dtype, plan.vectors, "register"),
                each(Store(tops, v, load("top", (row,), dtype))),
                Loop(j, 0, count, "serial", (each(Store("scores", here, score),
                     Store(tops, v, binary("max", top, load("scores", (here,), dtype)))),)),
                each(Store("shrink", row, shrink), Store("top", row, top), Store(tops, v, safe),
                     Store(sums, v, zero)),
                Loop(i, 0, count, "serial", (each(Store("scores", there, weight), Store(sums, v, binary(
                    "add", part, load("scores", (there,), dtype)))),)),
                each(Store("total", row, binary("add", total, part))))
        return [Loop(self.lane, 0, plan.width, "vector", body)]

    def mix(self, mix: Mix, first: Index, count: Index) -> list[Stmt]:
        """mixed = mixed * shrink + v scores. Columns beyond the last one repeat it."""
        length = mix.column.hi + 1

        def factor(x: Index, t: Index) -> Value:
            whole = isinstance(length, int) and length % self.plan.rows == 0
            column = x if whole else emin(x, length - 1)
            return Rewriter({**self.at, self.parts.key: first + t, mix.column: column}).value(mix.v)

        def before(x: Index, row: Index) -> Value:
            old = load("mixed", (x * self.lanes + row,), self.dtype)
            return binary("mul", old, load("shrink", (row,), self.dtype))

        return [self.tile(length, count, factor, "scores", "mixed", before)]

    def finish(self) -> list[Stmt]:
        """The stores of the nest."""
        parts, mix = self.parts, self.parts.mix
        length = parts.row.hi + 1
        whole = isinstance(length, int) and length % self.lanes == 0

        def body(row: Index, stores: Iterable[KernelStore], f: Index = 0) -> list[Stmt]:
            at = {**self.at, parts.row: self.origin + row}
            names = {n: load(b, (row,), self.dtype) for n, b in ((parts.top, "top"), (parts.total, "total"))}
            if mix:
                at[mix.column] = f
                names[mix.name] = load("mixed", (f * self.lanes + row,), self.dtype)
            here = Rewriter(at, locals_=names)
            conditions = () if whole else (length - 1 - self.origin - row,)
            return [Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in stores]

        found: list[Stmt] = [self.in_lanes(lambda row: body(row, parts.stores))] if parts.stores else []
        if mix:
            f = self.fresh("f", mix.column.hi)
            columns = self.in_lanes(lambda row: body(row, (mix.store,), f))
            found.append(Loop(f, 0, mix.column.hi + 1, "serial", (columns,)))
        return found
