"""Pooling layers over the last one or two axes: [N, C, L] and [N, C, H, W]."""
from __future__ import annotations

from abc import ABC
from typing import ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.linalg import per_axis
from minigrad.tensor import Tensor

Sizes = int | tuple[int, ...]


class _Pool(ABC):
    """Windows of `kernel_size`, every `stride` (by default the kernel's size), over `padding` on both sides: one int
    or one per axis. Raises ShapeError for a padding of more than half the kernel, as in PyTorch."""

    axes: ClassVar[int]

    def _sizes(self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes) -> None:
        name = type(self).__name__
        self.kernel_size = per_axis(name, kernel_size, self.axes)
        self.stride = self.kernel_size if stride is None else per_axis(name, stride, self.axes)
        self.padding = per_axis(name, padding, self.axes)
        if any(2 * p > k or p < 0 for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise ShapeError(f"[{name}] expected a padding of 0 to half the kernel {self.kernel_size}, "
                             f"got {self.padding}")


class _MaxPool(_Pool):
    """The largest element of each window; what is padded never is. NaN if there is one."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1):
        self._sizes(kernel_size, stride, padding)
        self.dilation = per_axis(type(self).__name__, dilation, self.axes)

    def __call__(self, x: Tensor) -> Tensor:
        return x.max_pool2d(self.kernel_size, self.stride, self.dilation, self.padding)


class _AvgPool(_Pool):
    """The mean of each window; what is padded counts as zeros unless `count_include_pad` is False."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 count_include_pad: bool = True):
        self._sizes(kernel_size, stride, padding)
        self.count_include_pad = count_include_pad

    def __call__(self, x: Tensor) -> Tensor:
        return x.avg_pool2d(self.kernel_size, self.stride, 1, self.padding, self.count_include_pad)


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    axes = 1


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    axes = 2


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    axes = 1


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    axes = 2


class AdaptiveAvgPool2d:
    """Means over as many windows as `output_size` says, one int or (vertical, horizontal); None keeps an axis."""

    def __init__(self, output_size: int | tuple[int | None, int | None] | None):
        self.output_size = output_size

    def __call__(self, x: Tensor) -> Tensor:
        return x.adaptive_avg_pool2d(self.output_size)
