"""minigrad: lazy tensors, fused kernels on CPU and OpenCL, and the networks that run on them."""
from __future__ import annotations

import builtins
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minigrad import dtype as dtypes
from minigrad import errors
from minigrad.config import config
from minigrad.expr import Variable
from minigrad.random import manual_seed
from minigrad.runtime.registry import synchronize
from minigrad.tensor import Tensor, tensor

if TYPE_CHECKING:
    from minigrad import amp as amp
    from minigrad import array_api as array_api
    from minigrad import autograd as autograd
    from minigrad import data as data
    from minigrad import devices as devices
    from minigrad import distributed as distributed
    from minigrad import distributions as distributions
    from minigrad import linalg as linalg
    from minigrad import microkernels as microkernels
    from minigrad import nn as nn
    from minigrad import optim as optim
    from minigrad.amp import autocast as autocast
    from minigrad.aot.exporting import export as export
    from minigrad.capture.jit import TinyJit as TinyJit
    from minigrad.capture.jit import jit as jit
    from minigrad.dtype import bfloat16 as bfloat16
    from minigrad.dtype import float16 as float16
    from minigrad.dtype import float32 as float32
    from minigrad.dtype import float64 as float64
    from minigrad.dtype import int8 as int8
    from minigrad.dtype import int16 as int16
    from minigrad.dtype import int32 as int32
    from minigrad.dtype import int64 as int64
    from minigrad.dtype import uint8 as uint8
    from minigrad.engine.show import show as show
    from minigrad.functions import *  # noqa: F403
    from minigrad.methods import *  # noqa: F403
    from minigrad.mixins.loops import scan as scan
    from minigrad.nn.summary import summary as summary
    from minigrad.report.estimate import plan as plan
    from minigrad.report.explained.explain import explain as explain
    from minigrad.report.plans import plans as plans
    from minigrad.report.profile import profile as profile

_LATER = {"amp": ("minigrad.amp", None), "autocast": ("minigrad.amp", "autocast"),
          "summary": ("minigrad.nn.summary", "summary"),
          "is_autocast_enabled": ("minigrad.amp", "is_autocast_enabled"),
          "get_autocast_dtype": ("minigrad.amp", "get_autocast_dtype"),
          "autograd": ("minigrad.autograd", None), "microkernels": ("minigrad.microkernels", None),
          "devices": ("minigrad.devices", None), "data": ("minigrad.data", None),
          "distributed": ("minigrad.distributed", None),
          "distributions": ("minigrad.distributions", None), "linalg": ("minigrad.linalg", None),
          "nn": ("minigrad.nn", None), "optim": ("minigrad.optim", None), "jit": ("minigrad.capture.jit", "jit"),
          "TinyJit": ("minigrad.capture.jit", "TinyJit"), "export": ("minigrad.aot.exporting", "export"),
          "show": ("minigrad.engine.show", "show"), "explain": ("minigrad.report.explained.explain", "explain"),
          "plan": ("minigrad.report.estimate", "plan"), "profile": ("minigrad.report.profile", "profile"),
          "plans": ("minigrad.report.plans", "plans"), "scan": ("minigrad.mixins.loops", "scan"),
          **{name: (f"minigrad.{name}", None) for name in ("array_api", "backends", "cuda", "fft", "functions",
                                                          "special", "utils")}}


def __getattr__(name: str) -> Any:
    """Modules, types under PyTorch's names, and functions over Tensors, which are imported on first use. Raises
    AttributeError for a name that the package does not have."""
    value = None if name.startswith("_") else _found(name)
    if value is None:
        raise AttributeError(f"module 'minigrad' has no attribute {name!r}")
    if not hasattr(builtins, name):  # this module uses those
        globals()[name] = value
    return value


def _found(name: str) -> Any:
    if name in _LATER:
        module, attribute = _LATER[name]
        loaded = import_module(module)
        return loaded if attribute is None else getattr(loaded, attribute)
    if name in dtypes.BY_NAME:
        return dtypes.BY_NAME[name]
    functions, methods = import_module("minigrad.functions"), import_module("minigrad.methods")
    return getattr(functions if name in functions.__all__ else methods, name, None)


def __dir__() -> list[str]:
    functions, methods = import_module("minigrad.functions"), import_module("minigrad.methods")
    return sorted({*globals(), *_LATER, *dtypes.BY_NAME, *functions.__all__, *vars(methods)})


__all__ = ["Tensor", "TinyJit", "Variable", "amp", "array_api", "autocast", "autograd", "config", "data", "devices",
           "distributions", "dtypes", "errors", "explain", "export", "jit", "linalg", "manual_seed", "microkernels",
           "nn", "optim", "plan", "plans", "profile", "scan", "show", "summary", "synchronize", "tensor"]
