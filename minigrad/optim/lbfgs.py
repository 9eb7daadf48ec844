"""L-BFGS: steps along Newton's direction as a few gradients before this one tell it."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minigrad.errors import MinigradError, quantity
from minigrad.mixins.base import as_number
from minigrad.ops.node import Node
from minigrad.optim.optimizer import Gradients, Optimizer, Params
from minigrad.optim.states import options_of
from minigrad.optim.statistics import take_moved
from minigrad.optim.wolfe import Point, strong_wolfe
from minigrad.tensor import Tensor

_VECTORS = ("d", "prev_flat_grad", "old_dirs", "old_stps")


class LBFGS(Optimizer):
    """Up to `max_iter` iterations a step: p += t * d, with d the gradient times an approximation of the inverse Hessian
    made of the last `history_size` changes of parameters and gradients; t is lr (at first lr / sum(abs(g)) if that is
    less), or, with line_search_fn='strong_wolfe', searched from there on.

    `step(closure)` needs a function that forgets the gradients, computes the loss, calls its `backward` and returns it;
    it is called up to `max_eval` times, 5/4 of max_iter by default, and may itself be captured (`jit`). A step reads
    losses and slopes, and so cannot be captured as a whole. It ends early where no gradient is above `tolerance_grad`,
    or where step or loss change by less than `tolerance_change`. There is one group of parameters; those without a
    gradient have one of zeros.

    Source: Nocedal 1980, https://doi.org/10.1090/S0025-5718-1980-0572855-7, with PyTorch's conventions.
    """

    max_iter: int
    max_eval: int
    tolerance_grad: float
    tolerance_change: float
    history_size: int

    def __init__(self, params: Params, lr: float | Tensor = 1.0, max_iter: int = 20, max_eval: int | None = None,
                 tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None):
        if line_search_fn not in (None, "strong_wolfe"):
            raise MinigradError(f"[LBFGS] expected line_search_fn None or 'strong_wolfe', got {line_search_fn!r}")
        most = as_number("LBFGS", "max_iter", max_iter) * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, lr, max_iter=max_iter, max_eval=most, tolerance_grad=tolerance_grad,
                         tolerance_change=tolerance_change, history_size=history_size)
        self.line_search_fn = line_search_fn
        self._kept: dict[str, Any] = {"func_evals": 0, "n_iter": 0}

    @staticmethod
    def join(*_: Any) -> None:
        """Raises MinigradError: there is one parameter group."""
        raise MinigradError("[LBFGS] expected parameters in one list, got groups of them")

    def _follow(self) -> None:
        super()._follow()
        for name, kept in self._kept.items():
            if name in _VECTORS:
                to = [t.to(self.device, self._precision) for t in (kept if isinstance(kept, list) else [kept])]
                self._kept[name] = to if isinstance(kept, list) else to[0]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs the iterations, and returns the loss before them."""
        if closure is None:
            raise MinigradError("[LBFGS.step] expected a closure that computes the loss and calls backward, got none")
        self._follow()
        kept = self._kept
        with Tensor.no_grad():
            first, loss, gradient = self._evaluated(closure)
            calls, before = 1, kept["func_evals"]
            if _largest(gradient) <= self.tolerance_grad:
                kept["func_evals"] = before + 1
                return first
            for iteration in range(1, self.max_iter + 1):
                kept["n_iter"] += 1
                self._turn(gradient)
                direction, kept["prev_flat_grad"], kept["prev_loss"] = kept["d"], gradient, loss
                rate = self._lr.item()
                kept["t"] = rate if kept["n_iter"] > 1 else min(1.0, 1.0 / gradient.abs().sum().item()) * rate
                slope = _dot(gradient, direction)
                if slope > -self.tolerance_change:
                    break
                start = self._flat([p.detach() for p in self.params])
                if self.line_search_fn:
                    point, made = strong_wolfe(
                        lambda at: self._at(closure, start, at),  # noqa: B023
                        Point(0, loss, gradient, slope), kept["t"], self.max_eval - calls, _largest(direction),
                        self.tolerance_change)
                    kept["t"], loss, gradient = point.at, point.value, point.gradient
                    calls += made
                    self._move(start, kept["t"])
                else:
                    self._move(start, kept["t"])
                    if iteration < self.max_iter:
                        _, loss, gradient = self._evaluated(closure)
                        calls += 1
                if (calls >= self.max_eval or _largest(gradient) <= self.tolerance_grad
                        or _largest(direction) * abs(kept["t"]) <= self.tolerance_change
                        or abs(loss - kept["prev_loss"]) < self.tolerance_change):
                    break
            kept["func_evals"] = before + calls
        return first

    def _evaluated(self, closure: Callable[[], Any]) -> tuple[Any, float, Tensor]:
        """The loss that `closure` returns, its number, and the gradient of all parameters as one vector."""
        with Tensor.enable_grad():
            loss = closure()
        if not isinstance(loss, Tensor):
            raise MinigradError(f"[LBFGS.step] expected a closure that returns the loss, got {type(loss).__name__}")
        gradient = self._flat([p.zeros_like() if p.grad is None or not p.requires_grad else p.grad.detach()
                               for p in self.params], loss)
        return loss, loss.item(), gradient

    def _flat(self, parts: list[Tensor], *besides: Tensor) -> Tensor:
        """All parts as one vector in memory of its own; it is computed here, with running statistics and `besides`."""
        pieces = [t.reshape(-1).to(self.device).cast(self._precision) for t in parts]
        vector = Tensor.cat(*pieces).contiguous()
        Tensor.realize(vector, *besides, *self.buffers, *take_moved())
        return vector

    def _move(self, start: Tensor, at: float) -> None:
        """Puts the parameters `at` times the direction from where they were."""
        new, offset = start + self._kept["d"] * self._scalar_of(at), 0
        for p in self.params:
            if p.requires_grad:
                p.assign(new[offset:offset + _size(p)].reshape(p.shape).cast(p.dtype).to(p.device))
            offset += _size(p)
        Tensor.realize(*self.params)

    def _at(self, closure: Callable[[], Any], start: Tensor, at: float) -> Point:
        self._move(start, at)
        _, value, gradient = self._evaluated(closure)
        return Point(at, value, gradient, _dot(gradient, self._kept["d"]))

    def _scalar_of(self, value: float) -> Tensor:
        """A number as a Tensor, which no plan has inside."""
        return Tensor(np.asarray(value), dtype=self._precision, device=self.device)

    def _turn(self, gradient: Tensor) -> None:
        """Notes how the gradient changed with the last step, and takes the direction for the next: two loops over the
        changes that are known."""
        kept = self._kept
        if kept["n_iter"] == 1:
            kept.update(d=(-gradient).realize(), old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return
        change = (gradient - kept["prev_flat_grad"]).realize()
        step = (kept["d"] * self._scalar_of(kept["t"])).realize()
        curvature = _dot(change, step)
        if curvature > 1e-10:
            for name, value in (("old_dirs", change), ("old_stps", step), ("ro", 1.0 / curvature)):
                kept[name] = [*kept[name], value][-self.history_size:] if self.history_size else []
            kept["H_diag"] = curvature / _dot(change, change)
        known = list(zip(kept["old_dirs"], kept["old_stps"], kept["ro"], strict=True))
        direction, shares = (-gradient).realize(), []
        for change, step, inverse in reversed(known):
            shares.append(((step * direction).sum() * self._scalar_of(inverse)).realize())
            direction = (direction - change * shares[-1]).realize()
        direction = (direction * self._scalar_of(kept["H_diag"])).realize()
        for (change, step, inverse), share in zip(known, reversed(shares), strict=True):
            direction = (direction + step * (share - (change * direction).sum() * self._scalar_of(inverse))).realize()
        kept["d"] = direction

    # What other optimizers do in one plan

    def advanced(self) -> list[tuple[Tensor, Node]]:
        """Raises MinigradError: how far a step goes depends on numbers that it reads."""
        raise MinigradError("[LBFGS] expected a call of step(closure), which no other optimizer's step can include")

    def _update(self, gradients: Gradients) -> None:
        self.advanced()

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Raises MinigradError: there is one parameter group."""
        raise MinigradError("[LBFGS] expected parameters in one list, got another group of them")

    # State

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The state, by PyTorch's names, as that of the first parameter."""
        return {self.params[0]: self._kept}

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's: numbers, vectors of all parameters' elements, and lists of them, under the first parameter's 0."""
        kept = {n: list(v) if isinstance(v, list) else v for n, v in self._kept.items()}
        group = {"lr": self._lr.item(), **options_of(self), "params": list(range(len(self.params)))}
        return {"state": {0: kept}, "param_groups": [group]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, of ours or of PyTorch's LBFGS. Raises MinigradError, before anything is
        changed, for vectors of another length."""
        if not isinstance(state, Mapping) or not {"state", "param_groups"} <= set(state):
            raise MinigradError("[LBFGS.load_state_dict] expected a dictionary with 'state' and 'param_groups'")
        given, group = state["state"].get(0, {}), state["param_groups"][0]
        count = sum(_size(p) for p in self.params)
        kept: dict[str, Any] = {"func_evals": 0, "n_iter": 0}
        for name, value in given.items():
            if value is None or name == "al":
                continue
            of = self._vector if name in _VECTORS else _number
            kept[name] = [of(v, count) for v in value] if isinstance(value, list) else of(value, count)
        for name in options_of(self):
            setattr(self, name, group.get(name, getattr(self, name)))
        self.lr = group["lr"]
        self._kept = kept

    def _vector(self, value: Any, count: int) -> Tensor:
        t = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
        if t.shape != (count,):
            raise MinigradError(f"[LBFGS.load_state_dict] expected vectors of {quantity(count, 'element')}, got "
                                f"{list(t.shape)}")
        return t.detach().to(self.device).cast(self._precision).clone().realize()


def _number(value: Any, _: int) -> Any:
    return value if isinstance(value, (int, float)) else value.item()


def _size(parameter: Tensor) -> int:
    """The number of its elements."""
    count = parameter.numel()
    if not isinstance(count, int):
        raise MinigradError(f"[LBFGS] expected parameters of a size that is known, got {list(parameter.shape)}")
    return count


def _dot(a: Tensor, b: Tensor) -> float:
    return (a * b).sum().item()


def _largest(vector: Tensor) -> float:
    """Of the magnitudes; 0 of no elements."""
    return vector.abs().max().item() if vector.numel() else 0.0
