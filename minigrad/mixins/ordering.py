"""Sorting and searching: sort, argsort, topk, kthvalue, median, searchsorted, bucketize.

`ops/ordering.py` says how. None of this has a gradient: values are gathered by the order that was found, and gradients
go back the same way.
"""
from __future__ import annotations

from typing import Any, Self

from minigrad.dtype import int32, promote
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axis, as_count, as_tensor
from minigrad.mixins.reduce import Extreme
from minigrad.ops import build as B
from minigrad.ops import ordering


class OrderingMixin(Base):
    """Indices are int32. Axes that are put in order must have a known length."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Extreme:
        """(values, indices) in ascending order along an axis, both of this shape: values == gather(dim, indices).

        Stable, whatever `stable` says: equal elements keep their order, in descending order too. NaN is larger than
        everything, so that it comes last, and first if descending. About n * (256 + log2(n)**2) comparisons for n
        elements along the axis. Raises ShapeError for an axis out of range or of symbolic length.
        """
        indices = self._in_order("sort", dim, descending)
        return Extreme(self._chosen(dim, indices), indices)

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """The indices of `sort`, int32."""
        return self._in_order("argsort", dim, descending)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extreme:
        """(values, indices) of the k largest elements along an axis (or smallest), the best first; of equal ones the
        first. NaN is larger than everything. Cheaper than `sort` for a small k: no more is kept of each run.
        They are in order whatever `sorted` says. Raises ShapeError unless 0 <= k <= the length of the axis.
        """
        k = self._count_along("topk", k, dim, 0)
        if not self.ndim:
            return Extreme(self, self._in_order("topk", dim, largest)) if k else self.reshape(1).topk(0)
        indices = self._in_order("topk", dim, largest, k)
        return Extreme(self._chosen(dim, indices), indices)

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> Extreme:
        """(value, index) of the k-th smallest element along an axis, counted from 1; NaN is larger than everything.

        Raises ShapeError unless 1 <= k <= the length of the axis.
        """
        k = self._count_along("kthvalue", k, dim, 1)
        order = self._in_order("kthvalue", dim, False, k)
        index = order.narrow(dim, k - 1, 1) if self.ndim else order
        value = self._chosen(dim, index)
        return Extreme(value, index) if keepdim or not self.ndim else Extreme(value.squeeze(dim), index.squeeze(dim))

    def median(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """The middle element in order, of an even count the lower one, NaN if there is one; of all without an axis.

        Values alone with an `axis`; (values, indices) with a `dim`. Raises ShapeError over nothing.
        """
        return self._middle("median", axis, keepdim, False, dim)

    def nanmedian(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """`median` of what is not NaN; NaN where everything is."""
        return self._middle("nanmedian", axis, keepdim, True, dim)

    def _middle(self, name: str, axis: int | None, keepdim: bool, without_nan: bool, dim: int | None = None) -> Any:
        along = axis if dim is None else dim
        if along is None:
            flat = self.flatten()._middle(name, 0, False, without_nan)
            return flat.reshape(*[1] * self.ndim) if keepdim else flat
        a = as_axis(name, along, self.ndim or 1)
        if not self.ndim:
            value = self._wrap(self.node, self)
            return value if dim is None else Extreme(value, self.zeros(dtype=int32, device=self.device))
        n: Any = self.shape[a]
        if n == 0:
            raise ShapeError(f"[{name}] expected at least one element along axis {a}, got {list(self.shape)}")
        order = self._in_order(name, a, False)
        if without_nan:
            index = order._gather(a, ((self.eq(self).sum(a, True, int32) - 1) // 2).maximum(0))
        else:
            middle, last = order._cut(a, (n - 1) // 2, (n - 1) // 2 + 1), order._cut(a, n - 1, n)
            index = self.isnan().any(a, keepdim=True).where(last, middle)
        found = Extreme(self._chosen(a, index), index)
        if not keepdim:
            found = Extreme(*[t.squeeze(a) for t in found])
        return found.values if dim is None else found

    def mode(self, dim: int = -1, keepdim: bool = False) -> Extreme:
        """(the most frequent value along an axis, the smallest of several; the last index where it is, int32).

        Raises ShapeError over nothing.
        """
        a = as_axis("mode", dim, max(self.ndim, 1))
        if not self.ndim:
            return Extreme(self, self.zeros(dtype=int32, device=self.device))
        n = self._known_length("mode", a)
        if n == 0:
            raise ShapeError(f"[mode] expected at least one element along axis {dim}, got {list(self.shape)}")
        order = self.argsort(a).transpose(a, -1).contiguous()
        ordered = self.transpose(a, -1)._gather(-1, order)
        places = type(self).arange(n, device=self.device)
        last = self.ndim - 1
        first = ordered._cut(last, 1, n).ne(ordered._cut(last, 0, n - 1)).pad((1, 0), value=1)
        start = first.where(places, 0).cummax(-1)[0]  # of the run of equal elements
        index = order._gather(-1, (places - start).argmax(-1, keepdim=True)).transpose(a, -1)
        value = self._gather(a, index)
        return Extreme(value, index) if keepdim else Extreme(value.squeeze(a), index.squeeze(a))

    def msort(self) -> Self:
        """The values of `sort` along the first axis."""
        return self.sort(0)[0]

    def searchsorted(self, values: Any, right: bool = False, *, side: str | None = None, sorter: Any = None,
                     out_int32: bool = True) -> Self:
        """The indices at which each value would be inserted into this sorted tensor so that it stays sorted, as int32
        of the values' shape: before elements equal to it, or behind them with `right` or the `side` 'right'. NaN is
        larger than everything. `sorter`: the indices that sort this tensor, which need not be sorted then.

        This tensor is [n], or [..., n] with values [..., m] of the same leading axes. log2(n) comparisons per value.
        Raises ShapeError for other shapes. That it is sorted is not checked.
        """
        values = self._operand(values)
        if not isinstance(values, type(self)):
            values = self.full((), values, device=self.device)
        if side not in (None, "left", "right") or (right and side == "left"):
            raise ShapeError(f"[searchsorted] expected side 'left' or 'right' that agrees with right, got {side!r}")
        if sorter is not None:
            order = self._indices("searchsorted", sorter, self._length_along("searchsorted", -1))
            if order.shape != self.shape:
                raise ShapeError(f"[searchsorted] expected a sorter {list(self.shape)}, got {list(order.shape)}")
            return self._gather(-1, order).searchsorted(values, right, side=side)
        n = self._known_length("searchsorted", self.ndim - 1) if self.ndim else 0
        if not self.ndim or (self.ndim > 1 and self.shape[:-1] != values.shape[:-1]):
            raise ShapeError(f"[searchsorted] expected [n], or [..., n] and values [..., m] with equal leading axes, "
                             f"got {list(self.shape)} and {list(values.shape)}")
        if n == 0 or 0 in values.shape:
            return self.zeros(*values.shape, dtype=int32, device=self.device)
        common = promote(self.dtype, values.dtype)
        wanted = values.flatten() if self.ndim == 1 else values
        found = ordering.search(self.cast(common).node, wanted.cast(common).node, right or side == "right")
        return self._wrap(found).reshape(*values.shape)

    def bucketize(self, boundaries: Any, right: bool = False, *, out_int32: bool = True) -> Self:
        """The bucket of each element among sorted boundaries [n], 0..n as int32: `boundaries.searchsorted(x, right)`.

        An element equal to a boundary belongs below it, or above it with `right`.
        """
        boundaries = as_tensor("bucketize", self._operand(boundaries))
        if boundaries.ndim != 1:
            raise ShapeError(f"[bucketize] expected boundaries [n], got {list(boundaries.shape)}")
        return boundaries.searchsorted(self, right)

    # Arguments

    def _known_length(self, name: str, axis: int) -> int:
        n = self.shape[axis]
        if not isinstance(n, int):
            raise ShapeError(f"[{name}] expected a length that is known, got {n} for axis {axis} of {list(self.shape)}")
        return n

    def _count_along(self, name: str, k: Any, dim: int, least: int) -> int:
        a = as_axis(name, dim, max(self.ndim, 1))
        n = self._known_length(name, a) if self.ndim else 1
        if as_count(name, "k", k, least) > n:
            raise ShapeError(f"[{name}] expected k of at most {n}, got {k} for axis {dim} of {list(self.shape)}")
        return int(k)

    def _chosen(self, dim: int, indices: Self) -> Self:
        return self._gather(dim, indices) if self.ndim else self._wrap(self.node, self)

    # Orders

    def _in_order(self, name: str, dim: int, descending: bool, keep: int | None = None) -> Self:
        """The indices of the first `keep` elements in order along an axis."""
        a = as_axis(name, dim, max(self.ndim, 1))
        n = self._known_length(name, a) if self.ndim else 1
        if n > 1 << 31:
            raise ShapeError(f"[{name}] expected an axis of at most 2**31 elements to put in order, got {n}")
        keep = n if keep is None else keep
        shape = tuple([keep if i == a else d for i, d in enumerate(self.shape)])
        if 0 in shape or n == 1:
            return self.zeros(*shape, dtype=int32, device=self.device)
        x = self._wrap(self.node).transpose(a, -1)
        order = self._wrap(ordering.order(x.reshape(B.numel(x.shape[:-1]), n).node, bool(descending), keep))
        return order.reshape(*x.shape[:-1], keep).transpose(a, -1)
