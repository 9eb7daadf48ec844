"""Further optimizers with Adam's two moments: NAdam, RAdam and Adamax."""
from __future__ import annotations

from minigrad.optim.adam import check_betas
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class _Moments(Optimizer):
    """Means and variances of gradients, `time`, how many steps were made, and `corrections`, 1 - b**time, all Tensors.
    """

    def __init__(self, params: Params, lr: float | Tensor, betas: tuple[float, float], eps: float,
                 weight_decay: float):
        check_betas(type(self).__name__, betas)
        super().__init__(params, lr)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.time, self.corrections = self._scalar(0.0), [self._scalar(0.0), self._scalar(0.0)]
        self.means, self.variances = self._zeros(), self._zeros()
        Tensor.realize(self.time, *self.corrections, *self.means, *self.variances)

    def _counted(self) -> tuple[Tensor, Tensor, Tensor]:
        """(time, 1 - b1**time, 1 - b2**time) of this step."""
        c1, c2 = (c * b + (1 - b) for c, b in zip(self.corrections, self.betas, strict=True))
        return self.time + 1, c1, c2

    def _moved(self, index: int, g: Tensor) -> tuple[Tensor, Tensor]:
        """The next mean and variance of one parameter's gradient, assigned."""
        b1, b2 = self.betas
        m, v = self.means[index] * b1 + g * (1 - b1), self.variances[index] * b2 + g * g * (1 - b2)
        self.means[index].assign(m)
        self.variances[index].assign(v)
        return m, v

    def _state(self, time: Tensor, c1: Tensor, c2: Tensor) -> list[Tensor]:
        self.time.assign(time)
        for correction, c in zip(self.corrections, (c1, c2), strict=True):
            correction.assign(c)
        return [self.time, *self.corrections, *self.means, *self.variances]


class NAdam(_Moments):
    """Adam with Nesterov's momentum, whose share u = b1 * (1 - 0.96**(t * momentum_decay) / 2) grows with step t:
    p -= lr * (u' * m / (1 - U * u') + (1 - u) * g / (1 - U)) / (sqrt(v / c2) + eps), where u' is the next share and U
    the product of all so far.

    Source: Dozat 2016, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ, with PyTorch's conventions.
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.002,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum_decay: float = 0.004):
        super().__init__(params, lr, betas, eps, weight_decay)
        self.momentum_decay, self.product = momentum_decay, self._scalar(1.0).realize()

    def _share(self, time: Tensor) -> Tensor:
        return (1 - 0.5 * 0.96 ** (time * self.momentum_decay)) * self.betas[0]

    def _update(self, gradients: Gradients) -> list[Tensor]:
        time, c1, c2 = self._counted()
        share, following = self._share(time), self._share(time + 1)
        product = self.product * share
        of_gradient, of_mean = (1 - share) / (1 - product), following / (1 - product * following)
        for p, g, index in self._each(gradients, range(len(gradients))):
            old = p.detach()
            g = self._decayed(g, old)
            m, v = self._moved(index, g)
            p.assign(old.stepped((m * of_mean + g * of_gradient) / ((v / c2).sqrt() + self.eps), self._lr))
        self.product.assign(product)
        return [self.product, *self._state(time, c1, c2)]


class RAdam(_Moments):
    """Adam whose step is not divided by the variance while that is uncertain, and then by more at first:
    p -= lr * m / c1 * r * sqrt(c2) / (sqrt(v) + eps), with r**2 = (q-4)(q-2)Q / ((Q-4)(Q-2)q) of
    q = Q - 2 t b2**t / c2 > 5 and Q = 2 / (1-b2) - 1; until then p -= lr * m / c1.

    Source: Liu et al. 2020, https://arxiv.org/abs/1908.03265
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.001,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0):
        super().__init__(params, lr, betas, eps, weight_decay)

    def _update(self, gradients: Gradients) -> list[Tensor]:
        time, c1, c2 = self._counted()
        most = 2 / (1 - self.betas[1]) - 1
        length = most - time * (1 - c2) / c2 * 2
        sure = length > 5
        safe = sure.where(length, 6.0)
        ratio = (safe - 4) * (safe - 2) * most / (safe * ((most - 4) * (most - 2)))
        factor = ratio.sqrt() * c2.sqrt()
        for p, g, index in self._each(gradients, range(len(gradients))):
            old = p.detach()
            m, v = self._moved(index, self._decayed(g, old))
            p.assign(old.stepped(m / c1 * sure.where(factor / (v.sqrt() + self.eps), 1.0), self._lr))
        return self._state(time, c1, c2)


class Adamax(_Moments):
    """m = b1*m + (1-b1)*g;  u = max(b2*u, |g| + eps);  p -= lr / c1 * m / u: Adam with the largest gradient.

    Source: Kingma & Ba 2015, section 7.1, https://arxiv.org/abs/1412.6980
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.002,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0):
        super().__init__(params, lr, betas, eps, weight_decay)

    def _update(self, gradients: Gradients) -> list[Tensor]:
        time, c1, c2 = self._counted()
        b1, b2 = self.betas
        for p, g, mean, most in self._each(gradients, self.means, self.variances):
            old = p.detach()
            g = self._decayed(g, old)
            m, u = mean * b1 + g * (1 - b1), (most * b2).maximum(g.abs() + self.eps)
            mean.assign(m)
            most.assign(u)
            p.assign(old.stepped(m / c1 / u, self._lr))
        return self._state(time, c1, c2)
