"""Functions of neural networks as composites: expansions, and gradients where these are written by hand.

Builders below give back the very Node of the forward pass for equal arguments, so that a gradient that uses it shares
its work, and gradients of gradients go through the rules as well.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType, promote
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

Axes = tuple[int, ...]
Shapes = Sequence[Shape]
DTypes = Sequence[DType]


def same_type(shapes: Shapes, dtypes: DTypes, **_: Any) -> tuple[Shape, DType]:
    """The type of a result with the first operand's shape and dtype."""
    return shapes[0], dtypes[0]


def reduced_type(shapes: Shapes, dtypes: DTypes, *, axes: Axes, **_: Any) -> tuple[Shape, DType]:
    """The type of a result with the first operand's shape, without the axes, and its dtype."""
    return tuple([d for i, d in enumerate(shapes[0]) if i not in axes]), dtypes[0]


def _total(x: Node, axes: Axes) -> Node:
    return B.expand_reduced(B.sum(x, axes), x.shape, axes)


# Mean and variance


def _count(x: Node, axes: Axes) -> Any:
    return B.numel(tuple([x.shape[a] for a in axes]))


def _mean(x: Node, axes: Axes) -> Node:
    total = B.sum(x, axes)
    return B.div(total, B.full(_count(x, axes), total.shape, x.dtype, x.device))


def _mean_vjp(node: Node, g: Node) -> tuple[Node]:
    x, axes = node.inputs[0], node.params["axes"]
    return (apply(MEAN_GRADIENT, g, to=x.shape, axes=axes),)


def _mean_gradient(g: Node, to: Shape, axes: Axes) -> Node:
    count = B.numel(tuple([to[a] for a in axes]))
    return B.expand_reduced(B.div(g, B.full(count, g.shape, g.dtype, g.device)), to, axes)


def _spread_mean(x: Node, axes: Axes) -> Node:
    """The mean over axes, repeated along them again."""
    return B.expand_reduced(_mean(x, axes), x.shape, axes)


def _variance(x: Node, axes: Axes, correction: float) -> Node:
    deviation = B.sub(x, _spread_mean(x, axes))
    total = B.sum(B.mul(deviation, deviation), axes)
    count = _count(x, axes)
    free = max(count - correction, 0) if isinstance(count, int) else count - correction
    return B.div(total, B.full(free, total.shape, x.dtype, x.device))


MEAN = composite("mean", reduced_type, _mean, _mean_vjp)
MEAN_GRADIENT = composite("mean_gradient", lambda shapes, dtypes, *, to, axes: (to, dtypes[0]), _mean_gradient, None)
VARIANCE = composite("variance", reduced_type, _variance, None)


def mean(x: Node, axes: Axes) -> Node:
    """The mean over axes, which are gone from the shape. Of nothing: NaN."""
    return apply(MEAN, x, axes=axes)


def variance(x: Node, axes: Axes, correction: float) -> Node:
    """The squared deviation from the mean, summed over axes, over their number of elements less `correction`."""
    return apply(VARIANCE, x, axes=axes, correction=correction)


# silu


def _silu(x: Node) -> Node:
    return B.mul(x, B.sigmoid(x))


def _silu_vjp(node: Node, g: Node) -> tuple[Node]:
    return (apply(SILU_GRADIENT, node.inputs[0], g),)


def _silu_gradient(x: Node, g: Node) -> Node:
    s = B.sigmoid(x)
    return B.add(B.mul(g, s), B.mul(B.mul(g, x), B.mul(s, B.sub(B.full_like(s, 1), s))))


SILU = composite("silu", same_type, _silu, _silu_vjp)
SILU_GRADIENT = composite("silu_gradient", same_type, _silu_gradient, None)


def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    return apply(SILU, x)


# log1p


def _log1p(x: Node) -> Node:
    """log(1 + x), accurate for small x (W. Kahan): log(u) * x / (u - 1) with u = 1 + x rounded."""
    one = B.full_like(x, 1)
    u = B.add(one, x)
    exact = B.eq(u, one)
    below = B.where(exact, one, B.sub(u, one))
    infinite = B.eq(x, B.full_like(x, float("inf")))
    return B.where(exact, x, B.where(infinite, x, B.mul(B.log(u), B.div(x, below))))


def _log1p_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    return (B.div(g, B.add(B.full_like(x, 1), x)),)


LOG1P = composite("log1p", same_type, _log1p, _log1p_vjp)


def log1p(x: Node) -> Node:
    """log(1 + x), accurate near 0."""
    return apply(LOG1P, x)


# softplus and logaddexp


def _softplus(x: Node) -> Node:
    return B.add(B.maximum(x, B.full_like(x, 0)), log1p(B.exp(B.neg(B.abs_(x)))))


def _softplus_vjp(node: Node, g: Node) -> tuple[Node]:
    return (B.mul(g, B.sigmoid(node.inputs[0])),)


def _logaddexp(x: Node, y: Node) -> Node:
    larger = B.maximum(x, y)
    infinite = B.eq(B.abs_(larger), B.full_like(x, float("inf")))
    return B.where(infinite, larger, B.add(larger, log1p(B.exp(B.neg(B.abs_(B.sub(x, y)))))))


def _logaddexp_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    x, y = node.inputs
    gap = B.sub(x, y)
    return B.mul(g, B.sigmoid(gap)), B.mul(g, B.sigmoid(B.neg(gap)))


SOFTPLUS = composite("softplus", same_type, _softplus, _softplus_vjp)
LOGADDEXP = composite("logaddexp", same_type, _logaddexp, _logaddexp_vjp)


def softplus(x: Node) -> Node:
    """log(1 + exp(x)), without overflow. Its gradient is sigmoid(x), smooth at 0 as well."""
    return apply(SOFTPLUS, x)


def logaddexp(x: Node, y: Node) -> Node:
    """log(exp(x) + exp(y)), without overflow."""
    return apply(LOGADDEXP, x, y)


# softmax and log_softmax


def _shifted(x: Node, axes: Axes) -> Node:
    return B.sub(x, B.expand_reduced(B.max(x, axes), x.shape, axes))


def _softmax(x: Node, axes: Axes) -> Node:
    e = B.exp(_shifted(x, axes))
    total = B.sum(e, axes)
    return B.mul(e, B.expand_reduced(B.div(B.full_like(total, 1), total), x.shape, axes))


def _softmax_vjp(node: Node, g: Node) -> tuple[Node]:
    return (B.mul(node, B.sub(g, _total(B.mul(g, node), node.params["axes"]))),)


def _log_softmax(x: Node, axes: Axes) -> Node:
    m = _shifted(x, axes)
    return B.sub(m, B.expand_reduced(B.log(B.sum(B.exp(m), axes)), x.shape, axes))


def _log_softmax_vjp(node: Node, g: Node) -> tuple[Node]:
    axes = node.params["axes"]
    return (B.sub(g, B.mul(softmax(node.inputs[0], axes), _total(g, axes))),)


def _logsumexp(x: Node, axes: Axes) -> Node:
    """log(sum(exp(x))) over axes; rows of -inf give -inf."""
    top = B.max(x, axes)
    finite = B.lt(B.abs_(top), B.full_like(top, float("inf")))
    top = B.where(finite, top, B.full_like(top, 0))
    shifted = B.sub(x, B.expand_reduced(top, x.shape, axes))
    return B.add(top, B.log(B.sum(B.exp(shifted), axes)))


def _logsumexp_vjp(node: Node, g: Node) -> tuple[Node]:
    x, axes = node.inputs[0], node.params["axes"]
    return (B.mul(softmax(x, axes), B.expand_reduced(g, x.shape, axes)),)


SOFTMAX = composite("softmax", same_type, _softmax, _softmax_vjp)
LOG_SOFTMAX = composite("log_softmax", same_type, _log_softmax, _log_softmax_vjp)
LOGSUMEXP = composite("logsumexp", reduced_type, _logsumexp, _logsumexp_vjp)


def softmax(x: Node, axes: Axes) -> Node:
    """exp(x) / sum(exp(x)) over axes, without overflow."""
    return apply(SOFTMAX, x, axes=axes)


def log_softmax(x: Node, axes: Axes) -> Node:
    """log(softmax(x)), accurate."""
    return apply(LOG_SOFTMAX, x, axes=axes)


def logsumexp(x: Node, axes: Axes) -> Node:
    """log(sum(exp(x))) over axes, which are gone from the shape."""
    return apply(LOGSUMEXP, x, axes=axes)


# Normalisation by statistics of the tensor itself


def _inverse_deviation(centred: Node, axes: Axes, eps: float) -> Node:
    square = _mean(B.mul(centred, centred), axes)
    inverse = B.div(B.full_like(square, 1), B.sqrt(B.add(square, B.full_like(square, eps))))
    return B.expand_reduced(inverse, centred.shape, axes)


def _standardize(x: Node, axes: Axes, eps: float) -> Node:
    centred = B.sub(x, _spread_mean(x, axes))
    return B.mul(centred, _inverse_deviation(centred, axes, eps))


def _standardize_gradient(x: Node, g: Node, axes: Axes, eps: float) -> Node:
    """inv * (g - mean(g) - y * mean(g * y))."""
    y = standardize(x, axes, eps)
    inverse = _inverse_deviation(B.sub(x, _spread_mean(x, axes)), axes, eps)
    return B.mul(inverse, B.sub(B.sub(g, _spread_mean(g, axes)), B.mul(y, _spread_mean(B.mul(g, y), axes))))


def _standardize_vjp(node: Node, g: Node) -> tuple[Node]:
    return (apply(STANDARDIZE_GRADIENT, node.inputs[0], g, **node.params),)


def _batch_norm(x: Node, scale: Node, shift: Node, axes: Axes, eps: float) -> Node:
    y = B.mul(standardize(x, axes, eps), B.expand_reduced(scale, x.shape, axes))
    return B.add(y, B.expand_reduced(shift, x.shape, axes))


def _batch_norm_vjp(node: Node, g: Node) -> tuple[Node, Node, Node]:
    """The same two sums, sum(g * y) and sum(g), serve all three."""
    x, scale, _ = node.inputs
    return (apply(BATCH_NORM_GRADIENT, x, scale, g, **node.params),
            apply(BATCH_NORM_SCALE_GRADIENT, x, g, **node.params), B.sum(g, node.params["axes"]))


def _batch_norm_gradient(x: Node, scale: Node, g: Node, axes: Axes, eps: float) -> Node:
    """inv * scale * (g - mean(g) - y * mean(g * y))."""
    y = standardize(x, axes, eps)
    inverse = _inverse_deviation(B.sub(x, _spread_mean(x, axes)), axes, eps)
    centred = B.sub(B.sub(g, _spread_mean(g, axes)), B.mul(y, _spread_mean(B.mul(g, y), axes)))
    return B.mul(B.mul(inverse, B.expand_reduced(scale, x.shape, axes)), centred)


def _batch_norm_scale_gradient(x: Node, g: Node, axes: Axes, eps: float) -> Node:
    return B.sum(B.mul(g, standardize(x, axes, eps)), axes)


def _rms_norm(x: Node, axes: Axes, eps: float) -> Node:
    return B.mul(x, _inverse_deviation(x, axes, eps))


def _rms_norm_vjp(node: Node, g: Node) -> tuple[Node]:
    """inv * (g - y * mean(g * y))."""
    x, axes, eps = node.inputs[0], node.params["axes"], node.params["eps"]
    centred = B.sub(g, B.mul(node, _spread_mean(B.mul(g, node), axes)))
    return (B.mul(_inverse_deviation(x, axes, eps), centred),)


STANDARDIZE = composite("standardize", same_type, _standardize, _standardize_vjp)
STANDARDIZE_GRADIENT = composite("standardize_gradient", same_type, _standardize_gradient, None)
BATCH_NORM = composite("batch_norm", same_type, _batch_norm, _batch_norm_vjp)
BATCH_NORM_GRADIENT = composite("batch_norm_gradient", same_type, _batch_norm_gradient, None)
BATCH_NORM_SCALE_GRADIENT = composite("batch_norm_scale_gradient", reduced_type, _batch_norm_scale_gradient, None)
RMS_NORM = composite("rms_norm", same_type, _rms_norm, _rms_norm_vjp)


def standardize(x: Node, axes: Axes, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) over axes: layer norm, and batch norm in training."""
    return apply(STANDARDIZE, x, axes=axes, eps=eps)


def batch_norm(x: Node, scale: Node, shift: Node, axes: Axes, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) * scale + shift over axes; scale and shift have the shape of the axes that stay."""
    return apply(BATCH_NORM, x, scale, shift, axes=axes, eps=eps)


def rms_norm(x: Node, axes: Axes, eps: float) -> Node:
    """x / sqrt(mean(x*x) + eps) over axes."""
    return apply(RMS_NORM, x, axes=axes, eps=eps)


# Gradients of another

PASSED = composite("passed", same_type, lambda x, value: value, lambda node, g: (g, None))


def passed(x: Node, value: Node) -> Node:
    """`value`, whose gradient is that of x."""
    return apply(PASSED, x, value)


# Updates


def _moved(old: Node, new: Node, share: float) -> Node:
    return B.add(B.mul(old, B.full_like(old, 1 - share)), B.mul(new, B.full_like(new, share)))


def _stepped(old: Node, direction: Node, rate: Node) -> Node:
    common = promote(direction.dtype, rate.dtype)
    step = B.mul(B.cast(direction, common), B.expand(B.cast(rate, common), old.shape))
    return B.sub(old, B.cast(step, old.dtype))


MOVED = composite("moved", same_type, _moved, None)
STEPPED = composite("stepped", same_type, _stepped, None)


def moved(old: Node, new: Node, share: float) -> Node:
    """old * (1 - share) + new * share."""
    return apply(MOVED, old, new, share=share)


def stepped(old: Node, direction: Node, rate: Node) -> Node:
    """old - direction * rate, for a rate of shape ()."""
    return apply(STEPPED, old, direction, rate)


FUNCTIONS = (MEAN, MEAN_GRADIENT, VARIANCE, SILU, SILU_GRADIENT, LOG1P, SOFTPLUS, LOGADDEXP, SOFTMAX, LOG_SOFTMAX,
             LOGSUMEXP, STANDARDIZE, STANDARDIZE_GRADIENT, BATCH_NORM,
             BATCH_NORM_GRADIENT, BATCH_NORM_SCALE_GRADIENT, RMS_NORM, PASSED, MOVED, STEPPED)
