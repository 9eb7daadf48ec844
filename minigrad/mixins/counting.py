"""Distinct elements, how often they occur, histograms, and elements repeated as often as integers say."""
from __future__ import annotations

from typing import Any, Self

import numpy as np

from minigrad.dtype import float32, float64, int32
from minigrad.errors import DTypeError, OutOfRangeError, ShapeError
from minigrad.mixins.base import Base, as_axis, as_count, as_number, as_tensor
from minigrad.mixins.ranges import check_indices


class CountingMixin(Base):
    """Methods whose number of results depends on values, which they read."""

    __slots__ = ()

    # How many results there are, their values say

    def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
               dim: int | None = None) -> Any:
        """The distinct elements in ascending order, whatever `sorted` says, [count], every NaN as one of its own and
        last; or the distinct slices along an axis, in the order of their elements. Then, as asked for, the place of
        each among them, of this shape or [slices], and how often each occurs, both int32. Reads the values. Raises
        ShapeError for slices without elements."""
        a = 0 if dim is None else as_axis("unique", dim, self.ndim)
        values = self.numpy()
        if dim is not None and 0 in values.shape[:a] + values.shape[a + 1:]:
            raise ShapeError(f"[unique] expected slices with elements along axis {a}, got {list(self.shape)}")
        along = values.reshape(-1) if dim is None else np.moveaxis(values, a, 0)
        rows = along.reshape(len(along), -1) if along.size else np.zeros((len(along), 1))
        order = np.lexsort(rows.T[::-1])
        return self._distinct(along[order], rows[order], order, None if dim is None else a, values.shape,
                              (return_inverse, return_counts))

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None,
                           ) -> Any:
        """Without what equals the one before it, of the flattened tensor or of slices along an axis; then, as asked
        for, the place of each among them and how many each stands for, both int32. Reads the values."""
        a = 0 if dim is None else as_axis("unique_consecutive", dim, self.ndim)
        values = self.numpy()
        along = values.reshape(-1) if dim is None else np.moveaxis(values, a, 0)
        rows = along.reshape(len(along), -1) if along.size else np.zeros((len(along), 1))
        return self._distinct(along, rows, np.arange(len(rows)), None if dim is None else a, values.shape,
                              (return_inverse, return_counts))

    def _distinct(self, along: np.ndarray, rows: np.ndarray, order: np.ndarray, axis: int | None,
                  shape: tuple[int, ...], wanted: tuple[bool, bool]) -> Any:
        """The first of each run of equal `rows` [n, k], which stand for the elements (without an axis) or slices
        `along` [n, ...], where each of them, at `order` before, has gone, and how long each run is."""
        first = np.append(True, (rows[1:] != rows[:-1]).any(1))[:len(rows)]
        inverse = np.empty(len(rows), np.int32)
        inverse[order] = np.cumsum(first) - 1
        counts = np.diff(np.append(np.nonzero(first)[0], len(rows))).astype(np.int32)
        found = along[first] if axis is None else np.moveaxis(along[first], 0, axis)
        inverse = inverse.reshape(shape) if axis is None else inverse
        made = [type(self)._from_data(np.array(array, order="C"), kind, self.device) for array, kind in (
            (found, self.dtype), (inverse, int32), (counts, int32))]
        kept = [t for t, is_wanted in zip(made, (True, *wanted), strict=True) if is_wanted]
        return tuple(kept) if len(kept) > 1 else kept[0]

    def bincount(self, weights: Any = None, minlength: int = 0) -> Self:
        """The number of times that each number from 0 on occurs in integers [n], int32 [max + 1], or `minlength` if
        that is more; or the sums of their `weights` [n], in float32 of float32 and float64 of all others.

        Reads the largest and the smallest. Raises OutOfRangeError for negative numbers.
        """
        if self.ndim != 1 or not self.dtype.is_int:
            raise ShapeError(f"[bincount] expected integers [n], got {self.dtype} {list(self.shape)}")
        least, most = (0, -1) if self.shape[0] == 0 else (self.min().numpy().item(), self.max().numpy().item())
        if least < 0:
            raise OutOfRangeError(f"[bincount] expected no negative numbers, got {least}")
        count = max(most + 1, as_count("bincount", "minlength", minlength))
        kind = int32 if weights is None else float32
        each = self.ones(*self.shape, dtype=int32, device=self.device) if weights is None else as_tensor(
            "bincount", self._operand(weights))
        if each.shape != self.shape:
            raise ShapeError(f"[bincount] expected weights {list(self.shape)}, got {list(each.shape)}")
        if weights is not None and each.dtype is not float32:
            kind = float64
        return self.zeros(count, dtype=kind, device=self.device)._scatter(0, self, each.cast(kind), "add")

    def repeat_interleave(self, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Self:
        """Each element along `dim` repeated, as often as a number says, or integers [n] (or [1]) for each of the n
        slices; flattened first without an axis. Integers are read, unless `output_size` says what they add up to."""
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0, output_size=output_size)
        a = as_axis("repeat_interleave", dim, self.ndim)
        if isinstance(repeats, (list, tuple, np.ndarray, type(self))):
            return self.transpose(a, 0)._repeated(repeats, output_size).transpose(a, 0)
        count = as_count("repeat_interleave", "repeats", repeats)
        wide = [*self.shape[:a + 1], count, *self.shape[a + 1:]]
        return self.unsqueeze(a + 1).expand(*wide).flatten(a, a + 1)

    def _repeated(self, repeats: Any, output_size: int | None) -> Self:
        """The slices along the first axis, repeated as integers [n] or [1] say."""
        n: Any = self.shape[0]
        repeats = self._indices("repeat_interleave", list(repeats) if isinstance(repeats, tuple) else repeats)
        if repeats.ndim > 1 or repeats.shape not in ((), (1,), (n,)):
            raise ShapeError(f"[repeat_interleave] expected repeats [{n}], got {list(repeats.shape)}")
        repeats = repeats.flatten().expand(n)
        if output_size is not None:
            order = type(self).arange(as_count("repeat_interleave", "output_size", output_size), device=self.device)
            place = repeats.cumsum().searchsorted(order, right=True)
            check_indices("repeat_interleave", place, n)
            return self._rows(place)
        counts = repeats.numpy()
        if counts.min(initial=0) < 0:
            raise ShapeError(f"[repeat_interleave] expected repeats of 0 or more, got {counts.min()}")
        return self._rows(type(self)._from_data(np.repeat(np.arange(n, dtype=np.int32), counts), int32, self.device))

    # Histograms and classes

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """The number of elements in each of `bins` equal ranges of min..max, both ends included, in this type [bins];
        min and max are those of the elements where they are equal. NaN is in none."""
        bins = as_count("histc", "bins", bins, 1)
        least, most = as_number("histc", "min", min), as_number("histc", "max", max)
        if least > most or not self.dtype.is_float:
            raise ShapeError(f"[histc] expected floats and min <= max, got {self.dtype}, {min} and {max}")
        if self.numel() == 0:
            return self.zeros(bins, dtype=self.dtype, device=self.device)
        x = self.flatten().cast(self.dtype.compute)
        low: Any = x.min() if least == most else least
        high: Any = x.max() if least == most else most
        if least == most:
            low, high = low.eq(high).where(low - 1, low), low.eq(high).where(high + 1, high)
        inside = (x >= low).bitwise_and(x <= high)
        place = inside.where((x - low) / (high - low) * bins, 0).int().clip(0, bins - 1)
        empty = self.zeros(bins, dtype=int32, device=self.device)
        return empty._scatter(0, place, inside.int(), "add").cast(self.dtype)

    def histogram(self, bins: Any, *, range: tuple[float, float] | None = None, weight: Any = None,
                  density: bool = False) -> tuple[Self, Self]:
        """(how many elements are in each bin, its edges) of floats: `bins` equal ones of `range`, which is that of the
        elements unless told, or those between ascending edges [bins + 1]. A bin has its lower edge, and the last one
        both. Elements count as `weight`, of this shape; `density` divides by their total and the bins' widths."""
        if not self.dtype.is_float:
            raise ShapeError(f"[histogram] expected floats, got {self.dtype}")
        x = self.flatten().cast(self.dtype.compute).detach()
        edges: Any = bins if isinstance(bins, type(self)) else self._equal_edges(x, bins, range)
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ShapeError(f"[histogram] expected edges [bins + 1], got {list(edges.shape)}")
        count = edges.shape[0] - 1
        kept = (x >= edges[0]).bitwise_and(x <= edges[count])
        place = (edges.cast(x.dtype).searchsorted(x, right=True) - 1).clip(0, count - 1)
        one = x.ones_like() if weight is None else as_tensor("histogram", self._operand(weight)).flatten()
        total = self.zeros(count, dtype=x.dtype, device=self.device)._scatter(0, place, kept.where(one, 0), "add")
        if density:
            total = total / total.sum() / (edges._cut(0, 1, count + 1) - edges._cut(0, 0, count))
        return total.cast(self.dtype), edges.cast(self.dtype)

    def _equal_edges(self, x: Self, bins: int, ends: tuple[float, float] | None) -> Self:
        count = as_count("histogram", "bins", bins, 1)
        if ends is None and x.numel() == 0:
            ends = (0.0, 1.0)
        low, high = (x.min(), x.max()) if ends is None else [
            self.full((), float(as_number("histogram", "range", e)), dtype=x.dtype, device=self.device) for e in ends]
        same = low.eq(high)
        low, high = same.where(low - 0.5, low), same.where(high + 0.5, high)
        order = type(self).arange(count + 1, device=self.device).cast(x.dtype)
        return order.eq(count).where(high, low + order * ((high - low) / count))

    def one_hot(self, num_classes: int | None = None) -> Self:
        """A new last axis with 1 at each class and 0 elsewhere, as int32; 0 alone of a class out of range. Without a
        number of classes there is one more than the largest, which is read."""
        if not self.dtype.is_int:
            raise DTypeError(f"[one_hot] expected integer classes, got {self.dtype}")
        read = None
        if num_classes is None:
            read = self.numpy()
            num_classes = max(int(read.max(initial=-1)) + 1, min(read.size, 1))
        num_classes = as_count("one_hot", "num_classes", num_classes, 1)
        check_indices("one_hot", self, num_classes, given=read)
        classes = type(self).arange(num_classes, device=self.device)
        return self.cast(int32).unsqueeze(-1).eq(classes).cast(int32)
