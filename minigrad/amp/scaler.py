"""`GradScaler`: losses times a number that keeps the gradients of float16 in its range, found as the training goes."""
from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

from minigrad.amp.casting import ABSENT
from minigrad.autograd import result_of
from minigrad.dtype import float16, float32, int32
from minigrad.errors import DTypeError, MinigradError
from minigrad.ops.storage import ASSIGN
from minigrad.tensor import Tensor


class GradScaler:
    """Scales losses, takes the scale out of gradients, and leaves parameters and state as they are in a step whose
    gradients are not all finite. The scale is multiplied by `backoff_factor` after such a step, by `growth_factor`
    after `growth_interval` others in a row.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)      # only where gradients are looked at, or clipped
        scaler.step(optimizer)
        scaler.update()

    Whether a step counts is decided on the device: nothing is read, and all of it can be captured by `jit`. With
    `enabled=False` it does nothing but `optimizer.step()`.

    Source: https://docs.pytorch.org/docs/stable/amp.html
    """

    def __init__(self, device: str = "cpu", init_scale: float = 2.0**16, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True):
        if not growth_factor > 1 or not 0 < backoff_factor < 1 or not growth_interval >= 1 or not init_scale > 0:
            raise MinigradError("[GradScaler] expected init_scale above 0, growth_factor above 1, backoff_factor in "
                                f"0..1 and growth_interval of 1 or more, got {init_scale!r}, {growth_factor!r}, "
                                f"{backoff_factor!r} and {growth_interval!r}")
        if enabled and str(device).partition(":")[0].lower() in ABSENT:
            warnings.warn(f"[GradScaler] there is no device {device!r} here, nothing is scaled; use GradScaler('cpu')",
                          stacklevel=2)
            enabled = False
        self._enabled = enabled
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        place = device if enabled and str(device).lower() != "cpu" else None
        self._scale = Tensor.full((), float(init_scale), dtype=float32, device=place).contiguous().realize()
        self._growth_tracker = Tensor.zeros((), dtype=int32, device=place).contiguous().realize()
        self._found: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
        self._stepped: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def scale(self, outputs: Any) -> Any:
        """A Tensor times the scale, or each one in a list or tuple."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale.to(outputs.device)
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(o) for o in outputs])
        raise MinigradError(f"[GradScaler.scale] expected a Tensor or a list of Tensors, got {type(outputs).__name__}")

    def unscale_(self, optimizer: Any) -> None:
        """Takes the scale out of the gradients of an optimizer's parameters. Raises MinigradError where that was done
        since the last `update`, DTypeError for float16 gradients, which may have lost what the scale was to save."""
        if not self._enabled:
            return
        if optimizer in self._stepped:
            raise MinigradError("[GradScaler.unscale_] expected no step since the last update(), got one")
        if optimizer in self._found:
            raise MinigradError("[GradScaler.unscale_] expected one call since the last update(), got two")
        self._found[optimizer] = self._unscaled(optimizer)

    def _unscaled(self, optimizer: Any) -> Tensor:
        """Takes the scale out; True where some gradient is not finite, a bool Tensor of shape ()."""
        gradients = [(p, p.grad) for p in optimizer.params if p.grad is not None]
        if not gradients:
            raise MinigradError("[GradScaler] expected an optimizer with gradients, got none; call backward first")
        if any(g.dtype is float16 for _, g in gradients):
            raise DTypeError("[GradScaler] expected gradients of float32 or bfloat16, got float16: keep the parameters "
                             "in float32, and compute in float16 by autocast")
        inverse = 1.0 / self._scale
        bad = []
        for p, g in gradients:
            p.grad = g * inverse.to(g.device).cast(g.dtype)
            bad.append(g.isfinite().all().logical_not().to(self._scale.device))
        return reduce(Tensor.bitwise_or, bad)

    def step(self, optimizer: Any, *args: Any, **options: Any) -> None:
        """`optimizer.step()`, which changes nothing where a gradient is not finite. Raises MinigradError for a second
        one before `update`, for closures, and for optimizers whose step is not one plan."""
        if not self._enabled:
            return optimizer.step(*args, **options)
        if args or options:
            raise MinigradError("[GradScaler.step] expected no closure, got arguments")
        if optimizer in self._stepped:
            raise MinigradError("[GradScaler.step] expected one step since the last update(), got two")
        if not hasattr(optimizer, "schedule_step"):
            raise MinigradError(f"[GradScaler.step] expected an optimizer, got {type(optimizer).__name__}")
        if optimizer not in self._found:
            self.unscale_(optimizer)
        skip, before = self._found[optimizer], {id(t): t.node for t in optimizer.params + optimizer.buffers}
        changed = optimizer.schedule_step()
        mine = {id(t) for m in optimizer.members for name in ("params", *m.state_names.values())
                for t in getattr(m, name) if t is not None}
        for t in changed:
            if id(t) in mine and t.node.op is ASSIGN and t.node is not before.get(id(t)) and t.node.storage is None:
                self._keep_where(skip, t)
        self._stepped[optimizer] = True
        Tensor.realize(skip, *changed)

    @staticmethod
    def _keep_where(skip: Tensor, t: Tensor) -> None:
        """Takes an assignment back where `skip` is True."""
        old, new = t.node.inputs
        t.node = old
        t.assign(skip.to(t.device).where(t.detach(), result_of(new)))

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Moves the scale by what the steps since the last call found, or sets it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale.assign(new_scale).realize()
        elif not self._found:
            raise MinigradError("[GradScaler.update] expected step() or unscale_() before, got none")
        else:
            bad = reduce(Tensor.bitwise_or, self._found.values())
            count = self._growth_tracker + 1
            grows, larger = count.eq(self._growth_interval), self._scale * self._growth_factor
            larger = (grows & larger.isfinite()).where(larger, self._scale)
            self._scale.assign(bad.where(self._scale * self._backoff_factor, larger))
            self._growth_tracker.assign((bad | grows).where(0, count))
            Tensor.realize(self._scale, self._growth_tracker)
        self._found.clear()
        self._stepped.clear()

    def is_enabled(self) -> bool:
        """True if it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale, which is read; 1.0 where it does nothing."""
        return float(self._scale.item()) if self._enabled else 1.0

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's dictionary: scale, factors, interval and the number of steps since the scale last changed."""
        if not self._enabled:
            return {}
        return {"scale": self.get_scale(), "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
                "growth_interval": self._growth_interval, "_growth_tracker": int(self._growth_tracker.item())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where the one that gave this dictionary was. Raises MinigradError for one without its numbers."""
        if not self._enabled:
            return
        missing = sorted({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
                         - set(state_dict))
        if missing:
            raise MinigradError(f"[GradScaler.load_state_dict] expected {', '.join(missing)}, got {list(state_dict)}")
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._scale.assign(float(state_dict["scale"]))
        self._growth_tracker.assign(int(state_dict["_growth_tracker"]))
        Tensor.realize(self._scale, self._growth_tracker)

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets what the scale grows by."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor of the scale after a step that did not count."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets what the scale is multiplied by after a step that did not count."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of steps after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the number of steps after which the scale grows."""
        self._growth_interval = new_interval
