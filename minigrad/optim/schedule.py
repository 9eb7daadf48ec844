"""The base of all schedules of learning rates (see lr_scheduler.py)."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from minigrad.dtype import int32
from minigrad.errors import MinigradError
from minigrad.mixins.base import as_count
from minigrad.optim.optimizer import Optimizer
from minigrad.tensor import Tensor


class LRScheduler(ABC):
    """`count` is the number of steps that were made, int32 of shape (). `rate` gives the learning rate after so many.

    A schedule starts anew, or goes on after `last_epoch` steps with an optimizer that a schedule had before: its
    parameter groups, or their loaded state, have an 'initial_lr'.
    """

    least: float | None = None
    """The number from which on the rate is a multiple of the first one, if it is: what others make of it in between
    (another schedule, `group["lr"] = 0.1`) holds from then on, as PyTorch's schedules go on from the present rate."""

    waits: bool = False
    """True for one that leaves the rate to the first step where it goes on, as PyTorch's of that name does."""

    of_parts: bool = False
    """True for one whose parts have set the present rate."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        name = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise MinigradError(f"[{name}] expected an Optimizer, got {type(optimizer).__name__}")
        start = as_count(name, "last_epoch", last_epoch, -1) + 1
        self.optimizer = optimizer
        if start and any(member._initial_lr is None for member in optimizer.members):
            raise MinigradError(f"[{name}] expected 'initial_lr' in each parameter group with last_epoch={last_epoch}, "
                                "got none: load the optimizer's state first")
        initial = [member.initial_lr() for member in optimizer.members]
        self._last = [member.lr.detach().clone() for member in optimizer.members]
        goes_on = self.least is not None and not self.of_parts and not start
        self._first = [t.clone() for t in (self._last if goes_on else initial)]
        made = start if self.waits else max(start - 1, 0)
        self.count = Tensor(made, dtype=int32, device=optimizer.device).contiguous()
        Tensor.realize(self.count, *self._first, *self._last)
        if start or self.of_parts:
            self._look_back()
        if start and not self.waits:
            self.step()
        elif not start:
            Tensor.realize(self.count, *self._set(self.count, self.count))

    @abstractmethod
    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        """The rate after `count` steps (int32, shape ()) for a first one of `base` (float32, shape ())."""

    def step(self) -> None:
        """Counts a step and sets the optimizer's learning rate. Call it after the optimizer's step."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it with the optimizer's."""
        before = self.count.detach()
        self.count.assign(self.count + 1)
        return [self.count, *self._set(self.count, before)]

    def _set(self, count: Tensor, before: Tensor) -> list[Tensor]:
        """Sets the rates after `count` steps, and the momenta; the last ones were set after `before` of them."""
        changed = []
        for group, member in enumerate(self.optimizer.members):
            if group == len(self._first):  # a parameter group that was added
                self._first.append(member.initial_lr().clone().realize())
                self._last.append(member.lr.detach().clone().realize())
            for kept in (self._first[group], self._last[group]):
                kept.to_(member.device)
            rate = self._next(group, count.to(member.device), before.to(member.device), member).cast(member.lr.dtype)
            changed += [member.lr.assign(rate), self._last[group].assign(rate), self._first[group]]
            momentum = self.momentum(count, group)
            if momentum is not None:
                changed.append(self._cycled(member).assign(momentum.to(member.device)))
        return changed

    def _next(self, group: int, count: Tensor, before: Tensor, member: Optimizer) -> Tensor:
        """The rate of a member, after another may have set it."""
        if self.least is None:
            return self._rate_of(group, count, member.initial_lr(), member)
        now, last, first = member.lr.detach(), self._last[group].detach(), self._first[group].detach()
        factor = self._rate_of(group, before, now * 0 + (self.least + 1), member) - self.least
        lost = factor.eq(0)  # nothing is left of the first rate: it is what it was before any schedule
        moved = (now - self.least) / lost.where(1.0, factor) + self.least
        first = lost.where(member.initial_lr().detach(), now.eq(last).where(first, moved))
        self._first[group].assign(first)
        rate = self._rate_of(group, count, first, member)
        return lost.logical_and(now.ne(last)).where(now + (rate - self.least), rate)

    def _look_back(self) -> None:
        """Notes as the last rates those that this schedule had set after so many steps."""
        for group, member in enumerate(self.optimizer.members):
            count = self.count.detach().to(member.device)
            rate = self._rate_of(group, count, self._first[group].detach(), member).cast(member.lr.dtype)
            self._last[group].assign(rate).realize()

    def _cycled(self, member: Optimizer) -> Tensor:
        found = member.cycled()
        if found is None:
            raise MinigradError(f"[{type(self).__name__}] expected SGD, RMSprop or an Adam, whose momentum it changes, "
                                f"or cycle_momentum=False, got {type(member).__name__}")
        return found

    def _rate_of(self, group: int, count: Tensor, base: Tensor, member: Optimizer) -> Tensor:
        """The rate of the optimizer's member number `group`."""
        return self.rate(count, base)

    def get_last_lr(self) -> list[float]:
        """The present rates, read, one for each parameter group."""
        return [member.lr.item() for member in self.optimizer.members]

    @property
    def last_epoch(self) -> int:
        """The number of steps that were made, read."""
        return int(self.count.item())

    @property
    def base_lrs(self) -> list[float]:
        """The rates that this schedule starts from, read, one for each parameter group."""
        return [member.initial_lr().item() for member in self.optimizer.members]

    def momentum(self, count: Tensor, group: int = 0) -> Tensor | None:
        """The momentum after `count` steps (int32, shape ()), or the first of betas; None where it stays as it is."""
        return None

    def kept(self) -> dict[str, Tensor]:
        """The state that a schedule keeps from step to step, by PyTorch's names."""
        return {"last_epoch": self.count}

    def state_dict(self) -> dict[str, Any]:
        """Numbers by PyTorch's names: where this schedule is, and its rates. The optimizer's rate is part of its own.
        """
        return {**{name: t.item() for name, t in self.kept().items()}, "base_lrs": self.base_lrs,
                "_last_lr": self.get_last_lr(), "firsts": [t.item() for t in self._first]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, of ours or of PyTorch's schedule of this name. The optimizer's rate
        becomes what it was then. Other entries, such as options, are left alone."""
        kept = self.kept()
        missing = [name for name in kept if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise MinigradError(f"[{type(self).__name__}.load_state_dict] expected a dictionary with "
                                f"{', '.join(kept)}, got none of {', '.join(missing)}")
        members = self.optimizer.members
        for name, value in (("base_lrs", state.get("base_lrs")), ("_last_lr", state.get("_last_lr"))):
            if value is not None and len(value) != len(members):
                raise MinigradError(f"[{type(self).__name__}.load_state_dict] expected {name} of {len(members)} "
                                    f"groups, got {len(value)}")
        for name, t in kept.items():
            t.assign(Tensor(state[name], dtype=t.dtype, device=t.device)).realize()
        for member, base in zip(members, state.get("base_lrs") or [], strict=False):
            member.param_groups[0]["initial_lr"] = base
        if self.momentum(self.count) is not None:
            Tensor.realize(self.count, *self._set(self.count, self.count))
        for member, rate in zip(members, state.get("_last_lr") or [], strict=False):
            member.lr = rate
        firsts = state.get("firsts")
        for group, member in enumerate(members):
            self._first[group].assign(member.initial_lr() if firsts is None else firsts[group]).realize()
            self._last[group].assign(member.lr.detach()).realize()
        if firsts is None:
            self._look_back()
