"""Learning rates that change from step to step, with PyTorch's names and numbers.

    schedule = nn.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    for ...: optimizer.step(); schedule.step()

The count of steps is a Tensor and every rate a computation with it, so that `step` works inside `jit`, where it is part
of what is captured. A schedule sets the rate when it is made. Its base is the optimizer's rate before any schedule,
or, of those that multiply it, the present one.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.dtype import int32
from minigrad.errors import CaptureError, MinigradError, ShapeError
from minigrad.mixins.base import as_count, as_number, as_tensor
from minigrad.optim.cycles import CyclicLR, Factor, OneCycleLR
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.plateau import ReduceLROnPlateau
from minigrad.optim.schedule import LRScheduler
from minigrad.tensor import Tensor


class LambdaLR(LRScheduler):
    """base * lr_lambda(count). The function is given a Tensor, float32 of shape (), and called each time a schedule is
    made or captured: inside `jit` it must compute with Tensors, such as `(count / 10).minimum(1)` for a warm-up. It may
    be a list of functions, one for each parameter group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor], last_epoch: int = -1):
        name = type(self).__name__
        groups = len(optimizer.members) if isinstance(optimizer, Optimizer) else 1
        self.lr_lambdas: list[Any] = list(lr_lambda) if isinstance(lr_lambda, (tuple, list)) else [lr_lambda] * groups
        if not all(callable(f) for f in self.lr_lambdas):
            raise MinigradError(f"[{name}] expected a function of the count of steps, got {lr_lambda!r}")
        if len(self.lr_lambdas) != groups:
            raise MinigradError(f"[{name}] expected a function for each of {groups} groups, got "
                                f"{len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return self._scaled(self.lr_lambdas[0], count, base)

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        return self._scaled(self.lr_lambdas[min(group, len(self.lr_lambdas) - 1)], count, base)

    def _scaled(self, function: Factor, count: Tensor, base: Tensor) -> Tensor:
        name = type(self).__name__
        try:
            factor: Any = function(count.float())
        except CaptureError as error:
            raise CaptureError(f"[{name}] expected a function that computes with Tensors inside jit, such as "
                               "(count / 10).minimum(1) for min(count / 10, 1); or call step() of the schedule "
                               f"outside: {error}") from None
        if isinstance(factor, Tensor) and factor.shape != ():
            raise ShapeError(f"[{name}] expected a factor of shape [], got {list(factor.shape)}")
        return base * (factor if isinstance(factor, Tensor) else as_number(name, "a factor", factor))


class StepLR(LRScheduler):
    """base * gamma**(count // step_size)."""

    least = 0.0

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size = as_count("StepLR", "step_size", step_size, 1)
        self.gamma = as_number("StepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * self.gamma ** (count // self.step_size).float()


class MultiStepLR(LRScheduler):
    """base * gamma**(how many milestones have been reached)."""

    least = 0.0

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones = _milestones("MultiStepLR", milestones)
        self.gamma = as_number("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        reached = sum([(count >= m).float() for m in self.milestones], start=count.float() * 0)
        return base * self.gamma ** reached


class ExponentialLR(LRScheduler):
    """base * gamma**count."""

    least, waits = 0.0, True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = as_number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * self.gamma ** count.float()


class CosineAnnealingLR(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * count / T_max)) / 2: half a period of the cosine in T_max steps.

    Source: Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983
    """

    waits = True

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
        self.T_max = as_count("CosineAnnealingLR", "T_max", T_max, 1)
        self.least = self.eta_min = as_number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        angle = (count % (2 * self.T_max)).float() * (math.pi / self.T_max)
        return (base - self.eta_min) * ((angle.cos() + 1) * 0.5) + self.eta_min


class LinearLR(LRScheduler):
    """base times a factor that goes linearly from start_factor to end_factor in total_iters steps, and stays: a
    warm-up."""

    least, waits = 0.0, True

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5, last_epoch: int = -1):
        self.start_factor = as_number("LinearLR", "start_factor", start_factor)
        self.end_factor = as_number("LinearLR", "end_factor", end_factor)
        self.total_iters = as_count("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        share = count.minimum(self.total_iters).float() * (1 / self.total_iters)
        return base * (share * (self.end_factor - self.start_factor) + self.start_factor)


class ConstantLR(LRScheduler):
    """base * factor for total_iters steps, then base."""

    least = 0.0

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1):
        self.factor = as_number("ConstantLR", "factor", factor)
        self.total_iters = as_count("ConstantLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * (count < self.total_iters).where(self.factor, 1.0)


class PolynomialLR(LRScheduler):
    """base * (1 - count / total_iters)**power, 0 from total_iters on."""

    least, waits = 0.0, True

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters = as_count("PolynomialLR", "total_iters", total_iters, 1)
        self.power = as_number("PolynomialLR", "power", power)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        left = 1 - count.minimum(self.total_iters).float() * (1 / self.total_iters)
        return base * left ** float(self.power)


class CosineAnnealingWarmRestarts(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * t / T)) / 2, where t counts the steps since the last restart and T is
    how many there are until the next: T_0 at first, T_mult times as many after each.

    Source: Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1,
                 eta_min: float = 0.0, last_epoch: int = -1):
        self.T_0 = as_count("CosineAnnealingWarmRestarts", "T_0", T_0, 1)
        self.T_mult = as_count("CosineAnnealingWarmRestarts", "T_mult", T_mult, 1)
        self.eta_min = as_number("CosineAnnealingWarmRestarts", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        if self.T_mult == 1:
            share = (count % self.T_0).float() * (1 / self.T_0)
        else:
            start, length, share = 0, self.T_0, count.float() * (1 / self.T_0)
            while start + length <= int32.max:
                start, length = start + length, length * self.T_mult
                share = (count >= start).where((count - start).float() * (1 / length), share)
        return (base - self.eta_min) * (((share * math.pi).cos() + 1) * 0.5) + self.eta_min


class MultiplicativeLR(LambdaLR):
    """The present rate times lr_lambda(count) at each step. The functions are of LambdaLR's kind."""

    _started = False

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor], last_epoch: int = -1):
        super().__init__(optimizer, lr_lambda, last_epoch)
        self._started = True

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        return super()._rate_of(group, count, member.lr.detach(), member) if self._started else member.lr.detach()


def _without_momenta(name: str, schedules: Sequence[LRScheduler]) -> None:
    if any(s.momentum(s.count) is not None for s in schedules):
        raise MinigradError(f"[{name}] expected schedules of the rate alone, got one with cycle_momentum=True")


class ChainedScheduler(LRScheduler):
    """Schedules at once: each one's rate is the base of the next. Their own `step` must not be called.

    Those that multiply the base compose as PyTorch's do. Raises MinigradError for schedules of other optimizers.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        self.schedulers = list(schedulers)
        found = optimizer or (self.schedulers[0].optimizer if self.schedulers else None)
        if found is None or any(not isinstance(s, LRScheduler) or s.optimizer is not found for s in self.schedulers):
            raise MinigradError("[ChainedScheduler] expected schedules of the same optimizer")
        _without_momenta("ChainedScheduler", self.schedulers)
        least = {s.least for s in self.schedulers}
        self.least, self.of_parts = least.pop() if len(least) == 1 else None, True
        super().__init__(found)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        for schedule in self.schedulers:
            base = schedule.rate(count, base)
        return base


class SequentialLR(LRScheduler):
    """Schedules one after another: the next one from each milestone on, with a count of its own from 0.

    Their own `step` must not be called. Raises MinigradError unless there is one milestone less than schedules, all of
    this optimizer, in increasing order.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
                 last_epoch: int = -1):
        self.schedulers, self.milestones = list(schedulers), _milestones("SequentialLR", milestones)
        if not self.schedulers or any(not isinstance(s, LRScheduler) or s.optimizer is not optimizer
                                      for s in self.schedulers):
            raise MinigradError("[SequentialLR] expected schedules of the same optimizer")
        _without_momenta("SequentialLR", self.schedulers)
        if len(self.milestones) != len(self.schedulers) - 1:
            raise MinigradError(f"[SequentialLR] expected {len(self.schedulers) - 1} milestones for "
                                f"{len(self.schedulers)} schedules, got {self.milestones}")
        super().__init__(optimizer, last_epoch)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return self._at(count, lambda schedule, count: schedule.rate(count, base))

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        return self._at(count, lambda schedule, count: schedule._rate_of(group, count, base, member))

    def _at(self, count: Tensor, rate: Callable[[LRScheduler, Tensor], Tensor]) -> Tensor:
        result = rate(self.schedulers[0], count)
        for start, schedule in zip(self.milestones, self.schedulers[1:], strict=True):
            result = (count >= start).where(rate(schedule, count - start), result)
        return as_tensor("SequentialLR", result)


def _milestones(name: str, given: Sequence[int]) -> list[int]:
    counts = [as_count(name, "milestones", m, 0) for m in given] if isinstance(given, (tuple, list)) else None
    if counts is None or counts != sorted(counts):
        raise MinigradError(f"[{name}] expected milestones in increasing order, got {given!r}")
    return counts


__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
           "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
           "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]
