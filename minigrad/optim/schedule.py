"""The base of all schedules of learning rates (see lr_scheduler.py)."""
from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from typing import Any

from minigrad.dtype import int32
from minigrad.errors import MinigradError
from minigrad.optim.optimizer import Optimizer
from minigrad.tensor import Tensor


class _Made(ABCMeta):
    """Schedules are made without PyTorch's `last_epoch`, which says where one goes on."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        last = options.pop("last_epoch", -1)
        if last != -1:
            raise MinigradError(f"[{cls.__name__}] expected last_epoch=-1, got {last!r}: a schedule goes on after "
                                "load_state_dict")
        return super().__call__(*args, **options)


class LRScheduler(metaclass=_Made):
    """`count` is the number of steps that were made, int32 of shape (). `rate` gives the learning rate after so
    many."""

    def __init__(self, optimizer: Optimizer):
        if not isinstance(optimizer, Optimizer):
            raise MinigradError(f"[{type(self).__name__}] expected an Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        for member in optimizer.members:
            member.initial_lr()
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
        members = self.optimizer.members
        rates = [member.lr.assign(self._rate_of(group, count, member).cast(member.lr.dtype))
                 for group, member in enumerate(members)]
        momentum = self.momentum(count)
        return rates if momentum is None else rates + [self._cycled(m).assign(momentum.to(m.device)) for m in members]

    def _cycled(self, member: Optimizer) -> Tensor:
        found = member.cycled()
        if found is None:
            raise MinigradError(f"[{type(self).__name__}] expected SGD, RMSprop or an Adam, whose momentum it changes, "
                                f"or cycle_momentum=False, got {type(member).__name__}")
        return found

    def _rate_of(self, group: int, count: Tensor, member: Optimizer) -> Tensor:
        """The rate of the optimizer's member number `group`."""
        return self.rate(count, member.initial_lr())

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

    def momentum(self, count: Tensor) -> Tensor | None:
        """The momentum after `count` steps (int32, shape ()), or the first of betas; None where it stays as it is."""
        return None

    def kept(self) -> dict[str, Tensor]:
        """The state that a schedule keeps from step to step, by PyTorch's names."""
        return {"last_epoch": self.count}

    def state_dict(self) -> dict[str, Any]:
        """Numbers by PyTorch's names: where this schedule is, and its rates. The optimizer's rate is part of its own.
        """
        return {**{name: t.item() for name, t in self.kept().items()}, "base_lrs": self.base_lrs,
                "_last_lr": self.get_last_lr()}

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
        if self.momentum(self.count) is not None:
            Tensor.realize(*self._set(self.count))
        for member, base in zip(members, state.get("base_lrs") or [], strict=False):
            member.param_groups[0]["initial_lr"] = base
        for member, rate in zip(members, state.get("_last_lr") or [], strict=False):
            member.lr = rate
