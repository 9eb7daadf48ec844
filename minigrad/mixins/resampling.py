"""Resampling of images and signals: interpolation to other sizes, sampling at given places, pixels and channels.

The place of an element in the source is a fraction of integers, so that no size is rounded: its floor and its remainder
are integer arithmetic of the kernel that reads.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.expr import divides
from minigrad.mixins.base import Base, as_count, as_number, as_tensor
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.rounding import rounded_once

_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}
_MODES = ("nearest", "nearest-exact", *_LINEAR, "bicubic", "area")
_CUBIC = -0.75  # the slope that PyTorch's bicubic convolution has at 1 (Keys 1981)
_FINEST = 4096  # largest denominator of a scale


class ResamplingMixin(Base):
    """Tensors are [N, C, ...]; what is resampled are the last axes."""

    __slots__ = ()

    @as_one_node
    def interpolate(self, size: Any = None, mode: str = "nearest", align_corners: bool = False, *,
                    scale_factor: Any = None, antialias: bool = False) -> Self:
        """The last axes resampled to `size`, or to `scale_factor` times their lengths: one number for all axes behind
        the second, or one per axis.

        `mode`: 'nearest' takes the element at or before each place, 'nearest-exact' the nearest one, 'linear'
        ('bilinear', 'trilinear') and 'bicubic' weigh 2 and 4 elements per axis, 'area' means. With `align_corners` the
        first and last elements of the weighing modes are those of the source. Gradients are those of the weights.
        `antialias`: 'bilinear' and 'bicubic' weigh as many elements as fall together where there are fewer afterwards.
        Raises ShapeError for other modes, for neither or both of size and scale, and where nothing can be resampled.
        """
        if mode not in _MODES:
            raise ShapeError(f"[interpolate] expected mode {', '.join(map(repr, _MODES))}, got {mode!r}")
        axes, sizes, ratios = self._resampled(size, scale_factor)
        if mode == "area":
            return self.adaptive_avg_pool2d(tuple(sizes))
        x = self.cast(self.dtype.compute)
        weighing = mode == "bicubic" or mode in _LINEAR
        if antialias and mode not in ("bilinear", "bicubic"):
            raise ShapeError(f"[interpolate] expected mode 'bilinear' or 'bicubic' with antialias, got {mode!r}")
        if weighing:
            x = x._as_float()
        for axis, n, ratio in zip(axes, sizes, ratios, strict=True):
            if n == x.shape[axis] and (ratio == 1 or mode in _LINEAR):  # as in PyTorch, whatever the scale
                continue
            if n and x.shape[axis] == 0:
                raise ShapeError(f"[interpolate] expected elements along axis {axis}, got {list(self.shape)}")
            if weighing:
                weigh = x._averaged if antialias else x._weighed
                x = weigh(axis, n, ratio, mode == "bicubic", align_corners)
            else:
                x = x._nearest(axis, n, ratio, mode == "nearest-exact")
        return x.cast(self._as_float().dtype if weighing else self.dtype)

    def _resampled(self, size: Any, scale: Any) -> tuple[list[int], list[int], list[Fraction]]:
        """(axes, their new lengths, steps in the source per element)."""
        given = size if scale is None else scale
        if (size is None) == (scale is None):
            raise ShapeError(f"[interpolate] expected size or scale_factor, got {size!r} and {scale!r}")
        each = tuple(given) if isinstance(given, (tuple, list)) else (given,) * max(self.ndim - 2, 1)
        if len(each) > self.ndim:
            raise ShapeError(f"[interpolate] expected one size for each of the last axes of {list(self.shape)}, "
                             f"got {given!r}")
        axes = list(range(self.ndim - len(each), self.ndim))
        lengths: list[Any] = [self.shape[a] for a in axes]
        if scale is None:
            sizes = [as_count("interpolate", "sizes", n) for n in each]
            return axes, sizes, [Fraction(old, max(n, 1)) for old, n in zip(lengths, sizes, strict=True)]
        scales = [as_number("interpolate", "scale_factor", s) for s in each]
        if min(scales) <= 0:
            raise ShapeError(f"[interpolate] expected scales above 0, got {given!r}")
        sizes = [int(old * s) for old, s in zip(lengths, scales, strict=True)]
        return axes, sizes, [1 / Fraction(s).limit_denominator(_FINEST) if s > 1 else
                             Fraction(1 / s).limit_denominator(_FINEST) for s in scales]

    def _nearest(self, axis: int, n: int, ratio: Fraction, exact: bool) -> Self:
        p, q = ratio.numerator, ratio.denominator
        if p == 1 and n == self.shape[axis] * q:  # whole scales are movement, and their gradients sums
            return self.repeat_interleave(q, axis)
        order = type(self).arange(n, device=self.device)
        index = ((order * 2 + 1) * p) // (2 * q) if exact else (order * p) // q
        last: Any = self.shape[axis] - 1
        return self._looked_up(axis, index.minimum(last))

    def _looked_up(self, axis: int, index: Self) -> Self:
        """The elements at an index [n] of one axis, without a change of the order in memory."""
        shape: list[Any] = list(self.shape)
        shape[axis] = index.shape[0]
        return self.gather(axis, index.reshape(*[-1 if a == axis else 1 for a in range(self.ndim)]).expand(*shape))

    def _weighed(self, axis: int, n: int, ratio: Fraction, cubic: bool, aligned: bool) -> Self:
        length: Any = self.shape[axis]
        order = type(self).arange(n, device=self.device)
        if aligned:
            over, under = order * (length - 1), max(n - 1, 1)
        else:
            over = (order * 2 + 1) * ratio.numerator - ratio.denominator
            under = 2 * ratio.denominator
            over = over if cubic else over.maximum(0)
        first = over // under
        share = ((over - first * under).cast(self.dtype) / under).reshape(
            *[n if a == axis else 1 for a in range(self.ndim)])

        def at(k: int) -> Any:
            return self._looked_up(axis, (first + k).clip(0, length - 1))

        if not cubic:
            return at(0) * (1 - share) + at(1) * share
        weights = _cubic_weights(share)
        total = at(-1) * weights[0]
        for k, weight in enumerate(weights[1:]):
            total = total + at(k) * weight
        return total

    def _averaged(self, axis: int, n: int, ratio: Fraction, cubic: bool, aligned: bool) -> Self:
        """`_weighed` with weights [n, length] that reach as far as a step in the source does, and add up to 1."""
        length: Any = self.shape[axis]
        step = float(ratio) if not aligned else (length - 1) / (n - 1) if n > 1 else 0.0
        wide = max(step, 1.0)
        centre = ((type(self).arange(n, device=self.device).cast(self.dtype) + 0.5) * step).reshape(-1, 1)
        away = ((type(self).arange(length, device=self.device) + 0.5 - centre) / wide).abs()
        if cubic:
            weights = (away < 1).where(_inner(away, -0.5), (away < 2).where(_outer(away, -0.5), 0))
        else:
            weights = (1 - away).maximum(0)
        weights = weights / weights.sum(1, keepdim=True)
        return self.transpose(axis, -1).dot(weights.transpose(0, 1)).transpose(axis, -1)

    # At given places

    @rounded_once
    def grid_sample(self, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros",
                    align_corners: bool = False) -> Self:
        """x [N, C, H, W] at the places `grid` [N, A, B, 2], pairs (x, y) of which -1 and 1 are the edges: [N, C, A, B];
        of volumes [N, C, D, H, W] and grids [N, A, B, E, 3] with (x, y, z): [N, C, A, B, E].

        `mode`: 'bilinear' or 'nearest', of images also 'bicubic'. `padding_mode`: outside are 'zeros', the 'border', or
        the 'reflection' of what is inside. -1 and 1 are the centres of the first and last elements with
        `align_corners`, else their outer edges.
        """
        grid, axes = as_tensor("grid_sample", self._operand(grid)), self.ndim - 2
        if axes not in (2, 3) or grid.ndim != self.ndim or grid.shape[0] != self.shape[0] or grid.shape[-1] != axes or \
                0 in self.shape[1:]:
            raise ShapeError(f"[grid_sample] expected x [N, C, H, W] and grid [N, A, B, 2], or [N, C, D, H, W] and "
                             f"[N, A, B, E, 3], got {list(self.shape)} and {list(grid.shape)}")
        modes = ("bilinear", "nearest", "bicubic")[:5 - axes]
        if mode not in modes or padding_mode not in ("zeros", "border", "reflection"):
            raise ShapeError(f"[grid_sample] expected mode {' or '.join(map(repr, modes))} and padding_mode 'zeros', "
                             f"'border' or 'reflection', got {mode!r} and {padding_mode!r}")
        lengths = self.shape[2:]
        raw = [_unscaled(grid[..., axes - 1 - i], n, align_corners) for i, n in enumerate(lengths)]
        if mode == "bicubic":
            return self._at_many(raw, (-1, 0, 1, 2), _cubic_weights, lambda p, n: _inside(
                p, n, padding_mode, align_corners))
        places = [_inside(p, n, padding_mode, align_corners) for p, n in zip(raw, lengths, strict=True)]
        if mode == "nearest":
            return self._at([p.round() for p in places])
        return self._at_many(places, (0, 1), lambda t: (1 - t, t), lambda p, n: p)

    def _at_many(self, places: list[Self], steps: tuple[int, ...], weigh: Callable[[Self], Sequence[Any]],
                 inside: Callable[[Self, Any], Self]) -> Self:
        """The elements some steps around each place, times the weights along each axis by how far it is behind a whole
        one; `inside` moves whole places."""
        whole = [p.floor().detach() for p in places]
        weights = [weigh((p - f).unsqueeze(1)) for p, f in zip(places, whole, strict=True)]
        moved = [[inside(f + k, n) for k in steps] for f, n in zip(whole, self.shape[2:], strict=True)]
        total: Any = None
        for chosen in product(range(len(steps)), repeat=len(places)):
            part = self._at([line[k] for line, k in zip(moved, chosen, strict=True)])
            for line, k in zip(weights, chosen, strict=True):
                part = part * line[k]
            total = part if total is None else total + part
        return total

    def _at(self, places: list[Self]) -> Self:
        """Elements [N, C, ...] at whole places [N, ...], one per axis, 0 outside."""
        inside: Any = None
        flat: Any = None
        for place, length in zip(places, self.shape[2:], strict=True):
            fits = (place >= 0).bitwise_and(place <= length - 1)
            inside = fits if inside is None else inside.bitwise_and(fits)
        for place, length in zip(places, self.shape[2:], strict=True):
            known = inside.where(place, 0).int()
            flat = known if flat is None else flat * length + known
        index = flat.flatten(1).unsqueeze(1).expand(*self.shape[:2], -1)
        found = self.flatten(2)._gather(2, index).reshape(*self.shape[:2], *flat.shape[1:])
        return inside.unsqueeze(1).where(found, 0)

    def affine_grid(self, size: Sequence[int], align_corners: bool = False) -> Self:
        """The grid [N, H, W, 2] of `grid_sample` for affine maps x [N, 2, 3] and a size (N, C, H, W)."""
        if self.ndim != 3 or self.shape[1:] != (2, 3) or len(size) != 4:
            raise ShapeError(f"[affine_grid] expected maps [N, 2, 3] and a size (N, C, H, W), got {list(self.shape)} "
                             f"and {size!r}")
        batch, _, height, width = size
        y, x = (self._edges(n, align_corners) for n in (height, width))
        ones = self.ones(height, width, dtype=self.dtype, device=self.device)
        points = (ones * x).stack(ones * y.unsqueeze(1), ones, dim=-1)
        return points.reshape(1, height * width, 3).dot(self.transpose(1, 2)).reshape(batch, height, width, 2)

    def _edges(self, n: int, aligned: bool) -> Self:
        """The places -1..1 of n elements."""
        order = type(self).arange(n, device=self.device).cast(self.dtype)
        return order * (2 / max(n - 1, 1)) - (1 if n > 1 else 0) if aligned else (order * 2 + 1) / n - 1

    # Pixels and channels

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """[..., C * r * r, H, W] as [..., C, H * r, W * r] (Shi et al. 2016)."""
        r = as_count("pixel_shuffle", "upscale_factor", upscale_factor, 1)
        if self.ndim < 3 or not divides(r * r, self.shape[-3]):
            raise ShapeError(f"[pixel_shuffle] expected [..., C * {r * r}, H, W], got {list(self.shape)}")
        *batch, channels, height, width = self.shape
        k = len(batch)
        x = self.reshape(*batch, channels // (r * r), r, r, height, width)
        x = x.permute(*range(k + 1), k + 3, k + 1, k + 4, k + 2)
        return x.reshape(*batch, channels // (r * r), height * r, width * r)

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """[..., C, H * r, W * r] as [..., C * r * r, H, W]."""
        r = as_count("pixel_unshuffle", "downscale_factor", downscale_factor, 1)
        if self.ndim < 3 or not divides(r, self.shape[-1]) or not divides(r, self.shape[-2]):
            raise ShapeError(f"[pixel_unshuffle] expected [..., C, H * {r}, W * {r}], got {list(self.shape)}")
        *batch, channels, height, width = self.shape
        k = len(batch)
        x = self.reshape(*batch, channels, height // r, r, width // r, r)
        x = x.permute(*range(k + 1), k + 2, k + 4, k + 1, k + 3)
        return x.reshape(*batch, channels * (r * r), height // r, width // r)

    def channel_shuffle(self, groups: int) -> Self:
        """Channels of [N, C, ...] in another order: the first of every group, the second of every group, ..."""
        g = as_count("channel_shuffle", "groups", groups, 1)
        if self.ndim < 2 or not divides(g, self.shape[1]):
            raise ShapeError(f"[channel_shuffle] expected [N, C * {g}, ...], got {list(self.shape)}")
        return self.unflatten(1, (g, self.shape[1] // g)).transpose(1, 2).flatten(1, 2)


def _inner(t: Any, slope: float = _CUBIC) -> Any:
    """The weight of an element at a distance up to 1."""
    return ((slope + 2) * t - (slope + 3)) * t * t + 1


def _outer(t: Any, slope: float) -> Any:
    """The weight of an element at a distance of 1 to 2."""
    return ((slope * t - 5 * slope) * t + 8 * slope) * t - 4 * slope


def _cubic_weights(t: Any) -> Sequence[Any]:
    """Of the elements one before a place that is t behind a whole one, to two after it."""
    return _CUBIC * t * (1 - t) * (1 - t), _inner(t), _inner(1 - t), _CUBIC * (1 - t) * t * t


def _unscaled(place: Any, length: Any, aligned: bool) -> Any:
    """-1..1 as places 0..length-1."""
    return (place + 1) * ((length - 1) / 2) if aligned else ((place + 1) * length - 1) * 0.5


def _inside(place: Any, length: Any, padding: str, aligned: bool) -> Any:
    """Places moved inside as `padding` says."""
    if padding == "zeros":
        return place.isfinite().where(place, -2)
    if padding == "reflection":
        low, span = (0.0, length - 1) if aligned else (-0.5, length)
        if span == 0:
            return place * 0
        away = (place - low).abs()
        turns = (away / span).floor()
        rest = away - turns * span
        place = (turns.detach() % 2).eq(0).where(rest, span - rest) + low
    inside = (place > 0).bitwise_and(place < length - 1)  # on the edge there is no gradient, as in PyTorch
    return inside.where(place, place.detach().clip(0, length - 1))
