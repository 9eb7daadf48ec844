"""Layers in PyTorch by their definition: so that errors of the means, which all elements share, are among the errors of
rounding that are made of a network (`run.Rounding`)."""
from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as functional


class Definitions:
    """PyTorch's functions of layers, some of them by definition."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)

    def batch_norm(self, x: Any, mean: None, variance: None, weight: Any = None, bias: Any = None,
                   training: bool = True) -> Any:
        return _affine(_normal(x, (0, *range(2, x.ndim))), weight, bias, (-1, *[1] * (x.ndim - 2)))

    def instance_norm(self, x: Any, weight: Any = None, bias: Any = None) -> Any:
        if prod(x.shape[2:]) == 1:
            raise ValueError("no variance of one element")
        return _affine(_normal(x, tuple(range(2, x.ndim))), weight, bias, (-1, *[1] * (x.ndim - 2)))

    def group_norm(self, x: Any, groups: int, weight: Any = None, bias: Any = None) -> Any:
        parts = x.reshape(x.shape[0], groups, -1)
        return _affine(_normal(parts, (2,)).reshape(x.shape), weight, bias, (-1, *[1] * (x.ndim - 2)))

    def layer_norm(self, x: Any, sizes: tuple[int, ...], weight: Any = None, bias: Any = None) -> Any:
        return _affine(_normal(x, tuple(range(-len(sizes), 0))), weight, bias, sizes)

    def rms_norm(self, x: Any, sizes: tuple[int, ...], weight: Any = None, eps: float = 1e-5) -> Any:
        axes = tuple(range(-len(sizes), 0))
        return _affine(x * (x * x).mean(axes, keepdim=True).add(eps).rsqrt(), weight, None, sizes)

    def interpolate(self, x: Any, mode: str = "nearest", **options: Any) -> Any:
        """Nearest elements by their positions as fractions: PyTorch's gradient of nearest-exact takes others than its
        value where a position is halfway between two, and in float32 rounding makes whole ones of some that are not."""
        if not mode.startswith("nearest"):
            size = options.get("size") or ()
            if options.get("antialias") and size[-1:] == (1,):  # PyTorch 2.13 is wrong there, but right in rows
                options["size"] = size[::-1]
                return functional.interpolate(x.transpose(-1, -2), mode=mode, **options).transpose(-1, -2)
            return functional.interpolate(x, mode=mode, **options)
        half = int(mode == "nearest-exact")
        for axis, n in enumerate(x.shape[2:]):
            count = options["size"][axis] if options.get("size") else int(n * options["scale_factor"])
            at = (2 * torch.arange(count) + half) * n // (2 * count)
            x = x.index_select(axis + 2, at.clamp(max=n - 1).to(x.device))
        return x

    def softmax(self, x: Any, dim: int) -> Any:
        e = (x - x.amax(dim, keepdim=True).detach()).exp()
        return e / e.sum(dim, keepdim=True)

    def log_softmax(self, x: Any, dim: int) -> Any:
        y = x - x.amax(dim, keepdim=True).detach()
        return y - y.exp().sum(dim, keepdim=True).log()


def _normal(x: Any, axes: tuple[int, ...]) -> Any:
    return _Normal.apply(x, axes) if x.requires_grad else _centred(x, axes)[0]


def _centred(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """x less its mean over its standard deviation, and one over this."""
    y = x - x.mean(axes, keepdim=True)
    scale = (y * y).mean(axes, keepdim=True).add(1e-5).rsqrt()
    return y * scale, scale


class _Normal(torch.autograd.Function):
    """The gradient is by batch_norm's formula. In it the sum of the elements counts, which is 0 but for the error of
    the mean: nearly all of a gradient where a channel is nearly constant."""

    @staticmethod
    def forward(ctx: Any, x: Any, axes: tuple[int, ...]) -> Any:
        ctx.save_for_backward(x)
        ctx.axes = axes
        return _centred(x, axes)[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,), axes = ctx.saved_tensors, ctx.axes
        y, scale = _centred(x, axes)
        return (g - g.mean(axes, keepdim=True) - y * (g * y).mean(axes, keepdim=True)) * scale, None


def _affine(x: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)
