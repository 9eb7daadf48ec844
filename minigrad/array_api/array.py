"""The array object: operators and properties of the standard, over `Parts`."""
from __future__ import annotations

import importlib
from typing import Any, Self

import numpy as np

from minigrad.array_api import elementwise as E
from minigrad.array_api.linear import matmul
from minigrad.array_api.parts import Parts, common_type
from minigrad.errors import DTypeError, ShapeError
from minigrad.tensor import Tensor

VERSION = "2024.12"


class Array(Parts):
    """An array of the standard: a Tensor `re`, and for complex numbers a second one, `im`. Gradients go on."""

    __slots__ = ()
    __array_priority__ = 2000  # `numpy_array + array` is asked of the array

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def device(self) -> str:
        """The name of its device, such as "CPU" or "CL:0"."""
        return self.re.device

    @property
    def T(self) -> Self:  # noqa: N802  (the standard's name)
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"[T] expected two axes, got shape {list(self.shape)}")
        return self.map(lambda t: t.permute(1, 0))

    @property
    def mT(self) -> Self:  # noqa: N802  (the standard's name)
        """The transposes of matrices in the last two axes."""
        if self.ndim < 2:
            raise ShapeError(f"[mT] expected two axes or more, got shape {list(self.shape)}")
        return self.map(lambda t: t.transpose(-1, -2))

    def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """The same elements on another device."""
        if stream is not None:
            raise ValueError(f"[to_device] expected no stream, got {stream!r}")
        return self.map(lambda t: t.to(device))

    def numpy(self) -> np.ndarray:
        """The elements as a numpy array of its own."""
        if self.im is None:
            return self.re.numpy()
        joined = np.empty(self.shape, self.dtype.name)
        joined.real, joined.imag = self.re.numpy(), self.im.numpy()  # a sum would make NaN of an infinite part
        return joined

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.im is None:
            return self.re.__array__(dtype, copy)
        if copy is False:
            raise ValueError("[array] expected leave to copy complex numbers, which are kept in two parts")
        return self.numpy().astype(dtype or self.dtype.name, copy=False)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """This package. Raises ValueError for a version of the standard that it is not of."""
        if api_version not in (None, "2021.12", "2022.12", "2023.12", VERSION):
            raise ValueError(f"[array_api] expected version {VERSION} of the standard or an earlier one, got "
                             f"{api_version!r}")
        return importlib.import_module("minigrad.array_api")

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """As of a Tensor; complex numbers are kept in two parts, so that of them only copies are given."""
        if self.im is None:
            return self.re.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if copy is False or stream is not None or dl_device not in (None, (1, 0)):
            raise BufferError("[dlpack] expected leave to copy complex numbers, in two parts, to the host")
        return self.numpy().__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.re.__dlpack_device__()

    def __repr__(self) -> str:
        return f"Array({np.array2string(self.numpy(), separator=', ')}, dtype={self.dtype}, device={self.device!r})"

    # Numbers

    def _one(self, kinds: str, what: str) -> Any:
        if self.shape != () or self.dtype.kind not in kinds:
            raise TypeError(f"[{what}] expected an array of shape [] that it can be made of, got {self.dtype}"
                            f"{list(self.shape)}")
        value = self.re.item()
        return value if self.im is None else complex(value, self.im.item())

    def __bool__(self) -> bool:
        return bool(self._one("biufc", "bool"))

    def __int__(self) -> int:
        return int(self._one("biuf", "int"))

    def __index__(self) -> int:
        return int(self._one("iu", "index"))

    def __float__(self) -> float:
        return float(self._one("biuf", "float"))

    def __complex__(self) -> complex:
        return complex(self._one("biufc", "complex"))

    # Parts of it

    def __getitem__(self, key: Any, /) -> Self:
        places = _places(key, self.ndim)
        return self.map(lambda t: t[places])

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Other arrays of the same elements do not change."""
        places = _places(key, self.ndim)
        given = value if isinstance(value, Parts) else None
        if common_type(self, value) is not self.dtype:
            raise DTypeError(f"[setitem] expected elements that {self.dtype} holds, got {value!r}")
        re, im = Tensor(self.re), None if self.im is None else Tensor(self.im)
        re[places] = value.real if isinstance(value, complex) else value if given is None else given.re.cast(re.dtype)
        if im is not None:
            im[places] = value.imag if given is None else given.pair[1].cast(im.dtype)
        self.re, self.im = re, im

    # Operators

    def _operate(self, name: str, other: Any, swap: bool = False) -> Any:
        if not isinstance(other, Parts | bool | int | float | complex):
            return NotImplemented
        function = matmul if name == "matmul" else getattr(E, name)
        if name == "matmul" and not isinstance(other, Parts):
            return NotImplemented
        return function(other, self) if swap else function(self, other)

    def _update(self, name: str, other: Any) -> Self:
        result = self._operate(name, other)
        if result is NotImplemented:
            return result
        if result.dtype is not self.dtype or result.shape != self.shape:
            raise DTypeError(f"[{name}] expected a result of {self.dtype}{list(self.shape)} in place, got "
                             f"{result.dtype}{list(result.shape)}")
        self.re, self.im = result.re, result.im
        return self

    def __abs__(self) -> Self:
        return E.abs(self)

    def __neg__(self) -> Self:
        return E.negative(self)

    def __pos__(self) -> Self:
        return E.positive(self)

    def __invert__(self) -> Self:
        return E.bitwise_invert(self)

    def __add__(self, other: Any, /) -> Any:
        return self._operate("add", other)

    def __radd__(self, other: Any, /) -> Any:
        return self._operate("add", other, swap=True)

    def __iadd__(self, other: Any, /) -> Self:
        return self._update("add", other)

    def __sub__(self, other: Any, /) -> Any:
        return self._operate("subtract", other)

    def __rsub__(self, other: Any, /) -> Any:
        return self._operate("subtract", other, swap=True)

    def __isub__(self, other: Any, /) -> Self:
        return self._update("subtract", other)

    def __mul__(self, other: Any, /) -> Any:
        return self._operate("multiply", other)

    def __rmul__(self, other: Any, /) -> Any:
        return self._operate("multiply", other, swap=True)

    def __imul__(self, other: Any, /) -> Self:
        return self._update("multiply", other)

    def __truediv__(self, other: Any, /) -> Any:
        return self._operate("divide", other)

    def __rtruediv__(self, other: Any, /) -> Any:
        return self._operate("divide", other, swap=True)

    def __itruediv__(self, other: Any, /) -> Self:
        return self._update("divide", other)

    def __floordiv__(self, other: Any, /) -> Any:
        return self._operate("floor_divide", other)

    def __rfloordiv__(self, other: Any, /) -> Any:
        return self._operate("floor_divide", other, swap=True)

    def __ifloordiv__(self, other: Any, /) -> Self:
        return self._update("floor_divide", other)

    def __mod__(self, other: Any, /) -> Any:
        return self._operate("remainder", other)

    def __rmod__(self, other: Any, /) -> Any:
        return self._operate("remainder", other, swap=True)

    def __imod__(self, other: Any, /) -> Self:
        return self._update("remainder", other)

    def __pow__(self, other: Any, /) -> Any:
        return self._operate("pow", other)

    def __rpow__(self, other: Any, /) -> Any:
        return self._operate("pow", other, swap=True)

    def __ipow__(self, other: Any, /) -> Self:
        return self._update("pow", other)

    def __matmul__(self, other: Any, /) -> Any:
        return self._operate("matmul", other)

    def __rmatmul__(self, other: Any, /) -> Any:
        return self._operate("matmul", other, swap=True)

    def __imatmul__(self, other: Any, /) -> Self:
        return self._update("matmul", other)

    def __and__(self, other: Any, /) -> Any:
        return self._operate("bitwise_and", other)

    def __rand__(self, other: Any, /) -> Any:
        return self._operate("bitwise_and", other, swap=True)

    def __iand__(self, other: Any, /) -> Self:
        return self._update("bitwise_and", other)

    def __or__(self, other: Any, /) -> Any:
        return self._operate("bitwise_or", other)

    def __ror__(self, other: Any, /) -> Any:
        return self._operate("bitwise_or", other, swap=True)

    def __ior__(self, other: Any, /) -> Self:
        return self._update("bitwise_or", other)

    def __xor__(self, other: Any, /) -> Any:
        return self._operate("bitwise_xor", other)

    def __rxor__(self, other: Any, /) -> Any:
        return self._operate("bitwise_xor", other, swap=True)

    def __ixor__(self, other: Any, /) -> Self:
        return self._update("bitwise_xor", other)

    def __lshift__(self, other: Any, /) -> Any:
        return self._operate("bitwise_left_shift", other)

    def __rlshift__(self, other: Any, /) -> Any:
        return self._operate("bitwise_left_shift", other, swap=True)

    def __ilshift__(self, other: Any, /) -> Self:
        return self._update("bitwise_left_shift", other)

    def __rshift__(self, other: Any, /) -> Any:
        return self._operate("bitwise_right_shift", other)

    def __rrshift__(self, other: Any, /) -> Any:
        return self._operate("bitwise_right_shift", other, swap=True)

    def __irshift__(self, other: Any, /) -> Self:
        return self._update("bitwise_right_shift", other)

    def __eq__(self, other: Any, /) -> Any:
        return self._operate("equal", other)

    def __ne__(self, other: Any, /) -> Any:
        return self._operate("not_equal", other)

    def __lt__(self, other: Any, /) -> Any:
        return self._operate("less", other)

    def __le__(self, other: Any, /) -> Any:
        return self._operate("less_equal", other)

    def __gt__(self, other: Any, /) -> Any:
        return self._operate("greater", other)

    def __ge__(self, other: Any, /) -> Any:
        return self._operate("greater_equal", other)


def _places(key: Any, ndim: int) -> Any:
    """A key of Tensors. Raises IndexError where it leaves axes out without an ellipsis."""
    parts = key if isinstance(key, tuple) else (key,)
    for p in parts:
        if isinstance(p, Parts) and p.dtype.kind not in "biu":
            raise IndexError(f"[index] expected integers, slices, ..., None, arrays of integers or bool, got {p.dtype}")
    used = sum([p.ndim if isinstance(p, Parts) and p.dtype.kind == "b" else 1 for p in parts
                if p is not None and p is not Ellipsis])
    if used > ndim or (used < ndim and Ellipsis not in [p for p in parts if not isinstance(p, Parts)]
                       and not any([isinstance(p, Parts) for p in parts])):
        raise IndexError(f"[index] expected a key for each of {ndim} axes, or an ellipsis, got {key!r}")
    return tuple([p.re if isinstance(p, Parts) else p for p in parts])
