"""Sums over the steps of a loop of what a step computes, for gradients by what all steps read.

A product that is summed up, such as a weight's gradient, is no part of the loop: the steps give its factors, and it is
one product over all steps afterwards. Of what is added up without a product, the loop adds up what is not yet summed
inside a step: each element is then independent of the others, as those of the state are.

    steps t: w[i, j] += sum(n: x[t, n, i] * g[n, j])           steps t: y[t, n, j] = g[n, j]; a[n, j] += g[n, j]
             b[j] += sum(n: g[n, j])                     ->    w[i, j] = sum(t, n: x[t, n, i] * y[t, n, j])
                                                               b[j] = sum(n: a[n, j])
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from minigrad.expr import Index
from minigrad.ops import build as B
from minigrad.ops.build_movement import numel
from minigrad.ops.composite import expand, rebuilt
from minigrad.ops.elementwise import ADD, CAST, MUL, NEG
from minigrad.ops.movement import EXPAND, FLIP, PAD, PERMUTE, RESHAPE, SLICE
from minigrad.ops.node import Node
from minigrad.ops.op import Composite
from minigrad.ops.reduce import SUM

MOVES = (RESHAPE, EXPAND, PERMUTE, FLIP, SLICE)
DEEP = 200
"""The most operations between a sum and what is added up."""

Stacked = Callable[[Node], Node]
"""Gives for a Node of a step that of all steps, along a new first axis."""


@dataclass(frozen=True)
class Total:
    """The parts of the sum over all steps of `node`: `factors` of all steps, and sums of `added`."""

    node: Node
    factors: tuple[Node, ...]
    added: tuple[Node, ...]
    bodies: dict[Node, Node]

    def made(self, added: dict[Node, Node], stacked: Stacked) -> Node:
        """The sum, given those of `added`."""
        return _Made(self.bodies, dict(added), stacked).total(self.node)


def total_of(node: Node, operands: Collection[Node], room: int) -> Total:
    """The parts of the sum of a Node of a step whose operands are known of all steps. `room`: the elements of further
    factors that a step may give."""
    bodies: dict[Node, Node] = {}
    factors: list[Node] = []
    added: list[Node] = []
    _look(node, bodies, factors, added, 0)
    new = sum([_size(n) for n in dict.fromkeys(factors) if n not in operands])
    if new > max(room, _size(node)) or sum([_size(n) for n in dict.fromkeys(added)]) > max(room, _size(node)):
        return Total(node, (), (node,), {})
    return Total(node, tuple(dict.fromkeys(factors)), tuple(dict.fromkeys(added)), bodies)


def _size(node: Node) -> int:
    return int(numel(node.shape))


def _look(node: Node, bodies: dict[Node, Node], factors: list[Node], added: list[Node], depth: int) -> None:
    """Adds to `factors` those of the products that a Node is a sum of, and to `added` the other terms."""
    if isinstance(node.op.lower, Composite) and node.storage is None and depth < DEEP:
        bodies[node] = bodies.get(node) or expand(node, node.inputs)
        return _look(bodies[node], bodies, factors, added, depth + 1)
    if _passes(node) and depth < DEEP:
        for i in node.inputs:
            _look(i, bodies, factors, added, depth + 1)
        return None
    parts = _factors(node)
    if parts is None:
        added.append(node)
    else:
        factors.extend(parts)
    return None


def _passes(node: Node) -> bool:
    """True for operations of which a sum is the operation of sums."""
    if node.storage is not None:
        return False
    if node.op is CAST:
        return node.dtype.is_float and node.inputs[0].dtype.is_float
    return node.op in (ADD, NEG, SUM) or node.op in MOVES or (node.op is PAD and node.params["fill"] == 0)


def _factors(node: Node) -> tuple[Node, Node] | None:
    """The operands of a product, before it is repeated; None for none, and for one that repeats nothing."""
    if node.op is not MUL or node.storage is not None:
        return None
    a, b = _base(node.inputs[0]), _base(node.inputs[1])
    return (a, b) if _size(a) + _size(b) < _size(node) else None


def _base(node: Node) -> Node:
    """The Node that one is moved from."""
    while node.storage is None and (node.op in MOVES or (node.op is CAST and node.inputs[0].dtype.is_float)):
        node = node.inputs[0]
    return node


class _Made:
    """Makes sums over all steps: `sums` of Nodes, `by_step` are Nodes for all steps."""

    def __init__(self, bodies: dict[Node, Node], sums: dict[Node, Node], stacked: Stacked):
        self.bodies, self.sums, self.stacked = bodies, sums, stacked
        self.by_step: dict[Node, Node] = {}

    def total(self, node: Node) -> Node:
        """The sum of a Node over all steps."""
        found = self.sums.get(node)
        if found is None:
            found = self.sums[node] = self._total(node)
        return found

    def _total(self, node: Node) -> Node:
        if node in self.bodies:
            return self.total(self.bodies[node])
        if node.op is SUM and _factors(node.inputs[0]) is not None:
            return B.sum(self.product(node.inputs[0]), (0, *[a + 1 for a in node.params["axes"]]))
        if node.op is MUL:
            return B.sum(self.product(node), (0,))
        if node.op is CAST:
            return B.cast(self.total(node.inputs[0]), node.dtype.compute)
        sums = [self.total(i) for i in node.inputs]
        if node.op is ADD:
            return B.add(*_alike(sums))
        return rebuilt(node, dict(zip(node.inputs, sums, strict=True)))

    def product(self, node: Node) -> Node:
        """A product for all steps."""
        a, b = [self.moved(i) for i in node.inputs]
        return B.mul(a, b)

    def moved(self, node: Node) -> Node:
        """A factor for all steps, moved as in one."""
        if node not in self.by_step:
            is_base = _base(node) is node
            self.by_step[node] = self.stacked(node) if is_base else _along(node, self.moved(node.inputs[0]))
        return self.by_step[node]


def _alike(nodes: Sequence[Node]) -> Sequence[Node]:
    """The Nodes in one dtype: sums are added up in a wider one than that of terms."""
    wide = max([n.dtype for n in nodes], key=lambda d: d.bits)
    return [B.cast(n, wide) for n in nodes]


def _along(node: Node, x: Node) -> Node:
    """The operation of a Node on an operand with a further first axis."""
    steps: Index = x.shape[0]
    p, of = node.params, node.inputs[0].shape
    if node.op is RESHAPE:
        return B.reshape(x, (steps, *p["to"]))
    if node.op is EXPAND:
        aligned = B.reshape(x, (steps, *[1] * (len(p["to"]) - len(of)), *of))
        return B.expand(aligned, (steps, *p["to"]))
    if node.op is PERMUTE:
        return B.permute(x, (0, *[a + 1 for a in p["order"]]))
    if node.op is FLIP:
        return B.flip(x, tuple([a + 1 for a in p["axes"]]))
    if node.op is SLICE:
        return B.slice_(x, (0, *p["starts"]), (steps, *p["stops"]), (1, *p["steps"]))
    return B.cast(x, node.dtype)
