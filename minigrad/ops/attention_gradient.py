"""The gradient of attention as Nodes of its own, so that it needs no table of scores either (Dao, 2023).

With the scores s and weights p of ops/attention.py, the gradient g of its result, and for each row

    l[i] = log(sum over j of exp(s[i, j]))          so that p[i, j] = exp(s[i, j] - l[i]); infinite if no j is left in
    d[i] = sum over f of g[i, f] * out[i, f]
    t[i, j] = p[i, j] * (sum over f of g[i, f] * v[j, f] - d[i])        the gradient of s

the gradients are

    q: scale * sum over j of t[i, j] * k[j, e]      k: scale * sum over i of t[i, j] * q[i, e]
    v: sum over i of p[i, j] * g[i, f]

`attention_sums` is l. `attention_gradient` is one of the three: Nodes of the same operands become one kernel. Both are
composites, whose expansion is a graph over blocks of rows with the weights of a block in memory; it stands for them
where a target has no such kernel, and where they are differentiated again.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType, bool_
from minigrad.expr import Index, bounds
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.matrices import transposed
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape
from minigrad.ops.storage import CONTIGUOUS

BLOCK = 1 << 21
"""Scores that the expansion computes at a time, in elements."""

OPERANDS = ("q", "k", "v")


def attention_vjp(node: Node, grad: Node) -> tuple[Node | None, ...]:
    """Gradients of an attention Node's q, k, v and, if it is of floats, mask."""
    compute, params = node.dtype.compute, score_params(node)
    q, k, v, mask, sinks = operands(node, node.inputs)
    g = B.cast(grad, compute)
    inner = B.sum(B.mul(g, B.cast(node, compute)), (len(q.shape) - 1,))
    if sinks is not None or params["softcap"] is not None:
        made = _by_table(q, k, v, mask, sinks, g, inner, **params)
    else:
        masks = () if mask is None else (mask,)
        sums = apply(ATTENTION_SUMS, *node.inputs[:2], *node.inputs[3:], **params)
        made = [apply(ATTENTION_GRADIENT, q, k, v, g, sums, inner, *masks, of=name, **params) for name in OPERANDS]
        if mask is not None:
            made.append(_of_scores(probabilities(q, k, mask, None, **params), v, g, inner))
    return tuple([B.cast(x, node.dtype) if of.dtype.is_float else None
                  for x, of in zip(made, node.inputs, strict=True)])


def operands(node: Node, inputs: Sequence[Node]) -> tuple[Node, Node, Node, Node | None, Node | None]:
    """(q, k, v, mask, sinks) of an attention Node over these inputs, in the type that it computes in."""
    q, k, v, *more = (x if x.dtype is bool_ else B.cast(x, node.dtype.compute) for x in inputs)
    sinks = more.pop() if node.params["sinks"] else None
    return q, k, v, more[0] if more else None, sinks


def score_params(node: Node) -> dict[str, Any]:
    """The numbers that a Node's scores depend on."""
    return {name: node.params[name] for name in ("scale", "causal", "window", "softcap")}


# ---- with weights in memory ----


def _by_table(q: Node, k: Node, v: Node, mask: Node | None, sinks: Node | None, g: Node, inner: Node, *, scale: float,
              causal: Index | None, window: int | None, softcap: float | None) -> list[Node]:
    """The gradients of all operands that there are, from all weights at once."""
    p = probabilities(q, k, mask, sinks, scale=scale, causal=causal, window=window, softcap=softcap)
    t = _of_scores(p, v, g, inner)
    raw = B.mul(t, B.full_like(t, scale))
    if softcap is not None:  # the derivative of softcap * tanh(s / softcap)
        level = B.div(capped(q, k, scale, softcap), B.full_like(t, softcap))
        raw = B.mul(raw, B.sub(B.full_like(t, 1), B.mul(level, level)))
    found = [dot(raw, transposed(k)), dot(transposed(raw), transposed(q)), dot(transposed(p), transposed(g))]
    if mask is not None:
        found.append(t)
    if sinks is not None:  # what no key gets
        left = B.sub(B.full_like(inner, 1), B.sum(p, (len(p.shape) - 1,)))
        found.append(B.mul(B.mul(left, inner), B.full_like(inner, -1)))
    return found


def dot(a: Node, b: Node) -> Node:
    """[.., M, K] times [.., N, K], over K."""
    *batch, m, k = a.shape
    n = b.shape[-2]
    wide = (*batch, m, n, k)
    x = B.expand(B.reshape(a, (*batch, m, 1, k)), wide)
    y = B.expand(B.reshape(b, (*batch, 1, n, k)), wide)
    return B.sum(B.mul(x, y), (len(wide) - 1,))


def capped(q: Node, k: Node, scale: float, softcap: float | None) -> Node:
    """The scores without mask."""
    scores = dot(q, k)
    scores = B.mul(scores, B.full_like(scores, scale))
    if softcap is None:
        return scores
    cap = B.full_like(scores, softcap)
    return B.mul(cap, B.tanh(B.div(scores, cap)))


def scores_of(q: Node, k: Node, mask: Node | None, *, scale: float, causal: Index | None, window: int | None,
              softcap: float | None) -> Node:
    """The scores of some rows; `causal` counts from the first of them."""
    scores = capped(q, k, scale, softcap)
    outside = B.full_like(scores, float("-inf"))
    if mask is not None:
        scores = B.where(mask, scores, outside) if mask.dtype is bool_ else B.add(scores, mask)
    if causal is not None:
        rows, columns = q.shape[-2], k.shape[-2]
        ones = (1,) * (len(scores.shape) - 2)
        i = B.reshape(B.iota(rows, q.device), (*ones, rows, 1))
        j = B.reshape(B.iota(columns, q.device), (*ones, 1, columns))
        at = B.add(B.expand(i, scores.shape), B.full(causal, scores.shape, i.dtype, q.device))
        j = B.expand(j, scores.shape)
        inside = B.le(j, at)
        if window is not None:
            inside = B.and_(inside, B.lt(B.sub(at, B.full_like(at, window)), j))
        scores = B.where(inside, scores, outside)
    return scores


def probabilities(q: Node, k: Node, mask: Node | None, sinks: Node | None, **params: Any) -> Node:
    """softmax of the scores, and of the sinks that there may be; zeros in rows with nothing left in."""
    scores = scores_of(q, k, mask, **params)
    axes = (len(scores.shape) - 1,)
    shift = _shift(B.max(scores, axes))
    e = B.exp(B.sub(scores, B.expand_reduced(shift, scores.shape, axes)))
    total = B.sum(e, axes)
    if sinks is not None:
        total = B.add(total, B.exp(B.sub(sinks, shift)))
    total = B.where(B.eq(total, B.full_like(total, 0)), B.full_like(total, 1), total)
    return B.div(e, B.expand_reduced(total, scores.shape, axes))


def _shift(top: Node) -> Node:
    """The numbers to subtract from the scores of rows whose largest are `top`: these, or 0 where all scores are -inf,
    whose weights are then 0."""
    return B.where(B.eq(top, B.full_like(top, float("-inf"))), B.full_like(top, 0), top)


def _blocks(q: Node, k: Node) -> list[tuple[Index, Index]]:
    """The blocks of rows of q, as (start, stop), of which the weights are in memory together."""
    length = q.shape[-2]
    row = bounds(B.numel((*q.shape[:-2], k.shape[-2])))[1]
    step = max(BLOCK // max(row, 1), 16)
    if not isinstance(length, int):
        return [(0, length)]
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def _rows(x: Node, start: Index, stop: Index, axis: int = -2) -> Node:
    axis %= len(x.shape)
    return B.slice_(x, tuple(start if a == axis else 0 for a in range(len(x.shape))),
                    tuple(stop if a == axis else n for a, n in enumerate(x.shape)))


def _placed(x: Node, start: Index, stop: Index, length: Index) -> Node:
    """Rows start..stop of `length`, zeros elsewhere."""
    none = ((0, 0),) * (len(x.shape) - 2)
    return x if (start, stop) == (0, length) else B.pad(x, (*none, (start, length - stop), (0, 0)))


def _total(parts: list[Node]) -> Node:
    """The sum, a part at a time, so that no two parts are needed at once."""
    total = parts[0]
    for part in parts[1:]:
        total = apply(CONTIGUOUS, B.add(total, part))
    return total


def _in_blocks(q: Node, k: Node, v: Node, g: Node, _: Node, inner: Node, mask: Node | None = None, *, of: str,
               causal: Index | None, **params: Any) -> Node:
    """One of the gradients, its weights from q and k."""
    length, found = q.shape[-2], []
    for start, stop in _blocks(q, k):
        keys: Index = k.shape[-2]
        if isinstance(causal, int) and isinstance(keys, int) and isinstance(stop, int):
            keys = max(min(stop + causal, keys), 1)
        q1, g1, k1 = _rows(q, start, stop), _rows(g, start, stop), _rows(k, 0, keys)
        mask1 = None if mask is None else _rows(_rows(mask, start, stop), 0, keys, -1)
        p = probabilities(q1, k1, mask1, None, causal=None if causal is None else causal + start, **params)
        if of == "v":
            found.append(_placed(dot(transposed(p), transposed(g1)), 0, keys, k.shape[-2]))
            continue
        t = _of_scores(p, _rows(v, 0, keys), g1, _rows(inner, start, stop, -1))
        t = B.mul(t, B.full_like(t, params["scale"]))
        if of == "q":
            found.append(_placed(dot(t, transposed(k1)), start, stop, length))
        else:
            found.append(_placed(dot(transposed(t), transposed(q1)), 0, keys, k.shape[-2]))
    return _total(found)


def _of_scores(p: Node, v: Node, g: Node, inner: Node) -> Node:
    """The gradient of the scores, and of a mask that is added to them: as large as all the weights."""
    less = B.expand_reduced(inner, p.shape, (len(p.shape) - 1,))
    return B.mul(p, B.sub(dot(g, v), less))


def _sums(q: Node, k: Node, mask: Node | None = None, **params: Any) -> Node:
    compute = q.dtype.compute
    if mask is not None and mask.dtype is not bool_:
        mask = B.cast(mask, compute)
    scores = scores_of(B.cast(q, compute), B.cast(k, compute), mask, **params)
    axes = (len(scores.shape) - 1,)
    top = B.max(scores, axes)
    total = B.sum(B.exp(B.sub(scores, B.expand_reduced(_shift(top), scores.shape, axes))), axes)
    nothing = B.eq(total, B.full_like(total, 0))
    return B.where(nothing, B.full_like(total, float("inf")), B.add(top, B.log(total)))


def _infer_sums(shapes: Sequence[Shape], dtypes: Sequence[DType], **_: object) -> tuple[Shape, DType]:
    return shapes[0][:-1], dtypes[0].compute


def _infer_gradient(shapes: Sequence[Shape], dtypes: Sequence[DType], *, of: str, **_: object) -> tuple[Shape, DType]:
    return shapes[OPERANDS.index(of)], dtypes[0]


ATTENTION_SUMS = composite("attention_sums", _infer_sums, _sums, None)
ATTENTION_GRADIENT = composite("attention_gradient", _infer_gradient, _in_blocks, None)
