"""Random numbers of samples, as Tensors: functions of the sample's key, of what they are for, and of a place."""
from __future__ import annotations

import numpy as np

from minigrad.dtype import float32, int32, uint32
from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import as_number
from minigrad.tensor import Tensor

CROP, FLIP, JITTER, ERASE, MIX, CHOOSE, RAND = range(1, 8)
"""Purposes of numbers; each augmentation has its own, so that none repeats another's."""

_ODD = 0x9E3779B9


def draws(keys: Tensor, purpose: int, count: int) -> Tensor:
    """float32 [N, count], uniform in [0, 1), of keys uint32 [N]: 24 bits of a hash of key, purpose and place.

    Source of the hash: C. Wellons' `lowbias32`, https://github.com/skeeto/hash-prospector (public domain)
    """
    if keys.dtype is not uint32 or keys.ndim != 1:
        raise DTypeError(f"[augment] expected keys of uint32 [N], as DataLoader(keys=True) gives, got {keys.dtype} "
                         f"{list(keys.shape)}")
    places = np.arange(purpose * 64 + 1, purpose * 64 + 1 + count, dtype=np.uint64) * _ODD % (1 << 32)
    x = keys.reshape(-1, 1) + Tensor(places.astype(np.uint32), device=keys.device).reshape(1, -1)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = x ^ (x >> shift)
        x = x if factor == 1 else x * Tensor(np.uint32(factor), device=keys.device)
    return (x >> 8).cast(float32) * 2.0 ** -24


def numbers(keys: Tensor, purpose: int, count: int) -> list[Tensor]:
    """`draws` as `count` Tensors [N, 1, 1, 1], which pixels take part in sums with."""
    found = draws(keys, purpose, count)
    return [found[:, k].reshape(-1, 1, 1, 1) for k in range(count)]


def images(op: str, x: Tensor, keys: Tensor | None = None) -> tuple[int, int, int, int]:
    """The sizes [N, C, H, W] of a batch. Raises ShapeError for anything else, and for another number of keys."""
    if x.ndim != 4 or not all(isinstance(size, int) for size in x.shape):
        raise ShapeError(f"[{op}] expected images [N, C, H, W], got {list(x.shape)}")
    if keys is not None and keys.shape != (x.shape[0],):
        raise ShapeError(f"[{op}] expected a key for each of {x.shape[0]} images, got {list(keys.shape)}")
    n, c, h, w = x.shape
    return int(n), int(c), int(h), int(w)


def share(op: str, name: str, value: float, most: float = 1.0) -> float:
    """A number in 0..most. Raises ShapeError."""
    number = as_number(op, name, value)
    if not 0 <= number <= most:
        raise ShapeError(f"[{op}] expected {name} in 0..{most:g}, got {value!r}")
    return float(number)


def steps(count: int, like: Tensor, axis: int) -> Tensor:
    """float32 0..count-1 along one of four axes."""
    shape = [1, 1, 1, 1]
    shape[axis] = count
    return Tensor.arange(count, device=like.device).cast(float32).reshape(*shape)


def as_index(x: Tensor) -> Tensor:
    """Whole numbers of float32 as int32."""
    return x.cast(int32)
