"""Pooling layers over the last one to three axes: [N, C, L], [N, C, H, W] and [N, C, D, H, W]."""
from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.mixins.linalg import per_axis
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor

Sizes = int | tuple[int, ...]


class _Pool(Layer, ABC):
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
    """The largest element of each window; what is padded never is. NaN if there is one. `ceil_mode` adds a last window
    that leaves the input, if it starts inside; with `return_indices`, places in the flattened last axes come with the
    values, as `max_unpool2d` takes them."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                 return_indices: bool = False, ceil_mode: bool = False):
        self._sizes(kernel_size, stride, padding)
        self.dilation = per_axis(type(self).__name__, dilation, self.axes)
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, x: Tensor) -> Any:
        x, padding = as_tensor(type(self).__name__, x), _flat(self.padding)
        return x.max_pool2d(self.kernel_size, self.stride, self.dilation, padding, self.ceil_mode, self.return_indices)


class _AvgPool(_Pool):
    """The mean of each window; what is padded counts as zeros unless `count_include_pad` is False. `ceil_mode` adds a
    last window that leaves the input, if it starts inside. `divisor_override` takes the place of the count."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None):
        self._sizes(kernel_size, stride, padding)
        self.count_include_pad, self.ceil_mode, self.divisor_override = count_include_pad, ceil_mode, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        x, padding = as_tensor(type(self).__name__, x), _flat(self.padding)
        return x.avg_pool2d(self.kernel_size, self.stride, 1, padding, self.count_include_pad, self.ceil_mode,
                            self.divisor_override)


class _Adaptive(Layer, ABC):
    """As many windows as `output_size` says: one int or one per axis; None keeps an axis."""

    axes: ClassVar[int]

    def __init__(self, output_size: int | tuple[int | None, ...] | None):
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * self.axes
        name = type(self).__name__
        if len(sizes) != self.axes:
            raise ShapeError(f"[{name}] expected one size or {self.axes} of them, got {output_size!r}")
        self.output_size = tuple([n if n is None else as_count(name, "an output size", n) for n in sizes])


class _AdaptiveAvg(_Adaptive):
    """Means over as many windows as `output_size` says: one int or one per axis; None keeps an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor(type(self).__name__, x).adaptive_avg_pool2d(self.output_size)


class _AdaptiveMax(_Adaptive):
    """The largest elements of as many windows as `output_size` says: one int or one per axis; None keeps an axis.
    With `return_indices`, places in the flattened last axes come with the values."""

    def __init__(self, output_size: int | tuple[int | None, ...] | None, return_indices: bool = False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        return as_tensor(type(self).__name__, x).adaptive_max_pool2d(self.output_size, self.return_indices)


class _MaxUnpool(_Pool):
    """The elements of max pooling with return_indices put where they were, 0 elsewhere."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0):
        self._sizes(kernel_size, stride, padding)

    def forward(self, x: Tensor, indices: Tensor, output_size: tuple[int, ...] | None = None) -> Tensor:
        return as_tensor("MaxUnpool2d", x).max_unpool2d(indices, self.kernel_size, self.stride, _flat(self.padding),
                                                        output_size)


def _lp_pool(axes: int) -> Callable[..., Tensor]:
    def pool(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
             ceil_mode: bool = False) -> Tensor:
        """(sum x**p)**(1/p) over windows of the last axes; NaN where an odd p leaves a negative sum. The gradient of a
        sum of 0 is 0."""
        kernel = per_axis(f"lp_pool{axes}d", kernel_size, axes)
        x = as_tensor(f"lp_pool{axes}d", input)
        means = (x ** norm_type).avg_pool2d(kernel, kernel if stride is None else stride, ceil_mode=ceil_mode)
        none, root = means.eq(0), 1 / norm_type
        return none.where(math.inf if root < 0 else 0.0 ** root, (none.where(1, means) * math.prod(kernel)) ** root)

    pool.__name__ = f"lp_pool{axes}d"
    return pool


lp_pool1d, lp_pool2d, lp_pool3d = _LP_POOLS = [_lp_pool(n) for n in (1, 2, 3)]


class _LPPool(_Pool):
    """(sum x**norm_type)**(1/norm_type) over each window."""

    def __init__(self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False):
        self._sizes(kernel_size, stride, 0)
        if norm_type == 0:
            raise ShapeError(f"[{type(self).__name__}] expected a norm_type other than 0")
        self.norm_type, self.ceil_mode = norm_type, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return _LP_POOLS[self.axes - 1](x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


def _flat(padding: tuple[int, ...]) -> tuple[int, ...]:
    """(before, after) of the last axis first."""
    return tuple([p for size in padding[::-1] for p in (size, size)])


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    axes = 1


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    axes = 1


class AdaptiveAvgPool1d(_AdaptiveAvg):
    __doc__ = _AdaptiveAvg.__doc__
    axes = 1


class AdaptiveMaxPool1d(_AdaptiveMax):
    __doc__ = _AdaptiveMax.__doc__
    axes = 1


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    axes = 2


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    axes = 2


class AdaptiveAvgPool2d(_AdaptiveAvg):
    __doc__ = _AdaptiveAvg.__doc__
    axes = 2


class AdaptiveMaxPool2d(_AdaptiveMax):
    __doc__ = _AdaptiveMax.__doc__
    axes = 2


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    axes = 3


class AvgPool3d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    axes = 3


class AdaptiveAvgPool3d(_AdaptiveAvg):
    __doc__ = _AdaptiveAvg.__doc__
    axes = 3


class AdaptiveMaxPool3d(_AdaptiveMax):
    __doc__ = _AdaptiveMax.__doc__
    axes = 3


class LPPool1d(_LPPool):
    __doc__ = _LPPool.__doc__
    axes = 1


class MaxUnpool1d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    axes = 1


class LPPool2d(_LPPool):
    __doc__ = _LPPool.__doc__
    axes = 2


class MaxUnpool2d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    axes = 2


class LPPool3d(_LPPool):
    __doc__ = _LPPool.__doc__
    axes = 3


class MaxUnpool3d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    axes = 3
