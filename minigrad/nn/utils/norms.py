"""Weights that are computed from others at each use: over their norm times a length, or over their largest singular
value. The layer becomes one of a class made for it, where the weight is a property."""
from __future__ import annotations

from typing import Any

from minigrad.errors import MinigradError
from minigrad.mixins.base import as_axis, as_count
from minigrad.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from minigrad.nn.module import Module
from minigrad.nn.parts import forget_buffer, note_buffer
from minigrad.optim.statistics import note_moved
from minigrad.tensor import Tensor


def _taken(function: str, module: Any, name: str) -> Tensor:
    """The Tensor `name`, which is an attribute no longer."""
    weight = vars(module).get(name) if isinstance(module, Module) else None
    if not isinstance(weight, Tensor):
        raise MinigradError(f"[{function}] expected a layer with a Tensor {name!r}, got {type(module).__name__}")
    delattr(module, name)
    return weight.detach()


def _become(module: Any, members: dict[str, Any]) -> Any:
    """The layer as one of a class of its own with these members: the weight is computed when it is read, which takes a
    property, and properties are found in classes alone. PyTorch's parametrizations do the same."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **members})
    return module


def _restored(function: str, module: Any, name: str, parts: list[str]) -> Any:
    """The layer as it was, with the present weight as a parameter."""
    if not isinstance(vars(type(module)).get(name), property) or not all(name + part in vars(module) for part in parts):
        raise MinigradError(f"[{function}] expected a layer whose {name!r} is computed, got {type(module).__name__}")
    weight = getattr(module, name).detach().clone()
    for part in parts:
        delattr(module, name + part)
    module.__class__ = type(module).__base__
    setattr(module, name, weight.requires_grad_())
    return module


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """The layer, whose weight is g * v / |v| from now on, with norms over all axes but `dim` (over all for None). The
    parameters are `weight_g` and `weight_v`, as in PyTorch.

    Source: Salimans & Kingma 2016, https://arxiv.org/abs/1602.07868
    """
    v = _taken("weight_norm", module, name)
    axes = [a for a in range(v.ndim) if dim is None or a != as_axis("weight_norm", dim, v.ndim)]

    def length(x: Tensor) -> Tensor:
        return x.norm(p=2) if dim is None else x.norm(p=2, dim=axes, keepdim=True)

    setattr(module, name + "_g", length(v).contiguous().realize().requires_grad_())
    setattr(module, name + "_v", v.clone().realize().requires_grad_())

    def weight(layer: Any) -> Tensor:
        v = getattr(layer, name + "_v")
        return v * (getattr(layer, name + "_g") / length(v))

    return _become(module, {name: property(weight)})


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Undoes `weight_norm`: the weight as it is now is a parameter again."""
    return _restored("remove_weight_norm", module, name, ["_g", "_v"])


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
                  dim: int | None = None) -> Any:
    """The layer, whose weight is divided by its largest singular value from now on, as a matrix [axis `dim`, others].

    That value is u @ W @ v of vectors that each call in training moves by `n_power_iterations` steps. The parameter is
    `weight_orig`; `weight_u` and `weight_v` are buffers, as in PyTorch. `dim` is 1 for transposed convolutions, else 0.

    Source: Miyato et al. 2018, https://arxiv.org/abs/1802.05957
    """
    original = _taken("spectral_norm", module, name)
    steps = as_count("spectral_norm", "n_power_iterations", n_power_iterations, 1)
    transposed = isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d))
    axis = as_axis("spectral_norm", int(transposed) if dim is None else dim, original.ndim)

    def matrix(weight: Tensor) -> Tensor:
        return weight.transpose(0, axis).flatten(1) if axis else weight.flatten(1)

    rows, columns = matrix(original).shape
    setattr(module, name + "_orig", original.clone().realize().requires_grad_())
    for part, size in (("_u", rows), ("_v", columns)):
        start = Tensor.randn(size, dtype=original.dtype, device=original.device).normalize(dim=0, eps=eps)
        setattr(module, name + part, start.contiguous().realize())
        note_buffer(module, name + part)

    def weight(layer: Any) -> Tensor:
        w, u, v = (getattr(layer, name + part) for part in ("_orig", "_u", "_v"))
        return w / (u.detach() * matrix(w).mv(v.detach())).sum()

    def call(layer: Any, *args: Any, **options: Any) -> Any:
        if Tensor.training if layer.training is None else layer.training:
            w, u, v = (getattr(layer, name + part) for part in ("_orig", "_u", "_v"))
            with Tensor.no_grad():
                m, new = matrix(w.detach()), u.detach()
                for _ in range(steps):
                    along = m.T.mv(new).normalize(dim=0, eps=eps)
                    new = m.mv(along).normalize(dim=0, eps=eps)
                u.assign(new)
                v.assign(along)
            note_moved(u, v)
        return super(made, layer).__call__(*args, **options)

    made: Any = type(_become(module, {name: property(weight), "__call__": call}))
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Undoes `spectral_norm`: the weight as it is now is a parameter again."""
    restored = _restored("remove_spectral_norm", module, name, ["_orig", "_u", "_v"])
    for part in ("_u", "_v"):
        forget_buffer(restored, name + part)
    return restored
