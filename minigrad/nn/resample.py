"""Layers that move elements between axes, or resample: Upsample, PixelShuffle, Unfold and others."""
from __future__ import annotations

from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.nn.arguments import as_sizes
from minigrad.nn.module import Layer
from minigrad.nn.windows import interpolate
from minigrad.tensor import Tensor

Sizes = int | tuple[int, ...]


class Upsample(Layer):
    """`functional.interpolate` to `size`, or to `scale_factor` times the lengths; see there for `mode`."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None,
                 mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None):
        if (size is None) == (scale_factor is None):
            raise ShapeError(f"[Upsample] expected size or scale_factor, got {size!r} and {scale_factor!r}")
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)


class UpsamplingNearest2d(Upsample):
    """Images resampled to the nearest elements at or before each place."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Images resampled bilinearly, corners on corners."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None):
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Layer):
    """[..., C * r * r, H, W] as [..., C, H * r, W * r] (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int):
        self.upscale_factor = as_count("PixelShuffle", "upscale_factor", upscale_factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("PixelShuffle", x).pixel_shuffle(self.upscale_factor)


class PixelUnshuffle(Layer):
    """[..., C, H * r, W * r] as [..., C * r * r, H, W]."""

    def __init__(self, downscale_factor: int):
        self.downscale_factor = as_count("PixelUnshuffle", "downscale_factor", downscale_factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("PixelUnshuffle", x).pixel_unshuffle(self.downscale_factor)


class ChannelShuffle(Layer):
    """Channels of [N, C, ...] in another order: the first of every group, the second of every group, ..."""

    def __init__(self, groups: int):
        self.groups = as_count("ChannelShuffle", "groups", groups, 1)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("ChannelShuffle", x).channel_shuffle(self.groups)


def _check_windows(name: str, **sizes: Any) -> None:
    for what, value in sizes.items():
        as_sizes(name, what, value, 0 if what == "padding" else 1)


class Unfold(Layer):
    """Windows of images [N, C, H, W] as columns [N, C * prod(kernel_size), number of windows]."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1):
        self.kernel_size: Any = kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size,) * 2
        self.dilation, self.padding, self.stride = dilation, padding, stride
        _check_windows("Unfold", kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Unfold", x).im2col(self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Layer):
    """The transpose of `Unfold`: columns [N, C * prod(kernel_size), L] added where they came from, in images [N, C,
    *output_size]."""

    def __init__(self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
                 stride: Sizes = 1):
        _check_windows("Fold", output_size=output_size, kernel_size=kernel_size, dilation=dilation, padding=padding,
                       stride=stride)
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Fold", x).col2im(self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
