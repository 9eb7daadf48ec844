"""Attention as one primitive, so that no table of all scores need ever be in memory.

    out[.., i, f] = sum over j of p[i, j] * v[.., j, f],  p = softmax over j of s[i, j]
    s[i, j] = scale * (sum over e of q[.., i, e] * k[.., j, e])  (+ mask[.., i, j])

With `causal` not None, j > i + causal is left out. A bool mask leaves out where it is False: such a score is -inf. What
is left out must hold finite values in v; a row with nothing left in gives NaN. Half types compute in float32.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.dtype import DType, bool_
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index, bounds
from minigrad.ops import build as B
from minigrad.ops.convert import convert
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op, Shape, Storage
from minigrad.ops.storage import CONTIGUOUS

BLOCK = 1 << 21
"""Scores that the gradient computes at a time, in elements."""


def _infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, scale: float, causal: Index | None,
           ) -> tuple[Shape, DType]:
    q, k, v = shapes[:3]
    ranks = {len(s) for s in shapes}
    if len(ranks) != 1 or len(q) < 2 or q[:-2] != k[:-2] or k[:-2] != v[:-2] or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ShapeError(f"[attention] expected q [.., L, E], k [.., S, E] and v [.., S, F], "
                         f"got {', '.join(str(list(s)) for s in shapes[:3])}")
    if k[-2] == 0 and 0 not in q[:-1]:
        raise ShapeError(f"[attention] expected at least one row in k, got {list(k)}")
    if len(shapes) > 3 and shapes[3] != (*q[:-1], k[-2]):
        raise ShapeError(f"[attention] expected a mask of shape {[*q[:-1], k[-2]]}, got {list(shapes[3])}")
    if len(set(dtypes[:3])) != 1 or not dtypes[0].is_float:
        raise DTypeError(f"[attention] expected one float type, got {', '.join(map(str, dtypes[:3]))}")
    if len(dtypes) > 3 and dtypes[3] is not bool_ and dtypes[3] is not dtypes[0]:
        raise DTypeError(f"[attention] expected a mask of bool or {dtypes[0]}, got {dtypes[3]}")
    return (*q[:-1], v[-1]), dtypes[0]


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, *, scale: float,
               causal: int | None, shape: Shape, dtype: DType) -> np.ndarray:
    scores = scale * (q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64))
    left_out = np.zeros(scores.shape[-2:], bool)
    if causal is not None:
        left_out = np.arange(scores.shape[-2])[:, None] + causal < np.arange(scores.shape[-1])[None, :]
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    scores = np.where(left_out, -np.inf, scores)
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return convert((e @ v.astype(np.float64)) / e.sum(-1, keepdims=True), dtype)


def attention(q: Node, k: Node, v: Node, mask: Node | None, scale: float, causal: Index | None) -> Node:
    return apply(ATTENTION, q, k, v, *(() if mask is None else (mask,)), scale=scale, causal=causal)


def attention_by_table(node: Node, inputs: Sequence[Node]) -> Node:
    """What computes an attention Node over these inputs with all scores in memory."""
    compute = node.dtype.compute
    q, k, v, *masks = (x if x.dtype is bool_ else B.cast(x, compute) for x in inputs)
    weights = _probabilities(q, k, masks[0] if masks else None, node.params["scale"], node.params["causal"])
    return B.cast(_dot(weights, _turned(v)), node.dtype)


# The gradient: blocks of rows, so that of the scores too there is only a part at a time.


def _dot(a: Node, b: Node) -> Node:
    """[.., M, K] times [.., N, K], over K."""
    *batch, m, k = a.shape
    n = b.shape[-2]
    wide = (*batch, m, n, k)
    x = B.expand(B.reshape(a, (*batch, m, 1, k)), wide)
    y = B.expand(B.reshape(b, (*batch, 1, n, k)), wide)
    return B.sum(B.mul(x, y), (len(wide) - 1,))


def _turned(x: Node) -> Node:
    rank = len(x.shape)
    return B.permute(x, (*range(rank - 2), rank - 1, rank - 2))


def _rows(x: Node, start: Index, stop: Index, axis: int) -> Node:
    axis %= len(x.shape)
    return B.slice_(x, tuple(start if a == axis else 0 for a in range(len(x.shape))),
                    tuple(stop if a == axis else n for a, n in enumerate(x.shape)))


def _placed(x: Node, start: Index, stop: Index, length: Index) -> Node:
    """Rows start..stop of `length`, zeros elsewhere."""
    none = ((0, 0),) * (len(x.shape) - 2)
    return x if (start, stop) == (0, length) else B.pad(x, (*none, (start, length - stop), (0, 0)))


def _probabilities(q: Node, k: Node, mask: Node | None, scale: float, causal: Index | None) -> Node:
    """softmax of the scores of some rows; `causal` counts from the first of them."""
    scores = _dot(q, k)
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
    axes = (len(scores.shape) - 1,)
    e = B.exp(B.sub(scores, B.expand_reduced(B.max(scores, axes), scores.shape, axes)))
    return B.div(e, B.expand_reduced(B.sum(e, axes), scores.shape, axes))


def _blocks(node: Node) -> list[tuple[Index, Index]]:
    """Rows of q that are taken together."""
    q, k = node.inputs[0], node.inputs[1]
    length = q.shape[-2]
    row = bounds(B.numel((*q.shape[:-2], k.shape[-2])))[1]
    step = max(BLOCK // max(row, 1), 16)
    if not isinstance(length, int):
        return [(0, length)]
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def _vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    compute = node.dtype.compute
    q, k, v, *masks = (x if x.dtype is bool_ else B.cast(x, compute) for x in node.inputs)
    mask = masks[0] if masks else None
    g = B.cast(g, compute)
    scale, causal = node.params["scale"], node.params["causal"]
    length, last = q.shape[-2], len(q.shape) - 1
    inner = B.sum(B.mul(g, B.cast(node, compute)), (last,))
    dq, dk, dv, dmask = [], [], [], []
    for start, stop in _blocks(node):
        keys: Index = k.shape[-2]
        if isinstance(causal, int) and isinstance(keys, int) and isinstance(stop, int):
            keys = max(min(stop + causal, keys), 1)
        q1, g1 = _rows(q, start, stop, -2), _rows(g, start, stop, -2)
        k1, v1 = _rows(k, 0, keys, -2), _rows(v, 0, keys, -2)
        mask1 = None if mask is None else _rows(_rows(mask, start, stop, -2), 0, keys, -1)
        p = _probabilities(q1, k1, mask1, scale, None if causal is None else causal + start)
        less = B.expand_reduced(_rows(inner, start, stop, -1), p.shape, (last,))
        ds = B.mul(p, B.sub(_dot(g1, v1), less))
        scaled = B.mul(ds, B.full_like(ds, scale))
        dq.append(_placed(_dot(scaled, _turned(k1)), start, stop, length))
        dk.append(_placed(_dot(_turned(scaled), _turned(q1)), 0, keys, k.shape[-2]))
        dv.append(_placed(_dot(_turned(p), _turned(g1)), 0, keys, k.shape[-2]))
        if mask is not None and mask.dtype.is_float:
            wide = B.pad(ds, ((0, 0),) * last + ((0, k.shape[-2] - keys),)) if keys != k.shape[-2] else ds
            dmask.append(_placed(wide, start, stop, length))
    found: list[Node | None] = [_total(dq), _total(dk), _total(dv)]
    if mask is not None:
        found.append(_total(dmask) if dmask else None)
    return tuple(None if x is None else B.cast(x, node.dtype) for x in found)


def _total(parts: list[Node]) -> Node:
    """The sum, a part at a time, so that no two parts are needed at once."""
    total = parts[0]
    for part in parts[1:]:
        total = apply(CONTIGUOUS, B.add(total, part))
    return total


ATTENTION = Op("attention", _infer, _vjp, _reference, Storage("attention"))
