"""`Graph`: the part of the Node graph that one realize needs, numbered, with the facts that scheduling looks at."""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.errors import ShapeError
from minigrad.expr import Expr, Index, bounds, variables
from minigrad.interned import remember
from minigrad.ops.kinds import clean
from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise, Generate, IndexMap, Reduction
from minigrad.ops.storage import ALIASES, SCALAR

TYPICAL = 256
"""The value of a symbolic dim in estimates, or its upper bound if that is less."""

FEW = 8
"""Inputs that are gone through again each time that one of them was followed."""


def resolve(node: Node) -> Node:
    """The Node that has the value: identities that only matter to autodiff are skipped."""
    while node.op in ALIASES and node.storage is None:
        node = node.inputs[0]
    return node


def size(e: Index) -> int:
    """A dim as a number for estimates."""
    if isinstance(e, int):
        return e
    total = e.const
    for monomial, coefficient in e.terms:
        term = coefficient
        for a in monomial:
            term *= min(max(bounds(a)[1], 0), TYPICAL)
        total += term
    return max(total, 0)


def numel(shape: tuple[Index, ...]) -> int:
    total = 1
    for e in shape:
        total *= e if type(e) is int else size(e)
    return total


MOST_CONNECTIONS = 128
_connections: dict[bytes, tuple[list[bool], list[tuple[int, ...]], dict[frozenset[int], frozenset[int]]]] = {}
"""Results of `Graph.connect` and `Graph.dependants`, by words, for the steps that come again."""


@dataclass(slots=True)
class Graph:
    """`nodes` inputs first; leaves are realized; `targets` are the positions asked for, `position` that of each Node.

    `symbolic`: True where anything depends on symbolic dims. `leaves`, `scalars` and `assigns` are the positions of
    such Nodes; `aliases` the identities that were skipped. `words`: a leaf's type, negated; else a kind and the
    positions of its inputs. `connect` makes what a plan that is found by its key mostly does not need: `inputs[k]` are
    positions, `leaf[k]` is True for a leaf, `reached` has results of `dependants`; `look_around` the rest. `counts` and
    `sizes`: elements and bytes; `kinds`: 'leaf', 'free', 'move', 'elementwise', 'reduce' or 'special'.
    """

    nodes: list[Node]
    targets: list[int]
    position: dict[Node, int]
    words: list[int]
    leaves: list[int]
    scalars: list[int]
    assigns: list[int]
    aliases: list[Node]
    symbolic: bool = False
    inputs: Sequence[tuple[int, ...]] = ()
    leaf: Sequence[bool] = ()
    reached: dict[frozenset[int], frozenset[int]] = field(default_factory=dict)
    users: Sequence[list[int]] = ()
    kinds: Sequence[str] = ()
    counts: Sequence[int] = ()
    sizes: Sequence[int] = ()

    def key(self) -> bytes:
        """The bytes that stand for the structure: everything but buffers, run-time numbers and the values of symbolic
        dims."""
        return array("i", [*self.words, *self.targets, len(self.nodes)]).tobytes()

    def add_leaf(self, node: Node) -> None:
        """Adds a realized Node."""
        self.words.append(-node.type.number)
        self.leaves.append(len(self.nodes))
        if node.type.symbolic:
            self.symbolic = True
        self.position[node] = len(self.nodes)
        self.nodes.append(node)

    def note_special(self, k: int, node: Node) -> bool:
        """Adds Node k to the lists of those that are more than the values of their inputs. True for an alias, which is
        none of its own."""
        kind: Any = node.kind
        if kind.special == "alias":
            self.aliases.append(node)
            return True
        if kind.special == "assign":
            self.assigns.append(k)
        elif kind.special == "scalar":
            self.scalars.append(k)
        if kind.symbolic:
            self.symbolic = True
        return False

    def add_targets(self, further: list[Node]) -> None:
        """Adds targets that are in the graph already, or aliases of such."""
        positions = [self.position[resolve(n)] for n in further]
        self.targets = list(dict.fromkeys([*self.targets, *positions]))

    def extend(self, targets: list[Node]) -> None:
        """Adds targets: the graph is then what `build_graph` makes of all of them."""
        roots = list(dict.fromkeys([resolve(t) for t in targets]))
        position, nodes, words = self.position, self.nodes, self.words
        place = position.__getitem__
        stack = roots[::-1]  # of Nodes alone: tuples or iterators on it, one per Node, would wake the collector
        for alias in self.aliases:
            position[alias] = place(resolve(alias))
        while stack:
            node = stack.pop()
            if node in position:
                continue
            if node.storage is not None:
                self.add_leaf(node)
                continue
            for i in node.inputs:
                if i in position:
                    continue
                if i.storage is not None:
                    self.add_leaf(i)
                    continue
                stack.append(node)  # it comes again after its inputs
                if len(node.inputs) > FEW:
                    stack += node.inputs[::-1]
                else:
                    stack.append(i)
                break
            else:
                kind: Any = node.kind
                at = len(nodes)
                if kind.special and self.note_special(at, node):
                    at = place(node.inputs[0])
                else:
                    words.append(kind.number)
                    words += map(place, node.inputs)
                    nodes.append(node)
                position[node] = at
        for alias in self.aliases:
            del position[alias]
        self.targets = list(dict.fromkeys([*self.targets, *map(place, roots)]))
        if self.leaf:
            self.connect()

    def connect(self) -> None:
        """Fills in `inputs` and `leaf` of Nodes that have none yet. They follow from `words` alone."""
        key = array("i", self.words).tobytes()
        found = _connections.get(key)
        if found is None:
            found = *self._connected(), {}
            remember(_connections, key, found, MOST_CONNECTIONS)
        self.leaf, self.inputs, self.reached = found

    def dependants(self, positions: frozenset[int]) -> frozenset[int]:
        """The positions of what is computed from any of these, directly or not, once there are `inputs`."""
        found = self.reached.get(positions)
        if found is None:
            reached = set(positions)
            for k, inputs in enumerate(self.inputs):
                if inputs and not reached.isdisjoint(inputs):
                    reached.add(k)
            found = self.reached[positions] = frozenset(reached - positions)
        return found

    def _connected(self) -> tuple[list[bool], list[tuple[int, ...]]]:
        words, at = self.words, 1
        leaves: list[bool] = []
        inputs: list[tuple[int, ...]] = []
        for node in self.nodes:
            leaf = words[at - 1] < 0
            end = at if leaf else at + len(node.inputs)
            leaves.append(leaf)
            inputs.append(tuple(words[at:end]))
            at = end + 1
        return leaves, inputs

    def look_around(self) -> None:
        """Fills in all facts that scheduling looks at."""
        self.connect()
        self.counts = [numel(n.shape) for n in self.nodes]
        self.sizes = [count * n.dtype.itemsize for count, n in zip(self.counts, self.nodes, strict=True)]
        self.kinds = ["leaf" if leaf else kind_of(n) for n, leaf in zip(self.nodes, self.leaf, strict=True)]
        users: list[list[int]] = [[] for _ in self.nodes]
        for k, ins in enumerate(self.inputs):
            for i in ins:
                users[i].append(k)
        self.users = users


def kind_of(node: Node) -> str:
    lower = node.op.lower
    if isinstance(lower, Elementwise):
        return "elementwise"
    if isinstance(lower, Reduction) or node.op.name == "unwindow":
        return "reduce"
    if isinstance(lower, IndexMap) or node.op.name == "contiguous":
        return "move"
    if isinstance(lower, Generate):
        return "elementwise" if lower.flops else "free"
    if node.op.name == "scalar":
        return "free"
    return "elementwise" if node.op.name == "gather" else "special"


def build_graph(targets: list[Node]) -> Graph:
    """Everything that `targets` need, down to realized Nodes, iteratively; equal targets once."""
    graph = Graph([], [], {}, [], [], [], [], [])
    graph.extend(targets)
    return graph


def structure(graph: Graph) -> tuple[Any, ...]:
    """The structure that `key` stands for, with names that mean the same in every process."""
    graph.connect()
    rows: list[Any] = []
    ignored: list[Expr] = []
    for k, node in enumerate(graph.nodes):
        if graph.leaf[k]:
            rows.append((node.dtype, clean(node.shape, ignored), node.device))
        elif node.op is SCALAR:
            rows.append(("scalar", node.dtype, node.device))
        else:
            rows.append((node.op, node.device, graph.inputs[k], *[clean(p, ignored) for p in node.params.values()]))
    return (tuple(graph.targets), *rows)


def bindings(graph: Graph) -> dict[str, int]:
    """Values of the symbolic dims that the graph depends on. Raises where one has two values, or none."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        for e in expressions(node):
            for v in variables(e):
                if v.value is None:
                    raise ShapeError(f"[realize] expected a value for {v.name!r}; use {v.name}.bind(value)")
                if found.setdefault(v.name, v.value) != v.value:
                    raise ShapeError(f"[realize] expected one value of {v.name!r} per realize, "
                                     f"got {found[v.name]} and {v.value}")
    return found


def expressions(node: Node) -> list[Expr]:
    """Symbolic dims and params of a node; of a realized one only the dims, as its params have no effect any more."""
    found: list[Expr] = []
    stack: list[Any] = [e for e in node.shape if type(e) is not int]
    if node.storage is None:
        stack += [p for p in node.params.values() if isinstance(p, (Expr, tuple))]
    while stack:
        p = stack.pop()
        if isinstance(p, Expr):
            found.append(p)
        elif type(p) is tuple:
            stack += [q for q in p if type(q) is not int]
    return found


def bytes_of(node: Node) -> int:
    return numel(node.shape) * node.dtype.itemsize


