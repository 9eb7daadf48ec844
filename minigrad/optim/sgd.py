"""Stochastic gradient descent."""
from __future__ import annotations

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * v, where g += weight_decay * p; v = momentum * v + g; with `nesterov` g + momentum * v instead of v;
    with `maximize` -g instead of g.

    Source: Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, with PyTorch's conventions.
    """

    state_names = {"momentum_buffer": "velocities"}

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
                         maximize=maximize)
        if nesterov and not momentum:
            raise MinigradError("[SGD] expected a momentum above 0 with nesterov=True, got 0")
        self.velocities = self._zeros() if momentum else []
        if momentum:
            Tensor.realize(*self.velocities)

    def cycled(self) -> Tensor:
        """The momentum as a Tensor."""
        if not self.velocities:
            self.velocities = self._zeros()
            Tensor.realize(*self.velocities)
        return self._cycled_from(self.momentum)

    def _update(self, gradients: Gradients) -> list[Tensor]:
        moves = self._cycled is not None or self.momentum
        if moves and not self.velocities:
            raise MinigradError("[SGD.step] expected a momentum of 0, with which this optimizer was made, got "
                                f"{self.momentum!r}: there are no velocities")
        for p, g, index in self._each(gradients, range(len(gradients))):
            old = p.detach()
            g = self._decayed(g, old)
            if moves:
                momentum = self._inertia(self.momentum, old)
                v = self.velocities[index] * momentum + g
                self.velocities[index].assign(v)
                g = g + v * momentum if self.nesterov else v
            p.assign(old.stepped(g, self._lr))
        return self.velocities
