"""Files made to do harm: to change the process, to open other files, to take more memory or time than their size."""
from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import devices
from support.file_outcomes import OPTIONS, bounded, chat_outcome, load_model
from support.file_samples import SAMPLES, WIDTH, Sample, gguf_part, tokenizer, write
from support.model_files import Call, Ref, View, write_gguf, write_torch_stream, write_torch_zip

from minigrad import Tensor
from minigrad.errors import FormatError, MinigradError, ShapeError
from minigrad.state import QuantizedTensor, gguf_load, pickle_machine, safe_load, torch_load, torch_pickle
from minigrad.state.quantized import quantize_blocks

# Pickles


def load_program(folder: Path, program: bytes, storage: np.ndarray | None = None) -> Any:
    """What `torch_load` makes of a zip with this pickle and at most one storage."""
    with zipfile.ZipFile(folder / "a.pth", "w") as archive:
        archive.writestr("a/data.pkl", program)
        if storage is not None:
            archive.writestr("a/data/0", storage.tobytes())
    return torch_load(folder / "a.pth")


STORAGE = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x18tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00K\x18\x85K\x01\x85tR"
TARGETS = {
    "Size": b"ctorch\nSize\n", "OrderedDict": b"ccollections\nOrderedDict\n", "FloatStorage": b"ctorch\nFloatStorage\n",
    "rebuild": b"ctorch._utils\n_rebuild_tensor_v2\n", "rebuild 1": b"ctorch._utils\n_rebuild_tensor\n",
    "parameter": b"ctorch._utils\n_rebuild_parameter\n", "storage": STORAGE, "tensor": TENSOR, "list": b"]",
    "dict": b"}", "set": b"\x8f", "tuple": b")", "text": b"U\x01x", "bytes": b"C\x01x", "number": b"K\x01",
    "none": b"N", "size": b"ctorch\nSize\n)R", "an OrderedDict": b"ccollections\nOrderedDict\n)R"}
"""What a pickle can have on its stack: every name that it may use, and an instance of every type that it can make."""
STATES = {"an attribute": b"}U\x08__repr__K\x01s", "a method": b"}U\x05itemsK\x01s",
          "defaults": b"}U\x0c__defaults__)s", "slots": b"N}U\x05dtypeK\x01s\x86", "nothing": b"}",
          "none": b"N", "a list": b"]"}


def everything() -> dict[str, Any]:
    """All that the readers' modules and classes have, and what functions take by default."""
    found: dict[str, Any] = {}
    for owner in (torch_pickle, pickle_machine, torch_pickle.Storage, torch_pickle.TensorBuilder,
                  pickle_machine.Machine, pickle_machine.Function, torch_pickle.DType, Tensor):
        for name, value in vars(owner).items():
            found[f"{owner.__name__}.{name}"] = (id(value), getattr(value, "__defaults__", None),
                                                 len(getattr(value, "__dict__", ())))
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("state", STATES)
def test_a_pickle_changes_nothing_but_what_it_made(tmp_path: Path, target: str, state: str) -> None:
    """BUILD, on everything that can be on the stack: only an OrderedDict takes it, and keeps its methods."""
    program, before = b"\x80\x02" + TARGETS[target] + STATES[state] + b"b.", everything()
    if target == "an OrderedDict" and STATES[state][:1] == b"}":
        loaded = load_program(tmp_path, program, np.zeros(24, np.float32))
        assert loaded == OrderedDict() and vars(loaded) == {}
    else:
        with pytest.raises(FormatError, match=r"attributes for a \w+, expected them for an OrderedDict only"):
            load_program(tmp_path, program, np.zeros(24, np.float32))
    assert everything() == before


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("instruction", [b")R", b"(K\x01tR", b")\x81", b")}\x92", b"K\x01a", b"K\x01K\x01s", b"(K\x01e",
                                         b"(K\x01K\x01u", b"(K\x01\x90", b"Q"])
def test_instructions_on_everything(tmp_path: Path, target: str, instruction: bytes) -> None:
    """Calls, objects, elements and items: what fits the type is done, the rest refused."""
    before = everything()
    try:
        loaded = load_program(tmp_path, b"\x80\x02" + TARGETS[target] + instruction + b".", np.zeros(24, np.float32))
    except FormatError as error:
        assert str(error).isprintable()
    else:
        assert type(loaded) in (list, dict, set, tuple, OrderedDict, int)
    assert everything() == before


BOMBS = {
    "a memo index of 2^27": (b"]r\x00\x00\x00\x08.", []),
    "a memo index of 2^32": (b"]r\xff\xff\xff\xff.", []),
    "a memo index of 10^15": (b"]p1000000000000000\n.", []),
    "a string of 2^60 bytes": (b"\x8e" + struct.pack("<Q", 1 << 60) + b".", "truncated"),
    "a text of 2^32 bytes": (b"X\xff\xff\xff\xffx.", "truncated"),
    "a frame of 2^60 bytes": (b"\x95" + struct.pack("<Q", 1 << 60) + b"].", []),
    "a number of 20,000 digits": (b"L" + b"9" * 20_000 + b"L\n.", "truncated"),
    "tuples of tuples as a key": (b"})" + b"2\x86" * 100 + b"K\x01s.", "as a key"),
    "tuples of tuples in a set": (b"(" + b")" + b"2\x86" * 100 + b"\x91.", "as a key"),
    "tuples of tuples as a storage": (b")" + b"2\x86" * 100 + b"Q.", "a storage described by"),
    "tuples of tuples as a name": (b")" + b"2\x86" * 100 + b"2\x93.", "expected two strings"),
    "a long number as a key": (b"}\x8b" + struct.pack("<I", 100_000) + b"\x7f" * 100_000 + b"K\x01s.", "as a key"),
    "a long torch.Size": (b"ctorch\nSize\n(" + b"K\x01" * 100 + b"t\x85R.", "at most 32 sizes"),
    "copies of a list of pairs": (b"(]q\x00(" + b"K\x01K\x01\x86" * 1000 + b"e" + (
        b"ccollections\nOrderedDict\nh\x00\x85R" * 1000) + b"l.", "not made of pairs of its own"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("zipped", [True, False])
def test_small_pickles_take_little(tmp_path: Path, name: str, zipped: bool) -> None:
    program, expected = BOMBS[name]

    def load() -> Any:
        if zipped:
            return load_program(tmp_path, b"\x80\x02" + program)
        parts: list[Any] = [0x1950A86A20F9469CFC6C, 1001, {}]
        facts = [pickle.dumps(part, 2) for part in parts]
        (tmp_path / "a.pth").write_bytes(b"".join(facts) + program + pickle.dumps([], 2))
        return torch_load(tmp_path / "a.pth")

    with bounded():
        if isinstance(expected, str):
            with pytest.raises(FormatError, match=expected) as error:
                load()
            assert str(error.value).isprintable() and len(str(error.value)) < 1000
        else:
            assert load() == expected


@pytest.mark.parametrize("write_torch", [write_torch_zip, write_torch_stream])
def test_views_larger_than_their_storage(tmp_path: Path, write_torch: Any) -> None:
    """Repeated elements are not stored; what would be is at most eight times the file."""
    storage = np.arange(24, dtype=np.float32)
    write_torch(tmp_path / "a.pth", {"long": View(storage, 5, (1 << 31,), (0,)),
                                     "wide": View(storage, 0, (3, 1 << 20, 4), (1, 0, 6))})
    with bounded():
        loaded = torch_load(tmp_path / "a.pth")
        assert loaded["long"].shape == (1 << 31,) and loaded["long"][123456].item() == 5
        assert loaded["wide"][:, 7].tolist() == [[0, 6, 12, 18], [1, 7, 13, 19], [2, 8, 14, 20]]
        large = np.arange(40_000, dtype=np.float32)
        write_torch(tmp_path / "b.pth", [View(large, 0, (200, 200), (1, 200))] * 3)
        assert [tensor[1].tolist()[:2] for tensor in torch_load(tmp_path / "b.pth")] == [[1, 201]] * 3
        write_torch(tmp_path / "b.pth", [View(large, 0, (200, 200), (1, 200))] * 100)
        with pytest.raises(FormatError, match=r"tensors of \d+ bytes in views of a file of \d+"):
            torch_load(tmp_path / "b.pth")
        write_torch(tmp_path / "b.pth", View(large, 0, (20_000, 20_000), (1, 1)))
        with pytest.raises(FormatError, match=r"tensors of 1600000000 bytes in views of a file of \d+"):
            torch_load(tmp_path / "b.pth")


def test_a_zip_with_members_that_share_their_bytes(tmp_path: Path) -> None:
    """Storages that are not aligned are copied, and all together at most eight times the file."""
    program = b"\x80\x02(" + b"".join([
        STORAGE.replace(b"U\x010", b"U\x03%03d" % k).replace(b"K\x18", b"M\xa8\x61") for k in range(100)]) + b"l."
    for shift in range(4):
        with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
            archive.writestr("a/data/000", bytes(100_000))
            first = archive.getinfo("a/data/000")
            archive.writestr("a/data.pkl", program)
            for k in range(1, 100):
                other = zipfile.ZipInfo(f"a/data/{k:03}")
                other.file_size, other.compress_size, other.header_offset, other.CRC = 100_000, 100_000, 0, 0
                archive.filelist.append(other)
        data = (tmp_path / "a.pth").read_bytes()
        (tmp_path / "a.pth").write_bytes(data[:28] + bytes([shift]) + data[29:])  # the length of an extra field
        with bounded():
            if (30 + len(first.filename) + shift) % 4:
                with pytest.raises(FormatError, match=r"tensors of \d+ bytes in views of a file"):
                    torch_load(tmp_path / "a.pth")
            else:
                assert len(torch_load(tmp_path / "a.pth")) == 100


# Names of other files


@pytest.mark.parametrize("name", [
    "{}/outside.safetensors", "../outside.safetensors", "inner/../../outside.safetensors", "inner/a.safetensors",
    "./model-0.safetensors", "..\\outside.safetensors", "..", ".", "", "a\0b", "a\nb", "\ud800", "x" * 300, 7, None,
    ["model-0.safetensors"]])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    write(SAMPLES["hugging face"](), folder)
    (folder / "inner" / "a.safetensors").write_bytes((folder / "model-0.safetensors").read_bytes())
    (tmp_path / "outside.safetensors").write_bytes((folder / "model-0.safetensors").read_bytes())
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    key = next(key for key, file in index["weight_map"].items() if file == "model-0.safetensors")
    index["weight_map"][key] = name.format(tmp_path) if isinstance(name, str) else name
    path.write_text(json.dumps(index))
    with pytest.raises(FormatError, match=f"'weight_map': expected '{key}' to be (a string|the name of a file in the)"):
        load_model(folder)


# Sizes that a file only claims


def set_field(sample: Sample, file: str, key: str, value: Any) -> Sample:
    content = sample[file].content
    if file.endswith(".json"):
        content[key] = value
    elif file.endswith(".gguf"):
        kind = 12 if isinstance(value, float) else 10
        content["metadata"] = [(name, kind, value) if name == f"llama.{key}" else (name, of, old)
                               for name, of, old in content["metadata"]]
    else:
        content["header"][int(key)] = value
    return sample


FIELDS = [("hugging face", "config.json", key) for key in (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "head_dim", "max_position_embeddings")] + [("meta", "params.json", key) for key in (
        "n_layers", "dim", "n_heads", "n_kv_heads", "max_seq_len")] + [("gguf model", "model.gguf", key) for key in (
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
            "attention.key_length", "context_length")] + [
    (f"llama2c {version}", "model.bin", str(k)) for version in range(2) for k in range(7)]
CONTEXTS = ("max_position_embeddings", "max_seq_len", "context_length", "6")


@pytest.mark.parametrize("name, file, key", FIELDS)
def test_sizes_in_a_description(tmp_path: Path, name: str, file: str, key: str) -> None:
    """Large, wrong and impossible values of every size: an error in one line, quickly. Contexts may be long."""
    values: list[Any] = [0, -1, 10**6, 10**7, 2**31 - 1]
    values += [] if name.startswith("llama2c") else [2**62, 1e6, 1e18, 1.5, float("inf"), float("nan")]
    for value in values:
        write(set_field(SAMPLES[name](), file, key, value), tmp_path)
        with bounded():
            try:
                load_model(tmp_path if file.endswith(".json") else tmp_path / file)
            except MinigradError as error:
                assert str(error).isprintable()
            else:
                assert key in CONTEXTS and value >= 10**6, value


@pytest.mark.parametrize("shape", [(0,), (0, 1 << 62), (1 << 62, 0), (1 << 62,), (1 << 62, 1 << 62), (1,) * 40,
                                   (1 << 31, 1 << 31), (-1,), (2.0,), ("2",), (True,), 7, None])
def test_shapes_in_every_format(tmp_path: Path, shape: Any) -> None:
    """A tensor of a shape without elements is read, of an impossible one refused."""
    readers: list[tuple[str, Callable[[], Any]]] = []
    if isinstance(shape, tuple) and all([type(n) is int and n >= 0 for n in shape]):
        write_gguf(tmp_path / "a.gguf", [], [("w", shape, 0, b"")])
        readers.append(("gguf", lambda: gguf_load(tmp_path / "a.gguf")[1]["w"].numpy()))
        write_gguf(tmp_path / "b.gguf", [], [("w", shape, 8, b"")])
        readers.append(("gguf blocks", lambda: gguf_load(tmp_path / "b.gguf")[1]["w"].stored()))
    for write_torch in (write_torch_zip, write_torch_stream):
        path = tmp_path / f"{write_torch.__name__}.pth"
        strides = (1,) * len(shape) if isinstance(shape, tuple) else shape
        write_torch(path, [View(np.zeros(1, np.float32), 0, shape, strides)])
        readers.append(("torch", lambda path=path: torch_load(path)[0].numpy()))  # type: ignore[misc]
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    readers.append(("safetensors", lambda: safe_load(tmp_path / "a.safetensors")["w"].numpy()))
    for name, read in readers:
        with bounded():
            try:
                found = read()
            except FormatError as error:
                assert str(error).isprintable() and shape != (0,), name
            else:
                assert shape == (0,) and tuple(found.shape) == shape, name


def test_many_tensors(tmp_path: Path) -> None:
    """Time and memory in proportion to the file; tensors that share their bytes are refused."""
    write_gguf(tmp_path / "a.gguf", [], [(f"t{k}", (1,), 0, bytes(4)) for k in range(20_000)])
    with bounded(2):
        assert len(gguf_load(tmp_path / "a.gguf")[1]) == 20_000
    part = gguf_part([], {"a": ((1000,), 0, bytes(4000)), "b": ((1000,), 0, b"")})
    part.content["tensors"][1]["offset"] = 0
    write({"a.gguf": part}, tmp_path)
    with pytest.raises(FormatError, match=r"expected tensors that do not overlap, got \d+ bytes of them in a file of"):
        gguf_load(tmp_path / "a.gguf")


def test_matrices_without_elements_are_not_quantised() -> None:
    for shape in ((0, 32), (4, 0), (0, 0)):
        for kind in ("Q8_0", "Q4_0", "Q4_1"):
            with pytest.raises(ShapeError, match="expected a matrix"):
                quantize_blocks(np.zeros(shape, np.float32), kind)
            with pytest.raises(ShapeError, match="expected a matrix"):
                QuantizedTensor.from_blocks(kind, shape, np.zeros(0, np.uint8))
    for value in (np.nan, np.inf, -np.inf, 1e38):
        for kind in ("Q8_0", "Q4_0", "Q4_1"):
            assert quantize_blocks(np.full((2, 32), value, np.float32), kind).shape[:2] == (2, 1)


def test_calls_with_arguments_of_every_type(tmp_path: Path) -> None:
    """The functions that a checkpoint may call, with arguments that torch.save never writes."""
    odd: list[Any] = [None, -1, 1 << 70, 1.5, "x", (), (1,), ((),), [], [[1, 2]], {}, {"a": 1}, True]
    for module, name in (("torch", "Size"), ("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2"),
                         ("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_parameter"),
                         ("torch._utils", "_rebuild_parameter_with_state")):
        for value in odd:
            for count in range(6):
                write_torch_zip(tmp_path / "a.pth", [Call(Ref(module, name), (value,) * count)])
                try:
                    torch_load(tmp_path / "a.pth")
                except FormatError as error:
                    assert str(error).isprintable()
    view = View(np.zeros(4, np.float32), 0, (2, 2), (2, 1))
    for part in ("offset", "shape", "strides"):
        for value in odd:
            write_torch_zip(tmp_path / "a.pth", [view._replace(**{part: value})])
            try:
                torch_load(tmp_path / "a.pth")[0].numpy()
            except FormatError as error:
                assert str(error).isprintable()


# Weights


@pytest.mark.parametrize("device", [name for name in devices() if name in ("CPU", "NUMPY")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_weights_that_are_not_finite(tmp_path: Path, device: str, value: float) -> None:
    """Their answers are no text: one line says that the weights are damaged, whatever chooses among the tokens."""
    sample = SAMPLES["llama2c 1"]()
    content = sample["model.bin"].content
    content["data"] = struct.pack("<f", value) * WIDTH + content["data"][4 * WIDTH:]
    write(sample, tmp_path)
    (tmp_path / "tok.bin").write_bytes(tokenizer())
    for more in OPTIONS:
        said = chat_outcome(tmp_path, tmp_path / "model.bin", tmp_path / "tok.bin", "--device", device, *more)
        assert said == "refused" or (value == 3e38 and said == "loaded")
