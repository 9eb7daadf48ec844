"""Operators that work number by number, and those that make types from types."""
from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid
from minigrad.onnx.values import Narrow, cast, element_of


def unary(function: Any) -> Operator:
    """The operator that is `function` of its first input."""
    return lambda n: function(n.tensor(0))


def floating(function: Any) -> Operator:
    """The operator that is `function` of its first input in its own type, computed in float32 at least."""
    def run(n: Node) -> Tensor:
        x = n.tensor(0)
        return function(x.float()).cast(x.dtype) if x.dtype in (dtypes.float16, dtypes.bfloat16) else function(x)
    return run


def aligned(n: Node, x: Tensor, y: Tensor) -> Tensor:
    """`y` as it broadcasts to `x` in opsets below 7, where attribute axis says where its axes stand."""
    axis = n.attribute("axis")
    if n.opset >= 7 or axis is None or not n.attribute("broadcast", 0):
        return y
    return y.reshape(*y.shape, *[1] * (x.ndim - axis % x.ndim - y.ndim))


def binary(function: Any) -> Operator:
    """The operator that is `function` of two inputs, which broadcast."""
    def run(n: Node) -> Tensor:
        x, y = n.tensor(0), n.tensor(1)
        return function(x, aligned(n, x, y))
    return run


def variadic(function: Any) -> Operator:
    """The operator that folds any number of inputs by `function`."""
    return lambda n: reduce(function, n.tensors())


def divide(x: Tensor, y: Tensor) -> Tensor:
    """Division, which cuts integers towards zero."""
    return x / y if x.dtype.is_float else x.div(y, rounding_mode="trunc").cast(x.dtype)


def power(n: Node) -> Tensor:
    """`x**y` in the type of x; an exponent that is one known number, such as 2, multiplies."""
    x, y = n.tensor(0), n.tensor(1)
    known = n.values[1]
    if isinstance(known, np.ndarray) and known.size == 1 and x.dtype.is_float and known.ndim <= x.ndim:
        return x ** known.item()
    if not x.dtype.is_float and y.dtype.is_float:
        x_float = x.cast(dtypes.float64 if y.dtype is dtypes.float64 else dtypes.float32)
        return (x_float ** y).cast(x.dtype)
    return (x ** y.cast(x.dtype)).cast(x.dtype)


def modulo(n: Node) -> Tensor:
    """The remainder with the sign of the divisor, or of the dividend with fmod."""
    x, y = n.tensor(0), n.tensor(1)
    return x.fmod(y) if n.attribute("fmod", 0) else x.remainder(y)


def clip(n: Node) -> Tensor:
    """Numbers between a minimum and a maximum, each of which may be left out."""
    x = n.tensor(0)
    if n.opset < 11:
        return x.clip(n.attribute("min"), n.attribute("max"))
    low, high = n.tensor(1, None), n.tensor(2, None)
    x = x if low is None else x.maximum(low.reshape(()).cast(x.dtype))
    return x if high is None else x.minimum(high.reshape(()).cast(x.dtype))


def shift(n: Node) -> Tensor:
    """Bits moved left or right; those that a shift by the type's width or more moves are gone."""
    x, y = n.tensor(0), n.tensor(1)
    left = n.choice("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    width = x.dtype.bits
    inside = y.minimum(width - 1)
    if not left and not x.dtype.name.startswith("u"):
        return x >> inside  # the sign goes on for ever
    return (y < width).where(x << inside if left else x >> inside, x.zeros_like())


def flat_rows(n: Node, function: Any) -> Tensor:
    """`function(x, axis)`; below opset 13 over all axes from `axis` on together."""
    x = n.tensor(0)
    if n.opset >= 13:
        return function(x, n.attribute("axis", -1))
    axis = n.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis]))
    return function(x.reshape(rows, -1 if x.numel() else 0), -1).reshape(*x.shape)


def hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first largest number of an axis, else 0."""
    index = x.argmax(axis, keepdim=True)
    shape: list[Any] = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return (index == Tensor.arange(x.shape[axis], device=x.device).reshape(*shape)).cast(x.dtype)


def prelu(n: Node) -> Tensor:
    """x where it is positive, else slope * x. The slope broadcasts; below opset 7 it is one number per channel."""
    x, slope = n.tensor(0), n.tensor(1)
    if n.opset < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return (x < 0).where(x * slope, x)


def shrink(n: Node) -> Tensor:
    """x - bias above lambd, x + bias below -lambd, else 0."""
    x, bias, limit = n.tensor(0), n.attribute("bias", 0.0), n.attribute("lambd", 0.5)
    return (x < -limit).where(x + bias, (x > limit).where(x - bias, 0)).cast(x.dtype)


def is_infinite(n: Node) -> Tensor:
    """True for the infinities that the attributes ask for."""
    x = n.tensor(0)
    negative, positive = n.attribute("detect_negative", 1), n.attribute("detect_positive", 1)
    inf = float("inf")
    return ((x == -inf) if negative else x.zeros_like() != 0) | ((x == inf) if positive else x.zeros_like() != 0)


def celu(n: Node) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x, alpha = n.tensor(0), n.attribute("alpha", 1.0)
    return x.relu() + ((x.minimum(0) / alpha).exp() - 1) * alpha


def elu(n: Node) -> Tensor:
    """x, or alpha * (exp(x) - 1) where x is negative."""
    x = n.tensor(0)
    return (x < 0).where(n.attribute("alpha", 1.0) * (x.minimum(0).exp() - 1), x)


def selu(n: Node) -> Tensor:
    """gamma times the elu of x."""
    x = n.tensor(0)
    alpha, gamma = n.attribute("alpha", 1.67326319217681884765625), n.attribute("gamma", 1.05070102214813232421875)
    return gamma * (x <= 0).where(alpha * (x.minimum(0).exp() - 1), x)


def mean(n: Node) -> Tensor:
    """The mean of all inputs, number by number."""
    xs = n.tensors()
    return reduce(lambda a, b: a + b, xs) / len(xs)


def dropout(n: Node) -> Any:
    """Its input; with training_mode some numbers 0 and the others larger."""
    x = n.tensor(0)
    ratio = n.scalar(1, 0.5) if n.opset >= 12 else n.attribute("ratio", 0.5)
    if n.opset >= 12 and n.scalar(2, False) and ratio:
        kept = Tensor.rand(*x.shape, device=x.device) >= ratio
        return [kept.where(x / (1 - ratio), 0).cast(x.dtype), kept]
    every = x.ones_like() != 0
    return [x, every if n.opset >= 10 else every.cast(x.dtype)]


def to_type(n: Node) -> Tensor | Narrow:
    """Its input in another type."""
    if n.op == "CastLike":
        element = element_of(n.values[1])
    else:
        to = n.required("to")
        element = to if isinstance(to, int) else 0
    return cast(n.wide(0), element, bool(n.attribute("saturate", 1)), n.attribute("round_mode", "up"))


def bit_cast(n: Node) -> Tensor:
    """The same bits in another type of the same width."""
    x, dtype = n.tensor(0), n.dtype(n.required("to"))
    if x.dtype.bits != dtype.bits:
        raise Invalid(f"expected a type of {x.dtype.bits} bits, got {dtype.name}")
    if dtypes.bool_ in (x.dtype, dtype):
        return x.cast(dtype)
    return x.bitcast(dtype)


def where(n: Node) -> Tensor:
    """The second input where the first is true, else the third."""
    return n.tensor(0).where(n.tensor(1), n.tensor(2))


def hard_sigmoid(n: Node) -> Tensor:
    """clip(alpha * x + beta, 0, 1)."""
    return (n.tensor(0) * n.attribute("alpha", 0.2) + n.attribute("beta", 0.5)).clip(0, 1)


def leaky(n: Node) -> Tensor:
    """x, or alpha * x where x is negative."""
    x = n.tensor(0)
    return (x < 0).where(x * n.attribute("alpha", 0.01), x)


def swish(n: Node) -> Tensor:
    """x * sigmoid(alpha * x)."""
    x = n.tensor(0)
    return x * (x * n.attribute("alpha", 1.0)).sigmoid()


TABLE: dict[str, Operator] = {
    **{name: unary(getattr(Tensor, method)) for name, method in {
        "Abs": "abs", "Neg": "neg", "Ceil": "ceil", "Floor": "floor", "Round": "round", "Sign": "sign", "Relu": "relu",
        "Sqrt": "sqrt", "Reciprocal": "reciprocal", "IsNaN": "isnan", "BitwiseNot": "bitwise_not",
        "Softsign": "softsign"}.items()},
    **{name: floating(getattr(Tensor, method)) for name, method in {
        "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos",
        "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh",
        "Atanh": "atanh", "Erf": "erf", "Sigmoid": "sigmoid", "Softplus": "softplus", "Mish": "mish"}.items()},
    "Not": unary(lambda x: x == 0), "Identity": lambda n: (n.values[0],), "HardSwish": unary(Tensor.hardswish),
    "Add": binary(lambda x, y: x + y), "Sub": binary(lambda x, y: x - y), "Mul": binary(lambda x, y: x * y),
    "Div": binary(divide), "Pow": power, "Mod": modulo,
    "Less": binary(lambda x, y: x < y), "Greater": binary(lambda x, y: x > y),
    "LessOrEqual": binary(lambda x, y: x <= y), "GreaterOrEqual": binary(lambda x, y: x >= y),
    "And": binary(lambda x, y: x & y), "Or": binary(lambda x, y: x | y), "Xor": binary(lambda x, y: x ^ y),
    "BitwiseAnd": binary(lambda x, y: x & y), "BitwiseOr": binary(lambda x, y: x | y),
    "BitwiseXor": binary(lambda x, y: x ^ y), "BitShift": shift,
    "Max": variadic(lambda x, y: x.maximum(y)), "Min": variadic(lambda x, y: x.minimum(y)),
    "Sum": variadic(lambda x, y: x + y), "Mean": mean, "Clip": clip, "Where": where,
    "Elu": elu, "Celu": celu, "Selu": selu, "LeakyRelu": leaky, "PRelu": prelu, "Shrink": shrink, "Swish": swish,
    "HardSigmoid": hard_sigmoid,
    "ThresholdedRelu": lambda n: (n.tensor(0) > n.attribute("alpha", 1.0)).where(n.tensor(0), 0),
    "Gelu": lambda n: n.tensor(0).gelu(n.attribute("approximate", "none")),
    "Softmax": lambda n: flat_rows(n, lambda x, axis: x.softmax(axis)),
    "LogSoftmax": lambda n: flat_rows(n, lambda x, axis: x.log_softmax(axis)),
    "Hardmax": lambda n: flat_rows(n, hardmax),
    "IsInf": is_infinite, "Dropout": dropout, "Cast": to_type, "CastLike": to_type, "BitCast": bit_cast,
}
