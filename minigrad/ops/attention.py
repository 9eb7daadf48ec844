"""Attention as one primitive, so that no table of all scores need ever be in memory.

    out[.., i, f] = sum over j of p[i, j] * v[.., j, f],  p = softmax over j of s[i, j]
    s[i, j] = cap(scale * (sum over e of q[.., i, e] * k[.., j, e]))  (+ mask[.., i, j])

With `causal` not None, j > i + causal is left out, and with a `window`, too, j <= i + causal - window. A bool mask
leaves out where it is False: such a score is -inf. `cap(s)` is softcap * tanh(s / softcap), s itself where `softcap` is
None. With `sinks`, the last operand has a score for each row whose weight goes to no key. What is left out must hold
finite values in v; a row with nothing left in, whose scores are all -inf, gives zeros, and its gradients are zeros.
Half types compute in float32.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.dtype import DType, bool_
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index
from minigrad.ops import build as B
from minigrad.ops.attention_gradient import attention_vjp, dot, operands, probabilities, score_params
from minigrad.ops.convert import convert
from minigrad.ops.matrices import transposed
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op, Shape, Storage


def _infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, sinks: bool, **_: object) -> tuple[Shape, DType]:
    if sinks:
        *shapes, rows = shapes
        *dtypes, kind = dtypes
        if rows != shapes[0][:-1] or kind is not dtypes[0]:
            raise ShapeError(f"[attention] expected sinks of {dtypes[0]} {list(shapes[0][:-1])}, got {kind} "
                             f"{list(rows)}")
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


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, *more: np.ndarray, scale: float, causal: int | None,
               window: int | None, softcap: float | None, sinks: bool, shape: Shape, dtype: DType) -> np.ndarray:
    mask = more[0] if len(more) > sinks else None
    scores = scale * (q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64))
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    left_out = np.zeros(scores.shape[-2:], bool)
    if causal is not None:
        behind = np.arange(scores.shape[-2])[:, None] + causal - np.arange(scores.shape[-1])[None, :]
        left_out = (behind < 0) | (behind >= (behind.size if window is None else window))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    scores = np.where(left_out, -np.inf, scores)
    with np.errstate(invalid="ignore", over="ignore"):
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        shift = np.where(top == -np.inf, 0, top)
        e = np.exp(scores - shift)
        total = e.sum(-1, keepdims=True)
        if sinks:
            total = total + np.exp(more[-1].astype(np.float64)[..., None] - shift)
        return convert((e @ v.astype(np.float64)) / np.where(total == 0, 1, total), dtype)


def attention(q: Node, k: Node, v: Node, mask: Node | None, sinks: Node | None, scale: float, causal: Index | None,
              window: int | None, softcap: float | None) -> Node:
    more = [x for x in (mask, sinks) if x is not None]
    return apply(ATTENTION, q, k, v, *more, scale=scale, causal=causal, window=window, softcap=softcap,
                 sinks=sinks is not None)


def attention_by_table(node: Node, inputs: Sequence[Node]) -> Node:
    """The Node that computes attention over these inputs with all scores in memory."""
    q, k, v, mask, sinks = operands(node, inputs)
    return B.cast(dot(probabilities(q, k, mask, sinks, **score_params(node)), transposed(v)), node.dtype)


ATTENTION = Op("attention", _infer, attention_vjp, _reference, Storage("attention"))
