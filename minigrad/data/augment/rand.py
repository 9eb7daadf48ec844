"""RandAugment: a few operations of a list, drawn for each image, at one magnitude for all."""
from __future__ import annotations

import math

import numpy as np

from minigrad.data.augment.colour import grey
from minigrad.data.augment.draws import RAND, draws, images, share, steps
from minigrad.data.augment.geometry import sampled
from minigrad.dtype import float32
from minigrad.tensor import Tensor

OPERATIONS = ("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color",
              "contrast", "sharpness", "posterize", "solarize", "autocontrast")
"""The operations of the paper but for equalising histograms."""


def rand_augment(x: Tensor, keys: Tensor, count: int = 2, magnitude: float = 9, fill: float = 128) -> Tensor:
    """float32 in 0..255: `count` operations one after the other on each image [N, 3, H, W], drawn from `OPERATIONS`, at
    a magnitude of 0..10 with a random sign. `fill` is what comes in from outside of the image.

    An operation is a choice of numbers in two formulas, the place of a pixel and its colour, so that all images of a
    batch go through the same kernel.

    Source: Cubuk et al. 2019, https://arxiv.org/abs/1909.13719
    """
    images("rand_augment", x, keys)
    level = share("rand_augment", "magnitude", magnitude, 10) / 10
    x = x.cast(float32)
    drawn = draws(keys, RAND, 2 * count)
    for k in range(count):
        which = (drawn[:, 2 * k] * len(OPERATIONS)).floor().reshape(-1, 1, 1, 1)
        sign = (drawn[:, 2 * k + 1] < 0.5).where(-1.0, 1.0).reshape(-1, 1, 1, 1)
        x = _coloured(_moved(x, which, sign * level, fill), which, sign * level, level)
    return x


def _moved(x: Tensor, which: Tensor, amount: Tensor, fill: float) -> Tensor:
    """Images sheared by up to 0.3, moved by up to 0.45 of their size, or turned by up to 30 degrees; the others as they
    are."""
    _, _, height, width = images("rand_augment", x)

    def of(name: str, most: float) -> Tensor:
        return which.eq(OPERATIONS.index(name)).where(amount * most, 0.0)

    angle = of("rotate", math.pi / 6)
    cos, sin = angle.cos(), angle.sin()
    y, z = steps(height, x, 2) - (height - 1) / 2, steps(width, x, 3) - (width - 1) / 2
    ys = y * cos - z * sin + z * of("shear_y", 0.3) + of("translate_y", 0.45 * height)
    xs = z * cos + y * sin + y * of("shear_x", 0.3) + of("translate_x", 0.45 * width)
    return sampled(x, ys + (height - 1) / 2, xs + (width - 1) / 2, fill)


def _coloured(x: Tensor, which: Tensor, amount: Tensor, level: float) -> Tensor:
    """Images whose colours an operation has changed: a * x + b * other, then solarised above `limit` or rounded down to
    steps of `step`."""
    def is_(name: str) -> Tensor:
        return which.eq(OPERATIONS.index(name))

    luma = grey(x)
    factor = 1 + 0.9 * amount
    other = is_("color").where(luma, is_("contrast").where(luma.mean((2, 3), keepdim=True),
                                                           is_("sharpness").where(_smooth(x), 0.0)))
    blends = is_("brightness") | is_("color") | is_("contrast") | is_("sharpness")
    low, high = x.min((2, 3), keepdim=True), x.max((2, 3), keepdim=True)
    stretch = is_("autocontrast") & (high > low)
    scale = stretch.where(255 / (high - low).maximum(1e-3), blends.where(factor, 1.0))
    y = (x * scale + blends.where(other * (1 - factor), 0.0) - stretch.where(low * scale, 0.0)).clip(0, 255)
    y = (is_("solarize") & (y >= 255 - 255 * level)).where(255 - y, y)
    return is_("posterize").where((y / 2.0 ** round(4 * level)).floor() * 2.0 ** round(4 * level), y)


def _smooth(x: Tensor) -> Tensor:
    """Each pixel as the mean of its 3 x 3 neighbours, with itself five times; pixels at the edge as they are."""
    _, _, height, width = images("rand_augment", x)
    if height < 3 or width < 3:
        return x
    weights = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    parts = [x[:, :, i:height - 2 + i, j:width - 2 + j] * float(weights[i, j]) for i in range(3) for j in range(3)]
    inner = sum(parts[1:], parts[0]).pad((1, 1, 1, 1))
    y, z = steps(height, x, 2), steps(width, x, 3)
    return ((y > 0) & (y < height - 1) & (z > 0) & (z < width - 1)).where(inner, x)
