"""Facts that the namespace gives of itself: devices, types, limits, capabilities."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigrad.array_api.parts import Parts, common_type
from minigrad.array_api.types import ALL, DEFAULTS, Type, as_type, kind_has, part_of, promoted
from minigrad.config import current
from minigrad.errors import DTypeError
from minigrad.kinds import finfo as _finfo
from minigrad.kinds import iinfo as _iinfo
from minigrad.runtime.registry import canonical


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a float type, of a complex one those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Type


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: Type


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a float or complex type, or an array's."""
    part = part_of(as_type(type.dtype if isinstance(type, Parts) else type))
    of = _finfo(part)
    return FloatInfo(of.bits, of.eps, of.max, of.min, of.smallest_normal, part)


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer type, or an array's."""
    kind = part_of(as_type(type.dtype if isinstance(type, Parts) else type))
    of = _iinfo(kind)
    return IntegerInfo(of.bits, int(of.max), int(of.min), kind)


def isdtype(dtype: Any, kind: Any) -> bool:
    """True where a type is of a kind: "bool", "signed integer", "unsigned integer", "integral", "real floating",
    "complex floating" or "numeric"; is that type; or any of a tuple of these."""
    return kind_has(as_type(dtype), kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """True where promotion leads from the first type to the second."""
    try:
        return promoted(as_type(from_.dtype if isinstance(from_, Parts) else from_), as_type(to)) is to
    except DTypeError:
        as_type(to)
        return False


def result_type(*arrays_and_dtypes: Any) -> Type:
    """The type of an operation between arrays, types and Python's numbers."""
    return common_type(*arrays_and_dtypes)


class Info:
    """The result of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Capabilities that not every namespace has: here all of it, in up to any number of axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The configured device."""
        return canonical(current().device)

    def default_dtypes(self, *, device: Any = None) -> dict[str, Type]:
        """The types of results where none is given, by kind."""
        return dict(DEFAULTS)

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Type]:
        """All types by name, or those of a kind."""
        return {t.name: t for t in ALL if kind is None or kind_has(t, kind)}

    def devices(self) -> list[str]:
        """The devices that arrays can always be on, and the configured one."""
        return list(dict.fromkeys(["CPU", "NUMPY", self.default_device()]))


def __array_namespace_info__() -> Info:  # noqa: N807  (the standard's name)
    """The namespace's devices, types and capabilities."""
    return Info()
