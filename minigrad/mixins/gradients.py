"""Hand-written gradients of composite operations: rules for `with_gradient`, over Nodes.

A rule gets (the plain composite, *xs) and the gradient of the result, and returns one gradient per x. Rules call the
composites' builders below, which give back the very Node of the forward pass, so that gradients of gradients go through
the rules as well.
"""
from __future__ import annotations

from minigrad.ops import build as B
from minigrad.ops.node import Node

Inputs = tuple[Node, ...]


def _reduced_mean(x: Node, axes: tuple[int, ...]) -> Node:
    """The mean over axes, which are gone from the shape."""
    total = B.sum(x, axes)
    return B.div(total, B.full(B.numel(tuple([x.shape[a] for a in axes])), total.shape, x.dtype, x.device))


def _mean(x: Node, axes: tuple[int, ...]) -> Node:
    """The mean over axes, repeated along them again."""
    return B.expand_reduced(_reduced_mean(x, axes), x.shape, axes)


def _total(x: Node, axes: tuple[int, ...]) -> Node:
    return B.expand_reduced(B.sum(x, axes), x.shape, axes)


# log1p


def log1p(x: Node) -> Node:
    """log(1 + x), accurate for small x (W. Kahan): log(u) * x / (u - 1) with u = 1 + x rounded."""
    one = B.full_like(x, 1)
    u = B.add(one, x)
    exact = B.eq(u, one)
    below = B.where(exact, one, B.sub(u, one))
    infinite = B.eq(x, B.full_like(x, float("inf")))
    value = B.where(exact, x, B.where(infinite, x, B.mul(B.log(u), B.div(x, below))))
    return B.with_gradient(value, (x,), _log1p_rule)


def _log1p_rule(inputs: Inputs, g: Node) -> tuple[Node]:
    x = inputs[1]
    return (B.div(g, B.add(B.full_like(x, 1), x)),)


# softmax and log_softmax


def _shifted(x: Node, axes: tuple[int, ...]) -> Node:
    return B.sub(x, B.expand_reduced(B.max(x, axes), x.shape, axes))


def softmax(x: Node, axes: tuple[int, ...]) -> Node:
    e = B.exp(_shifted(x, axes))
    return B.with_gradient(B.div(e, _total(e, axes)), (x,), _softmax_rule, axes)


def _softmax_rule(inputs: Inputs, g: Node, axes: tuple[int, ...]) -> tuple[Node]:
    s = softmax(inputs[1], axes)
    return (B.mul(s, B.sub(g, _total(B.mul(g, s), axes))),)


def log_softmax(x: Node, axes: tuple[int, ...]) -> Node:
    m = _shifted(x, axes)
    log_sum = B.expand_reduced(B.log(B.sum(B.exp(m), axes)), x.shape, axes)
    return B.with_gradient(B.sub(m, log_sum), (x,), _log_softmax_rule, axes)


def _log_softmax_rule(inputs: Inputs, g: Node, axes: tuple[int, ...]) -> tuple[Node]:
    return (B.sub(g, B.mul(softmax(inputs[1], axes), _total(g, axes))),)


def logsumexp(x: Node, axes: tuple[int, ...]) -> Node:
    """log(sum(exp(x))) over axes; rows of -inf give -inf."""
    top = B.max(x, axes)
    finite = B.lt(B.abs_(top), B.full_like(top, float("inf")))
    top = B.where(finite, top, B.full_like(top, 0))
    shifted = B.sub(x, B.expand_reduced(top, x.shape, axes))
    value = B.add(top, B.log(B.sum(B.exp(shifted), axes)))
    return B.with_gradient(value, (x,), _logsumexp_rule, axes)


def _logsumexp_rule(inputs: Inputs, g: Node, axes: tuple[int, ...]) -> tuple[Node]:
    x = inputs[1]
    return (B.mul(softmax(x, axes), B.expand_reduced(g, x.shape, axes)),)


# Cross-entropy with class indices


def _is_class(x: Node, labels: Node, axis: int) -> Node:
    """True at each row's label along the class axis; labels lack that axis."""
    order = B.reshape(B.iota(x.shape[axis], x.device), tuple([d if a == axis else 1 for a, d in enumerate(x.shape)]))
    wanted = B.expand_reduced(B.cast(labels, order.dtype), x.shape, (axis,))
    return B.eq(B.expand(order, x.shape), wanted)


def cross_entropy(x: Node, labels: Node, axis: int, smoothing: float) -> Node:
    """Per row: logsumexp(x) - (1 - smoothing) * x[label] - smoothing * mean(x)."""
    hit = B.where(_is_class(x, labels, axis), x, B.full_like(x, 0))
    target = B.sum(hit, (axis,))
    if smoothing:
        count = B.full(x.shape[axis], target.shape, x.dtype, x.device)
        mean = B.div(B.sum(x, (axis,)), count)
        target = B.add(B.mul(B.full_like(target, 1 - smoothing), target), B.mul(B.full_like(mean, smoothing), mean))
    return B.with_gradient(B.sub(logsumexp(x, (axis,)), target), (x, labels), _cross_entropy_rule, axis, smoothing)


def _cross_entropy_rule(inputs: Inputs, g: Node, axis: int, smoothing: float) -> tuple[Node, None]:
    x, labels = inputs[1:]
    target = B.cast(_is_class(x, labels, axis), x.dtype)
    if smoothing:
        share = B.div(B.full_like(x, smoothing), B.full(x.shape[axis], x.shape, x.dtype, x.device))
        target = B.add(B.mul(B.full_like(x, 1 - smoothing), target), share)
    return B.mul(B.sub(softmax(x, (axis,)), target), B.expand_reduced(g, x.shape, (axis,))), None


# Normalisation by statistics of the tensor itself


def _inverse_deviation(centred: Node, axes: tuple[int, ...], eps: float) -> Node:
    variance = _reduced_mean(B.mul(centred, centred), axes)
    inverse = B.div(B.full_like(variance, 1), B.sqrt(B.add(variance, B.full_like(variance, eps))))
    return B.expand_reduced(inverse, centred.shape, axes)


def standardize(x: Node, axes: tuple[int, ...], eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) over axes: layer norm, and batch norm in training."""
    centred = B.sub(x, _mean(x, axes))
    return B.with_gradient(B.mul(centred, _inverse_deviation(centred, axes, eps)), (x,), _standardize_rule, axes, eps)


def _standardize_rule(inputs: Inputs, g: Node, axes: tuple[int, ...], eps: float) -> tuple[Node]:
    """inv * (g - mean(g) - y * mean(g * y))."""
    x = inputs[1]
    y = standardize(x, axes, eps)
    inverse = _inverse_deviation(B.sub(x, _mean(x, axes)), axes, eps)
    return (B.mul(inverse, B.sub(B.sub(g, _mean(g, axes)), B.mul(y, _mean(B.mul(g, y), axes)))),)


def batch_norm(x: Node, scale: Node, shift: Node, axes: tuple[int, ...], eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) * scale + shift over axes; scale and shift have the shape of the axes that stay."""
    y = B.mul(standardize(x, axes, eps), B.expand_reduced(scale, x.shape, axes))
    y = B.add(y, B.expand_reduced(shift, x.shape, axes))
    return B.with_gradient(y, (x, scale, shift), _batch_norm_rule, axes, eps)


def _batch_norm_rule(inputs: Inputs, g: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node, Node]:
    """(inv * scale * (g - mean(g) - y * mean(g * y)), sum(g * y), sum(g)): the same two sums serve all three."""
    x, scale = inputs[1:3]
    y = standardize(x, axes, eps)
    inverse = _inverse_deviation(B.sub(x, _mean(x, axes)), axes, eps)
    by_scale, by_shift = B.mul(g, y), g
    centred = B.sub(B.sub(g, _mean(by_shift, axes)), B.mul(y, _mean(by_scale, axes)))
    dx = B.mul(B.mul(inverse, B.expand_reduced(scale, x.shape, axes)), centred)
    return dx, B.sum(by_scale, axes), B.sum(by_shift, axes)


def rms_norm(x: Node, axes: tuple[int, ...], eps: float) -> Node:
    """x / sqrt(mean(x*x) + eps) over axes."""
    return B.with_gradient(B.mul(x, _inverse_deviation(x, axes, eps)), (x,), _rms_norm_rule, axes, eps)


def _rms_norm_rule(inputs: Inputs, g: Node, axes: tuple[int, ...], eps: float) -> tuple[Node]:
    """inv * (g - y * mean(g * y))."""
    x = inputs[1]
    y = rms_norm(x, axes, eps)
    return (B.mul(_inverse_deviation(x, axes, eps), B.sub(g, B.mul(y, _mean(B.mul(g, y), axes)))),)
