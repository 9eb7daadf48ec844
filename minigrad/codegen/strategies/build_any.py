"""The loops of any plan: of steps, or of those that are not steps yet."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.other_plans import (
    AnyPlan,
    GroupWindowPlan,
    JoinedPlan,
    Plan,
)
from minigrad.codegen.strategies.build_joined import build_joined
from minigrad.codegen.strategies.build_window_groups import build_window_groups

OF_NESTS: dict[type, Callable[..., Function]] = {
    GroupWindowPlan: build_window_groups, JoinedPlan: build_joined}
OF_ONE_NEST: dict[type, Callable[..., Function]] = {
    Plan: build}


@lru_cache(maxsize=4096)
def build_any(kernel: Kernel, nests: tuple[Nest, ...], plan: AnyPlan, name: str) -> Function:
    """The loops that a plan of nests of a kernel describes. Where sizes are dims, many layers ask for the same."""
    if type(plan) in OF_NESTS:
        return OF_NESTS[type(plan)](kernel, nests, plan, name)
    return OF_ONE_NEST[type(plan)](kernel, *nests, plan, name)
