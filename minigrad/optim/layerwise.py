"""Optimizers that look at a parameter as a whole: LAMB and LARS scale steps by its norm, Muon makes them orthogonal."""
from __future__ import annotations

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_count, as_number
from minigrad.optim.adam import Moments
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.tensor import Tensor

_QUINTIC = (3.4445, -4.775, 2.0315)


def _trust(p: Tensor, step: Tensor) -> Tensor:
    """|p| / |step|, 1 where either is 0; of shape ()."""
    ours, theirs = p.float().norm(), step.float().norm()
    none = (ours * theirs).eq(0)
    return none.where(1.0, ours / none.where(1.0, theirs))


class LAMB(Moments):
    """Adam's step with decoupled weight decay, times |p| / |step| of each parameter: for large batches.

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962
    """

    def __init__(self, params: Params, lr: float | Tensor = 0.001,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.0):
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay)

    def _update(self, gradients: Gradients) -> None:
        counts = self._counted(gradients)
        for p, g, mean, variance, (c1, c2) in self._each(gradients, self.means, self.variances, counts):
            m, v = self._moved(g, mean, variance)
            step = self._decayed((m / c1) / ((v / c2).sqrt() + self.eps), p)
            self._set(p, p.stepped(step * _trust(p, step), self._lr))


class LARS(Optimizer):
    """v = momentum*v + lr * trust * (g + weight_decay * p);  p -= v, with trust = tcoef * |p| / (|g| +
    weight_decay * |p|) of each parameter, 1 where a norm is 0; with `nesterov`, p -= lr * trust * g' + momentum * v.

    Source: You et al. 2017, https://arxiv.org/abs/1708.03888
    """

    state_names = {"momentum_buffer": "velocities"}
    tcoef: float

    def __init__(self, params: Params, lr: float | Tensor = 0.001, momentum: float = 0.9,
                 weight_decay: float = 1e-4, nesterov: bool = False, tcoef: float = 0.001):
        super().__init__(params, lr, momentum=momentum, tcoef=tcoef, weight_decay=weight_decay, nesterov=nesterov)
        self.velocities = self._zeros()
        self._compute(*self.velocities)

    def _update(self, gradients: Gradients) -> None:
        for p, g, velocity in self._each(gradients, self.velocities):
            ours, theirs = p.float().norm(), g.float().norm()
            none = (ours * theirs).eq(0)
            trust = none.where(1.0, ours * self.tcoef / none.where(1.0, theirs + ours * self.weight_decay))
            step = self._decayed(g, p) * (self._lr * trust).cast(p.dtype)
            v = velocity * self.momentum + step
            self._set(velocity, v)
            self._set(p, p - (step + v * self.momentum if self.nesterov else v))


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal: v = momentum*v + g (g + momentum*v with `nesterov`), p -= lr *
    (scale * orthogonal(v) + weight_decay * p), where the scale is sqrt(max(1, rows / columns)), or 0.2 * sqrt(max(rows,
    columns)) for `adjust_lr_fn` 'match_rms_adamw'.

    For parameters of two axes and more, which are matrices [first, all others]; others need an optimizer of their own
    (see OptimizerGroup). Raises ShapeError for those.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
    """

    state_names = {"momentum_buffer": "velocities"}

    def __init__(self, params: Params, lr: float | Tensor = 0.001, weight_decay: float = 0.1,
                 momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: tuple[float, float, float] = _QUINTIC, eps: float = 1e-7, ns_steps: int = 5,
                 adjust_lr_fn: str | None = None):
        self.momentum = as_number("Muon", "momentum", momentum)
        if not 0 <= self.momentum < 1:
            raise MinigradError(f"[Muon] expected a momentum in 0..1, below 1, got {momentum}")
        self.ns_steps, self.adjust_lr_fn = as_count("Muon", "ns_steps", ns_steps, 1), adjust_lr_fn
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise MinigradError(f"[Muon] expected adjust_lr_fn None, 'original' or 'match_rms_adamw', got "
                                f"{adjust_lr_fn!r}")
        if not isinstance(ns_coefficients, (tuple, list)) or len(ns_coefficients) != 3:
            raise MinigradError(f"[Muon] expected three ns_coefficients, got {ns_coefficients!r}")
        self.ns_coefficients = tuple(ns_coefficients)
        super().__init__(params, lr, weight_decay=weight_decay, nesterov=nesterov, eps=eps)
        wrong = [p for p in self.params if p.ndim < 2]
        if wrong:
            raise ShapeError(f"[Muon] expected parameters of two axes and more, got one of shape "
                             f"{list(wrong[0].shape)}: give it to AdamW, and both to OptimizerGroup")
        self.velocities = self._zeros()
        self._compute(*self.velocities)

    def _update(self, gradients: Gradients) -> None:
        for p, g, velocity in self._each(gradients, self.velocities):
            v = velocity * self.momentum + g
            self._set(velocity, v)
            step = g + v * self.momentum if self.nesterov else v
            matrix = step.flatten(1).float()
            rows, columns = (int(n) for n in matrix.shape)
            scale = 0.2 * max(rows, columns) ** 0.5 if self.adjust_lr_fn == "match_rms_adamw" else (
                max(1.0, rows / max(columns, 1)) ** 0.5)
            step = orthogonal(matrix, self.ns_steps, self.eps, self.ns_coefficients).reshape(*p.shape) * scale
            self._set(p, p.stepped(self._decayed(step, p), self._lr))


def orthogonal(x: Tensor, steps: int = 5, eps: float = 1e-7, coefficients: tuple[float, ...] = _QUINTIC) -> Tensor:
    """Nearly U @ V.T of a matrix U @ S @ V.T, with singular values of about 0.7 to 1.2: `steps` of the iteration
    x = a x + (b y + c y @ y) @ x with y = x @ x.T, from x over its norm."""
    a, b, c = coefficients
    rows, columns = x.shape
    wide = int(rows) <= int(columns)
    x = x if wide else x.T
    x = x / (x.norm() + eps)
    for _ in range(steps):
        y = (x @ x.T).contiguous()
        x = (x * a + (y * b + y @ y * c) @ x).contiguous()
    return x if wide else x.T
