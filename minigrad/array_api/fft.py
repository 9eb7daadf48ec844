"""The extension `fft`: Fourier transforms by factors of their length.

A length n = a b is a transform of length a, a rotation of each element, and one of length b: a product with the matrix
of a prime length costs a^2, so that n elements cost n times the sum of its factors. Sines and cosines are computed in
float64 and rounded once.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from minigrad.array_api.array import Array
from minigrad.array_api.complexes import Pair, multiply
from minigrad.array_api.creation import FLOAT
from minigrad.array_api.manipulation import roll
from minigrad.array_api.parts import as_parts, default
from minigrad.array_api.types import checked, part_of
from minigrad.errors import ShapeError
from minigrad.fft import fftfreq as _fftfreq
from minigrad.fft import rfftfreq as _rfftfreq
from minigrad.functions import cat
from minigrad.tensor import Tensor

LARGEST = 32
"""Up to this length a transform is one product with its matrix."""

__all__ = ["fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn",
           "rfft", "rfftfreq", "rfftn"]


@lru_cache(maxsize=64)
def _rotations(rows: int, columns: int, n: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of sign 2 pi j k / n for j < rows, k < columns."""
    angle = 2 * np.pi * sign / n * (np.outer(np.arange(rows), np.arange(columns)) % n)
    return np.cos(angle), np.sin(angle)


def _table(like: Tensor, rows: int, columns: int, n: int, sign: int) -> Pair:
    cos, sin = [Tensor(t.astype(like.dtype.np), device=like.device) for t in _rotations(rows, columns, n, sign)]
    return cos, sin


def _factor(n: int) -> int:
    """The greatest factor of n up to LARGEST, or n if it has none but 1."""
    return next((k for k in range(LARGEST, 1, -1) if n % k == 0), n) if n > LARGEST else n


def _transformed(x: Pair, sign: int) -> Pair:
    """The transform of the last axis, not scaled."""
    n = int(x[0].shape[-1])
    first = _factor(n)
    if first == n:
        cos, sin = _table(x[0], n, n, n, sign)
        return x[0] @ cos - x[1] @ sin, x[0] @ sin + x[1] @ cos
    second, batch = n // first, x[0].shape[:-1]
    inner = _transformed(_pair(x, lambda t: t.reshape(*batch, first, second).transpose(-1, -2)), sign)
    turned = multiply(inner, _table(x[0], second, first, n, sign))
    outer = _transformed(_pair(turned, lambda t: t.transpose(-1, -2)), sign)
    return _pair(outer, lambda t: t.transpose(-1, -2).reshape(*batch, n))


def _pair(x: Pair, function: Any) -> Pair:
    return function(x[0]), function(x[1])


def _sized(x: Any, n: int, axis: int) -> Any:
    """The array with n elements along an axis, cut or with zeros after them."""
    have = x.shape[axis]
    if n < 1:
        raise ShapeError(f"[fft] expected one element or more along axis {axis}, got {n}")
    before = (slice(None),) * (axis % x.ndim)
    if n <= have:
        return x if n == have else x[(*before, slice(0, n), ...)]
    shape = [*x.shape[:axis % x.ndim], n - have, *x.shape[axis % x.ndim + 1:]]
    return x.map(lambda t: cat([t, Tensor.zeros(*shape, dtype=t.dtype, device=t.device)], dim=axis))


def _scale(n: int, norm: str, forward: bool) -> float:
    if norm not in ("backward", "ortho", "forward"):
        raise ValueError(f"[fft] expected norm 'backward', 'ortho' or 'forward', got {norm!r}")
    return n ** -0.5 if norm == "ortho" else 1 / n if (norm == "forward") is forward else 1.0


def _along(name: str, x: Any, kinds: str, n: int | None, axis: int, norm: str, forward: bool) -> Any:
    checked(name, as_parts(name, x).dtype, kinds)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"[{name}] expected an axis of {x.ndim}, got {axis}")
    length = x.shape[axis] if n is None else index(n)
    given = _sized(x, length, axis)
    by = _scale(length, norm, forward)
    pair = _transformed(_pair(given.pair, lambda t: t.transpose(axis, -1)), -1 if forward else 1)
    return type(x)(*_pair(pair, lambda t: (t if by == 1 else t * by).transpose(axis, -1)))


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The transform of n elements along an axis."""
    return _along("fft", x, "fc", n, axis, norm, True)


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `fft`."""
    return _along("ifft", x, "fc", n, axis, norm, False)


def _half(x: Any, axis: int) -> Any:
    place = axis % x.ndim
    return x[(*(slice(None),) * place, slice(0, x.shape[place] // 2 + 1), ...)]


def _whole(name: str, x: Any, n: int | None, axis: int) -> tuple[Any, int]:
    """(both halves of a spectrum whose elements at -k are the conjugates of those at k, their number)."""
    checked(name, as_parts(name, x).dtype, "fc")
    length = 2 * (x.shape[axis] - 1) if n is None else index(n)
    half = _sized(x, length // 2 + 1, axis) if length > 0 else x
    place, count = axis % x.ndim, (length + 1) // 2 - 1
    re, im = half.pair
    if length < 1:
        raise ShapeError(f"[{name}] expected one element or more, got n={length}")
    mask = np.ones(length // 2 + 1)
    mask[0] = 0  # the imaginary parts that a spectrum of real numbers has not
    if length % 2 == 0:
        mask[-1] = 0
    keep = Tensor(mask.astype(im.dtype.np), device=im.device).reshape([-1 if a == place else 1 for a in range(x.ndim)])
    im = im.zeros_like().where(condition=keep == 0, other=im)
    part = (*(slice(None),) * place, slice(1, 1 + count))
    re = cat([re, re[part].flip(place)], dim=place)
    im = cat([im, -im[part].flip(place)], dim=place)
    return type(x)(re, im), length


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The transform of real numbers: its first n // 2 + 1 elements, of which the others are conjugates."""
    return _half(_along("rfft", x, "f", n, axis, norm, True), axis)


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `rfft`, of n elements, or an even number of them."""
    whole, length = _whole("irfft", x, n, axis)
    return type(x)(_along("irfft", whole, "c", length, axis, norm, False).re)


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The transform, which is real, of a signal whose elements at -k are the conjugates of those at k."""
    whole, length = _whole("hfft", x, n, axis)
    return type(x)(_along("hfft", whole, "c", length, axis, norm, True).re)


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `hfft`."""
    return _half(_along("ihfft", x, "f", n, axis, norm, False), axis)


def _axes(x: Any, s: Any, axes: Any) -> list[tuple[int | None, int]]:
    """(length or None, axis) of each axis to transform."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    sizes = [None] * len(axes) if s is None else list(s)
    if len(sizes) != len(axes):
        raise ShapeError(f"[fftn] expected a size for each axis, got {s} and {list(axes)}")
    return list(zip(sizes, axes, strict=True))


def fftn(x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
         norm: str = "backward") -> Any:
    """`fft` along axes, all for None."""
    for n, axis in _axes(as_parts("fftn", x), s, axes):
        x = fft(x, n=n, axis=axis, norm=norm)
    return x


def ifftn(x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
          norm: str = "backward") -> Any:
    """The inverse of `fftn`."""
    for n, axis in _axes(as_parts("ifftn", x), s, axes):
        x = ifft(x, n=n, axis=axis, norm=norm)
    return x


def rfftn(x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
          norm: str = "backward") -> Any:
    """`rfft` along the last of the axes, `fft` along the others."""
    *others, (n, axis) = _axes(as_parts("rfftn", x), s, axes)
    x = rfft(x, n=n, axis=axis, norm=norm)
    for n, axis in others:
        x = fft(x, n=n, axis=axis, norm=norm)
    return x


def irfftn(x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
           norm: str = "backward") -> Any:
    """The inverse of `rfftn`."""
    *others, (n, axis) = _axes(as_parts("irfftn", x), s, axes)
    for size, other in others:
        x = ifft(x, n=size, axis=other, norm=norm)
    return irfft(x, n=n, axis=axis, norm=norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of `fft` of n samples at distance d."""
    return Array(_fftfreq(n, d, dtype=part_of(default(dtype, FLOAT)), device=device))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of `rfft` of n samples at distance d."""
    return Array(_rfftfreq(n, d, dtype=part_of(default(dtype, FLOAT)), device=device))


def fftshift(x: Any, /, *, axes: Any = None) -> Any:
    """Moves frequency 0 to the middle of axes, of all for None."""
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: Any, axes: Any, sign: int) -> Any:
    as_parts(name, x, "fc")
    places = tuple(range(x.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    return roll(x, tuple([sign * (x.shape[a] // 2) for a in places]), axis=places)
