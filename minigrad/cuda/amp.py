"""`torch.cuda.amp`, which is `minigrad.amp` for a device type that is none here: both do nothing, and say so."""
from __future__ import annotations

from functools import partial
from typing import Any

from minigrad import amp
from minigrad.dtype import DType, float16

custom_fwd, custom_bwd = partial(amp.custom_fwd, device_type="cuda"), partial(amp.custom_bwd, device_type="cuda")


def autocast(enabled: bool = True, dtype: DType | str = float16, cache_enabled: bool = True) -> amp.autocast:
    """`amp.autocast("cuda", ...)`: without a GPU of this kind it warns, and casts nothing."""
    return amp.autocast("cuda", dtype, enabled, cache_enabled)


def GradScaler(*args: Any, **options: Any) -> amp.GradScaler:  # noqa: N802  (PyTorch's name)
    """`amp.GradScaler("cuda", ...)`: without a GPU of this kind it warns, and scales nothing."""
    return amp.GradScaler("cuda", *args, **options)
