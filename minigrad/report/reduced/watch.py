"""Runs a script, and compares all that it computes with the NUMPY device, and its gradients with slopes."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minigrad.engine.compiled import find_plan
from minigrad.engine.observe import dry_runs
from minigrad.engine.plan import ExecutionPlan, run_plan
from minigrad.engine.storage import allocate, buffer_node
from minigrad.engine.transfer import download
from minigrad.errors import MinigradError
from minigrad.graph import autodiff
from minigrad.ops.calls import FUNCTION
from minigrad.ops.node import Node, toposort
from minigrad.ops.storage import BUFFER
from minigrad.report.reduced.judge import gradient_difference, wrong
from minigrad.report.reduced.program import Program, program_of
from minigrad.runtime.device import Buffer, Device
from minigrad.scheduler.graph import Graph

TIMES = 2
"""The times that a graph of one structure is compared: a step that comes a hundred times is one to look at."""


@dataclass(frozen=True)
class Found:
    """A program whose result on a device, or whose gradient where `device` is '', is wrong, and how in words."""

    program: Program
    device: str
    text: str


class Differs(BaseException):
    """Ends a script at the first difference. No error, and nothing that a script may catch: whoever runs it makes a
    report of it."""

    def __init__(self, found: Found):
        super().__init__(found.text)
        self.found = found


class Comparing:
    """Stands where a dry run does: computes everything, and compares it. `compared` counts graphs, `gradients` outputs
    whose gradients were looked at, `left_out` what the NUMPY device could not compute."""

    only_graphs: ClassVar[bool] = False
    keep_inputs: ClassVar[bool] = False

    def __init__(self, gradients: bool) -> None:
        self.compared = self.gradients = self.left_out = 0
        self._times: Counter[Any] = Counter()
        self._wants_gradients = gradients
        self._busy = False

    # ---- told by the engine ----

    def plan(self, graph: Graph, donated: frozenset[int], device: Device) -> ExecutionPlan:
        """The plan that would be taken without us."""
        return find_plan(graph, donated, device.name)

    def copy(self, source: Buffer, device: Device) -> Buffer:
        """The same bytes in a new buffer."""
        target = allocate(device, source.nbytes)
        host = np.empty(source.nbytes, np.uint8)
        source.device.copy_out(source, host)
        target.device.copy_in(target, host)
        return target

    def give(self, nodes: Sequence[Node]) -> None:
        """Nothing: buffers have their values."""

    def run(self, plan: ExecutionPlan, graph: Graph, leaves: dict[int, Buffer], values: dict[str, int],
            highest: dict[str, int]) -> list[Any]:
        """Runs the plan. Raises Differs where a result is not that of the NUMPY device."""
        numbers = {k: graph.nodes[k].params["value"] for k in graph.scalars}
        expected = self._expected(graph) if self._looks(("graph", plan.device.name, graph.key())) else []
        buffers = run_plan(plan, leaves, numbers, values, highest)
        for at, (program, want) in enumerate(expected):
            node = graph.nodes[graph.targets[at]]
            buffer = buffers[plan.schedule.outputs[at]]
            got = download(buffer_node(buffer, want.shape, node.dtype, node.device))
            with self._apart():
                text = wrong(got, want, program)
            if text:
                raise Differs(Found(program, plan.device.name, text))
        self.compared += bool(expected)
        return buffers

    def asked(self, output: Node) -> None:
        """The gradient of a Node is asked for. Raises Differs where it is not the slope."""
        if self._busy or not self._wants_gradients or not output.dtype.is_float:
            return
        order = toposort(output)
        if any(n.op in FUNCTION or (n.op is BUFFER and n.storage is None) for n in order) or \
                not self._looks(("gradient", *[(n.op, n.shape, n.dtype) for n in order])):
            return  # somebody's own rule, or the inside of a Block
        with self._apart():
            try:
                program = program_of([output])[0]
                text = gradient_difference(program)
            except (MinigradError, NotImplementedError, ValueError):
                self.left_out += 1
                return
        self.gradients += 1
        if text:
            raise Differs(Found(program, "", text))

    # ---- our own ----

    def _looks(self, key: Any) -> bool:
        self._times[key] += 1
        return not self._busy and self._times[key] <= TIMES

    def _expected(self, graph: Graph) -> list[tuple[Program, np.ndarray]]:
        """For each target the program and what NUMPY computes; none where it cannot."""
        with self._apart():
            try:
                whole, places = program_of([graph.nodes[k] for k in graph.targets])
                programs = [whole.pruned(k) for k in places]
                with np.errstate(all="ignore"):
                    return [(p, p.result("NUMPY")) for p in programs]
            except (MinigradError, NotImplementedError, ValueError):
                self.left_out += 1
                return []

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Nobody watches what is computed meanwhile: it is ours."""
        self._busy = True
        mine = [d for d in dry_runs if d is self]
        for d in mine:
            dry_runs.remove(d)
        try:
            yield
        finally:
            dry_runs.extend(mine)
            self._busy = False


def find_difference(run: Callable[[], Any], gradients: bool = True) -> tuple[Found | None, Comparing]:
    """The first difference of all that a function computes from the NUMPY device, or of a gradient from its slope; None
    where there is none."""
    comparing = Comparing(gradients)
    dry_runs.append(comparing)
    autodiff.asked.append(comparing.asked)
    try:
        run()
    except Differs as differs:
        return differs.found, comparing
    finally:
        autodiff.asked.remove(comparing.asked)
        dry_runs.remove(comparing)
    return None, comparing
