"""Methods as functions of the tensor and its arguments: `exp(x)` is `x.exp()`, `cat([x, y])` and `zeros(3)` are too."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

from minigrad.dtype import BY_NAME
from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import scalar_dtype
from minigrad.tensor import Tensor

_OTHERS = {"cuda", *BY_NAME, "over"}  # a module, types, and what takes Nodes


def _function(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, whose tensor may be given as `input` and may be a number where another argument is a tensor, or a
    list of tensors; what it gives can go into `out`."""
    @wraps(method)
    def function(input: Any, *args: Any, out: Tensor | None = None, **options: Any) -> Any:
        if type(input) is not Tensor and not isinstance(input, (list, tuple)):
            input = _as_operand(name, input, args)
        result = method(input, *args, **options)
        return put(name, out, result)

    parameters = list(inspect.signature(method).parameters.values())
    parameters[0] = parameters[0].replace(name="input")
    function.__qualname__ = name
    vars(function)["__signature__"] = inspect.Signature(parameters)
    return function


def _as_operand(name: str, number: Any, others: tuple[Any, ...]) -> Tensor:
    """A number as a tensor of the type that it has beside a tensor: pow(2, x)."""
    if others and isinstance(others[0], Tensor) and isinstance(number, (bool, int, float)):
        return Tensor.full((), number, dtype=scalar_dtype(others[0].dtype, number), device=others[0].device)
    raise DTypeError(f"[{name}] expected a Tensor first, got {type(number).__name__}")


def put(name: str, out: Tensor | None, result: Any) -> Any:
    """The tensor `out`, which has the values of `result` now, if there is one, else `result`."""
    if out is None:
        return result
    if not isinstance(out, Tensor) or not isinstance(result, Tensor):
        raise DTypeError(f"[{name}] expected one Tensor as out, and one as result, got {type(out).__name__} and "
                         f"{type(result).__name__}")
    if out.shape != result.shape:
        raise ShapeError(f"[{name}] expected an out of shape {list(result.shape)}, got {list(out.shape)}")
    return out.assign(result)


def unbound() -> dict[str, Callable[..., Any]]:
    """Every public method of Tensor as a function, by name; those of the class are functions already."""
    named = [name for name in dir(Tensor) if not name.startswith("_") and name not in _OTHERS]
    found = {name: inspect.getattr_static(Tensor, name) for name in named}
    return {name: _function(name, value) if isinstance(value, FunctionType) else getattr(Tensor, name)
            for name, value in found.items() if isinstance(value, (FunctionType, classmethod, staticmethod))}
