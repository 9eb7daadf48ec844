"""Reverse-mode differentiation, graph to graph: the result fuses like any graph and differentiates again."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from minigrad.errors import DTypeError, ShapeError, present
from minigrad.graph.scan import scan_gradients
from minigrad.ops import build as B
from minigrad.ops.calls import CALL, OUTPUT
from minigrad.ops.composite import expand
from minigrad.ops.node import Node, hooked
from minigrad.ops.op import Scan
from minigrad.ops.scan import family
from minigrad.ops.storage import DETACH


class History:
    """The Nodes that a Node was made from by ways that gradients could go, in `order`, inputs first. The history of
    realized Nodes counts too; what is behind a detached Node or one that is no float does not.

    Composites without a rule of their own are made from their expansions, `bodies`.
    """

    __slots__ = ("output", "order", "bodies", "_all")

    def __init__(self, output: Node):
        self.output = output
        self.order: list[Node] = []
        self.bodies: dict[Node, Node] = {}
        self._all: set[Node] = set()
        seen, order = self._all, self.order
        stack: list[Node | None] = [output]
        pending: list[Node] = []
        while stack:
            node = stack.pop()
            if node is None:
                order.append(pending.pop())
            elif node not in seen:
                seen.add(node)
                if not node.inputs or node.op is DETACH or not node.dtype.is_float:
                    order.append(node)
                    continue
                stack.append(None)
                pending.append(node)
                if node.op.vjp is None:
                    body = self.bodies[node] = expand(node, node.inputs)
                    stack.append(body)
                elif node.op is OUTPUT:
                    stack.append(node.inputs[0])
                else:
                    stack += node.inputs[::-1]

    def __contains__(self, node: Node) -> bool:
        return node in self._all


def gradient(made_from: History, targets: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """The gradient of sum(output * seed) with respect to each target: Nodes of the targets' shapes and dtypes.

    Where a Node has hooks, the results of these take the place of its gradient. `seed` may be left out for an output of
    one element. A target that `output` does not depend on gets zeros. Raises DTypeError for an output or targets that
    are no floats, ShapeError for a missing or misshapen seed.
    """
    output = made_from.output
    for node in targets:
        if not node.dtype.is_float:
            raise DTypeError(f"[gradient] expected float tensors, got {node.dtype} of shape {list(node.shape)}")
    check_seed(output, seed)
    seed = B.full_like(output, 1) if seed is None else seed
    grads = _accumulate(made_from, seed, set(targets))
    return [grads.get(t) or B.full_like(t, 0) for t in targets]


asked: list[Callable[[Node], None]] = []
"""Called with every output whose gradient is asked for."""


def check_seed(output: Node, seed: Node | None) -> None:
    """Raises DTypeError for an output that is no float, ShapeError for a seed that it lacks or that is not like it."""
    for told in asked:
        told(output)
    if not output.dtype.is_float:
        raise DTypeError(f"[gradient] expected float tensors, got {output.dtype} of shape {list(output.shape)}")
    if seed is None and any([d != 1 for d in output.shape]):
        raise ShapeError(f"[gradient] expected an output of one element or a seed, got shape {list(output.shape)}")
    if seed is not None and (seed.shape != output.shape or seed.dtype is not output.dtype):
        raise ShapeError(f"[gradient] expected a seed {output.dtype}{list(output.shape)} like the output, "
                         f"got {seed.dtype}{list(seed.shape)}")


def _accumulate(made_from: History, seed: Node, targets: set[Node]) -> dict[Node, Node]:
    """Gradients of every Node on a path from a target to the output, by rules applied from the output down."""
    order, bodies = made_from.order, made_from.bodies
    on_path: set[Node] = set()
    for node in order:
        if node in targets or (node.inputs and node.dtype.is_float and not on_path.isdisjoint(
                (bodies[node],) if node in bodies else node.inputs)):
            on_path.add(node)
    grads: dict[Node, Node] = {made_from.output: seed}
    of_results: dict[Node, dict[int, Node]] = {}  # by CALL
    loops = _Loops(order)
    for node in reversed(order):
        if node.op is CALL and node in of_results:
            _by_rule(grads, node, of_results.pop(node), on_path)
        grad = grads.get(node)
        if grad is not None and node in on_path and hooked and ref(node) in hooked:
            grad = grads[node] = node.hooks(grad)
        if type(node.op.lower) is Scan and node in on_path:
            loops.meet(node, grads, on_path)
        if grad is None or node not in on_path:
            continue
        body = bodies.get(node)
        if node.op is OUTPUT:
            if node.inputs[0] in on_path:
                of_results.setdefault(node.inputs[0], {})[node.params["number"]] = grad
        elif type(node.op.lower) is Scan:
            pass
        elif body is not None:
            if body in on_path:
                _add(grads, body, grad)
        elif not on_path.isdisjoint(node.inputs):
            vjp = present(node.op.vjp, f"[gradient] expected a rule of {node.op.name}")
            for source, part in zip(node.inputs, vjp(node, grad), strict=True):
                if part is not None and source in on_path:
                    _add(grads, source, part)
        if node not in targets:
            del grads[node]
    return grads


def _by_rule(grads: dict[Node, Node], call: Node, of_results: dict[int, Node], on_path: set[Node]) -> None:
    """Adds the gradients of a CALL's operands, by its rule from the gradients of all its results, which are there by
    now."""
    needed = [source in on_path for source in call.inputs]
    for source, part in zip(call.inputs, call.rule(call, of_results, needed), strict=True):
        if part is not None and source in on_path:
            _add(grads, source, part)


class _Loops:
    """The loops (ops/scan.py) in the order of a graph, `first` the earliest Node of each: when it is met on the way
    back, the gradients of all its results are there."""

    def __init__(self, order: Sequence[Node]):
        self.first: dict[tuple[Any, ...], Node] = {}
        for node in order:
            if type(node.op.lower) is Scan:
                self.first.setdefault(family(node), node)
        self.of_results: dict[Node, dict[int, Node]] = {}

    def meet(self, node: Node, grads: dict[Node, Node], on_path: set[Node]) -> None:
        """Notes the gradient of a result; with the first one, adds those of the loop's operands."""
        first = self.first[family(node)]
        if node in grads:
            self.of_results.setdefault(first, {})[node.params["number"]] = grads[node]
        if node is not first or node not in self.of_results:
            return
        needed = [source in on_path for source in node.inputs]
        made = scan_gradients(node, self.of_results.pop(node), needed, lambda y, xs: gradient(History(y), xs))
        for source, part in zip(node.inputs, made, strict=True):
            if part is not None and source in on_path:
                _add(grads, source, part)


def _add(grads: dict[Node, Node], node: Node, part: Node) -> None:
    known = grads.get(node)
    grads[node] = part if known is None else B.add(known, part)
