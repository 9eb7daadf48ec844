"""Casts of numpy arrays with our semantics: what `cast` means on the NUMPY device, and how results are rounded."""
from __future__ import annotations

import numpy as np

from minigrad.dtype import DType, bfloat16_to_float32, float32_to_bfloat16


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
