"""Learning rates that go up and down, and momenta with them (see lr_scheduler.py)."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import MinigradError
from minigrad.mixins.base import as_count, as_number, as_tensor
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler
from minigrad.tensor import Tensor

Factor = Callable[[Tensor], Tensor | float]
Numbers = float | Sequence[float]


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr in the first `pct_start` of the steps, then down to the start over
    final_div_factor: along cosines, or lines for `anneal_strategy` 'linear'; with `three_phase` down to the start in as
    many steps as up, and then on. The optimizer's own rate does not count. The momentum, or the first of betas, goes
    down from max_momentum to base_momentum meanwhile, and up again, unless `cycle_momentum` is False. Rates and momenta
    may be lists, with one for each parameter group.

    There are `total_steps` steps, or epochs * steps_per_epoch; after them the rate stays.

    Source: Smith & Topin 2018, https://arxiv.org/abs/1708.07120
    """

    def __init__(self, optimizer: Optimizer, max_lr: Numbers, total_steps: int | None = None, epochs: int | None = None,
                 steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
                 cycle_momentum: bool = True, base_momentum: Numbers = 0.85, max_momentum: Numbers = 0.95,
                 div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
                 last_epoch: int = -1):
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        self.total_steps = as_count("OneCycleLR", "total_steps, or epochs and steps_per_epoch,", total_steps, 1)
        if not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            raise MinigradError(f"[OneCycleLR] expected pct_start in 0..1 and anneal_strategy 'cos' or 'linear', got "
                                f"{pct_start!r} and {anneal_strategy!r}")
        self.cosine, self.max_lrs = anneal_strategy == "cos", _of_groups("OneCycleLR", "max_lr", max_lr, optimizer)
        top = pct_start * self.total_steps - 1
        self.ends = [top, *([2 * top] if three_phase else []), self.total_steps - 1]
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.momenta = _momenta("OneCycleLR", cycle_momentum, base_momentum, max_momentum, optimizer)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return self._of(count, self.max_lrs[0])

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        return self._of(count, self.max_lrs[min(group, len(self.max_lrs) - 1)])

    def _of(self, count: Tensor, top: float) -> Tensor:
        first = top / self.div_factor
        return self._at(count, [first, top, *([first] if len(self.ends) > 2 else []), first / self.final_div_factor])

    def momentum(self, count: Tensor, group: int = 0) -> Tensor | None:
        """From the largest to the least and back."""
        if self.momenta is None:
            return None
        least, largest = self.momenta[min(group, len(self.momenta) - 1)]
        return self._at(count, [largest, least, largest, largest][:len(self.ends) + 1])

    def _at(self, count: Tensor, values: list[float]) -> Tensor:
        """The value on the way through these, which are reached at the ends of the phases but for the first."""
        at = count.minimum(self.total_steps - 1).float()
        found: Tensor | None = None
        for k, (end, begin) in reversed([*enumerate(zip(self.ends, [0.0, *self.ends], strict=False))]):
            share = (at - begin) / (end - begin) if end > begin else at * 0 + 1
            share = (1 - (share * math.pi).cos()) * 0.5 if self.cosine else share
            value = share * (values[k + 1] - values[k]) + values[k]
            found = value if found is None else (at <= end).where(value, found)
        return as_tensor("OneCycleLR", found)


class CyclicLR(LRScheduler):
    """Lines from base_lr up to max_lr in step_size_up steps and down in step_size_down (as many by default), again and
    again: for `mode` 'triangular' alike, for 'triangular2' half as high each time, for 'exp_range' gamma**count as
    high; `scale_fn` times as high in its place, a function of the number of the cycle, from 1 on, or of the count of
    steps for `scale_mode` 'iterations', of LambdaLR's kind. The optimizer's own rate does not count. The momentum, or
    the first of betas, goes from max_momentum down to base_momentum where the rate goes up, as far, unless
    `cycle_momentum` is False. Rates and momenta may be lists, with one for each parameter group.

    Source: Smith 2017, https://arxiv.org/abs/1506.01186
    """

    def __init__(self, optimizer: Optimizer, base_lr: Numbers, max_lr: Numbers, step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Factor | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
                 base_momentum: Numbers = 0.8, max_momentum: Numbers = 0.9, last_epoch: int = -1):
        self.least_lrs = _of_groups("CyclicLR", "base_lr", base_lr, optimizer)
        self.max_lrs = _of_groups("CyclicLR", "max_lr", max_lr, optimizer)
        self.up = as_count("CyclicLR", "step_size_up", step_size_up, 1)
        self.down = as_count("CyclicLR", "step_size_down", self.up if step_size_down is None else step_size_down, 1)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise MinigradError(f"[CyclicLR] expected mode 'triangular', 'triangular2' or 'exp_range', got {mode!r}")
        if (scale_fn is not None and not callable(scale_fn)) or scale_mode not in ("cycle", "iterations"):
            raise MinigradError("[CyclicLR] expected scale_fn as a function and scale_mode 'cycle' or 'iterations', "
                                f"got {scale_fn!r} and {scale_mode!r}")
        self.mode, self.gamma = mode, as_number("CyclicLR", "gamma", gamma)
        self.scale_fn, self.scale_mode = scale_fn, scale_mode
        self.momenta = _momenta("CyclicLR", cycle_momentum, base_momentum, max_momentum, optimizer)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return self._height(count) * (self.max_lrs[0] - self.least_lrs[0]) + self.least_lrs[0] + base * 0

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        low, high = (of[min(group, len(of) - 1)] for of in (self.least_lrs, self.max_lrs))
        return self._height(count) * (high - low) + low + base * 0

    def momentum(self, count: Tensor, group: int = 0) -> Tensor | None:
        """From the largest down, as the rate goes up."""
        if self.momenta is None:
            return None
        least, largest = self.momenta[min(group, len(self.momenta) - 1)]
        return self._height(count) * (least - largest) + largest

    def _height(self, count: Tensor) -> Tensor:
        """The share of the way from the base to the largest, of 0..1."""
        whole = self.up + self.down
        at = (count % whole).float()
        share = (at <= self.up).where(at / self.up, (whole - at) / self.down)
        if self.scale_fn is not None:
            return share * self.scale_fn((count if self.scale_mode == "iterations" else count // whole + 1).float())
        if self.mode == "triangular2":
            return share * 0.5 ** (count // whole).float()
        return share * self.gamma ** count.float() if self.mode == "exp_range" else share


def _of_groups(name: str, what: str, value: Numbers, optimizer: Any) -> list[float]:
    """A number for each parameter group, from one or as many. Raises MinigradError."""
    groups = len(optimizer.members) if isinstance(optimizer, Optimizer) else 1
    if not isinstance(value, (tuple, list)):
        return [as_number(name, what, value)]
    if len(value) != groups:
        raise MinigradError(f"[{name}] expected {what} as one number, or one for each of {groups} groups, got "
                            f"{len(value)}")
    return [as_number(name, what, v) for v in value]


def _momenta(name: str, cycle: bool, base: Numbers, largest: Numbers, optimizer: Any
             ) -> list[tuple[float, float]] | None:
    """(least, largest) of each group, or of all of them, None unless they are cycled."""
    if not cycle:
        return None
    low, high = (_of_groups(name, what, value, optimizer)
                 for what, value in (("base_momentum", base), ("max_momentum", largest)))
    return [(low[min(k, len(low) - 1)], high[min(k, len(high) - 1)]) for k in range(max(len(low), len(high)))]
