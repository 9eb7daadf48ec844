"""Attention + GroupAttentionPlan -> loop IR. The nest is the one in attention_groups.py."""
from __future__ import annotations

import math

from minigrad.codegen.ir.launch import ceil_div, function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.patterns.recognise_attention import DOT, first_key, last_key, recognise
from minigrad.codegen.plan.other_plans import GroupAttentionPlan
from minigrad.codegen.policy.attention_groups import PADDING
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emin
from minigrad.value import Value, binary, const, guard, load, unary


def build_attention_groups(kernel: Kernel, nest: Nest, plan: GroupAttentionPlan, name: str) -> Function:
    """The loop nest of an attention by work-groups."""
    return GroupAttentionBuilder(kernel, nest, plan).function(name)


class GroupAttentionBuilder:
    def __init__(self, kernel: Kernel, nest: Nest, plan: GroupAttentionPlan):
        found = recognise(nest)
        if found is None or found.mix is None:
            raise InternalError(f"[build] expected an attention for {plan}, got {kernel.name}")
        self.kernel, self.parts, self.mix, self.plan = kernel, found, found.mix, plan
        self.dtype = found.q.dtype
        self.depth, self.columns = extent(found.depth), extent(found.mix.column)
        self.pitch = plan.keys + PADDING
        self.item = Var("t", 0, plan.items - 1)
        blocks = [*(v.hi + 1 for v in found.batch), ceil_div(found.row.hi + 1, plan.items)]
        self.group, self.total, places = spread(blocks)
        self.at, self.origin = dict(zip(found.batch, places, strict=False)), places[-1] * plan.items
        self.row = emin(self.origin + self.item, found.row.hi)

    def function(self, name: str) -> Function:
        plan, dtype = self.plan, self.dtype
        shared = (Alloc("keys", dtype, self.depth * self.pitch, "local"),
                  Alloc("values", dtype, plan.keys * self.columns, "local"))
        items = Loop(self.item, 0, plan.items, "item", tuple(self.work()))
        return function_of(self.kernel, name, Loop(self.group, 0, self.total, "group", (*shared, items)))

    def work(self) -> list[Stmt]:
        """One work-item."""
        parts, plan, dtype = self.parts, self.plan, self.dtype
        e, f, u = Var("e", 0, self.depth - 1), Var("f", 0, self.columns - 1), Var("u", 0, plan.part - 1)
        zero, least = const(0, dtype), const(-math.inf, dtype)
        q = Rewriter({**self.at, parts.row: self.row, parts.depth: e}).value(parts.q)
        stop = last_key(parts, self.at, self.origin, plan.items) + 1
        b = Var("b", 0, ceil_div(bounds(stop)[1], plan.keys) - 1)
        j = Var("j", 0, plan.keys // plan.part - 1)
        first = b * plan.keys
        some = Loop(j, 0, plan.keys // plan.part, "serial", tuple(self.part(first, j * plan.part, e, f, u)))
        block: list[Stmt] = [*self.copies(first), Barrier(), some, Barrier()]
        return [Alloc("query", dtype, self.depth, "register"), Alloc("mixed", dtype, self.columns, "register"),
                Alloc("scores", dtype, plan.part, "register"),
                *(Alloc(name, dtype, 1, "register") for name in ("top", "total", "shrink")),
                Loop(f, 0, self.columns, "unroll", (Store("mixed", f, zero),)), Store("top", 0, least),
                Store("total", 0, zero),
                Loop(e, 0, self.depth, "unroll", (Store("query", e, q),)),
                Loop(b, first_key(parts, self.at, self.origin) // plan.keys, ceil_div(stop, plan.keys), "serial",
                     tuple(block)), *self.finish(f)]

    def copies(self, first: Index) -> list[Stmt]:
        """A block of keys, transposed, and of values to local memory; keys beyond the last one repeat it."""
        parts = self.parts

        def copy(memory: str, width: int, variable: Var, value: Value, transposed: bool) -> Loop:
            count = self.plan.keys * width
            turns = -(-count // self.plan.items)
            c = Var("c", 0, turns - 1)
            place = c * self.plan.items + self.item
            key, inside = place // width, place % width
            at = {**self.at, parts.key: emin(first + key, parts.key.hi), variable: inside}
            to = inside * self.pitch + key if transposed else place
            conditions = () if count % self.plan.items == 0 else (count - 1 - place,)
            return Loop(c, 0, turns, "serial", (Store(memory, to, Rewriter(at).value(value), conditions),))

        return [copy("keys", self.depth, parts.depth, parts.k, True),
                copy("values", self.columns, self.mix.column, self.mix.v, False)]

    def part(self, first: Index, start: Index, e: Var, f: Var, u: Var) -> list[Stmt]:
        """The next few keys: scores, weights, and what they add to the result."""
        parts, plan, dtype = self.parts, self.plan, self.dtype
        sums = MONOIDS["sum"]
        zero, least = const(0, dtype), const(-math.inf, dtype)
        score, top, total = load("scores", (u,), dtype), load("top", (0,), dtype), load("total", (0,), dtype)
        shrink, mixed = load("shrink", (0,), dtype), load("mixed", (f,), dtype)

        def keys(*s: Stmt) -> Loop:
            return Loop(u, 0, plan.part, "unroll", s)

        product = binary("mul", load("query", (e,), dtype),
                         load("keys", (e * self.pitch + start + u,), dtype))
        key = first + start + u
        at = {**self.at, parts.row: self.row, parts.key: key}
        inside = [Rewriter(at).index(x) for x in parts.conditions]
        length = parts.key.hi + 1
        if not isinstance(length, int) or length % plan.keys:
            inside.append(length - 1 - key)
        scored = guard(Rewriter(at, locals_={DOT: score}).value(parts.score), least, tuple(inside))
        safe = shift_of(top)
        mix = [(load("scores", (k,), dtype), load("values", ((start + k) * self.columns + f,), dtype))
               for k in range(plan.part)]
        weights, weighed = mix[0][0], binary("mul", *mix[0])
        for weight, value in mix[1:]:
            weights, weighed = binary("add", weights, weight), accumulate(sums, weighed, binary("mul", value, weight))
        return [keys(Store("scores", u, zero)),
                Loop(e, 0, self.depth, "unroll", (keys(Store("scores", u, accumulate(sums, score, product))),)),
                Store("shrink", 0, top),
                keys(Store("scores", u, scored), Store("top", 0, binary("max", top, score))),
                Store("shrink", 0, unary("exp", binary("sub", shrink, safe))),
                keys(Store("scores", u, unary("exp", binary("sub", score, safe)))),
                Store("total", 0, accumulate(sums, weights, binary("mul", total, shrink))),
                Loop(f, 0, self.columns, "unroll", (Store(
                    "mixed", f, accumulate(sums, weighed, binary("mul", mixed, shrink))),))]

    def finish(self, f: Var) -> list[Stmt]:
        """The stores of the nest, where the row exists."""
        parts = self.parts
        row = self.origin + self.item
        names = {parts.top: load("top", (0,), self.dtype), parts.total: load("total", (0,), self.dtype),
                 self.mix.name: load("mixed", (f,), self.dtype)}
        here = Rewriter({**self.at, parts.row: row, self.mix.column: f}, locals_=names)
        length = parts.row.hi + 1
        whole = isinstance(length, int) and length % self.plan.items == 0
        store = Store(self.mix.store.param, here.index(self.mix.store.indices[0]), here.value(self.mix.store.value),
                      () if whole else (length - 1 - row,))
        return [Loop(f, 0, self.columns, "unroll", (store,))]
