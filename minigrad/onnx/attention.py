"""Attention and rotary embeddings."""
from __future__ import annotations

from typing import Any

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid
from minigrad.onnx.values import DTYPES

INF = float("inf")


def _heads(x: Tensor, count: int | None) -> Any:
    """[N, heads, L, D] of [N, L, heads * D]; what has four axes stays."""
    if x.ndim == 4:
        return x
    if not count:
        raise Invalid("expected q_num_heads and kv_num_heads for inputs of three axes")
    return x.reshape(x.shape[0], x.shape[1], count, -1).permute(0, 2, 1, 3)


def attention(n: Node) -> Any:
    """softmax(Q @ K^T * scale + mask) @ V, over a past of keys and values on request."""
    q, k, v = (_heads(n.tensor(i), n.attribute(f"{'q' if i == 0 else 'kv'}_num_heads")) for i in range(3))
    past_key, past_value = n.tensor(4, None), n.tensor(5, None)
    if past_key is not None:
        k, v = past_key.cat(k, dim=2), past_value.cat(v, dim=2)
    present = [k, v]
    length = n.tensor(6, None)
    scale = n.attribute("scale") or q.shape[-1] ** -0.5
    bias, blocked = _bias(n, q, k, past_key, length)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    root = scale ** 0.5
    scores = (q * root).cast(q.dtype) @ (k * root).cast(q.dtype).transpose(-1, -2)
    mode, cap = n.attribute("qk_matmul_output_mode", 0), n.attribute("softcap", 0.0)
    scores = (scores / cap).tanh() * cap if cap else scores
    biased = scores if bias is None else scores + bias.cast(scores.dtype)
    precision = n.attribute("softmax_precision")
    weights = (biased.cast(DTYPES[precision]) if precision else biased).softmax(-1)
    if blocked is not None:
        weights = blocked.where(0, weights)
    y = weights.cast(q.dtype) @ v
    if n.tensor(0).ndim == 3:
        y = y.permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    shown = {0: scores, 1: scores if cap else biased, 2: biased, 3: weights}[mode]
    return [y, *present, shown.cast(q.dtype)]


def _bias(n: Node, q: Tensor, k: Tensor, past: Tensor | None, length: Tensor | None) -> tuple[Any, Any]:
    """(what is added to scores, True for the rows that see nothing), or Nones."""
    rows, columns = q.shape[2], k.shape[2]
    mask, bias = n.tensor(3, None), None
    if mask is not None:
        if mask.dtype is dtypes.bool_:
            mask = mask.where(Tensor.zeros(1, dtype=q.dtype, device=q.device), -INF)
        if mask.shape[-1] < columns:
            mask = mask.pad((0, columns - mask.shape[-1]), value=-INF)
        bias = mask
    left, right = n.attribute("left_window_size", -1), n.attribute("right_window_size", -1)
    row = Tensor.arange(rows, device=q.device).reshape(-1, 1)
    column = Tensor.arange(columns, device=q.device).reshape(1, -1)
    if past is not None:
        row = row + past.shape[2]
    elif length is not None:
        row = row + (length.cast(row.dtype).reshape(-1, 1, 1, 1) - rows)
    seen = []
    if n.attribute("is_causal", 0):
        seen.append(column <= row)
    if left >= 0:
        seen.append(row - column <= left)
    if right >= 0:
        seen.append(column - row <= right)
    if length is not None:
        seen.append(column < length.cast(column.dtype).reshape(-1, 1, 1, 1))
    for allowed in seen:
        more = allowed.where(Tensor.zeros(1, dtype=q.dtype, device=q.device), -INF)
        bias = more if bias is None else bias + more
    if bias is None:
        return None, None
    return bias, bias.amax(-1, keepdim=True) == -INF


def rotary(n: Node) -> Tensor:
    """Pairs of numbers turned by the angles of their places: halves, or neighbours with interleaved."""
    x, cos, sin, places = n.tensor(0), n.tensor(1), n.tensor(2), n.tensor(3, None)
    wide = x.ndim == 3
    y = x.reshape(x.shape[0], x.shape[1], n.required("num_heads"), -1) if wide else x.permute(0, 2, 1, 3)
    size = n.attribute("rotary_embedding_dim", 0) or y.shape[-1]
    if places is not None:
        shape = (*places.shape, cos.shape[-1])
        index = places.reshape(-1)
        cos, sin = cos.index_select(0, index).reshape(*shape), sin.index_select(0, index).reshape(*shape)
    cos, sin = cos[..., :size // 2].unsqueeze(2), sin[..., :size // 2].unsqueeze(2)
    turned, rest = y[..., :size], y[..., size:]
    interleaved = n.attribute("interleaved", 0)
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :size // 2], turned[..., size // 2:])
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    turned = real.stack(imaginary, dim=-1).flatten(-2) if interleaved else real.cat(imaginary, dim=-1)
    y = turned.cat(rest, dim=-1) if rest.shape[-1] else turned
    return y.reshape(*x.shape) if wide else y.permute(0, 2, 1, 3)


TABLE: dict[str, Operator] = {"Attention": attention, "RotaryEmbedding": rotary}
