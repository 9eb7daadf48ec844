"""Elementwise arithmetic and comparison. Operands broadcast and promote (dtype.py)."""
from __future__ import annotations

import math
from typing import Any, Self

from minigrad import dtype as dtypes
from minigrad.dtype import bool_, number_type, promote
from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import Base, Scalar, as_number, as_tensor, broadcast_shapes
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import functions
from minigrad.ops.convert import held, rounded
from minigrad.ops.powers import power

_POWER_LIMIT = 64  # larger integer exponents of float tensors go through `pow`


class ElementwiseMixin(Base):
    """Operators and functions of one or two tensors. Comparisons give bool tensors."""

    __slots__ = ()

    # Arithmetic

    def _arithmetic(self, name: str, other: Any, reverse: Any, number: Any, logic: Any = None) -> Self:
        """`number` over numbers; two bools take `logic`, or are an error without one."""
        x, y, parents = self._pair(name, other)
        if x.dtype is bool_:
            if logic is None:
                raise DTypeError(f"[{name}] expected a number type, got bool and bool")
            number = logic
        return self._wrap(number(y, x) if reverse else number(x, y), *parents)

    def add(self, other: Any, reverse: Any = False, *, alpha: Any = None) -> Self:
        """x + other, or x + alpha * other; of two bools, their or."""
        other = other if alpha is None else self._operand(other) * alpha
        return self._arithmetic("add", other, reverse, B.add, B.or_)

    def sub(self, other: Any, reverse: Any = False, *, alpha: Any = None) -> Self:
        """x - other, or x - alpha * other."""
        other = other if alpha is None else self._operand(other) * alpha
        return self._arithmetic("sub", other, reverse, B.sub)

    def mul(self, other: Any, reverse: Any = False) -> Self:
        """x * other; of two bools, their and."""
        return self._arithmetic("mul", other, reverse, B.mul, B.and_)

    @rounded_once
    def div(self, other: Any, reverse: Any = False, *, rounding_mode: str | None = None) -> Self:
        """True division; integers become float32. `rounding_mode`: 'floor' as `floordiv`, 'trunc' towards 0."""
        if rounding_mode is not None:
            return self._rounded_quotient(other, reverse, rounding_mode)
        other = self._operand(other)
        if isinstance(other, Base) and not other.dtype.is_float and not self.dtype.is_float:
            other = other._as_float()
        return self._as_float()._binary("div", other, B.div, reverse)

    def _rounded_quotient(self, other: Any, reverse: Any, mode: str) -> Self:
        if mode not in ("floor", "trunc"):
            raise DTypeError(f"[div] expected rounding_mode None, 'floor' or 'trunc', got {mode!r}")
        if mode == "floor":
            return self.floordiv(other, reverse)
        x, y, _ = self._pair("div", other)
        if x.dtype.is_float:
            return self.div(other, reverse).trunc()
        x, y = (y, x) if reverse else (x, y)
        floor, zero = B.floordiv(x, y), B.full_like(x, 0)
        if x.dtype.kind == "u":
            return self._wrap(floor)
        # Not by magnitudes: that of the least integer is negative.
        above = B.and_(B.lt(B.xor(x, y), zero), B.and_(B.ne(B.mul(floor, y), x), B.ne(y, zero)))
        return self._wrap(B.add(floor, B.cast(above, x.dtype)))

    def floordiv(self, other: Any, reverse: Any = False) -> Self:
        """floor(x / other); integers: division by 0 gives 0."""
        return self._arithmetic("floordiv", other, reverse, B.floordiv)

    @rounded_once
    def mod(self, other: Any, reverse: Any = False) -> Self:
        """x - floor(x / other) * other, of the sign of `other`; integers: remainder by 0 gives 0."""
        return self._arithmetic("mod", other, reverse, B.mod)

    @rounded_once
    def pow(self, exponent: Any, reverse: Any = False) -> Self:
        """x ** exponent. Small integer exponents multiply; integers to negative or float powers become float32, to
        powers in integer tensors they stay integers."""
        exponent = self._operand(exponent)
        if not reverse and isinstance(exponent, (int, float)):
            return self._power(exponent)
        if self.dtype.is_float or isinstance(exponent, float) or (
                isinstance(exponent, Base) and exponent.dtype.is_float):
            return self._as_float()._binary("pow", exponent, B.pow, reverse)
        x, y, parents = self._pair("pow", exponent)
        if reverse:
            x, y = y, x
        if x.dtype is bool_:
            return self._wrap(B.or_(x, B.invert(y)), *parents)
        return self._wrap(power(x, y), *parents)

    def _power(self, exponent: Scalar) -> Self:
        if exponent == 0.5 and self.dtype.is_float:
            return self.sqrt()
        if exponent == -0.5 and self.dtype.is_float:
            return self.rsqrt()
        whole = float(exponent).is_integer()
        count = abs(int(exponent)) if whole else 0
        followed = not count and self.needs_grad  # x**0 has a gradient, of zeros
        if not whole or followed or (count > _POWER_LIMIT and self.dtype.is_float):
            return self._as_float()._binary("pow", exponent, B.pow)
        if exponent < 0:
            return self._power(-exponent).reciprocal()
        base = self._as_float() if not isinstance(exponent, int) else self.long() if self.dtype is bool_ else self
        if count == 1:
            return base._wrap(base.node, base)
        result = None
        while count:
            if count & 1:
                result = base if result is None else result * base
            count >>= 1
            base = base * base if count else base
        return self._wrap(B.full_like(base.node, 1)) if result is None else result

    def neg(self) -> Self:
        """-x. Raises DTypeError for bool."""
        if self.dtype is bool_:
            raise DTypeError("[neg] expected a number type, got bool; use logical_not")
        return self._unary(B.neg)

    def abs(self) -> Self:
        return self if self.dtype.kind in "bu" else self._unary(B.abs_)

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN. Its gradient is 0."""
        if self.dtype.kind == "b":
            return self
        rest = self.trunc()  # 0 or NaN where it is taken, without a gradient
        return (self > 0).where(1, rest if self.dtype.kind == "u" else (self < 0).where(-1, rest))

    def maximum(self, other: Any) -> Self:
        """The larger of both, NaN if either is NaN."""
        return self._arithmetic("maximum", other, False, B.maximum, B.or_)

    def minimum(self, other: Any) -> Self:
        """The smaller of both, NaN if either is NaN."""
        return self._arithmetic("minimum", other, False, B.minimum, B.and_)

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """Values held within min..max, NaN as it is; None leaves a side open. What is at a bound has a gradient of 1,
        where `maximum` would share it with the bound."""
        result = self if min is None else (self < min).where(min, self)
        return result if max is None else (result > max).where(max, result)

    clamp = clip

    @rounded_once
    def lerp(self, end: Any, weight: Any) -> Self:
        """x + (end - x) * weight, from the nearer end: x for a weight of 0, `end` for 1."""
        gap, weight = end - self, self._operand(weight)
        if isinstance(weight, (int, float)):
            return self + gap * weight if weight < 0.5 else end - gap * (1 - weight)
        return (weight < 0.5).where(self + gap * weight, end - gap * (1 - weight))

    def moved(self, end: Self, share: Any) -> Self:
        """x * (1 - share) + end * share, for an `end` of the same shape and a number `share`: a running average."""
        if end.shape != self.shape:
            raise ShapeError(f"[moved] expected an end of shape {list(self.shape)}, got {list(end.shape)}")
        return self._wrap(functions.moved(self.node, B.cast(end.node, self.dtype), share), self, end)

    def stepped(self, direction: Self, rate: Self) -> Self:
        """x - direction * rate, for a direction of the same shape and a rate of shape (): a step of an optimizer."""
        if direction.shape != self.shape or rate.shape != ():
            raise ShapeError(f"[stepped] expected a direction of shape {list(self.shape)} and a rate of shape [], "
                             f"got {list(direction.shape)} and {list(rate.shape)}")
        return self._wrap(functions.stepped(self.node, direction.node, rate.node), self, direction, rate)

    # Comparison

    def _compare(self, name: str, other: Any, build: Any, reverse: Any = False, ordered: Any = True) -> Self:
        x, y, parents = self._pair(name, other)
        if ordered and x.dtype is bool_:
            x, y = B.cast(x, dtypes.uint8), B.cast(y, dtypes.uint8)
        return self._wrap(build(y, x) if reverse else build(x, y))

    def lt(self, other: Any) -> Self:
        return self._compare("lt", other, B.lt)

    def gt(self, other: Any) -> Self:
        return self._compare("gt", other, B.lt, reverse=True)

    def le(self, other: Any) -> Self:
        return self._compare("le", other, B.le)

    def ge(self, other: Any) -> Self:
        return self._compare("ge", other, B.le, reverse=True)

    def eq(self, other: Any) -> Self:
        return self._compare("eq", other, B.eq, ordered=False)

    def ne(self, other: Any) -> Self:
        return self._compare("ne", other, B.ne, ordered=False)

    def isnan(self) -> Self:
        return self.ne(self)

    def isinf(self) -> Self:
        return self.abs().eq(math.inf) if self.dtype.is_float else self.ne(self)

    def isfinite(self) -> Self:
        return self.abs().lt(math.inf) if self.dtype.is_float else self.eq(self)

    # Bits

    def bitwise_and(self, other: Any) -> Self:
        return self._binary("and", other, B.and_)

    def bitwise_or(self, other: Any) -> Self:
        return self._binary("or", other, B.or_)

    def bitwise_xor(self, other: Any) -> Self:
        return self._binary("xor", other, B.xor)

    def bitwise_not(self) -> Self:
        return self._unary(B.invert)

    def logical_not(self) -> Self:
        return self.bool().bitwise_not()

    def lshift(self, other: Any, reverse: Any = False) -> Self:
        """x << other; a count of the width or more gives 0."""
        return self._binary("shl", other if reverse else _count(other), B.shl, reverse)

    def rshift(self, other: Any, reverse: Any = False) -> Self:
        """x >> other, arithmetic for signed types; a count of the width or more gives 0, or the sign."""
        return self._binary("shr", other if reverse else _count(other), B.shr, reverse)

    # Choice

    def where(self, yes: Any = None, no: Any = None, *, condition: Any = None, other: Any = None) -> Self:
        """`yes` where this bool tensor is True, else `no`; all three broadcast. By PyTorch's names, and of a tensor
        that is not bool with one that is: this tensor where `condition` is True, else `other`."""
        is_mask = isinstance(yes, Base) and yes.dtype is bool_
        if condition is not None or other is not None or is_mask and self.dtype is not bool_:
            condition = as_tensor("where", yes if condition is None else condition)
            return condition.where(self, no if other is None else other)
        if yes is None or no is None:
            raise ShapeError("[where] expected what to take where this is True, and where it is not, got one of them")
        yes, no = self._operand(yes), self._operand(no)
        if isinstance(yes, Base):
            x, y, parents = yes._pair("where", no)
        elif isinstance(no, Base):
            y, x, parents = no._pair("where", yes)
        else:
            common = promote(*[number_type(v) if isinstance(v, (int, float)) else dtypes.int32 for v in (yes, no)])
            x, y = (B.const(v, common, self.device) for v in (yes, no))
            parents = ()
        condition = B.cast(self.node, bool_)
        shape = broadcast_shapes("where", condition.shape, x.shape)
        return self._wrap(B.where(B.expand(condition, shape), B.expand(x, shape), B.expand(y, shape)), *parents)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value`, a number or a tensor of shape (), as one of this tensor's type where `mask` is True, else this
        tensor."""
        if isinstance(value, Base):
            if value.ndim:
                raise ShapeError(f"[masked_fill] expected a number or a tensor of shape (), got {list(value.shape)}")
            value = value.cast(self.dtype)
        else:
            value = rounded(held("masked_fill", as_number("masked_fill", "value", value), self.dtype), self.dtype)
        return as_tensor("masked_fill", self._operand(mask)).where(value, self)

    # Functions

    @rounded_once
    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self.sqrt().reciprocal()

    def reciprocal(self) -> Self:
        """1 / x."""
        return self.div(1.0, reverse=True)

    def square(self) -> Self:
        """x * x; of bools as int64."""
        x = self.long() if self.dtype is bool_ else self
        return x * x

    @rounded_once
    def exp2(self) -> Self:
        """2 ** x."""
        return self._as_float()._binary("pow", 2.0, B.pow, reverse=True)

    @rounded_once
    def log2(self) -> Self:
        return self.log() * (1 / math.log(2))

    @rounded_once
    def log10(self) -> Self:
        return self.log() * (1 / math.log(10))

    @rounded_once
    def tan(self) -> Self:
        return self.sin() / self.cos()

    @rounded_once
    def round(self, *, decimals: Any = 0) -> Self:
        """To the nearest integer, halves to the even one; or to so many decimals, as round(x * 10**n) / 10**n."""
        if decimals and self.dtype.is_float:
            scale = 10.0 ** abs(decimals)
            return (self * scale).round() / scale if decimals > 0 else (self / scale).round() * scale
        return self._rounding(B.round_)

    # Other names

    absolute, negative, sgn = abs, neg, sign
    subtract, multiply, divide, true_divide = sub, mul, div, div
    floor_divide, remainder = floordiv, mod
    less, less_equal, greater, greater_equal, not_equal = lt, le, gt, ge, ne
    bitwise_left_shift, bitwise_right_shift = lshift, rshift

    # Operators

    __add__ = add
    def __radd__(self, other: Any) -> Self: return self.add(other, reverse=True)
    __sub__ = sub
    def __rsub__(self, other: Any) -> Self: return self.sub(other, reverse=True)
    __mul__ = mul
    def __rmul__(self, other: Any) -> Self: return self.mul(other, reverse=True)
    __truediv__ = div
    def __rtruediv__(self, other: Any) -> Self: return self.div(other, reverse=True)
    __floordiv__ = floordiv
    def __rfloordiv__(self, other: Any) -> Self: return self.floordiv(other, reverse=True)
    __mod__ = mod
    def __rmod__(self, other: Any) -> Self: return self.mod(other, reverse=True)
    __pow__ = pow
    def __rpow__(self, other: Any) -> Self: return self.pow(other, reverse=True)
    __neg__ = neg
    def __pos__(self) -> Self: return self
    __abs__ = abs
    __invert__ = bitwise_not
    __and__ = bitwise_and
    __rand__ = bitwise_and
    __or__ = bitwise_or
    __ror__ = bitwise_or
    __xor__ = bitwise_xor
    __rxor__ = bitwise_xor
    __lshift__ = lshift
    def __rlshift__(self, other: Any) -> Self: return self.lshift(other, reverse=True)
    __rshift__ = rshift
    def __rrshift__(self, other: Any) -> Self: return self.rshift(other, reverse=True)
    __lt__ = lt
    __gt__ = gt
    __le__ = le
    __ge__ = ge
    def __eq__(self, other: Any) -> Any: return False if other is None else self.eq(other)
    def __ne__(self, other: Any) -> Any: return True if other is None else self.ne(other)

    __hash__ = object.__hash__


def _count(other: Any) -> Any:
    """A number of bits to shift by, no further than beyond any width: every type holds it."""
    return 64 if isinstance(other, int) and not 0 <= other <= 64 else other
