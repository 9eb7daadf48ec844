"""Which plan a nest gets: by how its index variables are used, never by names of operations."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from math import inf

from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.kernel.access import reductions
from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.plan.several import AnyPlan, BlockPlan, JoinedPlan, Plan
from minigrad.codegen.plan.sizes import shares_copies, shares_sizes, with_sizes, without_sizes
from minigrad.codegen.plan.steps import Order, Stage
from minigrad.codegen.policy import (
    contraction,
    general,
    group_reduction,
    packed,
    panels,
    phases,
    quantized,
    rows,
    scatter,
    stream,
    tiles,
    window,
    window_groups,
)
from minigrad.codegen.policy.blocks import plan_attention
from minigrad.codegen.policy.product import Way, cheapest, settled
from minigrad.errors import InternalError
from minigrad.target import Target


def choose_plans(nests: Sequence[Nest], target: Target) -> list[tuple[tuple[Nest, ...], AnyPlan]]:
    """Every nest with its plan; neighbours that are phases of one window have one together, on a GPU all that store to
    the same parameters do."""
    made: list[tuple[tuple[Nest, ...], AnyPlan]] = []
    for _, found in groupby(nests, key=stored):
        run = tuple(found)
        together = phases.plan(run, target) if len(run) > 1 else ""
        if isinstance(together, BlockPlan):
            made.append((run, together))
            continue
        each = [choose_plan(nest, target) for nest in run]
        beside = joined([plan for _, plan in each]) if target.has_groups else None
        made += [(run, beside)] if beside else [((nest,), plan) for nest, plan in each]
    return made


def stored(nest: Nest) -> list[str]:
    """The parameters that a nest stores to, in its own body."""
    return [s.param for s in nest.body if isinstance(s, Store)]


def joined(plans: Sequence[AnyPlan]) -> JoinedPlan | None:
    """The plan of nests beside each other, where all of them are loops of the general kind."""
    if len(plans) < 2 or not all([isinstance(p, Plan) and not p.bound("group") for p in plans]):
        return None
    return JoinedPlan(tuple(plans))  # type: ignore[arg-type]


def choose_plan(nest: Nest, target: Target) -> tuple[Nest, AnyPlan]:
    """The nest, perhaps with scales outside its sums or as a product of two operands, and the plan of the first
    policy that fits, from the most special to the most general; which sizes are arguments is part of it."""
    tiled = tiles.plan(nest, target)
    if not isinstance(tiled, str):
        return tiled
    own, plan = _first_plan(nest, target)
    if isinstance(plan, Plan) and shares_sizes(target) and (shares_copies(target) or not plan.stages) and (
            plan.pattern != "contraction" or contraction.is_small(nest)):
        return own, with_sizes(own, plan)
    return own, plan


def cycles(nest: Nest, target: Target) -> float:
    """The cycles that a nest takes by its plan."""
    nest, plan = choose_plan(nest, target)
    return estimate(nest, plan, target).cycles if isinstance(plan, Plan) else inf


def next_best(nest: Nest, plan: Plan, target: Target) -> list[str]:
    """Lines about the two cheapest of the other plans that were compared for a nest: the order of loops, copies, and
    cycles with what most of them are for."""
    one = replace(target, units=1)
    found = [plans[0] for plans in compared(nest, one)]
    made = {str(p): (p, estimate(n, p, one)) for n, p in found if without_sizes(p) != without_sizes(plan)}
    best = sorted(made.values(), key=lambda x: x[1].cycles)[:2]
    return [f"or {p.pattern}, {'; '.join(str(s) for s in p.steps if isinstance(s, Order | Stage))}: {e}"
            for p, e in best]


def compared(nest: Nest, target: Target) -> list[list[tuple[Nest, Plan]]]:
    """The plans that a nest has by each way to compute it, those of one way the most promising first."""
    ways = [] if rows.is_row_kernel(nest) or not reductions(nest) else list(product_ways(nest, target))
    if ways:
        return [[way.made(choice, target) for _, choice in way.choices] for way in ways if way.choices]
    return [[(nest, p)] for p in general.compared(nest, target)]


def _first_plan(nest: Nest, target: Target) -> tuple[Nest, AnyPlan]:
    if target.has_groups or is_scatter(nest) or rows.is_row_kernel(nest) or not reductions(nest):
        return other_plan(nest, target)
    blocks = quantized.plan(nest, target)
    return (nest, blocks) if blocks is not None else stream.plan(nest, target) or other_plan(nest, target)


def general_plan_of(nest: Nest, target: Target) -> Plan:
    """The plan of the general policies, which take any nest."""
    if is_scatter(nest):
        return scatter.plan(nest, target)
    in_place = contraction.plan(nest, target) if reductions(nest) and not rows.is_row_kernel(nest) else None
    return in_place or general.plan(nest, target)


def is_scatter(nest: Nest) -> bool:
    """True where stores of a nest combine with what is there."""
    return any(isinstance(s, Store) and s.combine for s in nest.body)


def other_plan(nest: Nest, target: Target) -> tuple[Nest, AnyPlan]:
    """A nest that does not stream interleaved rows or blocks, with its plan."""
    if is_scatter(nest):
        return nest, general_plan_of(nest, target)
    if any(isinstance(s, Store) and s.combine for inner in nest.body if isinstance(inner, Nest) for s in inner.body):
        raise InternalError("[plan] expected a scatter without rows, whose order would be lost")
    if target.has_groups:
        for groups in (plan_attention(nest, target), window_groups.plan(nest, target),
                       group_reduction.plan(nest, target)):
            if isinstance(groups, BlockPlan | Plan | tuple):
                return groups if isinstance(groups, tuple) else (nest, groups)
    if rows.is_row_kernel(nest):
        return nest, plan_attention(nest, target) or general_plan_of(nest, target)
    if not reductions(nest):
        return nest, general_plan_of(nest, target)
    return product_plan(nest, target) or (nest, general_plan_of(nest, target))


@lru_cache(maxsize=2048)
def product_plan(nest: Nest, target: Target) -> tuple[Nest, Plan] | None:
    """The cheapest plan of a sum in which operands are reused; None where none is. The way is that for one worker of
    any speed, so that results depend on neither."""
    one = replace(target, units=1)
    found = cheapest(product_ways(nest, one), one)
    if found is None:
        return None
    found = settled(found, target)
    return found.nest, found.plan


def product_ways(nest: Nest, target: Target) -> Iterator[Way]:
    """The ways to compute a sum; none where no operand is reused."""
    in_place, over_planes = contraction.way(nest, target), window.way(nest, target)
    if first := over_planes or in_place:
        yield first
    if in_place:
        yield from panels.ways(nest, target)
        yield from packed.ways(nest, target)
