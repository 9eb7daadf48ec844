"""`Graph`: the part of the Node graph that one realize needs, numbered, with the facts that scheduling looks at."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minigrad.expr import Expr, Index, bounds, unbind, variables
from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise, Generate, IndexMap, Reduction

ALIASES = frozenset(("detach",))
TYPICAL = 256
"""What a symbolic dim counts as in estimates, or its upper bound if that is less."""


def resolve(node: Node) -> Node:
    """The Node that has the value: identities that only matter to autodiff are looked through."""
    while node.op.name in ALIASES and node.storage is None:
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


@dataclass(slots=True)
class Graph:
    """`nodes` inputs first; `inputs[k]` are positions; leaves are realized; `targets` is what is asked for.

    `symbolic`, once `structure` was asked for: whether anything depends on a symbolic dim.
    """

    nodes: list[Node]
    inputs: list[tuple[int, ...]]
    targets: list[int]
    leaf: list[bool]
    position: dict[Node, int]
    symbolic: bool = False
    users: list[list[int]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def look_around(self) -> None:
        """Fills in users and kinds, which a plan that is found by its key never needs."""
        self.kinds = ["leaf" if leaf else kind_of(n) for n, leaf in zip(self.nodes, self.leaf, strict=True)]
        self.users = [[] for _ in self.nodes]
        for k, ins in enumerate(self.inputs):
            for i in ins:
                self.users[i].append(k)

    def kind(self, k: int) -> str:
        """'leaf', 'free', 'move', 'elementwise', 'reduce' or 'special'."""
        return self.kinds[k]


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
    """Everything that `targets` need, down to realized Nodes, iteratively."""
    nodes: list[Node] = []
    inputs: list[tuple[int, ...]] = []
    leaf: list[bool] = []
    position: dict[Node, int] = {}
    stack: list[tuple[Node, bool]] = [(resolve(t), False) for t in reversed(targets)]
    while stack:
        node, ready = stack.pop()
        if ready:
            position[node] = len(nodes)
            inputs.append(tuple([position[resolve(i)] for i in node.inputs]))
            nodes.append(node)
            leaf.append(False)
        elif node not in position:
            if node.storage is not None:
                position[node] = len(nodes)
                nodes.append(node)
                inputs.append(())
                leaf.append(True)
                continue
            position[node] = -1
            stack.append((node, True))
            for i in reversed(node.inputs):
                i = resolve(i)
                if i not in position:
                    stack.append((i, False))
        elif position[node] == -1 and not ready:
            continue
    return Graph(nodes, inputs, [position[resolve(t)] for t in targets], leaf, position)


def structure(graph: Graph) -> tuple[Any, ...]:
    """The key of a plan: everything but buffers, lifted numbers and the values of symbolic dims."""
    rows: list[Any] = []
    symbols: list[Expr] = []
    for k, node in enumerate(graph.nodes):
        if graph.leaf[k]:
            rows.append((node.dtype, clean(node.shape, symbols), node.device))
        elif node.op.name == "scalar":
            rows.append(("scalar", node.dtype, node.device))
        else:
            rows.append((node.op, node.device, graph.inputs[k], *[clean(p, symbols) for p in node.params.values()]))
    graph.symbolic = bool(symbols)
    return (tuple(graph.targets), *rows)


def clean(param: Any, symbols: list[Expr]) -> Any:
    """A param without the values of symbolic dims; -0.0 and 0.0, 1 and 1.0 and True stay apart.

    Symbolic dims and what is computed from them are noted in `symbols`.
    """
    kind = type(param)
    if kind is tuple:
        return tuple([p if type(p) is int else clean(p, symbols) for p in param])
    if kind is float:
        return repr(param)
    if kind is bool:
        return ("bool", param)
    if isinstance(param, Expr):
        symbols.append(param)
        return unbind(param)[0]
    return param


def bindings(graph: Graph) -> dict[str, int]:
    """Values of the symbolic dims that the graph depends on. Raises where one has two values, or none."""
    from minigrad.errors import ShapeError

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
    """Symbolic dims and params of a node; of a realized one only the dims, its params have had their say."""
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


