"""Functions and classes of PyTorch's top level about types, shapes and devices."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    to_dtype,
    uint8,
)
from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import is_index, scalar_dtype
from minigrad.runtime.registry import canonical
from minigrad.tensor import Tensor

Size = tuple
promote_types = promote


class device(str):  # noqa: N801  (PyTorch's name)
    """A device's name, which tensors take and give as a plain str: `device("cpu")` is "CPU". Raises DeviceError."""

    def __new__(cls, type: str = "CPU", index: int | None = None) -> device:
        """The device of a type and a number, as torch.device is called. Raises for names that are none."""
        name = type if index is None else f"{type}:{index}"
        return super().__new__(cls, canonical("CPU" if str(name).lower() == "cpu:0" else name))

    @property
    def type(self) -> str:
        """'cpu', 'numpy' or 'cl'."""
        return self.partition(":")[0].lower()

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The number of an OpenCL device, None of others."""
        number = self.partition(":")[2]
        return int(number) if number.isdigit() else None


class TensorType:
    """Tensors of one type, by PyTorch's old names for them: `LongTensor([1, 2])` has these values, `FloatTensor(3, 4)`
    this shape and zeros. `isinstance(x, LongTensor)` is asked, and `x.type(LongTensor)` converts."""

    def __init__(self, dtype: DType):
        self.dtype = dtype

    def __call__(self, *given: Any) -> Tensor:
        """A Tensor of values, or of sizes, which are one integer or several. Raises ShapeError for anything else."""
        if given and all([is_index(n) for n in given]):
            return Tensor.zeros(*given, dtype=self.dtype)
        if len(given) > 1:
            raise ShapeError(f"[TensorType] expected values as one list, or sizes as integers, got {given!r}")
        return Tensor(given[0] if given else [], self.dtype)

    def __instancecheck__(self, x: object) -> bool:
        return isinstance(x, Tensor) and x.dtype is self.dtype


BoolTensor, ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor, HalfTensor, BFloat16Tensor, FloatTensor, \
    DoubleTensor = [TensorType(dtype) for dtype in (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32,
                                                    float64)]


class finfo:  # noqa: N801
    """The limits of a float type. Raises DTypeError for another type."""

    def __init__(self, type: DType | str = float32):
        kind = to_dtype(type)
        if not kind.is_float:
            raise DTypeError(f"[finfo] expected a float type, got {kind}; iinfo is for integers")
        of = np.finfo(np.float32 if kind is bfloat16 else kind.np)
        self.dtype, self.bits = kind.name, kind.bits
        self.eps, self.tiny, self.max = float(of.eps), float(of.tiny), float(of.max)
        if kind is bfloat16:  # 8 bits of mantissa over the exponents of float32
            self.eps, self.max = 2.0 ** -7, float(np.uint32(0x7F7F0000).view(np.float32))
        self.min, self.resolution, self.smallest_normal = -self.max, self.eps, self.tiny


class iinfo:  # noqa: N801
    """The limits of an integer type. Raises DTypeError for another type."""

    def __init__(self, type: DType | str = int32):
        kind = to_dtype(type)
        if not kind.is_int:
            raise DTypeError(f"[iinfo] expected an integer type, got {kind}; finfo is for floats")
        self.dtype, self.bits, self.min, self.max = kind.name, kind.bits, kind.min, kind.max


def result_type(first: Any, second: Any) -> DType:
    """The type of an operation between two Tensors, or a Tensor and a number."""
    tensor, other = (first, second) if isinstance(first, Tensor) else (second, first)
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"[result_type] expected a Tensor, got {tensor!r} and {other!r}")
    return promote(tensor.dtype, other.dtype) if isinstance(other, Tensor) else scalar_dtype(tensor.dtype, other)


def can_cast(from_: DType | str, to: DType | str) -> bool:
    """True where values of the first type stay of their kind in the second: bool goes to integers, these to floats."""
    source, target = ((d.is_float, d.is_int) for d in (to_dtype(from_), to_dtype(to)))
    return target >= source
