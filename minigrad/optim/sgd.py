"""Stochastic gradient descent."""
from __future__ import annotations

from minigrad.errors import MinigradError
from minigrad.mixins.base import as_number
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * v, where g += weight_decay * p; v = momentum * v + g; with `nesterov` g + momentum * v instead of v.

    Source: Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, with PyTorch's conventions.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        momentum = as_number("SGD", "momentum", momentum)
        super().__init__(params, lr)
        if nesterov and not momentum:
            raise MinigradError("[SGD] expected a momentum above 0 with nesterov=True, got 0")
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        self.velocities = self._zeros() if momentum else []
        if momentum:
            Tensor.realize(*self.velocities)

    def _update(self, gradients: Gradients) -> list[Tensor]:
        for p, g, index in self._each(gradients, range(len(gradients))):
            old = p.detach()
            g = self._decayed(g, old)
            if self.momentum:
                v = self.velocities[index] * self.momentum + g
                self.velocities[index].assign(v)
                g = g + v * self.momentum if self.nesterov else v
            p.assign(old.stepped(g, self._lr))
        return self.velocities
