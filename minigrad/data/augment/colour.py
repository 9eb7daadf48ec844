"""Brightness, contrast, saturation, hue, and normalisation: which colours the pixels of a batch of images have."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minigrad.data.augment.draws import JITTER, images, numbers, share
from minigrad.dtype import float32
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])


def normalize(x: Tensor, mean: float | Sequence[float], std: float | Sequence[float]) -> Tensor:
    """float32: (x - mean) / std, of numbers for all channels or for each. Raises ShapeError."""
    _, c, _, _ = images("normalize", x)
    shift, scale = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (mean, std))
    if shift.size not in (1, c) or scale.size not in (1, c) or not (scale > 0).all():
        raise ShapeError(f"[normalize] expected a mean and a std above 0 for each of {c} channels, got {mean} and "
                         f"{std}")
    return (x.cast(float32) - Tensor(shift, device=x.device)) * Tensor(1 / scale, device=x.device)


def grey(x: Tensor) -> Tensor:
    """float32 [N, 1, H, W]: the luma (ITU-R BT.601) of images with three channels; those with one as they are."""
    if x.shape[1] == 1:
        return x.cast(float32)
    if x.shape[1] != 3:
        raise ShapeError(f"[augment] expected images with 3 channels, or 1, got {list(x.shape)}")
    weights = Tensor(_TO_YIQ[0].astype(np.float32), device=x.device).reshape(1, 3, 1, 1)
    return (x.cast(float32) * weights).sum(1, keepdim=True)


def color_jitter(x: Tensor, keys: Tensor, brightness: float = 0, contrast: float = 0, saturation: float = 0,
                 hue: float = 0) -> Tensor:
    """float32 in 0..255: each image with its brightness, contrast and saturation, in this order, times numbers in
    1 - amount..1 + amount, and its hue turned by a share of the circle in -hue..hue (in the plane of YIQ)."""
    images("color_jitter", x, keys)
    amounts = [share("color_jitter", name, value, most) for name, value, most in (
        ("brightness", brightness, 1), ("contrast", contrast, 1), ("saturation", saturation, 1), ("hue", hue, 0.5))]
    drawn = numbers(keys, JITTER, 4)
    light, spread, colour = (1 + (2 * u - 1) * amount for u, amount in zip(drawn[:3], amounts[:3], strict=True))
    x = x.cast(float32)
    if brightness:
        x = (x * light).clip(0, 255)
    if contrast:
        x = blended(x, grey(x).mean((2, 3), keepdim=True), spread)
    if saturation and x.shape[1] == 3:
        x = blended(x, grey(x), colour)
    if hue and x.shape[1] == 3:
        x = _turned(x, (2 * drawn[3] - 1) * (2 * math.pi * hue))
    return x


def blended(x: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """other + amount * (x - other), in 0..255."""
    return (other + amount * (x - other)).clip(0, 255)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Images whose colours are turned by `angle` around grey."""
    there, back = (m.astype(np.float32) for m in (_TO_YIQ, np.linalg.inv(_TO_YIQ)))

    def channels(planes: list[Tensor], matrix: np.ndarray) -> list[Tensor]:
        return [sum((p * float(f) for p, f in zip(planes[1:], row[1:], strict=True)), planes[0] * float(row[0]))
                for row in matrix]

    y, i, q = channels([x[:, k:k + 1] for k in range(3)], there)
    cos, sin = angle.cos(), angle.sin()
    return Tensor.cat(*channels([y, i * cos - q * sin, i * sin + q * cos], back), dim=1).clip(0, 255)
