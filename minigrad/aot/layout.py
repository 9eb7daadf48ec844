"""A call as what a program without minigrad runs: calls of compiled kernels, and where each of their arguments lies.

A program has the memory of its weights, which it only reads, one block of its own, and what its caller passes. The
block has the counter of random numbers, the state, what is computed of constants once, an arena for temporaries, and
the scratch memory of kernels.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minigrad.capture.graphs import CallGraph, memory_of
from minigrad.config import current
from minigrad.engine.hoisting import OncePart, with_packed_constants, without_constant_work
from minigrad.engine.plan import ExecutionPlan, Row, schedule_and_plan, uses_of
from minigrad.errors import MinigradError, present
from minigrad.expr import Index, bounds, product
from minigrad.ops.node import Node
from minigrad.program import Program
from minigrad.runtime.commands import Executable
from minigrad.runtime.object_code import ObjectCode
from minigrad.scheduler.graph import Graph, build_graph, resolve
from minigrad.scheduler.memory import plan_memory

ALIGNMENT = 64
COUNTER_BYTES = 64
"""Bytes at the start of a program's memory, of which eight are the counter of random numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of the memory that `base` names: 'weights', 'memory', or an input or output."""

    base: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A number that grows with each run: the counter of random numbers and so much."""

    offset: int


Word = Place | Drawn | Index
"""An argument of a kernel: where a buffer lies, or 64 bits."""


@dataclass(frozen=True, slots=True)
class Call:
    """A run of program `number` over `extent` iterations."""

    number: int
    words: tuple[Word, ...]
    extent: Index


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes that are copied."""

    target: Place
    source: Place
    nbytes: Index


Step = Call | Copy


@dataclass(slots=True)
class Layout:
    """`once` is done when a program is prepared, `reset` puts the state back, `run` is a call. `weights` are offsets
    with the buffers whose bytes lie there."""

    call: CallGraph
    programs: list[Program] = field(default_factory=list)
    once: list[Step] = field(default_factory=list)
    reset: list[Copy] = field(default_factory=list)
    run: list[Step] = field(default_factory=list)
    weights: list[tuple[int, Any]] = field(default_factory=list)
    weights_bytes: int = 0
    memory_bytes: int = COUNTER_BYTES
    scratch: int = 0
    """The offset in the memory of the kernels' scratch."""

    def calls(self) -> int:
        """The number of times that a run calls a kernel."""
        return sum([isinstance(step, Call) for step in self.run])


def layout_of(call: CallGraph, device: ObjectCode) -> Layout:
    """Schedules and compiles a call for a processor. Raises MinigradError for Tensors of other devices."""
    other = next((n.device for n in [*call.inputs.values(), *call.roots()] if n.device != "CPU"), None)
    if other is not None:
        raise MinigradError(f"[export] expected Tensors on the CPU, got one on {other}")
    return _Maker(call, device).made()


Places = dict[int, Place]
"""The places of slots, or of leaves."""


class _Maker:
    """Makes a Layout: `places` says where the values lie that a call is given or changes, by the ids of their buffers
    at entry."""

    def __init__(self, call: CallGraph, device: ObjectCode):
        self.call, self.device, self.layout = call, device, Layout(call)
        self._stored: dict[Hashable, Place] = {}
        self._numbers: dict[int, int] = {}
        self.places = {id(node.storage): Place(f"in.{name}") for name, node in call.inputs.items()}
        for node in [c.before for c in call.changed]:
            if id(node.storage) not in self.places:
                self.places[id(node.storage)] = self._state(node)

    def made(self) -> Layout:
        roots = [resolve(n) for n in self.call.roots()]
        lazy = list(dict.fromkeys([n for n in roots if n.storage is None]))
        graph = build_graph(lazy)
        graph.connect()
        plan, parts = self._plan(graph)
        slots = {graph.nodes[k]: slot for k, slot in zip(graph.targets, plan.schedule.outputs, strict=True)}
        leaves = {k: self._leaf(graph.nodes[k]) for k in graph.leaves}
        for part in parts:
            leaves |= {leaf: self._reserved(part.plan.sizes[slot]) for slot, leaf in part.made}
        ends = [Place(f"out.{name}") for name in self.call.outputs] + [self._leaf(c.before) for c in self.call.changed]
        direct = {slots[root]: end for end, root in reversed([*zip(ends, roots, strict=True)])
                  if root.storage is None and end.base.startswith("out.") and slots[root] in plan.made}
        found = self._slot_places([(plan, direct), *[(p.plan, {s: leaves[k] for s, k in p.made}) for p in parts]],
                                  leaves)
        where = [found[0][slots[n]] if n.storage is None else self._leaf(n) for n in roots]
        before, after = self._ends(ends, roots, where)
        layout = self.layout
        layout.run = [*before, *self._calls(plan, graph, found[0]), *after]
        layout.once = [call for part, places in zip(parts, found[1:], strict=True)
                       for call in self._calls(part.plan, graph, places)]
        layout.scratch = self._reserved(max([p.scratch for p in layout.programs], default=0)).offset
        return layout

    # Plans

    def _plan(self, graph: Graph) -> tuple[ExecutionPlan, list[OncePart]]:
        """The plan of a call without the work on constants, as a capture has it, and the parts that do that."""
        changed = {id(c.before.storage) for c in self.call.changed}
        readers = Counter([id(graph.nodes[k].storage) for k in graph.leaves])  # of a detached value there are two
        old = {graph.inputs[k][0] for k in graph.assigns}.intersection(graph.leaves)
        donated = frozenset([k for k in old if (at := id(graph.nodes[k].storage)) in changed and readers[at] == 1])
        plan = schedule_and_plan(graph, donated, self.device)
        constants = frozenset([k for k in graph.leaves if id(graph.nodes[k].storage) not in self.places])
        room = current().packed_mb << 20
        plan, parts = with_packed_constants(plan, constants, room)
        constants |= {leaf for p in parts for _, leaf in p.made}
        plan, hoisted = without_constant_work(plan, constants, frozenset(graph.scalars),
                                              room - sum([p.nbytes for p in parts]))
        return plan, parts if hoisted is None else [*parts, hoisted]

    def _calls(self, plan: ExecutionPlan, graph: Graph, places: Places) -> list[Step]:
        """The launches of a plan, one after the other."""
        return [Call(self._number(item.executable), tuple(self._words(item.executable, row, graph, places)), row.extent)
                for item in plan.items for row in item.rows if row.extent != 0]

    def _words(self, executable: Executable, row: Row, graph: Graph, places: Places) -> Iterator[Word]:
        yield from [places[slot] for slot in row.values]
        encoders = executable.encoders[len(row.values):]
        for scalar, encoder in zip(row.scalars, encoders, strict=False):
            encode = present(encoder, "[export] expected the type of a number")
            if type(scalar) is not int:
                yield encode(scalar)
                continue
            role, value = graph.nodes[scalar].params["role"], graph.nodes[scalar].params["value"]
            fresh = role == "counter" and value >= self.call.counter
            yield Drawn(int(value) - self.call.counter) if fresh else encode(value)
        yield from row.dims

    def _number(self, executable: Executable) -> int:
        """The number of a program, which it gets when it is first called."""
        program = executable.program
        if id(program) not in self._numbers:
            self._numbers[id(program)] = len(self.layout.programs)
            self.layout.programs.append(program)
        return self._numbers[id(program)]

    # Memory

    def _slot_places(self, plans: list[tuple[ExecutionPlan, Places]], leaves: Places) -> list[Places]:
        """The places of each plan's slots, some of which are given. Temporaries of all plans share one arena."""
        found, arenas = [], []
        for plan, given in plans:
            places = {slot: leaves[leaf] for slot, leaf in plan.read} | given
            sizes = {k: bounds(plan.sizes[k])[1] for k in [*plan.temporary, *plan.made] if k not in places}
            arena = plan_memory(sizes, [*uses_of(plan.items), plan.made])
            found.append(places)
            arenas.append(arena)
        start = self._reserved(max([a.nbytes for a in arenas])).offset
        return [places | {k: Place("memory", start + at) for k, at in arena.offsets.items()}
                for places, arena in zip(found, arenas, strict=True)]

    def _ends(self, ends: list[Place], roots: list[Node], where: list[Place]) -> tuple[list[Step], list[Step]]:
        """Copies of results to where they belong, unless they lie there: those before a run and those after it. What
        lies in a Tensor that the call changes is copied before that is overwritten."""
        overwritten = {self._leaf(c.before) for c in self.call.changed}
        before: list[Step] = []
        after: list[Step] = []
        last: list[Step] = []
        for end, root, place in zip(ends, roots, where, strict=True):
            nbytes = _nbytes(root)
            if place != end and place in overwritten:
                kept = self._reserved(nbytes)
                (after if root.storage is None else before).append(Copy(kept, place, nbytes))
                place = kept
            if place != end:
                last.append(Copy(end, place, nbytes))
        return before, [*after, *last]

    def _leaf(self, node: Node) -> Place:
        return self.places.get(id(node.storage)) or self._weight(node)

    def _state(self, node: Node) -> Place:
        """Memory for a Tensor that the call changes, which is put back to what it holds now."""
        place = self._reserved(_nbytes(node))
        self.layout.reset.append(Copy(place, self._weight(node), _nbytes(node)))
        return place

    def _weight(self, node: Node) -> Place:
        """The place in the weights of the bytes of a realized Node."""
        buffer, layout = node.storage, self.layout
        key = memory_of(buffer)
        if key not in self._stored:
            self._stored[key] = Place("weights", layout.weights_bytes)
            layout.weights.append((layout.weights_bytes, buffer))
            layout.weights_bytes += _aligned(buffer.nbytes)
        return self._stored[key]

    def _reserved(self, nbytes: Index) -> Place:
        """Bytes of the program's memory that nothing else takes."""
        place = Place("memory", self.layout.memory_bytes)
        self.layout.memory_bytes += _aligned(bounds(nbytes)[1])
        return place


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _nbytes(node: Node) -> Index:
    return product(node.shape) * node.dtype.itemsize
