"""Element types of the standard, their limits and which of them go together.

Real types are those of Tensors; complex ones are two of them (`parts.py`). Types of different kinds meet in no
operation, but floats with complex numbers, and Python's numbers take the type of the array beside them.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minigrad.dtype import (
    DType,
    bool_,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    uint8,
    uint16,
    uint32,
    uint64,
)
from minigrad.errors import DTypeError


@dataclass(frozen=True, eq=False, slots=True)
class ComplexType:
    """A type of complex numbers whose parts have the type `part`."""

    name: str
    part: DType
    kind: str = field(default="c", init=False)

    def __repr__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Bits of an element: of both parts."""
        return 2 * self.part.bits


complex64, complex128 = ComplexType("complex64", float32), ComplexType("complex128", float64)
Type = DType | ComplexType

DEFAULTS: dict[str, Type] = {"real floating": float32, "complex floating": complex64, "integral": int64,
                             "indexing": int64}
ALL: tuple[Type, ...] = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, complex64,
                         complex128)
KINDS = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
         "complex floating": "c", "numeric": "iufc"}


def part_of(dtype: Type) -> DType:
    """The type of the real part."""
    return dtype.part if isinstance(dtype, ComplexType) else dtype


def complex_of(part: DType) -> ComplexType:
    """The complex type with such parts."""
    return complex128 if part is float64 else complex64


def as_type(dtype: Any) -> Type:
    """`dtype`, which is to be a type of the standard. Raises DTypeError."""
    if not isinstance(dtype, DType | ComplexType):
        raise DTypeError(f"[dtype] expected one of array_api's {', '.join(d.name for d in ALL)}, got {dtype!r}")
    return dtype


def promoted(a: Type, b: Type) -> Type:
    """The common type of two arrays' types. Raises DTypeError where the standard defines none."""
    kinds = {a.kind, b.kind}
    if "c" in kinds and kinds <= {"c", "f"}:
        return complex_of(promote(part_of(a), part_of(b)))
    wide = uint64 in (a, b) and "i" in kinds
    if wide or not (len(kinds) == 1 or kinds <= {"i", "u"}) or isinstance(a, ComplexType) or isinstance(b, ComplexType):
        raise DTypeError(f"[result_type] expected types of one kind, got {a} and {b}")
    return promote(a, b)


def with_number(dtype: Type, number: complex) -> Type:
    """The type of an operation between an array and a number of Python. Raises DTypeError."""
    allowed = "b" if isinstance(number, bool) else "iufc" if isinstance(number, int) else "fc"
    if dtype.kind not in allowed:
        raise DTypeError(f"[result_type] expected a number that {dtype} holds, got {number!r}")
    return complex_of(part_of(dtype)) if isinstance(number, complex) else dtype


def kind_has(dtype: Type, kind: Any) -> bool:
    """True where a type is of a kind, by the names of `isdtype`; is it; or is among several. Raises ValueError."""
    if isinstance(kind, tuple):
        return any([kind_has(dtype, k) for k in kind])
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"[isdtype] expected a kind of {', '.join(KINDS)}, got {kind!r}")
        return dtype.kind in KINDS[kind]
    return dtype is as_type(kind)


def checked(name: str, dtype: Type, kinds: str) -> None:
    """Raises DTypeError where a type is of none of the kinds, by their letters."""
    if dtype.kind not in kinds:
        words = {"b": "bool", "i": "signed", "u": "unsigned", "f": "real floating", "c": "complex"}
        raise DTypeError(f"[{name}] expected a type that is {' or '.join(words[k] for k in kinds)}, got {dtype}")
