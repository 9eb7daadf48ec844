"""GGUF model files: metadata, and tensors that are read when asked for.

Layout, all little-endian: "GGUF", version u32 (2 or 3), tensor count u64, metadata count u64, the metadata (key, type,
value), one record per tensor (name, dims innermost first, element format, offset), padding to `general.alignment`,
data.
"""
from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.dtype import bfloat16, float16, float32
from minigrad.errors import FormatError
from minigrad.state.fields import Fields, shape_of
from minigrad.state.gguf_quants import KINDS, UNREAD, QuantKind
from minigrad.state.mapped import MappedFile, as_tensor, give_back
from minigrad.state.quantized import QuantizedTensor
from minigrad.tensor import Tensor

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_CHUNK_WEIGHTS = 1 << 17  # dequantised at a time: temporaries stay small beside the result


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of a GGUF file, unread: `raw` is the file's bytes (mapped), `shape` outermost axis first."""

    name: str
    shape: tuple[int, ...]
    kind: QuantKind
    raw: np.ndarray

    @property
    def in_blocks(self) -> bool:
        """True for one matrix, or several, in a format of blocks that we compute with."""
        return self.kind.unpack is not None and len(self.shape) in (2, 3) and 0 not in self.shape

    def numpy(self) -> np.ndarray:
        """The values, float32 [*shape]; F32 without a copy, other formats dequantised piece by piece."""
        if self.kind.name == "F32":
            return np.require(self.raw.view(np.float32), requirements="A").reshape(self.shape)
        out = _aligned_empty(self.shape)
        blocks, flat = self.raw.reshape(-1, self.kind.block_bytes), out.reshape(-1, self.kind.block)
        step = max(1, _CHUNK_WEIGHTS // self.kind.block)
        with np.errstate(invalid="ignore", over="ignore"):  # scales that are infinite or NaN are the file's business
            for start in range(0, len(blocks), step):
                flat[start:start + step] = self.kind.dequantize(blocks[start:start + step])
        return out

    def to_tensor(self, device: str | None = None) -> Tensor:
        """The values as a float32 Tensor."""
        return as_tensor(self.numpy(), float32, device)

    def stored(self, device: str | None = None) -> Tensor | QuantizedTensor:
        """The values as the file has them, where we compute with that format; else as a float32 Tensor.

        F32, F16 and BF16 are mapped; matrices, and several in one tensor, in a format of blocks are QuantizedTensors.
        """
        if self.in_blocks:
            found = QuantizedTensor.from_blocks(self.kind.name, self.shape, self.raw, device)
            give_back(self.raw)
            return found
        half = {"F16": float16, "BF16": bfloat16}.get(self.kind.name)
        if half is None:
            return self.to_tensor(device)
        return as_tensor(np.require(self.raw.view(half.np), requirements="A").reshape(self.shape), half, device)


def _aligned_empty(shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised float32 array that starts at a cache line, as kernels like to read it."""
    count = math.prod(shape)
    raw = np.empty(count + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start:start + count].reshape(shape)


class _Reader:
    """Reads the header front to back; every length is checked before it is believed."""

    def __init__(self, file: MappedFile):
        self.file, self.at, self.bytes = file, 0, file.data.data

    def take(self, nbytes: int, what: str) -> memoryview:
        start, self.at = self.at, self.at + nbytes
        if self.at > len(self.bytes):
            self.file.part(start, nbytes, what)  # raises
        return self.bytes[start:self.at]

    def scalar(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def count(self, smallest: int, what: str) -> int:
        """A u64 count of items of at least `smallest` bytes each: more than the file could hold is corruption."""
        value = self.scalar("<Q", what)
        if value * smallest > len(self.bytes) - self.at:
            raise FormatError(f"{self.file.path}: truncated or corrupt: {what} says {value}, more than the rest of the "
                              f"file holds ({len(self.bytes) - self.at} bytes); download it again")
        return value

    def string(self, what: str) -> str:
        raw = self.take(self.count(1, what), what)
        # Vocabularies hold pieces of characters now and then; surrogateescape keeps their bytes.
        return str(raw, "utf-8", "surrogateescape")

    def value(self, kind: int, what: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        raise FormatError(f"{self.file.path}: corrupt: {what} has type {kind}, expected 0 to 12; download it again")

    def array(self, what: str) -> list:
        kind = self.scalar("<I", what)
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            length = self.count(dtype.itemsize, what)
            return np.frombuffer(self.take(length * dtype.itemsize, what), dtype).tolist()
        if kind != _STRING:
            raise FormatError(f"{self.file.path}: corrupt: {what} is an array of type {kind}, expected scalars or "
                              "strings; download it again")
        return self.strings(self.count(8, what), what)

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings at once: vocabularies have 100,000, so this reads them without a call each."""
        data, at, size = self.bytes, self.at, len(self.bytes)
        unpack = struct.Struct("<Q").unpack_from
        out = []
        for _ in range(count):
            end = at + 8 + (unpack(data, at)[0] if at + 8 <= size else size)
            if end > size:
                self.file.part(at, end - at, what)  # raises
            out.append(str(data[at + 8:end], "utf-8", "surrogateescape"))
            at = end
        self.at = at
        return out


def _read_start(reader: _Reader) -> tuple[int, int]:
    """Checks magic and version; returns the numbers of tensors and of metadata entries."""
    path = reader.file.path
    magic = bytes(reader.take(4, "the magic word"))
    if magic != b"GGUF":
        raise FormatError(f"{path}: expected a GGUF file (starting with b'GGUF'), got {magic!r}; check the path")
    version = reader.scalar("<I", "the version")
    if version not in (2, 3):
        reason = "the file is big-endian" if version & 0xFFFF == 0 else "convert the model again"
        raise FormatError(f"{path}: expected GGUF version 2 or 3, got {version}; {reason}")
    return reader.count(24, "the number of tensors"), reader.count(12, "the number of metadata entries")


def _read_record(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """One tensor's name, shape (outermost first), element format and offset into the data."""
    name = reader.string("a tensor's name")
    rank = reader.scalar("<I", f"the rank of tensor {name!r}")
    if rank > 8:
        raise FormatError(f"{reader.file.path}: corrupt: tensor {name!r} has rank {rank}, expected at most 8; "
                          "download it again")
    dims = struct.unpack(f"<{rank}Q", reader.take(8 * rank, f"the shape of tensor {name!r}"))
    return (name, dims[::-1], reader.scalar("<I", f"the format of tensor {name!r}"),
            reader.scalar("<Q", f"the offset of tensor {name!r}"))


def _locate(file: MappedFile, name: str, shape: tuple[int, ...], form: int, offset: int) -> GGUFTensor:
    """The tensor at absolute `offset`. Raises FormatError for formats we do not read and sizes that do not fit."""
    kind = KINDS.get(form)
    if kind is None:
        known = ", ".join(k.name for k in KINDS.values())
        raise FormatError(f"{file.path}: tensor {name!r} is quantised as {UNREAD.get(form, f'format {form}')}; "
                          f"expected one of {known}; use a file in one of these")
    count = math.prod(shape_of(shape, file.path, f"the shape of tensor {name!r}"))
    row = shape[-1] if shape else 1
    if row % kind.block:
        raise FormatError(f"{file.path}: corrupt: rows of tensor {name!r} have {row} weights, expected a multiple of "
                          f"{kind.block} for {kind.name}; download it again")
    raw = file.part(offset, count // kind.block * kind.block_bytes, f"tensor {name!r}")
    return GGUFTensor(name, shape, kind, raw)


def gguf_load(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """Metadata (Python values) and tensors of a GGUF file; the tensors' data stays in the file until asked for.

    Raises FormatError, in one line, for a truncated or corrupt file and for element formats we do not read.
    """
    file = MappedFile.open(path)
    reader = _Reader(file)
    tensor_count, metadata_count = _read_start(reader)
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = reader.string("a metadata key")
        metadata[key] = reader.value(reader.scalar("<I", f"the type of {key!r}"), f"the value of {key!r}")
    records = [_read_record(reader) for _ in range(tensor_count)]
    alignment = Fields(metadata, file.path).count("general.alignment", default=32)
    start = -(-reader.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, form, offset in records:
        if name in tensors:
            raise FormatError(f"{file.path}: corrupt: tensor {name!r} is there twice; download it again")
        tensors[name] = _locate(file, name, shape, form, start + offset)
    taken = sum([tensor.raw.nbytes for tensor in tensors.values()])
    if taken > len(file.data):  # a small file could otherwise stand for any number of large tensors
        raise FormatError(f"{file.path}: corrupt: expected tensors that do not overlap, got {taken} bytes of them in a "
                          f"file of {len(file.data)}; download it again")
    return metadata, tensors
