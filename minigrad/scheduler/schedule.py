"""Graph -> Schedule: kernels in order, what each reads and writes, and where values live.

A `Schedule` knows positions of the graph, not Nodes or buffers: the same one serves every graph of equal structure.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from minigrad.codegen.kernel import Kernel
from minigrad.codegen.lowering.lower import Lowered, lower_assign, lower_group, lower_scatter
from minigrad.errors import InternalError
from minigrad.expr import Index, product
from minigrad.ops import storage
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Elementwise
from minigrad.scheduler.fusion import Fusion, fuse, peeled
from minigrad.scheduler.graph import Graph, bytes_of, numel, resolve
from minigrad.scheduler.merge import dependencies, merge_siblings
from minigrad.target import Target


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel. `values` are slots, one per kernel param; `scalars` a graph position (a run-time number) or a constant.

    `reasons` say why this kernel does not compute more.
    """

    kernel: Kernel
    values: tuple[int, ...]
    scalars: tuple[int | float, ...]
    flops: float
    bytes: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one value: its bytes (over the symbolic dims), and the leaf position whose buffer it is, or None."""

    nbytes: Index
    leaf: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """`outputs[k]` is the slot of target k; `donated` leaf positions whose buffers hold a new version afterwards."""

    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[int, ...]
    donated: frozenset[int]


def schedule(graph: Graph, donatable: frozenset[int], target: Target) -> Schedule:
    """Fuses, lowers and orders. `donatable` are leaf positions that nobody else reads: an assign may reuse their buffer."""
    state = fuse(graph, set(), target)
    merge_siblings(state)
    return Scheduler(state, donatable).run()


class Scheduler:
    def __init__(self, state: Fusion, donatable: frozenset[int]):
        self.state, self.graph, self.donatable = state, state.graph, donatable
        self.slots: list[Slot] = []
        self.slot_of: dict[int, int] = {}
        self.steps: list[Step] = []
        self.donated: set[int] = set()
        self.readers: dict[int, set[int]] = {}

    def run(self) -> Schedule:
        graph = self.graph
        for g, group in enumerate(self.state.groups):
            for m in group.members:
                for i in graph.inputs[m]:
                    if graph.leaf[i] or self.state.group_of.get(i, g) != g:
                        self.readers.setdefault(i, set()).add(g)
        for g in self.order():
            self.emit(g)
        outputs = tuple(self.slot(peeled(graph, k)) for k in graph.targets)
        return Schedule(tuple(self.steps), tuple(self.slots), outputs, frozenset(self.donated))

    # ---- order ----

    def order(self) -> list[int]:
        """Groups after what they need; an in-place write after every reader of the old value."""
        groups = self.state.groups
        needs = [dependencies(self.state, g) if groups[g].roots else set() for g in range(len(groups))]
        self.in_place: dict[int, bool] = {}
        for g in range(len(groups)):
            target = self.updated(g)
            if target is None:
                continue
            after = self.readers.get(target, set()) - {g}
            allowed = self.may_update(target, g) and not any(self.reaches(needs, r, g) for r in after)
            self.in_place[g] = allowed
            if allowed:
                needs[g] |= after
        return topological(needs, [g for g in range(len(groups)) if groups[g].roots])

    def updated(self, g: int) -> int | None:
        """The position that group `g` is a new version of, if it is an assign or a scatter."""
        roots = self.state.groups[g].roots
        if not roots or self.graph.nodes[roots[0]].op.name not in ("assign", "scatter"):
            return None
        return peeled(self.graph, self.graph.inputs[roots[0]][0])

    def may_update(self, target: int, g: int) -> bool:
        """Whether the old version may be overwritten once its readers have run; one writer only."""
        if any(self.updated(h) == target and allowed for h, allowed in self.in_place.items()):
            return False
        if self.graph.leaf[target]:
            return target in self.donatable
        return all(peeled(self.graph, k) != target for k in self.graph.targets)

    def reaches(self, needs: list[set[int]], start: int, goal: int) -> bool:
        """Whether `start` needs `goal`, directly or not."""
        seen, stack = set(), [start]
        while stack:
            g = stack.pop()
            if g == goal:
                return True
            if g not in seen:
                seen.add(g)
                stack.extend(needs[g])
        return False

    # ---- slots ----

    def slot(self, k: int) -> int:
        """Where the value of position `k` lives."""
        if k not in self.slot_of:
            node = self.graph.nodes[k]
            self.slot_of[k] = self.new_slot(node, k if self.graph.leaf[k] else None)
        return self.slot_of[k]

    def new_slot(self, node: Node, leaf: int | None = None) -> int:
        self.slots.append(Slot(product(node.shape) * node.dtype.itemsize, leaf))
        return len(self.slots) - 1

    # ---- steps ----

    def is_leaf(self, g: int, also: int | None = None):
        """Whether a Node lies in memory as far as group `g` is concerned."""
        position, group_of = self.graph.position, self.state.group_of

        def check(node: Node) -> bool:
            k = position.get(node)
            return k is not None and (self.graph.leaf[k] or k == also or (k in group_of and group_of[k] != g))

        return check

    def emit(self, g: int) -> None:
        group, graph = self.state.groups[g], self.graph
        root = graph.nodes[group.roots[0]]
        if root.op.name in ("assign", "scatter"):
            self.emit_update(g)
        elif root.op.name == "copy":
            raise InternalError(f"[schedule] {root} must be realized before")
        else:
            nodes = tuple(graph.nodes[k] for k in group.roots)
            name = kernel_name(graph, group.roots[0], list(group.members))
            self.add(g, lower_group(nodes, self.is_leaf(g), name), {n: self.slot(k) for n, k in zip(nodes, group.roots, strict=True)})

    def emit_update(self, g: int) -> None:
        """An assign or a scatter: in place, or into a copy of the old version."""
        k, graph = self.state.groups[g].roots[0], self.graph
        node = graph.nodes[k]
        old = peeled(graph, graph.inputs[k][0])
        whole = node.op.name == "assign" and covers(node)
        lowered: Lowered | None = None
        if self.in_place[g]:
            lowered = self.lower_update(g, node, True)
            if lowered is None:
                self.emit_value(g, node)
                lowered = self.lower_update(g, node, True, graph.position[self.value_of(node)])
            self.slot_of[k] = self.slot(old)
            if graph.leaf[old]:
                self.donated.add(old)
        else:
            lowered = self.lower_update(g, node, False)
            into = self.slot(k)
            if not whole:
                self.copy(g, old, into, node)
        assert lowered is not None
        self.add(g, lowered, {node: self.slot_of[k]})

    def value_of(self, node: Node) -> Node:
        return resolve(node.inputs[-1])

    def lower_update(self, g: int, node: Node, in_place: bool, also: int | None = None) -> Lowered | None:
        check = self.is_leaf(g, also)
        if node.op.name == "scatter":
            return lower_scatter(node, check)
        return lower_assign(node, check, in_place)

    def emit_value(self, g: int, node: Node) -> None:
        """The value of an update that reads the old version elsewhere goes through a buffer of its own."""
        value = self.value_of(node)
        k = self.graph.position[value]
        if self.graph.leaf[k] or (k in self.state.group_of and self.state.group_of[k] != g):
            raise InternalError(f"[schedule] {node} reads its target through a materialised value")
        self.slot_of[k] = self.new_slot(value)
        check = self.is_leaf(g)
        self.add(g, lower_group((value,), check, "value"), {value: self.slot_of[k]})

    def copy(self, g: int, old: int, into: int, node: Node) -> None:
        """The old version's elements into a fresh buffer."""
        source = self.graph.nodes[old]
        self.add(g, lower_copy(source, node), {node: into, source: self.slot(old)})

    def add(self, g: int, lowered: Lowered, outputs: dict[Node, int]) -> None:
        graph = self.graph
        values = tuple(outputs[n] if n in outputs else self.slot(graph.position[n]) for n in lowered.nodes)
        scalars = tuple(graph.position[s] if isinstance(s, Node) else s for s in lowered.scalars)
        moved = float(sum(bytes_of(n) for n in lowered.nodes))
        reasons = tuple(dict.fromkeys(self.state.groups[g].reasons))
        self.steps.append(Step(lowered.kernel, values, scalars, kernel_flops(self.state, g), moved, reasons))


def lower_copy(source: Node, node: Node) -> Lowered:
    """Elementwise copy of a buffer."""
    same = apply(storage.CONTIGUOUS, source)
    lowered = lower_group((same,), lambda n: n is source, "copy")
    return replace(lowered, nodes=(node, *lowered.nodes[1:]))


def covers(node: Node) -> bool:
    """Whether an assign replaces its whole target."""
    return node.inputs[1].shape == node.shape and all(start == 0 and step == 1 for start, step in node.params["region"])


def kernel_name(graph: Graph, root: int, members: list[int]) -> str:
    """A readable name from the operations inside: 'sum_mul', 'exp_sub', at most four."""
    names = [graph.nodes[m].op.name for m in members if graph.kind(m) in ("elementwise", "reduce")]
    return "_".join(dict.fromkeys(names[:4])) or graph.nodes[root].op.name


def kernel_flops(state: Fusion, g: int) -> float:
    """Arithmetic of one group: each elementwise member once per element, each reduction once per term."""
    total = 0.0
    graph = state.graph
    for m in state.groups[g].members:
        node = graph.nodes[m]
        if isinstance(node.op.lower, Elementwise):
            total += numel(node.shape) * max(min(node.op.lower.flops, 1), 0)
        elif graph.kind(m) == "reduce":
            total += numel(graph.nodes[graph.inputs[m][0]].shape)
    return total


def topological(needs: list[set[int]], wanted: list[int]) -> list[int]:
    """Groups after their needs; among free ones the highest number first, as groups were made users first."""
    order: list[int] = []
    done: set[int] = set()
    for start in sorted(wanted, reverse=True):
        stack = [(start, False)]
        while stack:
            g, ready = stack.pop()
            if g in done:
                continue
            if ready:
                done.add(g)
                order.append(g)
            else:
                stack.append((g, True))
                stack += [(d, False) for d in sorted(needs[g]) if d not in done]
    return order
