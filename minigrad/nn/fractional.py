"""Max pooling over windows at random places, with a given number of windows."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.linalg import per_axis
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor

Sizes = int | tuple[int, ...]


def _output_size(name: str, lengths: Any, size: Any, ratio: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """The number of windows along each axis."""
    if (size is None) == (ratio is None):
        raise ShapeError(f"[{name}] expected either an output_size or an output_ratio, got {size!r} and {ratio!r}")
    if size is None:
        ratios = tuple(ratio) if isinstance(ratio, (tuple, list)) else (ratio,) * len(kernel)
        if len(ratios) != len(kernel) or not all(0 < r < 1 for r in ratios):
            raise ShapeError(f"[{name}] expected an output_ratio between 0 and 1, or one per axis, got {ratio!r}")
        size = tuple([int(n * r) for n, r in zip(lengths, ratios, strict=True)])
    counts = per_axis(name, size, len(kernel))
    if any(not 1 <= c or c + k - 1 > n for n, c, k in zip(lengths, counts, kernel, strict=True)):
        raise ShapeError(f"[{name}] expected windows {list(kernel)} of which {list(counts)} fit into {list(lengths)}, "
                         "each one further than the last")
    return counts


def _places(sample: Tensor, length: int, count: int, kernel: int) -> Tensor:
    """The places of the windows' elements along an axis, [..., count * kernel], of samples u [...]: window i starts at
    floor((i + u) * alpha) - floor(u * alpha), the last one at the end."""
    i = Tensor.arange(count, device=sample.device)
    start = i * 0 + (length - kernel)
    u = sample.unsqueeze(-1)
    if count > 1:
        alpha = Tensor(float(length - kernel), dtype=sample.dtype, device=sample.device) / float(count - 1)
        start = (i < count - 1).where(((u + i.cast(sample.dtype)) * alpha).int() - (u * alpha).int(), start)
    return (start.unsqueeze(-1) + Tensor.arange(kernel, device=sample.device)).expand(
        *sample.shape, count, kernel).flatten(-2)


def _taken(x: Tensor, places: list[Tensor]) -> Tensor:
    """The elements of x [N, C, ...] at places [N, C, count * kernel] of each axis."""
    for a, index in enumerate(places, 2):
        shape = [*x.shape[:2], *[1] * (x.ndim - 2)]
        shape[a] = index.shape[-1]
        x = x.gather(a, index.reshape(*shape).expand(*x.shape[:a], index.shape[-1], *x.shape[a + 1:]))
    return x


def _pooling(axes: int) -> Callable[..., Any]:
    name = f"fractional_max_pool{axes}d"

    def fractional_max_pool(input: Tensor, kernel_size: Sizes, output_size: Any = None, output_ratio: Any = None,
                            return_indices: bool = False, _random_samples: Tensor | None = None) -> Any:
        """The largest element of each of `output_size` windows of the last axes, or of `output_ratio` times as many as
        there are elements, at places that one random number per image, channel and axis says: x [N, C, ...] or
        [C, ...]. Those numbers, in 0..1, may be given: [N, C, axes]. `return_indices` is as in max pooling.

        Source: Graham 2014, https://arxiv.org/abs/1412.6071
        """
        x = as_tensor(name, input)
        if x.ndim not in (axes + 1, axes + 2):
            raise ShapeError(f"[{name}] expected [N, C, ...] or [C, ...] with {axes} further axes, got {list(x.shape)}")
        if x.ndim == axes + 1:
            found = fractional_max_pool(x.unsqueeze(0), kernel_size, output_size, output_ratio, return_indices,
                                        _random_samples)
            return tuple([t.squeeze(0) for t in found]) if return_indices else found.squeeze(0)
        lengths: Any = x.shape[2:]
        kernel = per_axis(name, kernel_size, axes)
        counts = _output_size(name, lengths, output_size, output_ratio, kernel)
        u = Tensor.rand(*x.shape[:2], axes, device=x.device) if _random_samples is None else as_tensor(
            name, _random_samples)
        if u.shape != (*x.shape[:2], axes):
            raise ShapeError(f"[{name}] expected random samples {[*x.shape[:2], axes]}, got {list(u.shape)}")
        order = range(axes)[::-1] if axes == 2 else range(axes)  # whose numbers come first, as in PyTorch
        places = [_places(u[..., k], n, c, w) for k, n, c, w in zip(order, lengths, counts, kernel, strict=True)]
        parts = [n for pair in zip(counts, kernel, strict=True) for n in pair]
        inner = tuple(range(3, 3 + 2 * axes, 2))
        windows = _taken(x, places).reshape(*x.shape[:2], *parts)
        values = windows.max(inner)
        if not return_indices:
            return values
        flat = Tensor.arange(math.prod(lengths), device=x.device).reshape(1, 1, *lengths).expand(*x.shape)
        where = _taken(flat, places).reshape(*x.shape[:2], *parts)
        hit = windows.eq(windows.max(inner, True)).bitwise_or(windows.isnan())
        return values, hit.where(where, 2**31 - 1).min(inner)

    fractional_max_pool.__name__ = name
    return fractional_max_pool


fractional_max_pool2d, fractional_max_pool3d = _pooling(2), _pooling(3)


class _FractionalMaxPool(Layer):
    """`functional.fractional_max_pool2d` or 3d: the largest elements of windows at random places, as many as
    `output_size` says or `output_ratio` times as many as there are elements."""

    axes: ClassVar[int]

    def __init__(self, kernel_size: Sizes, output_size: Any = None, output_ratio: Any = None,
                 return_indices: bool = False, _random_samples: Tensor | None = None):
        name = type(self).__name__
        self.kernel_size = per_axis(name, kernel_size, self.axes)
        if (output_size is None) == (output_ratio is None):
            raise ShapeError(f"[{name}] expected either an output_size or an output_ratio, got {output_size!r} and "
                             f"{output_ratio!r}")
        self.output_size, self.output_ratio, self.return_indices = output_size, output_ratio, return_indices
        self._random_samples = _random_samples
        self._transient = ("_random_samples",)

    def forward(self, x: Tensor) -> Any:
        pool = fractional_max_pool2d if self.axes == 2 else fractional_max_pool3d
        return pool(x, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
                    self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    __doc__ = _FractionalMaxPool.__doc__
    axes = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    __doc__ = _FractionalMaxPool.__doc__
    axes = 3
