"""Crops, flips and erasing: which pixels a batch of images has."""
from __future__ import annotations

import math

from minigrad.data.augment.draws import CROP, ERASE, FLIP, as_index, images, numbers, share, steps
from minigrad.dtype import float32
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor

Size = int | tuple[int, int]


def _pair(op: str, size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ShapeError(f"[{op}] expected a size of 1 or more, got {size}")
    return height, width


def random_crop(x: Tensor, keys: Tensor, size: Size, padding: int = 0, fill: float = 0) -> Tensor:
    """A part of `size` anywhere in each image, after `padding` pixels of `fill` around it. Raises ShapeError where the
    image is smaller."""
    _, _, height, width = images("random_crop", x, keys)
    h, w = _pair("random_crop", size)
    spare_y, spare_x = height + 2 * padding - h, width + 2 * padding - w
    if spare_y < 0 or spare_x < 0 or padding < 0:
        raise ShapeError(f"[random_crop] expected a size of at most {height + 2 * padding} x {width + 2 * padding}, "
                         f"got {h} x {w}")
    u, v = numbers(keys, CROP, 2)
    top, left = (u * (spare_y + 1)).floor() - padding, (v * (spare_x + 1)).floor() - padding
    return picked(x, top + steps(h, x, 2), left + steps(w, x, 3), fill).cast(x.dtype)


def center_crop(x: Tensor, size: Size) -> Tensor:
    """The middle of each image. Raises ShapeError where the image is smaller."""
    _, _, height, width = images("center_crop", x)
    h, w = _pair("center_crop", size)
    if h > height or w > width:
        raise ShapeError(f"[center_crop] expected a size of at most {height} x {width}, got {h} x {w}")
    top, left = (height - h) // 2, (width - w) // 2
    return x[:, :, top:top + h, left:left + w]


def random_flip(x: Tensor, keys: Tensor, p: float = 0.5) -> Tensor:
    """Each image, or with probability `p` its mirror image, left for right."""
    images("random_flip", x, keys)
    mirrored, = numbers(keys, FLIP, 1)
    return (mirrored < share("random_flip", "p", p)).where(x.flip(3), x)


def random_resized_crop(x: Tensor, keys: Tensor, size: Size, scale: tuple[float, float] = (0.08, 1.0),
                        ratio: tuple[float, float] = (3 / 4, 4 / 3)) -> Tensor:
    """A part of each image with a random share of its area (`scale`) and proportions (`ratio`, width by height),
    resized to `size` by bilinear interpolation: float32. Parts that do not fit are as wide or as high as the image.

    Source: Szegedy et al. 2014, https://arxiv.org/abs/1409.4842
    """
    _, _, height, width = images("random_resized_crop", x, keys)
    h, w = _pair("random_resized_crop", size)
    if not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]):
        raise ShapeError(f"[random_resized_crop] expected 0 < least <= most <= 1 of scale and 0 < least <= most of "
                         f"ratio, got {scale} and {ratio}")
    a, b, u, v = numbers(keys, CROP, 4)
    area = (a * (scale[1] - scale[0]) + scale[0]) * (height * width)
    proportion = (b * (math.log(ratio[1]) - math.log(ratio[0])) + math.log(ratio[0])).exp()
    part_w = (area * proportion).sqrt().minimum(float(width))
    part_h = (area / proportion).sqrt().minimum(float(height))
    top, left = u * (height - part_h), v * (width - part_w)
    ys = top + (steps(h, x, 2) + 0.5) * (part_h / h) - 0.5
    xs = left + (steps(w, x, 3) + 0.5) * (part_w / w) - 0.5
    return sampled(x, ys.clip(0, height - 1), xs.clip(0, width - 1), None)


def random_erase(x: Tensor, keys: Tensor, p: float = 0.25, scale: tuple[float, float] = (0.02, 1 / 3),
                 ratio: tuple[float, float] = (0.3, 3.3), fill: float = 0) -> Tensor:
    """Each image, or with probability `p` one with a rectangle of `fill`, of a random share of its area and of random
    proportions (width by height).

    Source: Zhong et al. 2017, https://arxiv.org/abs/1708.04896
    """
    _, _, height, width = images("random_erase", x, keys)
    c, a, b, u, v = numbers(keys, ERASE, 5)
    area = (a * (scale[1] - scale[0]) + scale[0]) * (height * width)
    proportion = (b * (math.log(ratio[1]) - math.log(ratio[0])) + math.log(ratio[0])).exp()
    part_w = (area * proportion).sqrt().round().minimum(float(width))
    part_h = (area / proportion).sqrt().round().minimum(float(height))
    top, left = (u * (height - part_h + 1)).floor(), (v * (width - part_w + 1)).floor()
    inside = _within(steps(height, x, 2), top, part_h) & _within(steps(width, x, 3), left, part_w)
    return ((c < share("random_erase", "p", p)) & inside).where(fill, x).cast(x.dtype)


def cutout(x: Tensor, keys: Tensor, size: int, fill: float = 0) -> Tensor:
    """Each image with a square of `fill` around a random place, which may reach over the edge.

    Source: DeVries & Taylor 2017, https://arxiv.org/abs/1708.04552
    """
    _, _, height, width = images("cutout", x, keys)
    side, _ = _pair("cutout", size)
    u, v = numbers(keys, ERASE, 2)
    top, left = (u * height).floor() - side // 2, (v * width).floor() - side // 2
    inside = _within(steps(height, x, 2), top, side) & _within(steps(width, x, 3), left, side)
    return inside.where(fill, x).cast(x.dtype)


def _within(place: Tensor, start: Tensor, length: Tensor | float) -> Tensor:
    return (place >= start) & (place < start + length)


# Pixels by place


def picked(x: Tensor, ys: Tensor, xs: Tensor, fill: float | None) -> Tensor:
    """float32: the pixels of `x` at whole places `ys` and `xs`, float32 that broadcast to [N, 1, h, w]; `fill` outside
    of the image, or for None the nearest pixel."""
    n, c, height, width = images("picked", x)
    at = as_index(ys.clip(0, height - 1)) * width + as_index(xs.clip(0, width - 1))
    _, _, h, w = images("picked", at)
    at = at.expand(n, 1, h, w).reshape(n, 1, h * w).expand(n, c, h * w)
    pixels = x.reshape(n, c, height * width).gather(2, at).reshape(n, c, h, w).cast(float32)
    if fill is None:
        return pixels
    return ((ys >= 0) & (ys < height) & (xs >= 0) & (xs < width)).where(pixels, fill)


def sampled(x: Tensor, ys: Tensor, xs: Tensor, fill: float | None) -> Tensor:
    """float32: `x` at places between pixels, by bilinear interpolation; `fill` as in `picked`."""
    y0, x0 = ys.floor(), xs.floor()
    dy, dx = ys - y0, xs - x0
    upper = picked(x, y0, x0, fill) * (1 - dx) + picked(x, y0, x0 + 1, fill) * dx
    lower = picked(x, y0 + 1, x0, fill) * (1 - dx) + picked(x, y0 + 1, x0 + 1, fill) * dx
    return upper * (1 - dy) + lower * dy
