"""A profile that also notes what a report shows besides times: memory, copies, captures, and the sizes of graphs."""
from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from minigrad.engine.observe import Ran, line_of
from minigrad.engine.plan import ExecutionPlan
from minigrad.ops.node import Node
from minigrad.report.profile import Profile
from minigrad.runtime.device import Buffer


@dataclass(slots=True)
class Memory:
    """The memory of one run of a plan: bytes by slot, offsets of the temporaries in their arena, and what the other
    slots hold, with the line that asked for it ('' where that is not known)."""

    sizes: dict[int, int]
    offsets: dict[int, int]
    labels: dict[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something besides launches: `kind` is 'copy' (with bytes), 'read' or 'capture'; `at` launches had been run."""

    kind: str
    at: int
    text: str
    nbytes: int = 0


@dataclass
class Watch(Profile):
    """A profile with the memory of each plan, by its id, and the values of its symbolic dims and the number of Nodes it
    came from, as far as it came from a graph meanwhile. `begins` are positions in `runs` where a list of launches
    began, `called_at` when each did."""

    needs_kernels = True
    begins: list[int] = field(default_factory=list)
    called_at: list[float] = field(default_factory=list)
    memory: dict[int, Memory] = field(default_factory=dict)
    dims: dict[int, dict[str, int]] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    labels: dict[int, dict[int, tuple[str, str]]] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    plans: dict[int, ExecutionPlan] = field(default_factory=dict)

    def called(self) -> None:
        """Counts a list of launches, and notes where it begins."""
        super().called()
        self.begins.append(len(self.runs))
        self.called_at.append(perf_counter() - self._begin)

    def between(self, first: int, last: int) -> float:
        """The seconds from the end of each list of launches, from number `first` to before `last`, to the next one's
        begin: what is left without what timing them one by one costs."""
        ends = [self.runs[k - 1] for k in self.begins[first + 1:last + 1]]
        return sum([max(0.0, at - end.start - end.seconds)
                    for at, end in zip(self.called_at[first + 1:last + 1], ends, strict=True)])

    def launched(self, plan: ExecutionPlan, item: int, start: float, seconds: float, buffers: list[Any]) -> None:
        """Keeps what a launch took; of the first one of each plan where its memory lies."""
        super().launched(plan, item, start, seconds, buffers)
        if id(plan) not in self.memory:
            self.plans[id(plan)] = plan
            here = {k: b for k, b in enumerate(buffers) if b is not None}
            base = min([here[k].offset for k in plan.temporary if k in here], default=0)
            self.memory[id(plan)] = Memory({k: b.nbytes for k, b in here.items()},
                                           {k: here[k].offset - base for k in plan.temporary if k in here})

    def ran(self, run: Ran) -> None:
        """Keeps what is known of the graph that a plan came from."""
        super().ran(run)
        key, graph = id(run.plan), run.graph
        self.plans[key], self.dims[key], self.nodes[key] = run.plan, dict(run.values), len(graph.nodes)
        slots = run.plan.schedule.slots
        self.labels[key] = {k: _label(graph.nodes[s.leaf]) for k, s in enumerate(slots) if s.leaf is not None}
        for slot, target in zip(run.plan.schedule.outputs, graph.targets, strict=True):
            self.labels[key].setdefault(slot, _label(graph.nodes[target]))

    def copied(self, source: Buffer, target: Buffer) -> None:
        """Notes a copy to another device."""
        if source.device is not target.device:
            text = f"{source.device.name} to {target.device.name}"
            self.moments.append(Moment("copy", len(self.runs), text, source.nbytes))

    def asked(self) -> None:
        """Notes that the host waits for a value."""
        self.moments.append(Moment("read", len(self.runs), ""))

    def noted(self, function: str, reason: str) -> None:
        """Notes why a function is captured, or runs eagerly."""
        self.moments.append(Moment("capture", len(self.runs), f"{function}: {reason}"))

    def learn(self, earlier: Watch) -> None:
        """Takes over what an earlier watch saw of graphs: a replay makes none."""
        self.plans |= earlier.plans
        self.dims |= earlier.dims
        self.nodes |= earlier.nodes
        self.labels |= earlier.labels


def _label(node: Node) -> tuple[str, str]:
    return f"{node.dtype.short}[{', '.join(map(str, node.shape))}]", line_of(node)
