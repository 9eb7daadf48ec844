"""Convolution layers over signals [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W]."""
from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor, is_index
from minigrad.mixins.linalg import per_axis
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


def _check_groups(op: str, in_channels: int, out_channels: int, groups: int) -> None:
    if not all(is_index(n) for n in (in_channels, out_channels, groups)):
        raise ShapeError(f"[{op}] expected channels and groups as integers, got {in_channels!r}, {out_channels!r} and "
                         f"{groups!r}")
    if out_channels < 1:
        raise ShapeError(f"[{op}] expected out_channels of 1 or more, got {out_channels}")
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ShapeError(
            f"[{op}] expected channels divisible by groups, got in_channels={in_channels}, "
            f"out_channels={out_channels}, groups={groups}"
        )


class _Layer(Layer, ABC):
    """The base of convolutions over `axes` axes: sizes per axis, and weight and bias uniform in +-1/sqrt(fan_in)."""

    axes: ClassVar[int]
    weight: Tensor
    bias: Tensor | None

    def _each(self, value: int | tuple[int, ...]) -> tuple[int, ...]:
        found = per_axis(type(self).__name__, value, self.axes)
        if any(v < 0 for v in found):
            raise ShapeError(f"[{type(self).__name__}] expected sizes of 0 or more, got {value!r}")
        return found

    def _start(self, shape: tuple[int, ...], out_channels: int, bias: bool) -> None:
        """`shape` of the weight: (channels, channels per group of the other side, *kernel)."""
        fan_in = math.prod(shape[1:])
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
        self.weight = Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound, requires_grad=True) if bias else None

    def _of_batch(self, x: Tensor, channels: int, run: Callable[[Tensor], Tensor]) -> Tensor:
        """The result of `run` for x [N, channels, ...]; or for the one image of x [channels, ...], without the axis
        N."""
        one = as_tensor(type(self).__name__, x).ndim == self.axes + 1
        batch = x.unsqueeze(0) if one else x
        if batch.ndim != self.axes + 2 or batch.shape[1] != channels:
            raise ShapeError(f"[{type(self).__name__}] expected [N, {channels}, {', '.join('DHW'[-self.axes:])}], "
                             f"got {list(x.shape)}")
        return run(batch).squeeze(0) if one else run(batch)


class _Conv(_Layer):
    """Cross-correlation of x [N, in_channels, ...] with `weight` [out_channels, in_channels/groups, ...].

    `kernel_size`, `stride` and `dilation` are one int or one per axis. `padding` is one int or one per axis for zeros
    on both sides, "valid" for none, or "same": stride 1 and an output as large as the input (an odd total is larger at
    the ends, as in PyTorch). `padding_mode` "reflect", "replicate" or "circular" takes what is padded from the input.
    Weight and bias [out_channels] are uniform in +-1/sqrt(fan_in). Raises ShapeError for
    channels that `groups` does not divide, and for an input of other axes or channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ):
        _check_groups(type(self).__name__, in_channels, out_channels, groups)
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ShapeError(f"[{type(self).__name__}] expected padding_mode 'zeros', 'reflect', 'replicate' or "
                             f"'circular', got {padding_mode!r}")
        self.kernel_size, self.stride, self.dilation = map(self._each, (kernel_size, stride, dilation))
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.padding_mode, self._pads = padding_mode, self._padding(padding)
        self.padding = padding if isinstance(padding, str) else self._each(padding)
        self._start((out_channels, in_channels // groups, *self.kernel_size), out_channels, bias)

    def _padding(self, padding: int | tuple[int, ...] | str) -> tuple[int, ...]:
        """Before and after each axis, the last axis first: (left, right, top, bottom)."""
        if not isinstance(padding, str):
            return tuple([p for size in self._each(padding)[::-1] for p in (size, size)])
        if padding == "valid":
            return (0,) * (2 * self.axes)
        if padding != "same" or any(s != 1 for s in self.stride):
            raise ShapeError(
                f'[{type(self).__name__}] expected padding as an int, one per axis, "valid", or "same" with stride 1, '
                f"got {padding!r} with stride {self.stride}"
            )
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return tuple([p for total in totals[::-1] for p in (total // 2, total - total // 2)])

    def forward(self, x: Tensor) -> Tensor:
        return self._of_batch(x, self.in_channels, self._run)

    def _run(self, x: Tensor) -> Tensor:
        inside = self.padding_mode == "zeros"
        x = x if inside else x.pad(self._pads, self.padding_mode)
        return x.conv2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=self._pads if inside else 0,
        )


class Conv1d(_Conv):
    __doc__ = _Conv.__doc__
    axes = 1


class Conv2d(_Conv):
    __doc__ = _Conv.__doc__
    axes = 2


class Conv3d(_Conv):
    __doc__ = _Conv.__doc__
    axes = 3


class _ConvTranspose(_Layer):
    """The gradient of a convolution by its input, as a layer: x [N, in_channels, ...] -> [N, out_channels, ...], where
    a length H becomes (H-1)*stride - 2*padding + dilation*(K-1) + output_padding + 1.

    `weight` is [in_channels, out_channels/groups, ...]; weight and bias are uniform in +-1/sqrt(fan_in), where fan_in
    counts out_channels/groups, as in PyTorch.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
    ):
        _check_groups(type(self).__name__, in_channels, out_channels, groups)
        if padding_mode != "zeros":
            raise ShapeError(f"[{type(self).__name__}] expected padding_mode 'zeros', got {padding_mode!r}")
        self.kernel_size, self.stride, self.dilation = map(self._each, (kernel_size, stride, dilation))
        self.padding, self.output_padding = map(self._each, (padding, output_padding))
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self._start((in_channels, out_channels // groups, *self.kernel_size), out_channels, bias)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """`output_size`, of the last axes or of all, takes the place of output_padding: each is less than a stride more
        than without. Raises ShapeError for others, and for more or fewer of them."""
        sizes = None if output_size is None else list(output_size)
        if sizes is not None and len(sizes) not in (self.axes, as_tensor(type(self).__name__, x).ndim):
            raise ShapeError(f"[{type(self).__name__}] expected an output_size of the last {self.axes} axes or of all "
                             f"{x.ndim}, got {sizes} for {list(x.shape)}")
        return self._of_batch(x, self.in_channels, lambda batch: batch.conv_transpose2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
            output_padding=self.output_padding if sizes is None else self._extra(batch.shape[2:], sizes),
        ))

    def _extra(self, lengths: tuple[Any, ...], output_size: list[int]) -> tuple[int, ...]:
        """The output_padding that gives an output of these sizes."""
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(
            lengths, self.stride, self.padding, self.dilation, self.kernel_size, strict=True)]
        extra = tuple([have - n for have, n in zip(output_size[-self.axes:], least, strict=True)])
        if any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
            raise ShapeError(f"[{type(self).__name__}] expected an output_size from {least} to {most}, "
                             f"got {output_size}")
        return extra


class ConvTranspose1d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    axes = 1


class ConvTranspose2d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    axes = 2


class ConvTranspose3d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    axes = 3
