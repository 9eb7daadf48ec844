"""Decoding latents in tiles whose borders are blended, so that memory grows with a tile and not with the picture."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np


def decode_tiled(decode: Callable[[np.ndarray], np.ndarray], latents: np.ndarray, tile: int) -> np.ndarray:
    """Images of latents [N, C, H, W], by tiles of `tile` x `tile` (0, or as large as the latents: all at once).

    All tiles are of one size, so that one captured call decodes them; neighbours share a quarter of a tile or more, in
    which the picture goes from one to the other in a straight line. A tile's group norms see that tile alone: colours
    may differ a little from those of a picture that is decoded as a whole.
    """
    height, width = latents.shape[2:]
    if not tile or tile >= max(height, width):
        return decode(latents)
    rows, columns = min(tile, height), min(tile, width)
    total = weights = np.zeros(0, np.float32)
    for top in starts(height, rows):
        for left in starts(width, columns):
            part = decode(np.ascontiguousarray(latents[:, :, top:top + rows, left:left + columns]))
            scale = part.shape[2] // rows
            if not total.size:
                total = np.zeros((*part.shape[:2], height * scale, width * scale), np.float32)
                weights = np.zeros((height * scale, width * scale), np.float32)
            share = np.outer(ramp(rows, top, height, scale), ramp(columns, left, width, scale))
            place = np.s_[top * scale:(top + rows) * scale, left * scale:(left + columns) * scale]
            total[:, :, *place] += part * share
            weights[place] += share
    return total / weights


def starts(size: int, tile: int) -> list[int]:
    """Places where tiles begin: evenly, with a quarter of a tile or more in common."""
    count = 1 if tile >= size else 1 + -(-(size - tile) // (tile - tile // 4))
    return [round(number * (size - tile) / max(count - 1, 1)) for number in range(count)]


def ramp(tile: int, start: int, size: int, scale: int) -> np.ndarray:
    """Weights of a tile's pixels along an axis: they grow from an inner border, and are 1 elsewhere."""
    pixels, border = tile * scale, tile // 4 * scale
    rise = np.minimum((np.arange(pixels) + 0.5) / max(border, 1), 1).astype(np.float32)
    ones = np.ones(pixels, np.float32)
    return np.minimum(rise if start else ones, rise[::-1] if start + tile < size else ones)
