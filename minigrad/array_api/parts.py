"""The parts of an array: one Tensor, or two for complex numbers; and how operands meet."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

from minigrad.array_api.types import ComplexType, Type, as_type, checked, complex_of, part_of, promoted, with_number
from minigrad.errors import DTypeError
from minigrad.tensor import Tensor


class Parts:
    """The real part and, of complex numbers, the imaginary part. What is done to places is done to both."""

    __slots__ = ("re", "im", "__weakref__")

    def __init__(self, re: Tensor, im: Tensor | None = None):
        self.re, self.im = re, im

    @property
    def dtype(self) -> Type:
        """The type of its elements."""
        return self.re.dtype if self.im is None else complex_of(self.re.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return cast("tuple[int, ...]", self.re.shape)

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.re.ndim

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The real part and the imaginary one, zeros for real numbers."""
        return self.re, self.re.zeros_like() if self.im is None else self.im

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """`function` of each part."""
        return type(self)(function(self.re), None if self.im is None else function(self.im))

    def cast(self, dtype: Type) -> Self:
        """The elements in another type; the real part where that is real."""
        if isinstance(dtype, ComplexType):
            re, im = self.pair
            return type(self)(re.cast(dtype.part), im.cast(dtype.part))
        return type(self)(self.re.cast(dtype))


def as_parts(name: str, x: Any, kinds: str = "biufc") -> Any:
    """`x`, which is to be an array of one of the kinds. Raises DTypeError."""
    if not isinstance(x, Parts):
        raise DTypeError(f"[{name}] expected an array of array_api, got {type(x).__name__}")
    checked(name, x.dtype, kinds)
    return x


def common_type(*given: Any) -> Type:
    """The type of an operation between arrays, types and Python's numbers. Raises DTypeError."""
    types = [x.dtype if isinstance(x, Parts) else as_type(x) for x in given if not _is_number(x)]
    if not types:
        raise DTypeError("[result_type] expected an array or a type besides numbers, got none")
    result = types[0]
    for other in types[1:]:
        result = promoted(result, other)
    for x in given:
        if _is_number(x):
            result = with_number(result, x)
    return result


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex)


def number(like: Any, value: complex, dtype: Type) -> Any:
    """A Python number as an array of shape () beside the array `like`."""
    part, device = part_of(dtype), like.re.device
    re = Tensor.full((), value.real if isinstance(value, complex) else value, dtype=part, device=device)
    return type(like)(re, Tensor.full((), value.imag, dtype=part, device=device) if dtype.kind == "c" else None)


def operands(name: str, kinds: str, *given: Any) -> tuple[Any, ...]:
    """Arrays and numbers, of which one at least is an array, as arrays of their common type. Raises DTypeError."""
    arrays = [x for x in given if not _is_number(x)]
    for x in arrays:
        as_parts(name, x)
    dtype = common_type(*given)
    checked(name, dtype, kinds)
    return tuple([number(arrays[0], x, dtype) if _is_number(x) else x if x.dtype is dtype else x.cast(dtype)
                  for x in given])


def real(name: str, x: Any, kinds: str = "f") -> Tensor:
    """The Tensor of an array of real numbers. Raises DTypeError."""
    return as_parts(name, x, kinds).re


def default(dtype: Any, otherwise: Type) -> Type:
    """`dtype`, or `otherwise` for None. Raises DTypeError."""
    return otherwise if dtype is None else as_type(dtype)
