"""An unpickler for PyTorch checkpoints that runs nothing from the file.

A pickle is a program: it may name any importable function and call it. This one resolves only the names in `_REBUILD`
and `_ALLOWED`, all of them functions of this module, element types or OrderedDict, none of which does more than
describe a tensor.
"""
from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minigrad import dtype as dtypes
from minigrad.dtype import DType
from minigrad.errors import FormatError
from minigrad.state.mapped import as_tensor

_STORAGES: dict[str, DType] = {
    "BoolStorage": dtypes.bool_, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32, "LongStorage": dtypes.int64, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64}


@dataclass(frozen=True, slots=True)
class Storage:
    """A flat run of elements that tensors are views of: `array` holds the storage type `dtype.np`."""

    key: str
    dtype: DType
    array: np.ndarray


def rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_ignored: Any) -> Any:
    """The Tensor that views `storage` with these strides (in elements); every index is checked to be inside."""
    if not isinstance(storage, Storage):
        raise FormatError("a tensor without a storage")
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise FormatError(f"a tensor with offset {offset}, shape {shape} and strides {strides}")
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if 0 in shape:
        return as_tensor(np.empty(shape, storage.dtype.np), storage.dtype)
    if last >= len(storage.array):
        raise FormatError(f"a tensor of shape {tuple(shape)} that reaches element {last} of storage {storage.key!r}, "
                          f"which has {len(storage.array)}")
    size = storage.dtype.itemsize
    view = np.lib.stride_tricks.as_strided(storage.array[offset:], shape, [stride * size for stride in strides])
    return as_tensor(np.require(view, requirements=["C", "A"]), storage.dtype)


def _rebuild_parameter(data: Any, *_ignored: Any) -> Any:
    return data


def _shape(sizes: Any = ()) -> tuple:
    return tuple(sizes)


_REBUILD = {("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_tensor_v2")}
_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch", "Size"): _shape,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}


class TensorUnpickler(pickle.Unpickler):
    """Unpickles tensors and plain containers. `storage(key, dtype, count)` supplies a storage's elements."""

    def __init__(self, stream: BinaryIO, path: Path, storage: Callable[[str, DType, int], Storage],
                 rebuild: Callable[..., Any]):
        super().__init__(stream, encoding="utf-8")
        self.path, self.storage, self.rebuild = path, storage, rebuild

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _REBUILD:
            return self.rebuild
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise FormatError(f"{self.path}: refused: the checkpoint asks for {module}.{name}, which could run code; "
                              "expected tensors in plain containers; save the model's state_dict instead") from None

    def persistent_load(self, saved: Any) -> Storage:
        if not (isinstance(saved, tuple) and len(saved) >= 5 and saved[0] == "storage" and isinstance(saved[1], DType)
                and isinstance(saved[2], str) and isinstance(saved[4], int)):
            raise FormatError(f"a storage described by {saved!r}")
        if len(saved) > 5 and saved[5] is not None:
            raise FormatError(f"storage {saved[2]!r}, which is a view of another (a file of before PyTorch 0.4)")
        return self.storage(saved[2], saved[1], saved[4])


def unpickle(stream: BinaryIO, path: Path, storage: Callable[[str, DType, int], Storage],
             rebuild: Callable[..., Any] = rebuild_tensor) -> Any:
    """One object from `stream`; whatever goes wrong in the file's program is a FormatError in one line."""
    try:
        return TensorUnpickler(stream, path, storage, rebuild).load()
    except FormatError as error:
        if str(error).startswith(str(path)):
            raise
        raise FormatError(f"{path}: corrupt: {error}; download it again") from None
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the unpickler raises nearly any type for bytes that are no pickle
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FormatError(f"{path}: truncated or corrupt, expected a PyTorch checkpoint: {reason}; "
                          "download it again") from error
