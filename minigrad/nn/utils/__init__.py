"""Gradient clipping, between `backward` and an optimizer's step, which runs in the plan of the step; parameters as one
vector, weights over their norms, and sequences of unequal lengths (`rnn`). PyTorch's `foreach` changes nothing here."""
from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_number, as_tensor
from minigrad.nn.utils import rnn as rnn
from minigrad.nn.utils.norms import remove_spectral_norm as remove_spectral_norm
from minigrad.nn.utils.norms import remove_weight_norm as remove_weight_norm
from minigrad.nn.utils.norms import spectral_norm as spectral_norm
from minigrad.nn.utils.norms import weight_norm as weight_norm
from minigrad.nn.utils.rnn import pad_sequence as pad_sequence
from minigrad.tensor import Tensor


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float | Tensor, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """Scales the gradients of `parameters` together so that their norm is at most `max_norm`; gives the norm before.

    `get_total_norm` of the gradients, and `clip_grads_with_norm_`. Tensors without a gradient are left out; without any
    the norm is 0. Raises MinigradError for anything but Tensors and for a norm_type that is not positive.
    """
    given = _with_gradients("clip_grad_norm_", parameters)
    norm = _norm_of("clip_grad_norm_", [t.grad for t in given], norm_type, error_if_nonfinite)
    _scaled_to("clip_grad_norm_", given, max_norm, norm)
    return norm


def get_total_norm(tensors: Iterable[Tensor] | Tensor, norm_type: float = 2.0,
                   error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """The norm of all elements of some tensors as one vector, of shape () and float32: (sum |x|**p)**(1/p) for p =
    `norm_type`, or the largest |x| for infinity; 0 without any. With `error_if_nonfinite` it is read, and MinigradError
    raised if it is NaN or infinite. Raises MinigradError for a norm_type that is not positive."""
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return _norm_of("get_total_norm", several, norm_type, error_if_nonfinite)


def _norm_of(name: str, tensors: list[Any], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    p = float(as_number(name, "norm_type", norm_type))
    if not p > 0:
        raise MinigradError(f"[{name}] expected a norm_type above 0, got {norm_type!r}")
    if not tensors:
        return Tensor(0.0)
    device = as_tensor(name, tensors[0]).device
    wide = [as_tensor(name, t).detach().to(device).float() for t in tensors]
    if math.isinf(p):
        largest = [g.abs().max() for g in wide if 0 not in g.shape]
        norm = reduce(Tensor.maximum, largest) if largest else Tensor(0.0, device=device)
    else:
        sums = [(g.square() if p == 2 else g.abs() ** p).sum() for g in wide]
        total = reduce(Tensor.add, sums)
        norm = total.sqrt() if p == 2 else total ** (1 / p)
    if error_if_nonfinite and not norm.isfinite().item():
        raise MinigradError(f"[{name}] expected a finite norm, got {norm.item()}")
    return norm


def clip_grads_with_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float | Tensor, total_norm: Tensor,
                          foreach: bool | None = None) -> None:
    """Scales the gradients of `parameters` by min(1, max_norm / (total_norm + 1e-6)), as in PyTorch: not a number where
    the norm is none. `max_norm` may be a Tensor, which a captured step reads; `total_norm` is one of shape ()."""
    given = _with_gradients("clip_grads_with_norm_", parameters)
    _scaled_to("clip_grads_with_norm_", given, max_norm, as_tensor("clip_grads_with_norm_", total_norm))


def _scaled_to(name: str, given: list[Tensor], max_norm: float | Tensor, norm: Tensor) -> None:
    limit = max_norm if isinstance(max_norm, Tensor) else as_number(name, "max_norm", max_norm)
    limit = limit.detach().to(norm.device) if isinstance(limit, Tensor) else limit
    factor = (limit / (norm.detach() + 1e-6)).minimum(1.0).reshape(())
    for t in given:
        if t.grad is not None:
            t.grad = (t.grad.detach() * factor.to(t.grad.device)).cast(t.grad.dtype)


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float, foreach: bool | None = None) -> None:
    """Holds every element of the gradients of `parameters` within -clip_value..clip_value; NaN stays NaN.

    Raises MinigradError for anything but Tensors.
    """
    limit = as_number("clip_grad_value_", "clip_value", clip_value)
    for t in _with_gradients("clip_grad_value_", parameters):
        if t.grad is not None:
            t.grad = t.grad.detach().clip(-limit, limit)


def _with_gradients(name: str, parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    """Those that have a gradient, each once."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters) if isinstance(
        parameters, Iterable) else [None]
    if not all(isinstance(t, Tensor) for t in given):
        raise MinigradError(f"[{name}] expected Tensors, such as nn.state.get_parameters(model), "
                            f"got {type(parameters).__name__}")
    return [t for t in {id(t): t for t in given}.values() if t is not None and t.grad is not None]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after another, [count]."""
    flat = [as_tensor("parameters_to_vector", t).flatten() for t in parameters]
    if not flat:
        raise MinigradError("[parameters_to_vector] expected at least one parameter, got none")
    return flat[0].cat(*flat[1:])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Gives parameters the elements of a vector, one after another. Raises ShapeError unless there are as many."""
    given = [as_tensor("vector_to_parameters", t) for t in parameters]
    sizes = [int(t.numel()) for t in given]
    if as_tensor("vector_to_parameters", vec).shape != (sum(sizes),):
        raise ShapeError(f"[vector_to_parameters] expected a vector [{sum(sizes)}], got {list(vec.shape)}")
    with Tensor.no_grad():
        for t, part in zip(given, vec.detach().split(sizes), strict=True):
            t.assign(part.reshape(*t.shape))
