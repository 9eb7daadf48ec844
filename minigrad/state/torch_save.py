"""Writes PyTorch's checkpoints: `torch.load` reads them, and so does `torch_load`."""
from __future__ import annotations

import codecs
import math
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from minigrad import dtype as dtypes
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state.mapped import atomic_file
from minigrad.state.safe import elements
from minigrad.tensor import Tensor

_STORAGES = {dtypes.bool_: "BoolStorage", dtypes.int8: "CharStorage", dtypes.uint8: "ByteStorage",
             dtypes.int16: "ShortStorage", dtypes.int32: "IntStorage", dtypes.int64: "LongStorage",
             dtypes.float16: "HalfStorage", dtypes.bfloat16: "BFloat16Storage", dtypes.float32: "FloatStorage",
             dtypes.float64: "DoubleStorage"}


class _Name(NamedTuple):
    """A function or type that the reader has under this name."""

    module: str
    name: str

    def __call__(self) -> NoReturn:
        raise NotImplementedError


class _Storage(NamedTuple):
    """The elements of a tensor, which stand in a file of their own."""

    tensor: Any


_REBUILD = _Name("torch._utils", "_rebuild_tensor_v2")
_REBUILD_OF_BYTES = _Name("torch._utils", "_rebuild_tensor_v3")
_PLAIN: tuple[Any, ...] = (OrderedDict, Counter, set, frozenset, bytes, bytearray, codecs.encode)
"""All that names in a file may stand for; old protocols write bytes as text and codecs.encode."""


_Python: Any = pickle._Pickler  # which can write names of what is not installed


class _Pickler(_Python):
    def __init__(self, out: BytesIO) -> None:
        super().__init__(out, protocol=2)
        self.tensors: list[Any] = []

    def persistent_id(self, value: Any) -> tuple | None:
        if not isinstance(value, _Storage):
            return None
        tensor = value.tensor
        self.tensors.append(tensor)
        key, count = str(len(self.tensors) - 1), math.prod([evaluate(n, {}) for n in tensor.shape])
        if tensor.dtype not in _STORAGES:
            return "storage", _Name("torch.storage", "UntypedStorage"), key, "cpu", count * tensor.dtype.itemsize
        return "storage", _Name("torch", _STORAGES[tensor.dtype]), key, "cpu", count

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        shape, strides = ([evaluate(n, {}) for n in sizes] for sizes in (value.shape, value.stride()))
        facts: tuple[Any, ...] = _Storage(value), 0, tuple(shape), tuple(strides), value.requires_grad, OrderedDict()
        return (_REBUILD, facts) if value.dtype in _STORAGES else (_REBUILD_OF_BYTES, (*facts, value.dtype, None))

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        value = _Name("torch", value.name) if isinstance(value, dtypes.DType) else value
        if isinstance(value, _Name):
            self.write(b"c%b\n%b\n" % (value.module.encode(), value.name.encode()))
        else:
            super().save(value, save_persistent_id)

    def save_global(self, value: Any, name: str | None = None) -> None:
        if value not in _PLAIN:
            raise FormatError(f"[save] expected tensors and numbers in plain containers, got {value!r}; save "
                              "state_dict() of a model or an optimizer")
        super().save_global(value, name)

    dispatch = {**_Python.dispatch, type: save_global}


def torch_save(obj: Any, f: str | os.PathLike | IO[bytes]) -> None:
    """Writes Tensors in dictionaries, lists, tuples and plain values to a file: by its path one that appears whole or
    not at all, or one that is open for writing.

    Raises FormatError for anything else: a model has `state_dict()`.
    """
    description = BytesIO()
    pickler = _Pickler(description)
    pickler.dump(obj)
    opened = atomic_file(Path(f)) if isinstance(f, str | os.PathLike) else nullcontext(f)
    with opened as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", description.getvalue())
        archive.writestr("archive/byteorder", "little")
        for k, tensor in enumerate(pickler.tensors):
            archive.writestr(f"archive/data/{k}", elements(tensor).data)
        archive.writestr("archive/version", "3\n")
