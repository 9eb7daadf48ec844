"""A learning rate that is lowered when a metric stops getting better."""
from __future__ import annotations

import math
from collections.abc import Sequence

from minigrad.dtype import int32
from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_count, as_number
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler
from minigrad.tensor import Tensor


class ReduceLROnPlateau(LRScheduler):
    """The present rate times `factor`, but no less than `min_lr`, when a metric has not become better in more than
    `patience` steps: smaller, or larger for `mode` 'max', by more than `threshold` times the best, or `threshold`
    itself for `threshold_mode` 'abs'. A rate that would change by no more than `eps` stays. After that `cooldown` steps
    are not counted as bad. `min_lr` may be a list, with one for each parameter group.

    `step` takes the metric, a number or a Tensor of shape (), which is not read: it may stand inside `jit`.
    """

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
                 min_lr: float | Sequence[float] = 0.0, eps: float = 1e-8):
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise MinigradError(f"[ReduceLROnPlateau] expected mode 'min' or 'max' and threshold_mode 'rel' or 'abs', "
                                f"got {mode!r} and {threshold_mode!r}")
        self.largest, self.relative, self.threshold = mode == "max", threshold_mode == "rel", threshold
        self.factor = as_number("ReduceLROnPlateau", "factor", factor)
        self.patience = as_count("ReduceLROnPlateau", "patience", patience)
        self.cooldown = as_count("ReduceLROnPlateau", "cooldown", cooldown)
        groups = len(getattr(optimizer, "members", [None]))
        self.min_lrs = [as_number("ReduceLROnPlateau", "min_lr", v) for v in (
            min_lr if isinstance(min_lr, (tuple, list)) else [min_lr] * groups)]
        if len(self.min_lrs) != groups:
            raise MinigradError(f"[ReduceLROnPlateau] expected min_lr as one number, or one for each of {groups} "
                                f"groups, got {len(self.min_lrs)}")
        self.eps = as_number("ReduceLROnPlateau", "eps", eps)
        device = optimizer.device if isinstance(optimizer, Optimizer) else None
        self.best = Tensor(-math.inf if self.largest else math.inf, device=device).contiguous()
        self.bad, self.resting = (Tensor(0, dtype=int32, device=device).contiguous() for _ in range(2))
        Tensor.realize(self.best, self.bad, self.resting)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base

    def _set(self, count: Tensor, before: Tensor) -> list[Tensor]:
        return []

    def kept(self) -> dict[str, Tensor]:
        """The state that a schedule keeps from step to step, by PyTorch's names."""
        return {"last_epoch": self.count, "best": self.best, "num_bad_epochs": self.bad,
                "cooldown_counter": self.resting}

    def step(self, metrics: float | Tensor = math.nan) -> None:
        """Counts a step with this metric, and changes the optimizer's learning rate if it is time."""
        Tensor.realize(*self.schedule_step(metrics))

    def schedule_step(self, metrics: float | Tensor = math.nan) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it with the optimizer's."""
        if not isinstance(metrics, Tensor):
            metrics = Tensor(float(as_number("ReduceLROnPlateau", "a metric", metrics)), device=self.best.device)
        elif metrics.shape != ():
            raise ShapeError(f"[ReduceLROnPlateau] expected a metric of shape [], got {list(metrics.shape)}")
        m = metrics.detach().float().to(self.best.device)
        sign = 1 if self.largest else -1
        bar = self.best * (1 + sign * self.threshold) if self.relative else self.best + sign * self.threshold
        better = m > bar if self.largest else m < bar
        bad = (better.bitwise_or(self.resting > 0)).where(0, self.bad + 1)
        due = bad > self.patience
        resting = due.where(self.cooldown, (self.resting - 1).maximum(0))
        lower = []
        for group, member in enumerate(self.optimizer.members):
            new = (member.lr * self.factor).maximum(self.min_lrs[min(group, len(self.min_lrs) - 1)])
            lower.append(due.to(member.device).logical_and(member.lr - new > self.eps).where(new, member.lr))
        self.best.assign(better.where(m, self.best))
        self.bad.assign(due.where(0, bad))
        self.resting.assign(resting)
        self.count.assign(self.count + 1)
        rates = [member.lr.assign(rate) for member, rate in zip(self.optimizer.members, lower, strict=True)]
        return [self.count, self.best, self.bad, self.resting, *rates]
