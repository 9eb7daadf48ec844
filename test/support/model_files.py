"""Writers of model files for the tests: GGUF, and both forms of PyTorch checkpoints, without their libraries."""
from __future__ import annotations

import collections
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def write_gguf(path: Path, metadata: list[tuple[str, int, bytes]],
               tensors: list[tuple[str, tuple[int, ...], int, bytes]], version: int = 3, alignment: int = 32) -> None:
    """`metadata` entries are key, type and encoded value; `tensors` name, shape (outermost first), format, data."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)))
    for key, kind, value in metadata:
        out += gguf_string(key) + struct.pack("<I", kind) + value
    at = 0
    for name, shape, form, data in tensors:
        out += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], form, at)
        at += -(-len(data) // alignment) * alignment
    out += bytes(-len(out) % alignment)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % alignment)
    path.write_bytes(out)


PROTOCOL = 2


class Ref:
    """Pickles as the importable name it holds, like a class or function of a module that is not here."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


_PythonPickler: Any = pickle._Pickler  # the one of C does not let itself be taught


class TorchPickler(_PythonPickler):
    """Writes what torch.save writes, without torch: arrays as calls of `_rebuild_tensor_v2` over storages."""

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream, PROTOCOL)
        self.storages: list[np.ndarray] = []

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and obj.ndim == 1:
            name = {np.float32: "FloatStorage", np.int64: "LongStorage", np.uint16: "BFloat16Storage"}[obj.dtype.type]
            if not any([obj is known for known in self.storages]):
                self.storages.append(obj)
            key = next(k for k, known in enumerate(self.storages) if obj is known)
            return ("storage", Ref("torch", name), str(key), "cpu", obj.size)
        return None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Ref):
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, View):
            self.save_reduce(Ref("torch._utils", "_rebuild_tensor_v2"),
                             (obj.storage, obj.offset, obj.shape, obj.strides, False, collections.OrderedDict()))
        elif isinstance(obj, Call):
            self.save_reduce(obj.function, obj.arguments)
        else:
            super().save(obj, save_persistent_id)

    def save_reduce(self, func: Any, args: Any, state: Any = None, listitems: Any = None, dictitems: Any = None,
                    state_setter: Any = None, *, obj: Any = None) -> None:
        self.save(func)
        self.save(args)
        self.write(pickle.REDUCE)
        if dictitems is not None:
            self._batch_setitems(dictitems)


class View(NamedTuple):
    storage: np.ndarray
    offset: int
    shape: tuple
    strides: tuple


class Call(NamedTuple):
    function: Ref
    arguments: tuple


def write_torch_zip(path: Path, content: Any, prefix: str = "archive/", compression: int = zipfile.ZIP_STORED,
                    byteorder: bytes | None = b"little") -> None:
    stream = io.BytesIO()
    pickler = TorchPickler(stream)
    pickler.dump(content)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{prefix}data.pkl", stream.getvalue())
        if byteorder is not None:
            archive.writestr(f"{prefix}byteorder", byteorder)
        for key, storage in enumerate(pickler.storages):
            archive.writestr(f"{prefix}data/{key}", storage.tobytes())


def write_torch_stream(path: Path, content: Any) -> None:
    stream = io.BytesIO()
    pickler = TorchPickler(stream)
    pickler.dump(content)
    facts = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    with open(path, "wb") as out:
        for part in (0x1950A86A20F9469CFC6C, 1001, facts):
            pickle.dump(part, out, PROTOCOL)
        out.write(stream.getvalue())
        pickle.dump([str(key) for key in range(len(pickler.storages))], out, PROTOCOL)
        for storage in pickler.storages:
            out.write(struct.pack("<Q", storage.size) + storage.tobytes())
