"""Initial values, with PyTorch's names: each changes a Tensor in place, leaves included, and gives it back.

Weights are [out, in, ...]. fan_in is the number of inputs of one output, fan_out that of outputs of one input.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_number, as_tensor
from minigrad.random import Generator
from minigrad.tensor import Tensor

_GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
          "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor of the standard deviation of weights before a nonlinearity; `param` is the slope of 'leaky_relu', 0.01
    unless told. Raises MinigradError for unknown names."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else float(param)) ** 2))
    if nonlinearity not in _GAINS:
        raise MinigradError(f"[calculate_gain] expected one of {', '.join([*_GAINS, 'leaky_relu'])}, "
                            f"got {nonlinearity!r}")
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b)."""
    with Tensor.no_grad():
        if generator is not None:
            return tensor.copy_(_drawn("uniform_", tensor, generator, False) * (b - a) + a)
        return as_tensor("uniform_", tensor).uniform_(a, b)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal."""
    with Tensor.no_grad():
        if generator is not None:
            return tensor.copy_(_drawn("normal_", tensor, generator, True) * std + mean)
        return as_tensor("normal_", tensor).normal_(mean, std)


def _drawn(name: str, tensor: Tensor, generator: Any, normal: bool) -> Tensor:
    """Normal numbers, or ones uniform in [0, 1), of a generator, which the host draws."""
    if not isinstance(generator, Generator):
        raise MinigradError(f"[{name}] expected a Generator, got {type(generator).__name__}")
    numbers, shape = np.random.default_rng(generator.draw()), tuple([int(n) for n in as_tensor(name, tensor).shape])
    drawn = numbers.standard_normal(shape) if normal else numbers.random(shape)
    wide = tensor.dtype.compute
    return Tensor(drawn.astype(wide.np), dtype=wide, device=tensor.device)


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
                  generator: Generator | None = None) -> Tensor:
    """Normal among the numbers in a..b: by the inverse of the distribution."""
    low, high = (0.5 * (1 + math.erf((end - mean) / std / math.sqrt(2))) for end in (a, b))
    if not a < b:
        raise MinigradError(f"[trunc_normal_] expected a < b, got {a} and {b}")
    wide = as_tensor("trunc_normal_", tensor).dtype.compute
    if generator is None:
        share = Tensor.uniform(*tensor.shape, low=2 * low - 1, high=2 * high - 1, dtype=wide, device=tensor.device)
    else:
        share = _drawn("trunc_normal_", tensor, generator, False) * (2 * (high - low)) + (2 * low - 1)
    with Tensor.no_grad():
        return tensor.copy_((share.erfinv() * (std * math.sqrt(2)) + mean).clip(a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """All elements `val`."""
    with Tensor.no_grad():
        return as_tensor("constant_", tensor).fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """All elements 0."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """All elements 1."""
    return constant_(tensor, 1)


def eye_(tensor: Tensor) -> Tensor:
    """The identity, of a matrix."""
    rows, columns = _matrix("eye_", tensor)
    with Tensor.no_grad():
        return tensor.copy_(Tensor.eye(rows, columns, device=tensor.device))


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Rows or columns of [out, the rest] that are orthogonal, of length `gain`: Q of normal numbers (Saxe et al. 2013),
    which the host computes."""
    if as_tensor("orthogonal_", tensor).ndim < 2:
        raise ShapeError(f"[orthogonal_] expected weights [out, in, ...], got {list(tensor.shape)}")
    shape: Any = tensor.shape
    rows, columns = shape[0], math.prod(shape[1:])
    start = normal_(Tensor.empty(max(rows, columns), min(rows, columns)), generator=generator)
    q, r = np.linalg.qr(start.numpy().astype(np.float64))
    q = q * np.where(np.diag(r) < 0, -gain, gain)  # else Q would not be uniform among orthogonal matrices
    q = (q if rows >= columns else q.T).reshape(shape)
    with Tensor.no_grad():
        return tensor.copy_(Tensor(q.astype(np.float32), device=tensor.device))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Weights [out, in, *kernel] of a convolution that gives its input back: in each group, 1 in the kernel's middle
    from channel i to channel i."""
    if as_tensor("dirac_", tensor).ndim < 3 or int(tensor.shape[0]) % groups:
        raise ShapeError(f"[dirac_] expected weights [out, in, ...] with out divisible by {groups}, got "
                         f"{list(tensor.shape)}")
    outs, ins, *kernel = (int(n) for n in tensor.shape)
    same = Tensor.eye(outs // groups, ins, device=tensor.device).repeat(groups, 1)
    same = same.reshape(outs, ins, *[1] * len(kernel))
    pads = tuple([p for n in kernel[::-1] for p in (n // 2, n - n // 2 - 1)])
    with Tensor.no_grad():
        return tensor.copy_(same.pad(pads))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6 / max(sum(_fans("xavier_uniform_", tensor)), 1))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal, of the standard deviation gain * sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(sum(_fans("xavier_normal_", tensor)), 1)), generator)


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                     generator: Generator | None = None) -> Tensor:
    """Uniform in +-gain * sqrt(3 / fan), with the gain of `nonlinearity`, of slope `a` (He et al. 2015)."""
    bound = math.sqrt(3) * _deviation("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                    generator: Generator | None = None) -> Tensor:
    """Normal, of the standard deviation gain / sqrt(fan), with the gain of `nonlinearity`, of slope `a`."""
    return normal_(tensor, 0.0, _deviation("kaiming_normal_", tensor, a, mode, nonlinearity), generator)


def _deviation(name: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise MinigradError(f"[{name}] expected mode 'fan_in' or 'fan_out', got {mode!r}")
    fan_in, fan_out = _fans(name, tensor)
    gain = calculate_gain(nonlinearity, as_number(name, "a", a))
    return gain / math.sqrt(max(fan_in if mode == "fan_in" else fan_out, 1))


def _fans(name: str, tensor: Tensor) -> tuple[int, int]:
    if as_tensor(name, tensor).ndim < 2:
        raise ShapeError(f"[{name}] expected weights [out, in, ...], got {list(tensor.shape)}")
    outs, ins, *kernel = (int(n) for n in tensor.shape)
    return ins * math.prod(kernel), outs * math.prod(kernel)


def _matrix(name: str, tensor: Any) -> tuple[int, int]:
    if as_tensor(name, tensor).ndim != 2:
        raise ShapeError(f"[{name}] expected a matrix, got {list(tensor.shape)}")
    return int(tensor.shape[0]), int(tensor.shape[1])
