"""Activation functions as layers, with PyTorch's names and defaults."""
from __future__ import annotations

from minigrad.errors import DTypeError
from minigrad.mixins.base import as_number
from minigrad.tensor import Tensor


class ReLU:
    """max(x, 0)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.relu()


class ReLU6:
    """min(max(x, 0), 6)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.relu6()


class LeakyReLU:
    """x where positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01):
        self.negative_slope = as_number("LeakyReLU", "negative_slope", negative_slope)

    def __call__(self, x: Tensor) -> Tensor:
        return x.leaky_relu(self.negative_slope)


class ELU:
    """x where positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0):
        self.alpha = as_number("ELU", "alpha", alpha)

    def __call__(self, x: Tensor) -> Tensor:
        return x.elu(self.alpha)


class GELU:
    """x * P(normal <= x): exact with erf ("none"), or the "tanh" approximation.

    The default is PyTorch's, exact; that of `Tensor.gelu` is the approximation. Source: Hendrycks & Gimpel 2016,
    https://arxiv.org/abs/1606.08415
    """

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise DTypeError(f"[GELU] expected approximate 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return x.gelu(self.approximate)


class SiLU:
    """x * sigmoid(x)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.silu()


class Mish:
    """x * tanh(softplus(x))."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.mish()


class Hardswish:
    """x * relu6(x + 3) / 6."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.hardswish()


class Softplus:
    """log(1 + exp(beta * x)) / beta."""

    def __init__(self, beta: float = 1.0):
        self.beta = as_number("Softplus", "beta", beta)

    def __call__(self, x: Tensor) -> Tensor:
        return x.softplus(self.beta)


class Sigmoid:
    """1 / (1 + exp(-x))."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.sigmoid()


class Tanh:
    """The hyperbolic tangent."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.tanh()


class Softmax:
    """exp(x) / sum(exp(x)) along the axis `dim`."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.softmax(self.dim)


class LogSoftmax:
    """log(softmax(x)) along the axis `dim`."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.log_softmax(self.dim)
