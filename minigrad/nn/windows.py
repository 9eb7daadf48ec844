"""PyTorch's functions of windows, `torch.nn.functional`'s convolutions, pooling, padding and resampling."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.linalg import per_axis
from minigrad.tensor import Tensor

Sizes = int | Sequence[int]

# Convolution


def _conv(axes: int) -> Callable[..., Tensor]:
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Any = 0,
             dilation: Sizes = 1, groups: int = 1) -> Tensor:
        """Cross-correlation of x [N, C, ...], or [C, ...] of one example, with a weight [out, C / groups, *kernel];
        `padding` is one integer, one per axis, 'valid' or 'same'."""
        name = f"conv{axes}d"
        x = _of_batch(name, input, weight, axes)
        if isinstance(padding, str):
            kernel: Any = weight.shape[2:]
            reach = [d * (k - 1) for d, k in zip(per_axis(name, dilation, axes), kernel, strict=True)]
            if padding not in ("same", "valid") or (padding == "same" and set(per_axis(name, stride, axes)) != {1}):
                raise ShapeError(f"[{name}] expected padding as an integer, one per axis, 'valid', or 'same' with "
                                 f"stride 1, got {padding!r} with stride {stride}")
            padding = [p for r in reach[::-1] for p in (r // 2, r - r // 2)] if padding == "same" else 0
        else:
            padding = _both_sides(name, padding, axes)
        y = x.conv2d(weight, bias, groups, stride, dilation, padding)
        return y if x is input else y.squeeze(0)

    conv.__name__ = f"conv{axes}d"
    return conv


def _conv_transpose(axes: int) -> Callable[..., Tensor]:
    def conv_transpose(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
                       padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1) -> Tensor:
        """The gradient of a convolution by its input: x [N, C, ...], or [C, ...] of one example, weight
        [C, out / groups, *kernel]."""
        name = f"conv_transpose{axes}d"
        x = _of_batch(name, input, weight, axes)
        pads = _both_sides(name, padding, axes)
        y = x.conv_transpose2d(weight, bias, groups, stride, dilation, pads, output_padding)
        return y if x is input else y.squeeze(0)

    conv_transpose.__name__ = f"conv_transpose{axes}d"
    return conv_transpose


def _of_batch(name: str, x: Tensor, weight: Tensor, axes: int) -> Tensor:
    """x [N, C, ...], of one example [C, ...] with an axis N of length 1."""
    if as_tensor(name, x).ndim not in (axes + 1, axes + 2) or as_tensor(name, weight).ndim != axes + 2:
        raise ShapeError(f"[{name}] expected x of {axes + 2} axes, or {axes + 1} of one example, and a weight of "
                         f"{axes + 2}, got {list(x.shape)} and {list(weight.shape)}")
    return x if x.ndim == axes + 2 else x.unsqueeze(0)


def _both_sides(name: str, padding: Any, axes: int) -> list[int]:
    """`padding` before and after each axis, the last axis first."""
    sizes = per_axis(name, padding, axes)
    if min(sizes) < 0:
        raise ShapeError(f"[{name}] expected padding of 0 or more, got {padding!r}")
    return [p for size in sizes[::-1] for p in (size, size)]


conv1d, conv2d, conv3d = (_conv(n) for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (_conv_transpose(n) for n in (1, 2, 3))


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Windows of images [N, C, H, W] as columns [N, C * prod(kernel), L]: `Tensor.im2col`."""
    return input.im2col(kernel_size, dilation, padding, stride)


def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
         stride: Sizes = 1) -> Tensor:
    """Columns added where they came from: `Tensor.col2im`."""
    return input.col2im(output_size, kernel_size, dilation, padding, stride)


# Pooling


def _max_pool(axes: int) -> Callable[..., Any]:
    name = f"max_pool{axes}d"

    def max_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """The largest element of each window of the last axes; see `Tensor.max_pool2d`."""
        kernel, steps, pads = _pooled(name, input, axes, kernel_size, stride, padding, dilation)
        return input.max_pool2d(kernel, steps, dilation, pads, ceil_mode, return_indices)

    max_pool.__name__ = name
    return max_pool


def _avg_pool(axes: int) -> Callable[..., Tensor]:
    name = f"avg_pool{axes}d"

    def avg_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True,
                 divisor_override: int | None = None) -> Tensor:
        """The mean of each window of the last axes, or its sum over `divisor_override`; see `Tensor.avg_pool2d`."""
        kernel, steps, pads = _pooled(name, input, axes, kernel_size, stride, padding)
        return input.avg_pool2d(kernel, steps, 1, pads, count_include_pad, ceil_mode, divisor_override)

    avg_pool.__name__ = name
    return avg_pool


def _pooled(name: str, x: Tensor, axes: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
            dilation: Sizes = 1) -> tuple[Any, Any, Any]:
    """Kernel, stride (the kernel's for None or an empty list) and padding per axis. Raises ShapeError for x of other
    axes than [C, ...] and [N, C, ...], and for a padding of more than half of what the kernel spans."""
    if as_tensor(name, x).ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"[{name}] expected x of {axes + 2} axes, or {axes + 1} of one example, got {list(x.shape)}")
    if 0 in x.shape[-axes - 1:]:
        raise ShapeError(f"[{name}] expected elements in every axis but the first of a batch, got {list(x.shape)}")
    kernel, pads = per_axis(name, kernel_size, axes), per_axis(name, padding, axes)
    gaps = per_axis(name, dilation, axes)
    steps = kernel if stride is None or stride in ([], ()) else per_axis(name, stride, axes)
    if min(*gaps, *kernel, *steps) < 1:
        raise ShapeError(f"[{name}] expected kernel, stride and dilation of 1 or more, got {kernel_size!r}, {stride!r} "
                         f"and {dilation!r}")
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True)]
    if any(2 * p > span or p < 0 for p, span in zip(pads, spans, strict=True)):
        raise ShapeError(f"[{name}] expected a padding of 0 to half of what the kernel spans, {spans}, got {padding!r}")
    return kernel, steps, pads


def _sizes(name: str, x: Tensor, output_size: Any, axes: int) -> tuple[Any, ...]:
    """One output size per axis."""
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    if len(sizes) != axes or as_tensor(name, x).ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"[{name}] expected x of {axes + 2} axes, or {axes + 1} of one example, and one output size "
                         f"or {axes} of them, got {list(x.shape)} and {output_size!r}")
    return sizes


def _adaptive_avg(axes: int) -> Callable[..., Tensor]:
    name = f"adaptive_avg_pool{axes}d"

    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        """Means of as many windows of the last axes as `output_size` says; None keeps an axis."""
        return input.adaptive_avg_pool2d(_sizes(name, input, output_size, axes))

    adaptive_avg_pool.__name__ = name
    return adaptive_avg_pool


def _adaptive_max(axes: int) -> Callable[..., Any]:
    name = f"adaptive_max_pool{axes}d"

    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        """The largest elements of as many windows of the last axes as `output_size` says; None keeps an axis. With
        `return_indices` also their places in the flattened last axes, int32."""
        return input.adaptive_max_pool2d(_sizes(name, input, output_size, axes), return_indices)

    adaptive_max_pool.__name__ = name
    return adaptive_max_pool


max_pool1d, max_pool2d, max_pool3d = (_max_pool(n) for n in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(n) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_avg(n) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_max(n) for n in (1, 2, 3))


def _max_unpool(axes: int) -> Callable[..., Tensor]:
    def max_unpool(input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None,
                   padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Tensor:
        """The elements of max pooling with return_indices put where they were; see `Tensor.max_unpool2d`."""
        name = f"max_unpool{axes}d"
        return input.max_unpool2d(indices, per_axis(name, kernel_size, axes), stride, per_axis(name, padding, axes),
                                  output_size)

    max_unpool.__name__ = f"max_unpool{axes}d"
    return max_unpool


max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(n) for n in (1, 2, 3))


def interpolate(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Tensor:
    """The axes of x [N, C, ...] behind the second resampled; see `Tensor.interpolate`. With `recompute_scale_factor`
    `scale_factor` says the sizes alone, and places follow from these."""
    spatial = as_tensor("interpolate", input).ndim - 2
    given = size if scale_factor is None else scale_factor
    if spatial < 1 or (isinstance(given, (tuple, list)) and len(given) != spatial):
        raise ShapeError(f"[interpolate] expected [N, C, ...] and one size or scale, or one per further axis, got "
                         f"{list(input.shape)} and {given!r}")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ShapeError(f"[interpolate] expected align_corners with a mode that weighs, got it with {mode!r}")
    if recompute_scale_factor and size is None:
        scales = given if isinstance(given, (tuple, list)) else (given,) * spatial
        size, scale_factor = [int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)], None
    elif recompute_scale_factor:
        raise ShapeError(f"[interpolate] expected recompute_scale_factor with scale_factor, got it with size {size}")
    return input.interpolate(size, mode, bool(align_corners), scale_factor=scale_factor, antialias=antialias)


def upsample(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
             align_corners: bool | None = None) -> Tensor:
    """`interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` to the nearest elements at or before each place."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` of images bilinearly, corners on corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """x [N, C, H, W] at the places `grid` [N, A, B, 2]; see `Tensor.grid_sample`."""
    return input.grid_sample(grid, mode, padding_mode, bool(align_corners))



def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid [N, H, W, 2] of `grid_sample` for affine maps [N, 2, 3] and a size (N, C, H, W)."""
    return as_tensor("affine_grid", theta).affine_grid(size, bool(align_corners))
pixel_shuffle, pixel_unshuffle, channel_shuffle = Tensor.pixel_shuffle, Tensor.pixel_unshuffle, Tensor.channel_shuffle


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Elements around the last axes: (left, right, top, bottom, ...); see `Tensor.pad`."""
    return input.pad(pad, mode, 0.0 if value is None else value)
