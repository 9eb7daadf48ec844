"""Operators that work number by number."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor, dtypes
from minigrad.torch_compile.node import Node, Operator, Unsupported


def unary(function: Callable[[Tensor], Tensor]) -> Operator:
    """The operator that is `function` of one operand."""
    return lambda n, x: function(x)


def floating(function: Callable[[Tensor], Tensor]) -> Operator:
    """The operator that is `function` of one operand as a float."""
    return lambda n, x: function(x if x.dtype.is_float else n.typed(x))


def arithmetic(function: Callable[[Any, Any], Tensor]) -> Operator:
    """The operator that is `function` of two operands in the type of the result."""
    return lambda n, x, y: function(n.tensor(x), n.typed(y))


def together(x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands, one of no axes in the type of the other if both are floats, or both integers, as ATen compares."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and (x.ndim == 0) != (y.ndim == 0) and \
            x.dtype.is_float == y.dtype.is_float:
        return (x.cast(y.dtype), y) if x.ndim == 0 else (x, y.cast(x.dtype))
    return x, y


def comparison(function: Callable[[Any, Any], Tensor]) -> Operator:
    """The operator that compares two operands by `function`."""
    return lambda n, x, y: function(*together(x, y))


def logical(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    """The operator that is `function` of two truth values."""
    return lambda n, x, y: function(x != 0, y != 0)


def add(n: Node, x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """x + alpha * y; of booleans, or."""
    x, y = n.tensor(x), n.typed(y)
    if n.dtype is dtypes.bool_:
        return x | n.tensor(y)
    return x + y if alpha == 1 else x + y * alpha


def subtract(n: Node, x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """x - alpha * y."""
    x, y = n.tensor(x), n.typed(y)
    return x - y if alpha == 1 else x - y * alpha


def multiply(n: Node, x: Any, y: Any) -> Tensor:
    """x * y; of booleans, and."""
    return n.tensor(x) & n.tensor(y) if n.dtype is dtypes.bool_ else n.tensor(x) * n.typed(y)


def divide(n: Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / y, cut or rounded down on request."""
    return n.tensor(x).div(n.typed(y), rounding_mode=rounding_mode)


def power(n: Node, x: Any, y: Any) -> Tensor:
    """x ** y."""
    return n.tensor(x).pow(n.typed(y))


def clamp(n: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """Numbers between `low` and `high`; NaN stays."""
    return n.tensor(x).clip(n.typed(low), n.typed(high))


def where(n: Node, condition: Tensor, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y."""
    return condition.cast(dtypes.bool_).where(n.tensor(x), n.typed(y))


def gelu(n: Node, x: Tensor, *, approximate: str = "none") -> Tensor:
    """The exact one, or its approximation by tanh."""
    return x.gelu(approximate)


def elu(n: Node, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """scale * x, or scale * alpha * (exp(input_scale * x) - 1) where x is negative."""
    return (x > 0).where(x * scale, (x.minimum(0) * input_scale).expm1() * (alpha * scale))


def gradient_of(operator: Operator) -> Operator:
    """The operator whose arguments are a gradient and those of `operator`, and which gives the gradient of the first
    of these."""
    return lambda n, gradient, x, *args, **kwargs: operator(n, x, *args, **kwargs).gradient(x, gradient=gradient)[0]


def threshold_backward(n: Node, gradient: Tensor, x: Tensor, threshold: float) -> Tensor:
    """The gradient where x is above the threshold: of relu, where it is 0."""
    return (x <= threshold).where(0.0, gradient)


def hardtanh_backward(n: Node, gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """The gradient between `low` and `high`."""
    return ((x <= low) | (x >= high)).where(0.0, gradient)


def to_copy(n: Node, x: Tensor, **_: Any) -> Tensor:
    """x in the type of the result. All is on one device, and layouts are the runner's."""
    return x


def bit_view(n: Node, x: Tensor, dtype: Any) -> Tensor:
    """The same bits in another type."""
    if dtypes.bool_ in (x.dtype, n.dtype):
        raise Unsupported("bits in bools")
    return x.bitcast(n.dtype)


def rounded(n: Node, x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integers, or numbers of so many decimals; a half goes to even."""
    return x.round(decimals=decimals)


def masked_fill(n: Node, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A number where the mask holds."""
    return mask.where(n.typed(value), x)


TABLE: dict[str, Operator] = {
    **{name: unary(getattr(Tensor, name)) for name in (
        "abs neg ceil floor trunc relu isnan isinf bitwise_not hardswish hardsigmoid").split()},
    **{name: floating(getattr(Tensor, name)) for name in (
        "sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh "
        "acosh atanh erf erfc erfinv sigmoid lgamma digamma silu mish").split()},
    "round": rounded,
    "sign": unary(lambda x: (x != x).where(0, x.sign())), "logical_not": unary(lambda x: x == 0),
    "square": unary(lambda x: x * x),
    "add": add, "sub": subtract, "mul": multiply, "div": divide, "pow": power, "clamp": clamp, "where": where,
    "clamp_min": lambda n, x, low: clamp(n, x, low), "clamp_max": lambda n, x, high: clamp(n, x, None, high),
    "rsub": lambda n, x, y, alpha=1: subtract(n, y, x, alpha=alpha),
    "remainder": arithmetic(lambda x, y: x.remainder(y)), "fmod": arithmetic(lambda x, y: x.fmod(y)),
    "maximum": arithmetic(Tensor.maximum), "minimum": arithmetic(Tensor.minimum),
    "fmax": arithmetic(lambda x, y: x.fmax(y)), "fmin": arithmetic(lambda x, y: x.fmin(y)),
    "atan2": arithmetic(lambda x, y: x.atan2(y)), "hypot": arithmetic(lambda x, y: x.hypot(y)),
    "copysign": arithmetic(lambda x, y: x.copysign(y)),
    "bitwise_and": arithmetic(lambda x, y: x & y), "bitwise_or": arithmetic(lambda x, y: x | y),
    "bitwise_xor": arithmetic(lambda x, y: x ^ y),
    "bitwise_left_shift": arithmetic(lambda x, y: x.lshift(y)),
    "bitwise_right_shift": arithmetic(lambda x, y: x.rshift(y)),
    "eq": comparison(lambda x, y: x == y), "ne": comparison(lambda x, y: x != y),
    "lt": comparison(lambda x, y: x < y), "le": comparison(lambda x, y: x <= y),
    "gt": comparison(lambda x, y: x > y), "ge": comparison(lambda x, y: x >= y),
    "logical_and": logical(lambda x, y: x & y), "logical_or": logical(lambda x, y: x | y),
    "logical_xor": logical(lambda x, y: x ^ y),
    "gelu": gelu, "gelu_backward": gradient_of(gelu), "elu": elu,
    "silu_backward": gradient_of(lambda n, x: x.silu()), "mish_backward": gradient_of(lambda n, x: x.mish()),
    "hardswish_backward": gradient_of(lambda n, x: x.hardswish()),
    "leaky_relu": lambda n, x, slope=0.01: (x > 0).where(x, x * slope),
    "leaky_relu_backward": lambda n, g, x, slope, is_result: (x > 0).where(g, g * slope),
    "hardtanh": lambda n, x, low=-1.0, high=1.0: x.clip(low, high), "hardtanh_backward": hardtanh_backward,
    "threshold_backward": threshold_backward,
    "tanh_backward": lambda n, g, y: g * (1 - y * y), "sigmoid_backward": lambda n, g, y: g * (y * (1 - y)),
    "masked_fill": masked_fill, "_to_copy": to_copy, "view.dtype": bit_view, "clone": to_copy,
    "alias": to_copy, "detach": to_copy, "lift_fresh_copy": to_copy, "copy": lambda n, x, y, *_: y.expand(*x.shape),
    "prims.convert_element_type": lambda n, x, dtype: x,
    "prims.fma": lambda n, x, y, z: n.tensor(x) * n.typed(y) + n.typed(z),
}
