"""The decision of a strategy for one nest. A value: it prints, compares, and parses back. `Plan` is that of steps."""
from __future__ import annotations

import ast
import re
from dataclasses import dataclass, fields
from typing import ClassVar

from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan as parse_steps
from minigrad.errors import FormatError


@dataclass(frozen=True, slots=True)
class Fields:
    """A plan that is the fields of its strategy's builder, and prints as such."""

    strategy: str

    def __str__(self) -> str:
        return plan_text(self)


@dataclass(frozen=True, slots=True)
class GroupWindowPlan(Fields):
    """A window over planes by work-groups of deep x down x across work-items, with `height` rows of one column each.

    form: 'taps', the taps are summed; 'plane', the planes are, one output per tap
    planes, rows, columns: of the plane's image, by names of the (first) nest's index variables; '' where there are no
        rows
    phases: nests that interleave their outputs
    deep: planes that a group has at a time; in the form 'plane' places of the sums around one
    """

    form: str
    planes: tuple[str, ...]
    rows: str
    columns: str
    deep: int
    down: int
    across: int
    height: int
    phases: int = 1


@dataclass(frozen=True, slots=True)
class Several:
    """A plan for each of several nests."""

    strategy: ClassVar[str]
    plans: tuple[Plan, ...]

    def __str__(self) -> str:
        return "\n".join([f"plan {self.strategy}", *map(str, self.plans)])


@dataclass(frozen=True, slots=True)
class JoinedPlan(Several):
    """Nests beside each other in one launch, such as phases of a strided gradient: iterations of the first come before
    those of the second."""

    strategy = "joined"


@dataclass(frozen=True, slots=True)
class BlockPlan(Several):
    """The nests of a block, in the order of its text."""

    strategy = "block"


AnyPlan = Plan | JoinedPlan | BlockPlan | GroupWindowPlan
_KINDS = {"window_groups": GroupWindowPlan}


def plan_text(plan: Fields | AnyPlan) -> str:
    return "plan " + " ".join(f"{f.name}={getattr(plan, f.name)!r}".replace(" ", "") for f in fields(plan))


def parse_several(text: str) -> tuple[Plan, ...]:
    """The plans that follow the first line of a text. Raises PlanError naming what is wrong."""
    return tuple([parse_steps("plan" + part) for part in re.split(r"^plan\b", text, flags=re.M)[2:]])


def parse_plan(text: str) -> AnyPlan:
    """The inverse of str(plan). Raises FormatError or PlanError naming what is wrong."""
    several = {f"plan {made.strategy}": made for made in (JoinedPlan, BlockPlan)}.get(text.split("\n")[0].rstrip())
    if several is not None:
        return several(parse_several(text))
    words = text.split()
    if "=" not in text:
        return parse_steps(text)
    try:
        if words[0] != "plan":
            raise ValueError("it must start with 'plan'")
        values = {name: ast.literal_eval(value) for name, value in (w.split("=", 1) for w in words[1:])}
        return _KINDS[values["strategy"]](**values)
    except (ValueError, TypeError, SyntaxError, IndexError, KeyError) as error:
        raise FormatError(f"[parse_plan] expected 'plan strategy=...', got {text!r}: {error}") from None
