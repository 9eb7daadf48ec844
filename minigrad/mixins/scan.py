"""Running sums, products and extremes along an axis, by blocks: work grows little faster than linearly.

A block of `_BLOCK` elements is one reduction per element, over those up to it; longer axes are scanned block by block,
and the scan of the blocks' last elements is what each block starts from.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from minigrad.dtype import DType, bool_, int32
from minigrad.mixins.base import Base, as_axis
from minigrad.mixins.reduce import Extreme
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B

_BLOCK = 256


@dataclass(frozen=True)
class _Scan:
    """An associative operation: over an axis, of two tensors, and the value that changes nothing."""

    fold: Callable[[Any], Any]
    join: Callable[[Any, Any], Any]
    identity: Any


_SUM = _Scan(lambda x: x.sum(-1, dtype=x.dtype), lambda x, y: x + y, 0)
_PROD = _Scan(lambda x: x.prod(-1, dtype=x.dtype), lambda x, y: x * y, 1)


class ScanMixin(Base):
    """Each result has the input's shape; `dim` is the same as `axis`, as in PyTorch."""

    __slots__ = ()

    def cumsum(self, axis: int = 0, dtype: DType | str | None = None, *, dim: int | None = None) -> Self:
        """Running sums along an axis; bool and integers give int64, unless `dtype` says otherwise."""
        return self._summing(dtype)._scan("cumsum", axis if dim is None else dim, _SUM)

    def cumprod(self, axis: int = 0, dtype: DType | str | None = None, *, dim: int | None = None) -> Self:
        """Running products along an axis, of the type of `cumsum`."""
        return self._summing(dtype)._scan("cumprod", axis if dim is None else dim, _PROD)

    def logcumsumexp(self, axis: int = 0, *, dim: int | None = None) -> Self:
        """Logarithms of running sums of exponentials along an axis, without overflow."""
        scan = _Scan(lambda x: x.logsumexp(-1), lambda x, y: x.logaddexp(y), -math.inf)
        return self._as_float()._scan("logcumsumexp", axis if dim is None else dim, scan)

    def cummax(self, axis: int = 0, *, dim: int | None = None) -> Extreme:
        """(running maxima along an axis, their indices as int32): of ties the last so far, and NaN from the first one
        on. The gradient goes to the elements that the indices name."""
        return self._records("cummax", axis if dim is None else dim, False)

    def cummin(self, axis: int = 0, *, dim: int | None = None) -> Extreme:
        """(running minima along an axis, their indices as int32): as `cummax`."""
        return self._records("cummin", axis if dim is None else dim, True)

    def _records(self, name: str, axis: int, least: bool) -> Extreme:
        """A running extreme is where the last record was: an element that no earlier one exceeds."""
        a = as_axis(name, axis, max(self.ndim, 1))
        if self.ndim == 0 or 0 in self.shape:
            return Extreme(self, self.zeros(*self.shape, dtype=int32, device=self.device))
        x = self._wrap(self.node)
        x = x.int() if x.dtype is bool_ else x
        highest = _Scan(lambda x: x.max(-1), lambda x, y: x.maximum(y), x.dtype.min)
        lowest = _Scan(lambda x: x.min(-1), lambda x, y: x.minimum(y), x.dtype.max)
        extreme = x._scan(name, a, lowest if least else highest)
        order = type(self).arange(self.shape[a], device=self.device)
        places = order.reshape(*[-1 if i == a else 1 for i in range(self.ndim)])
        records = x.eq(extreme).bitwise_or(x.isnan()).where(places, 0)
        last = _Scan(lambda x: x.max(-1), lambda x, y: x.maximum(y), 0)
        indices = records._scan(name, a, last)
        wide = self.cast(self.dtype.compute)  # elements that are named more than once add up their gradients
        return Extreme(wide._gather(a, indices).cast(self.dtype), indices)

    @rounded_once
    def _scan(self, name: str, axis: int, scan: _Scan) -> Self:
        a = as_axis(name, axis, max(self.ndim, 1))
        if not self.ndim:
            return self._wrap(self.node, self)
        return self.transpose(a, -1)._scan_last(scan).transpose(a, -1)

    def _scan_last(self, scan: _Scan) -> Self:
        n = self.shape[-1]
        if n == 0:
            return self
        if not isinstance(n, int) or n <= _BLOCK:
            order = self._wrap(B.iota(n, self.device))
            upto = order.reshape(1, n).le(order.reshape(n, 1))
            return scan.fold(upto.where(self.unsqueeze(-2), scan.identity))
        blocks = -(-n // _BLOCK)
        padded = self.pad((0, blocks * _BLOCK - n), value=scan.identity)
        inner = padded.reshape(*self.shape[:-1], blocks, _BLOCK)._scan_last(scan)
        last = inner._cut(inner.ndim - 1, _BLOCK - 1, _BLOCK).squeeze(-1)
        before = last._scan_last(scan)._cut(last.ndim - 1, 0, blocks - 1).pad((1, 0), value=scan.identity)
        return scan.join(inner, before.unsqueeze(-1)).flatten(-2)._cut(self.ndim - 1, 0, n)
