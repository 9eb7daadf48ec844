"""The values that go along the edges of an ONNX graph: Tensors, arrays that are known before anything runs, Tensors of
types that minigrad computes in wider ones, lists of these (sequences) and None (an absent optional)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from minigrad import Tensor, dtypes
from minigrad.dtype import DType
from minigrad.onnx.refusal import refuse

DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: dtypes.float32, TensorProto.DOUBLE: dtypes.float64, TensorProto.FLOAT16: dtypes.float16,
    TensorProto.BFLOAT16: dtypes.bfloat16, TensorProto.BOOL: dtypes.bool_, TensorProto.INT8: dtypes.int8,
    TensorProto.INT16: dtypes.int16, TensorProto.INT32: dtypes.int32, TensorProto.INT64: dtypes.int64,
    TensorProto.UINT8: dtypes.uint8, TensorProto.UINT16: dtypes.uint16, TensorProto.UINT32: dtypes.uint32,
    TensorProto.UINT64: dtypes.uint64,
}
NAMES: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
ELEMENTS = {dtype: element for element, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Grid:
    """The numbers of a floating-point type of few bits: `digits` after the leading one, exponents from `lowest`."""

    digits: int
    lowest: int
    largest: float
    infinite: bool = False
    signed_zero: bool = True


FLOATS: dict[int, Grid] = {
    TensorProto.FLOAT8E4M3FN: Grid(3, -6, 448.0), TensorProto.FLOAT8E4M3FNUZ: Grid(3, -7, 240.0, signed_zero=False),
    TensorProto.FLOAT8E5M2: Grid(2, -14, 57344.0, infinite=True),
    TensorProto.FLOAT8E5M2FNUZ: Grid(2, -15, 57344.0, signed_zero=False), TensorProto.FLOAT4E2M1: Grid(1, 0, 6.0),
    TensorProto.FLOAT8E8M0: Grid(0, -127, 2.0**127),
}
INTEGERS: dict[int, tuple[int, int]] = {TensorProto.UINT4: (0, 15), TensorProto.INT4: (-8, 7),
                                        TensorProto.UINT2: (0, 3), TensorProto.INT2: (-2, 1)}
_ARRAYS = {np.dtype(getattr(ml_dtypes, name)): getattr(TensorProto, element) for name, element in {
    "float8_e4m3fn": "FLOAT8E4M3FN", "float8_e4m3fnuz": "FLOAT8E4M3FNUZ", "float8_e5m2": "FLOAT8E5M2",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ", "float4_e2m1fn": "FLOAT4E2M1", "float8_e8m0fnu": "FLOAT8E8M0",
    "uint4": "UINT4", "int4": "INT4", "uint2": "UINT2", "int2": "INT2"}.items() if hasattr(TensorProto, element)}


@dataclass(frozen=True)
class Narrow:
    """Numbers of a type of few bits that has no kernels, such as int4 or float8e4m3fn: `tensor` has them in a wider
    type that holds each exactly, `element` is the `TensorProto.DataType`. A model gives and takes these."""

    tensor: Tensor
    element: int

    @property
    def shape(self) -> tuple:
        """The sizes of the axes."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """The name of the type."""
        return name_of(self.element)

    def numpy(self) -> np.ndarray:
        """The numbers as an array of the type of `ml_dtypes`."""
        found: np.ndarray = self.tensor.numpy().astype(helper.tensor_dtype_to_np_dtype(self.element))
        return found


Value = Tensor | np.ndarray | Narrow | list | None


def element_of(value: Any) -> int:
    """Returns the `TensorProto.DataType` of a Tensor, a Narrow or an array."""
    if isinstance(value, Narrow):
        return value.element
    if isinstance(value, Tensor):
        return ELEMENTS[value.dtype]
    if value.dtype in _ARRAYS:
        return _ARRAYS[value.dtype]
    return TensorProto.STRING if value.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(value.dtype)


def name_of(element: int) -> str:
    """The name of a `TensorProto.DataType`."""
    return NAMES.get(element, f"type {element}")


def from_array(array: np.ndarray, device: str | None) -> Tensor | Narrow:
    """A Tensor of an array's numbers; an array of one number is a constant of the kernels that read it."""
    if array.dtype in _ARRAYS:
        element = _ARRAYS[array.dtype]
        wide = np.int8 if element in INTEGERS else np.float32
        return Narrow(Tensor(array.astype(wide), device=device), element)
    if array.dtype == ml_dtypes.bfloat16:
        return Tensor(array.view(np.uint16), device=device).bitcast(dtypes.bfloat16)
    if array.dtype.kind not in "biuf":
        raise refuse(f"values of type {array.dtype}", "numbers and booleans")
    if array.size == 1:
        return Tensor.full(array.shape, array.item(), dtype=array.dtype.name, device=device)
    return Tensor(np.ascontiguousarray(array), device=device)


def in_memory(array: np.ndarray, device: str | None) -> Tensor | Narrow:
    """A Tensor of an array's numbers that a replay can be given: one number lies in memory, too."""
    if array.size == 1 and array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return Tensor(array, device=device)
    return from_array(array, device)


def to_array(value: Any) -> Any:
    """The array of a value's numbers, in the type that the onnx package gives it; a list of them for a sequence."""
    if isinstance(value, Narrow):
        return value.numpy()
    if isinstance(value, Tensor):
        if value.dtype is dtypes.bfloat16:
            return value.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    return [to_array(v) for v in value] if isinstance(value, list) else value


def cast(value: Tensor | Narrow, element: int, saturate: bool = True, up: str = "nearest") -> Tensor | Narrow:
    """`value` in the type `element`, as operator Cast has it. `saturate`: numbers that are too large for a float of 8
    bits become the largest, else infinity or NaN; `up` is the direction of rounding for powers of two."""
    x = value.tensor if isinstance(value, Narrow) else value
    if element in DTYPES:
        dtype = DTYPES[element]
        if dtype is dtypes.bool_:
            return x != 0
        if x.dtype.is_float and not dtype.is_float and element in (TensorProto.UINT8, TensorProto.UINT16):
            x = x.cast(dtypes.int64)  # -1.0 wraps around, as it does in numpy
        return x.cast(dtype)
    if element in INTEGERS:
        low, high = INTEGERS[element]
        bits = high - low + 1
        return Narrow(((x.cast(dtypes.int32) - low).remainder(bits) + low).cast(dtypes.int8), element)
    if element == TensorProto.FLOAT8E8M0:
        return Narrow(_power(x.cast(dtypes.float32), up, saturate), element)
    if element in FLOATS:
        return Narrow(_to_grid(x.cast(dtypes.float32), FLOATS[element], saturate), element)
    raise refuse(f"a cast to {name_of(element)}", "numbers and booleans")


def _to_grid(x: Tensor, grid: Grid, saturate: bool) -> Tensor:
    """Rounds to the nearest numbers of a grid, halves to even."""
    exponent = x.abs().frexp()[1] - 1
    step = x.ones_like().ldexp(exponent.clip(grid.lowest, 127) - grid.digits)
    y = (x / step).round() * step
    over = float("inf") if grid.infinite else float("nan")
    limit = grid.largest if saturate or grid.largest == 6.0 else over
    y = (y.abs() > grid.largest).where(x.sign() * limit, y)
    y = x.isinf().where(x.sign() * limit, y)
    return (x != x).where(float("nan"), y if grid.signed_zero else (y == 0).where(0.0, y))


def _power(x: Tensor, up: str, saturate: bool) -> Tensor:
    """Rounds to powers of two (float8e8m0), whose sign is dropped."""
    fraction, exponent = x.abs().frexp()  # x = fraction * 2**exponent, 0.5 <= fraction < 1
    exponent = exponent - 1
    above = {"up": fraction > 0.5, "nearest": fraction >= 0.75, "down": fraction > 1}[up]
    exponent = (exponent + above.cast(exponent.dtype)).clip(-127, 127 if saturate else 128)
    y = x.ones_like().ldexp(exponent.clip(-127, 127))
    y = (x == 0).where(2.0**-127, y)
    too_large = x.isinf() if saturate else (exponent > 127) | x.isinf()
    return (x != x).where(float("nan"), too_large.where(2.0**127 if saturate else float("nan"), y))
