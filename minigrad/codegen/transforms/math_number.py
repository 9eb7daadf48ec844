"""`Number`: a Value with Python's operators, so that formulas read as such. Python's numbers take the other's type."""
from __future__ import annotations

import math
from collections.abc import Sequence

from minigrad.dtype import DType, float32, float64, int32, uint32, uint64
from minigrad.value import Value, binary, bitcast, cast, const, make, unary, where


class Number:
    """Arithmetic on one Value. `==` is left alone: use `equals`."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def of(self, x: Number | int | float) -> Number:
        """A constant of this number's type."""
        return x if isinstance(x, Number) else Number(const(x, self.dtype))

    def _binary(self, op: str, other: Number | int | float) -> Number:
        return Number(binary(op, self.value, self.of(other).value))

    def __add__(self, other: Number | int | float) -> Number:
        return self._binary("add", other)

    def __sub__(self, other: Number | int | float) -> Number:
        return self._binary("sub", other)

    def __rsub__(self, other: int | float) -> Number:
        return self.of(other)._binary("sub", self)

    def __mul__(self, other: Number | int | float) -> Number:
        return self._binary("mul", other)

    def __truediv__(self, other: Number | int | float) -> Number:
        return self._binary("div", other)

    def __rtruediv__(self, other: int | float) -> Number:
        return self.of(other)._binary("div", self)

    def __and__(self, other: Number | int) -> Number:
        return self._binary("and", other)

    def __or__(self, other: Number | int) -> Number:
        return self._binary("or", other)

    def __xor__(self, other: Number | int) -> Number:
        return self._binary("xor", other)

    def __lshift__(self, other: Number | int) -> Number:
        return self._binary("shl", other)

    def __rshift__(self, other: Number | int) -> Number:
        return self._binary("shr", other)

    def __lt__(self, other: Number | int | float) -> Number:
        return self._binary("lt", other)

    def __le__(self, other: Number | int | float) -> Number:
        return self._binary("le", other)

    def __gt__(self, other: Number | int | float) -> Number:
        return self.of(other)._binary("lt", self)

    def __ge__(self, other: Number | int | float) -> Number:
        return self.of(other)._binary("le", self)

    def equals(self, other: Number | int | float) -> Number:
        return self._binary("eq", other)

    def differs(self, other: Number | int | float) -> Number:
        return self._binary("ne", other)

    def __neg__(self) -> Number:
        return Number(unary("neg", self.value))

    def __abs__(self) -> Number:
        return Number(unary("abs", self.value))

    def __invert__(self) -> Number:
        return Number(unary("not", self.value))

    def trunc(self) -> Number:
        return Number(unary("trunc", self.value))

    def fma(self, factor: Number | int | float, addend: Number | int | float) -> Number:
        """self * factor + addend, rounded once."""
        return Number(make("fma", self.dtype, (self.value, self.of(factor).value, self.of(addend).value)))

    def where(self, yes: Number, no: Number | int | float) -> Number:
        """`yes` where this (a bool) is true, else `no`."""
        return Number(where(self.value, yes.value, yes.of(no).value))

    def cast(self, dtype: DType) -> Number:
        return Number(cast(self.value, dtype))

    def bits(self, dtype: DType) -> Number:
        """The same bits as another type."""
        return Number(bitcast(self.value, dtype))

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """c[0] + c[1] * self + ..., by Horner's rule."""
        result = self.of(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = result.fma(self, c)
        return result


def clamp(x: Number, low: float, high: float) -> Number:
    """Between the two, NaN kept."""
    x = (x < low).where(x.of(low), x)
    return (x > high).where(x.of(high), x)


def copy_sign(x: Number, sign: Number) -> Number:
    """A non-negative x with the sign of the other."""
    word = uint32 if x.dtype is float32 else uint64
    return (x.bits(word) | sign.bits(word) & (1 << word.bits - 1)).bits(x.dtype)


def scale(x: Number, n: Number) -> Number:
    """x * 2**n for an int32 n in [-252, 254], of float64 an int64, in two steps, so that only the last one rounds or
    overflows."""
    half = n >> 1
    return x * power_of_two(half) * power_of_two(n - half)


def power_of_two(n: Number) -> Number:
    """2**n in float32 for an int32, in float64 for an int64."""
    return ((n + 127) << 23).bits(float32) if n.dtype is int32 else ((n + 1023) << 52).bits(float64)


def wave(op: str, x: Number, quadrant: Number, r: Number, odd: Sequence[float], even: Sequence[float]) -> Number:
    """sin or cos of x = r + quadrant * pi / 2 for |r| <= pi / 4; NaN for infinite x.

    `odd` and `even` are the coefficients, lowest first, of (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in r^2.
    """
    if op == "cos":
        quadrant = quadrant + 1
    square = r * r
    sine = square.polynomial(odd).fma(square * r, r)
    cosine = square.polynomial(even).fma(square * square, square.fma(-0.5, 1.0))
    result = (quadrant & 1).equals(0).where(sine, cosine)
    result = (quadrant & 2).equals(0).where(result, -result)
    result = (abs(x) < math.inf).where(result, math.nan)
    return result if op == "cos" else x.equals(0.0).where(x, result)  # the sign of zero
