"""Reading and writing at indices along an axis, diagonals and triangles.

Which indices an operation accepts, and what those out of range do, stands in ranges.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from minigrad.dtype import DType, bool_, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import emin
from minigrad.mixins.base import (
    Base,
    as_axis,
    as_count,
    as_index,
    as_number,
    as_shape,
    as_tensor,
    broadcast_shapes,
    is_index,
)
from minigrad.mixins.movement import spread
from minigrad.mixins.ranges import check_indices
from minigrad.ops.convert import held
from minigrad.ops.storage import place_type


class PlacesMixin(Base):
    """None of these reads values."""

    __slots__ = ()

    # Along an axis

    def take_along_dim(self, indices: Any, dim: int | None = None) -> Self:
        """out[.., i, ..] = x[.., indices[.., i, ..], ..] along `dim`, where the other axes broadcast and indices count
        modulo its length, as in PyTorch; of the flattened tensor without one, where they are 0 or more."""
        if dim is None:
            return self.flatten()._gather(0, self._indices("take_along_dim", indices, self.numel()).flatten())
        indices = self._indices("take_along_dim", indices)
        a = as_axis("take_along_dim", dim, self.ndim)
        if indices.ndim != self.ndim:
            raise ShapeError(f"[take_along_dim] expected indices of {self.ndim} axes for {list(self.shape)}, "
                             f"got {list(indices.shape)}")
        common = broadcast_shapes("take_along_dim", *[t.shape[:a] + t.shape[a + 1:] for t in (self, indices)])
        x, index = (t.expand(*common[:a], t.shape[a], *common[a:]) for t in (self, indices))
        n: Any = x.shape[a]
        index = index.cast(int32) if index.dtype.bits < 32 else index
        return x._gather(a, index % n if n != 0 else index)

    def index_add(self, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Self:
        """x with alpha * source[.., i, ..] added to the slice index[i] along `dim`."""
        a, wide, source = self._slices("index_add", dim, index, source)
        return self._scatter(a, wide, source if alpha == 1 else source * alpha, "add")

    def index_copy(self, dim: int, index: Any, source: Any) -> Self:
        """x with source[.., i, ..] in place of the slice index[i] along `dim`."""
        a, wide, source = self._slices("index_copy", dim, index, source)
        return self._scatter(a, wide, source, "set")

    def index_fill(self, dim: int, index: Any, value: Any) -> Self:
        """x with a number, or a tensor of shape (), in place of the slices that a 1-D index names along `dim`."""
        a, n = as_axis("index_fill", dim, max(self.ndim, 1)), self._length_along("index_fill", dim)
        index = self._indices("index_fill", index, n, negative=True).flatten()._counted_from_end(n)
        shape = [index.shape[0] if i == a else d for i, d in enumerate(self.shape or (1,))]
        wide = index.reshape(*[-1 if i == a else 1 for i in range(len(shape))]).expand(*shape)
        return self._scatter(a, wide, self._number_or_tensor("index_fill", value, shape), "set")

    def _number_or_tensor(self, name: str, value: Any, shape: Sequence[Any]) -> Any:
        """A number, or a tensor of shape () expanded to `shape`, which keeps its gradient."""
        if isinstance(value, type(self)) and not value.ndim:
            return value.expand(*shape)
        return held(name, as_number(name, "value", value), self.dtype)

    def index_reduce(self, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Self:
        """x with source[.., i, ..] combined into the slice index[i] along `dim`; `reduce` is as in `scatter_reduce`."""
        a, wide, source = self._slices("index_reduce", dim, index, source)
        return self._scatter_reduce("index_reduce", a, wide, source, reduce, include_self)

    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """x after x[indices] = values, or with them added; None among the indices stands for a whole axis."""
        _, view, tensors = self._parse("index_put", tuple([slice(None) if i is None else i for i in indices]))
        if len(view) != self.ndim or not tensors:
            raise ShapeError(f"[index_put] expected tensors, lists or None as indices, got {indices!r}")
        values = self._source("index_put", np.asarray(values) if isinstance(values, (bool, int, float)) else values)
        return self._put_tensors(tensors, values, "add" if accumulate else "set")

    def put(self, index: Any, source: Any, accumulate: bool = False) -> Self:
        """x with the elements of `source` at places of the flattened tensor, or added there."""
        n = self.numel()
        index = self._indices("put", index, n, negative=True).flatten()
        source = self._source("put", source).flatten()
        if index.shape != source.shape:
            raise ShapeError(f"[put] expected as many elements as indices, got {list(source.shape)} and "
                             f"{list(index.shape)}")
        place = index._counted_from_end(n)
        return self.flatten()._scatter(0, place, source, "add" if accumulate else "set").reshape(*self.shape)

    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Self:
        """The element at offset + the sum of i * stride over axes, in row-major order, for each i below `size`: read
        by index. Raises ShapeError where that is outside."""
        shape, steps = as_shape((size,)), as_shape((stride,))
        start = as_count("as_strided", "storage_offset", storage_offset)
        if len(shape) != len(steps) or not all([isinstance(n, int) and n >= 0 for n in (*shape, *steps)]):
            raise ShapeError(f"[as_strided] expected as many sizes as strides, of 0 or more, got {size!r} and "
                             f"{stride!r}")
        last = start + sum([(n - 1) * s for n, s in zip(shape, steps, strict=True)])
        if 0 not in shape and last >= self.numel():
            most = self.numel() - 1
            raise ShapeError(f"[as_strided] expected places in 0..{most} of {list(self.shape)}, got {last}")
        place = self.full((), start, dtype=place_type(self.numel()), device=self.device).expand(*shape)
        for a, (n, s) in enumerate(zip(shape, steps, strict=True)):
            order = type(self).arange(n, device=self.device).reshape(*[-1 if i == a else 1 for i in range(len(shape))])
            place = place + order * s
        return self.flatten()._gather(0, place.flatten()).reshape(*shape)

    def nonzero_static(self, *, size: int, fill_value: int = -1) -> Self:
        """The first `size` rows of `nonzero`, int32 [size, ndim], with `fill_value` where there are no more. Reads no
        values."""
        count = as_count("nonzero_static", "size", size)
        chosen = self.flatten().ne(0)
        place = chosen.cumsum(dtype=place_type(self.numel() + 1)) - 1
        place = chosen.bitwise_and(place < count).where(place, count)
        found = self.full((count + 1,), -1, dtype=place_type(self.numel()), device=self.device)
        order = type(self).arange(self.numel(), device=self.device)
        found = found._scatter(0, place, order, "set")._cut(0, 0, count)
        columns, step = [], self.numel()
        for n in self.shape:
            step = step // n if n != 0 else 1
            columns.append((found < 0).where(fill_value, found // step % n))
        if not columns:
            return self.zeros(count, 0, dtype=int32, device=self.device)
        return columns[0].stack(*columns[1:], dim=-1)

    def _slices(self, name: str, dim: int, index: Any, source: Any) -> tuple[int, Self, Self]:
        """(the axis, the index in the shape of the source, the source)."""
        a = as_axis(name, dim, max(self.ndim, 1))
        index = self._indices(name, index, self._length_along(name, dim)).flatten()
        source = self._source(name, source)
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
        index = self._indices("scatter_reduce", index, self._length_along("scatter_reduce", dim))
        src = self._source("scatter_reduce", src)
        return self._scatter_reduce("scatter_reduce", dim, index, src, reduce, include_self)

    def _scatter_reduce(self, name: str, dim: int, index: Self, src: Self, reduce: str, include_self: bool) -> Self:
        """`scatter_reduce` by indices that are in range."""
        known = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}
        if reduce not in known:
            raise ShapeError(f"[{name}] expected reduce among {', '.join(known)}, got {reduce!r}")
        base = self
        if reduce == "prod" and self.dtype.is_float:  # its gradients are quotients of products
            base, src = self._in_double(), src._in_double()
        ones = self.full((), 1, dtype=int32, device=self.device).expand(*index.shape)
        start = self.full(self.shape, 1 if include_self else 0, dtype=int32, device=self.device)
        counts = start._scatter(dim, index, ones, "add") if reduce == "mean" or not include_self else start
        if not include_self:
            identity = {"prod": 1, "amax": self.dtype.min, "amin": self.dtype.max}.get(reduce, 0)
            base = (counts > 0).where(bool(identity) if self.dtype is bool_ else identity, base)
        result = base._scatter(dim, index, src, known[reduce])
        if reduce != "mean":
            return result.cast(self.dtype)
        counts = counts.maximum(1)
        return result / counts.cast(self.dtype) if self.dtype.is_float else result // counts.cast(self.dtype)

    def masked_scatter(self, mask: Any, source: Any) -> Self:
        """x with the elements of `source`, in order, where a bool `mask` is True; x and the mask broadcast. A source
        with fewer elements has its last one repeated, and is refused under `check_indices`."""
        mask, source = as_tensor("masked_scatter", self._operand(mask)), self._source("masked_scatter", source)
        if mask.dtype is not bool_:
            raise DTypeError(f"[masked_scatter] expected a bool mask, got {mask.dtype}")
        shape = broadcast_shapes("masked_scatter", self.shape, mask.shape)
        x, chosen, count = self.expand(*shape), mask.expand(*shape), source.numel()
        if 0 in shape:
            return x
        order = chosen.flatten().cumsum(dtype=place_type(x.numel() + 1)) - 1
        check_indices("masked_scatter", order, count, ignored=-1)
        if count == 0:
            return x
        taken = source.flatten()._gather(0, order)
        return chosen.where(taken.reshape(*shape), x)

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
        if not 1 <= self.ndim <= 2:
            raise ShapeError(f"[diag] expected a vector or a matrix, got {list(self.shape)}")
        return self.diag_embed(diagonal) if self.ndim == 1 else self.diagonal(diagonal)

    def diagflat(self, offset: int = 0) -> Self:
        """A matrix with all elements on a diagonal."""
        return self.flatten().diag_embed(offset)

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0, *, dtype: DType | str = int32,
                     device: str | None = None) -> Self:
        """(rows, columns) of the lower triangle of a matrix, row by row: [2, count]."""
        return cls._triangle_indices("tril_indices", np.tri, row, col, offset, device).cast(dtype)

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0, *, dtype: DType | str = int32,
                     device: str | None = None) -> Self:
        """(rows, columns) of the upper triangle of a matrix, row by row: [2, count]."""
        return cls._triangle_indices("triu_indices", lambda m, n, k: 1 - np.tri(m, n, k - 1), row, col, offset,
                                     device).cast(dtype)

    @classmethod
    def _triangle_indices(cls, name: str, inside: Any, row: int, col: int, offset: int, device: str | None) -> Self:
        rows, columns = as_count(name, "row", row), as_count(name, "col", col)
        if not is_index(offset):
            raise ShapeError(f"[{name}] expected offset as an integer, got {offset!r}")
        places = np.stack(np.nonzero(inside(rows, columns, offset))).astype(np.int32)
        return cls._from_data(places, int32, cls._device(device))

    @classmethod
    def block_diag(cls, *matrices: Self) -> Self:
        """A matrix of matrices along its diagonal, 0 elsewhere. Vectors are rows, and numbers are 1 by 1."""
        parts = [as_tensor("block_diag", m) for m in spread(matrices)]
        if not parts or any(m.ndim > 2 for m in parts):
            raise ShapeError(f"[block_diag] expected at least one matrix, and at most 2 axes, got "
                             f"{[list(m.shape) for m in parts]}")
        parts = [m if m.ndim == 2 else m.reshape(1, -1 if m.ndim else 1) for m in parts]
        width = sum(m.shape[1] for m in parts)
        rows, left = [], 0
        for m in parts:
            rows.append(m.pad((left, width - left - m.shape[1], 0, 0)))
            left += m.shape[1]
        return rows[0].cat(*rows[1:], dim=0)
