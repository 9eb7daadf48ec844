"""Cross-entropies as composites whose gradients are written by hand."""
from __future__ import annotations

from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.functions import logsumexp, reduced_type, same_type, softmax
from minigrad.ops.node import Node, apply

# Cross-entropy with class indices


def _is_class(x: Node, labels: Node, axis: int) -> Node:
    """True at each row's label along the class axis; labels lack that axis."""
    order = B.reshape(B.iota(x.shape[axis], x.device), tuple([d if a == axis else 1 for a, d in enumerate(x.shape)]))
    wanted = B.expand_reduced(B.cast(labels, order.dtype), x.shape, (axis,))
    return B.eq(B.expand(order, x.shape), wanted)


def _cross_entropy(x: Node, labels: Node, axis: int, smoothing: float) -> Node:
    hit = B.where(_is_class(x, labels, axis), x, B.full_like(x, 0))
    target = B.sum(hit, (axis,))
    if smoothing:
        count = B.full(x.shape[axis], target.shape, x.dtype, x.device)
        mean = B.div(B.sum(x, (axis,)), count)
        target = B.add(B.mul(B.full_like(target, 1 - smoothing), target), B.mul(B.full_like(mean, smoothing), mean))
    return B.sub(logsumexp(x, (axis,)), target)


def _cross_entropy_vjp(node: Node, g: Node) -> tuple[Node, None]:
    (x, labels), axis, smoothing = node.inputs, node.params["axis"], node.params["smoothing"]
    target = B.cast(_is_class(x, labels, axis), x.dtype)
    if smoothing:
        share = B.div(B.full_like(x, smoothing), B.full(x.shape[axis], x.shape, x.dtype, x.device))
        target = B.add(B.mul(B.full_like(x, 1 - smoothing), target), share)
    return B.mul(B.sub(softmax(x, (axis,)), target), B.expand_reduced(g, x.shape, (axis,))), None


CROSS_ENTROPY = composite("cross_entropy", lambda shapes, dtypes, *, axis, smoothing: reduced_type(
    shapes, dtypes, axes=(axis,)), _cross_entropy, _cross_entropy_vjp)


def cross_entropy(x: Node, labels: Node, axis: int, smoothing: float) -> Node:
    """Per row: logsumexp(x) - (1 - smoothing) * x[label] - smoothing * mean(x)."""
    return apply(CROSS_ENTROPY, x, labels, axis=axis, smoothing=smoothing)


# Cross-entropy of probabilities


def _binary_cross_entropy(x: Node, target: Node) -> Node:
    """-(t * log(x) + (1 - t) * log(1 - x)), logarithms no less than -100."""
    least, one = B.full_like(x, -100), B.full_like(x, 1)
    yes, no = B.maximum(B.log(x), least), B.maximum(B.log(B.sub(one, x)), least)
    return B.neg(B.add(B.mul(target, yes), B.mul(B.sub(one, target), no)))


def _binary_cross_entropy_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    """(x - t) / (x * (1 - x)), the denominator no less than 1e-12; by the target log(1 - x) - log(x)."""
    x, target = node.inputs
    least, one = B.full_like(x, -100), B.full_like(x, 1)
    spread = B.maximum(B.mul(x, B.sub(one, x)), B.full_like(x, 1e-12))
    odds = B.sub(B.maximum(B.log(B.sub(one, x)), least), B.maximum(B.log(x), least))
    return B.mul(g, B.div(B.sub(x, target), spread)), B.mul(g, odds)


BINARY_CROSS_ENTROPY = composite("binary_cross_entropy", same_type, _binary_cross_entropy, _binary_cross_entropy_vjp)


def binary_cross_entropy(x: Node, target: Node) -> Node:
    """Per element, of a probability and a target in 0..1: finite at 0 and 1 too."""
    return apply(BINARY_CROSS_ENTROPY, x, target)


CROSS_ENTROPIES = (CROSS_ENTROPY, BINARY_CROSS_ENTROPY)
