"""Plans from text, one step a line: `parse_plan(str(plan)) == plan`."""
from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from minigrad.codegen.plan.steps import (
    Ahead,
    Bind,
    Call,
    Fuse,
    Order,
    Parts,
    Plan,
    Results,
    Sizes,
    Split,
    Stage,
    Step,
)
from minigrad.errors import PlanError

NAME = r"[A-Za-z_]\w*"


@lru_cache(maxsize=1024)
def terms_of(coordinate: str) -> tuple[tuple[int, str], ...]:
    """The loops of a coordinate with their factors: those of `y-2*ky` are (1, y) and (-2, ky)."""
    found = re.findall(rf"([+-]?)(?:(\d+)\*)?({NAME}(?:(?://|%)\d+)?)", coordinate)
    return tuple([((-1 if sign == "-" else 1) * int(factor or 1), name) for sign, factor, name in found])


def loop_of(name: str) -> str:
    """The loop that a part of a coordinate is about: kx for `kx//2` and `kx%2`."""
    return name.split("%")[0].split("//")[0]


def refuse(step: Step, expected: str, got: str) -> PlanError:
    """The error for a step."""
    return PlanError(f"[plan] {step}: expected {expected}, got {got}")


def parse_plan(text: str) -> Plan:
    """The plan that a text spells; what follows a '#' is a remark. Raises PlanError naming the line and its form."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    first = lines[0] if lines else ""
    if not re.fullmatch(rf"plan( {NAME})?", first):
        raise PlanError(f"[plan] expected 'plan' or 'plan PATTERN' in the first line, got {first!r}")
    return Plan(first[4:].strip(), tuple([parse_step(line) for line in lines[1:]]))


def parse_step(line: str) -> Step:
    """The step that a line spells."""
    form = FORMS.get(line.split()[0])
    if form is None:
        raise PlanError(f"[plan] expected a step among {', '.join(FORMS)}, got {line!r}")
    usage, pattern, make = form
    found = re.fullmatch(pattern, re.sub(r"\s+", " ", line))
    if found is None:
        raise PlanError(f"[plan] expected '{usage}', got {line!r}")
    return make(found)


NAMES = rf"{NAME}(?: {NAME})*"
TERM = rf"(?:\d+\*)?{NAME}(?:(?://|%)\d+)?"
COORDINATES = rf"((?:\[{TERM}(?:[+-]{TERM})*\])+)"
FORMS: dict[str, tuple[str, str, Callable[[re.Match[str]], Step]]] = {
    "split": ("split LOOP -> OUTER INNER by SIZE, exact|back|guard|rest|short|over",
              rf"split ({NAME}) -> ({NAME}) ({NAME}) (by|into) (\d+)(?:, ?(\w+))?",
              lambda m: Split(m[1], m[2], m[3], int(m[5]), m[6] or "exact", m[4] == "into")),
    "sizes": ("sizes VARIABLE ...", rf"sizes ({NAMES})", lambda m: Sizes(tuple(m[1].split()))),
    "fuse": ("fuse OUTER INNER -> LOOP by ROW", rf"fuse ({NAME}) ({NAME}) -> ({NAME})(?: by (\d+))?",
             lambda m: Fuse(m[1], m[2], m[3], int(m[4] or 0))),
    "order": ("order LOOP ...", rf"order ({NAMES})", lambda m: Order(tuple(m[1].split()))),
    "bind": ("bind parallel|group|item|vector|unroll|serial LOOP ...", rf"bind (\w+) ({NAMES})",
             lambda m: Bind(m[1], tuple(m[2].split()))),
    "parts": ("parts LOOP ...", rf"parts ({NAMES})", lambda m: Parts(tuple(m[1].split()))),
    "stage": ("stage BUFFER at LOOP as [LOOP+LOOP]..., transposed LOOP by NUMBER, by items, double",
              rf"stage ({NAME}) at ({NAME}) as {COORDINATES}(?:, ?transposed ({NAME})(?: by (\d+))?)?"
              r"(?:(, ?by items)(, ?double)?)?",
              lambda m: Stage(m[1], m[2], tuple(m[3][1:-1].split("][")), m[4] or "", int(m[5] or 1), bool(m[6]),
                              bool(m[7]))),
    "results": ("results at LOOP as [LOOP]..., transposed LOOP by NUMBER",
                rf"results at ({NAME}) as ((?:\[{NAME}\])+)(?:, ?transposed ({NAME})(?: by (\d+))?)?",
                lambda m: Results(m[1], tuple(m[2][1:-1].split("][")), m[3] or "", int(m[4] or 1))),
    "call": ("call MICROKERNEL at LOOP", rf"call ({NAME}) at ({NAME})", lambda m: Call(m[1], m[2])),
    "ahead": ("ahead BUFFER at LOOP by NUMBER of LOOP|bytes, far",
              rf"ahead ({NAME}) at ({NAME}) by (\d+) (?:of ({NAME})|bytes)(, ?far)?",
              lambda m: Ahead(m[1], m[2], int(m[3]), m[4] or "", m[5] is not None)),
}
