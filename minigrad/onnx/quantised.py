"""Operators over integers with scales."""
from __future__ import annotations

from typing import Any

from onnx import TensorProto

from minigrad import Tensor, dtypes
from minigrad.onnx.convolution import channels, convolved
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.values import DTYPES, ELEMENTS, INTEGERS, Narrow, cast, element_of

RANGES = {TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127), TensorProto.UINT16: (0, 65535),
          TensorProto.INT16: (-32768, 32767), **INTEGERS}


def plain(value: Tensor | Narrow) -> Tensor:
    """The Tensor of numbers."""
    return value.tensor if isinstance(value, Narrow) else value


def spread(parameter: Any, x: Any, axis: int, block: int) -> Tensor:
    """A scale or zero point as it broadcasts to x: one for all, one per place of an axis, or one per block of it."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis %= x.ndim
    if block:
        return parameter.repeat_interleave(block, dim=axis).narrow(axis, 0, x.shape[axis])
    return parameter.reshape(*[-1 if i == axis else 1 for i in range(x.ndim)])


def rounded(x: Tensor, element: int, zero: Tensor | None = None, saturate: bool = True) -> Any:
    """x to the nearest number of a quantised type, after the zero point was added."""
    if element not in RANGES:
        return cast(x if zero is None else x + zero, element, saturate)
    low, high = RANGES[element]
    y = x.round().float()  # whole numbers beyond 2**24, which float32 rounds, are beyond the range anyway
    y = (y if zero is None else y + zero.float()).clip(low, high)
    return Narrow(y.cast(dtypes.int8), element) if element in INTEGERS else y.cast(DTYPES[element])


def quantize(n: Node) -> Any:
    """round(x / scale) + zero point, within the type's range."""
    x, scale = n.tensor(0), plain(n.wide(1))
    axis, block = n.attribute("axis", 1) if x.ndim > 1 else 0, n.attribute("block_size", 0)
    element = n.attribute("output_dtype", 0) or (element_of(n.values[2]) if n.has(2) else TensorProto.UINT8)
    zero = spread(plain(n.wide(2)), x, axis, block) if n.has(2) else None
    precision = n.attribute("precision", 0)
    scale = spread(scale, x, axis, block)
    dtype = n.dtype(precision) if precision else dtypes.float32
    return rounded(x.cast(dtype) / scale.cast(dtype), element, zero, bool(n.attribute("saturate", 1)))


def dequantize(n: Node) -> Tensor:
    """(x - zero point) * scale."""
    x, scale = plain(n.wide(0)), plain(n.wide(1))
    axis, block = n.attribute("axis", 1) if x.ndim > 1 else 0, n.attribute("block_size", 0)
    dtype = DTYPES[n.attribute("output_dtype", 0) or ELEMENTS[scale.dtype]]
    y = x if x.dtype.is_float else x.cast(dtypes.int32)
    if n.has(2):
        y = y - spread(plain(n.wide(2)), x, axis, block).cast(y.dtype)
    return (y.cast(dtypes.float32) * spread(scale, x, axis, block).cast(dtypes.float32)).cast(dtype)


def dynamic_quantize(n: Node) -> list[Tensor]:
    """x in uint8 over its own range, the scale and the zero point."""
    y, scale, zero = dynamic_quantized(n.tensor(0))
    return [y.cast(dtypes.uint8).contiguous(), scale, zero.cast(dtypes.uint8).contiguous()]


def dynamic_quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x as whole numbers from 0 to 255 over its own range, the scale and the zero point, all in float32."""
    low, high = x.amin().minimum(0), x.amax().maximum(0)
    scale = (high - low) / 255
    zero = (-low / (scale == 0).where(1, scale)).round().clip(0, 255)
    return ((x / (scale == 0).where(1, scale)).round() + zero).clip(0, 255), scale, zero


def less(x: Tensor, zero: Any, axis: int = -2) -> Tensor:
    """x - zero in int32; zero points of rows stand along `axis`."""
    wide = x.cast(dtypes.int32)
    if zero is None:
        return wide
    zero = zero.cast(dtypes.int32)
    if zero.ndim == 1 and zero.numel() > 1:
        zero = zero.reshape(*[-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


def matmul_integer(n: Node) -> Tensor:
    """The product of integers less their zero points, in int32."""
    return less(n.tensor(0), n.tensor(2, None)) @ less(n.tensor(1), n.tensor(3, None), -1)


def scaled(total: Tensor, factor: Tensor, n: Node, zero: int) -> Any:
    """Totals in int32 times a factor, in the quantised type of input `zero`, which is its zero point."""
    return rounded(total.cast(dtypes.float32) * factor, element_of(n.values[zero]), n.tensor(zero).reshape(()))


def qlinear_matmul(n: Node) -> Any:
    """The product of quantised matrices, quantised."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale = (n.tensor(i) for i in range(7))
    factor: Any = a_scale.float() * b_scale.float() / scale.float()
    if a_scale.numel() > 1:
        factor = factor.reshape(-1, 1)
    return scaled(less(a, a_zero) @ less(b, b_zero, -1), factor, n, 7)


def conv_integer(n: Node) -> Tensor:
    """The convolution of integers less their zero points, in int32."""
    x, weight = less(n.tensor(0), n.tensor(2, None)), less(n.tensor(1), n.tensor(3, None), 0)
    return convolved(n, x, weight)


def qlinear_conv(n: Node) -> Any:
    """The convolution of quantised numbers, quantised."""
    x, x_scale, x_zero, weight, w_scale, w_zero, scale = (n.tensor(i) for i in range(7))
    total = convolved(n, less(x, x_zero), less(weight, w_zero, 0))
    if n.has(8):
        total = total + channels(total, n.tensor(8))
    factor = x_scale.float() * w_scale.float() / scale.float()
    return scaled(total, channels(total, factor) if factor.numel() > 1 else factor.reshape(()), n, 7)


TABLE: dict[str, Operator] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulInteger": matmul_integer, "QLinearMatMul": qlinear_matmul, "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}
