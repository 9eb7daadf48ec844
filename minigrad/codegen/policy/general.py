"""General policies, one of which takes any nest: each lists plans, and the cheapest by the estimate is taken."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from minigrad.codegen.cost.plans import cheapest_plan
from minigrad.codegen.kernel.access import reductions
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import pointwise, reduction, rows
from minigrad.target import Target


def plan(nest: Nest, target: Target) -> Plan:
    """The cheapest plan, on a processor for any number of workers."""
    return cheapest(nest, target if target.is_gpu else replace(target, units=1))


def compared(nest: Nest, target: Target) -> list[Plan]:
    """The plans of which one is chosen."""
    policy = rows if rows.is_row_kernel(nest) else reduction if reductions(nest) else pointwise
    return list(dict.fromkeys(policy.plans(nest, target)))


@lru_cache(maxsize=2048)
def cheapest(nest: Nest, target: Target) -> Plan:
    return cheapest_plan(nest, compared(nest, target), target)
