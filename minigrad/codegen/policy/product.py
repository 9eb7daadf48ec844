"""Products: sums in which operands are reused, as in matmul, convolution and their gradients. The cheapest of all plans
by the estimate (`cost/plans.py`).

Each way of reading the operands puts its register tiles and blocks in order by what their loop takes at least: in place
(`contraction.py`), B in place or in panels (`panels.py`), copies of blocks and boxes (`packed.py`), taps as rows
(`packed_swapped.py`), staged windows (`window.py`). The first of each is estimated. The way and its tile are those for
one worker of any speed, as they decide in which order sums are added up.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.steps import Plan
from minigrad.target import Target

CHOICES = 4
"""Register tiles that a way has at most. Estimates of others than the first gained nothing."""

GAIN = 0.97
"""Part of their cycles that products with the usual tile count for: they share their programs."""

Choice = tuple[float, Any]
"""Cycles that a choice takes at least, by what the loop of its register tile does; and what the plan is made of."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a product: its choices, the most promising first, and what makes a plan of one for a target; the
    times that its cycles count; the choice that products of most sizes have, as they share a program then; and the
    choices for a target, given that for one worker of any speed: none where it stays."""

    name: str
    choices: Sequence[Choice]
    made: Callable[[Any, Target], tuple[Nest, Plan]]
    times: float = 1.0
    usual: Any = None
    settle: Callable[[Any, Target], Sequence[Choice]] = lambda choice, target: (
        [(0.0, choice)] if target.units > 1 else [])


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its nest and the cycles that it takes; the way and the choice that it is made by."""

    cycles: float
    nest: Nest
    plan: Plan
    way: Way
    choice: Any


def cheapest(ways: Iterable[Way], target: Target) -> Found | None:
    """The cheapest of the first choices of some ways; None where there are none."""
    known = sorted([way for way in ways if way.choices], key=lambda w: w.choices[0][0] * w.times)
    found: Found | None = None
    for way in known:
        found = best(way, way.choices[:1], target, found.cycles if found else inf, len(known) == 1) or found
    return found


def settled(found: Found, target: Target) -> Found:
    """The plan for a target, given that for one worker of any speed."""
    choices = found.way.settle(found.choice, target)
    return best(found.way, choices, target, inf, len(choices) == 1) or found


def best(way: Way, choices: Sequence[Choice], target: Target, most: float, alone: bool) -> Found | None:
    """The cheapest plan of some choices; None where none takes fewer cycles than `most`. There is nothing to estimate
    where a choice is `alone`."""
    found: Found | None = None
    for least, choice in choices:
        times = way.times * (GAIN if choice == way.usual else 1.0)
        if least * times < most:
            nest, plan = way.made(choice, target)
            cycles = 0.0 if alone else estimate(nest, plan, target).cycles * times
            if cycles < most:
                found, most = Found(cycles, nest, plan, way, choice), cycles
    return found
