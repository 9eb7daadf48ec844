"""Attention + AttentionDecodePlan -> loop IR. The nest is the one in attention_decode.py."""
from __future__ import annotations

import math

from minigrad.codegen.ir.launch import Names, ceil_div, function_of, places_of, spread
from minigrad.codegen.ir.nodes import Alloc, Function, Loop, Prefetch, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.nodes import Store as KernelStore
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.codegen.patterns.recognise_attention import DOT, last_key, recognise
from minigrad.codegen.plan.other_plans import AttentionDecodePlan
from minigrad.codegen.policy.attention_decode import sharing
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, coefficient, emin, product, subs
from minigrad.value import Value, across, binary, const, guard, load, unary, walk


def build_attention_decode(kernel: Kernel, nest: Nest, plan: AttentionDecodePlan, name: str) -> Function:
    """The loop nest of an attention of few rows."""
    return DecodeBuilder(kernel, nest, plan).function(name)


class DecodeBuilder(Names):
    def __init__(self, kernel: Kernel, nest: Nest, plan: AttentionDecodePlan):
        found = recognise(nest)
        if found is None or found.mix is None:
            raise InternalError(f"[build] expected an attention for {plan}, got {kernel.name}")
        self.kernel, self.parts, self.mix, self.plan = kernel, found, found.mix, plan
        self.dtype = found.q.dtype
        self.shared = sharing(found)
        self.rows: int = product(extent(v) for v in self.shared)  # type: ignore[assignment]
        step = math.lcm(plan.width, plan.keys)
        self.pitch = -(-extent(found.key) // step) * step
        self.at: dict[Var, Index] = {}
        self.stop: Index = 0
        super().__init__()

    def function(self, name: str) -> Function:
        batch = [v for v in self.parts.batch if v not in self.shared]
        p, total, places = spread([v.hi + 1 for v in batch])
        self.at.update(zip(batch, places, strict=True))
        self.stop = last_key(self.parts, self.at, 0, extent(self.parts.row)) + 1
        sizes = {"scores": self.rows * self.pitch, "top": self.rows, "total": self.rows}
        memory = [Alloc(n, self.dtype, size, "scratch") for n, size in sizes.items()]
        body = (*memory, self.scores(), *self.weights(), *self.finish())
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", body))

    def of_row(self, row: Index) -> dict[Var, Index]:
        """All index variables of a nest for the `row`-th of the rows that share keys."""
        return self.at | dict(zip(self.shared, places_of(row, [extent(v) for v in self.shared]), strict=True))

    def scores(self) -> Loop:
        """scores[row][key] = q k. Keys beyond the last one repeat it."""
        parts, mix, plan, zero = self.parts, self.mix, self.plan, const(0, self.dtype)
        b, lane = self.counted("keys", ceil_div(bounds(self.stop)[1], plan.keys)), Var("lane_e", 0, plan.depth - 1)
        t = self.counted("t", extent(parts.depth) // plan.depth)
        u, r = self.counted("u", plan.keys), self.counted("r", self.rows)
        e, key = t * plan.depth + lane, b * plan.keys + u
        at = {**self.of_row(r), parts.depth: e}
        q = Rewriter(at).value(parts.q)
        k = Rewriter({**at, parts.key: emin(key, self.stop - 1)}).value(parts.k)
        old = load("products", (u * self.rows + r,), self.dtype)

        def each(s: Stmt) -> Loop:
            return Loop(u, 0, plan.keys, "unroll", (Loop(r, 0, self.rows, "unroll", (s,)),))

        body = (Alloc("products", self.dtype, plan.keys * self.rows, "register"),
                each(Store("products", u * self.rows + r, zero)),
                Loop(t, 0, t.hi + 1, "serial", (each(Store("products", u * self.rows + r,
                                                           accumulate(MONOIDS["sum"], old, binary("mul", q, k)))),)),
                each(Store("scores", r * self.pitch + key, across("sum", old))))
        ahead = max(PAGE // (extent(parts.depth) * parts.k.dtype.itemsize), plan.keys)
        hints = [*self.prefetch(parts.k, parts.depth, key + ahead, u, False),
                 *self.prefetch(mix.v, mix.column, key, u, True)]
        return Loop(b, 0, ceil_div(self.stop, plan.keys), "serial", (*hints, Loop(lane, 0, plan.depth, "vector", body)))

    def prefetch(self, value: Value, column: Var, key: Index, u: Var, far: bool) -> list[Stmt]:
        """Says that the rows of an operand at some keys are read soon, line by line, if it is read as it is."""
        loads = [x for x in walk(value) if x.op == "load"]
        if len(loads) != 1 or coefficient(loads[0].indices[0], column) != 1:
            return []
        step = LINE // loads[0].dtype.itemsize
        c = self.counted("c", -(-extent(column) // step))
        here = Rewriter({**self.at, self.parts.key: key, column: c * step}).value(loads[0])
        name, (offset,) = here.buffer, here.indices
        each = Loop(c, 0, c.hi + 1, "unroll", (Prefetch(name, offset, far),))
        return [Loop(u, 0, self.plan.keys, "unroll", (each,))]

    def weights(self) -> list[Stmt]:
        """scores become exp(score - top); top and total of every row. Those of keys that there are not become 0."""
        parts, plan, dtype = self.parts, self.plan, self.dtype
        zero, least = const(0, dtype), const(-math.inf, dtype)
        r, lane = self.counted("r", self.rows), Var("lane_k", 0, plan.width - 1)
        count = ceil_div(self.stop, plan.width)
        i, j = (self.counted("j", bounds(count)[1]) for _ in range(2))
        key, again = i * plan.width + lane, r * self.pitch + j * plan.width + lane
        here = r * self.pitch + key
        at = {**self.of_row(r), parts.key: emin(key, self.stop - 1)}
        score = Rewriter(at, locals_={DOT: load("scores", (here,), dtype)}).value(parts.score)
        score = guard(score, least, (self.stop - 1 - key, *(subs(e, at) for e in parts.conditions)))
        top, part = load("tops", (0,), dtype), load("sums", (0,), dtype)
        highest = load("top", (r,), dtype)
        weight = unary("exp", binary("sub", load("scores", (again,), dtype), shift_of(highest)))
        body = (Alloc("tops", dtype, 1, "register"), Alloc("sums", dtype, 1, "register"), Store("tops", 0, least),
                Loop(i, 0, count, "serial", (Store("scores", here, score),
                                             Store("tops", 0, binary("max", top, load("scores", (here,), dtype))))),
                Store("top", r, across("max", top)), Store("sums", 0, zero),
                Loop(j, 0, count, "serial", (Store("scores", again, weight),
                                             Store("sums", 0, binary("add", part, load("scores", (again,), dtype))))),
                Store("total", r, across("sum", part)))
        return [Loop(r, 0, self.rows, "serial", (Loop(lane, 0, plan.width, "vector", body),))]

    def finish(self) -> list[Stmt]:
        """The sums of weights times v, and the stores of the nest."""
        parts, mix, plan = self.parts, self.mix, self.plan
        r, v = self.counted("r", self.rows), self.counted("v", plan.vectors)
        j, c = self.counted("j", self.stop), self.counted("c", extent(mix.column) // (plan.vectors * plan.columns))
        lane = Var("lane_f", 0, plan.columns - 1)
        column, slot = (c * plan.vectors + v) * plan.columns + lane, r * plan.vectors + v
        value = Rewriter({**self.of_row(r), mix.column: column, parts.key: j}).value(mix.v)
        old = load("mixed", (slot,), self.dtype)
        term = binary("mul", load("scores", (r * self.pitch + j,), self.dtype), value)

        def each(s: Stmt) -> Loop:
            return Loop(r, 0, self.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),))

        body = (Alloc("mixed", self.dtype, self.rows * plan.vectors, "register"),
                each(Store("mixed", slot, const(0, self.dtype))),
                Loop(j, 0, self.stop, "serial", (each(Store("mixed", slot, accumulate(MONOIDS["sum"], old, term))),)),
                each(self.stored(mix.store, {**self.of_row(r), mix.column: column}, r, {mix.name: old})))
        row = self.counted("r", self.rows)
        known = [self.stored(s, self.of_row(row), row, {}) for s in parts.stores]
        mixed = Loop(c, 0, c.hi + 1, "serial", (Loop(lane, 0, plan.columns, "vector", body),))
        return [mixed, *([Loop(row, 0, self.rows, "serial", tuple(known))] if known else ())]

    def stored(self, store: KernelStore, at: dict[Var, Index], row: Index, names: dict[str, Value]) -> Store:
        """A store of the nest for one row."""
        known = {self.parts.top: load("top", (row,), self.dtype), self.parts.total: load("total", (row,), self.dtype)}
        here = Rewriter(at, locals_={**known, **names})
        return Store(store.param, here.index(store.indices[0]), here.value(store.value))
