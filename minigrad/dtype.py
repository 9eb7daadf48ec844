"""Element types and the promotion table.

Promotion (`promote(a, b)`): equal types stay; bool gives way to anything; an integer and a float give the float;
two floats give the wider one, float16 with bfloat16 gives float32; two integers of the same signedness give the wider
one; signed with unsigned gives the signed type that holds both (uint64 with any signed type gives float32, as there is
no wider integer). Python scalars are weak: bool, int and float keep the tensor's type when its kind can hold them, a
float with an integer tensor gives float32. An integer that int32, the usual type, does not hold gives int64.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minigrad.errors import DTypeError


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """One element type. `kind` is 'b' bool, 'i' signed, 'u' unsigned or 'f' float; `bits` is its width in memory.

    `np` is the numpy type of its storage: bfloat16 has none, its storage is uint16.
    """

    name: str
    kind: str
    bits: int
    np: np.dtype
    itemsize: int = field(init=False)
    is_float: bool = field(init=False)
    is_int: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", self.bits // 8)
        object.__setattr__(self, "is_float", self.kind == "f")
        object.__setattr__(self, "is_int", self.kind in "iu")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return to_dtype, (self.name,)  # copies and pickles are this object: types are compared by identity

    @property
    def short(self) -> str:
        """The name used in kernel and loop IR texts: b8, i32, u8, f16, bf16, f32..."""
        if self.name == "bfloat16":
            return "bf16"
        return f"{self.kind}{self.bits}"

    @property
    def min(self) -> int | float:
        """The least number; -inf of floats."""
        if self.kind == "f":
            return float("-inf")
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def max(self) -> int | float:
        """The greatest number; inf of floats, 1 of bool."""
        if self.kind == "f":
            return float("inf")
        return 1 if self.kind == "b" else (1 << (self.bits - (self.kind == "i"))) - 1

    @property
    def compute(self) -> DType:
        """The type in which kernels compute: float32 for the half types, else itself."""
        return float32 if self.kind == "f" and self.bits == 16 else self


bool_ = DType("bool", "b", 8, np.dtype(np.bool_))
int8 = DType("int8", "i", 8, np.dtype(np.int8))
int16 = DType("int16", "i", 16, np.dtype(np.int16))
int32 = DType("int32", "i", 32, np.dtype(np.int32))
int64 = DType("int64", "i", 64, np.dtype(np.int64))
uint8 = DType("uint8", "u", 8, np.dtype(np.uint8))
uint16 = DType("uint16", "u", 16, np.dtype(np.uint16))
uint32 = DType("uint32", "u", 32, np.dtype(np.uint32))
uint64 = DType("uint64", "u", 64, np.dtype(np.uint64))
float16 = DType("float16", "f", 16, np.dtype(np.float16))
bfloat16 = DType("bfloat16", "f", 16, np.dtype(np.uint16))
float32 = DType("float32", "f", 32, np.dtype(np.float32))
float64 = DType("float64", "f", 64, np.dtype(np.float64))

ALL = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64)
BY_NAME = {d.name: d for d in ALL} | {"half": float16, "float": float32, "double": float64,
                                    "int": int32, "long": int64, "short": int16}
BY_SHORT = {d.short: d for d in ALL}
_BY_NUMPY = {d.np: d for d in ALL if d is not bfloat16}
_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}


def __getattr__(name: str) -> DType:
    """`dtypes.float`, `dtypes.long` and `dtypes.bool`, which the language has other names for in here."""
    if name not in BY_NAME:
        raise AttributeError(f"module 'minigrad.dtype' has no attribute {name!r}")
    return BY_NAME[name]


def to_dtype(value: DType | str | np.dtype | type) -> DType:
    """The DType for a DType, its name, a numpy dtype or a Python scalar type. Raises DTypeError naming the choices."""
    if isinstance(value, DType):
        return value
    if value is bool:
        return bool_
    if value is int:
        return int32
    if value is float:
        return float32
    if value is None:  # which numpy reads as float64
        raise DTypeError(_unknown(value))
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    try:
        return _BY_NUMPY[np.dtype(value)]
    except (TypeError, ValueError, KeyError):
        raise DTypeError(_unknown(value)) from None


def _unknown(value: object) -> str:
    return f"[dtype] expected one of {', '.join(d.name for d in ALL)}, got {value!r}"


def _promote(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.kind == "b" or b.kind == "b":
        return b if a.kind == "b" else a
    if a.is_float or b.is_float:
        if not (a.is_float and b.is_float):
            return a if a.is_float else b
        if a.bits == b.bits:
            return float32
        return a if a.bits > b.bits else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    bits = max(signed.bits, unsigned.bits * 2)
    return _SIGNED[bits] if bits <= 64 else float32


PROMOTION: dict[tuple[DType, DType], DType] = {(a, b): _promote(a, b) for a in ALL for b in ALL}


def promote(a: DType, b: DType) -> DType:
    """The common type of two tensors' types, from the one table above."""
    return PROMOTION[a, b]


def number_type(value: float) -> DType:
    """The type of a Python number by itself: bool, float32, int32, or int64 or uint64 where only that holds it."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    return int32 if -1 << 31 <= value < 1 << 31 else uint64 if 1 << 63 <= value < 1 << 64 else int64


def bfloat16_to_float32(raw: np.ndarray) -> np.ndarray:
    """uint16 storage of bfloat16 -> float32 values, exact."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values -> uint16 storage of bfloat16, round to nearest even, NaN kept quiet."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, ((bits >> 16) | 0x40).astype(np.uint16), rounded)
