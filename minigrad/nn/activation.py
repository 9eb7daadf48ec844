"""Activation functions as layers, with PyTorch's names and defaults."""
from __future__ import annotations

from minigrad.errors import DTypeError
from minigrad.mixins.base import as_count, as_number
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


class SELU:
    """elu(x, 1.6733) * 1.0507: it keeps mean 0 and variance 1 (Klambauer et al. 2017)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.selu()


class CELU:
    """x where positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0):
        self.alpha = as_number("CELU", "alpha", alpha)

    def __call__(self, x: Tensor) -> Tensor:
        return x.celu(self.alpha)


class PReLU:
    """x where positive, else weight * x. `weight` [num_parameters] is learnt: one, or one per channel of [N, C, ...].

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        count = as_count("PReLU", "num_parameters", num_parameters, 1)
        self.weight = Tensor.full((count,), float(init), requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x.prelu(self.weight)


class GLU:
    """The first half of the axis `dim` times the sigmoid of the second."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.glu(self.dim)


class Hardtanh:
    """x held within min_val..max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0):
        self.min_val, self.max_val = min_val, max_val

    def __call__(self, x: Tensor) -> Tensor:
        return x.hardtanh(self.min_val, self.max_val)


class Hardsigmoid:
    """relu6(x + 3) / 6."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.hardsigmoid()


class Hardshrink:
    """0 within -lambd..lambd, else x."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = as_number("Hardshrink", "lambd", lambd)

    def __call__(self, x: Tensor) -> Tensor:
        return x.hardshrink(self.lambd)


class Softshrink:
    """0 within -lambd..lambd, else x moved towards 0 by lambd."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = as_number("Softshrink", "lambd", lambd)

    def __call__(self, x: Tensor) -> Tensor:
        return x.softshrink(self.lambd)


class Tanhshrink:
    """x - tanh(x)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.tanhshrink()


class Softsign:
    """x / (1 + |x|)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.softsign()


class LogSigmoid:
    """log(sigmoid(x))."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.logsigmoid()


class Threshold:
    """x above the threshold, else `value`."""

    def __init__(self, threshold: float, value: float):
        self.threshold, self.value = threshold, value

    def __call__(self, x: Tensor) -> Tensor:
        return x.threshold(self.threshold, self.value)


class Softmin:
    """softmax(-x) along the axis `dim`."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.softmin(self.dim)


class Softmax2d:
    """softmax over the channels of images [N, C, H, W]."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.softmax(-3)
