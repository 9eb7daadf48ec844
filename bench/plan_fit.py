"""The costs of a machine (`[plans]` of its file) that fit times of plans which were measured on it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from minigrad.codegen.cost.counts import Counts
from minigrad.codegen.cost.plans import of_counts
from minigrad.codegen.machines.machine import PlanCosts, machine
from minigrad.target import Target

STEPS = (2.0, 1.4, 1.2, 1.1, 1.05)
"""Factors by which costs are changed, one after the other, while it helps; the coarsest first."""

SHARP = 10.0
"""The power of one over their cycles by which plans of a kernel are weighted, as those that may be chosen."""

RATE, PRIOR = 0.02, 0.003
"""Weights, beside that of time which is lost by a choice, of differences between the rates of kernels, and of the
square of a change's logarithm: a cost that no choice depends on stays as it is."""

LEAST_GAIN = 1e-4


def fitted(rows: Sequence[dict[str, Any]], target: Target) -> PlanCosts:
    """Costs with which the plans that are likely to be chosen, of all that were measured, lose the least time, and
    kernels take their cycles at one rate."""
    facts = machine(target)
    counts = [Counts(**p["counts"]) for row in rows for p in row["plans"]]
    seconds = np.log([p["seconds"] for row in rows for p in row["plans"]])
    first = np.cumsum([0, *[len(row["plans"]) for row in rows]])[:-1]
    sizes = [len(row["plans"]) for row in rows]
    lost = seconds - np.repeat(np.minimum.reduceat(seconds, first), sizes)

    def error(costs: PlanCosts) -> float:
        known = replace(facts, plans=costs)
        cycles = np.log([of_counts(c, known).cycles for c in counts])
        likely = np.exp(-SHARP * (cycles - np.repeat(np.minimum.reduceat(cycles, first), sizes)))
        each = np.add.reduceat(likely * lost, first) / np.add.reduceat(likely, first)
        rates = np.add.reduceat(likely * (cycles - seconds), first) / np.add.reduceat(likely, first)
        moved = [np.log(new / old) ** 2 for new, old in zip(asdict(costs).values(), asdict(facts.plans).values(),
                                                            strict=True)]
        return float(np.mean(each) + RATE * np.var(rates) + PRIOR * np.mean(moved))

    costs, least = facts.plans, error(facts.plans)
    for step in STEPS:
        before = np.inf
        while before - least > LEAST_GAIN:
            before = least
            for name, value in asdict(costs).items():
                for factor in (step, 1 / step):
                    changed = replace(costs, **{name: value * factor})
                    if (now := error(changed)) < least:
                        costs, least = changed, now
                        break
    return costs
