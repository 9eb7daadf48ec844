"""The memory of a step over its launches: what lies where and for how long, and what holds the peak."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minigrad.engine.budget import held_at_peak
from minigrad.engine.plan import ExecutionPlan, uses_of
from minigrad.report.explained.step import Step
from minigrad.report.explained.watch import Memory

MOST_HELD = 240
"""The values that are shown one by one, the largest; the others are counted."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of one value: bytes from `offset` on, from launch `first` to launch `last` of the plan. `kind`: 'given'
    (it was there before), 'result' or 'temporary'."""

    nbytes: int
    label: str
    line: str
    kind: str
    first: int
    last: int
    offset: int
    at_peak: bool


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """The memory of the plan of a step that takes most: `launches` of it, the first of them at `first` of the step, and
    `peak` bytes. `left_out` values, of so many bytes, are not in `held`."""

    launches: int
    first: int
    peak: int
    held: tuple[Held, ...]
    left_out: tuple[int, int]


def memory_map(step: Step) -> MemoryMap | None:
    """The memory of a step; None where nobody saw a plan's."""
    first: dict[int, int] = {}
    plans: dict[int, ExecutionPlan] = {}
    for at, t in enumerate(step.launches):
        first.setdefault(id(t.plan), at)
        plans[id(t.plan)] = t.plan
    maps = [_of_plan(plan, step.watch.memory[key], step.watch.labels.get(key, {}), first[key])
            for key, plan in plans.items() if key in step.watch.memory]
    return max(maps, key=lambda m: m.peak, default=None)


def _of_plan(plan: ExecutionPlan, memory: Memory, labels: dict[int, tuple[str, str]], at: int) -> MemoryMap:
    held = list(_held(plan, memory, labels))
    held.sort(key=lambda h: -h.nbytes)
    rest = held[MOST_HELD:]
    peak = max([h.offset + h.nbytes for h in held], default=0)
    return MemoryMap(len(plan.items), at, peak, tuple(held[:MOST_HELD]), (len(rest), sum([h.nbytes for h in rest])))


def _held(plan: ExecutionPlan, memory: Memory, labels: dict[int, tuple[str, str]]) -> Iterator[Held]:
    slots = plan.schedule.slots
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for t, used in enumerate(uses_of(plan.items)):
        for s in used:
            first.setdefault(s, t)
            last[s] = t
    end, base = len(plan.items) - 1, 0
    given = {k for k, s in enumerate(slots) if s.leaf is not None}
    outputs = set(plan.schedule.outputs)
    for k in sorted(memory.sizes.keys() - memory.offsets.keys(), key=lambda k: (k not in given, k)):
        label, line = labels.get(k, ("a value", ""))
        yield Held(memory.sizes[k], label, line, "given" if k in given else "result",
                   0 if k in given else first.get(k, 0), end if k in given or k in outputs else last.get(k, end), base,
                   True)
        base += memory.sizes[k]
    makers = {s: t for t in reversed(range(len(plan.items))) for s in plan.items[t].writes}
    busiest = {s for s, _ in held_at_peak(plan, {k: memory.sizes[k] for k in memory.offsets})}
    for k, offset in memory.offsets.items():
        t = makers.get(k, first.get(k, 0))
        yield Held(memory.sizes[k], f"result of {plan.items[t].name}", plan.lines.get(t, ""), "temporary",
                   first.get(k, 0), last.get(k, 0), base + offset, k in busiest)
