"""Statistics of variables: covariances, and quantiles."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad.dtype import int32, promote
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axis, as_index, as_tensor
from minigrad.mixins.ranges import check_weights
from minigrad.mixins.rounding import rounded_once

_BETWEEN: dict[str, Callable[[Any], Any]] = {
    "linear": lambda place: place, "lower": lambda place: place.floor(), "higher": lambda place: place.ceil(),
    "nearest": lambda place: place.round(), "midpoint": lambda place: (place.floor() + place.ceil()) * 0.5}
"""Functions that place a quantile between two elements in order, from the position where a share of them ends."""


class StatisticsMixin(Base):
    __slots__ = ()

    def cov(self, *, correction: int = 1, fweights: Self | None = None, aweights: Self | None = None) -> Self:
        """Covariances of variables [V, N], N observations of each: [V, V], over N - correction. Of one variable, [N] or
        [1, N]: its variance, of shape (). Observations count `fweights` [N] times, an integer each, and are as
        important as `aweights` [N] say."""
        if self.ndim > 2:
            raise ShapeError(f"[cov] expected variables [V, N], or [N] of one, got {list(self.shape)}")
        free = as_index(correction)
        if free is None:
            raise ShapeError(f"[cov] expected correction as an integer, got {correction!r}")
        x = self._as_float().reshape(1, -1) if self.ndim < 2 else self._as_float()
        self._check_observation_weights(x.shape[1], fweights, aweights)
        if aweights is None:
            return x._covariances(free, fweights, None).squeeze()
        wide, importance = (t._in_double() for t in (x, aweights))  # its gradients are differences of nearly equal
        found: Self = wide._covariances(free, fweights, importance).squeeze()
        return found.cast(promote(x.dtype, aweights.dtype))

    def _check_observation_weights(self, count: Any, fweights: Any, aweights: Any) -> None:
        for name, w, whole in (("fweights", fweights, True), ("aweights", aweights, False)):
            if w is not None and (as_tensor("cov", w).shape != (count,) or w.dtype.is_int is not whole):
                raise ShapeError(f"[cov] expected {name} as {'integers' if whole else 'floats'} [{count}], "
                                 f"got {w.dtype} {list(w.shape)}")
            if w is not None:
                check_weights("cov", w)

    @rounded_once
    def _covariances(self, correction: int, counts: Any, importance: Any) -> Self:
        weights = counts if importance is None else importance if counts is None else counts * importance
        if weights is None:
            total: Any = self.shape[1]
            centred = self - self.mean(1, keepdim=True)
            free, spread = max(total - correction, 0) if isinstance(total, int) else total - correction, centred
        else:
            total = weights.sum()
            centred = self - (self * weights).sum(1, keepdim=True) / total
            share = correction if importance is None else (weights * importance).sum() / total * correction
            free, spread = (total - share).maximum(0), centred * weights
        return spread.dot(centred.transpose(0, 1)) / free

    @rounded_once
    def corrcoef(self) -> Self:
        """Pearson's coefficients of variables [V, N], held within -1..1: [V, V]; of one variable 1, of shape ()."""
        c = self.cov()
        if not c.ndim:
            return c / c
        scale = c.diagonal().sqrt()
        return (c / scale.reshape(-1, 1) / scale.reshape(1, -1)).clip(-1, 1)

    def quantile(self, q: Any, dim: int | None = None, keepdim: bool = False, *,
                 interpolation: str = "linear") -> Self:
        """The value below which a share q of the elements along an axis lie, between two of them in proportion; of all
        without an axis. NaN if there is one. q is in 0..1: a number, or a tensor [Q], whose axis comes first.
        `interpolation`: 'linear', or of the two the 'lower', the 'higher', the 'nearest' or their 'midpoint'."""
        return self._quantiles("quantile", q, dim, keepdim, interpolation)

    def nanquantile(self, q: Any, dim: int | None = None, keepdim: bool = False, *,
                    interpolation: str = "linear") -> Self:
        """`quantile` of what is not NaN; NaN where everything is."""
        return self._quantiles("nanquantile", q, dim, keepdim, interpolation)

    def _quantiles(self, name: str, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Self:
        if dim is None or not self.ndim:
            as_axis(name, dim or 0, max(self.ndim, 1))
            flat = self.flatten()._quantiles(name, q, 0, False, interpolation)
            return flat.reshape(*flat.shape, *[1] * self.ndim) if keepdim else flat
        a = as_axis(name, dim, self.ndim)
        n: Any = self.shape[a]
        shares = self._operand(q)
        if isinstance(shares, (bool, int, float)) and not 0 <= shares <= 1:
            raise ShapeError(f"[{name}] expected q in 0..1, got {q}")
        if n == 0 or getattr(shares, "ndim", 0) > 1 or interpolation not in _BETWEEN:
            raise ShapeError(f"[{name}] expected at least one element, q as a number or [Q] and interpolation "
                             f"{', '.join(_BETWEEN)}, got {list(self.shape)} along axis {dim}, {q!r} and "
                             f"{interpolation!r}")
        x = self._as_float().transpose(a, -1)
        shares = shares if isinstance(shares, type(self)) else self.full((), float(shares), device=self.device)
        found: Any = x._between_neighbours(shares.flatten(), name == "nanquantile", interpolation).transpose(a, -1)
        found = found.movedim(a, 0) if not keepdim else found.unsqueeze(0).transpose(0, a + 1)
        return found.squeeze(0) if shares.ndim == 0 else found

    def _between_neighbours(self, shares: Self, without_nan: bool, interpolation: str) -> Self:
        """Of [..., n] and shares [Q]: [..., Q]."""
        n: Any = self.shape[-1]
        ordered = self.sort(-1)[0]
        last: Any = (self.eq(self).sum(-1, True, int32) - 1).maximum(0) if without_nan else n - 1
        place = (shares * last).minimum(last).maximum(0)
        place = _BETWEEN[interpolation](place)
        low = place.floor()
        index = low.int()
        after = (index + 1).minimum(last)
        if without_nan:
            below, above = ordered._gather(-1, index), ordered._gather(-1, after)
        else:
            below, above = ordered.index_select(-1, index), ordered.index_select(-1, after)
        share = (place - low).cast(self.dtype)
        found = share.eq(0).where(below, below.lerp(above, share))  # what is infinite stays so
        return found if without_nan else self.isnan().any(-1, keepdim=True).where(math.nan, found)
