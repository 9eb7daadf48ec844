"""Graph -> Schedule: kernels in order, the slots that each reads and writes, and where values live.

A `Schedule` knows positions of the graph, not Nodes or buffers: the same one serves every graph of equal structure.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.lowering.attention import lower_attention, lower_gradient
from minigrad.codegen.lowering.lower import Lowered, computed, lower_group, lower_scatter
from minigrad.codegen.lowering.repeated import Lowerings
from minigrad.config import current
from minigrad.errors import InternalError, present
from minigrad.expr import Index, product
from minigrad.ops.node import Node
from minigrad.ops.op import Scan
from minigrad.record import record
from minigrad.scheduler.exchanges import Exchange, exchange_of
from minigrad.scheduler.expand import Expanded, expand_graph
from minigrad.scheduler.figures import kernel_flops, kernel_name
from minigrad.scheduler.fusion import fuse
from minigrad.scheduler.graph import Graph, bytes_of, resolve
from minigrad.scheduler.groups import ATTENTIONS, Again, Fusion, peeled
from minigrad.scheduler.in_place import LEAST_BYTES, stored_over_operand
from minigrad.scheduler.loop import lower_loop, suits_loop
from minigrad.scheduler.loop_update import stored_over
from minigrad.scheduler.merge import (
    Merger,
    covers,
    dependencies,
    is_update,
    merge_attentions,
    merge_loops,
    merge_siblings,
)
from minigrad.scheduler.order import lean_order, reaches, timed_order
from minigrad.scheduler.recompute import Recomputation, Recomputed, Timed, recompute
from minigrad.scheduler.tails import merge_tails
from minigrad.scheduler.updates import assigned_to, lower_copy
from minigrad.target import Target

NODES_PER_KERNEL = 8
"""The usual number of Nodes, composites counting as one, that become a kernel."""


@record
class Step:
    """One kernel. `values` are slots, one per param; `scalars` a graph position (a run-time number) or a constant;
    `dims` the user's variable for each of the kernel's symbolic dims.

    `origins` are the graph positions of its results; `reasons` say why this kernel does not compute more.
    """

    kernel: Kernel
    values: tuple[int, ...]
    scalars: tuple[int | float, ...]
    dims: tuple[Index, ...]
    flops: float
    bytes: float
    reasons: tuple[str, ...] = ()
    origins: tuple[int, ...] = ()

    def moved(self, to: Sequence[int]) -> Step:
        """The step where graph position k is `to[k]`."""
        return Step(self.kernel, self.values, tuple([to[x] if type(x) is int else x for x in self.scalars]), self.dims,
                    self.flops, self.bytes, self.reasons, tuple(dict.fromkeys([to[k] for k in self.origins])))


@record
class Slot:
    """A place for one value: its bytes (over the symbolic dims), and the leaf position whose buffer it is, or None."""

    nbytes: Index
    leaf: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """`outputs[k]` is the slot of target k; `donated` leaf positions whose buffers hold a new version afterwards.
    `recomputed`: where there was a budget of memory."""

    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[int, ...]
    donated: frozenset[int]
    recomputed: Recomputation | None = None
    exchanges: tuple[Exchange, ...] = ()


def schedule(graph: Graph, donatable: frozenset[int], target: Target) -> Schedule:
    """Fuses, lowers and orders. `donatable`: leaves that nobody else reads; an assign may reuse their buffer."""
    kernels = Scheduling(graph, donatable, target)
    for _ in kernels:
        pass
    return kernels.schedule


class Scheduling:
    """`schedule`, step by step: gives each kernel as soon as it is there, then has the whole in `schedule`."""

    schedule: Schedule

    def __init__(self, graph: Graph, donatable: frozenset[int], target: Target):
        self._graph, self._donatable, self._target = graph, donatable, target

    def __iter__(self) -> Iterator[Kernel]:
        self.schedule = yield from _scheduled(self._graph, self._donatable, self._target)

    def __length_hint__(self) -> int:
        """An estimate of the number of kernels."""
        return len(self._graph.nodes) // NODES_PER_KERNEL


def _scheduled(graph: Graph, donatable: frozenset[int], target: Target) -> Generator[Kernel, None, Schedule]:
    expanded = expand_graph(graph, target, lambda node: suits_loop(node, target, schedule))
    if expanded is not None:
        graph, donatable = expanded.graph, expanded.donatable(donatable)
    budget = current().memory
    if not budget:
        made = yield from Scheduler(_fused(graph, target), donatable).run()
        return made if expanded is None else expanded.restored(made)

    def scheduler(of: Recomputed) -> Scheduler:
        there = frozenset([k for k in of.graph.leaves if of.back[k] in donatable])
        return Scheduler(_fused(of.graph, target, of.again), there)

    def timed(of: Recomputed) -> Timed:
        made = scheduler(of)
        return Timed(made.state, made.order(), made.kept, made.in_place)

    again = recompute(graph, timed, budget)
    made = yield from scheduler(again).run()
    made = Expanded(again.graph, again.back, list(range(len(graph.targets)))).restored(made)
    made = replace(made, recomputed=Recomputation(again.values, again.work, again.before, again.after))
    return made if expanded is None else expanded.restored(made)


def _fused(graph: Graph, target: Target, again: Again | None = None) -> Fusion:
    """The fusion groups of a graph without composites. What is computed `again` does not join what ran long before."""
    roots = set() if again is None else {k for k, n in enumerate(graph.nodes) if n in again.roots}
    state = fuse(graph, roots, target, again)
    merger = Merger(state)
    merge_attentions(state, merger)
    merge_loops(state, merger)
    merge_tails(state, merger)
    merge_siblings(state, merger)
    return state


class Scheduler:
    def __init__(self, state: Fusion, donatable: frozenset[int]):
        self.state, self.graph, self.donatable = state, state.graph, donatable
        self.slots: list[Slot] = []
        self.slot_of: dict[int, int] = {}
        self.steps: list[Step] = []
        self.exchanges: list[Exchange] = []
        self.donated: set[int] = set()
        self.readers: dict[int, set[int]] = {}
        self.emitted: set[int] = set()
        self.absorbed: set[int] = set()
        """Fusion groups that kernels of others do."""
        self.lowerings = Lowerings()

    def run(self) -> Generator[Kernel, None, Schedule]:
        """Gives the kernels of `steps` in their order."""
        graph = self.graph
        for g, group in enumerate(self.state.groups):
            for m in group.members:
                for i in graph.inputs[m]:
                    if graph.leaf[i] or self.state.group_of.get(i, g) != g:
                        self.readers.setdefault(i, set()).add(g)
        for g in self.order():
            before = len(self.steps)
            self.emit(g)
            self.emitted.add(g)
            for step in self.steps[before:]:
                yield step.kernel
        outputs = tuple(self.slot(peeled(graph, k)) for k in graph.targets)
        return Schedule(tuple(self.steps), tuple(self.slots), outputs, frozenset(self.donated),
                        exchanges=tuple(self.exchanges))

    # ---- order ----

    def order(self) -> list[int]:
        """The fusion groups after what they need; an in-place write after every reader of the old value."""
        groups = self.state.groups
        needs = [dependencies(self.state, g) if groups[g].roots else set() for g in range(len(groups))]
        reads = [set(n) for n in needs]
        needed = set[int]().union(*needs)
        self.in_place: set[int] = set()
        self.kept = {peeled(self.graph, k) for k in self.graph.targets}
        overwritten: set[int] = set()
        # A scatter into what is assigned to has the first choice: the assign has nothing to do then.
        scatters = [g for g in range(len(groups)) if any([self.scattered_by(g, k) != g for k in groups[g].roots])]
        for g in dict.fromkeys((*scatters, *range(len(groups)))):
            for k in groups[g].roots:
                if not is_update(self.state, k):
                    continue
                target = self.updated(k)
                after = self.readers.get(target, set()) - {g, self.scattered_by(g, k)}
                if target in overwritten or not self.may_update(target) or self.puts_itself(k, target) or \
                        (g in needed and reaches(needs, after, g)):
                    continue
                overwritten.add(target)
                self.in_place.add(k)
                needs[g] |= after
                needed |= after
        wanted = [g for g in range(len(groups)) if groups[g].roots]
        if self.state.again is not None:
            nodes, times = self.graph.nodes, self.state.again.times
            return timed_order(needs, {g: max([times[nodes[k]] for k in groups[g].roots]) for g in wanted})
        makes = {g: float(sum([self.graph.sizes[k] for k in groups[g].roots])) for g in wanted}
        slow = {g for g in wanted if self.graph.nodes[groups[g].roots[0]].op.name == "exchange"}
        return lean_order(needs, wanted, makes, {g: reads[g] for g in wanted}, slow)

    def updated(self, k: int) -> int:
        """The position that an assign or a scatter is a new version of."""
        return peeled(self.graph, self.graph.inputs[k][0])

    def scattered_by(self, g: int, k: int) -> int:
        """The group of an assign that has nothing to do once a scatter was done in place, or `g`."""
        return g if k in self.kept else assigned_to(self.state, g, k, self.readers.get(k, set()))

    def puts_itself(self, k: int, target: int) -> bool:
        """True where a scatter puts elements of its target into it, or takes them as positions."""
        sources = self.graph.inputs[k][1:] if self.graph.nodes[k].op.name == "scatter" else ()
        return target in [peeled(self.graph, i) for i in sources]

    def may_update(self, target: int) -> bool:
        """True where the old version may be overwritten once its readers have run."""
        if self.graph.leaf[target] and target not in self.donatable:
            return False
        return target not in self.kept

    # ---- slots ----

    def slot(self, k: int) -> int:
        """The slot of the value of position `k`."""
        if k not in self.slot_of:
            node = self.graph.nodes[k]
            self.slot_of[k] = self.new_slot(node, k if self.graph.leaf[k] else None)
        return self.slot_of[k]

    def new_slot(self, node: Node, leaf: int | None = None) -> int:
        self.slots.append(Slot(product(node.shape) * node.dtype.itemsize, leaf))
        return len(self.slots) - 1

    # ---- steps ----

    def is_leaf(self, g: int, also: Container[int] = ()) -> Callable[[Node], bool]:
        """A function that is True for a Node that lies in memory as far as fusion group `g` is concerned, those at the
        positions `also` among them."""
        position, group_of = self.graph.position, self.state.group_of

        def check(node: Node) -> bool:
            k = position.get(node)
            return k is not None and (self.graph.leaf[k] or k in also or (k in group_of and group_of[k] != g))

        return check

    def emit(self, g: int) -> None:
        roots, graph = self.state.groups[g].roots, self.graph
        if g in self.absorbed:
            return None
        if graph.nodes[roots[0]].op.name == "copy":
            raise InternalError(f"[schedule] {graph.nodes[roots[0]]} must be realized before")
        if graph.nodes[roots[0]].op.name == "exchange":
            return self.exchanges.append(exchange_of(graph, roots[0], self.slot, self.exchanges))
        if graph.nodes[roots[0]].op.name == "scatter":
            return self.emit_scatter(g, roots[0])
        if graph.nodes[roots[0]].op.name in ATTENTIONS:
            return self.emit_attention(g, roots)
        if type(graph.nodes[roots[0]].op.lower) is Scan:
            return self.emit_loop(g, roots)
        empty = {k: self.place(g, k) for k in roots if 0 in computed(graph.nodes[k]).shape}
        roots = [k for k in roots if k not in empty]
        if not roots:
            return None  # no elements, nothing to run
        nodes = tuple(graph.nodes[k] for k in roots)
        name = kernel_name(graph, roots[0], list(self.state.groups[g].members))
        in_place = frozenset(graph.nodes[k] for k in roots if k in self.in_place)
        tails = {graph.nodes[k]: at for k, at in self.state.groups[g].tails.items() if k in roots}
        lowered = self.lowerings.lower(nodes, self.is_leaf(g), name, in_place, tails)
        over = None if lowered is None else stored_over_operand(lowered, lambda node: self.is_done(node, g))
        if over is not None:
            lowered, operand = over
            self.slot_of[roots[0]] = self.slot(graph.position[operand])
        places = {k: self.place(g, k) for k in roots}
        if lowered is not None:
            self.add(g, lowered, {graph.nodes[k]: places[k] for k in roots})
        elif len(roots) > 1:
            raise InternalError(f"[schedule] {nodes[0]} was merged with an update that reads its target elsewhere")
        else:
            self.emit_through_buffer(g, roots[0], places[roots[0]])

    def is_done(self, node: Node, g: int) -> bool:
        """True for a large temporary that only group `g` is still to read."""
        k = self.graph.position[node]
        slot = self.slots[self.slot_of[k]] if k in self.slot_of else None
        return slot is not None and slot.leaf is None and k not in self.kept and isinstance(slot.nbytes, int) and \
            slot.nbytes >= LEAST_BYTES and self.readers[k] - self.emitted <= {g}

    def place(self, g: int, k: int) -> int:
        """The slot of an output: an update's target, or a new one that an update of a part first copies into."""
        if k in self.in_place:
            old = self.updated(k)
            self.slot_of[k] = self.slot(old)
            if self.graph.leaf[old]:
                self.donated.add(old)
            return self.slot_of[k]
        into = self.slot(k)
        if is_update(self.state, k) and not (self.graph.nodes[k].op.name == "assign" and covers(self.state, k)):
            self.copy(g, self.updated(k), into, self.graph.nodes[k])
        return into

    def emit_scatter(self, g: int, k: int) -> None:
        node, into = self.graph.nodes[k], self.place(g, k)
        if k in self.in_place and (group := self.scattered_by(g, k)) != g:
            self.slot_of[self.state.groups[group].roots[0]] = into
            self.absorbed.add(group)
        if 0 in node.inputs[1].shape:
            return
        lowered = lower_scatter(node, self.is_leaf(g), k in self.in_place)
        if lowered is None or _has_rows(lowered):  # rows run side by side, and several may write to one place
            self.emit_through_buffer(g, k, into)
        else:
            self.add(g, lowered, {node: into})

    def emit_attention(self, g: int, roots: list[int]) -> None:
        nodes = {self.graph.nodes[k]: self.slot(k) for k in roots}
        if all(0 not in node.shape for node in nodes):
            lower = lower_gradient if next(iter(nodes)).op.name == "attention_gradient" else lower_attention
            self.add(g, lower(tuple(nodes), self.is_leaf(g)), nodes)

    def emit_loop(self, g: int, roots: list[int]) -> None:
        nodes, target = {self.graph.nodes[k]: k for k in roots}, self.state.target
        lowered = present(lower_loop(tuple(nodes), self.is_leaf(g), target, schedule),
                          "[schedule] expected a loop with a kernel")
        for k in roots:
            update = self.only_update(g, k)
            old = -1 if update is None else self.updated(update)
            over = None if update is None else stored_over(lowered, self.graph.nodes[k], self.graph.nodes[old], target)
            if over is not None and update is not None:
                lowered = over
                self.slot_of[k] = self.place(self.state.group_of[update], update)
                self.absorbed.add(self.state.group_of[update])
        self.add(g, lowered, {node: self.slot(k) for node, k in nodes.items()})

    def only_update(self, g: int, k: int) -> int | None:
        """The assign in place that is all that a result of group `g` is for, if only the two read its target."""
        readers = self.readers.get(k, set())
        group = next(iter(readers)) if len(readers) == 1 and k not in self.kept else g
        if group == g or len(self.state.groups[group].roots) != 1:
            return None
        update, = self.state.groups[group].roots
        if update not in self.in_place or self.graph.nodes[update].op.name != "assign" or not covers(
                self.state, update) or peeled(self.graph, self.graph.inputs[update][1]) != k:
            return None
        return update if self.readers.get(self.updated(update), set()) <= {g, group} else None

    def emit_through_buffer(self, g: int, k: int, into: int) -> None:
        """Emits an update in place that goes through buffers: the value or the positions that it computes from the old
        version, and whatever a scatter computes row by row, are stored first."""
        node, old = self.graph.nodes[k], self.graph.nodes[self.updated(k)]
        made_here: set[int] = set()
        for value in map(resolve, node.inputs[1:]):
            v, check = self.graph.position[value], self.is_leaf(g, made_here)
            made = None if check(value) else lower_group((value,), check, "value")
            if made is not None and (old in made.nodes or (node.op.name == "scatter" and _has_rows(made))):
                temporary = self.slot_of[v] = self.new_slot(value)
                self.add(g, made, {value: temporary})
                made_here.add(v)
        check = self.is_leaf(g, made_here)
        lowered = (lower_scatter(node, check, k in self.in_place) if node.op.name == "scatter"
                   else lower_group((node,), check, "assign", frozenset((node,))))
        if lowered is None:
            raise InternalError(f"[schedule] {node} reads its target through a materialised value")
        self.add(g, lowered, {node: into})

    def copy(self, g: int, old: int, into: int, node: Node) -> None:
        """Adds a copy of the old version's elements into a fresh buffer."""
        source = self.graph.nodes[old]
        self.add(g, lower_copy(source, node), {node: into, source: self.slot(old)})

    def add(self, g: int, lowered: Lowered, outputs: dict[Node, int]) -> None:
        graph = self.graph
        values = tuple(outputs[n] if n in outputs else self.slot(graph.position[n]) for n in lowered.nodes)
        scalars = tuple(graph.position[s] if isinstance(s, Node) else s for s in lowered.scalars)
        moved = float(sum(bytes_of(n) for n in lowered.nodes))
        reasons = tuple(dict.fromkeys(self.state.groups[g].reasons))
        flops = kernel_flops(self.state, g)
        self.steps.append(Step(lowered.kernel, values, scalars, lowered.dims, flops, moved, reasons,
                               tuple(self.state.groups[g].roots)))


def _has_rows(lowered: Lowered) -> bool:
    """True where a kernel computes something per row, with a loop over the row after it."""
    return any(isinstance(s, Nest) for nest in lowered.kernel.nests for s in nest.body)
