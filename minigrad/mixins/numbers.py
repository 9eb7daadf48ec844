"""The gamma function, parts of floating point numbers, divisors, and further names of elementwise functions."""
from __future__ import annotations

import math
from typing import Any, Self

from minigrad.dtype import DType, float32, float64, int16, int32, int64
from minigrad.errors import DTypeError
from minigrad.mixins.base import Base, as_count
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import divisors, functions, gamma

_LAYOUT = {"float32": (int32, 23, 127), "float64": (int64, 52, 1023)}
"""By type: the integers of its width, the bits of its fraction, and the bias of its exponent."""


class NumberMixin(Base):
    """Elementwise; operands broadcast and promote, integers become float32 where the result is none."""

    __slots__ = ()

    # Functions

    def erfc(self) -> Self:
        """1 - erf(x), accurate where that is small."""
        return self._float_unary(gamma.erfc)

    def lgamma(self) -> Self:
        """log(|gamma(x)|); infinite at 0, -1, -2, ... Near its zeros left of 0 the error is absolute, as large as that
        of lgamma(-x)."""
        return self._float_unary(gamma.log_gamma)

    def digamma(self) -> Self:
        """The derivative of lgamma: -inf at 0 and inf at -0.0, NaN at -1, -2, ..."""
        return self._float_unary(gamma.digamma)

    def polygamma(self, n: int) -> Self:
        """The n-th derivative of digamma, itself for 0; in float64, as left of 0 it vanishes between poles."""
        n = as_count("polygamma", "n", n)
        if n == 0:
            return self.digamma()
        return self._in_double()._unary(lambda x: gamma.polygamma(x, n)).cast(self._as_float().dtype)

    @rounded_once
    def mvlgamma(self, p: int) -> Self:
        """The logarithm of the gamma function of p dimensions, for x > (p - 1) / 2."""
        p = as_count("mvlgamma", "p", p, 1)
        total = self.lgamma() + p * (p - 1) / 4 * math.log(math.pi)
        for k in range(1, p):
            total = total + (self - k / 2).lgamma()
        return total

    @rounded_once
    def logaddexp2(self, other: Any) -> Self:
        """log2(2**x + 2**other), without overflow."""
        return (self * math.log(2)).logaddexp(self._operand(other) * math.log(2)) * (1 / math.log(2))

    def float_power(self, exponent: Any) -> Self:
        """x ** exponent in float64, whatever the types."""
        exponent = self._operand(exponent)
        return self.cast(float64).pow(exponent.cast(float64) if isinstance(exponent, type(self)) else float(exponent))

    # Parts of numbers

    @rounded_once
    def ldexp(self, other: Any) -> Self:
        """x * 2**other, rounded once, for an integer exponent; for another one the product with `exp2` of it."""
        x, other = self._as_float(), self._operand(other)
        if not isinstance(other, type(self)):
            other = self._wrap(B.full(other, (), int32 if isinstance(other, int) else float32, self.device))
        if other.dtype.is_float:
            return x * other.exp2()
        wide = x.cast(x.dtype.compute)
        whole, fraction, bias = _LAYOUT[wide.dtype.name]
        rest = other.clip(-4 * bias, 4 * bias).cast(whole)
        for _ in range(2):  # steps down that leave all bits of what ends above the least number
            step = (rest < 1 - bias).where(1 - bias + fraction + 1, rest.minimum(bias))
            wide, rest = wide * _power_of_two(step, fraction, bias, wide.dtype), rest - step
        return (wide * _power_of_two(rest.clip(1 - bias, bias), fraction, bias, wide.dtype)).cast(x.dtype)

    def frexp(self) -> tuple[Self, Self]:
        """(mantissas in 0.5..1 or their negatives, exponents as int32): x == mantissa * 2**exponent. 0, infinities and
        NaN are their own mantissas, with the exponent 0."""
        if not self.dtype.is_float:
            raise DTypeError(f"[frexp] expected floats, got {self.dtype}")
        x = self.detach().cast(self.dtype.compute)
        whole, fraction, bias = _LAYOUT[x.dtype.name]
        small = x.abs() < 2.0 ** (1 - bias)
        bits = small.where(x * 2.0 ** (fraction + 1), x).bitcast(whole)
        exponent = bits.rshift(fraction).bitwise_and(2 * bias + 1).int() - (bias - 1) - small.where(fraction + 1, 0)
        exponent = x.eq(0).bitwise_or(x.isfinite().logical_not()).where(0, exponent)
        return self.ldexp(-exponent), exponent

    def nextafter(self, other: Any) -> Self:
        """The number of this type next to x towards `other`, which is x itself where they are equal. Its gradient is
        that of x, 0 where they are equal."""
        x, y, parents = self._pair("nextafter", other)
        if not x.dtype.is_float:
            raise DTypeError(f"[nextafter] expected floats, got {x.dtype}")
        here, there = self._wrap(x), self._wrap(y)
        whole = {16: int16, 32: int32, 64: int64}[x.dtype.bits]
        bits = here.bitcast(whole) + (there > here).eq(here > 0).where(1, -1).cast(whole)
        least = (there > 0).where(1, int(whole.min) + 1).cast(whole)
        moved = here.eq(0).where(least, bits).bitcast(x.dtype)
        found = (here.isnan().bitwise_or(there.isnan())).where(math.nan, moved)
        return here.eq(there).where(there.detach(), self._wrap(functions.passed(x, found.node), *parents))

    # Integers

    def gcd(self, other: Any) -> Self:
        """The greatest common divisor of integers, 0 of two zeros."""
        x, y, parents = self._pair("gcd", other)
        if not x.dtype.is_int:
            raise DTypeError(f"[gcd] expected integers, got {self.dtype} and {getattr(other, 'dtype', other)}")
        return self._wrap(divisors.gcd(x, y), *parents)

    def lcm(self, other: Any) -> Self:
        """The least common multiple of integers, 0 if one is 0. It may overflow."""
        shared = self.gcd(other)
        return (self // shared * other).abs()

    def positive(self) -> Self:
        """x itself. Raises DTypeError for bool."""
        if self.dtype.kind == "b":
            raise DTypeError("[positive] expected a number type, got bool")
        return self


def _power_of_two(exponent: Any, fraction: int, bias: int, dtype: DType) -> Any:
    """2**exponent of integers in 1 - bias..bias, by the bits of its float."""
    return (exponent + bias).lshift(fraction).bitcast(dtype)
