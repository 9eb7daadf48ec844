"""What all optimizers share: the parameters, the learning rate, and one realize per step."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_number
from minigrad.tensor import Tensor


class Optimizer(ABC):
    """Updates the Tensors in `params` that have `requires_grad`; each is listed once, however often it is given.

    Tensors without `requires_grad` (running statistics, which `nn.state.get_parameters` lists too) are brought up to
    date in the same plan. Everything that changes from step to step, the learning rate included, is a Tensor made here,
    so that a captured step (`jit`) sees it. Raises MinigradError where there is nothing to update.
    """

    weight_decay: float = 0.0

    def __init__(self, params: Iterable[Tensor], lr: float | Tensor):
        given = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [None]
        if not all(isinstance(p, Tensor) for p in given):
            raise MinigradError(f"[{type(self).__name__}] expected Tensors, such as nn.state.get_parameters(model), "
                                f"got {type(params).__name__}")
        unique = list({id(p): p for p in given}.values())
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

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Updates the parameters from their gradients; forward, backward and update run as one plan.

        Raises MinigradError naming the first parameter without a gradient.
        """
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it together with the loss."""
        gradients = []
        for index, p in enumerate(self.params):
            if p.grad is None:
                raise MinigradError(
                    f"[{type(self).__name__}.step] expected a gradient for each of {len(self.params)} parameters, got "
                    f"none for parameter {index} of shape {list(p.shape)}: call backward() on a loss that depends on it"
                )
            gradients.append(p.grad.detach())
        return [*self.params, *self._update(gradients), *self.buffers]

    def _decayed(self, gradient: Tensor, p: Tensor) -> Tensor:
        """The gradient with that of weight_decay/2 times the sum of squares."""
        return gradient + p * self.weight_decay if self.weight_decay else gradient

    @abstractmethod
    def _update(self, gradients: list[Tensor]) -> list[Tensor]:
        """Assigns new values to the parameters and the state, and returns the state."""
