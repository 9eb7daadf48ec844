"""Gradient clipping, between `backward` and an optimizer's step, which runs in the plan of the step; parameters as one
vector, weights over their norms, and sequences of unequal lengths (`rnn`)."""
from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_number, as_tensor
from minigrad.nn.utils import rnn as rnn
from minigrad.nn.utils.norms import remove_spectral_norm as remove_spectral_norm
from minigrad.nn.utils.norms import remove_weight_norm as remove_weight_norm
from minigrad.nn.utils.norms import spectral_norm as spectral_norm
from minigrad.nn.utils.norms import weight_norm as weight_norm
from minigrad.nn.utils.rnn import pad_sequence as pad_sequence
from minigrad.tensor import Tensor


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float | Tensor, norm_type: float = 2.0) -> Tensor:
    """Scales the gradients of `parameters` together so that their norm is at most `max_norm`; gives the norm before.

    The norm, of shape () and float32, is that of all gradients as one vector: (sum |g|**p)**(1/p) for p = `norm_type`,
    or the largest |g| for infinity. The factor is min(1, max_norm / (norm + 1e-6)), as in PyTorch: not a number where
    the norm is none. Tensors without a gradient are left out; without any the norm is 0. `max_norm` may be a Tensor,
    which a captured step reads. Raises MinigradError for anything but Tensors and for a norm_type that is not positive.
    """
    given = _with_gradients("clip_grad_norm_", parameters)
    p = float(as_number("clip_grad_norm_", "norm_type", norm_type))
    if not p > 0:
        raise MinigradError(f"[clip_grad_norm_] expected a norm_type above 0, got {norm_type!r}")
    limit = max_norm if isinstance(max_norm, Tensor) else as_number("clip_grad_norm_", "max_norm", max_norm)
    if not given:
        return Tensor(0.0)
    device = given[0].device
    gradients = [t.grad.detach().to(device).float() for t in given if t.grad is not None]
    if math.isinf(p):
        largest = [g.abs().max() for g in gradients if 0 not in g.shape]
        norm = reduce(Tensor.maximum, largest) if largest else Tensor(0.0, device=device)
    else:
        sums = [(g.square() if p == 2 else g.abs() ** p).sum() for g in gradients]
        total = reduce(Tensor.add, sums)
        norm = total.sqrt() if p == 2 else total ** (1 / p)
    limit = limit.detach().to(device) if isinstance(limit, Tensor) else limit
    factor = (limit / (norm + 1e-6)).minimum(1.0).reshape(())
    for t in given:
        if t.grad is not None:
            t.grad = (t.grad.detach() * factor.to(t.grad.device)).cast(t.grad.dtype)
    return norm


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
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


def vector_to_parameters(vector: Tensor, parameters: Iterable[Tensor]) -> None:
    """Gives parameters the elements of a vector, one after another. Raises ShapeError unless there are as many."""
    given = [as_tensor("vector_to_parameters", t) for t in parameters]
    sizes = [int(t.numel()) for t in given]
    if as_tensor("vector_to_parameters", vector).shape != (sum(sizes),):
        raise ShapeError(f"[vector_to_parameters] expected a vector [{sum(sizes)}], got {list(vector.shape)}")
    with Tensor.no_grad():
        for t, part in zip(given, vector.detach().split(sizes), strict=True):
            t.assign(part.reshape(*t.shape))
