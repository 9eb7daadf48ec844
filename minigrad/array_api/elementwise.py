"""Functions of elements: a table from a name to the kinds that it takes, a function of Tensors and one of pairs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.array_api import complexes as C
from minigrad.array_api.parts import as_parts, number, operands, real
from minigrad.tensor import Tensor

Function = Callable[..., Any]


def _unary(name: str, kinds: str, of_real: Function, of_complex: Function | None = None) -> Function:
    def function(x: Any, /) -> Any:
        checked = as_parts(name, x, kinds + ("c" if of_complex else ""))
        if checked.im is None:
            return type(x)(of_real(checked.re))
        result = of_complex(checked.pair) if of_complex else None
        return type(x)(*result) if isinstance(result, tuple) else type(x)(result)

    return _named(function, name, f"`{name}` of each element.")


def _binary(name: str, kinds: str, of_real: Function, of_complex: Function | None = None) -> Function:
    def function(x1: Any, x2: Any, /) -> Any:
        a, b = operands(name, kinds + ("c" if of_complex else ""), x1, x2)
        if a.im is None:
            return type(a)(of_real(a.re, b.re))
        result = of_complex(a.pair, b.pair) if of_complex else None
        return type(a)(*result) if isinstance(result, tuple) else type(a)(result)

    return _named(function, name, f"`{name}` of each two elements of arrays that broadcast, or of one and a number.")


def _named(function: Function, name: str, words: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = words
    return function


def _same(x: Tensor) -> Tensor:
    return x.detach() if not x.requires_grad else x + 0


def _kept(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`function` of floats; integers as they are."""
    return lambda x: function(x) if x.dtype.is_float else _same(x)


def _both(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda x: (function(x[0]), function(x[1]))


def _nan(x: Tensor) -> Tensor:
    return x.isnan() if x.dtype.is_float else _always(x, False)


def _inf(x: Tensor) -> Tensor:
    return x.isinf() if x.dtype.is_float else _always(x, False)


def _finite(x: Tensor) -> Tensor:
    return x.isfinite() if x.dtype.is_float else _always(x, True)


def _always(x: Tensor, value: bool) -> Tensor:
    return Tensor.full(x.shape, value, dtype="bool", device=x.device)


def _sign(x: Tensor) -> Tensor:
    if x.dtype.kind == "u":
        return (x != 0).cast(x.dtype)
    return x.abs().where(condition=(x != x) | (x == 0), other=x.sign()) if x.dtype.is_float else x.sign()


# Functions of one element

FLOATS = {"exp": C.exp, "expm1": C.expm1, "log": C.log, "log1p": C.log1p, "log2": C.log2, "log10": C.log10,
          "sqrt": C.sqrt, "reciprocal": C.reciprocal, "sin": C.sin, "cos": C.cos, "tan": C.tan, "asin": C.asin,
          "acos": C.acos, "atan": C.atan, "sinh": C.sinh, "cosh": C.cosh, "tanh": C.tanh, "asinh": C.asinh,
          "acosh": C.acosh, "atanh": C.atanh}
exp, expm1, log, log1p, log2, log10, sqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, \
    acosh, atanh = [_unary(name, "f", getattr(Tensor, name), pairs) for name, pairs in FLOATS.items()]

ceil, floor, trunc = [_unary(name, "iuf", _kept(getattr(Tensor, name))) for name in ("ceil", "floor", "trunc")]
round = _unary("round", "iuf", _kept(Tensor.round), _both(Tensor.round))
abs = _unary("abs", "iuf", lambda x: _same(x) if x.dtype.kind == "u" else x.abs(), lambda x: x[0].hypot(x[1]))
negative = _unary("negative", "iuf", lambda x: -x, lambda x: (-x[0], -x[1]))
positive = _unary("positive", "iuf", _same, _both(_same))
square = _unary("square", "iuf", lambda x: x * x, C.square)
sign = _unary("sign", "iuf", _sign, C.sign)
signbit = _unary("signbit", "f", Tensor.signbit)
conj = _unary("conj", "iuf", _same, lambda x: (_same(x[0]), -x[1]))
real_part = _unary("real", "iuf", _same, lambda x: _same(x[0]))
imag = _unary("imag", "", _same, lambda x: _same(x[1]))
isnan = _unary("isnan", "iuf", _nan, lambda x: _nan(x[0]) | _nan(x[1]))
isinf = _unary("isinf", "iuf", _inf, lambda x: _inf(x[0]) | _inf(x[1]))
isfinite = _unary("isfinite", "iuf", _finite, lambda x: _finite(x[0]) & _finite(x[1]))
logical_not = _unary("logical_not", "b", Tensor.logical_not)
bitwise_invert = _unary("bitwise_invert", "biu", Tensor.bitwise_not)


# Functions of two elements


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    """With the sign of the divisor, of a zero too."""
    rest = a % b
    return rest.zeros_like().copysign(b).where(condition=rest == 0, other=rest) if a.dtype.is_float else rest


add = _binary("add", "iuf", lambda a, b: a + b, lambda x, y: (x[0] + y[0], x[1] + y[1]))
subtract = _binary("subtract", "iuf", lambda a, b: a - b, lambda x, y: (x[0] - y[0], x[1] - y[1]))
multiply = _binary("multiply", "iuf", lambda a, b: a * b, C.multiply)
divide = _binary("divide", "f", lambda a, b: a / b, C.divide)
pow = _binary("pow", "iuf", Tensor.pow, C.power)
floor_divide = _binary("floor_divide", "iuf", lambda a, b: a // b)
remainder = _binary("remainder", "iuf", _remainder)
maximum, minimum = [_binary(name, "iuf", getattr(Tensor, name)) for name in ("maximum", "minimum")]
atan2, copysign, hypot, logaddexp, nextafter = [_binary(name, "f", getattr(Tensor, name)) for name in (
    "atan2", "copysign", "hypot", "logaddexp", "nextafter")]
equal = _binary("equal", "biuf", lambda a, b: a == b, lambda x, y: (x[0] == y[0]) & (x[1] == y[1]))
not_equal = _binary("not_equal", "biuf", lambda a, b: a != b, lambda x, y: (x[0] != y[0]) | (x[1] != y[1]))
less = _binary("less", "iuf", lambda a, b: a < b)
less_equal = _binary("less_equal", "iuf", lambda a, b: a <= b)
greater = _binary("greater", "iuf", lambda a, b: a > b)
greater_equal = _binary("greater_equal", "iuf", lambda a, b: a >= b)
logical_and = _binary("logical_and", "b", lambda a, b: a & b)
logical_or = _binary("logical_or", "b", lambda a, b: a | b)
logical_xor = _binary("logical_xor", "b", lambda a, b: a ^ b)
bitwise_and = _binary("bitwise_and", "biu", lambda a, b: a & b)
bitwise_or = _binary("bitwise_or", "biu", lambda a, b: a | b)
bitwise_xor = _binary("bitwise_xor", "biu", lambda a, b: a ^ b)
bitwise_left_shift = _binary("bitwise_left_shift", "iu", lambda a, b: a << b)
bitwise_right_shift = _binary("bitwise_right_shift", "iu", lambda a, b: a >> b)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Elements below `min` are it, those above `max` are that; bounds are numbers or arrays that broadcast, of x's
    kind. The result has x's type."""
    result = as_parts("clip", x, "iuf")
    for bound, pick in ((min, maximum), (max, minimum)):
        if bound is not None:
            limit = number(x, bound, x.dtype) if isinstance(bound, int | float) else bound
            result = pick(result, limit).cast(x.dtype)
    return positive(result) if result is x else result


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Elements of x1 where the condition holds, else of x2."""
    chosen = real("where", condition, "b")
    a, b = operands("where", "biufc", x1, x2)
    re = a.re.where(condition=chosen, other=b.re)
    return type(a)(re) if a.im is None else type(a)(re, a.im.where(condition=chosen, other=b.im))
