"""Further optimizers with Adam's two moments: NAdam, RAdam and Adamax."""
from __future__ import annotations

from minigrad.optim.adam import Moments
from minigrad.optim.optimizer import Gradients, Params
from minigrad.tensor import Tensor


class NAdam(Moments):
    """Adam with Nesterov's momentum, whose share u = b1 * (1 - 0.96**(t * momentum_decay) / 2) grows with step t:
    p -= lr * (u' * m / (1 - U * u') + (1 - u) * g / (1 - U)) / (sqrt(v / c2) + eps), where u' is the next share and U
    the product of all so far.

    Source: Dozat 2016, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ, with PyTorch's conventions.
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.002,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum_decay: float = 0.004, decoupled_weight_decay: bool = False, *, maximize: bool = False):
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
                         decoupled_weight_decay=decoupled_weight_decay, maximize=maximize)
        self.products = [self._scalar(1.0).realize()] * len(self.params)

    state_names = {**Moments.state_names, "mu_product": "products"}
    shared_names = ("times", "products")
    momentum_decay: float

    def _share(self, time: Tensor) -> Tensor:
        return (1 - 0.5 * 0.96 ** (time * self.momentum_decay)) * self._betas(time)[0]

    def _terms(self, time: Tensor, _: Tensor, c2: Tensor, index: int) -> tuple[Tensor, ...]:
        """The factors of the gradient and of the mean, and c2."""
        share, following = self._share(time), self._share(time + 1)
        product = self.products[index] * share
        self._set(self.products[index], product)
        return (1 - share) / (1 - product), following / (1 - product * following), c2

    def _update(self, gradients: Gradients) -> None:
        terms = self._counted(gradients, self._terms)
        for p, g, mean, variance, (of_gradient, of_mean, c2) in self._each(gradients, self.means, self.variances,
                                                                           terms):
            old, g = self._with_decay(p, g)
            m, v = self._moved(g, mean, variance)
            self._set(p, old.stepped((m * of_mean + g * of_gradient) / ((v / c2).sqrt() + self.eps), self._lr))


class RAdam(Moments):
    """Adam whose step is not divided by the variance while that is uncertain, and then by more at first:
    p -= lr * m / c1 * r * sqrt(c2) / (sqrt(v) + eps), with r**2 = (q-4)(q-2)Q / ((Q-4)(Q-2)q) of
    q = Q - 2 t b2**t / c2 > 5 and Q = 2 / (1-b2) - 1; until then p -= lr * m / c1.

    Source: Liu et al. 2020, https://arxiv.org/abs/1908.03265
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.001,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 decoupled_weight_decay: bool = False, *, maximize: bool = False):
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay,
                         decoupled_weight_decay=decoupled_weight_decay, maximize=maximize)

    def _terms(self, time: Tensor, c1: Tensor, c2: Tensor, _: int) -> tuple[Tensor, ...]:
        """c1, a bool Tensor that is True where the variance is known well enough, and r * sqrt(c2)."""
        most = 2 / (1 - self.betas[1]) - 1
        length = most - time * (1 - c2) / c2 * 2
        sure = length > 5
        safe = sure.where(length, 6.0)
        ratio = (safe - 4) * (safe - 2) * most / (safe * ((most - 4) * (most - 2)))
        return c1, sure, ratio.sqrt() * c2.sqrt()

    def _update(self, gradients: Gradients) -> None:
        terms = self._counted(gradients, self._terms)
        for p, g, mean, variance, (c1, sure, factor) in self._each(gradients, self.means, self.variances, terms):
            old, g = self._with_decay(p, g)
            m, v = self._moved(g, mean, variance)
            self._set(p, old.stepped(m / c1 * sure.where(factor / (v.sqrt() + self.eps), 1.0), self._lr))


class Adamax(Moments):
    """m = b1*m + (1-b1)*g;  u = max(b2*u, |g| + eps);  p -= lr / c1 * m / u: Adam with the largest gradient.

    Source: Kingma & Ba 2015, section 7.1, https://arxiv.org/abs/1412.6980
    """

    state_names = {"step": "times", "exp_avg": "means", "exp_inf": "variances"}

    def __init__(self, params: Params, lr: float | Tensor = 0.002,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 *, maximize: bool = False):
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def _update(self, gradients: Gradients) -> None:
        for p, g, mean, most, (c1, _) in self._each(gradients, self.means, self.variances, self._counted(gradients)):
            g = self._decayed(g, p)
            b1, b2 = self._betas(mean)
            m, u = mean * b1 + g * (1 - b1), (most * b2).maximum(g.abs() + self.eps)
            self._set(mean, m)
            self._set(most, u)
            self._set(p, p.stepped(m / c1 / u, self._lr))
