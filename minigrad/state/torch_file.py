"""PyTorch checkpoints (.pth, .pt, .bin): the zip form since 1.6 and the stream of pickles before it.

Zip: `<name>/data.pkl` describes the tensors, `<name>/data/<key>` are their storages, uncompressed, so they can be
mapped. Stream: a magic number, a version, facts about the writer, the description, the storages' keys; then for each
key a u64 count of elements and the elements.
"""
from __future__ import annotations

import io
import os
import zipfile
from typing import IO, Any

import numpy as np

from minigrad.dtype import DType
from minigrad.errors import FormatError, quantity
from minigrad.state.fields import brief, one_line
from minigrad.state.mapped import MappedFile
from minigrad.state.torch_pickle import Storage, TensorBuilder, unpickle

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


def torch_load(path: str | os.PathLike | IO[bytes]) -> Any:
    """The object that torch.save wrote, with its tensors as Tensors; nothing from the file is executed. A file by its
    path is memory-mapped, one that is open is read, from its position on.

    Only tensors, their types, devices (as PyTorch's names), OrderedDicts, Counters and Python's plain containers and
    scalars are understood: a file that names anything else raises FormatError naming it, as truncated and corrupt files
    do.
    """
    file = MappedFile.open(path)
    if file.data[:4].tobytes() == b"PK\x03\x04":
        return _load_zip(file)
    return _load_stream(file)


def _members(file: MappedFile) -> dict[str, zipfile.ZipInfo]:
    try:
        pages: Any = file.pages
        with zipfile.ZipFile(pages) as archive:
            return {info.filename: info for info in archive.infolist()}
    except MemoryError:
        raise
    except Exception as error:  # for what a directory may say, zipfile has no closed list of exceptions
        raise FormatError(f"{file.path}: truncated or corrupt, expected a zip file of PyTorch: {one_line(str(error))}; "
                          "download it again") from None


def _load_zip(file: MappedFile) -> Any:
    members = _members(file)
    description = next((name for name in members if name == "data.pkl" or name.endswith("/data.pkl")), None)
    if description is None:
        raise FormatError(f"{file.path}: expected a PyTorch checkpoint (a zip file with data.pkl in it), found "
                          f"{brief(list(members)) if members else 'nothing'}; check the path")
    prefix = description.removesuffix("data.pkl")
    order = members.get(f"{prefix}byteorder")
    if order is not None and _member(file, order).tobytes() != b"little":
        raise FormatError(f"{file.path}: expected little-endian tensors; save the model on a little-endian machine")
    build = TensorBuilder(file.path, len(file.data))
    found: dict[tuple[str, DType], Storage] = {}

    def storage(key: str, dtype: DType, count: int) -> Storage:
        info = members.get(f"{prefix}data/{key}")
        if info is None:
            raise FormatError(f"storage {brief(key)} is missing")
        raw = _member(file, info)
        if count * dtype.itemsize != len(raw):
            raise FormatError(f"storage {brief(key)} has {len(raw)} bytes, expected {quantity(count, 'element')} of "
                              f"{dtype}")
        if (key, dtype) not in found:
            found[key, dtype] = Storage(key, dtype, build.usable(raw.view(dtype.np)))
        return found[key, dtype]

    return unpickle(io.BytesIO(_member(file, members[description]).data), file.path, storage, build)


def _member(file: MappedFile, info: zipfile.ZipInfo) -> np.ndarray:
    """The bytes of an uncompressed member, mapped: its local header says how long its own name and extra field are."""
    name = brief(info.filename)
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise FormatError(f"{file.path}: member {name} is compressed or encrypted, expected it plain; "
                          "save the model with torch.save")
    header = file.part(info.header_offset, 30, f"the header of {name}").tobytes()
    if header[:4] != b"PK\x03\x04":
        raise FormatError(f"{file.path}: corrupt: no member {name} where the directory says; download it again")
    skip = 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return file.part(info.header_offset + skip, info.file_size, name)


def _load_stream(file: MappedFile) -> Any:
    """Reads the description twice: the storages lie behind it, and each tensor needs its own when it is made."""
    declared: dict[str, tuple[DType, int]] = {}
    found: dict[str, Storage] = {}

    def declare(key: str, dtype: DType, count: int) -> Storage:
        declared[key] = (dtype, count)
        return Storage(key, dtype, np.empty(0, dtype.np))

    def look_up(key: str, dtype: DType, count: int) -> Storage:
        if key not in found:
            raise FormatError(f"storage {brief(key)} is missing")
        return found[key]

    # The pages, as a file would make room for as many bytes as a string in it says it has.
    stream: Any = file.pages
    stream.seek(0)

    def plain() -> Any:
        return unpickle(stream, file.path, declare, lambda *_arguments: None)

    head = [plain() for _ in range(2)]
    if not all(type(number) is int for number in head) or head != [_MAGIC, _VERSION]:
        raise FormatError(f"{file.path}: expected a PyTorch checkpoint (zip, or the stream of version {_VERSION}); "
                          "check the path")
    facts = plain()
    if not (isinstance(facts, dict) and facts.get("little_endian", True) is True):
        raise FormatError(f"{file.path}: expected little-endian tensors; save the model on a little-endian machine")
    description = stream.tell()
    plain()
    keys = plain()
    build = TensorBuilder(file.path, len(file.data))
    _find_storages(file, keys, stream.tell(), declared, found)
    stream.seek(description)
    return unpickle(stream, file.path, look_up, build)


def _find_storages(file: MappedFile, keys: Any, at: int, declared: dict[str, tuple[DType, int]],
                   found: dict[str, Storage]) -> None:
    """Maps the storages that follow one another from byte `at`, in the order of `keys`."""
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in declared for key in keys):
        raise FormatError(f"{file.path}: corrupt: expected a list of the storages' names; download it again")
    for key in keys:
        dtype, expected = declared[key]
        count = int.from_bytes(file.part(at, 8, f"the size of storage {key!r}").tobytes(), "little")
        if count != expected:
            raise FormatError(f"{file.path}: corrupt: storage {key!r} has {quantity(count, 'element')}, expected "
                              f"{expected}; download it again")
        found[key] = Storage(key, dtype, file.array(at + 8, dtype, (count,), f"storage {key!r}"))
        at += 8 + count * dtype.itemsize
