"""The functions of `torch.cuda` that scripts call before they choose a device. There is no CUDA here: GPUs are OpenCL
devices ("CL")."""
from __future__ import annotations

from typing import Any

from minigrad.cuda import amp as amp
from minigrad.runtime.registry import synchronize as synchronize


def is_available() -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0


def manual_seed(seed: int) -> None:
    """Does nothing: `minigrad.manual_seed` sets the seed of every device."""


manual_seed_all = manual_seed


def empty_cache(*_: Any) -> None:
    """Does nothing: memory that is free is given to the next tensor that needs it."""
