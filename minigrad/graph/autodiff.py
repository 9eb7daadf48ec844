"""Reverse-mode differentiation, graph to graph: the result fuses like any graph and differentiates again."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.errors import DTypeError, ShapeError
from minigrad.ops import build as B
from minigrad.ops.composite import expand
from minigrad.ops.node import Node


def gradient(output: Node, targets: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """The gradient of sum(output * seed) with respect to each target: Nodes of the targets' shapes and dtypes.

    `seed` may be left out for an output of one element. A target that `output` does not depend on gets zeros. Works
    through realized Nodes, by their operands. Raises DTypeError for an output or targets that are no floats, ShapeError
    for a missing or misshapen seed.
    """
    for node in (output, *targets):
        if not node.dtype.is_float:
            raise DTypeError(f"[gradient] expected float tensors, got {node.dtype} of shape {list(node.shape)}")
    if seed is None:
        if any(d != 1 for d in output.shape):
            raise ShapeError(f"[gradient] expected an output of one element or a seed, got shape {list(output.shape)}")
        seed = B.full_like(output, 1)
    if seed.shape != output.shape or seed.dtype is not output.dtype:
        raise ShapeError(f"[gradient] expected a seed {output.dtype}{list(output.shape)} like the output, "
                         f"got {seed.dtype}{list(seed.shape)}")
    grads = _accumulate(output, seed, set(targets))
    return [grads.get(t) or B.full_like(t, 0) for t in targets]


def _accumulate(output: Node, seed: Node, targets: set[Node]) -> dict[Node, Node]:
    """Gradients of every Node on a path from a target to the output, by rules applied from the output down."""
    bodies: dict[Node, Node] = {}
    order = _order(output, bodies)
    on_path: set[Node] = set()
    for node in order:
        inputs = (bodies[node],) if node in bodies else node.inputs
        if node in targets or (node.dtype.is_float and not on_path.isdisjoint(inputs)):
            on_path.add(node)
    grads: dict[Node, Node] = {output: seed}
    for node in reversed(order):
        grad = grads.get(node)
        if grad is None or node not in on_path:
            continue
        body = bodies.get(node)
        if body is not None:
            if body in on_path:
                _add(grads, body, grad)
        elif not on_path.isdisjoint(node.inputs):
            assert node.op.vjp is not None
            for source, part in zip(node.inputs, node.op.vjp(node, grad), strict=True):
                if part is not None and source in on_path:
                    _add(grads, source, part)
        if node not in targets:
            del grads[node]
    return grads


def _add(grads: dict[Node, Node], node: Node, part: Node) -> None:
    known = grads.get(node)
    grads[node] = part if known is None else B.add(known, part)


def _order(output: Node, bodies: dict[Node, Node]) -> list[Node]:
    """What `output` was made from, inputs first. Composites without a rule are made from their expansions, which are
    put into `bodies`."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Node | None] = [output]
    pending: list[Node] = []
    while stack:
        node = stack.pop()
        if node is None:
            order.append(pending.pop())
        elif node not in seen:
            seen.add(node)
            stack.append(None)
            pending.append(node)
            if node.op.vjp is None and node.inputs:
                body = bodies[node] = expand(node, node.inputs)
                stack.append(body)
            else:
                stack.extend(reversed(node.inputs))
    return order
