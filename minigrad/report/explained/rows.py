"""The kernels of a step as rows: equal launches from one line together, with amounts, times, facts and reasons."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minigrad.codegen.cost.launch import launched
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.passes import Stage, Staged, stages_of
from minigrad.engine.plan import ExecutionPlan, Item, number
from minigrad.errors import quantity
from minigrad.report.explained.loop_facts import Facts, gpu_facts, processor_facts, widened
from minigrad.report.explained.step import Step
from minigrad.report.profile import limits_of
from minigrad.runtime.cpu import CPU
from minigrad.runtime.simulated import SimulatedGpu

MOST_NAMED = 4
"""The readers of a result that are named; the others are counted."""


@dataclass
class Row:
    """Launches of one program from one line, in a step. `at` are their positions in the step, `seconds` their sum;
    `least` the time that the machine's limits allow, None where those are not known, and `limit` which of them binds.
    `predicted` is likewise of all. `begins` and `ends` say why the kernel does not compute more."""

    plan: ExecutionPlan
    item: int
    line: str
    dims: dict[str, int]
    at: list[int] = field(default_factory=list)
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    least: float | None = None
    limit: str = ""
    predicted: float | None = None
    facts: Facts = field(default_factory=Facts)
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def launch(self) -> Item:
        """The first of them, as its plan has it."""
        return self.plan.items[self.item]

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.launch.name

    @property
    def device(self) -> str:
        """The name of the device."""
        return self.plan.device.name

    @property
    def pattern(self) -> str:
        """The pattern of the plan; '' where there is none."""
        words = str(self.launch.how).split(maxsplit=2)
        return words[1] if words[:1] == ["plan"] and len(words) > 1 else ""

    @property
    def stage(self) -> tuple[Stage, Staged] | None:
        """The stage of its kernel that it is; None where the plan does not know."""
        if self.launch.kernel is None:
            return None
        staged = stages_of(self.launch.kernel, self.plan.device.target)
        return staged.stages[self.launch.stage], staged


def rows_of(step: Step) -> list[Row]:
    """The rows of a step, the longest first."""
    found: dict[tuple[object, ...], Row] = {}
    of_item: dict[tuple[int, int], Row] = {}
    for at, t in enumerate(step.launches):
        item, place = t.plan.items[t.item], (id(t.plan), t.item)
        row = of_item.get(place)
        if row is None:
            line, dims = t.plan.lines.get(t.item, ""), step.watch.dims.get(id(t.plan), {})
            sizes = tuple([number(d, dims) if isinstance(d, int) or dims else 0 for r in item.rows for d in r.dims])
            key = item.name, item.function, sizes, len(item.rows), line, t.plan.device.name
            row = of_item[place] = found.setdefault(key, Row(t.plan, t.item, line, dims))
        row.at.append(at)
        row.seconds += t.seconds
        row.flops += item.flops
        row.bytes += item.bytes
    rows = sorted(found.values(), key=lambda r: -r.seconds)
    edges: dict[int, Edges] = {}
    for row in rows:
        _add_limit(row)
        _add_facts(row)
        known = edges.get(id(row.plan)) or edges.setdefault(id(row.plan), Edges(row.plan))
        row.begins, row.ends = known.begins(row.launch), tuple(known.ends(row.item))
    return rows


def _add_limit(row: Row) -> None:
    limits = limits_of(row.device)
    if limits is not None:
        by = {"arithmetic": row.flops / 1e9 / limits.gflops, "memory": row.bytes / 1e9 / limits.gb_s}
        row.limit = max(by, key=lambda name: by[name])
        row.least = by[row.limit]


def _add_facts(row: Row) -> None:
    """Adds what is known of the loops of the first launch, and the time that is predicted for all."""
    item, device, stage = row.launch, row.plan.device, row.stage
    if item.function is None:
        return
    extents = [number(r.extent, row.dims) for r in item.rows if isinstance(r.extent, int) or row.dims]
    if isinstance(device, SimulatedGpu):
        dims = tuple([number(d, row.dims) for d in item.rows[0].dims])
        one = launched(item.function, dims, device.facts, str(item.how), getattr(item.executable, "compiled", None))
        row.facts = gpu_facts(one, device.facts)
        row.predicted = one.seconds * len(item.rows) * len(row.at)
    elif not device.target.is_gpu and stage is not None:
        row.facts = processor_facts(stage[0], stage[1].kernel, device.target, sum(extents) or None)
        if row.facts.cycles is not None and isinstance(device, CPU):
            row.predicted = row.facts.cycles / clock(device) * len(item.rows) * len(row.at)
    if item.kernel is not None:
        row.facts.widened = widened(item.kernel)
    row.facts.one, row.facts.grouped = row.seconds / len(row.at), item.group >= 0


def clock(device: CPU) -> float:
    """Cycles in a second, as multiply-adds in registers tell that were measured (`Probe`)."""
    limits, target = limits_of(device.name), device.target
    a_cycle = 2 * (target.vector_bytes // 4) * machine(target).declared.fma_per_cycle * device.pool.threads
    return limits.gflops * 1e9 / a_cycle if limits is not None else 1e9


# ---- why a kernel begins and ends where it does ----


class Edges:
    """Who reads what in a plan, and why kernels do not compute more."""

    def __init__(self, plan: ExecutionPlan):
        self.plan, self.outputs = plan, set(plan.schedule.outputs)
        self.apart = {(id(s.kernel), s.origins): s.reasons for s in plan.schedule.steps}
        self.readers: dict[int, list[int]] = {}
        for k, item in enumerate(plan.items):
            for slot in item.reads:
                self.readers.setdefault(slot, []).append(k)

    def begins(self, item: Item) -> tuple[str, ...]:
        """Texts about what was kept apart from a kernel, and why."""
        return self.apart.get((id(item.kernel), item.origins), ())

    def ends(self, k: int) -> Iterator[str]:
        """Texts about why a launch ends where it does."""
        plan, item = self.plan, self.plan.items[k]
        stages = 1 if item.kernel is None else len(stages_of(item.kernel, plan.device.target).stages)
        if stages > 1:
            yield f"it is launch {item.stage + 1} of {stages} of one kernel, of which each needs all of the one before"
        if item.writes & self.outputs:
            yield "its result outlives the step, or is read by a later part of it"
        later = {r for slot in item.writes for r in self.readers.get(slot, ()) if r > k}
        readers = [plan.items[r] for r in sorted(later) if plan.items[r].kernel is not item.kernel]
        if len(readers) > 1:
            yield f"its result is read by {quantity(len(readers), 'kernel')}: {_named(readers)}"
        elif readers:
            why = self.begins(readers[0])
            yield f"its result is read by {readers[0].name}" + (f", which keeps apart {'; '.join(why)}" if why else "")


def _named(items: Sequence[Item]) -> str:
    names = list(dict.fromkeys(i.name for i in items))
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
