"""Adam, with weight decay in the gradient (`Adam`) or decoupled from it (`AdamW`)."""
from __future__ import annotations

from typing import Any

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class Adam(Optimizer):
    """m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;  p -= lr * (m/c1) / (sqrt(v/c2) + eps), with c = 1 - b**t at step t
    and g += weight_decay * p first.

    The step count is kept as `corrections`, the Tensors c1 and c2 of shape (): c = b*c + (1-b) gives the next one
    without the cancellation that 1 - b**t suffers in float32.

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
    ):
        check_betas(type(self).__name__, betas)
        super().__init__(params, lr)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.corrections = [self._scalar(0.0), self._scalar(0.0)]
        self.means, self.variances = self._zeros(), self._zeros()
        Tensor.realize(*self.corrections, *self.means, *self.variances)

    def _update(self, gradients: Gradients) -> list[Tensor]:
        b1, b2 = self.betas
        c1, c2 = (c * b + (1 - b) for c, b in zip(self.corrections, self.betas, strict=True))
        for p, g, mean, variance in self._each(gradients, self.means, self.variances):
            old = p.detach()
            if not self.decoupled:
                g = self._decayed(g, old)
            m = mean * b1 + g * (1 - b1)
            v = variance * b2 + g * g * (1 - b2)
            mean.assign(m)
            variance.assign(v)
            step = (m / c1) / ((v / c2).sqrt() + self.eps)
            if self.weight_decay and self.decoupled:
                step = step + old * self.weight_decay
            p.assign(old.stepped(step, self._lr))
        for correction, c in zip(self.corrections, (c1, c2), strict=True):
            correction.assign(c)
        return [*self.corrections, *self.means, *self.variances]


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
    ):
        super().__init__(params, lr, betas, eps, weight_decay)


def check_betas(name: str, betas: Any) -> None:
    """Raises MinigradError unless there are two of them in 0..1, below 1."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= b < 1 for b in betas):
        raise MinigradError(f"[{name}] expected two betas in 0..1, below 1, got {betas!r}")
