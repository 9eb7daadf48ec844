"""Averages of a model's parameters over the steps of its training: running means (EMA) or plain ones (SWA)."""
from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import MinigradError
from minigrad.mixins.base import as_number
from minigrad.nn.module import Module
from minigrad.state import get_state_dict
from minigrad.tensor import Tensor

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The new average, of the old one, a parameter and how many were averaged (float32, shape ())."""

Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Any]
"""Gives averages their new values in place, of all of them, their parameters and how many were averaged."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """decay * average + (1 - decay) * parameter. Raises MinigradError for a decay outside of 0..1."""
    decay = as_number("get_ema_avg_fn", "decay", decay)
    if not 0 <= decay <= 1:
        raise MinigradError(f"[get_ema_avg_fn] expected a decay in 0..1, got {decay}")

    def average(old: Tensor, new: Tensor, _: Tensor) -> Tensor:
        return old * decay + new * (1 - decay)

    return average


def get_swa_avg_fn() -> Average:
    """The mean of all parameters so far."""

    def average(old: Tensor, new: Tensor, count: Tensor) -> Tensor:
        return old + (new - old) / (count + 1)

    return average


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` of lists, in place."""
    return _of_each(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """`get_swa_avg_fn` of lists, in place."""
    return _of_each(get_swa_avg_fn())


def _of_each(average: Average) -> Averages:
    def averages(old: Sequence[Tensor], new: Sequence[Tensor], count: Tensor) -> None:
        for a, b in zip(old, new, strict=True):
            a.copy_(average(a, b, count.to(a.device)))

    return averages


class AveragedModel(Module):
    """A copy of a model whose float parameters are averages of the model's at each `update_parameters`: means, or what
    `avg_fn` says of each, or `multi_avg_fn` makes of a list of averages in place. Before the first one they are the
    model's as they were. It is called as the model is.

    Buffers are those of the model at the last update, or averages too with `use_buffers`. `update_parameters` may stand
    inside `jit`; it runs with what reads the averages, or when the next values are asked for. State names are
    PyTorch's: `module.` before the model's own, and `n_averaged`.

    Source: Izmailov et al. 2018, https://arxiv.org/abs/1803.05407
    """

    training = None
    _buffer_names = ("n_averaged",)

    def __init__(self, model: Any, avg_fn: Average | None = None, multi_avg_fn: Averages | None = None,
                 use_buffers: bool = False):
        if avg_fn is not None and multi_avg_fn is not None:
            raise MinigradError("[AveragedModel] expected avg_fn or multi_avg_fn, got both")
        self.module = copy.deepcopy(model)
        self.n_averaged = Tensor(0.0).contiguous().realize()
        self.use_buffers = use_buffers
        self.multi_avg_fn = multi_avg_fn or _of_each(avg_fn or get_swa_avg_fn())

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def update_parameters(self, model: Any) -> None:
        """Takes the parameters of `model` as they are now into the averages. Raises MinigradError for another kind of
        model."""
        own, given = get_state_dict(self.module), get_state_dict(model)
        if own.keys() != given.keys():
            raise MinigradError(f"[AveragedModel] expected a model with {', '.join([*own][:4])}..., got one with "
                                f"{', '.join([*given][:4])}...")
        pairs = [(t, given[name]) for name, t in {id(t): (name, t) for name, t in own.items()}.values()]
        with Tensor.no_grad():
            averaged = [(t, p) for t, p in pairs if t.dtype.is_float and (self.use_buffers or p.requires_grad)]
            old, new = [t.detach() for t, _ in averaged], [p.detach().to(t.device) for t, p in averaged]
            self.multi_avg_fn(old, new, self.n_averaged)
            first = self.n_averaged.eq(0)
            averages = {id(t): first.to(t.device).where(n, o) for (t, _), o, n in zip(averaged, old, new, strict=True)}
            for t, p in pairs:
                t.assign(averages.get(id(t), p.detach()))
            self.n_averaged.assign(self.n_averaged + 1)
        Tensor.realize(self.n_averaged, *[t for t, _ in pairs])
