"""Pooling: the largest elements or the means of windows over the last axes, and windows as columns."""
from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_count, as_index, as_shape
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.linalg import per_axis, spatial_padding
from minigrad.mixins.ranges import check_indices
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops import indexed

Pads = tuple[tuple[int, int], ...]


class PoolingMixin(Base):
    """`kernel_size`, `stride`, `dilation` and `padding` are one integer or one per axis of the window; a window has as
    many axes as `kernel_size` says, two for one integer."""

    __slots__ = ()

    def max_pool2d(self, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0,
                   ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """The largest element of each window over the last axes; the stride defaults to the kernel.

        `ceil_mode` adds a last window that leaves the tensor, if it starts inside. With `return_indices`: (values,
        where each stands in the flattened last axes as int32), as `max_unpool2d` takes them.
        """
        kernel = self._kernel("max_pool2d", kernel_size)
        step = kernel if stride is None else stride
        if ceil_mode:
            padding = _flat(self._ceiled("max_pool2d", kernel, step, dilation, padding))
        windows = self._windows("max_pool2d", kernel, step, dilation, padding, self.dtype.min)
        axes = tuple(range(-len(kernel), 0))
        values = windows.max(axes)
        if not return_indices:
            return values
        plane = self.shape[-len(kernel):]
        order = type(self).arange(B.numel(plane), device=self.device).reshape(*plane)
        places = order._windows("max_pool2d", kernel, step, dilation, padding, -1)
        hit = windows.eq(values.reshape(*values.shape, *[1] * len(kernel))).bitwise_or(windows.isnan())
        hit = hit.bitwise_and(places >= 0)
        return self._found_at(hit.where(places, int(places.dtype.max)).min(axes), len(kernel))

    def _found_at(self, places: Self, axes: int) -> tuple[Self, Self]:
        """(the elements at places in the flattened last axes, the places): their gradient goes there alone."""
        last = self.ndim - axes
        found = self.flatten(last)._gather(last, places.flatten(last))
        return found.reshape(*places.shape), places

    @rounded_once
    def avg_pool2d(self, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0,
                   count_include_pad: bool = True, ceil_mode: bool = False,
                   divisor_override: int | None = None) -> Self:
        """The mean of each window over the last axes; padding counts as zeros unless told, what `ceil_mode` adds
        never. With `divisor_override` the sum over that. Means of integers are integers, rounded towards 0."""
        kernel = self._kernel("avg_pool2d", kernel_size)
        step = kernel if stride is None else stride
        axes = tuple(range(-len(kernel), 0))
        pads = given = spatial_padding("avg_pool2d", padding, len(kernel))
        if ceil_mode:
            pads = self._ceiled("avg_pool2d", kernel, step, dilation, padding)
        x = self if self.dtype.is_int else self._as_float()
        windows = x._windows("avg_pool2d", kernel, step, dilation, _flat(pads))
        inside = given if count_include_pad else ((0, 0),) * len(kernel)
        if divisor_override is not None:
            count: Any = as_index(divisor_override)
            if count is None or count == 0:
                raise ShapeError(f"[avg_pool2d] expected divisor_override as an integer other than 0, got "
                                 f"{divisor_override!r}")
        elif pads == inside:
            if x.dtype.is_float:
                return windows.mean(axes)
            count = B.numel(kernel)
        else:
            ones = self.ones(*self.shape[-len(kernel):], dtype=x.dtype, device=self.device).pad(inside, value=1.0)
            left = tuple([(a - c, b - d) for (a, b), (c, d) in zip(pads, inside, strict=True)])
            count = ones._windows("avg_pool2d", kernel, step, dilation, _flat(left)).sum(axes)
        total = windows.sum(axes)
        return total / count if x.dtype.is_float else total.div(count, rounding_mode="trunc").cast(x.dtype)

    def max_unpool2d(self, indices: Any, kernel_size: Any = (2, 2), stride: Any = None, padding: Any = 0,
                     output_size: Sequence[int] | None = None) -> Self:
        """The elements put where `max_pool2d` with `return_indices` found them, 0 elsewhere. The last axes are
        (n - 1) * stride - 2 * padding + kernel, or `output_size`, which may be a whole shape: each less than a stride
        from that. Raises ShapeError for others."""
        kernel = self._kernel("max_unpool2d", kernel_size)
        n = len(kernel)
        listed, indices = indices, self._indices("max_unpool2d", indices)
        if indices.shape != self.shape:
            raise ShapeError(f"[max_unpool2d] expected indices {list(self.shape)}, got {list(indices.shape)}")
        steps = per_axis("max_unpool2d", kernel if stride is None else stride, n)
        pads = spatial_padding("max_unpool2d", padding, n)
        rows: Any = zip(self.shape[-n:], steps, pads, kernel, strict=True)
        plane = tuple([(size - 1) * s - lo - hi + k for size, s, (lo, hi), k in rows])
        if output_size is not None:
            given = as_shape(tuple(output_size))
            if len(given) not in (n, self.ndim) or any(
                    not e - s < d < e + s
                    for d, e, s in zip(given[-n:], plane, steps, strict=True)):
                raise ShapeError(f"[max_unpool2d] expected an output_size of the last {n} axes or of all {self.ndim}, "
                                 f"less than a stride of {list(steps)} from {list(plane)}, got {list(given)}")
            plane = given[-n:]
        batch = self.shape[:-n]
        check_indices("max_unpool2d", indices, B.numel(plane), given=listed)
        values, places = self.flatten(len(batch)), indices.flatten(len(batch))
        node = indexed.placed(values.node, places.node, B.numel(plane))
        return self._wrap(node, values).reshape(*batch, *plane)

    # Windows whose number is given

    @rounded_once
    def adaptive_avg_pool2d(self, output_size: Any) -> Self:
        """Means over as many windows of the last axes as `output_size` says: one int for two of them, or one per axis;
        None keeps an axis.

        Window i of n along an axis of h elements is floor(i * h / n) .. ceil((i + 1) * h / n), as in PyTorch: where n
        does not divide h they differ in length or overlap, and all h elements are looked at for each.
        """
        x = self._as_float()
        for axis, n in self._adapted("adaptive_avg_pool2d", output_size):
            x = x._mean_windows(n, axis)
        return x

    def adaptive_max_pool2d(self, output_size: Any, return_indices: bool = False) -> Any:
        """The largest elements of the windows of `adaptive_avg_pool2d`. With `return_indices`: (values, where each
        stands in the flattened last axes as int32), the first of several."""
        sizes = self._adapted("adaptive_max_pool2d", output_size)
        x, plane = self, self.shape[self.ndim - len(self._sizes("adaptive_max_pool2d", output_size)):]
        places = type(self).arange(B.numel(plane), device=self.device).reshape(*plane).expand(*self.shape)
        for axis, n in sizes[::-1]:  # the first of equal ones in rows, then the first of such rows
            largest = x._max_windows(n, axis)
            places = places._at_first(axis, x, largest) if return_indices else places
            x = largest
        return self._found_at(places, len(plane)) if return_indices else x

    def _at_first(self, axis: int, x: Self, largest: Self) -> Self:
        """This tensor of places, of the shape of x, at the first element of each window of x along an axis that is its
        largest."""
        count: Any = largest.shape[axis]
        windows, places = x._adapted_windows(count, axis, x.dtype.min)[0], self._adapted_windows(count, axis, -1)[0]
        hit = windows.eq(largest.unsqueeze(axis + 1)).bitwise_or(windows.isnan()).bitwise_and(places >= 0)
        return hit.where(places, int(places.dtype.max)).min(axis + 1)

    def _adapted(self, name: str, output_size: Any) -> list[tuple[int, int]]:
        """(axis, windows along it)."""
        sizes = self._sizes(name, output_size)
        return [(self.ndim - len(sizes) + i, as_count(name, "an output size", n))
                for i, n in enumerate(sizes) if n is not None]

    def _sizes(self, name: str, output_size: Any) -> tuple[Any, ...]:
        """The number of windows along each of the last axes, None for all elements."""
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 2
        if not 0 < len(sizes) <= self.ndim:
            raise ShapeError(f"[{name}] expected one size or one per axis of the last axes, got {output_size!r} "
                             f"for {list(self.shape)}")
        return sizes

    @as_one_node
    def _mean_windows(self, n: int, axis: int) -> Self:
        windows, count = self._adapted_windows(n, axis, 0)
        return windows.mean(axis + 1) if count is None else windows.sum(axis + 1) / count

    @as_one_node
    def _max_windows(self, n: int, axis: int) -> Self:
        return self._adapted_windows(n, axis, self.dtype.min)[0].max(axis + 1)

    def _adapted_windows(self, n: int, axis: int, fill: Any) -> tuple[Self, Self | None]:
        """(the elements of each window behind `axis`, up to the longest with `fill`; how many they are, along `axis`,
        None where all windows have as many)."""
        length: Any = self.shape[axis]
        if length == 0:
            raise ShapeError(f"[adaptive_pool] expected elements along axis {axis}, got {list(self.shape)}")
        if n == 0 or length % n == 0:
            return self._cut(axis, 0, 0).unsqueeze(axis + 1) if n == 0 else self.unflatten(axis, (n, length // n)), None
        order = type(self).arange(n, device=self.device)
        start, stop = order * length // n, ((order + 1) * length + n - 1) // n
        longest = (length + 2 * n - 1 - (gcd(length, n) if isinstance(length, int) else 1)) // n
        place = start.unsqueeze(1) + type(self).arange(longest, device=self.device)
        inside = (place < stop.unsqueeze(1)).reshape(n, longest, *[1] * (self.ndim - axis - 1))
        found = self.index_select(axis, place.minimum(length - 1).flatten()).unflatten(axis, (n, longest))
        return inside.where(found, fill), (stop - start).reshape(n, *[1] * (self.ndim - axis - 1))

    # Windows as columns

    def im2col(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Self:
        """Windows of x [N, C, *spatial] as columns [N, C * prod(kernel), number of windows]: PyTorch's `F.unfold`."""
        kernel = self._kernel("im2col", kernel_size)
        n = len(kernel)
        if self.ndim != n + 2:
            raise ShapeError(f"[im2col] expected x [N, C, ...] with {n} further axes, got {list(self.shape)}")
        windows = self._windows("im2col", kernel, stride, dilation, padding)
        order = windows.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
        count = B.numel(order.shape[2 + n:])
        return order.reshape(self.shape[0], self.shape[1] * B.numel(kernel), count)

    def col2im(self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Self:
        """The transpose of `im2col`: columns [N, C * prod(kernel), L] added where they came from, in [N, C,
        *output_size]: PyTorch's `F.fold`."""
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 2
        n = len(sizes)
        kernel, strides = per_axis("col2im", kernel_size, n), per_axis("col2im", stride, n)
        dilations, pads = per_axis("col2im", dilation, n), spatial_padding("col2im", padding, n)
        counts = [(size + lo + hi - d * (k - 1) - 1) // s + 1 for size, (lo, hi), d, k, s in
                  zip(sizes, pads, dilations, kernel, strides, strict=True)]
        taps: Any = B.numel(kernel)
        if self.ndim != 3 or self.shape[1] % taps != 0 or self.shape[2] != B.numel(tuple(counts)):
            raise ShapeError(f"[col2im] expected columns [N, C * {taps}, {B.numel(tuple(counts))}] for sizes "
                             f"{list(sizes)}, got {list(self.shape)}")
        windows = self.reshape(self.shape[0], self.shape[1] // taps, *kernel, *counts)
        windows = windows.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
        node = B.unwindow(windows.node, tuple(range(2, 2 + n)), kernel, strides, dilations, pads, sizes)
        return self._wrap(node, self)

    # Arguments

    def _kernel(self, name: str, size: Any) -> tuple[int, ...]:
        """The sizes of a window over the last axes, two of them for one int."""
        kernel = per_axis(name, size, len(size) if isinstance(size, (tuple, list)) else 2)
        if not 0 < len(kernel) <= self.ndim:
            raise ShapeError(f"[{name}] expected one size per axis of a window, got {size} for {list(self.shape)}")
        return kernel

    def _ceiled(self, name: str, kernel: tuple[int, ...], stride: Any, dilation: Any, padding: Any) -> Pads:
        """`padding` with what a last window needs at the end that starts before the end of what is padded in front."""
        n = len(kernel)
        result = []
        for size, k, s, d, (lo, hi) in zip(self.shape[-n:], kernel, per_axis(name, stride, n),
                                           per_axis(name, dilation, n), spatial_padding(name, padding, n), strict=True):
            length: Any = size
            reach = d * (k - 1) + 1
            count = -(-(length + lo + hi - reach) // s) + 1
            count -= (count - 1) * s >= length + lo
            result.append((lo, hi + max((count - 1) * s + reach - (length + lo + hi), 0)))
        return tuple(result)


def _flat(pads: Pads) -> tuple[int, ...]:
    """(before, after) of the last axis first."""
    return tuple([p for pair in pads[::-1] for p in pair])
