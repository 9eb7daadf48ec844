"""Functions of PyTorch's top level whose arguments are not those of a method of `Tensor`; `minigrad.methods` has the
others. All are names of the package.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import IO, Any

import numpy as np

from minigrad import random
from minigrad.config import config, current
from minigrad.dtype import DType, float32
from minigrad.engine.sharing import borrowed
from minigrad.errors import ConfigError, DTypeError, ShapeError, SharingError
from minigrad.kinds import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
    Size,
    can_cast,
    device,
    finfo,
    iinfo,
    promote_types,
    result_type,
)
from minigrad.mixins.base import as_shape
from minigrad.mixins.base import broadcast_shapes as _broadcast
from minigrad.mixins.modes import Within
from minigrad.mixins.printing import set_printoptions
from minigrad.nn.functional import (
    adaptive_avg_pool1d,
    adaptive_max_pool1d,
    alpha_dropout,
    avg_pool1d,
    bilinear,
    celu_,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    dropout,
    feature_alpha_dropout,
    group_norm,
    layer_norm,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    relu,
    rms_norm,
    rrelu,
    rrelu_,
    selu,
    selu_,
    threshold,
    threshold_,
)
from minigrad.random import Generator, manual_seed
from minigrad.runtime.registry import canonical
from minigrad.state.torch_file import torch_load
from minigrad.state.torch_save import torch_save as save
from minigrad.tensor import Tensor
from minigrad.unbound import put

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "Generator",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "Size", "adaptive_avg_pool1d", "adaptive_max_pool1d",
    "alpha_dropout", "as_tensor", "asarray", "avg_pool1d", "bernoulli", "bilinear", "broadcast_shapes", "can_cast",
    "cat", "celu_", "concat", "concatenate", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "device", "dropout", "enable_grad", "feature_alpha_dropout", "finfo", "from_dlpack",
    "from_numpy", "get_default_dtype", "group_norm", "iinfo", "inference_mode", "initial_seed", "is_tensor",
    "layer_norm", "load", "manual_seed", "max", "max_pool1d", "max_pool2d", "max_pool3d", "median", "min",
    "nanmedian", "no_grad", "normal", "polygamma", "promote_types", "randint", "relu", "result_type", "rms_norm",
    "row_stack", "rrelu", "rrelu_", "save", "scalar_tensor", "selu", "selu_", "set_float32_matmul_precision",
    "set_printoptions", "stack", "threshold", "threshold_", "to_dlpack", "use_deterministic_algorithms", "where"]



# Making tensors

def cat(tensors: Any, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Tensors joined along an axis; see `Tensor.cat`."""
    return put("cat", out, Tensor.cat(tensors, dim=dim))


def stack(tensors: Any, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    return put("stack", out, Tensor.stack(tensors, dim=dim))


concat = concatenate = cat
row_stack = Tensor.vstack


def as_tensor(data: Any, dtype: DType | str | None = None, device: str | None = None) -> Tensor:
    """`data` itself where it is a Tensor of this type on this device, else a new Tensor of it."""
    if isinstance(data, Tensor):
        return data.to(data.device if device is None else device, dtype=data.dtype if dtype is None else dtype)
    return Tensor(data, dtype, device)


def asarray(obj: Any, *, dtype: DType | str | None = None, device: str | None = None, copy: bool | None = None,
            requires_grad: bool = False) -> Tensor:
    """`as_tensor`, or with `copy` a Tensor of its own."""
    made = as_tensor(obj, dtype, device)
    made = made.clone() if copy and made is obj else made
    return made.requires_grad_() if requires_grad else made


def from_numpy(ndarray: np.ndarray) -> Tensor:
    """A Tensor of an array's values and type. Other than in PyTorch they are copied, as lazy results would else see
    changes that are made to the array before they are computed."""
    if not isinstance(ndarray, np.ndarray):
        raise DTypeError(f"[from_numpy] expected a numpy array, got {type(ndarray).__name__}")
    return Tensor(ndarray)


def from_dlpack(ext_tensor: Any, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A Tensor over the memory of an array of another library that has `__dlpack__`; over a copy where the device does
    not read that memory, the elements are not in row-major order, or `copy` asks for one.

    Without `device`, memory of the host is used where it is. The owner's later writes to it show, also in results that
    are computed after them. Operations in place on the Tensor give it memory of its own, other than in PyTorch, and
    never write into the owner's. Raises SharingError where `copy` is False and a copy would be needed."""
    if isinstance(ext_tensor, Tensor):
        moved = ext_tensor.detach() if device is None else ext_tensor.detach().to(device)
        if copy is False and moved.device != ext_tensor.device:
            raise SharingError(f"[from_dlpack] expected the device {ext_tensor.device} for copy=False, got {device}")
        return moved.clone() if copy else moved
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(f"[from_dlpack] expected an object with __dlpack__, got {type(ext_tensor).__name__}")
    name = canonical(current().device if device is None else device)
    if device is None and name not in ("CPU", "NUMPY"):
        name = "CPU"
    return Tensor.over(borrowed(ext_tensor, name, copy))


def to_dlpack(tensor: Tensor) -> Any:
    """`tensor.__dlpack__()`: a capsule as it was before version 1 of DLPack."""
    return tensor.__dlpack__()


def scalar_tensor(s: Any, *, dtype: DType | str = float32, device: str | None = None,
                  requires_grad: bool | None = None) -> Tensor:
    """A Tensor of shape [] of one number."""
    return Tensor.full((), s, dtype=dtype, device=device, requires_grad=requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: DType | str | None = None,
            device: str | None = None, requires_grad: bool | None = None) -> Tensor:
    """Integers in [low, high) of shape `size`: `randint(high, size)` or `randint(low, high, size)`."""
    if size is None:
        low, high, size = 0, low, high
    if size is None:
        raise ShapeError("[randint] expected a shape as size: randint(high, size) or randint(low, high, size)")
    return Tensor.randint(as_shape((size,)), low=low, high=high, dtype=dtype, device=device,
                          requires_grad=requires_grad)


def normal(mean: Any, std: Any = 1.0, size: Any = None, *, dtype: DType | str | None = None,
           device: str | None = None) -> Tensor:
    """Normal numbers of these means and deviations: Tensors that broadcast, or numbers and a shape `size`."""
    given = [t for t in (mean, std) if isinstance(t, Tensor)]
    if (size is None) == (not given):
        raise ShapeError("[normal] expected mean or std as a Tensor, or both as numbers and a shape as size")
    if not given:
        return Tensor.randn(as_shape((size,)), dtype=dtype or float32, device=device) * std + mean
    shape = _broadcast("normal", *[t.shape for t in given])
    return Tensor.randn(shape, dtype=given[0].dtype, device=given[0].device) * std + mean


def bernoulli(input: Tensor, p: float | None = None) -> Tensor:
    """1 with the probability that each element says, or `p`, else 0."""
    return (input if p is None else input.full_like(p)).bernoulli()


def broadcast_shapes(*shapes: Any) -> tuple:
    """The shape that all of them broadcast to. Raises ShapeError if there is none."""
    return _broadcast("broadcast_shapes", *[as_shape((s,)) for s in shapes])


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    return input.polygamma(n)


# Reductions that give pairs, and choices


def _extreme(name: str, pairwise: str) -> Callable[..., Any]:
    def function(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
        other = dim if isinstance(dim, Tensor) else other
        if other is not None:
            return getattr(input, pairwise)(other)
        return getattr(input, name)() if dim is None else getattr(input, name)(dim=dim, keepdim=keepdim)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`input.{name}()`; (values, indices) along `dim`; or the {pairwise} of two Tensors."""
    return function


def _middle(name: str) -> Callable[..., Any]:
    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        return getattr(input, name)() if dim is None else getattr(input, name)(dim=dim, keepdim=keepdim)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`input.{name}()`, or (values, indices) along `dim`."""
    return function


max, min = _extreme("max", "maximum"), _extreme("min", "minimum")
median, nanmedian = _middle("median"), _middle("nanmedian")


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where the condition holds, else `other`; without them, the indices where it does, one Tensor per axis."""
    if input is None and other is None:
        return condition.nonzero().unbind(1)
    return condition.where(input, other)


# Modes


def no_grad(function: Callable[..., Any] | None = None) -> Any:
    """A context without gradients, which decorates a function too: `@no_grad` and `@no_grad()`."""
    return _context("grad_enabled", False, function)


def enable_grad(function: Callable[..., Any] | None = None) -> Any:
    """A context that records gradients again inside `no_grad`, and a decorator."""
    return _context("grad_enabled", True, function)


def inference_mode(mode: Any = True) -> Any:
    """`no_grad`, or nothing for False. Its results are tensors like any others."""
    if callable(mode):
        return _context("grad_enabled", False, mode)
    return Within("grad_enabled", Tensor.is_grad_enabled() and not mode)


def _context(field: str, value: bool, function: Callable[..., Any] | None) -> Any:
    made = Within(field, value)
    return made if function is None else made(function)


def get_default_dtype() -> DType:
    """float32, the type of numbers with a fraction."""
    return float32


def initial_seed() -> int:
    """The seed of random numbers."""
    return random.seed()[0]


def load(f: str | PathLike | IO[bytes], map_location: Any = None, pickle_module: Any = None, *,
         weights_only: bool = True, mmap: bool | None = None) -> Any:
    """The object that PyTorch or `save` wrote to a path or an open file, its Tensors on the device `map_location`;
    nothing in the file is run. A function or dictionary in that place, by which PyTorch goes from a device in the file
    to one that is there, changes nothing: all Tensors come to the default device."""
    stays = map_location is None or callable(map_location) or isinstance(map_location, Mapping)
    with config(**{} if stays else {"device": device(map_location)}):
        return torch_load(f)


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing, as every algorithm gives the same result each time."""


def set_float32_matmul_precision(precision: str) -> None:
    """Nothing, as products of float32 are never rounded to less on their way. Raises ConfigError unless `precision` is
    one of PyTorch's."""
    if precision not in ("highest", "high", "medium"):
        raise ConfigError(f"[set_float32_matmul_precision] expected 'highest', 'high' or 'medium', got {precision!r}")


def is_tensor(obj: Any) -> bool:
    """True for a Tensor."""
    return isinstance(obj, Tensor)
