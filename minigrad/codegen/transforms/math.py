"""Value -> Value: exp, log, sin, cos, tanh, sigmoid, erf and pow written out in arithmetic that every device has.

The formulas are in `math_float32.py`, `math_float64.py` and `math_pow.py`, free of branches, so that they run in every
lane of a vector, the same on every backend. Their errors are stated there and checked by
`test/codegen/transforms/test_math.py`.
"""
from __future__ import annotations

from minigrad.codegen.transforms import math_float32, math_float64
from minigrad.codegen.transforms.math_number import Number, wave
from minigrad.codegen.transforms.math_pow import pow as power
from minigrad.dtype import float32
from minigrad.errors import InternalError
from minigrad.value import Value, cast

FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "pow")


def expanded(op: str, args: tuple[Value, ...]) -> Value:
    """The formula of one operation on operands of equal type.

    Half types are computed in float32, whole powers of integers by repeated squaring.
    """
    dtype = args[0].dtype
    if not dtype.is_float:
        if op == "pow":
            return integer_power(Number(args[0]), Number(args[1])).value
        raise InternalError(f"[math] expected a float operand of {op}, got {dtype}")
    if dtype.compute is not dtype:
        return cast(expanded(op, tuple([cast(a, float32) for a in args])), dtype)
    if op == "pow":
        return power(Number(args[0]), Number(args[1])).value
    module, x = math_float32 if dtype is float32 else math_float64, Number(args[0])
    if op in ("sin", "cos"):
        quadrant, r = module.reduced(x)
        return wave(op, x, quadrant, r, module.SIN, module.COS).value
    return getattr(module, op)(x).value


def integer_power(x: Number, y: Number) -> Number:
    """x ** y, wrapping; negative exponents give 1 / x ** -y truncated, 0 for x = 0."""
    result, base, left = x.of(1), x, y
    for _ in range(x.dtype.bits - (x.dtype.kind == "i")):
        result = (left & 1).equals(1).where(result * base, result)
        base, left = base * base, left >> 1
    if x.dtype.kind == "u":
        return result
    unit = x.equals(1).where(x.of(1), x.equals(-1).where((y & 1).equals(1).where(x.of(-1), x.of(1)), x.of(0)))
    return (y < 0).where(unit, result)
