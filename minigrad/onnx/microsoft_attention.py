"""Attention as onnxruntime's exporters write it: the domain com.microsoft."""
from __future__ import annotations

from typing import Any

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, refuse

INF = float("inf")


def _heads(x: Tensor, count: int) -> Tensor:
    """[N, heads, L, D] of [N, L, heads * D]."""
    if x.ndim != 3:
        raise refuse(f"an input of {x.ndim} axes", "[batch, length, heads * size]")
    return x.reshape(x.shape[0], x.shape[1], count, -1).permute(0, 2, 1, 3)


def _joined(y: Tensor) -> Tensor:
    """[N, L, heads * D] of [N, heads, L, D]."""
    return y.permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def _refuse(n: Node, inputs: dict[int, str], attributes: dict[str, Any]) -> None:
    """Raises Unsupported for inputs that are given and attributes that are not as here."""
    for index, name in inputs.items():
        if n.has(index):
            raise refuse(f"input {name}", "the others")
    for name, value in attributes.items():
        if n.attribute(name, value) != value:
            raise refuse(f"attribute {name} = {n.attribute(name)}", f"{name} = {value}")


def _masked(n: Node, mask: Tensor | None, columns: Any, q: Tensor) -> Tensor | None:
    """The numbers that a mask adds: of 0 and 1 over keys [N, L], [N, rows, L] or [N, 1, rows, L], or lengths [N]."""
    if mask is None:
        return None
    if mask.ndim == 1:
        if mask.shape[0] != q.shape[0]:
            raise refuse(f"a mask of {mask.shape[0]} numbers", "those of a length for each of the batch")
        seen = Tensor.arange(columns, device=q.device).reshape(1, 1, 1, -1) < mask.reshape(-1, 1, 1, 1)
    else:
        seen = {2: lambda m: m[:, None, None], 3: lambda m: m[:, None], 4: lambda m: m}[mask.ndim](mask) != 0
    low = n.attribute("mask_filter_value", -10000.0)
    return seen.where(Tensor.zeros(1, dtype=q.dtype, device=q.device), low)


def _causal(rows: Any, columns: Any, q: Tensor) -> Tensor:
    """-inf over the keys that come after a row; the last rows and keys stand beside each other."""
    row = Tensor.arange(rows, device=q.device).reshape(-1, 1) + (columns - rows)
    seen = Tensor.arange(columns, device=q.device).reshape(1, -1) <= row
    return seen.where(Tensor.zeros(1, dtype=q.dtype, device=q.device), -INF)


def _weighed(n: Node, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor | None]) -> Tensor:
    """softmax(Q @ K^T * scale + biases) @ V as [N, L, heads * D]."""
    scores = (q @ k.transpose(-1, -2)) * (n.attribute("scale", 0.0) or int(q.shape[-1]) ** -0.5)
    cap = n.attribute("softcap", 0.0)
    scores = (scores / cap).tanh() * cap if cap else scores
    for bias in biases:
        scores = scores if bias is None else scores + bias.cast(scores.dtype)
    return _joined(scores.softmax(-1) @ v)


def attention(n: Node) -> list[Any]:
    """Self-attention whose three products are one: [N, L, q + k + v] = x @ weights + bias."""
    _refuse(n, {6: "past_sequence_length"}, {"do_rotary": 0, "past_present_share_buffer": 0})
    x, heads = n.tensor(0), n.required("num_heads")
    every, sizes = x @ n.tensor(1), n.attribute("qkv_hidden_sizes") or None
    every = every + n.tensor(2) if n.has(2) else every
    parts = every.split(sizes if sizes else every.shape[-1] // 3, dim=-1)
    q, k, v = (_heads(p, heads) for p in parts)
    if n.has(4):
        past = n.tensor(4)
        k, v = past[0].cat(k, dim=2), past[1].cat(v, dim=2)
    causal = _causal(q.shape[2], k.shape[2], q) if n.attribute("unidirectional", 0) else None
    y = _weighed(n, q, k, v, [causal, _masked(n, n.tensor(3, None), k.shape[2], q), n.tensor(5, None)])
    return [y, k.stack(v, dim=0)] if n.wants(1) else [y]


def multi_head(n: Node) -> list[Any]:
    """Attention of Q, K and V [N, L, heads * D], which may get a bias and stand behind a past."""
    _refuse(n, {8: "past_sequence_length", 9: "cache_indirection"}, {})
    if not n.has(1) or not n.has(2) or n.wants(3):
        raise refuse("a packed input, or the output qk", "query, key and value")
    heads, q, k, v = n.required("num_heads"), n.tensor(0), n.tensor(1), n.tensor(2)
    if n.has(3):
        width, bias = q.shape[-1], n.tensor(3)
        q, v = q + bias[:width], v + bias[2 * width:] if v.ndim == 3 else v
        k = k + bias[width:2 * width] if k.ndim == 3 else k
    q = _heads(q, heads)
    k, v = (t if t.ndim == 4 else _heads(t, heads) for t in (k, v))
    if n.has(6):
        k, v = n.tensor(6).cat(k, dim=2), n.tensor(7).cat(v, dim=2)
    causal = _causal(q.shape[2], k.shape[2], q) if n.attribute("unidirectional", 0) else None
    return [_weighed(n, q, k, v, [causal, _masked(n, n.tensor(4, None), k.shape[2], q), n.tensor(5, None)]), k, v]


def _turned(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """x [N, heads, L, D] turned by the angles of places [N, L]."""
    half = cos.shape[-1]
    index, shape = places.reshape(-1), (places.shape[0], 1, places.shape[1], half)
    cos, sin = (t.index_select(0, index).reshape(*shape).cast(x.dtype) for t in (cos, sin))
    y, rest = x[..., :2 * half], x[..., 2 * half:]
    a, b = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :half], y[..., half:])
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    y = real.stack(imaginary, dim=-1).flatten(-2) if interleaved else real.cat(imaginary, dim=-1)
    return y.cat(rest, dim=-1) if rest.shape[-1] else y


def rotary(n: Node) -> Tensor:
    """Pairs of numbers turned by the angles of their places: one first place for all, or a place each."""
    _refuse(n, {}, {"is_packed_batching": 0, "scale": 1.0})
    x, places, cos, sin = (n.tensor(i) for i in range(4))
    size = n.attribute("rotary_embedding_dim", 0)
    heads = n.attribute("num_heads", 0) or (1 if x.ndim == 4 or size else int(x.shape[-1]) // (2 * int(cos.shape[-1])))
    y = x if x.ndim == 4 else _heads(x, heads)
    if places.numel() == 1:
        places = Tensor.arange(y.shape[2], device=x.device) + places.reshape(1, 1).cast(dtypes.int32)
    places = places.reshape(-1, y.shape[2]).expand(y.shape[0], y.shape[2])
    y = _turned(y, cos, sin, places.cast(dtypes.int64), bool(n.attribute("interleaved", 0)))
    return y if x.ndim == 4 else _joined(y)


def grouped(n: Node) -> list[Any]:
    """Causal attention whose keys and values serve several heads each, over a cache that it prolongs."""
    _refuse(n, {9: "position_ids", 11: "head_sink", 12: "k_scale", 13: "v_scale", 14: "q_norm_weight",
                15: "k_norm_weight", 16: "query_seqlens"},
            {"smooth_softmax": 0, "qk_output": 0, "causal": 1, "sliding_window_cache": 0})
    heads, shared, q = n.required("num_heads"), n.required("kv_num_heads"), n.tensor(0)
    if n.has(1):
        k, v = n.tensor(1), n.tensor(2)
    else:
        each = int(q.shape[-1]) // (heads + 2 * shared)
        q, k, v = q.split([each * heads, each * shared, each * shared], dim=-1)
    q, k, v = _heads(q, heads), _heads(k, shared), _heads(v, shared)
    (N, _, rows, _), lengths = q.shape, n.tensor(5).reshape(-1, 1).cast(dtypes.int64)
    places = (lengths + 1 - rows).maximum(0) + Tensor.arange(rows, device=q.device).reshape(1, -1)
    places = places.expand(N, rows)
    if n.attribute("do_rotary", 0):
        cos, sin, interleaved = n.tensor(7), n.tensor(8), bool(n.attribute("rotary_interleaved", 0))
        q, k = _turned(q, cos, sin, places, interleaved), _turned(k, cos, sin, places, interleaved)
    k, v = _cached(n, k, 3, places), _cached(n, v, 4, places)
    column, row = Tensor.arange(k.shape[2], device=q.device).reshape(1, 1, 1, -1), places.reshape(N, 1, rows, 1)
    seen, window = column <= row, n.attribute("local_window_size", -1)
    seen = seen & (row - column < window) if window >= 0 else seen
    mask = seen.where(Tensor.zeros(1, dtype=q.dtype, device=q.device), -INF)
    wide = [t.repeat_interleave(heads // shared, dim=1) if heads > shared else t for t in (k, v)]
    return [_weighed(n, q, wide[0], wide[1], [mask, n.tensor(10, None)]), k, v]


def _cached(n: Node, new: Tensor, index: int, places: Tensor) -> Tensor:
    """The cache that input `index` is, as long as total_sequence_length at least, with new slices at places [N, L]."""
    past, total = n.tensor(index, None), int(n.scalar(6))
    if past is None or past.shape[2] == 0:
        if total != new.shape[2]:
            raise Invalid(f"expected total_sequence_length {new.shape[2]} without a past, got {total}")
        return new
    whole = past.pad((0, 0, 0, max(0, total - past.shape[2])))
    return whole.scatter(2, places.reshape(places.shape[0], 1, -1, 1).expand(*new.shape), new)


TABLE: dict[str, Operator] = {"Attention": attention, "MultiHeadAttention": multi_head, "RotaryEmbedding": rotary,
                              "GroupQueryAttention": grouped}
