"""Activation functions as layers, with PyTorch's names and defaults."""
from __future__ import annotations

from minigrad.errors import DTypeError
from minigrad.mixins.base import as_count, as_number, as_tensor
from minigrad.mixins.inplace import result_of
from minigrad.nn import functional
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


class _InPlace(Layer):
    """With `inplace`, the input's handle gets the result too, as by a method that ends in `_`; it saves nothing."""

    def __init__(self, inplace: bool = False):
        self.inplace = inplace


class ReLU(_InPlace):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("ReLU", x), "ReLU", x.relu(), self.inplace)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("ReLU6", x), "ReLU6", x.relu6(), self.inplace)


class LeakyReLU(_InPlace):
    """x where positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        super().__init__(inplace)
        self.negative_slope = as_number("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("LeakyReLU", x), "LeakyReLU", x.leaky_relu(self.negative_slope), self.inplace)


class ELU(_InPlace):
    """x where positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = as_number("ELU", "alpha", alpha)

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("ELU", x), "ELU", x.elu(self.alpha), self.inplace)


class GELU(Layer):
    """x * P(normal <= x): exact with erf ("none"), or the "tanh" approximation.

    The default is PyTorch's, exact; that of `Tensor.gelu` is the approximation. Source: Hendrycks & Gimpel 2016,
    https://arxiv.org/abs/1606.08415
    """

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise DTypeError(f"[GELU] expected approximate 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("GELU", x).gelu(self.approximate)


class SiLU(_InPlace):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("SiLU", x), "SiLU", x.silu(), self.inplace)


class Mish(_InPlace):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Mish", x), "Mish", x.mish(), self.inplace)


class Hardswish(_InPlace):
    """x * relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Hardswish", x), "Hardswish", x.hardswish(), self.inplace)


class Softplus(Layer):
    """log(1 + exp(beta * x)) / beta, x itself where beta * x is above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta, self.threshold = as_number("Softplus", "beta", beta), as_number("Softplus", "threshold", threshold)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Softplus", x).softplus(self.beta, self.threshold)


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Sigmoid", x).sigmoid()


class Tanh(Layer):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Tanh", x).tanh()


class Softmax(Layer):
    """exp(x) / sum(exp(x)) along the axis `dim`."""

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(as_tensor("Softmax", x), self.dim, _stacklevel=5)


class LogSoftmax(Layer):
    """log(softmax(x)) along the axis `dim`."""

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(as_tensor("LogSoftmax", x), self.dim, _stacklevel=5)


class SELU(_InPlace):
    """elu(x, 1.6733) * 1.0507: it keeps mean 0 and variance 1 (Klambauer et al. 2017)."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("SELU", x), "SELU", x.selu(), self.inplace)


class CELU(_InPlace):
    """x where positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = as_number("CELU", "alpha", alpha)

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("CELU", x), "CELU", x.celu(self.alpha), self.inplace)


class PReLU(Layer):
    """x where positive, else weight * x. `weight` [num_parameters] is learnt: one, or one per channel of [N, C, ...].

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        count = as_count("PReLU", "num_parameters", num_parameters, 1)
        self.weight = Tensor.full((count,), as_number("PReLU", "init", init), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("PReLU", x).prelu(self.weight)


class GLU(Layer):
    """The first half of the axis `dim` times the sigmoid of the second."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("GLU", x).glu(self.dim)


class Hardtanh(_InPlace):
    """x held within min_val..max_val, which older programs call min_value and max_value."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False,
                 min_value: float | None = None, max_value: float | None = None):
        super().__init__(inplace)
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Hardtanh", x), "Hardtanh", x.hardtanh(self.min_val, self.max_val), self.inplace)


class Hardsigmoid(_InPlace):
    """relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Hardsigmoid", x), "Hardsigmoid", x.hardsigmoid(), self.inplace)


class Hardshrink(Layer):
    """0 within -lambd..lambd, else x."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = as_number("Hardshrink", "lambd", lambd)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Hardshrink", x).hardshrink(self.lambd)


class Softshrink(Layer):
    """0 within -lambd..lambd, else x moved towards 0 by lambd."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = as_number("Softshrink", "lambd", lambd)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Softshrink", x).softshrink(self.lambd)


class Tanhshrink(Layer):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Tanhshrink", x).tanhshrink()


class Softsign(Layer):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Softsign", x).softsign()


class LogSigmoid(Layer):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("LogSigmoid", x).logsigmoid()


class Threshold(_InPlace):
    """x above the threshold, else `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Threshold", x), "Threshold", x.threshold(self.threshold, self.value), self.inplace)


class Softmin(Layer):
    """softmax(-x) along the axis `dim`."""

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmin(as_tensor("Softmin", x), self.dim, _stacklevel=5)


class Softmax2d(Layer):
    """softmax over the channels of images [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Softmax2d", x).softmax(-3)
