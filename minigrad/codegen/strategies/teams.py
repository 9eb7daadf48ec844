"""Reductions and rows by work-groups: a team of work-items per point of the domain, joined through local memory.

    for blocks of the domain group:
      for rows x items work-items item:
        for each reduction: its terms in turn among the items of a row, then a tree over their results
        for each inner domain: its points in turn among the items, and a barrier if they are read after it
        what is stored once per row: by its first item

How many items a row gets depends on shapes and the target only. Where the target has sub-groups, what the neighbours in
one have is joined by the device, and only what sub-groups leave is added up in local memory.
"""
from __future__ import annotations

from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Define, Nest, Store
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.microkernels.sub_group import sub_group_name, sub_group_width
from minigrad.codegen.strategies.access import accesses, extent, typical
from minigrad.codegen.strategies.lanes import domain_order
from minigrad.codegen.strategies.plan import TeamPlan
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import walk

GROUP = 256
MIN_LENGTH = 32
"""Terms of a sum from which a team is worth its barriers."""

TERMS = 4
"""Terms that each work-item of a team adds up, if there are as many."""

NEIGHBOURS = 32
"""Work-items that read neighbouring elements at once."""


def plan(nest: Nest, target: Target) -> TeamPlan | str:
    """The plan, or why the nest has none."""
    if not target.has_groups:
        return f"no team: no work-groups with local memory on {target.name}"
    loops: list[tuple[Var, ...]] = [s.domain for s in nest.body if isinstance(s, Nest)]
    loops += [s.value.attr[1] for s in nest.body if isinstance(s, Define) and is_reduction(s)]  # type: ignore[index]
    if not any(is_reduction(s) for s in nest.body):
        return "no team: nothing is reduced"
    if any(isinstance(i, Nest) or has_reduction(i) for s in nest.body if isinstance(s, Nest) for i in s.body) or any(
            has_reduction(s) for s in nest.body if not isinstance(s, Nest)):
        return "no team: a reduction inside an expression or an inner domain"
    length = max(size(over) for over in loops)
    outputs = size(nest.domain)
    if length < MIN_LENGTH:
        return f"no team: {length} terms are too few"
    order = domain_order(nest, accesses(nest))
    fast = "item" if any(contiguous(nest, over[-1]) for over in loops if over) else "row"
    if fast == "row" and outputs >= target.units * machine(target).declared.items_per_unit // TERMS:
        return "no team: the domain alone keeps the device busy"
    group = power(min(GROUP, target.max_group))
    if fast == "item":
        items = min(group, max(NEIGHBOURS, power(length // TERMS)))
        rows = min(group // items, power(max(outputs, 1)))
    else:
        rows = min(NEIGHBOURS, power(max(outputs, 1)))
        items = min(group // rows, power(length // TERMS))
    if target.max_iterations and sum(-(-size(over) // items) for over in loops) > target.max_iterations:
        return f"no team: {length} terms take more iterations than a work-item has"
    return TeamPlan("teams", tuple(v.name for v in order), rows, items, fast, joins(nest, items, fast, target))


def joins(nest: Nest, items: int, fast: str, target: Target) -> int:
    """The width of sub-groups that join all reductions of a nest, 0 where they do not."""
    width = sub_group_width(target)
    known = all(sub_group_name(s.value.attr[0], s.value.args[0].dtype, width) is not None  # type: ignore[index]
                for s in nest.body if isinstance(s, Define) and is_reduction(s))
    return width if width and known and fast == "item" and items % width == 0 else 0


def is_reduction(s: Define | Store | Nest) -> bool:
    return isinstance(s, Define) and s.value.op == "reduce"


def has_reduction(s: Define | Store) -> bool:
    """Whether a reduction is hidden inside an expression."""
    inside = s.value.args if is_reduction(s) else (s.value,)
    return any(v.op == "reduce" for v in walk(*inside))


def contiguous(nest: Nest, v: Var) -> bool:
    """Whether a load or store of the nest steps by one element with `v`."""
    return any(coefficient(a.offset, v) == 1 for a in accesses(nest))


def size(variables: tuple[Var, ...]) -> int:
    total = 1
    for v in variables:
        total *= typical(v) if extent(v) else 0
    return total


def power(n: int) -> int:
    """The largest power of two that is at most n, at least 1."""
    return 1 << max(n, 1).bit_length() - 1
