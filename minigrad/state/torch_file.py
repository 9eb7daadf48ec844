"""PyTorch checkpoints (.pth, .pt, .bin): the zip form since 1.6 and the stream of pickles before it.

Zip: `<name>/data.pkl` describes the tensors, `<name>/data/<key>` are their storages, uncompressed, so they can be
mapped. Stream: a magic number, a version, facts about the writer, the description, the storages' keys; then for each
key a u64 count of elements and the elements.
"""
from __future__ import annotations

import io
import os
import zipfile
from typing import Any

import numpy as np

from minigrad.dtype import DType
from minigrad.errors import FormatError
from minigrad.state.mapped import MappedFile
from minigrad.state.torch_pickle import Storage, unpickle

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


def torch_load(path: str | os.PathLike) -> Any:
    """The object that torch.save wrote, with its tensors as Tensors, memory-mapped; nothing from the file is executed.

    Only tensors, OrderedDicts and Python's plain containers and scalars are understood: a file that names anything else
    raises FormatError naming it, as truncated and corrupt files do.
    """
    file = MappedFile.open(path)
    if file.data[:4].tobytes() == b"PK\x03\x04":
        return _load_zip(file)
    return _load_stream(file)


def _load_zip(file: MappedFile) -> Any:
    try:
        with zipfile.ZipFile(file.path) as archive:
            members = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise FormatError(f"{file.path}: truncated or corrupt, expected a zip file of PyTorch: {error}; "
                          "download it again") from None
    description = next((name for name in members if name == "data.pkl" or name.endswith("/data.pkl")), None)
    if description is None:
        raise FormatError(f"{file.path}: expected a PyTorch checkpoint (a zip file with data.pkl in it), found "
                          f"{', '.join(list(members)[:3]) or 'nothing'}; check the path")
    prefix = description.removesuffix("data.pkl")
    order = members.get(f"{prefix}byteorder")
    if order is not None and _member(file, order).tobytes() != b"little":
        raise FormatError(f"{file.path}: expected little-endian tensors; save the model on a little-endian machine")

    def storage(key: str, dtype: DType, count: int) -> Storage:
        info = members.get(f"{prefix}data/{key}")
        if info is None:
            raise FormatError(f"storage {key!r} is missing")
        raw = _member(file, info)
        if count * dtype.itemsize != len(raw):
            raise FormatError(f"storage {key!r} has {len(raw)} bytes, expected {count} elements of {dtype}")
        return Storage(key, dtype, np.require(raw.view(dtype.np), requirements="A"))

    return unpickle(io.BytesIO(_member(file, members[description]).tobytes()), file.path, storage)


def _member(file: MappedFile, info: zipfile.ZipInfo) -> np.ndarray:
    """The bytes of an uncompressed member, mapped: its local header says how long its own name and extra field are."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise FormatError(f"{file.path}: member {info.filename} is compressed or encrypted, expected it plain; "
                          "save the model with torch.save")
    header = file.part(info.header_offset, 30, f"the header of {info.filename}").tobytes()
    if header[:4] != b"PK\x03\x04":
        raise FormatError(f"{file.path}: corrupt: no member {info.filename} where the directory says; "
                          "download it again")
    skip = 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return file.part(info.header_offset + skip, info.file_size, info.filename)


def _load_stream(file: MappedFile) -> Any:
    """Reads the description twice: the storages lie behind it, and each tensor needs its own when it is made."""
    declared: dict[str, tuple[DType, int]] = {}
    found: dict[str, Storage] = {}

    def declare(key: str, dtype: DType, count: int) -> Storage:
        declared[key] = (dtype, count)
        return Storage(key, dtype, np.empty(0, dtype.np))

    def look_up(key: str, dtype: DType, count: int) -> Storage:
        if key not in found:
            raise FormatError(f"storage {key!r} is missing")
        return found[key]

    with open(file.path, "rb") as stream:
        head = [unpickle(stream, file.path, declare) for _ in range(2)]
        if head != [_MAGIC, _VERSION]:
            raise FormatError(f"{file.path}: expected a PyTorch checkpoint (zip, or the stream of version {_VERSION}); "
                              "check the path")
        facts = unpickle(stream, file.path, declare)
        if not (isinstance(facts, dict) and facts.get("little_endian", True)):
            raise FormatError(f"{file.path}: expected little-endian tensors; save the model on a little-endian machine")
        description = stream.tell()
        unpickle(stream, file.path, declare, lambda *_arguments: None)
        keys = unpickle(stream, file.path, declare)
        _find_storages(file, keys, stream.tell(), declared, found)
        stream.seek(description)
        return unpickle(stream, file.path, look_up)


def _find_storages(file: MappedFile, keys: Any, at: int, declared: dict[str, tuple[DType, int]],
                   found: dict[str, Storage]) -> None:
    """Maps the storages that follow one another from byte `at`, in the order of `keys`."""
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in declared for key in keys):
        raise FormatError(f"{file.path}: corrupt: expected a list of the storages' names; download it again")
    for key in keys:
        dtype, expected = declared[key]
        count = int.from_bytes(file.part(at, 8, f"the size of storage {key!r}").tobytes(), "little")
        if count != expected:
            raise FormatError(f"{file.path}: corrupt: storage {key!r} has {count} elements, expected {expected}; "
                              "download it again")
        found[key] = Storage(key, dtype, file.array(at + 8, dtype, (count,), f"storage {key!r}"))
        at += 8 + count * dtype.itemsize
