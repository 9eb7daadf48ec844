"""Operators over integers with scales as onnxruntime's quantiser writes them: the domain com.microsoft."""
from __future__ import annotations

from typing import Any

from minigrad import Tensor, dtypes
from minigrad.onnx.convolution import average_pool, max_pool
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.quantised import less, rounded
from minigrad.onnx.refusal import Invalid, refuse
from minigrad.onnx.values import element_of


def gemm(n: Node) -> Any:
    """alpha * A @ B + C over quantised matrices, quantised where input 7 is a scale."""
    a, b = less(n.tensor(0), n.tensor(2, None)), n.tensor(3)
    b_zero, b_scale = n.tensor(5, None), n.tensor(4)
    a = a.T if n.attribute("transA", 0) else a
    b = b.T if n.attribute("transB", 0) else b
    total = a @ less(b, b_zero, -1)
    total = total + n.tensor(6) if n.has(6) else total
    y = total.float() * (n.tensor(1) * b_scale * n.attribute("alpha", 1.0))
    return _quantised(n, y, 7, element_of(n.values[0])) if n.has(7) else y


def _plain(n: Node, index: int) -> Tensor:
    """Input `index` in float32; its scale and zero point are the next ones."""
    return less(n.tensor(index), n.tensor(index + 2, None)).float() * n.tensor(index + 1).reshape(())


def _quantised(n: Node, y: Tensor, scale: int, element: int) -> Any:
    """y in the type `element`; input `scale` is the scale, the next one the zero point."""
    zero = n.tensor(scale + 1, None)
    return rounded(y / n.tensor(scale).reshape(()), element, None if zero is None else zero.reshape(()))


def binary(function: Any) -> Operator:
    """The operator that is `function` of two quantised inputs, quantised."""
    return lambda n: _quantised(n, function(_plain(n, 0), _plain(n, 3)), 6, element_of(n.values[0]))


def unary(function: Any) -> Operator:
    """The operator that is `function(n, x)` of a quantised input, quantised."""
    return lambda n: _quantised(n, function(n, _plain(n, 0)), 3, element_of(n.values[0]))


def concat(n: Node) -> Any:
    """Quantised inputs after one another, in one scale."""
    parts = [_plain(n, i) for i in range(2, len(n.values), 3)]
    return _quantised(n, parts[0].cat(*parts[1:], dim=n.required("axis")), 0, element_of(n.values[2]))


def _pooled(n: Node, x: Tensor, function: Any) -> Any:
    """A pool over x, whose channels may be the last axis."""
    last = n.attribute("channels_last", 0) or n.op.startswith("Nhwc")
    order = [0, x.ndim - 1, *range(1, x.ndim - 1)]
    moved, values = x.permute(*order) if last else x, n.values
    n.values = [moved]
    y = function(n)
    n.values = values
    return y.permute(0, *range(2, x.ndim), 1) if last else y


def global_average(n: Node, x: Tensor) -> Tensor:
    """The mean of each channel."""
    axes = range(1, x.ndim - 1) if n.attribute("channels_last", 0) else range(2, x.ndim)
    return x.mean(tuple(axes), keepdim=True)


def narrow_matmul(n: Node) -> Tensor:
    """A @ W^T, where W [N, K] are integers of 2, 4 or 8 bits in blocks of K that have a scale and a zero point."""
    bits, block, rows, K = (n.required(name) for name in ("bits", "block_size", "N", "K"))
    if bits not in (2, 4, 8) or n.has(4):
        raise refuse(f"{bits} bits, or input g_idx", "2, 4 and 8 bits without")
    blocks = -(-K // block)
    x, scales = n.tensor(0), n.tensor(2)
    packed = n.tensor(1)
    if packed.numel() * 8 != rows * blocks * block * bits or scales.numel() != rows * blocks:
        raise Invalid(f"expected B of {rows} x {blocks * block} numbers of {bits} bits and {rows * blocks} scales, got "
                      f"{list(packed.shape)} and {list(scales.shape)}")
    weight = _unpacked(packed.reshape(rows, -1), bits).reshape(rows, blocks, block).float()
    zeros: Any = float(1 << (bits - 1))
    if n.has(3):
        given = n.tensor(3).reshape(rows, -1)
        zeros = given if given.dtype.is_float else _unpacked(given, bits)[:, :blocks].float()
        zeros = zeros.reshape(rows, blocks, 1)
    weight = ((weight - zeros) * scales.reshape(rows, blocks, 1).float()).reshape(rows, -1)[:, :K]
    y = x @ weight.cast(x.dtype).T
    return y + n.tensor(5) if n.has(5) else y


def _unpacked(x: Tensor, bits: int) -> Tensor:
    """The numbers of `bits` bits in bytes [N, K], lowest first: [N, K * 8 / bits]."""
    if bits == 8:
        return x
    parts = [(x >> shift).bitwise_and((1 << bits) - 1) for shift in range(0, 8, bits)]
    return parts[0].stack(*parts[1:], dim=-1).reshape(x.shape[0], -1).cast(dtypes.uint8)


TABLE: dict[str, Operator] = {
    "QGemm": gemm, "QLinearAdd": binary(lambda x, y: x + y), "QLinearMul": binary(lambda x, y: x * y),
    "QLinearSigmoid": unary(lambda n, x: x.sigmoid()), "QLinearConcat": concat,
    "QLinearLeakyRelu": unary(lambda n, x: (x < 0).where(x * n.attribute("alpha", 0.01), x)),
    "QLinearGlobalAveragePool": unary(global_average),
    "QLinearAveragePool": unary(lambda n, x: _pooled(n, x, average_pool)),
    "NhwcMaxPool": lambda n: _pooled(n, n.tensor(0), max_pool), "MatMulNBits": narrow_matmul,
}
