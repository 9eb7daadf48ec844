"""Short-time Fourier transforms, as convolutions with cosines and sines: spectra are pairs (real, imaginary) of floats
in a last axis of 2, as `torch.view_as_real` gives them.

Each frame costs n_fft * n_fft products, which for the usual hundreds to thousands of points is a matter of one matrix
product; there is no fast transform.
"""
from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Self

import numpy as np

from minigrad.errors import DTypeError, ShapeError, quantity
from minigrad.mixins.base import Base, as_count, as_tensor

_LEAST = 1e-11  # what windows must add up to where a signal is known


class SpectrumMixin(Base):
    __slots__ = ()

    def stft(self, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
             center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool = True,
             return_complex: bool = False) -> Self:
        """Spectra of frames of signals [L] or [N, L], every `hop_length` (n_fft // 4 unless told): [..., F, T, 2],
        where F is n_fft // 2 + 1 frequencies, or n_fft without `onesided`.

        A frame is n_fft elements times `window` [win_length], which is ones unless told and in the middle of n_fft.
        With `center`, signals are padded by n_fft // 2 on both sides as `pad_mode` says. `normalized` divides by
        sqrt(n_fft). Raises ShapeError for a signal shorter than a frame.
        """
        if return_complex:
            raise ShapeError("[stft] expected return_complex=False: spectra are pairs (real, imaginary) in a last axis")
        if self.ndim not in (1, 2) or not self.dtype.is_float:
            raise ShapeError(f"[stft] expected signals [L] or [N, L] of floats, got {self.dtype} {list(self.shape)}")
        size, hop, window = self._frames("stft", n_fft, hop_length, win_length, window)
        x = self.reshape(-1, 1, self.shape[-1])
        x = x.pad((size // 2, size // 2), pad_mode) if center else x
        if isinstance(x.shape[-1], int) and x.shape[-1] < size:
            raise ShapeError(f"[stft] expected signals of at least {quantity(size, 'element')}, got {list(self.shape)}")
        table = _cosines(size, size // 2 + 1 if onesided else size)
        waves = self._from_data(table * (size ** -0.5 if normalized else 1), None, self.device).cast(self.dtype)
        weight = waves if window is None else waves * window
        spectra = x.conv2d(weight.reshape(-1, 1, size), stride=hop)
        pairs = spectra.reshape(spectra.shape[0], 2, -1, spectra.shape[-1]).permute(0, 2, 3, 1)
        return pairs if self.ndim == 2 else pairs.squeeze(0)

    def istft(self, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
              center: bool = True, normalized: bool = False, onesided: bool = True, length: int | None = None,
              return_complex: bool = False) -> Self:
        """The signals [L] or [N, L] whose `stft` is nearest to spectra [..., F, T, 2], by the same arguments: frames
        times windows, added and divided by what the windows' squares add up to; 0 where that is nothing. `length` cuts
        or pads with zeros."""
        if return_complex:
            raise ShapeError("[istft] expected return_complex=False: signals are real")
        size, hop, window = self._frames("istft", n_fft, hop_length, win_length, window)
        count = size // 2 + 1 if onesided else size
        if self.ndim not in (3, 4) or self.shape[-1] != 2 or self.shape[-3] != count or not self.dtype.is_float:
            raise ShapeError(f"[istft] expected spectra [..., {count}, T, 2] of floats, got {self.dtype} "
                             f"{list(self.shape)}")
        pairs = self if self.ndim == 4 else self.unsqueeze(0)
        frames: Any = pairs.shape[2]
        table = _cosines(size, count) / size
        if onesided:  # the others are the conjugates of these
            table = table * np.tile(np.where((np.arange(count) * 2) % size == 0, 1.0, 2.0), 2)[:, None]
        waves = self._from_data(table * (size ** 0.5 if normalized else 1), None, self.device).cast(self.dtype)
        ones = waves.ones_like()[:1] if window is None else window.reshape(1, size)
        columns = pairs.permute(0, 3, 1, 2).reshape(pairs.shape[0], 2 * count, frames)
        added = columns.conv_transpose2d((waves * ones).reshape(-1, 1, size), stride=hop)
        share = ones.square().expand(frames, size).transpose(0, 1).reshape(1, size, frames)
        picked = self.eye(size, dtype=self.dtype, device=self.device).reshape(size, 1, size)
        total = share.conv_transpose2d(picked, stride=hop)
        known = total > _LEAST
        signal = known.where(added / known.where(total, 1), 0).squeeze(1)
        start = size // 2 if center else 0
        end = signal.shape[1] - start
        if length is not None:
            end = min(start + as_count("istft", "length", length), signal.shape[1])
        signal = signal._cut(1, start, end)
        signal = signal if length is None else signal.pad((0, start + length - end))
        return signal if self.ndim == 4 else signal.squeeze(0)

    def _frames(self, name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Any) -> tuple[
            int, int, Any]:
        """(n_fft, the hop, the window [n_fft] or None)."""
        size = as_count(name, "n_fft", n_fft, 1)
        hop = size // 4 if hop_length is None else hop_length
        inside = size if win_length is None else as_count(name, "win_length", win_length, 1)
        as_count(name, "hop_length", hop, 1)
        if inside > size:
            raise ShapeError(f"[{name}] expected a win_length of at most n_fft {size}, got {inside}")
        if window is None:
            window = None if inside == size else self.ones(inside, dtype=self.dtype, device=self.device)
        elif as_tensor(name, window).shape != (inside,):
            raise ShapeError(f"[{name}] expected a window [{inside}], got {list(window.shape)}")
        if window is not None:
            if not window.dtype.is_float:
                raise DTypeError(f"[{name}] expected a window of floats, got {window.dtype}")
            left = (size - inside) // 2
            window = window.cast(self.dtype).pad((left, size - inside - left))
        return size, hop, window


@lru_cache(maxsize=8)
def _cosines(size: int, count: int) -> np.ndarray:
    """cos and -sin of 2 pi k n / size for `count` frequencies k: float64 [2 * count, size]. Angles are exact."""
    angles = 2 * math.pi / size * (np.arange(count)[:, None] * np.arange(size) % size)
    return np.concatenate([np.cos(angles), -np.sin(angles)])
