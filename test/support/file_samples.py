"""Small valid files of every format that is read, as parts with fields that can be changed before they are encoded."""
from __future__ import annotations

import io
import json
import pickle
import pickletools
import struct
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.model_files import Call, Ref, TorchPickler, View, gguf_string

WIDTH, HIDDEN, LAYERS, HEADS, KEYS, VOCABULARY, CONTEXT = 32, 64, 2, 4, 2, 272, 64
DEEP = "deep"
"""Stands for a list in a list in a list, 5,000 deep, where JSON is written."""
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


@dataclass
class Part:
    """One file: `content` is what mutations change, `encode` makes bytes of it."""

    content: Any
    encode: Callable[[Any], bytes]


Sample = dict[str, Part]
"""Files by name; the first one is what a reader is given, unless it reads the folder."""


def json_part(content: Any) -> Part:
    return Part(content, _json)


def _json(content: Any) -> bytes:
    return json.dumps(content).replace(json.dumps(DEEP), "[" * 5000 + "]" * 5000).encode()


# safetensors


def encode_safetensors(content: dict[str, Any]) -> bytes:
    header = _json(content["header"])
    return struct.pack("<Q", len(header)) + header + content["data"]


def safetensors_part(arrays: dict[str, np.ndarray]) -> Part:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL"}[array.dtype.name]
        start, data = len(data), data + array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, len(data)]}
    return Part({"header": header, "data": data}, encode_safetensors)


# GGUF


def gguf_value(kind: int, value: Any) -> bytes:
    """`value` as GGUF type `kind`, whatever it is: numbers are cut to fit, and what is none is 0."""
    if kind == 8:
        return gguf_string(value if isinstance(value, str) else str(value))
    if kind == 9:
        of, elements = value if isinstance(value, tuple) else (4, [value])
        return struct.pack("<IQ", of, len(elements)) + b"".join([gguf_value(of, each) for each in elements])
    form = SCALARS.get(kind, "I")
    number = value if isinstance(value, int | float) else 0
    if form in "fd":
        return struct.pack("<" + form, np.float32(min(max(number, -1e38), 1e38) if number == number else number))
    number = int(number) if abs(number) < 1e30 else 0
    return (number & (1 << 64) - 1).to_bytes(8, "little")[:struct.calcsize(form)]


def _gguf(content: dict[str, Any]) -> bytes:
    metadata, tensors = content["metadata"], content["tensors"]
    out = bytearray(content["magic"] + struct.pack("<I", content["version"]))
    out += struct.pack("<QQ", (len(tensors) + content["more"]) % (1 << 64), len(metadata))
    for key, kind, value in metadata:
        out += gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)
    at = 0
    for tensor in tensors:
        out += gguf_string(tensor["name"]) + struct.pack("<I", len(tensor["shape"]))
        out += b"".join([gguf_value(10, n) for n in tensor["shape"][::-1]])
        out += gguf_value(4, tensor["format"]) + gguf_value(10, tensor.get("offset", at))
        at += -(-len(tensor["data"]) // 32) * 32
    out += bytes(-len(out) % 32)
    for tensor in tensors:
        out += tensor["data"] + bytes(-len(tensor["data"]) % 32)
    return bytes(out)


def gguf_part(metadata: list[tuple[str, int, Any]], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> Part:
    listed = [{"name": name, "shape": list(shape), "format": form, "data": data}
              for name, (shape, form, data) in tensors.items()]
    return Part({"magic": b"GGUF", "version": 3, "more": 0, "metadata": list(metadata), "tensors": listed}, _gguf)


# PyTorch


def instructions(program: bytes) -> list[bytes]:
    """A pickle, cut into its instructions."""
    starts = [at for _, _, at in pickletools.genops(program)]
    return [program[a:b] for a, b in zip(starts, [*starts[1:], len(program)], strict=True)]


def _pickled(content: Any) -> tuple[list[bytes], list[bytes]]:
    stream = io.BytesIO()
    pickler = TorchPickler(stream)
    pickler.dump(content)
    return instructions(stream.getvalue()), [storage.tobytes() for storage in pickler.storages]


def _torch_zip(content: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"".join(content["program"]))
        archive.writestr("archive/byteorder", b"little")
        for key, storage in enumerate(content["storages"]):
            archive.writestr(f"archive/data/{key}", storage)
    return stream.getvalue()


def _torch_stream(content: dict[str, Any]) -> bytes:
    sizes = [struct.pack("<Q", count) for count in content["counts"]]
    tail = b"".join([size + storage for size, storage in zip(sizes, content["storages"], strict=False)])
    return content["head"] + b"".join(content["program"]) + b"".join(content["keys"]) + tail


def torch_part(content: Any, zipped: bool) -> Part:
    program, storages = _pickled(content)
    if zipped:
        return Part({"program": program, "storages": storages}, _torch_zip)
    facts = {"protocol_version": 1001, "little_endian": True}
    head = b"".join([pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, facts)])
    keys = instructions(pickle.dumps([str(key) for key in range(len(storages))], 2))
    return Part({"program": program, "storages": storages, "head": head, "keys": keys,
                 "counts": [len(storage) // 4 for storage in storages]}, _torch_stream)


def torch_content() -> dict[str, Any]:
    storage = np.arange(24, dtype=np.float32)
    parameter = Call(Ref("torch._utils", "_rebuild_parameter"), (View(storage, 2, (3, 2), (1, 6)), True, OrderedDict()))
    return {"model": OrderedDict(a=View(storage, 0, (4, 6), (6, 1)), b=parameter), "epoch": 3, "rate": 0.5,
            "shape": Call(Ref("torch", "Size"), ((1, 2),)), "wide": View(storage, 1, (5, 3), (0, 1)),
            "betas": (0.9, 0.99), "names": ["x", None, True, {"deep": [1, (2, 3)]}]}


# Models: the same weights in four formats


def weights(names: dict[str, str]) -> dict[str, np.ndarray]:
    """Arrays under the names of a format; `names` maps ours to a pattern with the layer's number."""
    random, keys = np.random.default_rng(0), WIDTH // HEADS * KEYS
    shapes = {"attention_norm": (WIDTH,), "query": (WIDTH, WIDTH), "key": (keys, WIDTH), "value": (keys, WIDTH),
              "attention_out": (WIDTH, WIDTH), "feed_norm": (WIDTH,), "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH),
              "down": (WIDTH, HIDDEN), "embedding": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
    return {names[ours].format(layer) + ".weight": random.standard_normal(shape).astype(np.float32)
            for ours, shape in shapes.items() for layer in range(LAYERS if "{}" in names[ours] else 1)}


def _names(prefix: str, *inner: str) -> dict[str, str]:
    ours = ("attention_norm", "query", "key", "value", "attention_out", "feed_norm", "gate", "up", "down")
    return dict(zip(ours, [f"{prefix}.{{}}.{name}" for name in inner[:9]], strict=True)) | {
        "embedding": inner[9], "norm": inner[10]}


HF_NAMES = _names("model.layers", "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                  "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
                  "model.embed_tokens", "model.norm")
META_NAMES = _names("layers", "attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo",
                    "ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2", "tok_embeddings", "norm")
GGUF_NAMES = _names("blk", "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
                    "ffn_down", "token_embd", "output_norm")


def hf_folder() -> Sample:
    arrays = weights(HF_NAMES)
    files = {name: f"model-{k % 2}.safetensors" for k, name in enumerate(arrays)}
    config = {"model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "vocab_size": VOCABULARY, "head_dim": 8,
              "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "tie_word_embeddings": True, "rope_scaling": {
                  "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}}
    template = [{"name": "tool", "template": "x"}, {"name": "default", "template": "<|user|>"}]
    return {"config.json": json_part(config),
            "model.safetensors.index.json": json_part({"metadata": {}, "weight_map": files}),
            "tokenizer_config.json": json_part({"chat_template": template}),
            **{f"model-{k}.safetensors": safetensors_part(
                {name: array for name, array in arrays.items() if files[name] == f"model-{k}.safetensors"})
               for k in range(2)}}


def meta_folder() -> Sample:
    params = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KEYS, "vocab_size": -1,
              "norm_eps": 1e-5, "rope_theta": 10000.0, "max_seq_len": CONTEXT, "use_scaled_rope": True}
    views = {name: View(array.reshape(-1), 0, array.shape, tuple(s // 4 for s in array.strides))
             for name, array in {**weights(META_NAMES), "output.weight": weights(META_NAMES)[
                 "tok_embeddings.weight"]}.items()}
    return {"params.json": json_part(params), "consolidated.00.pth": torch_part(views, zipped=True)}


def gguf_model() -> Sample:
    from minigrad.state.quantized import quantize_blocks
    numbers = {"embedding_length": WIDTH, "feed_forward_length": HIDDEN, "block_count": LAYERS,
               "context_length": CONTEXT, "attention.head_count": HEADS, "attention.head_count_kv": KEYS,
               "attention.key_length": WIDTH // HEADS}
    metadata: list[tuple[str, int, Any]] = [
        ("general.architecture", 8, "llama"), ("general.alignment", 4, 32),
        *((f"llama.{key}", 4, value) for key, value in numbers.items()),
        ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5), ("llama.rope.freq_base", 6, 10000.0),
        ("llama.rope.scaling.type", 8, "none"), ("tokenizer.chat_template", 8, "<|user|>"),
        ("list", 9, (8, ["a", "bc"])), ("numbers", 9, (5, [1, -2, 3]))]
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {"rope_freqs.weight": (
        (4,), 0, np.array([1, 1, 2, 4], np.float32).tobytes())}
    for k, (name, array) in enumerate(weights(GGUF_NAMES).items()):
        form, kind = ((8, "Q8_0"), (2, "Q4_0"), (3, "Q4_1"), (1, ""), (0, ""))[k % 5] if array.ndim == 2 else (0, "")
        data = quantize_blocks(array, kind) if kind else array.astype(np.float16) if form else array
        tensors[name] = (array.shape, form, data.tobytes())
    return {"model.gguf": gguf_part(metadata, tensors)}


def _llama2c(content: dict[str, Any]) -> bytes:
    header = b"".join([gguf_value(5, n) for n in content["header"]])
    if not content["version"]:
        return header + content["data"]
    return (b"24ka" + struct.pack("<I", content["version"]) + header + b"\1").ljust(256, b"\0") + content["data"]


def llama2c_model(version: int) -> Sample:
    keys, head = WIDTH // HEADS * KEYS, WIDTH // HEADS
    count = WIDTH + VOCABULARY * WIDTH + (CONTEXT * head if not version else 0) + LAYERS * (
        2 * WIDTH + 2 * WIDTH * WIDTH + 2 * keys * WIDTH + 3 * HIDDEN * WIDTH)
    data = np.random.default_rng(0).standard_normal(count).astype(np.float32).tobytes()
    header = [WIDTH, HIDDEN, LAYERS, HEADS, KEYS, VOCABULARY, CONTEXT]
    return {"model.bin": Part({"version": version, "header": header, "data": data}, _llama2c)}


def tokenizer() -> bytes:
    """A vocabulary of llama2c's for these models."""
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *[b"<0x%02X>" % byte for byte in range(256)],
              *[bytes([97 + k]) for k in range(VOCABULARY - 259)]]
    return struct.pack("<i", 8) + b"".join([struct.pack("<fi", -float(k), len(piece)) + piece
                                            for k, piece in enumerate(pieces)])


def arrays_sample() -> dict[str, np.ndarray]:
    return {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones((2, 2, 2), np.float16),
            "c": np.array(7), "d": np.array([True, False]), "empty": np.zeros((0, 3), np.float32)}


def gguf_tensors() -> Sample:
    from minigrad.state.gguf_quants import KINDS
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {
        f"t{form}": ((2, kind.block), form, bytes(range(256))[:kind.block_bytes] * 2) for form, kind in KINDS.items()}
    values: list[tuple[str, int, Any]] = [(f"k{kind}", kind, 1) for kind in SCALARS]
    values += [("s", 8, "x"), ("l", 9, (8, ["a", "b"])), ("n", 9, (6, [1.0, 2.0]))]
    return {"a.gguf": gguf_part(values, tensors)}


SAMPLES: dict[str, Callable[[], Sample]] = {
    "torch zip": lambda: {"a.pth": torch_part(torch_content(), zipped=True)},
    "torch stream": lambda: {"a.pth": torch_part(torch_content(), zipped=False)},
    "safetensors": lambda: {"a.safetensors": safetensors_part(arrays_sample())},
    "gguf": gguf_tensors,
    "hugging face": hf_folder,
    "meta": meta_folder,
    "gguf model": gguf_model,
    "llama2c 0": lambda: llama2c_model(0),
    "llama2c 1": lambda: llama2c_model(1),
}


def write(sample: Sample, folder: Path) -> None:
    for name, part in sample.items():
        (folder / name).write_bytes(part.encode(part.content))


def scratch() -> Any:
    """A folder in memory where there is one, as thousands of files are written."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="files-", dir=memory if memory.is_dir() else None)
