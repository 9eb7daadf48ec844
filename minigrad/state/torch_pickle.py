"""Pickles of PyTorch checkpoints: tensors over storages, and nothing else that is not plain data.

The names in `_STORAGES`, `_DTYPES` and `_functions` are all that such a file may use, and none does more than describe
a tensor or copy a plain value.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from minigrad import dtype as dtypes
from minigrad.dtype import DType
from minigrad.errors import FormatError
from minigrad.state.fields import MAX_ELEMENTS, brief, one_line, shape_of
from minigrad.state.mapped import as_tensor
from minigrad.state.pickle_machine import Function, Machine, hashable

_STORAGES: dict[str, DType] = {
    "BoolStorage": dtypes.bool_, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32, "LongStorage": dtypes.int64, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64}
_DTYPES = {dtype.name: dtype for dtype in dtypes.ALL}
_BUILTINS = ("builtins", "__builtin__")
"""The module of Python's own types, which Python 2 and old protocols call by the second name."""
MAX_NAME = 100
_COPIES = 8
"""The most bytes that copies of a file's tensors may take, as a multiple of its size: tensors that cannot be mapped, as
they are transposed or not aligned."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A flat run of elements, of which tensors are parts: `array` holds the storage type `dtype.np`."""

    key: str
    dtype: DType
    array: np.ndarray


class TensorBuilder:
    """Makes the tensors of one file of `size` bytes, over the mapped bytes wherever they can be."""

    def __init__(self, path: Path, size: int):
        self.path, self.size, self.copied = path, size, 0

    def usable(self, array: np.ndarray) -> np.ndarray:
        """The array, copied if it is not contiguous and aligned. Any number of tensors can share the bytes of a small
        file, so that the sum of copies has a limit."""
        if array.flags.c_contiguous and array.flags.aligned:
            return array
        self.copied += array.nbytes
        if self.copied > _COPIES * self.size:
            raise FormatError(f"tensors of {self.copied} bytes in views of a file of {self.size}")
        return np.require(array, requirements=["C", "A"])

    def __call__(self, storage: Any, offset: Any, sizes: Any, strides: Any, *_ignored: Any) -> Any:
        """The Tensor over `storage` with these strides (in elements); every index is checked to be inside."""
        if not isinstance(storage, Storage):
            raise FormatError("a tensor without a storage")
        shape = shape_of(sizes, self.path, "a tensor's shape")
        if type(strides) not in (list, tuple) or len(strides) != len(shape) or not all(
                [type(n) is int and 0 <= n <= MAX_ELEMENTS for n in (offset, *strides)]):
            raise FormatError(f"a tensor with offset {brief(offset)}, shape {shape} and strides {brief(strides)}")
        if 0 in shape:
            return as_tensor(np.empty(shape, storage.dtype.np), storage.dtype)
        last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        if last >= len(storage.array):
            raise FormatError(f"a tensor of shape {shape} that reaches element {last} of storage {storage.key!r}, "
                              f"which has {len(storage.array)}")
        # An axis of stride 0 has one element, however long it is.
        once = [1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True)]
        steps = [stride * storage.dtype.itemsize for stride in strides]
        view = np.lib.stride_tricks.as_strided(storage.array[offset:], once, steps)
        tensor = as_tensor(self.usable(view), storage.dtype)
        return tensor if tuple(once) == shape else tensor.expand(*shape)


def unpickle(stream: IO[bytes], path: Path, storage: Callable[[str, DType, int], Storage],
             rebuild: Callable[..., Any]) -> Any:
    """One object from `stream`; whatever goes wrong in the file's program is a FormatError in one line.

    `storage(key, dtype, count)` supplies a storage's elements, `rebuild` makes tensors of them.
    """
    machine = Machine(lambda module, name: _find(module, name, path, machine, rebuild),
                      lambda saved: _find_storage(saved, storage))
    try:
        return machine.run(stream)
    except FormatError as error:
        if str(error).startswith(str(path)):
            raise
        raise FormatError(f"{path}: corrupt: {error}; download it again") from None
    except MemoryError:
        raise
    except Exception as error:  # bytes that are no pickle can fail in many ways
        reason = f"{type(error).__name__}: {error}"
        raise FormatError(f"{path}: truncated or corrupt, expected a PyTorch checkpoint: {one_line(reason)}; "
                          "download it again") from error


def _find(module: str, name: str, path: Path, machine: Machine, rebuild: Callable[..., Any]) -> Function | DType:
    """The function or type that stands for this name. Raises FormatError for names that a file may not use."""
    if module == "torch" and name in _STORAGES:
        return _STORAGES[name]
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return dtypes.uint8
    if module == "torch" and name in _DTYPES:
        return _DTYPES[name]
    functions = _functions(path, machine, rebuild)
    module = "builtins" if module in _BUILTINS else module
    if (module, name) not in functions:
        raise FormatError(f"{path}: refused: the checkpoint asks for {one_line(f'{module}.{name}')}, which could run "
                          "code; expected tensors in plain containers; save the model's state_dict instead")
    return Function(functions[module, name])


def _functions(path: Path, machine: Machine, rebuild: Callable[..., Any]) -> dict[tuple[str, str], Callable[..., Any]]:
    def of_type(storage: Any, offset: Any, sizes: Any, strides: Any, _gradient: Any, _hooks: Any, dtype: Any,
                *_ignored: Any) -> Any:
        """A tensor over bytes, whose type is told apart."""
        if not isinstance(storage, Storage) or storage.dtype is not dtypes.uint8 or not isinstance(dtype, DType):
            raise FormatError(f"a tensor of {brief(dtype)} over {brief(storage)}, expected a type and bytes")
        if len(storage.array) % dtype.itemsize:
            raise FormatError(f"{len(storage.array)} bytes for elements of {dtype}")
        return rebuild(replace(storage, dtype=dtype, array=storage.array.view(dtype.np)), offset, sizes, strides)

    return {
        ("collections", "OrderedDict"): machine.ordered_dict,
        ("collections", "Counter"): lambda counts={}: Counter(_plain(machine, counts, dict)),
        ("builtins", "set"): lambda items=(): set(hashable(list(_plain(machine, items, list, tuple)))),
        ("builtins", "frozenset"): lambda items=(): frozenset(hashable(list(_plain(machine, items, list, tuple)))),
        ("builtins", "bytes"): lambda: b"",
        ("builtins", "bytearray"): lambda content=b"", encoding="latin-1": bytearray(
            _plain(machine, content, bytes) if type(content) is bytes else _encoded(machine, content, encoding)),
        ("_codecs", "encode"): lambda text, encoding="utf-8": _encoded(machine, text, encoding),
        ("torch", "Size"): lambda sizes=(): shape_of(sizes, path, "a torch.Size"),
        ("torch", "device"): _device,
        ("torch._utils", "_rebuild_tensor"): rebuild,
        ("torch._utils", "_rebuild_tensor_v2"): rebuild,
        ("torch._utils", "_rebuild_tensor_v3"): of_type,
        ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    }


def _plain(machine: Machine, value: Any, *kinds: type) -> Any:
    """A container of one of these kinds, of which the machine counts a copy."""
    if type(value) not in kinds:
        raise FormatError(f"a container made of {brief(value)}, expected a {kinds[0].__name__}")
    machine.copy(value)
    return value


def _encoded(machine: Machine, text: Any, encoding: Any) -> bytes:
    """Bytes, which old protocols have as text."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise FormatError(f"bytes from {brief(text)} in {brief(encoding)}, expected text in latin1")
    machine.copy(text)
    return text.encode("latin-1")


def _device(kind: Any = "cpu", index: Any = None) -> str:
    """PyTorch's name of a device, such as 'cuda:0'."""
    if type(kind) is not str or len(kind) > MAX_NAME or not (index is None or (type(index) is int and index >= 0)):
        raise FormatError(f"a device {brief(kind)}, {brief(index)}")
    return kind if index is None else f"{kind}:{index}"


def _find_storage(saved: Any, storage: Callable[[str, DType, int], Storage]) -> Storage:
    """The storage that a file refers to by a tuple of facts."""
    if not (type(saved) is tuple and len(saved) >= 5 and type(saved[0]) is str and saved[0] == "storage"
            and isinstance(saved[1], DType) and type(saved[2]) is str
            and type(saved[4]) is int and 0 <= saved[4] <= MAX_ELEMENTS):
        raise FormatError(f"a storage described by {brief(saved)}")
    if len(saved) > 5 and saved[5] is not None:
        raise FormatError(f"storage {brief(saved[2])}, which is a view of another (a file of before PyTorch 0.4)")
    return storage(saved[2], saved[1], saved[4])
