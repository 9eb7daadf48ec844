"""minigrad: lazy tensors, fused kernels on CPU and OpenCL, and the networks that run on them."""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minigrad import dtype as dtypes
from minigrad import errors
from minigrad.config import config
from minigrad.expr import Variable
from minigrad.random import manual_seed
from minigrad.runtime.registry import synchronize
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad import autograd as autograd
    from minigrad import distributions as distributions
    from minigrad import microkernels as microkernels
    from minigrad import nn as nn
    from minigrad import optim as optim
    from minigrad.capture.estimate import plan as plan
    from minigrad.capture.jit import TinyJit as TinyJit
    from minigrad.capture.jit import jit as jit
    from minigrad.engine.profile import profile as profile
    from minigrad.engine.show import show as show

_LATER = {"autograd": ("minigrad.autograd", None), "microkernels": ("minigrad.microkernels", None),
          "distributions": ("minigrad.distributions", None),
          "nn": ("minigrad.nn", None), "optim": ("minigrad.optim", None), "jit": ("minigrad.capture.jit", "jit"),
          "TinyJit": ("minigrad.capture.jit", "TinyJit"), "show": ("minigrad.engine.show", "show"),
          "plan": ("minigrad.capture.estimate", "plan"), "profile": ("minigrad.engine.profile", "profile")}


def __getattr__(name: str) -> Any:
    """What is imported on first use."""
    if name not in _LATER:
        raise AttributeError(f"module 'minigrad' has no attribute {name!r}")
    module, attribute = _LATER[name]
    loaded = import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


__all__ = ["Tensor", "TinyJit", "Variable", "autograd", "config", "distributions", "dtypes", "errors", "jit",
           "manual_seed", "microkernels", "nn", "optim", "plan", "profile", "show", "synchronize"]
