"""Plans from text, one step a line: `parse_plan(str(plan)) == plan`."""
from __future__ import annotations

import re

from minigrad.codegen.plan.loops import NAME, Step, refuse
from minigrad.codegen.plan.steps import STEPS, Plan, Split
from minigrad.errors import PlanError

FORMS = {step.usage.split()[0]: step for step in STEPS}


def parse_plan(text: str) -> Plan:
    """The plan that a text spells; what follows a '#' is a remark. Raises PlanError naming the line and its form."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    first = lines[0] if lines else ""
    if not re.fullmatch(rf"plan( {NAME})?", first):
        raise PlanError(f"[plan] expected 'plan' or 'plan PATTERN' in the first line, got {first!r}")
    steps = tuple([parse_step(line) for line in lines[1:]])
    seen = set[str]()
    for s in [s for s in steps if isinstance(s, Split)]:
        if s.size < 1:
            raise refuse(s, "a size from 1 on", str(s.size))
        seen.add(s.loop)
        for name in (s.outer, s.inner):
            if name in seen:
                raise refuse(s, "names that no loop has or had", name)
            seen.add(name)
    return Plan(first[4:].strip(), steps)


def parse_step(line: str) -> Step:
    """The step that a line spells."""
    form = FORMS.get(line.split()[0])
    if form is None:
        raise PlanError(f"[plan] expected a step among {', '.join(FORMS)}, got {line!r}")
    found = re.fullmatch(form.pattern, re.sub(r"\s+", " ", line))
    if found is None:
        raise PlanError(f"[plan] expected '{form.usage}', got {line!r}")
    return form.parsed(found)
