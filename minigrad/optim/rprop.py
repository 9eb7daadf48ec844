"""Rprop: steps by the signs of gradients alone."""
from __future__ import annotations

from typing import Any

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class Rprop(Optimizer):
    """p -= sign(g) * s, where each element's size s, lr at first, is multiplied by the second of `etas` while its
    gradient keeps its sign, and by the first when that turns, which also leaves out the step; s stays in `step_sizes`.
    For gradients of all data, not of batches.

    Source: Riedmiller & Braun 1993, https://doi.org/10.1109/ICNN.1993.298623, with PyTorch's conventions.
    """

    state_names = {"step": "times", "prev": "previous", "step_size": "sizes"}
    shared_names = ("times",)

    def __init__(self, params: Params, lr: float | Tensor = 0.01, etas: tuple[float, float] = (0.5, 1.2),
                 step_sizes: tuple[float, float] = (1e-6, 50), *, maximize: bool = False):
        self.etas, self.step_sizes = _pair("etas", etas), _pair("step_sizes", step_sizes)
        if not 0 < etas[0] < 1 < etas[1]:
            raise MinigradError(f"[Rprop] expected etas below and above 1, got {etas!r}")
        super().__init__(params, lr, maximize=maximize)
        self._begin_counts()
        self.previous, self.sizes = self._zeros(), self._zeros()
        self._compute(*self.previous, *self.sizes)

    def _update(self, gradients: Gradients) -> None:
        first = self._by_time(gradients, lambda time, _: time == 1)
        (less, more), (least, most) = self.etas, self.step_sizes
        for p, g, previous, size, is_first in self._each(gradients, self.previous, self.sizes, first):
            turn = g * previous
            factor = (turn > 0).where(more, (turn < 0).where(less, turn.isnan().where(turn, 1.0)))
            s = (is_first.where(self._lr.cast(p.dtype), size) * factor).clip(least, most)
            g = (turn < 0).where(0.0, g)
            self._set(previous, g)
            self._set(size, s)
            self._set(p, p - g.sign() * s)


def _pair(name: str, value: Any) -> tuple[float, float]:
    """Two numbers, the first no larger. Raises MinigradError."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not value[0] <= value[1]:
        raise MinigradError(f"[Rprop] expected two {name}, the smaller one first, got {value!r}")
    return tuple(value)
