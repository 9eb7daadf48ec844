"""Learning rates that change from step to step, with PyTorch's names and numbers.

    schedule = nn.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    for ...: optimizer.step(); schedule.step()

The count of steps is a Tensor and every rate a computation with it, so that `step` works inside `jit`, where it is part
of what is captured. A schedule sets the rate when it is made; its base is the optimizer's rate before any schedule.
"""
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.dtype import int32
from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_count, as_number, as_tensor
from minigrad.optim.optimizer import Optimizer
from minigrad.tensor import Tensor


class LRScheduler(ABC):
    """`count`: how many steps were made, int32 of shape (). `rate` says what the learning rate is after so many."""

    def __init__(self, optimizer: Optimizer):
        if not isinstance(optimizer, Optimizer):
            raise MinigradError(f"[{type(self).__name__}] expected an Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.base = optimizer.initial_lr()
        self.count = Tensor(0, dtype=int32, device=optimizer.device).contiguous()
        Tensor.realize(self.count, *self._set(self.count))

    @abstractmethod
    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        """The rate after `count` steps (int32, shape ()) for a first one of `base` (float32, shape ())."""

    def step(self) -> None:
        """Counts a step and sets the optimizer's learning rate. Call it after the optimizer's step."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it with the optimizer's."""
        self.count.assign(self.count + 1)
        return [self.count, *self._set(self.count)]

    def _set(self, count: Tensor) -> list[Tensor]:
        return [self.optimizer.lr.assign(self.rate(count, self.base))]

    def get_last_lr(self) -> list[float]:
        """The present rate, read, in a list as PyTorch has it for groups of parameters."""
        return [self.optimizer.lr.item()]


class LambdaLR(LRScheduler):
    """base * lr_lambda(count). The function is given a Tensor, float32 of shape (), and called each time a schedule is
    made or captured: inside `jit` it must compute with Tensors, such as `(count / 10).minimum(1)` for a warm-up."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[Tensor], Tensor | float]):
        if not callable(lr_lambda):
            raise MinigradError(f"[LambdaLR] expected a function of the count of steps, got {lr_lambda!r}")
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        factor: Any = self.lr_lambda(count.float())
        if isinstance(factor, Tensor) and factor.shape != ():
            raise ShapeError(f"[LambdaLR] expected a factor of shape [], got {list(factor.shape)}")
        return base * (factor if isinstance(factor, Tensor) else as_number("LambdaLR", "a factor", factor))


class StepLR(LRScheduler):
    """base * gamma**(count // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1):
        self.step_size = as_count("StepLR", "step_size", step_size, 1)
        self.gamma = as_number("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * self.gamma ** (count // self.step_size).float()


class MultiStepLR(LRScheduler):
    """base * gamma**(how many milestones have been reached)."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1):
        self.milestones = _milestones("MultiStepLR", milestones)
        self.gamma = as_number("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        reached = sum([(count >= m).float() for m in self.milestones], start=count.float() * 0)
        return base * self.gamma ** reached


class ExponentialLR(LRScheduler):
    """base * gamma**count."""

    def __init__(self, optimizer: Optimizer, gamma: float):
        self.gamma = as_number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * self.gamma ** count.float()


class CosineAnnealingLR(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * count / T_max)) / 2: half a period of the cosine in T_max steps.

    Source: Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0):  # noqa: N803  (PyTorch's name)
        self.T_max = as_count("CosineAnnealingLR", "T_max", T_max, 1)
        self.eta_min = as_number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        angle = (count % (2 * self.T_max)).float() * (math.pi / self.T_max)
        return (base - self.eta_min) * ((angle.cos() + 1) * 0.5) + self.eta_min


class LinearLR(LRScheduler):
    """base times a factor that goes linearly from start_factor to end_factor in total_iters steps, and stays: a
    warm-up."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5):
        self.start_factor = as_number("LinearLR", "start_factor", start_factor)
        self.end_factor = as_number("LinearLR", "end_factor", end_factor)
        self.total_iters = as_count("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        share = count.minimum(self.total_iters).float() * (1 / self.total_iters)
        return base * (share * (self.end_factor - self.start_factor) + self.start_factor)


class SequentialLR(LRScheduler):
    """Schedules one after another: the next one from each milestone on, with a count of its own from 0.

    Their own `step` must not be called. Raises MinigradError unless there is one milestone less than schedules, all of
    this optimizer, in increasing order.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]):
        self.schedulers, self.milestones = list(schedulers), _milestones("SequentialLR", milestones)
        if not self.schedulers or any(not isinstance(s, LRScheduler) or s.optimizer is not optimizer
                                      for s in self.schedulers):
            raise MinigradError("[SequentialLR] expected schedules of the same optimizer")
        if len(self.milestones) != len(self.schedulers) - 1:
            raise MinigradError(f"[SequentialLR] expected {len(self.schedulers) - 1} milestones for "
                                f"{len(self.schedulers)} schedules, got {self.milestones}")
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        result = self.schedulers[0].rate(count, base)
        for start, schedule in zip(self.milestones, self.schedulers[1:], strict=True):
            result = (count >= start).where(schedule.rate(count - start, base), result)
        return as_tensor("SequentialLR", result)


def _milestones(name: str, given: Sequence[int]) -> list[int]:
    counts = [as_count(name, "milestones", m, 0) for m in given] if isinstance(given, (tuple, list)) else None
    if counts is None or counts != sorted(counts):
        raise MinigradError(f"[{name}] expected milestones in increasing order, got {given!r}")
    return counts
