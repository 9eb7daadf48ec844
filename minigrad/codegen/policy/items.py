"""The plans of a block whose places are work-groups: each nest is shared out among the same work-items.

    plan items                                  plan items
      split r0 -> r0k r0c by 4, rest              fuse i0 i1 -> i0i1
      bind item lane                              split i0i1 -> turn item by 64, guard
      bind unroll r0c                             bind item item
      order lane i1 r0k r0c                       order item turn
      parts r0c
"""
from __future__ import annotations

from minigrad.codegen.kernel.nodes import Block, Nest, nests_of
from minigrad.codegen.lowering.independent import LANE
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Bind, Order, Parts, Plan, Split, Step
from minigrad.codegen.policy.group_reduction import as_one
from minigrad.codegen.policy.packed import size

PARTS = 4
"""Terms of a sum at once."""

SUMS = 8
"""Sums of a lane at once, in registers: none waits for itself, and they read what they share once."""


def plan_block(block: Block, items: int, in_registers: bool = False) -> BlockPlan:
    """The plans of all nests of a block for so many work-items."""
    return BlockPlan(tuple([plan(nest, items, in_registers) for nest, _ in nests_of(block.body)]))


def lanes(block: Block) -> int:
    """The number of lanes of a block, 1 for none."""
    return max([size((v,)) for nest, _ in nests_of(block.body) for v in nest.domain if v.name == LANE], default=1)


def plan(nest: Nest, items: int, in_registers: bool = False) -> Plan:
    """An item for each lane, where a nest has lanes; else places in turn. With `in_registers` all loops of a lane are
    written out: what each has for itself is a number of registers then."""
    steps: list[Step] = []
    lane = tuple([v for v in nest.domain if v.name == LANE])
    first: tuple[str, ...] = (LANE,)
    if not lane or lane[0].hi + 1 != items:
        steps.append(Split(as_one(lane or nest.domain, steps), "turn", "item", items, "guard"))
        first = ("item", "turn")
    sums = [space.own[-1] for space in spaces(nest)[1:] if space.is_sum]
    if lane and in_registers:
        own, over, parts = [v.name for v in nest.domain if v not in lane], [v.name for v in sums], list[str]()
        unrolled = [*over, *own] if size(nest.domain) <= SUMS * items else [*own, *over]
        order = Order((*first, *unrolled))
    else:
        split = [v.name for v in sums if isinstance(v.hi, int) and v.hi + 1 >= PARTS]
        steps += [Split(x, f"{x}k", f"{x}c", PARTS, "rest") for x in split]
        unrolled = parts = [f"{x}c" for x in split]
        order = Order(first)
    steps += [Bind("item", first[:1]), *([Bind("unroll", tuple(unrolled))] if unrolled else []), order]
    return Plan("items", (*steps, *([Parts(tuple(parts))] if parts else [])))
