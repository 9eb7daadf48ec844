"""Convolution layers over images [N, C, H, W]."""
from __future__ import annotations

import math

from minigrad.errors import ShapeError
from minigrad.mixins.linalg import per_axis
from minigrad.tensor import Tensor


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """(vertical, horizontal)."""
    vertical, horizontal = per_axis("Conv2d", value, 2)
    return vertical, horizontal


def _check_groups(op: str, in_channels: int, out_channels: int, groups: int) -> None:
    if not all(hasattr(n, "__index__") for n in (in_channels, out_channels, groups)):
        raise ShapeError(f"[{op}] expected channels and groups as integers, got {in_channels!r}, {out_channels!r} and "
                         f"{groups!r}")
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ShapeError(
            f"[{op}] expected channels divisible by groups, got in_channels={in_channels}, "
            f"out_channels={out_channels}, groups={groups}"
        )


class Conv2d:
    """Cross-correlation of x [N, in_channels, H, W] with `weight` [out_channels, in_channels/groups, KH, KW].

    `kernel_size`, `stride` and `dilation` are one int or (vertical, horizontal). `padding` is one int or such a pair
    for zeros on both sides, "valid" for none, or "same": stride 1 and an output as large as the input (an odd total is
    larger at the bottom and the right, as in PyTorch). Weight and bias [out_channels] are uniform in +-1/sqrt(fan_in).
    Raises ShapeError for channels that `groups` does not divide.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
    ):
        _check_groups("Conv2d", in_channels, out_channels, groups)
        self.kernel_size, self.stride, self.dilation = _pair(kernel_size), _pair(stride), _pair(dilation)
        self.groups = groups
        self.padding = self._padding(padding)
        height, width = self.kernel_size
        fan_in = in_channels // groups * height * width
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
        shape = (out_channels, in_channels // groups, height, width)
        self.weight = Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound, requires_grad=True) if bias else None

    def _padding(self, padding: int | tuple[int, int] | str) -> tuple[int, int, int, int]:
        """(left, right, top, bottom)."""
        if isinstance(padding, str):
            if padding == "valid":
                return 0, 0, 0, 0
            if padding != "same" or self.stride != (1, 1):
                raise ShapeError(
                    f'[Conv2d] expected padding as an int, a pair, "valid", or "same" with stride 1, '
                    f"got {padding!r} with stride {self.stride}"
                )
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            (top, left), (bottom, right) = [t // 2 for t in totals], [t - t // 2 for t in totals]
            return left, right, top, bottom
        vertical, horizontal = _pair(padding)
        return horizontal, horizontal, vertical, vertical

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
        )


class ConvTranspose2d:
    """The gradient of a Conv2d by its input, as a layer: x [N, in_channels, H, W] -> [N, out_channels, H', W'] with
    H' = (H-1)*stride - 2*padding + dilation*(KH-1) + output_padding + 1.

    `weight` is [in_channels, out_channels/groups, KH, KW]; weight and bias are uniform in +-1/sqrt(fan_in), where
    fan_in counts out_channels/groups, as in PyTorch.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
    ):
        _check_groups("ConvTranspose2d", in_channels, out_channels, groups)
        self.kernel_size, self.stride, self.dilation = _pair(kernel_size), _pair(stride), _pair(dilation)
        self.padding, self.output_padding, self.groups = _pair(padding), _pair(output_padding), groups
        height, width = self.kernel_size
        fan_in = out_channels // groups * height * width
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
        shape = (in_channels, out_channels // groups, height, width)
        self.weight = Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound, requires_grad=True) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv_transpose2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
            output_padding=self.output_padding,
        )
