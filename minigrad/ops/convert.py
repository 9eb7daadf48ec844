"""Casts of numpy arrays and numbers with our semantics: the meaning of `cast` on the NUMPY device, the rounding of
results, and the number that a constant of a dtype holds."""
from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from minigrad.dtype import DType, bfloat16, bfloat16_to_float32, bool_, float32_to_bfloat16, float64
from minigrad.errors import DTypeError


def convert(x: np.ndarray, to: DType) -> np.ndarray:
    """numpy's astype with our semantics: floats to integers saturate, NaN to 0; bfloat16 comes out as float32."""
    if to.name == "bfloat16":
        return bfloat16_to_float32(float32_to_bfloat16(x.astype(np.float32)))
    if x.dtype.kind != "f" or not to.is_int:
        return x.astype(to.np)
    wide = np.trunc(x.astype(np.float64))
    inside = (wide >= float(to.min)) & (wide < float(to.max) + (1 if to.bits < 64 else 0))
    whole = np.where(inside, wide, 0).astype(to.np)
    return np.where(inside | np.isnan(wide), whole, np.where(wide > 0, to.np.type(to.max), to.np.type(to.min)))


def rounded(value: Any, dtype: DType) -> Any:
    """`value` as the Python number that an element of `dtype` holds."""
    if dtype.is_float and (value == 0 or value == 1 or dtype is float64):  # -0.0 and 0.0 would be one entry below
        return _as_float(value)
    return _rounded(value, dtype)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def held(name: str, value: Any, dtype: DType) -> Any:
    """`value`, a number that an element of `dtype` can hold, if rounded. As in PyTorch, a negative integer counts from
    the end of an unsigned type. Raises DTypeError for one that would wrap, or become infinite."""
    least, most = dtype.min, dtype.max
    if dtype is bool_ or (value != value and dtype.is_float):
        return value
    if dtype.is_float:
        fits = not math.isinf(rounded(value, dtype)) or value in (least, most)
    else:
        fits = (-most if dtype.kind == "u" and isinstance(value, int) else least) <= value <= most
    if not fits:
        expected = f"a number that {dtype} can hold" if dtype.is_float else f"a number in {dtype}'s {least}..{most}"
        raise DTypeError(f"[{name}] expected {expected}, got {value}")
    return value


@lru_cache(maxsize=4096, typed=True)
def _rounded(value: Any, dtype: DType) -> Any:
    if dtype.is_float:
        value = _as_float(value)
        if value != value:
            return math.nan
        with np.errstate(over="ignore"):
            return float(convert(np.asarray(value), dtype)) if dtype is bfloat16 else float(dtype.np.type(value))
    if dtype is bool_:
        return bool(value)
    if isinstance(value, float):  # as a cast does: NaN gives 0, the rest saturates
        value = 0 if value != value else dtype.min if value <= dtype.min else dtype.max if value >= dtype.max else value
    value = int(value) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value
