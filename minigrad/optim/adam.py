"""Adam, with weight decay in the gradient (`Adam`) or decoupled from it (`AdamW`)."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class Moments(Optimizer):
    """Keeps running means and variances of the gradients, and `times`, how many steps were made of each parameter, of
    shape (): one Tensor for those that had their gradients at the same steps."""

    state_names = {"step": "times", "exp_avg": "means", "exp_avg_sq": "variances"}
    shared_names: tuple[str, ...] = ("times",)
    decoupled_weight_decay: bool

    def __init__(self, params: Params, lr: float | Tensor, betas: tuple[float, float], **options: Any):
        check_betas(type(self).__name__, betas)
        super().__init__(params, lr, **options)
        self.betas = tuple(betas)
        self._begin_counts()
        self.means, self.variances = self._zeros(), self._zeros()
        self._compute(*self.means, *self.variances)

    def _counted(self, gradients: Gradients, terms: Callable[..., tuple[Any, ...]] | None = None) -> list[Any]:
        """For each parameter with a gradient (1 - b1**time, 1 - b2**time) of this step, without the cancellation of the
        difference, or `terms(time, *these, index)`; see `_by_time`."""
        def of_step(time: Tensor, index: int) -> tuple[Any, ...]:
            c1, c2 = (-(time * (b.log() if isinstance(b, Tensor) else math.log(b))).expm1()
                      if isinstance(b, Tensor) or b else time * 0 + 1 for b in self._betas(time))
            return terms(time, c1, c2, index) if terms else (c1, c2)

        return self._by_time(gradients, of_step)

    def cycled(self) -> Tensor:
        """The first of betas as a Tensor."""
        return self._cycled_from(self.betas[0])

    def _betas(self, like: Tensor) -> tuple[Any, float]:
        """Betas for running means of the type of `like`."""
        return self._inertia(self.betas[0], like), self.betas[1]

    def _moved(self, g: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The next mean and variance of one parameter's gradient, which are set."""
        b1, b2 = self._betas(mean)
        m, v = mean * b1 + g * (1 - b1), variance * b2 + g * g * (1 - b2)
        self._set(mean, m)
        self._set(variance, v)
        return m, v

    def _with_decay(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The parameter that the step starts from and its gradient, one of them with weight decay."""
        if self.weight_decay and self.decoupled_weight_decay:
            return p * (1 - self._lr * self.weight_decay).cast(p.dtype), g
        return p, self._decayed(g, p)


class Adam(Moments):
    """m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;  p -= lr * (m/c1) / (sqrt(v/c2) + eps), with c = 1 - b**t at step t
    and g += weight_decay * p first. With `amsgrad`, the largest v so far in place of v; with `maximize`, -g for g.

    Source: Kingma & Ba 2015, https://arxiv.org/abs/1412.6980
    """

    decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ):
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        self.amsgrad = amsgrad
        self.decoupled_weight_decay = self.decoupled or decoupled_weight_decay
        self.largest: list[Tensor] = self._zeros() if amsgrad else []
        if amsgrad:
            self.state_names = {**self.state_names, "max_exp_avg_sq": "largest"}
            self._compute(*self.largest)

    def _update(self, gradients: Gradients) -> None:
        largest: Sequence[Tensor | None] = self.largest or [None] * len(gradients)
        for p, g, mean, variance, most, (c1, c2) in self._each(gradients, self.means, self.variances, largest,
                                                               self._counted(gradients)):
            m, v = self._moved(g if self.decoupled_weight_decay else self._decayed(g, p), mean, variance)
            if most is not None:
                v = most.maximum(v)
                self._set(most, v)
            step = (m / c1) / ((v / c2).sqrt() + self.eps)
            self._set(p, p.stepped(self._decayed(step, p) if self.decoupled_weight_decay else step, self._lr))


class AdamW(Adam):
    """Adam with decoupled weight decay: p -= lr * weight_decay * p besides Adam's step.

    Source: Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101
    """

    decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def check_betas(name: str, betas: Any) -> None:
    """Raises MinigradError unless there are two of them in 0..1, below 1."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= b < 1 for b in betas):
        raise MinigradError(f"[{name}] expected two betas in 0..1, below 1, got {betas!r}")
