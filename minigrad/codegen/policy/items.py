"""The plans of a block whose places are work-groups: each nest is shared out among the same work-items.

    plan items                                  plan items
      split r0 -> r0k r0c by 4, rest              fuse i0 i1 -> i0i1
      bind item lane                              split i0i1 -> turn item by 64, guard
      bind unroll r0c                             bind item item
      order lane i1 r0k r0c                       order item turn
      parts r0c
"""
from __future__ import annotations

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.lowering.independent import LANE
from minigrad.codegen.plan.other_plans import BlockPlan
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Bind, Order, Parts, Plan, Split, Step
from minigrad.codegen.policy.group_reduction import as_one

PARTS = 4
"""Terms of a sum at once."""


def plan_block(kernel: Kernel, items: int) -> BlockPlan:
    """The plans of all nests of a block for so many work-items."""
    return BlockPlan(tuple([plan(k.nests[0], items) for k in kernel.alone()]))


def plan(nest: Nest, items: int) -> Plan:
    """An item for each lane, where a nest has lanes; else places in turn."""
    steps: list[Step] = []
    first: tuple[str, ...] = (LANE,)
    if all(v.name != LANE for v in nest.domain):
        name = as_one(nest.domain, steps)
        steps.append(Split(name, "turn", "item", items, "guard"))
        first = ("item", "turn")
    sums = [space.own[-1] for space in spaces(nest)[1:] if space.is_sum]
    split = [v.name for v in sums if isinstance(v.hi, int) and v.hi + 1 >= PARTS]
    steps += [Split(x, f"{x}k", f"{x}c", PARTS, "rest") for x in split]
    parts = tuple([f"{x}c" for x in split])
    steps += [Bind("item", first[:1]), *([Bind("unroll", parts)] if parts else []), Order(first)]
    return Plan("items", (*steps, *([Parts(parts)] if parts else [])))
