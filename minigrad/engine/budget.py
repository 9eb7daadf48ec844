"""Budgets of memory: a plan that takes more bytes than `config(memory=...)` allows is refused, in one line."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.config import config, current
from minigrad.engine.plan import ExecutionPlan, uses_of
from minigrad.errors import BudgetError
from minigrad.expr import bounds
from minigrad.scheduler.memory import plan_memory

TRIES = 5
"""The times that a plan is made whose launches need memory beside their values, unknown to the scheduler: what is taken
off its budget doubles each time, as a little less may change nothing."""


def within_budget(make: Callable[[], ExecutionPlan]) -> ExecutionPlan:
    """`make()`, again with a smaller budget for the scheduler where launches need more than values alone. Raises
    BudgetError where that does not help."""
    allowed = budget = current().memory
    plan = make()
    if not budget:
        return plan
    for attempt in range(TRIES - 1):
        excess = peak_of(plan) - budget
        allowed -= excess << attempt
        if excess <= 0 or plan.schedule.recomputed is None or allowed <= 0:
            break
        with config(memory=allowed):
            plan = min(plan, make(), key=peak_of)
    if peak_of(plan) > budget:
        raise BudgetError(_refusal(plan, budget))
    return plan


def peak_of(plan: ExecutionPlan) -> int:
    """The most bytes that a run takes: what it reads and gives, and its temporaries."""
    sizes = {k: bounds(plan.sizes[k])[1] for k in plan.temporary}
    return lasting_bytes(plan) + plan_memory(sizes, uses_of(plan.items)).nbytes


def lasting_bytes(plan: ExecutionPlan) -> int:
    """The bytes that a plan reads or gives, which it cannot do without; symbolic sizes count at their bounds."""
    kept = {k for k, s in enumerate(plan.schedule.slots) if s.leaf is not None} | set(plan.made)
    return sum([bounds(plan.sizes[k])[1] for k in kept])


def held_at_peak(plan: ExecutionPlan, sizes: dict[int, int]) -> list[tuple[int, int]]:
    """(slot, the number of the launch that makes it) of the temporaries, of these bytes, at the launch where they hold
    most."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for t, item in enumerate(plan.items):
        for s in (item.reads | item.writes) & sizes.keys():
            first.setdefault(s, t)
            last[s] = t
    best: list[int] = []
    most = -1
    for t in range(len(plan.items)):
        here = [s for s in first if first[s] <= t <= last[s]]
        total = sum([sizes[s] for s in here])
        if total > most:
            most, best = total, here
    return [(s, first[s]) for s in best]


def _refusal(plan: ExecutionPlan, budget: int) -> str:
    sizes = {k: bounds(plan.sizes[k])[1] for k in plan.temporary}
    held = sorted(held_at_peak(plan, sizes), key=lambda at: -sizes[at[0]])
    named = ", ".join([f"{_mb(sizes[s])} result of {plan.items[t].name}" for s, t in held[:2]])
    peak = peak_of(plan)
    return (f"[jit] expected a function that can do with {_mb(budget)}, got one that takes {_mb(peak)}, "
            f"{_mb(peak - budget)} more, with all computed again that helps: {_mb(lasting_bytes(plan))} is what it "
            f"reads and returns"
            f"{', then ' if named else ''}{named}; smaller batches whose gradients add up, or autocast, take less")


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
