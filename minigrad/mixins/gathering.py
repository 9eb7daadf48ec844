"""gather, scatter and what is nearly one of them, by index tensors along one axis. What is out of range: ranges.py."""
from __future__ import annotations

import operator
from typing import Any, Self

import numpy as np

from minigrad.dtype import bool_, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Expr, Index, bounds
from minigrad.mixins.base import Base, as_axis, as_tensor, is_index
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.ranges import check_indices
from minigrad.ops import build as B
from minigrad.ops.convert import held


class GatheringMixin(Base):
    """None of these reads values, unless indices are checked."""

    __slots__ = ()

    # Index tensors

    def _index_item(self, name: str, item: Any) -> Any:
        """An item of a key, checked: sequences of integers as arrays, masks as tensors, what is like an int as one."""
        if item is None or item is Ellipsis or isinstance(item, Expr):
            return item
        if isinstance(item, slice):
            if not all([end is None or is_index(end) for end in (item.start, item.stop, item.step)]):
                raise DTypeError(f"[{name}] expected a slice of integers, got {item}")
            return item
        if isinstance(item, (list, tuple, range, np.ndarray, bool, np.bool_)):
            item = np.asarray(item)
            item = item if item.size or item.dtype == np.bool_ else item.astype(np.int32)
            if item.dtype == np.bool_:
                item = type(self)._from_data(item, bool_, self.device)
        if isinstance(item, (Base, np.ndarray)):
            is_int = item.dtype.is_int if isinstance(item, Base) else item.dtype.kind in "iu"
            if not is_int and not is_mask(item):
                raise DTypeError(f"[{name}] expected integer indices or a bool mask, got {item.dtype} "
                                 f"{list(item.shape)}")
            return item
        try:
            return int(operator.index(item))
        except TypeError:
            raise DTypeError(f"[{name}] expected ints, slices, None, ..., tensors or Variables, "
                             f"got {type(item).__name__}") from None

    def _indices(self, name: str, index: Any, size: Index | None = None, *, negative: bool = False,
                 ignored: int | None = None) -> Self:
        """`index` as a tensor of integers; lists and arrays become one. Of an axis of `size`, they are checked as
        `check_indices` says."""
        given = None
        if isinstance(index, (int, list, np.ndarray, np.integer)):
            given = self._index_item(name, np.asarray(index))
            index = given if isinstance(given, Base) else type(self)._from_data(given, None, self.device)
        if not as_tensor(name, index).dtype.is_int:
            raise DTypeError(f"[{name}] expected an integer index, got {index.dtype}")
        if size is not None:
            check_indices(name, index, size, given=given, negative=negative, ignored=ignored)
        return index

    def _counted_from_end(self, size: Any) -> Self:
        """Indices of an axis of this size, negative ones from its end, in a type that holds the size."""
        index = self.cast(int32) if self.dtype.bits < 32 else self
        return index if self.dtype.kind == "u" else (index < 0).where(index + size, index)

    # Along an axis

    def _source(self, name: str, source: Any) -> Self:
        """The values to write into this tensor: a tensor of its type, or a list or an array, which is cast to it."""
        found = as_tensor(name, self._operand(source))
        if found.dtype is not self.dtype and isinstance(source, Base):
            raise DTypeError(f"[{name}] expected a source of {self.dtype}, got {found.dtype}")
        return found.cast(self.dtype)

    def _length_along(self, name: str, dim: int) -> Index:
        """The length of an axis; 1 of a tensor without axes."""
        a = as_axis(name, dim, max(self.ndim, 1))
        return self.shape[a] if self.ndim else 1

    def gather(self, dim: int, index: Any) -> Self:
        """out[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`; out has the index's shape. A number and a vector of
        one element are the same here."""
        return self._gather(dim, self._indices("gather", index, self._length_along("gather", dim)))

    def _gather(self, dim: int, index: Self) -> Self:
        """`gather` by indices that are in range, or whose results do not count where they are not."""
        x = self._as_vector()
        a = as_axis("gather", dim, x.ndim)
        if 0 in index.shape and index.ndim != x.ndim:  # as in PyTorch, no index has any shape
            return x.flatten()._cut(0, 0, 0).reshape(*index.shape)
        found = self._wrap(B.gather(x.node, index._as_vector().node, a), self)
        return found if index.ndim else found.reshape(())

    def _as_vector(self) -> Self:
        """This tensor, or the one element of a tensor without axes as a vector."""
        return self if self.ndim else self.reshape(1)

    def scatter(self, dim: int, index: Any, src: Any = None, reduce: str | None = None, *, value: Any = None) -> Self:
        """x with src[.., i, ..], or the number `value`, put at [.., index[.., i, ..], ..] along `dim`; `reduce`: 'add'
        to what is there, or 'multiply' it."""
        if (src is None) == (value is None):
            raise ShapeError(f"[scatter] expected src or value, got {'none' if src is None else 'both'}")
        src = value if src is None else src
        known = {None: "set", "add": "add", "multiply": "mul"}
        if reduce not in known:
            raise ShapeError(f"[scatter] expected reduce None, 'add' or 'multiply', got {reduce!r}")
        index = self._indices("scatter", index, self._length_along("scatter", dim))
        src = self._operand(src) if isinstance(src, np.generic) else src
        src = src if isinstance(src, (bool, int, float, Expr)) else self._source("scatter", src)
        return self._scatter(dim, index, src, known[reduce])

    def scatter_add(self, dim: int, index: Any, src: Any) -> Self:
        """x with src[.., i, ..] added at [.., index[.., i, ..], ..] along `dim`."""
        index = self._indices("scatter_add", index, self._length_along("scatter_add", dim))
        return self._scatter(dim, index, self._source("scatter_add", src), "add")

    def _scatter(self, dim: int, index: Self, src: Any, reduction: str) -> Self:
        """`scatter` by indices that are in range."""
        if not self.ndim:
            return self.reshape(1)._scatter(dim, index, src, reduction).reshape(())
        a = as_axis("scatter", dim, self.ndim)
        if 0 in index.shape:
            return self
        index, src = index._as_vector(), self._operand(src)
        if not isinstance(src, Base):
            src = src if isinstance(src, Expr) else held("scatter", src, self.dtype)
            value = B.full(src, index.shape, self.dtype, self.device)
            return self._wrap(B.scatter(self.node, index.node, value, a, reduction), self)
        src = src._as_vector()
        if src.shape != index.shape:
            if src.ndim != index.ndim or any(bounds(s - i)[1] < 0 for s, i in zip(src.shape, index.shape, strict=True)):
                raise ShapeError(f"[scatter] expected a source of at least the index's shape {list(index.shape)}, "
                                 f"got {list(src.shape)}")
            # As in PyTorch, the index may cover a leading part of the source.
            src = src.shrink(tuple([(0, n) for n in index.shape]))
        value = B.cast(src.node, self.dtype)
        return self._wrap(B.scatter(self.node, index.node, value, a, reduction), self, src)

    def take(self, index: Any) -> Self:
        """The elements of the flattened tensor at integers of any shape, which the result has. Negative ones count from
        the end."""
        count = self.numel()
        return self.flatten()._rows(self._indices("take", index, count, negative=True)._counted_from_end(count))

    @as_one_node
    def _rows(self, index: Self) -> Self:
        """x[index] along the first axis for an integer tensor of any shape."""
        rest, count = self.shape[1:], index.numel()
        wide = index.reshape(count, *[1] * len(rest)).expand(count, *rest)
        return self._gather(0, wide).reshape(*index.shape, *rest)

    def embedding(self, index: Any) -> Self:
        """Rows of this [V, D] table: index [...] gives [..., D]."""
        if self.ndim != 2:
            raise ShapeError(f"[embedding] expected a table [V, D], got {list(self.shape)}")
        return self._rows(self._indices("embedding", index, self.shape[0]))

    def index_select(self, dim: int, index: Any) -> Self:
        """Slices of one axis, in the order of a 1-D index, or the one at an index without axes. A tensor without axes
        is its own slice, for one index."""
        a = as_axis("index_select", dim, max(self.ndim, 1))
        index = self._indices("index_select", index, self._length_along("index_select", dim))._as_vector()
        if index.ndim != 1 or (not self.ndim and index.shape != (1,)):
            expected = "an index of one axis" if self.ndim else "one index for a tensor without axes"
            raise ShapeError(f"[index_select] expected {expected}, got {list(index.shape)}")
        if not self.ndim:
            return self._gather(0, index.reshape(()))
        return self.transpose(a, 0)._rows(index).transpose(a, 0)


def is_mask(item: Any) -> bool:
    return isinstance(item, Base) and item.dtype is bool_
