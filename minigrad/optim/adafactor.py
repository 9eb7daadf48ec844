"""Adafactor: a variance per row and per column in place of one per element."""
from __future__ import annotations

from typing import Any

from minigrad import dtype as dtypes
from minigrad.errors import MinigradError
from minigrad.mixins.base import as_number
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor

_PRECISIONS = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}


class Adafactor(Optimizer):
    """p -= alpha * u / max(1, rms(u) / d) after p *= 1 - lr * weight_decay, with u = g / sqrt(v), alpha = max(eps[1],
    rms(p)) * min(lr, 1 / sqrt(t)) and a running mean v of g*g that moves by t**beta2_decay at step t. Of parameters
    with two axes or more, v is the product of the running means of g*g along rows and columns, the last two axes,
    divided by the mean of the former. eps[0] is the least v under the root's root, by default the type's precision.

    Source: Shazeer & Stern 2018, https://arxiv.org/abs/1804.04235, with PyTorch's conventions.
    """

    state_names = {"step": "times", "row_var": "rows", "col_var": "columns", "variance": "variances"}
    shared_names = ("times",)
    d: float

    def __init__(self, params: Params, lr: float | Tensor = 0.01, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 maximize: bool = False):
        super().__init__(params, lr, d=d, weight_decay=weight_decay, maximize=maximize)
        self.beta2_decay = as_number("Adafactor", "beta2_decay", beta2_decay)
        if not self.beta2_decay <= 0:
            raise MinigradError(f"[Adafactor] expected a beta2_decay of at most 0, got {beta2_decay!r}")
        if not self.d >= 1:
            raise MinigradError(f"[Adafactor] expected a d of at least 1, got {d!r}")
        if not isinstance(eps, (tuple, list)) or len(eps) != 2 or eps[1] is None or not all(
                e is None or e >= 0 for e in eps):
            raise MinigradError(f"[Adafactor] expected eps as None or a number and a number, at least 0, got {eps!r}")
        self.eps: Any = tuple(eps)
        self._begin_counts()
        self.rows, self.columns, self.variances = ([self._mean(p, axis) for p in self.params]
                                                   for axis in (-1, -2, None))
        self._compute(*[t for t in (*self.rows, *self.columns, *self.variances) if t is not None])

    @staticmethod
    def _mean(p: Tensor, axis: int | None) -> Tensor | None:
        """A zero for each mean of `p` along an axis, or for each element of one with less than two axes."""
        if (p.ndim > 1) == (axis is None):
            return None
        shape = list(p.shape)
        if axis is not None:
            shape[axis] = 1
        return Tensor.zeros(*shape, dtype=p.dtype, device=p.device, requires_grad=False).contiguous()

    def _terms(self, time: Tensor, _: int) -> tuple[Tensor, Tensor]:
        """By how much the running means move, and the rate without the parameter's size."""
        return time ** self.beta2_decay, self._lr.minimum(time.rsqrt())

    def _moved(self, mean: Tensor, new: Tensor, share: Tensor) -> Tensor:
        """A running mean, moved towards `new` and set."""
        moved = new * share + mean * (1 - share)
        self._set(mean, moved)
        return moved

    def _update(self, gradients: Gradients) -> None:
        terms = self._by_time(gradients, self._terms)
        for p, g, row, column, variance, (share, rate) in self._each(gradients, self.rows, self.columns,
                                                                     self.variances, terms):
            share, least = share.cast(p.dtype), _PRECISIONS[p.dtype] if self.eps[0] is None else self.eps[0]
            if variance is None:
                rows, columns = (self._moved(mean, (g * g).mean(axis, keepdim=True), share)
                                 for mean, axis in ((row, -1), (column, -2)))
                v = rows * columns / rows.mean(-2, keepdim=True).maximum(least)
            else:
                v = self._moved(variance, g * g, share)
            step = v.maximum(least * least).rsqrt() * g
            alpha = _size(p).maximum(self.eps[1]) * rate / (_size(step) / self.d).maximum(1.0)
            old = p * (1 - self._lr * self.weight_decay).cast(p.dtype) if self.weight_decay else p
            self._set(p, old.stepped(step, alpha.cast(self._precision)))


def _size(x: Tensor) -> Tensor:
    """The root of the mean square, shape ()."""
    return (x * x).mean().sqrt()
