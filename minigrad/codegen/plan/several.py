"""Plans of several nests: of those beside each other in one launch, and of those of a block; and any plan as text."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan as parse_steps


@dataclass(frozen=True, slots=True)
class Several:
    """A plan for each of several nests. `pattern` is the word after `plan`."""

    pattern: ClassVar[str]
    plans: tuple[Plan, ...]

    def __str__(self) -> str:
        return "\n".join([f"plan {self.pattern}", *map(str, self.plans)])


@dataclass(frozen=True, slots=True)
class JoinedPlan(Several):
    """Nests beside each other in one launch, such as phases of a strided gradient: iterations of the first come before
    those of the second."""

    pattern = "joined"


@dataclass(frozen=True, slots=True)
class BlockPlan(Several):
    """The nests of a block, in the order of its text."""

    pattern = "block"


AnyPlan = Plan | JoinedPlan | BlockPlan


def parse_plan(text: str) -> AnyPlan:
    """The inverse of str(plan). Raises PlanError naming what is wrong."""
    first = next(filter(None, [line.split("#")[0].strip() for line in text.splitlines()]), "")
    several = {f"plan {made.pattern}": made for made in (JoinedPlan, BlockPlan)}.get(first)
    if several is None:
        return parse_steps(text)
    return several(tuple([parse_steps("plan" + part) for part in re.split(r"^plan\b", text, flags=re.M)[2:]]))
