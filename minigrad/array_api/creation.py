"""Arrays of numbers, of other arrays, and of other libraries' memory."""
from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from minigrad.array_api.array import Array
from minigrad.array_api.parts import Parts, as_parts, default
from minigrad.array_api.types import DEFAULTS, ComplexType, Type, complex64, complex128, part_of
from minigrad.dtype import bool_, to_dtype
from minigrad.errors import DTypeError, ShapeError
from minigrad.functions import from_dlpack as tensor_of
from minigrad.runtime.registry import canonical
from minigrad.tensor import Tensor

FLOAT, INTEGER = DEFAULTS["real floating"], DEFAULTS["integral"]
_COMPLEX: dict[str, Type] = {"complex64": complex64, "complex128": complex128}


def _name(device: Any) -> str | None:
    return None if device is None else canonical(device)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """An array of a number, nested lists of numbers, an array or what is one of another library. An array without
    `copy`, of this type and on this device, is itself; memory of others is copied unless `copy` is False."""
    if isinstance(obj, Parts):
        kind = default(dtype, obj.dtype)
        stays = kind is obj.dtype and _name(device) in (None, obj.re.device)
        if copy is False and not stays:
            raise ValueError(f"[asarray] expected leave to copy, or {obj.dtype} on {obj.re.device}, got copy=False")
        return obj if stays and not copy else _placed(obj.cast(kind), device).map(Tensor)
    if isinstance(obj, Tensor):
        return asarray(Array(obj), dtype=dtype, device=device, copy=copy)
    if copy is False:
        if not hasattr(obj, "__dlpack__"):
            raise ValueError(f"[asarray] expected an array for copy=False, got {type(obj).__name__}")
        return asarray(from_dlpack(obj, device=device, copy=False), dtype=dtype, copy=False)
    return _of_numpy(*_numbers(obj, dtype), device)


def _numbers(obj: Any, dtype: Any) -> tuple[np.ndarray, Type]:
    """(an array of numpy, its type): of Python's numbers the default type of their kind."""
    array = np.asarray(obj)
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"[asarray] expected numbers or nested lists of them, got {type(obj).__name__}")
    if hasattr(obj, "dtype") or isinstance(obj, memoryview):
        found = _COMPLEX.get(array.dtype.name) or to_dtype(array.dtype)
    else:
        found = {"b": bool_, "f": FLOAT, "c": DEFAULTS["complex floating"]}.get(array.dtype.kind, INTEGER)
        if not array.size and dtype is None:
            found = FLOAT
        if array.dtype.kind == "u" and dtype is None:
            raise OverflowError(f"[asarray] expected integers of {INTEGER}, got {array.max()}")
    return array, default(dtype, found)


def _of_numpy(array: np.ndarray, dtype: Type, device: Any) -> Any:
    part = part_of(dtype)
    if not isinstance(dtype, ComplexType):
        return Array(Tensor(array.astype(part.np), device=_name(device)))
    parts = [Tensor(np.asarray(p).astype(part.np), device=_name(device)) for p in (array.real, array.imag)]
    return Array(*parts)


def _placed(x: Any, device: Any) -> Any:
    return x if device is None else x.to_device(device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array over another library's memory, as `minigrad.from_dlpack`; complex numbers are copied."""
    if isinstance(x, Parts):
        return asarray(x, device=device, copy=copy)
    try:
        return Array(tensor_of(x, device=_name(device), copy=copy))
    except DTypeError:
        if copy is False or not hasattr(x, "__dlpack__"):
            raise
    return asarray(np.from_dlpack(x), device=device)


def _sizes(shape: Any) -> tuple[int, ...]:
    sizes = tuple(map(index, shape)) if isinstance(shape, tuple | list) else (index(shape),)
    if any([d < 0 for d in sizes]):
        raise ShapeError(f"[shape] expected sizes of 0 or more, got {shape}")
    return sizes


def full(shape: int | tuple[int, ...], fill_value: complex, *, dtype: Any = None, device: Any = None) -> Any:
    """One number everywhere."""
    kind = default(dtype, _numbers(fill_value, None)[1])
    value = complex(fill_value)
    if not isinstance(kind, ComplexType):
        return Array(Tensor.full(_sizes(shape), fill_value, dtype=kind, device=_name(device)))
    parts = value.real, value.imag
    return Array(*[Tensor.full(_sizes(shape), v, dtype=kind.part, device=_name(device)) for v in parts])


def zeros(shape: int | tuple[int, ...], *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros."""
    return full(shape, 0, dtype=default(dtype, FLOAT), device=device)


def ones(shape: int | tuple[int, ...], *, dtype: Any = None, device: Any = None) -> Any:
    """Ones."""
    return full(shape, 1, dtype=default(dtype, FLOAT), device=device)


def empty(shape: int | tuple[int, ...], *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros: there is no memory to leave as it is before a value is computed."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: complex, *, dtype: Any = None, device: Any = None) -> Any:
    """One number everywhere, in the shape, type and place of x."""
    kind = default(dtype, as_parts("full_like", x).dtype)
    return full(x.shape, fill_value, dtype=kind, device=x.device if device is None else device)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros in the shape, type and place of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones in the shape, type and place of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """`empty` in the shape, type and place of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def arange(start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None,
           device: Any = None) -> Any:
    """Numbers from `start` up to `stop`, without it, by `step`."""
    first, last = (0, start) if stop is None else (start, stop)
    found = INTEGER if all([isinstance(v, int) for v in (first, last, step)]) else FLOAT
    kind = part_of(default(dtype, found))
    return Array(Tensor(np.arange(first, last, step).astype(kind.np), device=_name(device)))


def linspace(start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: Any = None,
             endpoint: bool = True) -> Any:
    """`num` numbers at equal distances from `start` to `stop`, with or without it."""
    found = DEFAULTS["complex floating"] if isinstance(start, complex) or isinstance(stop, complex) else FLOAT
    kind = default(dtype, found)
    wide = np.complex128 if isinstance(kind, ComplexType) else np.float64
    return _of_numpy(np.linspace(start, stop, num, dtype=wide, endpoint=endpoint), kind, device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Any:
    """Ones on the k-th diagonal, zeros beside it."""
    return _of_numpy(np.eye(n_rows, n_cols, k), default(dtype, FLOAT), device)


def tril(x: Any, /, *, k: int = 0) -> Any:
    """Zeros above the k-th diagonal of matrices."""
    return _triangle("tril", x, k)


def triu(x: Any, /, *, k: int = 0) -> Any:
    """Zeros below the k-th diagonal of matrices."""
    return _triangle("triu", x, k)


def _triangle(name: str, x: Any, k: int) -> Any:
    if as_parts(name, x).ndim < 2:
        raise ShapeError(f"[{name}] expected two axes or more, got shape {list(x.shape)}")
    return x.map(lambda t: getattr(t, name)(k))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The elements in another type; complex numbers become no real ones."""
    kind = default(dtype, as_parts("astype", x).dtype)
    if x.im is not None and not isinstance(kind, ComplexType):
        raise DTypeError(f"[astype] expected a complex type for {x.dtype}, got {kind}")
    return asarray(x, dtype=kind, device=device, copy=copy or None)
