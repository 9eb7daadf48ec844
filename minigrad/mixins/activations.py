"""Activation functions: elementwise, each an expression of others."""
from __future__ import annotations

import math
from typing import Any, Self

from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import Base
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import functions


class ActivationMixin(Base):
    """Methods of one tensor that give one of its shape."""

    __slots__ = ()

    @as_one_node
    def relu(self) -> Self:
        """max(x, 0) with gradient 0 at 0."""
        return (self <= 0).where(0, self)

    @as_one_node
    def relu6(self) -> Self:
        """min(max(x, 0), 6)."""
        return (self >= 6).where(6, self.relu())

    def sigmoid(self) -> Self:
        return self._float_unary(B.sigmoid)

    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self._float_unary(functions.silu)

    swish = silu

    @as_one_node
    @rounded_once
    def gelu(self, approximate: str = "tanh") -> Self:
        """Gaussian error linear unit: 'tanh' approximation, or 'none' for the exact one with erf."""
        if approximate not in ("tanh", "none"):
            raise DTypeError(f"[gelu] expected approximate 'tanh' or 'none', got {approximate!r}")
        if approximate == "none":
            return self * 0.5 * ((self * (1 / math.sqrt(2))).erf() + 1)
        return self * 0.5 * ((math.sqrt(2 / math.pi) * (self + 0.044715 * self * self * self)).tanh() + 1)

    @as_one_node
    @rounded_once
    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 x)."""
        return self * (self * 1.702).sigmoid()

    @as_one_node
    @rounded_once
    def softplus(self, beta: Any = 1.0, threshold: Any = 20.0) -> Self:
        """log(1 + exp(beta*x)) / beta, without overflow; x itself where beta*x is above the threshold."""
        x = self._as_float() * beta
        return (x > threshold).where(self, x._softplus() * (1 / beta))

    def _softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._float_unary(functions.softplus)

    @as_one_node
    @rounded_once
    def logsigmoid(self) -> Self:
        """log(sigmoid(x))."""
        return -(-self)._softplus()

    @as_one_node
    @rounded_once
    def softsign(self) -> Self:
        """x / (1 + |x|)."""
        return self / (self.abs() + 1)

    @as_one_node
    @rounded_once
    def mish(self) -> Self:
        """x * tanh(softplus(x))."""
        return self * self._softplus().tanh()

    @as_one_node
    def hardtanh(self, min_val: Any = -1, max_val: Any = 1) -> Self:
        """x held within the bounds, where its gradient is 0; integers within those truncated."""
        numbers = all([isinstance(v, (int, float)) for v in (min_val, max_val)])  # tensors are not read
        if numbers and min_val > max_val:
            raise ShapeError(f"[hardtanh] expected min_val <= max_val, got {min_val} and {max_val}")
        if numbers and self.dtype.is_int:
            min_val, max_val = int(min_val), int(max_val)
        return (self <= min_val).where(min_val, (self >= max_val).where(max_val, self))

    @as_one_node
    @rounded_once
    def hardsigmoid(self) -> Self:
        """relu6(x + 3) / 6."""
        return (self + 3).relu6() * (1 / 6)

    @as_one_node
    @rounded_once
    def hardswish(self) -> Self:
        """x * relu6(x + 3) / 6."""
        return self * self.hardsigmoid()

    @as_one_node
    def leaky_relu(self, neg_slope: Any = 0.01) -> Self:
        return (self > 0).where(self, self * neg_slope)

    @as_one_node
    @rounded_once
    def elu(self, alpha: Any = 1.0) -> Self:
        """x where positive, else alpha * (exp(x) - 1)."""
        above = self > 0  # not `minimum`, which shares the gradient at 0 with the number
        return above.where(self, above.where(0, self).expm1() * alpha)

    @as_one_node
    @rounded_once
    def selu(self, alpha: Any = 1.6732632423543772, gamma: Any = 1.0507009873554805) -> Self:
        return self.elu(alpha) * gamma

    @as_one_node
    @rounded_once
    def celu(self, alpha: Any = 1.0) -> Self:
        """x where positive, else alpha * (exp(x / alpha) - 1)."""
        above = self > 0
        return above.where(self, (above.where(0, self) * (1 / alpha)).expm1() * alpha)

    @as_one_node
    def prelu(self, weight: Any) -> Self:
        """x where positive, else weight * x: one weight, or one per channel of [N, C, ...]."""
        if isinstance(weight, Base):
            per_channel: Any = weight
            channels = self.shape[1] if self.ndim > 1 else 1
            if weight.ndim > 1 or weight.numel() not in (1, channels):
                raise ShapeError(f"[prelu] expected a weight of 1 element, or of {channels}, for {list(self.shape)}, "
                                 f"got {list(weight.shape)}")
            weight = per_channel.reshape(*([-1, *[1] * (self.ndim - 2)] if self.ndim > 1 else []))
        return (self > 0).where(self, self * weight)

    @as_one_node
    def threshold(self, threshold: Any, value: Any) -> Self:
        """x above the threshold, else `value`."""
        return (self <= threshold).where(value, self)

    @as_one_node
    def hardshrink(self, lambd: Any = 0.5) -> Self:
        """0 within -lambd..lambd, else x."""
        return (self.abs() <= lambd).where(0, self)

    @as_one_node
    @rounded_once
    def softshrink(self, lambd: Any = 0.5) -> Self:
        """0 within -lambd..lambd, else x moved towards 0 by lambd, which must not be negative."""
        if isinstance(lambd, (int, float)) and lambd < 0:
            raise ShapeError(f"[softshrink] expected lambd of 0 or more, got {lambd}")
        return (self.abs() <= lambd).where(0, self - (self < 0).where(-lambd, lambd))

    @as_one_node
    @rounded_once
    def tanhshrink(self) -> Self:
        """x - tanh(x)."""
        return self - self.tanh()
