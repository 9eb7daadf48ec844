"""Scalar operations in numpy: the meaning that the interpreters share (see `value/core.py`).

Values of half types are carried as float32 arrays that hold representable numbers and are rounded after each operation;
all others are carried in their own numpy type. Transcendental float32 operations are computed in float64 and rounded
once, so that results are right to half an ulp.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.value_walk import map_leaves
from minigrad.dtype import DType, bfloat16, bfloat16_to_float32, bool_, float16, float32, float32_to_bfloat16
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index
from minigrad.value import BINARY, COMPARISONS, Value

Array = np.ndarray

_erf = np.frompyfunc(math.erf, 1, 1)


def decode(stored: Array, dtype: DType) -> Array:
    """Elements as a buffer stores them -> carried values."""
    if dtype is bfloat16:
        return bfloat16_to_float32(np.asarray(stored, np.uint16))
    return np.asarray(stored).astype(np.float32) if dtype is float16 else np.asarray(stored)


def encode(values: Array, dtype: DType) -> Array:
    """Carried values -> elements as a buffer stores them."""
    if dtype is bfloat16:
        return float32_to_bfloat16(np.asarray(values, np.float32))
    return np.asarray(values).astype(dtype.np)


def rounded(values: Array, dtype: DType) -> Array:
    """Float values rounded to what `dtype` can hold, in its carrier."""
    if dtype is float16:
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)
    if dtype is bfloat16:
        return bfloat16_to_float32(float32_to_bfloat16(np.asarray(values, np.float32)))
    return np.asarray(values).astype(dtype.compute.np, copy=False)


def constant(value: int | float | bool, dtype: DType) -> Array:
    """A const Value, carried."""
    return rounded(np.asarray(value, np.float64), dtype) if dtype.is_float else np.asarray(value, dtype.np)


def _truncated_quotient(x: Array, y: Array) -> Array:
    return np.floor_divide(x - np.fmod(x, y), y)


def _integer_power(x: Array, y: Array) -> Array:
    """Wrapping power; a negative exponent gives the truncated quotient 1 / x**-y."""
    if x.dtype.kind == "u":
        return np.power(x, y)
    negative = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
    return np.where(y >= 0, np.power(x, np.maximum(y, 0)), negative).astype(x.dtype)


_FLOAT_UNARY: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": lambda x: np.asarray(_erf(x), np.float64),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
}
_INT_UNARY: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "not": np.invert,
    "floor": np.array, "ceil": np.array, "trunc": np.array, "round": np.array,
}
_BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "max": np.maximum,
    "min": np.minimum, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "idiv": _truncated_quotient, "irem": np.fmod, "rem": np.fmod,
}
_IN_FLOAT64 = frozenset("exp log sin cos tanh sigmoid erf pow".split())


def apply(op: str, dtype: DType, x: Array, *others: Array) -> Array:
    """The result of a unary, binary or fma operation on operands of `dtype`; of bool for comparisons.

    Raises InternalError for an operation that `dtype` does not have. Call under `np.errstate(all="ignore")`.
    """
    if op == "fma":
        wide = np.asarray(x).astype(np.float64) if dtype.is_float else np.asarray(x)
        return rounded(wide * others[0] + others[1], dtype) if dtype.is_float else wide * others[0] + others[1]
    table = _BINARY if others else _FLOAT_UNARY if dtype.is_float else _INT_UNARY
    function = _integer_power if op == "pow" and not dtype.is_float else table.get(op)
    if function is None or (dtype.is_float and op in ("and", "or", "xor", "shl", "shr", "idiv", "irem")):
        raise InternalError(f"[interpret] expected an operation of {dtype.name}, got {op}")
    if dtype.is_float and op in _IN_FLOAT64:
        return rounded(function(np.asarray(x).astype(np.float64), *others), dtype)
    result = function(x, *others)
    if op in COMPARISONS or not dtype.is_float:
        return result
    return rounded(result, dtype) if dtype.bits == 16 else result


def hazard(op: str, dtype: DType, x: Array, y: Array) -> Array | None:
    """A mask of elements at which an integer division or shift must not be reached with these operands; None if there
    are none."""
    if op in ("idiv", "irem"):
        bad = y == 0
        if dtype.kind == "i":
            bad = bad | ((x == dtype.min) & (y == -1))
    elif op in ("shl", "shr"):
        bad = (y < 0) | (y >= dtype.bits)
    else:
        return None
    return bad if some(bad) else None


def cast(x: Array, source: DType, target: DType) -> Array:
    """Conversion between types: truncating, saturating, NaN to 0 for float to int; wrapping for int to int."""
    x = np.asarray(x)
    if target is bool_:
        return x != 0
    if target.is_float:
        return rounded(x.astype(np.float32) if target.bits == 16 else x, target)
    if not source.is_float:
        return x.astype(target.np)
    wide = np.trunc(x.astype(np.float64))
    low, high = float(target.min), float(int(target.max) + 1)
    inside = (wide >= low) & (wide < high)
    result = np.where(inside, wide, 0.0).astype(target.np)
    result = np.where(wide >= high, target.np.type(target.max), result)
    return np.where(wide < low, target.np.type(target.min), result)


def bitcast(x: Array, source: DType, target: DType) -> Array:
    """The same bits read as another type of the same width."""
    if source.bits != target.bits:
        raise InternalError(f"[interpret] bitcast expected equal widths, got {source.name} to {target.name}")
    return decode(np.ascontiguousarray(encode(x, source)).reshape(np.shape(x)).view(target.np), target)


def combine(monoid: str) -> np.ufunc:
    """The numpy operation that combines two values of a monoid."""
    ufunc: Any = _BINARY[MONOIDS[monoid].combine]
    return ufunc


def fold(monoid: str, dtype: DType, x: Array, axes: tuple[int, ...]) -> Array:
    """Reduces carried values over `axes`; float32 sums and products are accumulated in float64 and rounded once."""
    ufunc = combine(monoid)
    if dtype.compute is float32 and monoid in ("sum", "prod"):
        return rounded(ufunc.reduce(x, axis=axes, dtype=np.float64), dtype)
    if monoid in ("max", "min"):
        start = (dtype.min if monoid == "max" else dtype.max)
        return ufunc.reduce(x, axis=axes, initial=np.asarray(start, x.dtype)[()])
    return ufunc.reduce(x, axis=axes, dtype=x.dtype)


def some(mask: Array | bool) -> bool:
    """True where a mask holds anywhere: `np.any` without its detours, which cost more than what it does."""
    return mask if isinstance(mask, bool) else bool(mask.any())


# ---- values with faults: where an element could not be computed, and why ----

Fault = tuple[Array, str] | None
Result = tuple[Array, Fault]


def merge(*faults: Fault) -> Fault:
    """Faulty where any operand is; the first reason is kept."""
    found: Fault = None
    for f in faults:
        if f is not None:
            found = f if found is None else (found[0] | f[0], found[1])
    return found


def masked(fault: Fault, mask: Array | bool) -> Fault:
    """The part of a fault where `mask` holds."""
    if fault is None:
        return None
    left = fault[0] & mask
    return (left, fault[1]) if some(left) else None


def operate(v: Value, args: list[Result]) -> Result:
    """The result of an operation on its operands alone: not of load, index, local, guard and reductions."""
    op = v.op
    if op == "const":
        return constant(v.number, v.dtype), None
    values, fault = [value for value, _ in args], merge(*[f for _, f in args])
    if op == "where":
        return np.where(*values), fault
    if op == "cast":
        return cast(values[0], v.args[0].dtype, v.dtype), fault
    if op == "bitcast":
        return bitcast(values[0], v.args[0].dtype, v.dtype), fault
    dtype = v.args[0].dtype
    if op in BINARY:
        bad = hazard(op, dtype, values[0], values[1]) if not dtype.is_float else None
        if bad is not None:
            fault = merge(fault, (bad, f"{op} of {dtype.name} reached a divisor or shift that has no result"))
    return apply(op, dtype, *values), fault


def guarded(inside: Result, otherwise: Result, mask: Array | bool) -> Result:
    """`inside` where the mask holds, else `otherwise`; faults of the operand not taken vanish."""
    fault = merge(masked(inside[1], mask), masked(otherwise[1], np.logical_not(mask)))
    return np.where(mask, inside[0], otherwise[0]), fault


def index_value(e: Index, leaf: Callable[[Atom], Any]) -> Any:
    """An index expression over numbers or int64 arrays; `leaf` gives the value of variables and embedded values."""
    return map_leaves(e, leaf, np.minimum, np.maximum, lambda x: x)
