"""Lion: steps of one size, in the direction of a momentum's sign."""
from __future__ import annotations

from minigrad.optim.adam import check_betas
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor


class Lion(Optimizer):
    """p -= lr * (sign(b1*m + (1-b1)*g) + weight_decay * p);  m = b2*m + (1-b2)*g. Rates are 3 to 10 times smaller than
    AdamW's, decays larger by as much.

    Source: Chen et al. 2023, https://arxiv.org/abs/2302.06675
    """

    state_names = {"exp_avg": "means"}

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        check_betas("Lion", betas)
        super().__init__(params, lr, weight_decay=weight_decay)
        self.betas = tuple(betas)
        self.means = self._zeros()
        self._compute(*self.means)

    def _update(self, gradients: Gradients) -> None:
        b1, b2 = self.betas
        for p, g, mean in self._each(gradients, self.means):
            step = (mean * b1 + g * (1 - b1)).sign()
            if self.weight_decay:
                step = step + p * self.weight_decay
            self._set(mean, mean * b2 + g * (1 - b2))
            self._set(p, p.stepped(step, self._lr))
