"""Named warnings about a step, each computed from facts, with what to do. `docs/warnings.md` has a section for each."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.codegen.machines.machine import machine
from minigrad.errors import quantity
from minigrad.report.explained.rows import Row
from minigrad.report.explained.rules import RULES, named
from minigrad.report.explained.step import Step
from minigrad.report.words import size_text, time_text
from minigrad.runtime.simulated import SimulatedGpu

MATTERS = 0.02
"""The part of a step from which on a kernel is warned of."""

EAGERLY = ": runs eagerly"
"""Words in what a function under `jit` notes that it does not capture."""

LAUNCHING, OUTSIDE, LAUNCH_US = 0.3, 0.5, 2.0
"""Parts of a step from which on launches, and what is outside kernels, are warned of; microseconds of a launch where
nobody measured it."""

CURES = {
    "spill": "Values do not fit the registers, so that inner loops go through memory: give the kernel a plan with a "
             "smaller tile, or split what it computes by .contiguous().",
    "narrow-vectors": "Most of the work is done one element at a time: put the axis that is long and contiguous last, "
                      "or pad it to a multiple of a vector.",
    "gather": "Neighbours read or write places that lie apart: keep what is read together next to each other "
              "(.contiguous() after a transpose), or sort the indices.",
    "recompute": "The same values are computed more than once: put them into memory by .contiguous(), or give the step "
                 "more memory.",
    "tail": "Sizes leave parts of blocks, vectors or rounds of work: choose sizes that are multiples of 16 or 64, or a "
            "batch that all workers share evenly.",
    "few-units": "The work is not shared by all cores or units: make the batch larger, or compute independent parts "
                 "together.",
    "low-occupancy": "Too few waves hide the time that memory takes: use fewer registers or less local memory in a "
                     "plan, or half precision.",
    "launch-bound": "The kernels are so short that beginning them takes the time: compute more in each (larger "
                    "batches), or have them fuse.",
    "host-bound": "Python takes the time, not the kernels: put the step under jit, read values less often, and prepare "
                  "data beside it.",
    "copy-between-devices": "Values move between devices in each step: make them where they are used, once.",
    "captured-again": "A function under jit is captured anew in the step: what changes from call to call should be a "
                      "Tensor or a bound Variable.",
    "upcast": "A wider type than was given doubles the bytes: cast constants and inputs to the type that is meant.",
}


@dataclass(frozen=True, slots=True)
class NamedWarning:
    """A warning: its name, the facts in words, the rows that it is about (none for one about the step), and the part of
    the step that they take."""

    name: str
    text: str
    rows: tuple[int, ...]
    share: float

    @property
    def cure(self) -> str:
        """Advice: what to do."""
        return CURES[self.name]


def warnings_of(step: Step, rows: Sequence[Row], total: float) -> list[NamedWarning]:
    """The warnings about a step that takes `total` seconds, those about the largest part of it first."""
    found = []
    each = {k: named(row.facts) for k, row in enumerate(rows) if row.seconds >= MATTERS * total}
    for name in RULES:
        texts = {k: told[name] for k, told in each.items() if name in told}
        if texts:
            share = sum([rows[k].seconds for k in texts]) / total
            first = next(iter(texts))
            more = f"; so is it with {quantity(len(texts) - 1, 'other kernel')}" if len(texts) > 1 else ""
            found.append(NamedWarning(name, f"{rows[first].name}: {texts[first]}{more}", tuple(texts), share))
    return sorted([*found, *_of_step(step, rows, total)], key=lambda w: -w.share)


# ---- the step ----


def launch_seconds(row: Row) -> float:
    """The seconds that it takes to begin a launch of its device."""
    device = row.plan.device
    if isinstance(device, SimulatedGpu):
        return device.facts.launch_us_measured * 1e-6
    target = device.target
    measured = None if target.is_gpu else machine(target).speed.launch_us_measured
    return (target.launch_us or measured or LAUNCH_US) * 1e-6


def _of_step(step: Step, rows: Sequence[Row], total: float) -> list[NamedWarning]:
    found = []
    outside = total - sum([row.seconds for row in rows])
    launching = sum([launch_seconds(row) * len(row.at) for row in rows])
    if launching >= LAUNCHING * total:
        each = time_text(launching / len(step.launches))
        text = f"{quantity(len(step.launches), 'launch')} in {time_text(total)}, of which each takes {each} to begin"
        found.append(NamedWarning("launch-bound", text, (), min(1.0, launching / total)))
    if step.wall is not None and outside - launching >= OUTSIDE * total:
        found.append(NamedWarning("host-bound", _outside(step, outside / total), (), outside / total))
    copies = [m for m in step.moments if m.kind == "copy"]
    if copies:
        ways = ", ".join(dict.fromkeys(m.text for m in copies))
        found.append(NamedWarning("copy-between-devices", f"{quantity(len(copies), 'copy')}, "
                                  f"{size_text(sum([m.nbytes for m in copies]))} in all: {ways}", (), 0.0))
    again = [m.text for m in step.moments if m.kind == "capture" and EAGERLY not in m.text]
    if again:
        found.append(NamedWarning("captured-again", again[-1], (), max(0.0, outside / total)))
    for made in {id(t.plan): t.plan.schedule.recomputed for t in step.launches}.values():
        if made is not None and made.values:
            text = f"{quantity(made.values, 'value')} for the budget of memory, {made.work:.1%} more arithmetic"
            found.append(NamedWarning("recompute", text, (), made.work))
    return found


def _outside(step: Step, share: float) -> str:
    eager = [m.text for m in step.watch.moments if m.kind == "capture" and EAGERLY in m.text]
    reads = len([m for m in step.moments if m.kind == "read"])
    why = eager[-1] if eager else "it is captured" if step.captured else "it is not under jit"
    return f"{share:.0%} of the step is outside kernels" + (
        f", which reads {quantity(reads, 'value')} on the host" if reads else "") + f"; {why}"
