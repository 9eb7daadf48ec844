"""Operators of the domain com.microsoft, which exporters and quantisers of onnxruntime write."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigrad import Tensor, dtypes
from minigrad.onnx.convolution import convolved
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.quantised import dynamic_quantize, dynamic_quantized, less
from minigrad.onnx.recurrent import ACTIVATIONS, DEFAULTS, recurrent
from minigrad.onnx.refusal import refuse


def fused_matmul(n: Node) -> Tensor:
    """alpha * A @ B, with the last two axes of A and B exchanged on request."""
    if n.attribute("transBatchA", 0) or n.attribute("transBatchB", 0):
        raise refuse("attribute transBatchA or transBatchB", "transA and transB")
    A, B = n.tensor(0), n.tensor(1)
    A = A.transpose(-1, -2) if n.attribute("transA", 0) else A
    B = B.transpose(-1, -2) if n.attribute("transB", 0) else B
    return (A @ B) * n.attribute("alpha", 1.0)


def fused_convolution(n: Node) -> Tensor:
    """The convolution plus input 3, and then an activation."""
    y = convolved(n, n.tensor(0), n.tensor(1), n.tensor(2, None))
    y = y + n.tensor(3) if n.has(3) else y
    name, given = n.attribute("activation", ""), n.attribute("activation_params", [])
    if name == "Clip":
        return y.clip(*given)
    if name and name not in ACTIVATIONS:
        raise refuse(f"activation {name!r}", "Clip, " + ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name](y, *[*given, *DEFAULTS.get(name, (0.0, 0.0))[len(given):]]) if name else y


def skip_norm(n: Node) -> Any:
    """The normalised sum of two inputs (and a bias), and the sum as output 3."""
    x = n.tensor(0) + n.tensor(1)
    simple, eps = n.op.startswith("SkipSimplified"), n.attribute("epsilon", 1e-5 if "Simplified" in n.op else 1e-12)
    bias = n.tensor(3 if simple else 4, None)
    x = x if bias is None else x + bias
    if simple:
        y = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * n.tensor(2)
    else:
        centred = x - x.mean(-1, keepdim=True)
        y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * n.tensor(2)
        y = y + n.tensor(3) if n.has(3) else y
    return [y, None, None, x]


def simple_norm(n: Node) -> Tensor:
    """x over the root of the mean of its squares, scaled; onnxruntime has it in the standard's domain."""
    x, axis = n.tensor(0), n.attribute("axis", -1)
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x if x.dtype is dtypes.float64 else x.float()
    return (wide * (wide.square().mean(axes, keepdim=True) + n.attribute("epsilon", 1e-5)).rsqrt()).cast(
        x.dtype) * n.tensor(1)


def gelu_of_sum(n: Node) -> Tensor:
    """The gelu of x plus a bias; FastGelu takes the tangent."""
    x = n.tensor(0) + n.tensor(1) if n.has(1) else n.tensor(0)
    return x.gelu("tanh" if n.op == "FastGelu" else "none")


def dynamic_matmul(n: Node) -> Tensor:
    """The product of A, quantised over its own range, and the quantised B, in float32."""
    a, scale, zero = dynamic_quantize(n)
    total = less(a, zero) @ less(n.tensor(1), n.tensor(3, None), -1)
    y = total.float() * (scale * n.tensor(2))
    return y + n.tensor(4) if n.has(4) else y


def integer_to_float(n: Node) -> Tensor:
    """The product of two quantised matrices, in float32."""
    total = less(n.tensor(0), n.tensor(4, None)) @ less(n.tensor(1), n.tensor(5, None), -1)
    y = total.float() * (n.tensor(2) * n.tensor(3))
    return y + n.tensor(6) if n.has(6) else y


@dataclass(frozen=True)
class Quantised:
    """Weights [M, K] of integers: their numbers in float32 are (values - zero) * scale, with `zero` and `scale` for all
    or for each of the M rows."""

    values: Tensor
    zero: Tensor | None
    scale: Tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        """(M, K)."""
        return tuple(self.values.shape)


def quantised_product(x: Tensor, w: Quantised) -> Tensor:
    """x W^T, with x quantised over its own range. The products are of integers in float32: their sums, below 2^24, are
    exact."""
    whole, scale, zero = dynamic_quantized(x)
    whole = whole - zero
    total = whole @ w.values.float().T
    if w.zero is not None:
        total = total - w.zero.float() * whole.sum(-1, keepdim=True)
    return total * (scale * w.scale)


def quantised_lstm(n: Node) -> Any:
    """The LSTM whose weights [directions, inputs, 4 * H] are quantised, as inputs and states are at each product."""
    def weights(index: int, scale: int) -> list[Quantised]:
        values = n.tensor(index).transpose(1, 2).contiguous()  # constants: once, not at each step
        factors, zeros = n.tensor(scale), n.tensor(scale + 1, None)
        return [Quantised(values[d], None if zeros is None else zeros[d], factors[d]) for d in range(values.shape[0])]
    return recurrent(n, "LSTM", weights(1, 8), weights(2, 10), quantised_product)


TABLE: dict[str, Operator] = {
    "FusedMatMul": fused_matmul, "FusedConv": fused_convolution, "BiasGelu": gelu_of_sum, "FastGelu": gelu_of_sum,
    "Gelu": gelu_of_sum, "QuickGelu": lambda n: n.tensor(0) * (n.tensor(0) * n.attribute("alpha", 1.702)).sigmoid(),
    "SkipLayerNormalization": skip_norm, "SkipSimplifiedLayerNormalization": skip_norm,
    "TransposeMatMul": fused_matmul, "DynamicQuantizeMatMul": dynamic_matmul, "MatMulIntegerToFloat": integer_to_float,
    "DynamicQuantizeLSTM": quantised_lstm,
}
STANDARD: dict[str, Operator] = {"SimplifiedLayerNormalization": simple_norm}
