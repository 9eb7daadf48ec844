"""`torch.fft` for real numbers: the frequencies of transforms and their order. Tensors are real here, so that there are
no transforms but `Tensor.stft` and `istft`, whose spectra have (real, imaginary) in a last axis of 2."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.mixins.base import as_axes, as_count, as_number, as_tensor
from minigrad.tensor import Tensor

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


def fftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies [n] of a transform of n samples at distance `d`, first 0 and the positive ones."""
    n, d = as_count("fftfreq", "n", n, 1), as_number("fftfreq", "d", d)
    return ifftshift(Tensor.arange(-(n // 2), (n + 1) // 2, **{"dtype": "float32", **options}) / (n * d))


def rfftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies [n // 2 + 1] that are not negative."""
    n, d = as_count("rfftfreq", "n", n, 1), as_number("rfftfreq", "d", d)
    return Tensor.arange(n // 2 + 1, **{"dtype": "float32", **options}) / (n * d)


def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Moves frequency 0 to the middle of each axis of `dim`, of all axes without it."""
    axes = as_axes("fftshift", dim, as_tensor("fftshift", input).ndim)
    return input.roll([input.shape[a] // 2 for a in axes], axes)


def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`: moves frequency 0 from the middle of each axis back to its start."""
    axes = as_axes("ifftshift", dim, as_tensor("ifftshift", input).ndim)
    return input.roll([-(input.shape[a] // 2) for a in axes], axes)
