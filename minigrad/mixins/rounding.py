"""Operations over half types that are made of several others compute in float32 and round their result once."""
from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, TypeVar, cast

from minigrad.dtype import DType, float32, promote
from minigrad.mixins.base import Base

Method = TypeVar("Method", bound=Callable[..., Any])


def rounded_once(method: Method) -> Method:
    """The method with half operands as float32, and its float32 results as the type that its operands promote to.

    Gradients pass through the same casts, so that they are rounded once as well. A method with a `dtype` of its own
    for results cannot be one of these.
    """
    return _rounding(method, lambda kinds: reduce(promote, kinds))


def rounded_as_first(method: Method) -> Method:
    """`rounded_once` to the type of the first operand where that is a half type: a norm with float32 parameters gives
    what it was given, as in PyTorch."""
    return _rounding(method, lambda kinds: kinds[0] if kinds[0].compute is not kinds[0] else reduce(promote, kinds))


def _rounding(method: Method, result_type: Callable[[list[DType]], DType]) -> Method:
    @wraps(method)
    def wide(self: Any, *args: Any, **options: Any) -> Any:
        kind = self.node.dtype
        if kind is float32:
            return method(self, *args, **options)
        given = [kind, *[v.dtype for v in (*args, *options.values()) if isinstance(v, Base)]]
        kind = result_type(given)
        if kind.compute is kind:
            return method(self, *args, **options)
        result = method(_widened(self), *map(_widened, args), **{k: _widened(v) for k, v in options.items()})
        return tuple([_narrowed(r, kind) for r in result]) if type(result) is tuple else _narrowed(result, kind)

    return cast(Method, wide)


def _widened(value: Any) -> Any:
    return value.cast(value.dtype.compute) if isinstance(value, Base) else value


def _narrowed(value: Any, kind: DType) -> Any:
    is_wide = isinstance(value, Base) and value.dtype is float32
    return value.cast(kind) if is_wide else value
