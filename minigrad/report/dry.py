"""Realizing without running: plans are made, buffers are phantoms, and what they would hold is counted."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet, ref

from minigrad.config import current
from minigrad.engine.budget import held_at_peak, within_budget
from minigrad.engine.observe import dry_runs, line_of, note_lines
from minigrad.engine.plan import ExecutionPlan, arena_for, make_plan, number
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer, Device
from minigrad.scheduler.graph import Graph
from minigrad.scheduler.schedule import schedule


class Phantom(Buffer):
    """A buffer without memory. `label` says what it holds; `counts` whether its bytes do: what was there before the dry
    run counts once it is read."""

    __slots__ = ("dry", "label", "line", "counts")

    def __init__(self, dry: DryRun, device: Device, nbytes: int, label: str, line: str = "", given: bool = False):
        super().__init__(device, nbytes, None)
        self.dry, self.label, self.line, self.counts = dry, label, line, not given
        dry.phantoms.add(self)
        dry.live += 0 if given else nbytes

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __del__(self) -> None:
        self.dry.live -= self.nbytes if self.counts else 0


@dataclass(frozen=True, slots=True)
class Holder:
    """Bytes at the peak: what for, and the line of the user's program that asked for it, '' where it is not known."""

    nbytes: int
    label: str
    line: str


@dataclass
class DryRun:
    """The plans that were made so far, and the memory that they take. `live` are the bytes of phantoms; inputs count
    from the beginning, once they are read.

    With `keep_inputs`, realized assigns remember what they were computed from, so that they can be lazy again.
    """

    plans: list[ExecutionPlan] = field(default_factory=list)
    phantoms: WeakSet[Phantom] = field(default_factory=WeakSet)
    inputs: dict[int, Holder] = field(default_factory=dict)
    live: int = 0
    arena: int = 0
    peak: int = 0
    holders: list[Holder] = field(default_factory=list)
    known: dict[tuple, ExecutionPlan] = field(default_factory=dict)
    keep_inputs: bool = False
    only_graphs: ClassVar[bool] = False
    given: list[ref[Node]] = field(default_factory=list)

    def plan(self, graph: Graph, donated: frozenset[int], device: Device) -> ExecutionPlan:
        """The plan for this structure, with nothing compiled."""
        key = device.name, current().planning, donated, graph.key()
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = within_budget(
                lambda: make_plan(schedule(graph, donated, device.target), device, load=False))
        return found

    def copy(self, source: Buffer, device: Device) -> Phantom:
        """The same bytes in a new buffer."""
        label = source.label if isinstance(source, Phantom) else f"{source.nbytes} bytes"
        return Phantom(self, device, source.nbytes, f"a copy of {label}")

    def give(self, nodes: list[Node]) -> None:
        """Remembers Nodes that hold a phantom now."""
        self.given += map(ref, nodes)

    def forget(self) -> None:
        """Takes the phantoms from the Nodes that live on."""
        for weak in self.given:
            node = weak()
            if node is not None:
                node.storage = None

    def run(self, plan: ExecutionPlan, graph: Graph, leaves: dict[int, Buffer], values: dict[str, int],
            highest: dict[str, int]) -> list[Any]:
        """Phantoms for what outlives the run, by slot, and the leaves' buffers."""
        self.plans.append(plan)
        note_lines(plan, graph)
        for buffer in leaves.values():
            self.count_input(buffer)
        slots = plan.schedule.slots
        buffers: list[Any] = [None if s.leaf is None else leaves[s.leaf] for s in slots]
        for k, target in zip(plan.schedule.outputs, graph.targets, strict=True):
            if buffers[k] is None:
                node = graph.nodes[target]
                label = f"{node.op.name} {node.dtype.short}[{', '.join(map(str, node.shape))}]"
                buffers[k] = Phantom(self, plan.device, number(plan.sizes[k], values), label, line_of(node))
        layout = arena_for(plan, values, highest)
        self.arena = max(self.arena, layout.nbytes)
        if self.live + self.arena > self.peak:
            self.peak = self.live + self.arena
            self.holders = [Holder(p.nbytes, p.label, p.line) for p in self.phantoms if p.counts]
            self.holders += [*self.inputs.values(), *temporaries(plan, values)]
        return buffers

    def count_input(self, buffer: Buffer) -> None:
        """Counts a value that was there before, from now on."""
        if isinstance(buffer, Phantom):
            if not buffer.counts:
                buffer.counts = True
                self._add_input(buffer.nbytes)
        elif id(buffer) not in self.inputs:
            self.inputs[id(buffer)] = Holder(buffer.nbytes, "a value that was there before", "")
            self._add_input(buffer.nbytes)

    def _add_input(self, nbytes: int) -> None:
        self.live += nbytes
        self.peak += nbytes


def temporaries(plan: ExecutionPlan, values: dict[str, int]) -> list[Holder]:
    """The temporaries that live at the launch where they hold most."""
    sizes = {s: number(plan.sizes[s], values) for s in plan.temporary}
    return [Holder(sizes[s], f"result of {plan.items[t].name}", plan.lines.get(t, ""))
            for s, t in held_at_peak(plan, sizes)]


@contextmanager
def running_dry() -> Iterator[DryRun]:
    """Nothing is run or allocated meanwhile, in the whole process."""
    dry = DryRun()
    dry_runs.append(dry)
    try:
        yield dry
    finally:
        dry_runs.remove(dry)
