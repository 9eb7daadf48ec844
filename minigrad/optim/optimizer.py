"""What all optimizers share: the parameters, the learning rate, and one realize per step; and groups of them."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_number
from minigrad.tensor import Tensor

Params = Iterable[Tensor | Mapping[str, Any]]
"""Parameters, or groups of them with options of their own (see Optimizer)."""

Gradients = list[Tensor | None]
"""Of each parameter; None of those that are frozen: they had requires_grad when the optimizer was made."""


class Optimizer(ABC):
    """Updates the Tensors in `params` that have `requires_grad`; each is listed once, however often it is given.

    Tensors without `requires_grad` (running statistics, which `nn.state.get_parameters` lists too) are brought up to
    date in the same plan. A parameter that is frozen later (`requires_grad` is False) is left as it is with its state;
    Adam's count of steps goes on. Everything that changes from step to step, the learning rate included, is a Tensor
    made here, so that a captured step (`jit`) sees it. Raises MinigradError where there is nothing to update.

    As in PyTorch, `params` may be a list of dictionaries: Tensors under 'params', and options that differ for them from
    the others. What is made then is an OptimizerGroup.
    """

    weight_decay: float = 0.0
    params: list[Tensor]
    buffers: list[Tensor]

    def __new__(cls, params: Any = (), *args: Any, **options: Any) -> Self:
        if not isinstance(params, (tuple, list)) or not params or not all(isinstance(g, Mapping) for g in params):
            return super().__new__(cls)
        if any("params" not in g for g in params):
            raise MinigradError(f"[{cls.__name__}] expected Tensors under 'params' in each group, got "
                                f"{[list(g) for g in params]}")
        own = [{name: value for name, value in g.items() if name != "params"} for g in params]
        members = [cls(g["params"], *args, **{**options, **o}) for g, o in zip(params, own, strict=True)]
        return OptimizerGroup(*members)  # type: ignore[return-value]

    def __init__(self, params: Params, lr: float | Tensor):
        given = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [None]
        if not all(isinstance(p, Tensor) for p in given):
            raise MinigradError(f"[{type(self).__name__}] expected Tensors, such as nn.state.get_parameters(model), "
                                f"got {type(params).__name__}")
        unique: list[Any] = list({id(p): p for p in given}.values())
        self.params = [p for p in unique if p.requires_grad]
        self.buffers = [p for p in unique if not p.requires_grad]
        if not self.params:
            raise MinigradError(
                f"[{type(self).__name__}] expected at least one parameter with requires_grad=True, "
                f"got {len(unique)} tensors without"
            )
        self.device = self.params[0].device
        self._lr = self._scalar(lr)
        self._initial_lr: Tensor | None = None
        Tensor.realize(self._lr, *self.params, *self.buffers)

    def _scalar(self, value: float | Tensor) -> Tensor:
        """A Tensor of shape () and float32 of our own, on the parameters' device."""
        if isinstance(value, Tensor):
            if any(d != 1 for d in value.shape):
                raise ShapeError(f"[{type(self).__name__}] expected one number, got a Tensor of {list(value.shape)}")
            return value.detach().reshape(()).float().to(self.device).contiguous()
        number = as_number(type(self).__name__, "the learning rate", value)
        return Tensor(float(number), device=self.device, requires_grad=False).contiguous()

    def _zeros(self) -> list[Tensor]:
        """A zero for each element of each parameter, in storage of its own."""
        return [Tensor.zeros(*p.shape, dtype=p.dtype, device=p.device, requires_grad=False).contiguous()
                for p in self.params]

    @property
    def members(self) -> list[Optimizer]:
        """The optimizers with a learning rate of their own that this one is made of."""
        return [self]

    @property
    def param_groups(self) -> list[ParamGroup]:
        """By group: `group["params"]`, `group["lr"]`, which is read as a number and can be set, and other options."""
        return [ParamGroup(member) for member in self.members]

    @property
    def lr(self) -> Tensor:
        """The learning rate, shape (). Setting it assigns the Tensor, which a captured step reads."""
        return self._lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        self._lr.assign(self._scalar(value)).realize()

    def initial_lr(self) -> Tensor:
        """The learning rate when a schedule first asked for it: what schedules start from."""
        if self._initial_lr is None:
            self._initial_lr = self._lr.clone().realize()
        return self._initial_lr

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, or makes them zeros without `set_to_none`."""
        for p in self.params:
            p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters from their gradients; forward, backward and update run as one plan. A `closure` is
        called before, and what it returns is returned.

        Raises MinigradError naming the first parameter with requires_grad that has no gradient.
        """
        result = None if closure is None else closure()
        Tensor.realize(*self.schedule_step())
        return result

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it together with the loss."""
        late = [b for b in self.buffers if b.requires_grad]
        if late:
            raise MinigradError(
                f"[{type(self).__name__}.step] expected parameters that had requires_grad=True when this optimizer was "
                f"made, got one of shape {list(late[0].shape)} that was frozen then: make an optimizer after unfreezing"
            )
        gradients: Gradients = []
        for index, p in enumerate(self.params):
            if not p.requires_grad:
                gradients.append(None)
                continue
            if p.grad is None:
                raise MinigradError(
                    f"[{type(self).__name__}.step] expected a gradient for each of {len(self.params)} parameters, got "
                    f"none for parameter {index} of shape {list(p.shape)}: call backward() on a loss that depends on it"
                )
            gradients.append(p.grad.detach())
        return [*self.params, *self._update(gradients), *self.buffers]

    def _each(self, gradients: Gradients, *state: Any) -> Iterator[tuple[Any, ...]]:
        """(parameter, gradient, what each of `state` has for it) of the parameters that are not frozen."""
        return ((p, g, *kept) for p, g, *kept in zip(self.params, gradients, *state, strict=True) if g is not None)

    def _decayed(self, gradient: Tensor, p: Tensor) -> Tensor:
        """The gradient with that of weight_decay/2 times the sum of squares."""
        return gradient + p * self.weight_decay if self.weight_decay else gradient

    @abstractmethod
    def _update(self, gradients: Gradients) -> list[Tensor]:
        """Assigns new values to the parameters and the state, and returns the state."""


class OptimizerGroup(Optimizer):
    """Optimizers that step together, in one plan: `OptimizerGroup(AdamW(weights, lr=1e-3), AdamW(biases, lr=1e-3,
    weight_decay=0))`. Schedules change each one's learning rate from where it started."""

    def __new__(cls, *optimizers: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, *optimizers: Optimizer):
        if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
            raise MinigradError(f"[OptimizerGroup] expected optimizers, got {[type(o).__name__ for o in optimizers]}")
        self._members = [member for o in optimizers for member in o.members]
        self.params = [p for o in self._members for p in o.params]
        self.buffers = list({id(b): b for o in self._members for b in o.buffers}.values())
        if len({id(p) for p in self.params}) < len(self.params):
            raise MinigradError("[OptimizerGroup] expected each parameter in one group, got one in several")
        self.device = self._members[0].device

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
        return list({id(t): t for member in self._members for t in member.schedule_step()}.values())

    def _update(self, gradients: Gradients) -> list[Tensor]:
        raise MinigradError("[OptimizerGroup] expected its members to update their own parameters")


class ParamGroup:
    """What PyTorch's `param_groups` hold: a view of an optimizer, whose options are read and set by name."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer

    def __getitem__(self, name: str) -> Any:
        if name == "lr":
            return self._optimizer.lr.item()
        if name.startswith("_") or name not in vars(self._optimizer):
            raise KeyError(f"[param_groups] expected one of {', '.join(self.keys())}, got {name!r}")
        return getattr(self._optimizer, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "lr":
            self[name]
        setattr(self._optimizer, name, value)

    def keys(self) -> list[str]:
        """The names there are."""
        return ["lr", *[name for name in vars(self._optimizer) if not name.startswith("_")]]
