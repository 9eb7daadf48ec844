"""Reductions and rows by work-groups: several work-items per point of the domain, joined through local memory.

    plan group_reduction
      split i0 -> g u by 4, guard                 rows of a group
      split r0 -> r0c r0t by 64, guard            terms in turn among the work-items of a row
      split i1 -> i1c i1t by 64, guard            so are the points of an inner domain
      bind group g
      bind item u r0t i1t
      order g u r0t i1t r0c i1c
      call sub_sum_f32_32 at r0t                  where the target has sub-groups

How many work-items a row gets depends on shapes and the target only. Where consecutive ones would read far apart, they
are of different rows: `order g r0t i1t u ...`.
"""
from __future__ import annotations

from minigrad.codegen.kernel.access import accesses, reductions
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.sub_group import sub_group_name, sub_group_width
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Bind, Call, Fuse, Order, Plan, Split, Step, resolve
from minigrad.codegen.policy.lanes import domain_order
from minigrad.codegen.policy.packed import size
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import walk

GROUP = 256
"""Work-items of a group, at most."""

MIN_LENGTH = 32
"""Terms of a sum from which several work-items are worth their barriers."""

TERMS = 4
"""Terms that each work-item adds up, if there are as many."""

NEIGHBOURS = 32
"""Work-items that read neighbouring elements at once."""


def plan(nest: Nest, target: Target) -> Plan | str:
    """The plan, or why the nest has none."""
    if not target.has_groups:
        return f"no group reduction: no work-groups with local memory on {target.name}"
    if not reductions(nest):
        return "no group reduction: nothing is reduced"
    if any(isinstance(i, Nest) or has_reduction(i) for s in nest.body if isinstance(s, Nest) for i in s.body) or any(
            has_reduction(s) for s in nest.body if not isinstance(s, Nest)):
        return "no group reduction: a reduction inside an expression or an inner domain"
    loops = [space.own for space in spaces(nest)[1:]]
    length = max(size(over) for over in loops)
    outputs = size(nest.domain)
    if length < MIN_LENGTH:
        return f"no group reduction: {length} terms are too few"
    found = accesses(nest)
    along = any(coefficient(a.offset, over[-1]) == 1 for a in found for over in loops if over)
    if not along and outputs >= target.units * machine(target).declared.items_per_unit // TERMS:
        return "no group reduction: the domain alone keeps the device busy"
    group = power(min(GROUP, target.max_group))
    if along:
        items = min(group, max(NEIGHBOURS, power(length // TERMS)))
        rows = min(group // items, power(outputs))
    else:
        rows = min(NEIGHBOURS, power(outputs))
        items = min(group // rows, power(length // TERMS))
    if target.max_iterations and sum(-(-size(over) // items) for over in loops) > target.max_iterations:
        return f"no group reduction: {length} terms take more iterations than a work-item has"
    return steps_of(nest, tuple(domain_order(nest, found)), rows, items, sub_group_width(target) if along else 0, along)


def steps_of(nest: Nest, domain: tuple[Var, ...], rows: int, items: int, width: int, along: bool) -> Plan:
    """The steps where work-items share sums, neighbours or not, of which `width` at a time are joined by the device."""
    fuses, splits, calls = list[Step](), list[Step](), dict[Step, None]()
    outer = [x for x in (as_one(domain, fuses),) if x]
    mine, members, turns = list[str](), list[str](), list[str]()
    if rows > 1:
        splits.append(Split(outer[0], "g", "u", rows, "guard"))
        outer, mine = ["g"], ["u"]
    for space in spaces(nest)[1:]:
        as_one(space.own, fuses)
    nest = resolve(nest, Plan("", tuple(fuses))).nest  # sums of one length may share loops now
    for space in spaces(nest)[1:]:
        x = space.own[0].name
        splits.append(Split(x, f"{x}c", f"{x}t", items, "guard"))
        turns.append(f"{x}c")
        members.append(f"{x}t")
        for r in reductions(nest):
            name = sub_group_name(r.monoid, r.body.dtype, width)
            if width and name and items % width == 0 and r.over in (space.own, *space.others):
                calls[Call(name, f"{x}t")] = None
    shared = [*mine, *members] if along else [*members, *mine]
    return Plan("group_reduction", (*fuses, *splits, *([Bind("group", tuple(outer))] if outer else []),
                                    Bind("item", tuple(shared)), Order((*outer, *shared, *turns)), *calls))


def as_one(variables: tuple[Var, ...], fuses: list[Step]) -> str:
    """The name of one loop for all variables, '' for none; adds the steps that make it."""
    name = variables[0].name if variables else ""
    for v in variables[1:]:
        fuses.append(Fuse(name, v.name, f"{name}{v.name}"))
        name = f"{name}{v.name}"
    return name


def has_reduction(s: Define | Store) -> bool:
    """True where a reduction is hidden inside an expression."""
    inside = s.value.args if isinstance(s, Define) and s.value.op == "reduce" else (s.value,)
    return any(v.op == "reduce" for v in walk(*inside))


def power(n: int) -> int:
    """The largest power of two that is at most n, at least 1."""
    return 1 << max(n, 1).bit_length() - 1
