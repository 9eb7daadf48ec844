"""Further functions of PyTorch of one or two tensors, beside those of `ElementwiseMixin`."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad.dtype import bool_, float32, promote
from minigrad.errors import DTypeError
from minigrad.mixins.base import Base, as_number, as_parameter, scalar_dtype
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import functions, inverse


class SpecialMixin(Base):
    """Elementwise; operands broadcast and promote, integers become float32 where the result is none."""

    __slots__ = ()

    # Inverses of trigonometric and hyperbolic functions

    def asin(self) -> Self:
        """The angle in -pi/2..pi/2 whose sine is x; NaN outside -1..1."""
        return self._float_unary(inverse.asin)

    def acos(self) -> Self:
        """The angle in 0..pi whose cosine is x; NaN outside -1..1."""
        return self._float_unary(inverse.acos)

    def atan(self) -> Self:
        """The angle in -pi/2..pi/2 whose tangent is x."""
        return self._float_unary(inverse.atan)

    @rounded_once
    def atan2(self, other: Any) -> Self:
        """The angle in -pi..pi of the point (other, x), as C's: the signs of zeros count."""
        x = self._as_float()
        other = x._operand(other)
        return x._binary("atan2", other._as_float() if isinstance(other, Base) else other, inverse.atan2)

    def asinh(self) -> Self:
        return self._float_unary(inverse.asinh)

    def acosh(self) -> Self:
        """NaN below 1."""
        return self._float_unary(inverse.acosh)

    def atanh(self) -> Self:
        """NaN outside -1..1."""
        return self._float_unary(inverse.atanh)

    arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh = asin, acos, atan, atan2, asinh, acosh, atanh

    def cosh(self) -> Self:
        """(exp(x) + exp(-x)) / 2."""
        return self._float_unary(inverse.cosh)

    def sinh(self) -> Self:
        """(exp(x) - exp(-x)) / 2, accurate near 0."""
        return self._float_unary(inverse.sinh)

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near 0."""
        return self._float_unary(inverse.expm1)

    def erfinv(self) -> Self:
        """The number whose erf is x; infinite at -1 and 1, NaN outside."""
        return self._float_unary(inverse.erfinv)

    # Pairs

    @rounded_once
    def hypot(self, other: Any) -> Self:
        """sqrt(x*x + other*other), without overflow."""
        x, y = self._as_float(), self._operand(other)
        infinite = x.isinf().bitwise_or(abs(y) == math.inf)
        larger = x.abs().maximum(abs(y))
        larger = self._wrap(larger.node)
        scale = larger.eq(0).bitwise_or(larger.isinf()).where(1, larger)
        return infinite.where(math.inf, ((x / scale).square() + (y / scale) * (y / scale)).sqrt() * scale)

    @rounded_once
    def logaddexp(self, other: Any) -> Self:
        """log(exp(x) + exp(other)), without overflow."""
        other = self._operand(other)
        y = other._as_float() if isinstance(other, Base) else other
        return self._as_float()._binary("logaddexp", y, functions.logaddexp)

    def fmod(self, other: Any) -> Self:
        """x - trunc(x / other) * other, of the sign of x; integers: remainder by 0 gives 0."""
        other = self._operand(other)
        if self.dtype.kind == "u":
            return self.mod(abs(other))
        below = self < 0  # not `abs`, whose gradient at 0 is 0
        size = below.where(-self, self).mod(abs(other))
        return below.where(-size, size)

    def copysign(self, other: Any) -> Self:
        """|x| with the sign of `other`, that of its zeros too."""
        x = self._as_float()
        other = x._operand(other)
        if not isinstance(other, (bool, int, float)):
            return other.signbit().where(-x.abs(), x.abs())
        return -x.abs() if math.copysign(1, other) < 0 else x.abs()

    def signbit(self) -> Self:
        """True where the sign bit is set: of negative numbers, of -0.0, and of NaN with that sign."""
        if not self.dtype.is_float:
            return self < 0
        return self.detach().bitcast(f"int{8 * self.dtype.itemsize}") < 0

    @rounded_once
    def fmax(self, other: Any) -> Self:
        """The larger of both, which its gradient goes to, x if they are equal; of a NaN and a number the number."""
        return self._without_nan(other, lambda x, y: x >= y)

    @rounded_once
    def fmin(self, other: Any) -> Self:
        """The smaller of both, as `fmax`."""
        return self._without_nan(other, lambda x, y: x <= y)

    def _without_nan(self, other: Any, first: Callable[[Any, Any], Any]) -> Any:
        y: Any = self._operand(other)
        y = y if isinstance(y, Base) else self._wrap(B.full(y, (), scalar_dtype(self.dtype, y), self.device))
        return y.isnan().bitwise_or(first(self, y)).where(self, y)

    @rounded_once
    def xlogy(self, other: Any) -> Self:
        """x * log(other), 0 where x is 0 unless `other` is NaN. Integers take the type of a float operand."""
        y: Any = self._operand(other)
        y = y if isinstance(y, Base) else self._wrap(B.full_like(self._as_float().node, y))
        common = promote(self.dtype, y.dtype)
        common = common if common.is_float else float32
        x, y = self.cast(common), y.cast(common)
        plain = x.eq(0).bitwise_and(y.eq(y))
        return plain.where(0, x * plain.where(1, y).log())

    def heaviside(self, values: Any) -> Self:
        """1 where x is positive, `values` where it is 0, else 0, of NaN too."""
        return self.eq(0).where(values, (self > 0).cast(self.dtype))

    # Of one

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """With `nan` for NaN, and for infinities other numbers: unless told, the largest and least of the type."""
        if not self.dtype.is_float:
            return self
        most = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(
            self.dtype.name, 1.7976931348623157e308)
        above = most if posinf is None else as_number("nan_to_num", "posinf", posinf)
        below = -most if neginf is None else as_number("nan_to_num", "neginf", neginf)
        x = self.isnan().where(as_number("nan_to_num", "nan", nan), self)
        return x.eq(math.inf).where(above, x.eq(-math.inf).where(below, x))

    def deg2rad(self) -> Self:
        return self * (math.pi / 180)

    def rad2deg(self) -> Self:
        return self * (180 / math.pi)

    @rounded_once
    def sinc(self) -> Self:
        """sin(pi x) / (pi x), 1 at 0."""
        x = self * math.pi
        near = x.abs() < 0.5
        square = near.where(x, 0).square()
        series: Any = 0.0  # whose gradient loses nothing, as that of the quotient does
        for k in range(8, 0, -1):
            series = (series + 1.0) * square / (-2.0 * k * (2 * k + 1))
        far = near.where(1, x)
        return near.where(series + 1, far.sin() / far)

    @rounded_once
    def logit(self, eps: float | None = None) -> Self:
        """log(x / (1 - x)), of x held within eps..1-eps if there is one."""
        x = self._as_float()
        x = x if eps is None else x.clip(eps, 1 - as_parameter("logit", "eps", eps))
        return (x / (1 - x)).log()

    def _root(self) -> Self:
        """sqrt(x) whose gradient at 0 is 0: that of a distance, where x is a sum of squares."""
        if self.dtype is bool_ or not self.dtype.is_float:
            raise DTypeError(f"[root] expected a float tensor, got {self.dtype}")
        none = self.eq(0)
        return none.where(0, none.where(1, self).sqrt())
