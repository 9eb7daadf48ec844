"""Arguments of PyTorch as those of minigrad, and results of both as flat lists."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minigrad import Tensor
from minigrad.dtype import BY_NAME, DType

LARGEST = 1 << 18
"""Elements of a tensor beyond which a sample is left out."""
_DROPPED = ("memory_format", "layout", "pin_memory", "out", "generator")


class Unsupported(Exception):
    """A sample that says something of PyTorch alone: complex numbers, sparse tensors, its modules."""


def dtype_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def from_torch(t: torch.Tensor, device: str, leaf: bool = False) -> Tensor:
    """The same values and type; with `leaf`, one that gradients flow to."""
    if t.is_complex() or t.layout != torch.strided or t.is_quantized or t.device.type != "cpu":
        raise Unsupported(f"a tensor of {t.dtype}, {t.layout} on {t.device}")
    name = dtype_name(t.dtype)
    if name not in BY_NAME:
        raise Unsupported(f"a tensor of {t.dtype}")
    if t.ndim > 64:
        raise Unsupported("more axes than numpy has")
    if t.numel() > LARGEST:
        raise Unsupported(f"{t.numel()} elements")
    plain = t.detach().resolve_neg()
    values = plain.float().numpy() if t.dtype is torch.bfloat16 else plain.numpy()
    return Tensor(np.array(values), dtype=name, device=device, requires_grad=True if leaf else None)


def lazy_view(t: torch.Tensor, device: str) -> Tensor:
    """`from_torch` as a part of a larger value that is not computed: flipped, its axes in another order, sliced."""
    axes = list(range(t.ndim))
    turned = t.detach().resolve_neg().permute(axes[::-1]).flip(axes) if axes else t.detach()
    larger = torch.ones([n + 2 for n in turned.shape], dtype=t.dtype)
    inside = tuple([slice(1, n + 1) for n in turned.shape])
    larger[inside] = turned
    whole = from_torch(larger, device)
    part = whole.unsqueeze(0).cat(whole.unsqueeze(0))[1]
    return part[inside].flip(axes).permute(axes[::-1]) if axes else part


def to_torch(t: Tensor) -> torch.Tensor:
    """The values and type of a result."""
    return torch.from_numpy(np.array(t.numpy())).to(getattr(torch, t.dtype.name)).reshape(list(t.numpy().shape))


def argument(value: Any, device: str, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `tensor` of each torch tensor in it, and types, devices and sizes as minigrad writes them."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, torch.dtype):
        if dtype_name(value) not in BY_NAME:
            raise Unsupported(f"the type {value}")
        return BY_NAME[dtype_name(value)]
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        if str(value) != "cpu":
            raise Unsupported(f"the device {value}")
        return device
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (list, tuple)):
        parts = [argument(v, device, tensor) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {k: argument(v, device, tensor) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*[argument(v, device, tensor) for v in (value.start, value.stop, value.step)])
    if isinstance(value, (complex, torch.nn.Module, torch.layout, torch.memory_format)):
        raise Unsupported(repr(value))
    return value


def call_of(sample: Any, device: str, tensor: Callable[[torch.Tensor], Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a sample's call here."""
    args = [argument(a, device, tensor) for a in (sample.input, *sample.args)]
    if sample.kwargs.get("out") is not None:
        raise Unsupported("out=")
    return args, {k: argument(v, device, tensor) for k, v in sample.kwargs.items() if k not in _DROPPED}


def flat(result: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(result, (tuple, list)):
        return [part for r in result for part in flat(r)]
    if isinstance(result, dict):
        return flat(list(result.values()))
    return [getattr(torch, result.name) if isinstance(result, DType) else result]
