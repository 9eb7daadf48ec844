"""Optimizers that are made of several, as those with parameter groups are, and those that compute steps themselves."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from minigrad import dtype as dtypes
from minigrad.errors import MinigradError
from minigrad.mixins.memory import assign_all
from minigrad.mixins.modes import of_modules
from minigrad.optim.optimizer import Gradients, Optimizer
from minigrad.optim.states import ParamGroup, given_parameters, parameter_groups
from minigrad.tensor import Tensor


class OptimizerGroup(Optimizer):
    """Optimizers that step together, in one plan: `OptimizerGroup(AdamW(weights, lr=1e-3), AdamW(biases, lr=1e-3,
    weight_decay=0))`. Schedules change each one's learning rate from where it started."""

    def __init__(self, *optimizers: Optimizer):
        if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
            raise MinigradError(f"[OptimizerGroup] expected optimizers, got {[type(o).__name__ for o in optimizers]}")
        self.hold([member for o in optimizers for member in o.members])

    def hold(self, members: list[Optimizer]) -> None:
        """Makes this one of these. Raises MinigradError for a parameter in several."""
        self._members = members
        self.given = [p for o in members for p in o.given]
        self.params = [p for o in members for p in o.params]
        self.buffers = list({id(b): b for o in members for b in o.buffers}.values())
        if len({id(p) for p in self.params}) < len(self.params):
            raise MinigradError("[OptimizerGroup] expected each parameter in one group, got one in several")
        self.device = members[0].device
        self._transient = ("given", "defaults")

    @property
    def members(self) -> list[Optimizer]:
        """The optimizers with a learning rate of their own that this one is made of."""
        return list(self._members)

    @property
    def lr(self) -> Tensor:
        """The first one's learning rate, shape (). Setting it sets that of all."""
        return self._members[0].lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        for member in self._members:
            member.lr = value

    def initial_lr(self) -> Tensor:
        """The first one's learning rate when a schedule first asked for it."""
        return self._members[0].initial_lr()

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized."""
        of_modules.ask(self)
        advanced = []
        for member in self._members:
            of_modules.ask(member)
            advanced += member.advanced()
        assign_all(advanced)
        changed = [t for member in self._members for t in member.changed()]
        if len(self.params) < sum(len(member.params) for member in self._members):
            self.params = [p for member in self._members for p in member.params]
        return list({id(t): t for t in changed}.values())

    def _update(self, gradients: Gradients) -> None:
        raise MinigradError("[OptimizerGroup] expected its members to update their own parameters")


class Settings(Optimizer):
    """A parameter group of an optimizer that computes its steps itself: options, and a learning rate that schedules
    find. The rate is a number of Python's precision, which `step` reads."""

    def __init__(self, group: Mapping[str, Any]):
        self.kind = Settings
        self.given = self.params = given_parameters("Optimizer", group["params"])
        self.buffers: list[Tensor] = []
        self.device, self._precision = "CPU", dtypes.float64
        self._lr, self._initial_lr, self._cycled = self._scalar(group.get("lr", 0.0)).realize(), None, None
        self.extras = {name: value for name, value in group.items() if name not in ("params", "lr")}

    def beside(self, group: Mapping[str, Any]) -> Optimizer:
        """Another with the options of `group`, and else those of this one."""
        return Settings({**self.extras, **group})


class OwnSteps(OptimizerGroup):
    """An optimizer whose class has a `step` of its own. `state` is what that puts there, by parameter."""

    _state: Mapping[Tensor, dict[str, Any]]

    def hold(self, members: list[Optimizer]) -> None:
        """Makes this one of these, with what `step` has put into `state` so far."""
        super().hold(members)
        self._state = self.__dict__.get("_state", defaultdict(dict))

    @property
    def state(self) -> Any:
        """A dictionary for each parameter, which is there when it is first asked for."""
        return self._state

    def schedule_step(self) -> list[Tensor]:
        """Raises MinigradError: what such a step changes is not known."""
        raise MinigradError(f"[{type(self).__name__}] expected a method step(closure=None) of the class itself")

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's dictionary: under 'state' what is kept for each parameter, by its number, under 'param_groups' the
        options of each parameter group."""
        number = {id(p): n for n, p in enumerate(self.given)}
        groups = [{**ParamGroup(m), "params": [number[id(p)] for p in m.given]} for m in self.members]
        return {"state": {number[id(p)]: dict(kept) for p, kept in self._state.items() if id(p) in number},
                "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a `state_dict`: options and copies of what was kept, on the devices of the parameters. Raises
        MinigradError, before anything is changed, for other numbers of parameters."""
        groups, name = state["param_groups"], type(self).__name__
        sizes, own = [len(g["params"]) for g in groups], [len(m.given) for m in self.members]
        if sizes != own:
            raise MinigradError(f"[{name}.load_state_dict] expected parameter groups of sizes {own}, got {sizes}")
        for group, mine in zip(groups, self.param_groups, strict=True):
            mine.update({n: value for n, value in group.items() if n != "params"})
        numbers = [n for g in groups for n in g["params"]]
        self._state = defaultdict(dict)
        for p, n in zip(self.given, numbers, strict=True):
            for what, value in state["state"].get(n, {}).items():
                self._state[p][what] = value.detach().to(p.device).clone().realize() if isinstance(
                    value, Tensor) else value


def join(optimizer: Optimizer, members: list[Optimizer], base: Any = OptimizerGroup) -> None:
    """Makes an optimizer one of several, its parameter groups. It stays one of its class."""
    kind: Any = type(optimizer)
    optimizer.__class__ = _joined(kind, base)
    base.hold(optimizer, members)


@lru_cache
def _joined(kind: Any, base: type) -> type[Optimizer]:
    return kind if issubclass(kind, OptimizerGroup) else type(kind.__name__, (base, kind), {})


def own(optimizer: Optimizer, params: Any, defaults: Any) -> None:
    """Makes an optimizer one that computes its steps itself, with options from `defaults`."""
    name = type(optimizer).__name__
    if not isinstance(defaults, Mapping):
        raise MinigradError(f"[{name}] expected a dictionary of options as defaults, got {defaults!r}")
    optimizer.defaults = dict(defaults)
    join(optimizer, [Settings({**defaults, **group}) for group in parameter_groups(name, params)], OwnSteps)


Optimizer.join, Optimizer.own = staticmethod(join), staticmethod(own)
