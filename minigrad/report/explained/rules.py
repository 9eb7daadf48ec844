"""Named warnings about one launch, each a rule over its facts. `warnings.py` has those about a whole step."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.errors import quantity
from minigrad.report.explained.loop_facts import Facts

NARROW, APART, AGAIN, REST, FULL, ON_STACK = 0.5, 0.3, 0.3, 1.25, 0.25, 0.05
"""Bounds of the rules: parts of the work, of the time (on a GPU: of the bytes) and of the arithmetic, times as long,
part of the waves that a scheduler could hold, part of the instructions on vectors."""

SHARED_OUT_S = 50e-6
"""Seconds of a launch that several cores would do faster than one, waking them included."""


def named(facts: Facts) -> dict[str, str]:
    """The warnings about a launch, by name, each with its facts in words."""
    return {name: text for name, rule in RULES.items() if (text := rule(facts))}


def _spill(facts: Facts) -> str:
    if facts.is_gpu:
        return f"{quantity(facts.spills, 'value')} of a work-item have no register" if facts.spills else ""
    if not facts.of or facts.spills < ON_STACK * facts.of:
        return ""
    return f"{facts.spills} of {facts.of} instructions on vectors in its inner loops go to or from the stack"


def _narrow(facts: Facts) -> str:
    return f"{facts.narrow:.0%} of its work is done in less than half of a vector" if facts.narrow >= NARROW else ""


def _gather(facts: Facts) -> str:
    if facts.apart < APART:
        return ""
    return facts.apart_text or f"{facts.apart:.0%} of its time goes to lanes that read or write places that lie apart"


def _recompute(facts: Facts) -> str:
    part, op = facts.again
    return f"{part:.0%} of its arithmetic computes values again, most of all {op}" if part >= AGAIN else ""


def _tail(facts: Facts) -> str:
    if facts.rest < REST or facts.bound == "launch":
        return ""
    return f"it takes {facts.rest:.2g} times as long as with sizes that divide evenly"


def _few_units(facts: Facts) -> str:
    if facts.workers is None or facts.workers >= facts.units or facts.grouped or facts.bound == "launch":
        return ""
    if facts.is_gpu:
        return f"{facts.workers} groups for {facts.units} units"
    return f"it is shared out to {facts.workers} of {facts.units} cores" if facts.one >= SHARED_OUT_S else ""


def _low_occupancy(facts: Facts) -> str:
    waits = facts.bound not in ("launch", "arithmetic", "instructions")
    if facts.waves is None or not facts.most_waves or not waits or facts.waves > FULL * facts.most_waves:
        return ""
    return f"a scheduler holds {facts.waves:.3g} of {facts.most_waves:.3g} waves, of {facts.registers} registers a " \
           f"work-item and {facts.local} bytes of local memory a group"


def _upcast(facts: Facts) -> str:
    return f"{facts.widened}: it writes or computes what is wider than what it is given" if facts.widened else ""


RULES: dict[str, Callable[[Facts], str]] = {
    "spill": _spill, "narrow-vectors": _narrow, "gather": _gather, "recompute": _recompute, "tail": _tail,
    "few-units": _few_units, "low-occupancy": _low_occupancy, "upcast": _upcast}
