"""Functions and layers that draw numbers in training: dropout, also for self-normalising networks; ReLU with random
slopes."""
from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.inplace import result_of
from minigrad.mixins.modes import modes
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor

_FLOOR = -1.0507009873554805 * 1.6732632423543772  # what SELU tends to


def _dropout(axes: int) -> Callable[..., Tensor]:
    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """In training, zeroes each element (or channel) with probability p and scales the rest by 1/(1-p)."""
        leading = _own_axes(name, as_tensor(name, input), axes)
        with Tensor.train(training):
            return result_of(input, name, input._dropped_channels(p, leading), inplace)

    name = f"dropout{axes}d" if axes else "dropout"
    dropout.__name__ = name
    return dropout


def _own_axes(name: str, x: Tensor, axes: int) -> int:
    """The number of first axes of x that number what is kept or dropped as one, as PyTorch reads shapes: it warns of
    others than [N, C, ...] and [C, ...], and takes [C, H, W] for signals [N, C, L]."""
    if axes == 0:
        return x.ndim
    if x.ndim < (1 if axes == 3 else 2) or (axes == 1 and x.ndim > 3):
        raise ShapeError(f"[{name}] expected [N, C, ...] with {axes} further axes, or [C, ...], got {list(x.shape)}")
    if axes == 2 and x.ndim == 3:
        warnings.warn(f"[{name}] takes {list(x.shape)} for [N, C, L]: use dropout1d for that, and a batch axis for one "
                      "image", UserWarning, stacklevel=3)
    elif x.ndim not in (axes + 1, axes + 2):
        warnings.warn(f"[{name}] expected [N, C, ...] with {axes} further axes, got {list(x.shape)}: use dropout",
                      UserWarning, stacklevel=3)
    return 2 if axes == 2 or x.ndim == axes + 2 else 1


dropout, dropout1d, dropout2d, dropout3d = (_dropout(n) for n in (0, 1, 2, 3))


def _alpha_dropout(name: str, x: Tensor, p: float, whole: bool) -> Tensor:
    """x with dropped elements set to SELU's least value, then scaled and shifted so that mean and variance stay; with
    `whole`, channels of [N, C, ...] are dropped as a whole."""
    if not isinstance(p, (int, float)) or not 0 <= p <= 1 or (whole and as_tensor(name, x).ndim < 2):
        raise ShapeError(f"[{name}] expected a probability in 0..1{' and [N, C, ...]' if whole else ''}, got {p!r} and "
                         f"{list(as_tensor(name, x).shape)}")
    if p == 0:
        return x
    if p == 1:
        return x * 0
    scale = 1 / math.sqrt((1 - p) * (1 + p * _FLOOR * _FLOOR))
    planes = (*x.shape[:2], *[1] * (x.ndim - 2)) if whole else x.shape
    kept = Tensor.rand(*planes, device=x.device) >= p
    return kept.where(x, _FLOOR) * scale - scale * p * _FLOOR


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """In training, each element is SELU's least value with probability p; mean and variance stay as they are.

    Source: Klambauer et al. 2017, https://arxiv.org/abs/1706.02515
    """
    return result_of(as_tensor("alpha_dropout", input), "alpha_dropout", _alpha_dropout(
        "alpha_dropout", input, p, False) if training else input, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of [N, C, ...]."""
    dropped = _alpha_dropout("feature_alpha_dropout", input, p, True) if training else input
    return result_of(as_tensor("feature_alpha_dropout", input), "feature_alpha_dropout", dropped, inplace)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
          inplace: bool = False) -> Tensor:
    """x where positive, else x times a slope uniform in lower..upper in training, their mean without."""
    if not lower <= upper:
        raise ShapeError(f"[rrelu] expected lower <= upper, got {lower} and {upper}")
    x = as_tensor("rrelu", input)
    slope = Tensor.uniform(*x.shape, low=lower, high=upper, device=x.device).cast(x.dtype) if training else (
        lower + upper) / 2
    return result_of(x, "rrelu", (x >= 0).where(x, x * slope), inplace)


class AlphaDropout(Layer):
    """While training, `functional.alpha_dropout`; else the identity."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        return alpha_dropout(x, self.p, modes.now.training, self.inplace)


class FeatureAlphaDropout(Layer):
    """While training, `functional.feature_alpha_dropout`; else the identity."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        return feature_alpha_dropout(x, self.p, modes.now.training, self.inplace)


class RReLU(Layer):
    """`functional.rrelu`, with random slopes while training.

    Source: Xu et al. 2015, https://arxiv.org/abs/1505.00853
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, x: Tensor) -> Tensor:
        return rrelu(x, self.lower, self.upper, modes.now.training, self.inplace)
