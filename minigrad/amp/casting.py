"""`autocast`: a context in which products compute in a half type, by PyTorch's rules (mixins/precision.py)."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from minigrad.dtype import DType, bfloat16, float16, to_dtype
from minigrad.errors import DeviceError, DTypeError
from minigrad.mixins.modes import Within, modes
from minigrad.mixins.precision import as_type

ABSENT = ("cuda", "hip", "mps", "xpu")
"""PyTorch's device types that are none here: `autocast` for them warns and does nothing, as PyTorch's without them."""
_DEFAULT = {"cuda": float16}


def _device_type(name: str, device: Any) -> str:
    kind = str(device).partition(":")[0].lower()
    if kind not in ("cpu", "cl", "numpy", "amd", "nv", *ABSENT):
        raise DeviceError(f"[{name}] expected a device type such as 'cpu' or 'cl', got {device!r}")
    return kind


class autocast(Within):  # noqa: N801  (PyTorch's name)
    """A context, or a decorator, in which products of float32 matrices and convolutions compute in `dtype`, bfloat16
    or float16, and losses in float32. Parameters stay float32, and so do their gradients.

    With `enabled=False` nothing is cast inside. `cache_enabled` changes nothing: a parameter's cast is one value in
    each plan anyway. Raises DTypeError for other types and DeviceError for an unknown device type.
    """

    def __init__(self, device_type: str = "cpu", dtype: DType | str | None = None, enabled: bool = True,
                 cache_enabled: bool | None = None):
        kind = _device_type("autocast", device_type)
        half = _DEFAULT.get(kind, bfloat16) if dtype is None else to_dtype(dtype)
        if enabled and half not in (bfloat16, float16):
            raise DTypeError(f"[autocast] expected bfloat16 or float16, got {half}")
        if enabled and kind in ABSENT:
            warnings.warn(f"[autocast] there is no device type {kind!r} here, nothing is cast; use autocast('cpu')",
                          stacklevel=2)
            enabled = False
        super().__init__("autocast", half if enabled else None)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """True inside of `autocast`; for a device type of PyTorch's that is none here, False."""
    return modes.now.autocast is not None and (device_type is None or _device_type(
        "is_autocast_enabled", device_type) not in ABSENT)


def is_autocast_available(device_type: str) -> bool:
    """True where `autocast` for this device type casts anything."""
    return _device_type("is_autocast_available", device_type) not in ABSENT


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The half type of this context, outside of any the one that `autocast(device_type)` has."""
    return modes.now.autocast or _DEFAULT.get(_device_type("get_autocast_dtype", device_type), bfloat16)


def custom_fwd(forward: Callable[..., Any] | None = None, *, device_type: str = "cpu",
               cast_inputs: DType | str | None = None) -> Any:
    """Decorates the `forward` of an `autograd.Function`: its `backward` under `custom_bwd` has the same `autocast`.
    With `cast_inputs`, inside of `autocast`, float arguments are of that type and nothing inside is cast."""
    if forward is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    kind = None if cast_inputs is None else to_dtype(cast_inputs)

    @wraps(forward)
    def decorated(ctx: Any, *args: Any, **options: Any) -> Any:
        half = modes.now.autocast
        ctx.autocast_of_forward = half
        if half is None or kind is None:
            return forward(ctx, *args, **options)
        ctx.autocast_of_forward = None
        with Within("autocast", None):
            return forward(ctx, *[as_type(a, kind) for a in args], **{k: as_type(v, kind) for k, v in options.items()})

    return decorated


def custom_bwd(backward: Callable[..., Any] | None = None, *, device_type: str = "cpu") -> Any:
    """Decorates the `backward` of an `autograd.Function` whose `forward` has `custom_fwd`: it runs under the `autocast`
    of that one."""
    if backward is None:
        return partial(custom_bwd, device_type=device_type)

    @wraps(backward)
    def decorated(ctx: Any, *gradients: Any) -> Any:
        with Within("autocast", ctx.autocast_of_forward):
            return backward(ctx, *gradients)

    return decorated
