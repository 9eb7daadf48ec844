"""safetensors files: an 8-byte length, a JSON header, then the tensors' bytes.

The `safetensors` package checks a file; the tensors are then mapped, as it would copy them and numpy has no bfloat16.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import dtype as dtypes
from minigrad.dtype import DType
from minigrad.errors import DTypeError, FormatError
from minigrad.expr import evaluate
from minigrad.mixins.base import Base
from minigrad.state.fields import Fields, one_line, parse_json
from minigrad.state.mapped import MappedFile, as_tensor, atomic_file

if TYPE_CHECKING:
    from minigrad.tensor import Tensor

_DTYPES: dict[str, DType] = {"BOOL": dtypes.bool_, "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32,
                             "I64": dtypes.int64, "U8": dtypes.uint8, "U16": dtypes.uint16, "U32": dtypes.uint32,
                             "U64": dtypes.uint64, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
                             "F32": dtypes.float32, "F64": dtypes.float64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _checked_header(file: MappedFile) -> tuple[Fields, int]:
    """The header and where the data starts, after the library has accepted the file."""
    from safetensors import SafetensorError, safe_open
    try:
        with safe_open(str(file.path), framework="numpy"):
            pass
    except SafetensorError as error:
        raise FormatError(f"{file.path}: truncated or corrupt, expected a safetensors file: {one_line(str(error))}; "
                          "download it again") from None
    length = int.from_bytes(file.part(0, 8, "the header's length").tobytes(), "little")
    return parse_json(file.part(8, length, "the header").tobytes(), file.path), 8 + length


def safe_load(path: str | os.PathLike, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, memory-mapped: bytes are read when a tensor is first used. `safe_save`
    may write to the same name meanwhile; other programs that write into the file, rather than move another one to its
    name, change the tensors, or end this process (SIGBUS) where they shorten it.

    Raises FormatError, in one line, for a truncated or corrupt file and for element types we do not have.
    """
    file = MappedFile.open(path)
    header, start = _checked_header(file)
    tensors: dict[str, Tensor] = {}
    for name in header:
        if name == "__metadata__":
            continue
        entry = header.inner(name)
        dtype = _DTYPES.get(entry.text("dtype"))
        if dtype is None:
            raise FormatError(f"{file.path}: tensor {name!r} has type {entry.text('dtype')!r}; expected one of "
                              f"{', '.join(_DTYPES)}; convert the model to one of these")
        begin, _ = entry.items("data_offsets", int, length=2)
        array = file.array(start + begin, dtype, tuple(entry.items("shape", int)), f"tensor {name!r}")
        tensors[name] = as_tensor(array, dtype, device)
    return tensors


def _header(tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
    """The length and the JSON header, padded with spaces so that the data starts at a multiple of 64 bytes."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        shape = [evaluate(extent, {}) for extent in tensor.shape]
        end = at + math.prod(shape) * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text


def safe_metadata(path: str | os.PathLike) -> dict[str, str]:
    """The string-to-string table of a safetensors file. Raises FormatError as `safe_load`."""
    header, _ = _checked_header(MappedFile.open(path))
    if "__metadata__" not in header:
        return {}
    table = header.inner("__metadata__")
    return {name: table.text(name) for name in table}


def safe_save(tensors: dict[str, Tensor], path: str | os.PathLike, metadata: dict[str, str] | None = None,
              durable: bool = False) -> None:
    """Writes the tensors to a safetensors file, one at a time; the file appears whole or not at all, with `durable`
    even if the power goes.

    `metadata` is the format's own string-to-string table. Widest types come first, so that all stay aligned.
    """
    for name, tensor in tensors.items() if isinstance(tensors, Mapping) else [("", tensors)]:
        if not isinstance(tensor, Base):
            raise DTypeError(f"[safe_save] expected a dictionary of Tensors by name, got a {type(tensor).__name__}"
                             f"{f' as {name!r}' if name else ''}")
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.bits, item[0])))
    with atomic_file(Path(path), durable) as out:
        out.write(_header(ordered, metadata))
        for tensor in ordered.values():
            out.write(elements(tensor).data)


def elements(tensor: Tensor) -> np.ndarray:
    """The tensor's stored elements, flat; bfloat16 as its uint16 bits."""
    if tensor.dtype is dtypes.bfloat16:
        tensor = tensor.bitcast(dtypes.uint16)
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
