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

from minigrad.dtype import DType, bool_
from minigrad.expr import Index, bounds
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape
from minigrad.ops.storage import CONTIGUOUS

BLOCK = 1 << 21
"""Scores that the expansion computes at a time, in elements."""

OPERANDS = ("q", "k", "v")


def attention_vjp(node: Node, grad: Node) -> tuple[Node | None, ...]:
    """Gradients of an attention Node's q, k, v and, if it is of floats, mask."""
    compute = node.dtype.compute
    params = {"scale": node.params["scale"], "causal": node.params["causal"]}
    q, k, v, *masks = (x if x.dtype is bool_ else B.cast(x, compute) for x in node.inputs)
    g = B.cast(grad, compute)
    sums = apply(ATTENTION_SUMS, *node.inputs[:2], *node.inputs[3:], **params)
    inner = B.sum(B.mul(g, B.cast(node, compute)), (len(q.shape) - 1,))
    operands = (q, k, v, g, sums, inner, *masks)
    found = [B.cast(apply(ATTENTION_GRADIENT, *operands, of=name, **params), node.dtype) for name in OPERANDS]
    if not masks:
        return tuple(found)
    wanted = masks[0].dtype.is_float
    return (*found, B.cast(_of_mask(q, k, v, g, inner, masks[0], **params), node.dtype) if wanted else None)


# ---- with weights in memory ----


def dot(a: Node, b: Node) -> Node:
    """[.., M, K] times [.., N, K], over K."""
    *batch, m, k = a.shape
    n = b.shape[-2]
    wide = (*batch, m, n, k)
    x = B.expand(B.reshape(a, (*batch, m, 1, k)), wide)
    y = B.expand(B.reshape(b, (*batch, 1, n, k)), wide)
    return B.sum(B.mul(x, y), (len(wide) - 1,))


def turned(x: Node) -> Node:
    rank = len(x.shape)
    return B.permute(x, (*range(rank - 2), rank - 1, rank - 2))


def scores_of(q: Node, k: Node, mask: Node | None, scale: float, causal: Index | None) -> Node:
    """The scores of some rows; `causal` counts from the first of them."""
    scores = dot(q, k)
    scores = B.mul(scores, B.full_like(scores, scale))
    outside = B.full_like(scores, float("-inf"))
    if mask is not None:
        scores = B.where(mask, scores, outside) if mask.dtype is bool_ else B.add(scores, mask)
    if causal is not None:
        rows, columns = q.shape[-2], k.shape[-2]
        ones = (1,) * (len(scores.shape) - 2)
        i = B.reshape(B.iota(rows, q.device), (*ones, rows, 1))
        j = B.reshape(B.iota(columns, q.device), (*ones, 1, columns))
        at = B.add(B.expand(i, scores.shape), B.full(causal, scores.shape, i.dtype, q.device))
        scores = B.where(B.le(B.expand(j, scores.shape), at), scores, outside)
    return scores


def probabilities(q: Node, k: Node, mask: Node | None, scale: float, causal: Index | None) -> Node:
    """softmax of the scores; zeros in rows with nothing left in."""
    scores = scores_of(q, k, mask, scale, causal)
    axes = (len(scores.shape) - 1,)
    e = B.exp(B.sub(scores, B.expand_reduced(_shift(B.max(scores, axes)), scores.shape, axes)))
    total = B.sum(e, axes)
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
               scale: float, causal: Index | None) -> Node:
    """One of the gradients, its weights from q and k."""
    length, found = q.shape[-2], []
    for start, stop in _blocks(q, k):
        keys: Index = k.shape[-2]
        if isinstance(causal, int) and isinstance(keys, int) and isinstance(stop, int):
            keys = max(min(stop + causal, keys), 1)
        q1, g1, k1 = _rows(q, start, stop), _rows(g, start, stop), _rows(k, 0, keys)
        mask1 = None if mask is None else _rows(_rows(mask, start, stop), 0, keys, -1)
        p = probabilities(q1, k1, mask1, scale, None if causal is None else causal + start)
        if of == "v":
            found.append(_placed(dot(turned(p), turned(g1)), 0, keys, k.shape[-2]))
            continue
        t = _of_scores(p, _rows(v, 0, keys), g1, _rows(inner, start, stop, -1))
        t = B.mul(t, B.full_like(t, scale))
        if of == "q":
            found.append(_placed(dot(t, turned(k1)), start, stop, length))
        else:
            found.append(_placed(dot(turned(t), turned(q1)), 0, keys, k.shape[-2]))
    return _total(found)


def _of_scores(p: Node, v: Node, g: Node, inner: Node) -> Node:
    less = B.expand_reduced(inner, p.shape, (len(p.shape) - 1,))
    return B.mul(p, B.sub(dot(g, v), less))


def _of_mask(q: Node, k: Node, v: Node, g: Node, inner: Node, mask: Node, scale: float, causal: Index | None) -> Node:
    """The gradient of an added mask: as large as all the weights."""
    return _of_scores(probabilities(q, k, mask, scale, causal), v, g, inner)


def _sums(q: Node, k: Node, mask: Node | None = None, *, scale: float, causal: Index | None) -> Node:
    compute = q.dtype.compute
    if mask is not None and mask.dtype is not bool_:
        mask = B.cast(mask, compute)
    scores = scores_of(B.cast(q, compute), B.cast(k, compute), mask, scale, causal)
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
