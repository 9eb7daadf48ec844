"""Norms of layers, groups and batches, with their gradients.

All compute in float32 at least. A gradient of y = (x - mean) * rstd over the axes of one norm, of c elements, is
rstd * (g - mean(g) - y * mean(g * y)) with g the gradient in y.
"""
from __future__ import annotations

from typing import Any

from minigrad import Tensor
from minigrad.nn import functional
from minigrad.torch_compile.node import Node, Operator

Axes = tuple[int, ...]


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype.bits < 32 else x


def statistics(x: Tensor, axes: Axes, eps: float) -> tuple[Tensor, Tensor]:
    """The mean and the inverse of the deviation, with axes of one element."""
    mean = x.mean(axes, keepdim=True)
    return mean, ((x - mean).square().mean(axes, keepdim=True) + eps).rsqrt()


def through(gradient: Tensor, y: Tensor, rstd: Tensor, axes: Axes) -> Tensor:
    """The gradient in x of y = (x - mean) * rstd."""
    return rstd * (gradient - gradient.mean(axes, keepdim=True) - y * (gradient * y).mean(axes, keepdim=True))


def shifted(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """y * weight + bias."""
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def layer_norm(n: Node, x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None,
               eps: float) -> list[Tensor]:
    """The last axes normalised; the mean and the inverse deviation."""
    axes, x = tuple(range(x.ndim - len(shape), x.ndim)), wide(x)
    mean, rstd = statistics(x, axes, eps)
    return [shifted((x - mean) * rstd, weight, bias), mean, rstd]


def layer_norm_backward(n: Node, gradient: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor,
                        weight: Tensor | None, bias: Tensor | None, wanted: list[bool]) -> list[Tensor | None]:
    """The gradients in x, weight and bias."""
    first = x.ndim - len(shape)
    gradient, y, outer = wide(gradient), (wide(x) - mean) * rstd, tuple(range(first))
    inner = gradient if weight is None else gradient * weight
    return [through(inner, y, rstd, tuple(range(first, x.ndim))) if wanted[0] else None,
            (gradient * y).sum(outer) if wanted[1] else None, gradient.sum(outer) if wanted[2] else None]


def _per_channel(x: Tensor, values: Tensor | None) -> Any:
    return None if values is None else values.reshape(1, -1, *[1] * (x.ndim - 2))


def group_norm(n: Node, x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, places: int,
               groups: int, eps: float) -> list[Tensor]:
    """Groups of channels normalised; the mean and the inverse deviation [N, groups]."""
    rows = wide(x).reshape(N, groups, -1)
    mean, rstd = statistics(rows, (2,), eps)
    y = ((rows - mean) * rstd).reshape(*x.shape)
    y = shifted(y, _per_channel(x, weight), _per_channel(x, bias))
    return [y, mean.reshape(N, groups), rstd.reshape(N, groups)]


def group_norm_backward(n: Node, gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
                        N: int, C: int, places: int, groups: int, wanted: list[bool]) -> list[Tensor | None]:
    """The gradients in x, weight and bias."""
    mean, rstd, gradient = mean.reshape(N, groups, 1), rstd.reshape(N, groups, 1), wide(gradient)
    y = (wide(x).reshape(N, groups, -1) - mean) * rstd
    inner = (gradient if weight is None else gradient * _per_channel(x, weight)).reshape(N, groups, -1)
    axes = (0, *range(2, x.ndim))
    return [through(inner, y, rstd, (2,)).reshape(*x.shape) if wanted[0] else None,
            (gradient * y.reshape(*x.shape)).sum(axes) if wanted[1] else None,
            gradient.sum(axes) if wanted[2] else None]


def _normalised(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """By channel: (x - mean) * (rstd * weight) + bias."""
    factor = rstd if weight is None else rstd * weight
    return shifted(x - _per_channel(x, mean), _per_channel(x, factor), _per_channel(x, bias))


def batch_norm_inference(n: Node, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
                         momentum: float, eps: float) -> list[Tensor]:
    """Normalised by running statistics; nothing is saved."""
    y = functional.batch_norm(wide(x), wide(mean), wide(var), weight, bias, eps=eps)
    nothing = Tensor.zeros(0, dtype=wide(mean).dtype, device=x.device)
    return [y, nothing, nothing]


def batch_norm(n: Node, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
               running_var: Tensor, training: bool, momentum: float, eps: float) -> list[Tensor]:
    """Normalised by the batch's statistics; these, and the new running ones."""
    if not training:
        y, nothing, _ = batch_norm_inference(n, x, weight, bias, running_mean, running_var, momentum, eps)
        return [y, nothing, nothing, running_mean, running_var]
    y, mean, rstd = batch_norm_alone(n, x, weight, bias, training, momentum, eps)
    count = int(x.numel()) // int(x.shape[1])
    var = (wide(x) - _per_channel(x, mean)).square().mean((0, *range(2, x.ndim))) * (count / max(count - 1, 1))
    return [y, mean, rstd, mean * momentum + running_mean * (1 - momentum),
            var * momentum + running_var * (1 - momentum)]


def batch_norm_alone(n: Node, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                     eps: float) -> list[Tensor]:
    """Normalised by the batch's statistics, without running ones."""
    x = wide(x)
    mean, rstd = (s.reshape(-1) for s in statistics(x, (0, *range(2, x.ndim)), eps))
    return [_normalised(x, mean, rstd, weight, bias), mean, rstd]


def batch_norm_backward(n: Node, gradient: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
                        running_var: Tensor | None, mean: Any, rstd: Any, train: bool, eps: float,
                        wanted: list[bool]) -> list[Tensor | None]:
    """The gradients in x, weight and bias."""
    axes = (0, *range(2, x.ndim))
    if not train and running_mean is not None and running_var is not None:
        mean, rstd = wide(running_mean), (wide(running_var) + eps).rsqrt()
    gradient, scale = wide(gradient), _per_channel(x, rstd)
    y = (wide(x) - _per_channel(x, mean)) * scale
    inner = gradient if weight is None else gradient * _per_channel(x, weight)
    return [(through(inner, y, scale, axes) if train else inner * scale) if wanted[0] else None,
            (gradient * y).sum(axes) if wanted[1] else None, gradient.sum(axes) if wanted[2] else None]


TABLE: dict[str, Operator] = {
    "native_layer_norm": layer_norm, "native_layer_norm_backward": layer_norm_backward,
    "native_group_norm": group_norm, "native_group_norm_backward": group_norm_backward,
    "_native_batch_norm_legit_functional": batch_norm, "_native_batch_norm_legit.no_stats": batch_norm_alone,
    "_native_batch_norm_legit_no_training": batch_norm_inference, "native_batch_norm_backward": batch_norm_backward,
}
