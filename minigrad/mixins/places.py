"""Reading and writing at indices along an axis, diagonals and triangles, histograms.

Index tensors hold integers from 0 on, along one axis; out of range they are clamped (see indexing.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from minigrad.dtype import bool_, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import emin
from minigrad.mixins.base import as_axis, as_count, as_index, as_number, as_shape, as_tensor, broadcast_shapes, is_index
from minigrad.mixins.sampling import SamplingMixin


class PlacesMixin(SamplingMixin):
    """None of these reads values, but for `one_hot` where it must count classes."""

    __slots__ = ()

    # Along an axis

    def take_along_dim(self, indices: Any, dim: int | None = None) -> Self:
        """out[.., i, ..] = x[.., indices[.., i, ..], ..] along `dim`, where the other axes broadcast; of the flattened
        tensor without one."""
        indices = self._indices("take_along_dim", indices)
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        a = as_axis("take_along_dim", dim, self.ndim)
        if indices.ndim != self.ndim:
            raise ShapeError(f"[take_along_dim] expected indices of {self.ndim} axes for {list(self.shape)}, "
                             f"got {list(indices.shape)}")
        common = broadcast_shapes("take_along_dim", *[t.shape[:a] + t.shape[a + 1:] for t in (self, indices)])
        x, index = (t.expand(*common[:a], t.shape[a], *common[a:]) for t in (self, indices))
        return x.gather(a, index)

    def index_add(self, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Self:
        """x with alpha * source[.., i, ..] added to the slice index[i] along `dim`."""
        a, wide, source = self._slices("index_add", dim, index, source)
        return self.scatter_add(a, wide, source if alpha == 1 else source * alpha)

    def index_copy(self, dim: int, index: Any, source: Any) -> Self:
        """x with source[.., i, ..] in place of the slice index[i] along `dim`."""
        a, wide, source = self._slices("index_copy", dim, index, source)
        return self.scatter(a, wide, source)

    def index_fill(self, dim: int, index: Any, value: Any) -> Self:
        """x with a number in place of the slices that a 1-D index names along `dim`."""
        a = as_axis("index_fill", dim, max(self.ndim, 1))
        index = self._indices("index_fill", index).flatten()
        shape = [index.shape[0] if i == a else d for i, d in enumerate(self.shape or (1,))]
        wide = index.reshape(*[-1 if i == a else 1 for i in range(len(shape))]).expand(*shape)
        return self.scatter(a, wide, as_number("index_fill", "value", value))

    def index_reduce(self, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Self:
        """x with source[.., i, ..] combined into the slice index[i] along `dim`; `reduce` is as in `scatter_reduce`."""
        a, wide, source = self._slices("index_reduce", dim, index, source)
        return self.scatter_reduce(a, wide, source, reduce, include_self=include_self)

    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """x after x[indices] = values, or with them added; None among the indices stands for a whole axis."""
        key = tuple([slice(None) if i is None else i for i in indices])
        if not accumulate:
            result = self._wrap(self._node, self)
            result[key] = values
            return result
        _, drops, _, tensors = self._parse("index_put", key)
        if drops or not tensors:
            raise ShapeError(f"[index_put] expected tensors, lists or None as indices, got {indices!r}")
        return self._put_tensors(tensors, as_tensor("index_put", self._operand(np.asarray(values) if isinstance(
            values, (bool, int, float)) else values)), "add")

    def put(self, index: Any, source: Any, accumulate: bool = False) -> Self:
        """x with the elements of `source` at places of the flattened tensor, or added there."""
        index, source = self._indices("put", index).flatten(), as_tensor("put", self._operand(source)).flatten()
        if index.shape != source.shape:
            raise ShapeError(f"[put] expected as many elements as indices, got {list(source.shape)} and "
                             f"{list(index.shape)}")
        place = (index < 0).where(index + self.numel(), index)
        return self.flatten()._scatter(0, place, source, "add" if accumulate else "set").reshape(*self.shape)

    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Self:
        """The element at offset + the sum of i * stride over axes, in row-major order, for each i below `size`: read
        by index. Raises ShapeError where that is outside."""
        shape, steps = as_shape((size,)), as_shape((stride,))
        start = as_count("as_strided", "storage_offset", storage_offset)
        if len(shape) != len(steps) or not all([isinstance(n, int) and n >= 0 for n in (*shape, *steps)]):
            raise ShapeError(f"[as_strided] expected as many sizes as strides, of 0 or more, got {size!r} and "
                             f"{stride!r}")
        last = start + sum([(n - 1) * s for n, s in zip(shape, steps, strict=True)])  # type: ignore[operator]
        if 0 not in shape and last >= self.numel():
            most = self.numel() - 1  # type: ignore[operator]
            raise ShapeError(f"[as_strided] expected places in 0..{most} of {list(self.shape)}, got {last}")
        place = self.full((), start, dtype=int32, device=self.device).expand(*shape)
        for a, (n, s) in enumerate(zip(shape, steps, strict=True)):
            order = type(self).arange(n, device=self.device).reshape(*[-1 if i == a else 1 for i in range(len(shape))])
            place = place + order * s
        return self.flatten().gather(0, place.flatten()).reshape(*shape)

    def nonzero_static(self, *, size: int, fill_value: int = -1) -> Self:
        """The first `size` rows of `nonzero`, int32 [size, ndim], with `fill_value` where there are no more. Reads no
        values."""
        count = as_count("nonzero_static", "size", size)
        chosen = self.flatten().ne(0)
        place = chosen.cumsum() - 1
        place = chosen.bitwise_and(place < count).where(place, count)
        found = self.full((count + 1,), -1, dtype=int32, device=self.device)
        found = found.scatter(0, place, type(self).arange(self.numel(), device=self.device))._cut(0, 0, count)
        columns, step = [], self.numel()
        for n in self.shape:
            step = step // n if n != 0 else 1  # type: ignore[operator]
            columns.append((found < 0).where(fill_value, found // step % n))
        if not columns:
            return self.zeros(count, 0, dtype=int32, device=self.device)
        return columns[0].stack(*columns[1:], dim=-1)

    def _slices(self, name: str, dim: int, index: Any, source: Any) -> tuple[int, Self, Self]:
        """(the axis, the index in the shape of the source, the source)."""
        a = as_axis(name, dim, max(self.ndim, 1))
        index, source = self._indices(name, index).flatten(), as_tensor(name, self._operand(source))
        expected = tuple([index.shape[0] if i == a else d for i, d in enumerate(self.shape or (1,))])
        if expected == (1,):
            source = source._as_vector()
        if source.shape != expected:
            raise ShapeError(f"[{name}] expected a source {list(expected)} for {list(self.shape)} and "
                             f"{index.shape[0]} indices along axis {a}, got {list(source.shape)}")
        return a, index.reshape(*[-1 if i == a else 1 for i in range(len(expected))]).expand(*expected), source

    def scatter_reduce(self, dim: int, index: Any, src: Self, reduce: str, *, include_self: bool = True) -> Self:
        """x with src combined into it by 'sum', 'prod', 'mean', 'amax' or 'amin'; without `include_self`, what is
        written to counts as if it was not there."""
        known = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}
        if reduce not in known:
            raise ShapeError(f"[scatter_reduce] expected reduce among {', '.join(known)}, got {reduce!r}")
        base = self
        ones = self.full((), 1, dtype=int32, device=self.device).expand(*self._indices("scatter_reduce", index).shape)
        start = self.full(self.shape, 1 if include_self else 0, dtype=int32, device=self.device)
        counts = start.scatter_add(dim, index, ones) if reduce == "mean" or not include_self else start
        if not include_self:
            identity = {"prod": 1, "amax": self.dtype.min, "amin": self.dtype.max}.get(reduce, 0)
            base = (counts > 0).where(identity, self)
        result = base._scatter(dim, index, src, known[reduce])
        if reduce != "mean":
            return result
        counts = counts.maximum(1)
        return result / counts.cast(self.dtype) if self.dtype.is_float else result // counts.cast(self.dtype)

    def masked_scatter(self, mask: Any, source: Any) -> Self:
        """x with the elements of `source`, in order, where a bool `mask` that broadcasts is True."""
        mask, source = as_tensor("masked_scatter", self._operand(mask)), as_tensor(
            "masked_scatter", self._operand(source))
        if mask.dtype is not bool_:
            raise DTypeError(f"[masked_scatter] expected a bool mask, got {mask.dtype}")
        chosen = mask.expand(*self.shape)
        if 0 in self.shape or source.numel() == 0:
            return self
        order = (chosen.flatten().cumsum() - 1).maximum(0)
        taken = source.cast(self.dtype).flatten().gather(0, order.clip(0, source.numel() - 1))
        return chosen.where(taken.reshape(*self.shape), self)

    # Diagonals and triangles

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements [i, i + offset] of two axes, as a last axis."""
        offset, given = as_index(offset), offset
        if self.ndim < 2 or offset is None:
            raise ShapeError(f"[diagonal] expected a matrix and an integer offset, got {list(self.shape)} and "
                             f"{given!r}")
        a, b = self._two_axes("diagonal", dim1, dim2, self.ndim)
        rest = [i for i in range(self.ndim) if i not in (a, b)]
        x = self.permute(*rest, a, b)
        rows, columns = x.shape[-2], x.shape[-1]
        if not isinstance(rows, int) or not isinstance(columns, int):
            order = type(self).arange(emin(rows, columns), device=self.device)
            if self.ndim != 2 or offset:
                raise ShapeError(f"[diagonal] expected lengths that are known, got {list(self.shape)}")
            return x[order, order]
        down, across = max(-offset, 0), max(offset, 0)
        n = max(min(rows - down, columns - across), 0)
        square = x._cut(x.ndim - 2, min(down, rows), min(down, rows) + n)
        square = square._cut(x.ndim - 1, min(across, columns), min(across, columns) + n)
        flat = square.reshape(*square.shape[:-2], n * n).pad((0, n))  # rows of n + 1 have the diagonal first
        return flat.reshape(*square.shape[:-2], n, n + 1)._cut(flat.ndim, 0, 1).squeeze(-1)

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Self:
        """Matrices in the axes `dim1` and `dim2` of the result that are 0 beside the diagonal [i, i + offset], which is
        the last axis of this tensor."""
        offset, given = as_index(offset), offset
        if not self.ndim or offset is None:
            raise ShapeError(f"[diag_embed] expected diagonals [..., N] and an integer offset, got {list(self.shape)} "
                             f"and {given!r}")
        a, b = self._two_axes("diag_embed", dim1, dim2, self.ndim + 1)
        n: Any = self.shape[-1]
        eye = self.eye(n, dtype=bool_, device=self.device)
        down, across = max(-offset, 0), max(offset, 0)
        square = eye.where(self.unsqueeze(-2), 0).cast(self.dtype).pad((across, down, down, across))
        order = [i for i in range(self.ndim + 1) if i not in (a, b)]
        order += [a, b]
        return square.permute(*sorted(range(self.ndim + 1), key=order.__getitem__))

    def _two_axes(self, name: str, dim1: int, dim2: int, rank: int) -> tuple[int, int]:
        a, b = as_axis(name, dim1, rank), as_axis(name, dim2, rank)
        if a == b:
            raise ShapeError(f"[{name}] expected two axes, got {dim1} and {dim2} of {list(self.shape)}")
        return a, b

    def diagonal_scatter(self, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """x with `src` in place of `diagonal(offset, dim1, dim2)`, of its shape."""
        there, src = self.diagonal(offset, dim1, dim2), as_tensor("diagonal_scatter", self._operand(src))
        if src.shape != there.shape:
            raise ShapeError(f"[diagonal_scatter] expected a source {list(there.shape)}, got {list(src.shape)}")
        a, b = self._two_axes("diagonal_scatter", dim1, dim2, self.ndim)
        square = src.diag_embed(offset, a, b)
        for axis in (a, b):
            square = square._cut(axis, 0, min(square.shape[axis], self.shape[axis]))
        square = square.pad(tuple([(0, n - m) for n, m in zip(self.shape, square.shape, strict=True)]))
        return (self._order(b) - self._order(a)).eq(offset).where(square, self)

    def diag(self, diagonal: int = 0) -> Self:
        """A diagonal of a matrix, or a matrix that is 0 beside a diagonal."""
        return self.diag_embed(diagonal) if self.ndim == 1 else self.diagonal(diagonal)

    def diagflat(self, offset: int = 0) -> Self:
        """A matrix with all elements on a diagonal."""
        return self.flatten().diag_embed(offset)

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0, *, device: str | None = None) -> Self:
        """(rows, columns) of the lower triangle of a matrix, row by row: int32 [2, count]."""
        return cls._triangle_indices("tril_indices", np.tri, row, col, offset, device)

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0, *, device: str | None = None) -> Self:
        """(rows, columns) of the upper triangle of a matrix, row by row: int32 [2, count]."""
        return cls._triangle_indices("triu_indices", lambda m, n, k: 1 - np.tri(m, n, k - 1), row, col, offset, device)

    @classmethod
    def _triangle_indices(cls, name: str, inside: Any, row: int, col: int, offset: int, device: str | None) -> Self:
        rows, columns = as_count(name, "row", row), as_count(name, "col", col)
        if not is_index(offset):
            raise ShapeError(f"[{name}] expected offset as an integer, got {offset!r}")
        places = np.stack(np.nonzero(inside(rows, columns, offset))).astype(np.int32)
        return cls._from_data(places, int32, cls._device(device))

    @classmethod
    def block_diag(cls, *matrices: Self) -> Self:
        """A matrix of matrices along its diagonal, 0 elsewhere."""
        parts = [as_tensor("block_diag", m) for m in matrices]
        if not parts or any(m.ndim != 2 for m in parts):
            raise ShapeError(f"[block_diag] expected at least one matrix and matrices alone, got "
                             f"{[list(m.shape) for m in parts]}")
        width = sum(m.shape[1] for m in parts)
        rows, left = [], 0
        for m in parts:
            rows.append(m.pad((left, width - left - m.shape[1], 0, 0)))
            left += m.shape[1]
        return rows[0].cat(*rows[1:], dim=0)

    # Counts

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many elements are in each of `bins` equal ranges of min..max, both ends included, in this type [bins];
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
        return empty.scatter_add(0, place, inside.int()).cast(self.dtype)

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
        total = self.zeros(count, dtype=x.dtype, device=self.device).scatter_add(0, place, kept.where(one, 0))
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
        """A new last axis with 1 at each class and 0 elsewhere, as int32. Without a number of classes there is one more
        than the largest, which is read."""
        if not self.dtype.is_int:
            raise DTypeError(f"[one_hot] expected integer classes, got {self.dtype}")
        if num_classes is None:
            num_classes = int(self.max().numpy()) + 1
        classes = type(self).arange(as_count("one_hot", "num_classes", num_classes, 1), device=self.device)
        return self.cast(int32).unsqueeze(-1).eq(classes).cast(int32)
