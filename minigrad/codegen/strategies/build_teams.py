"""Nest + TeamPlan -> loop IR. The nest is the one in teams.py."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, Let, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.kernel import Define, Kernel, Nest, Store
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.sub_group import sub_group_name
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.build_tiles import counted
from minigrad.codegen.strategies.launch import ceil_div, function_of
from minigrad.codegen.strategies.plan import TeamPlan
from minigrad.codegen.strategies.teams import is_reduction
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import DType
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, emin, product
from minigrad.value import Value, guard, load, local, walk


def build_teams(kernel: Kernel, nest: Nest, plan: TeamPlan, name: str) -> Function:
    """The loop nest of reductions by teams of work-items."""
    return TeamBuilder(kernel, nest, plan).function(name)


def loads(body: Sequence[Define | Store | Nest]) -> set[str]:
    """The buffers that statements of a nest read."""
    found: set[str] = set()
    for s in body:
        found |= loads(s.body) if isinstance(s, Nest) else {str(v.attr[0]) for v in walk(s.value) if v.op == "load"}
    return found


class TeamBuilder:
    """`conditions` hold where the work-item's row exists; `item` is its place among those of the row; `at` has the
    values of the domain's variables in its row, `near` those of the last row of the group where there is no more.
    `stored` are buffers that the group has written."""

    def __init__(self, kernel: Kernel, nest: Nest, plan: TeamPlan):
        self.kernel, self.nest, self.plan = kernel, nest, plan
        self.count = 0
        self.shared: list[Alloc] = []
        by_name = {v.name: v for v in nest.domain}
        self.order = tuple(by_name[n] for n in plan.order)
        self.t = Var("t", 0, plan.rows * plan.items - 1)
        if plan.fast == "item":
            self.row, self.item, self.step = self.t // plan.items, self.t % plan.items, 1
        else:
            self.row, self.item, self.step = self.t % plan.rows, self.t // plan.rows, plan.rows
        self.conditions: tuple[Index, ...] = ()
        self.at: dict[Var, Index] = {}
        self.near: dict[Var, Index] = {}
        self.stored: set[str] = set()
        self.names: dict[str, Value] = {}

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def function(self, name: str) -> Function:
        rows = product(v.hi + 1 for v in self.order)
        total = ceil_div(rows, self.plan.rows)
        g = Var("g", 0, total - 1)
        row = g * self.plan.rows + self.row
        if not isinstance(rows, int) or rows % self.plan.rows:
            self.conditions = (rows - 1 - row,)
        self.at = counted(self.order, row)
        self.near = counted(self.order, emin(row, rows - 1)) if self.conditions else self.at
        body: list[Stmt] = []
        for k, s in enumerate(self.nest.body):
            if isinstance(s, Nest):
                body += self.inner(s)
                self.stored |= {i.param for i in s.body if isinstance(i, Store)}
                if loads(self.nest.body[k + 1:]) & {i.param for i in s.body if isinstance(i, Store)}:
                    body.append(Barrier())
            elif isinstance(s, Store):
                body.append(self.store(s, (-self.item, *self.conditions), self.at, self.names))
            elif is_reduction(s):
                body += self.reduction(s)
            else:
                body.append(self.define(s, self.at, self.names, self.conditions))
        items = Loop(self.t, 0, self.plan.rows * self.plan.items, "item", tuple(body))
        return function_of(self.kernel, name, Loop(g, 0, total, "group", (*self.shared, items)))

    def define(self, s: Define, at: dict[Var, Index], names: dict[str, Value], conditions: tuple[Index, ...]) -> Let:
        value = self.inside(Rewriter(at, locals_=names).value(s.value), conditions)
        let = self.name(s.name)
        names[s.name] = local(let, value.dtype)
        return Let(let, value)

    def inside(self, value: Value, conditions: tuple[Index, ...]) -> Value:
        """The value where it is defined; elsewhere something that nobody uses."""
        return guard(value, MONOIDS["sum"].init(value.dtype), conditions)

    def store(self, s: Store, conditions: tuple[Index, ...], at: dict[Var, Index], names: dict[str, Value]) -> IRStore:
        here = Rewriter(at, locals_=names)
        return IRStore(s.param, here.index(s.indices[0]), here.value(s.value), conditions)

    def in_turn(self, variables: tuple[Var, ...]) -> tuple[Var, Index, dict[Var, Index], tuple[Index, ...]]:
        """(loop variable, its stop, the values of the variables, where they exist) of what a row's items share."""
        length = product(v.hi + 1 for v in variables)
        turns = ceil_div(length, self.plan.items)
        x = Var(self.name("c"), 0, turns - 1)
        place = x * self.plan.items + self.item
        whole = isinstance(length, int) and length % self.plan.items == 0
        return x, turns, counted(variables, place), () if whole else (length - 1 - place,)

    def inner(self, s: Nest) -> list[Stmt]:
        """An inner domain."""
        x, turns, values, conditions = self.in_turn(s.domain)
        at, names, conditions = {**self.at, **values}, dict(self.names), (*self.conditions, *conditions)
        body: list[Stmt] = []
        for i in s.body:
            if isinstance(i, Store):
                body.append(self.store(i, conditions, at, names))
            elif isinstance(i, Define):
                body.append(self.define(i, at, names, conditions))
        return [Loop(x, 0, turns, "serial", tuple(body))]

    def reduction(self, s: Define) -> list[Stmt]:
        """The terms in turn, then halves onto halves."""
        name, over = s.value.attr  # type: ignore[misc]
        monoid, dtype = MONOIDS[name], s.value.args[0].dtype
        x, turns, values, conditions = self.in_turn(over)
        at = {**self.at, **values}
        if (conditions or self.conditions) and loads((s,)) & self.stored:
            # What is read and dropped must not be what another group writes.
            last = product(v.hi + 1 for v in over) - 1
            at = {**self.near, **counted(over, emin(x * self.plan.items + self.item, last))}
        body = Rewriter(at, locals_=self.names).value(s.value.args[0])
        body = guard(body, monoid.init(dtype), (*self.conditions, *conditions))
        acc = self.name("acc")
        old = load(acc, (0,), dtype)
        out: list[Stmt] = [Alloc(acc, dtype, 1, "register"), IRStore(acc, 0, monoid.init(dtype)),
                           Loop(x, 0, turns, "serial", (IRStore(acc, 0, accumulate(monoid, old, body)),))]
        result: Value = old
        if self.plan.items > 1:
            result = (self.joined_by_sub_groups if self.plan.sub_group else self.joined)(acc, name, dtype, out)
        let = self.name(s.name)
        self.names[s.name] = local(let, dtype)
        return [*out, Let(let, result)]

    def joined_by_sub_groups(self, acc: str, monoid: str, dtype: DType, out: list[Stmt]) -> Value:
        """The same, where a sub-group joins what its work-items have; each reads what those of its row leave."""
        width = self.plan.sub_group
        kernel = find(sub_group_name(monoid, dtype, width) or "")
        if kernel is None:
            raise InternalError(f"[build] expected a reduction that sub-groups know in {self.plan}, got {monoid}")
        part, total, count = self.name("part"), self.name("total"), self.plan.items // width
        self.shared.append(Alloc(part, dtype, self.plan.rows * self.plan.items, "local"))
        out += [IRStore(part, self.t, load(acc, (0,), dtype)), Barrier(), Alloc(total, dtype, 1, "register"),
                Call(kernel, ((part, self.t // width * width), (total, 0)))]
        left = self.name("left")
        self.shared.append(Alloc(left, dtype, self.plan.rows * count, "local"))
        out += [IRStore(left, self.t // width, load(total, (0,), dtype), (-(self.t % width),)), Barrier()]
        found = [load(left, (self.row * count + k,), dtype) for k in range(count)]
        while len(found) > 1:
            odd = found[-1:] if len(found) % 2 else []
            found = [MONOIDS[monoid].apply(x, y) for x, y in zip(found[::2], found[1::2], strict=False)] + odd
        return found[0]

    def joined(self, acc: str, monoid: str, dtype: DType, out: list[Stmt]) -> Value:
        """Appends the tree over the results of a row's items; returns what it leaves."""
        part = self.name("part")
        self.shared.append(Alloc(part, dtype, self.plan.rows * self.plan.items, "local"))
        out += [IRStore(part, self.t, load(acc, (0,), dtype)), Barrier()]
        half = self.plan.items // 2
        while half:
            other = load(part, (self.t + half * self.step,), dtype)
            both = MONOIDS[monoid].apply(load(part, (self.t,), dtype), other)
            out += [IRStore(part, self.t, both, (half - 1 - self.item,)), Barrier()]
            half //= 2
        return load(part, (self.row * self.plan.items if self.step == 1 else self.row,), dtype)
