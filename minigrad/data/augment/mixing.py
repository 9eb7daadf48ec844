"""Mixup and cutmix: images that are two, with labels that are both. The partner of image k is image N - 1 - k."""
from __future__ import annotations

import numpy as np

from minigrad.data.augment.draws import CHOOSE, MIX, as_index, draws, images, numbers, steps
from minigrad.dtype import float32
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor

_POINTS = 1024


def one_hot(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """float32 [N, classes] of labels [N]: 1 - smoothing at the label, and smoothing shared by all classes."""
    hot = labels.one_hot(classes).cast(float32)
    return hot * (1 - smoothing) + smoothing / classes if smoothing else hot


def mixup(x: Tensor, y: Tensor, keys: Tensor, alpha: float = 0.2) -> tuple[Tensor, Tensor]:
    """(images, labels [N, classes]), each the share s of its own and 1 - s of its partner's, s of Beta(alpha, alpha).

    Source: Zhang et al. 2017, https://arxiv.org/abs/1710.09412
    """
    _check("mixup", x, y, keys)
    own = beta(draws(keys, MIX, 1), alpha)
    pixels = x.cast(float32)
    return _shared(pixels, pixels.flip(0), own.reshape(-1, 1, 1, 1)), _shared(y, y.flip(0), own)


def cutmix(x: Tensor, y: Tensor, keys: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """(images, labels [N, classes]): a rectangle of each image is its partner's, of a share of the area of
    Beta(alpha, alpha), and labels are shared by areas.

    Source: Yun et al. 2019, https://arxiv.org/abs/1905.04899
    """
    _check("cutmix", x, y, keys)
    inside = _box(x, keys, alpha)
    return inside.where(x.flip(0), x), _shared(y, y.flip(0), 1 - inside.cast(float32).mean((2, 3)).reshape(-1, 1))


def mixup_or_cutmix(x: Tensor, y: Tensor, keys: Tensor, mixup_alpha: float, cutmix_alpha: float,
                    ) -> tuple[Tensor, Tensor]:
    """Each image by one of both, with equal probability, where both alphas are above 0; else by the one that is."""
    if not mixup_alpha or not cutmix_alpha:
        return mixup(x, y, keys, mixup_alpha) if mixup_alpha else cutmix(x, y, keys, cutmix_alpha)
    first = draws(keys, CHOOSE, 1) < 0.5
    (xm, ym), (xc, yc) = mixup(x, y, keys, mixup_alpha), cutmix(x, y, keys, cutmix_alpha)
    return first.reshape(-1, 1, 1, 1).where(xm, xc.cast(float32)), first.where(ym, yc)


def beta(uniform: Tensor, alpha: float) -> Tensor:
    """Numbers of Beta(alpha, alpha), as its quantiles at uniform numbers: a table of 1,025 points, interpolated.

    The table is of t**alpha for the quantiles t up to 1/2, which is nearly straight; the others are 1 - t.
    """
    if not alpha > 0:
        raise ShapeError(f"[augment] expected an alpha above 0, got {alpha!r}")
    table = Tensor(beta_table(alpha).astype(np.float32), device=uniform.device)
    low = uniform < 0.5
    at = low.where(uniform, 1 - uniform) * (2 * _POINTS)
    k = at.floor().clip(0, _POINTS - 1)
    near, next_one = (table.gather(0, as_index(k + d).reshape(-1)).reshape(*uniform.shape) for d in (0, 1))
    t = (near + (at - k) * (next_one - near)) ** (1 / alpha)
    return low.where(t, 1 - t)


def beta_table(alpha: float) -> np.ndarray:
    """float64 [1025]: t**alpha where the distribution function of Beta(alpha, alpha) is 0, 1/2048, ..., 1/2."""
    v = np.linspace(0, 0.5 ** alpha, 1 << 16)
    middle = (v[1:] + v[:-1]) / 2
    below = np.concatenate([[0], np.cumsum((1 - middle ** (1 / alpha)) ** (alpha - 1))])
    return np.interp(np.linspace(0, 1, _POINTS + 1), below / below[-1], v)


def _box(x: Tensor, keys: Tensor, alpha: float) -> Tensor:
    """A mask [N, 1, H, W], True where images are their partner's: a rectangle around a random place, cut at edges."""
    _, _, height, width = images("cutmix", x)
    a, u, v = numbers(keys, MIX, 3)
    side = (1 - beta(a, alpha)).maximum(0.0).sqrt()
    inside = None
    for at, length, axis in ((u, height, 2), (v, width, 3)):
        middle, half = (at * length).floor(), (side * length).floor() * 0.5
        place = steps(length, x, axis)
        within = (place >= (middle - half).floor()) & (place < (middle + half).floor())
        inside = within if inside is None else inside & within
    return inside if inside is not None else x


def _shared(own: Tensor, other: Tensor, part: Tensor) -> Tensor:
    return own * part + other * (1 - part)


def _check(op: str, x: Tensor, y: Tensor, keys: Tensor) -> None:
    n, *_ = images(op, x, keys)
    if y.ndim != 2 or y.shape[0] != n or not y.dtype.is_float:
        raise ShapeError(f"[{op}] expected labels as probabilities [{n}, classes], as one_hot gives, got {y.dtype} "
                         f"{list(y.shape)}")
