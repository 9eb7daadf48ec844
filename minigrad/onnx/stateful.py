"""Attention with functions of its own, linear attention and convolutions that carry a state from call to call."""
from __future__ import annotations

from typing import Any

import minigrad.nn.functional as F
from minigrad import Tensor, dtypes, scan
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid
from minigrad.onnx.values import element_of

RULES = ("linear", "gated", "delta", "gated_delta")


def _packed(x: Tensor, heads: int) -> Tensor:
    """[T, B, heads, D] of [B, T, heads * D], in float32 at least."""
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise Invalid(f"expected [batch, length, {heads} heads * size], got {list(x.shape)}")
    wide = x if x.dtype is dtypes.float64 else x.float()
    return wide.reshape(x.shape[0], x.shape[1], heads, -1).permute(1, 0, 2, 3)


def linear_attention(n: Node) -> list[Tensor]:
    """The output [B, T, heads * D] and the last state [B, heads, keys, values], by one of four rules of update."""
    rule, heads, shared = n.choice("update_rule", "gated_delta", RULES), n.required("q_num_heads"), n.required(
        "kv_num_heads")
    if shared < 1 or heads % shared:
        raise Invalid(f"expected q_num_heads as a multiple of kv_num_heads, got {heads} and {shared}")
    source = n.tensor(0)
    q, k, v = _packed(source, heads), _packed(n.tensor(1), shared), _packed(n.tensor(2), shared)
    past: Any = n.tensor(3, None)
    T, B, size = (int(q.shape[i]) for i in (0, 1, 3))
    state = Tensor.zeros(B, shared, size, v.shape[-1], dtype=q.dtype, device=q.device)
    state = state if past is None else past.cast(q.dtype)
    xs: dict[str, Tensor] = {"k": k, "v": v, "q": q.reshape(T, B, shared, heads // shared, size)}
    if rule.startswith("gated"):
        xs["decay"] = _packed(n.tensor(4), shared).exp().expand(*k.shape)
    if rule.endswith("delta"):
        beta = n.tensor(5)
        xs["beta"] = _packed(beta, beta.shape[-1]).expand(T, B, shared, 1)

    def step(state: Tensor, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        state = state * x["decay"].unsqueeze(-1) if "decay" in x else state
        value = x["v"]
        if "beta" in x:
            value = (value - (x["k"].unsqueeze(-2) @ state).squeeze(-2)) * x["beta"]
        state = state + x["k"].unsqueeze(-1) * value.unsqueeze(-2)
        return state, x["q"] @ state
    state, ys = scan(step, state, xs)
    y = ys * (n.attribute("scale", 0.0) or size ** -0.5)
    return [y.permute(1, 0, 2, 3, 4).reshape(B, T, -1).cast(source.dtype), state.cast(source.dtype)]


def causal_convolution(n: Node) -> list[Tensor]:
    """The convolution of each channel with what came before, and the last numbers that the next call needs."""
    x, weight, bias, past = n.tensor(0), n.tensor(1), n.tensor(2, None), n.tensor(3, None)
    activation = n.choice("activation", "none", ("none", "silu", "swish"))
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[0] != x.shape[1] or weight.shape[1] != 1:
        raise Invalid(f"expected x [N, C, L] and a weight [C, 1, k], got {list(x.shape)} and {list(weight.shape)}")
    before = weight.shape[2] - 1
    whole = x.pad((before, 0)) if past is None else past.cast(x.dtype).cat(x, dim=2)
    y = F.conv1d(whole, weight, bias, groups=x.shape[1])
    y = y if activation == "none" else y.silu()
    return [y, whole[:, :, whole.shape[2] - before:]]


def flex_attention(n: Node) -> Tensor:
    """softmax(Q @ K^T * scale) @ V, where graphs may change the scores and the weights."""
    q, k, v = (n.tensor(i) for i in range(3))
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape[1] % k.shape[1]:
        raise Invalid(f"expected Q, K and V of 4 axes whose heads share, got {list(q.shape)}, {list(k.shape)} and "
                      f"{list(v.shape)}")
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    precision = n.attribute("softmax_precision")
    wide = n.dtype(precision or element_of(q if q.dtype is dtypes.float64 else q.float()))
    root = (n.attribute("scale") or q.shape[-1] ** -0.5) ** 0.5
    scores = ((q * root) @ (k * root).transpose(-1, -2)).cast(wide)
    weights = _modified(n, "prob_mod", _modified(n, "score_mod", scores).softmax(-1))
    return weights.cast(v.dtype) @ v


def _modified(n: Node, name: str, x: Tensor) -> Tensor:
    """x after the graph of an attribute."""
    graph = n.attribute(name)
    if graph is None:
        return x
    if len(graph.input) != 1 or len(graph.output) != 1:
        raise Invalid(f"expected {name} of one input and one output")
    y: Any = n.run(graph, {graph.input[0].name: x})[0]
    if not isinstance(y, Tensor) or tuple(y.shape) != tuple(x.shape):
        kind = f"{element_of(y)} {list(y.shape)}" if hasattr(y, "shape") else type(y).__name__
        raise Invalid(f"expected {name} to give {list(x.shape)}, got {kind}")
    return y


TABLE: dict[str, Operator] = {"LinearAttention": linear_attention, "CausalConvWithState": causal_convolution}
PREVIEW: dict[str, Operator] = {"FlexAttention": flex_attention}
