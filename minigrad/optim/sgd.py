"""Stochastic gradient descent, and its average."""
from __future__ import annotations

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * v, where g += weight_decay * p; v = momentum * v + (1 - dampening) * g, at a parameter's first step g;
    with `nesterov` g + momentum * v instead of v; with `maximize` -g instead of g.

    Source: Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, with PyTorch's conventions.
    """

    state_names = {"momentum_buffer": "velocities"}
    dampening: float

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                         nesterov=nesterov, maximize=maximize)
        if nesterov and not momentum:
            raise MinigradError("[SGD] expected a momentum above 0 with nesterov=True, got 0")
        if nesterov and dampening:
            raise MinigradError(f"[SGD] expected a dampening of 0 with nesterov=True, got {dampening!r}")
        self.velocities: list[Tensor] = []
        if momentum:
            self._begin()

    def _begin(self) -> None:
        """Makes velocities of 0, and counts the steps where the first is another than those that follow."""
        self.velocities = self._zeros()
        self._compute(*self.velocities)
        if self.dampening:
            self.state_names, self.shared_names = {"step": "times", **self.state_names}, ("times",)
            self._begin_counts()

    def cycled(self) -> Tensor:
        """The momentum as a Tensor."""
        if not self.velocities:
            self._begin()
        return self._cycled_from(self.momentum)

    def _check(self) -> None:
        moves = self._cycled is not None or self.momentum
        if moves and not self.velocities:
            raise MinigradError("[SGD.step] expected a momentum of 0, with which this optimizer was made, got "
                                f"{self.momentum!r}: there are no velocities")
        if moves and self.dampening and not self.shared_names:
            raise MinigradError("[SGD.step] expected a dampening of 0, with which this optimizer was made, got "
                                f"{self.dampening!r}: steps were not counted")

    def _update(self, gradients: Gradients) -> None:
        shares = self._by_time(gradients, lambda time, _: (time > 1).where(1 - self.dampening, 1.0)) if (
            self.dampening and self.shared_names) else [None] * len(gradients)
        for p, g, share, index in self._each(gradients, shares, range(len(gradients))):
            g = self._decayed(g, p)
            if self.velocities:
                momentum = self._inertia(self.momentum, p)
                v = self.velocities[index] * momentum + (g if share is None else g * share.cast(g.dtype))
                self._set(self.velocities[index], v)
                g = g + v * momentum if self.nesterov else v
            self._set(p, p.stepped(g, self._lr))


class ASGD(Optimizer):
    """p -= eta * g after p *= 1 - lambd * eta, with g += weight_decay * p before and eta = lr / (1 + lambd * lr *
    t)**alpha of step t before. `averages` are those of the parameters since step t0: a += (p - a) / max(1, t - 1 - t0).

    Source: Polyak & Juditsky 1992, https://doi.org/10.1137/0330046, with PyTorch's conventions.
    """

    state_names = {"step": "times", "eta": "rates", "mu": "shares", "ax": "averages"}
    shared_names = ("times", "rates", "shares")
    lambd: float
    alpha: float
    t0: float

    def __init__(self, params: Params, lr: float | Tensor = 0.01, lambd: float = 1e-4, alpha: float = 0.75,
                 t0: float = 1e6, weight_decay: float = 0.0, *, maximize: bool = False):
        super().__init__(params, lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, maximize=maximize)
        self._begin_counts()
        self.rates = [self._lr.clone().realize()] * len(self.params)
        self.shares = [self._scalar(1.0).realize()] * len(self.params)
        self.averages = self._zeros()
        self._compute(*self.averages)

    def _terms(self, time: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """The rate and the average's share of this step; those of the next are assigned."""
        rate, share = (time == 1).where(self._lr, self.rates[index]), self.shares[index].detach()
        self._set(self.rates[index], self._lr / (1 + self._lr * self.lambd * time) ** self.alpha)
        self._set(self.shares[index], 1 / (time - self.t0).maximum(1.0))
        return rate, share

    def _update(self, gradients: Gradients) -> None:
        for p, g, average, (rate, share) in self._each(gradients, self.averages,
                                                       self._by_time(gradients, self._terms)):
            g = self._decayed(g, p)
            new = (p * (1 - rate * self.lambd).cast(p.dtype)).stepped(g, rate)
            self._set(p, new)
            self._set(average, (share == 1).where(new, average + (new - average) * share.cast(p.dtype)))
