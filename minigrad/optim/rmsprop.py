"""Optimizers that divide by a running or total size of gradients: RMSprop, Adagrad and Adadelta."""
from __future__ import annotations

from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class RMSprop(Optimizer):
    """v = alpha*v + (1-alpha)*g*g;  p -= lr * b, with b = momentum*b + g / (sqrt(v) + eps) and g += weight_decay * p
    first. With `centered`, the square of a running mean of g is taken from v under the root.

    Source: Tieleman & Hinton 2012, lecture 6.5 of "Neural Networks for Machine Learning", with PyTorch's conventions.
    """

    state_names = {"square_avg": "squares", "momentum_buffer": "velocities", "grad_avg": "means"}
    alpha: float
    centered: bool

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
                         centered=centered, maximize=maximize)
        if self.alpha > 1:
            raise MinigradError(f"[RMSprop] expected an alpha in 0..1, got {alpha}")
        self.squares = self._zeros()
        self.means = self._zeros() if centered else []
        self.velocities = self._zeros() if momentum else []
        self._compute(*self.squares, *self.means, *self.velocities)

    def cycled(self) -> Tensor:
        """The momentum as a Tensor."""
        if not self.velocities:
            self.velocities = self._zeros()
            self._compute(*self.velocities)
        return self._cycled_from(self.momentum)

    def _update(self, gradients: Gradients) -> None:
        for p, g, square, index in self._each(gradients, self.squares, range(len(gradients))):
            g = self._decayed(g, p)
            v = size = square * self.alpha + g * g * (1 - self.alpha)
            self._set(square, v)
            if self.centered:
                m = self.means[index] * self.alpha + g * (1 - self.alpha)
                self._set(self.means[index], m)
                size = v - m * m
            step = g / (size.sqrt() + self.eps)
            if self.velocities:
                step = self.velocities[index] * self._inertia(self.momentum, p) + step
                self._set(self.velocities[index], step)
            self._set(p, p.stepped(step, self._lr))


class Adagrad(Optimizer):
    """v += g*g;  p -= lr / (1 + (t-1) * lr_decay) * g / (sqrt(v) + eps) at step t, with g += weight_decay * p first and
    v = initial_accumulator_value.

    Source: Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html
    """

    state_names = {"sum": "squares"}
    initial_accumulator_value: float
    lr_decay: float

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, lr_decay=lr_decay, weight_decay=weight_decay,
                         initial_accumulator_value=initial_accumulator_value, eps=eps, maximize=maximize)
        if lr_decay:
            self.state_names, self.shared_names = {"step": "times", **self.state_names}, ("times",)
            self._begin_counts()
        self.squares = [(z + self.initial_accumulator_value).contiguous() for z in self._zeros()]
        self._compute(*self.squares)

    def _check(self) -> None:
        if self.lr_decay and not self.shared_names:
            raise MinigradError("[Adagrad.step] expected an lr_decay of 0, with which this optimizer was made, got "
                                f"{self.lr_decay!r}: steps were not counted")

    def _update(self, gradients: Gradients) -> None:
        rates = self._by_time(gradients, lambda time, _: self._lr / ((time - 1) * self.lr_decay + 1)) if (
            self.lr_decay) else [self._lr] * len(gradients)
        for p, g, square, rate in self._each(gradients, self.squares, rates):
            g = self._decayed(g, p)
            v = square + g * g
            self._set(square, v)
            self._set(p, p.stepped(g / (v.sqrt() + self.eps), rate))


class Adadelta(Optimizer):
    """v = rho*v + (1-rho)*g*g;  d = sqrt(a + eps) / sqrt(v + eps) * g;  a = rho*a + (1-rho)*d*d;  p -= lr * d, with
    g += weight_decay * p first.

    Source: Zeiler 2012, https://arxiv.org/abs/1212.5701
    """

    state_names = {"square_avg": "squares", "acc_delta": "steps"}
    rho: float

    def __init__(self, params: Params, lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, *, maximize: bool = False):
        super().__init__(params, lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)
        if self.rho > 1:
            raise MinigradError(f"[Adadelta] expected a rho in 0..1, got {rho}")
        self.squares, self.steps = self._zeros(), self._zeros()
        self._compute(*self.squares, *self.steps)

    def _update(self, gradients: Gradients) -> None:
        for p, g, square, size in self._each(gradients, self.squares, self.steps):
            g = self._decayed(g, p)
            v = square * self.rho + g * g * (1 - self.rho)
            step = (size + self.eps).sqrt() / (v + self.eps).sqrt() * g
            self._set(square, v)
            self._set(size, size * self.rho + step * step * (1 - self.rho))
            self._set(p, p.stepped(step, self._lr))
