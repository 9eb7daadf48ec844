"""The loops of a block: nests one after another inside common loops, with memory of their own between them.

    block i<8, j<8:                                 for p in 0..64 parallel:
      local s: f32[4096]                              alloc s: f32[4096] scratch
      for key<128, row<32: s[..] = sum(..)      ->    for x: for l vector: ...          by the plan of this nest
      for row<32: t = max(key<128: s[..]) ..          for l vector: ...                 by that of the next one
      steps b in 0..j+1:                              for b in 0..p%8+1:
        ..                                              ..

What is inside is a nest of a kernel of its own, which `build` makes the loops of.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.inline import copied
from minigrad.codegen.ir.launch import function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt
from minigrad.codegen.ir.walk import fresh
from minigrad.codegen.kernel.nodes import Block, Kernel, Nest, Steps
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.plan.block_items import by_items
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.compute import build_computed
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Compute, Plan
from minigrad.errors import PlanError, present
from minigrad.expr import Index, Var, bounds, subs

COMPUTED = Plan("computed", ())
"""The plan of a nest that the next one computes."""


def build_block(kernel: Kernel, plan: BlockPlan, name: str) -> Function:
    """The loops of a kernel that is a block over flat buffers, its places for workers, or for work-groups where plans
    bind work-items; a plan for each nest, in the order of the text. Raises PlanError where one does not fit."""
    nests = list(kernel.alone())
    if len(plan.plans) != len(nests):
        raise PlanError(f"[plan] expected a plan for each of {len(nests)} nests of the block, got {len(plan.plans)}")
    return _Builder(kernel, list(zip(nests, plan.plans, strict=True)), name).function()


class _Builder:
    """`left`: the nests that are to come, each as a kernel of its own, with their plans; `used`: names in the function;
    `memory`: of all nests; `item`: counts work-items, None before the first nest that has them."""

    def __init__(self, kernel: Kernel, left: list[tuple[Kernel, Plan]], name: str):
        self.kernel, self.left, self.name = kernel, left, name
        self.block: Block = present(kernel.block, "[plan] expected a block")
        self.groups, self.item = any(plan.bound("item") for _, plan in left), list[Var]()
        self.used = {p.name for p in (*kernel.params, *kernel.local)}
        self.used |= {s.name for s in kernel.scalars} | {d.name for d in kernel.dims}
        scope = "local" if self.groups else "scratch"
        self.memory = [Alloc(q.name, q.dtype, self.size(q.shape[0]), scope) for q in kernel.local]

    def size(self, e: Index) -> int:
        if not isinstance(e, int):
            raise PlanError(f"[plan] expected a buffer of a block whose size is a number, got {e}")
        return e

    def function(self) -> Function:
        p, total, places = spread([v.hi + 1 for v in self.block.domain], fresh("p", self.used))
        memory, body = self.memory, self.body(self.block.body, dict(zip(self.block.domain, places, strict=True)))
        if self.item:
            memory, body = by_items(body, self.item[0], memory)
            body = [Loop(self.item[0], 0, self.item[0].hi + 1, "item", tuple(body))]
        kind = "group" if self.groups else "parallel"
        return function_of(self.kernel, self.name, Loop(p, 0, total, kind, (*memory, *body)))

    def body(self, body: Sequence[Nest | Steps], at: dict[Var, Index]) -> list[Stmt]:
        """The statements of nests and steps, where the variables around have these values; work-items wait for each
        other before each."""
        out: list[Stmt] = []
        before: Nest | None = None
        wait = [Barrier()] if self.groups else []
        for s in (*body, None):
            plan = self.left[0][1] if isinstance(s, Nest) else None
            if before is not None and (plan is None or all(not isinstance(x, Compute) for x in plan.steps)):
                raise PlanError("[plan] expected a step compute in the plan after `plan computed`, of the nest that "
                                f"reads what this one stores, got {plan or 'none'}")
            if isinstance(s, Nest):
                alone, plan = self.left.pop(0)
                if plan != COMPUTED:
                    out += [*wait, *self.nest(alone, plan, before, at)]
                before = s if plan == COMPUTED else None
            if not isinstance(s, Steps):
                continue
            start, stop = subs(s.start, at), subs(s.stop, at)
            x = Var(fresh(s.var.name, self.used), 0, max(bounds(s.var.hi)[1], 0))
            out += [*wait, Loop(x, start, stop, "serial", tuple(self.body(s.body, {**at, s.var: x})))]
        return out

    def nest(self, alone: Kernel, plan: Plan, before: Nest | None, at: dict[Var, Index]) -> list[Stmt]:
        """The statements of a nest; what the one before stores is computed in its loops, if there is one."""
        try:
            if any(isinstance(s, Compute) for s in plan.steps):
                outer, = build_computed(alone, before, plan, self.name).body
            else:
                outer, = build(alone, alone.nests[0], plan, self.name).body
        except PlanError as error:
            raise PlanError(f"{error}, in a block for\n{print_kernel(alone)}{plan}") from None
        if not isinstance(outer, Loop) or outer.stop != 1 or (outer.kind == "group") != self.groups:
            raise PlanError(f"[plan] expected loops inside a block that no workers share, and work-items for all nests "
                            f"or for none, got {plan}")
        at = {**at, outer.var: 0}
        if not self.groups:
            made = copied(outer.body, at, self.used)
            self.memory += [s for s in made if isinstance(s, Alloc) and s.scope != "register"]
            return [s for s in made if not isinstance(s, Alloc) or s.scope == "register"]
        each = outer.body[0]
        if not isinstance(each, Loop) or self.item and self.item[0].hi != each.var.hi:
            raise PlanError(f"[plan] expected equally many work-items for all nests of a block, and no copies: {plan}")
        self.item = self.item or [Var(fresh("item", self.used), 0, each.var.hi)]
        return [*copied(each.body, {**at, each.var: self.item[0]}, self.used)]
