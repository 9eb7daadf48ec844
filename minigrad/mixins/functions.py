"""Conversion of types, and functions of one tensor that are one operation."""
from __future__ import annotations

from typing import Any, Self

from minigrad import dtype as dtypes
from minigrad.dtype import DType, bool_, float32, to_dtype
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import functions


class FunctionMixin(Base):
    """Functions of integers and bools compute in float32."""

    __slots__ = ()

    # Conversion

    def cast(self, dtype: DType | str) -> Self:
        """The same values in another type. Float to integer truncates, saturates, and takes NaN to 0."""
        return self._wrap(B.cast(self.node, to_dtype(dtype)), self)

    def bitcast(self, dtype: DType | str) -> Self:
        """The same bits read as another type. Of another width, the last axis gets as many times longer, or shorter, as
        in memory of little-endian machines. Raises ShapeError where it does not divide."""
        kind = to_dtype(dtype)
        if kind.bits == self.dtype.bits:
            return self._wrap(B.bitcast(self.node, kind))
        ratio = max(kind.bits, self.dtype.bits) // min(kind.bits, self.dtype.bits)
        if not self.ndim or (kind.bits > self.dtype.bits and self.shape[-1] % ratio != 0):
            raise ShapeError(f"[bitcast] expected a last axis of a multiple of {ratio}, as a {kind} "
                             f"has the bits of so many {self.dtype}, got {list(self.shape)}")
        bits, part = (dtypes.BY_NAME[f"uint{n}"] for n in (self.dtype.bits, kind.bits))
        x = self._wrap(B.bitcast(self.node, bits))
        if kind.bits < self.dtype.bits:
            parts = [x.rshift(kind.bits * k).cast(part) for k in range(ratio)]
            return parts[0].stack(*parts[1:], dim=-1).flatten(-2).bitcast(kind)
        x = x.reshape(*self.shape[:-1], self.shape[-1] // ratio, ratio).cast(part)
        shifts = type(self).arange(ratio, dtype=part, device=self.device) * self.dtype.bits
        return x.lshift(shifts).sum(-1, dtype=part).bitcast(kind)

    def float(self) -> Self:
        return self.cast(float32)

    def half(self) -> Self:
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        return self.cast(dtypes.int64)

    def bool(self) -> Self:
        return self.cast(bool_)

    # Functions

    @rounded_once
    def _float_unary(self, build: Any) -> Self:
        return self._as_float()._unary(build)

    def _rounding(self, build: Any) -> Self:
        return self._unary(build) if self.dtype.is_float else self

    def sqrt(self) -> Self:
        return self._float_unary(B.sqrt)

    def exp(self) -> Self:
        return self._float_unary(B.exp)

    def log(self) -> Self:
        return self._float_unary(B.log)

    def log1p(self) -> Self:
        """log(1 + x), accurate near 0."""
        return self._float_unary(functions.log1p)

    def sin(self) -> Self:
        return self._float_unary(B.sin)

    def cos(self) -> Self:
        return self._float_unary(B.cos)

    def tanh(self) -> Self:
        return self._float_unary(B.tanh)

    def erf(self) -> Self:
        return self._float_unary(B.erf)

    def floor(self) -> Self:
        return self._rounding(B.floor)

    def ceil(self) -> Self:
        return self._rounding(B.ceil)

    def trunc(self) -> Self:
        return self._rounding(B.trunc)

    fix = trunc
