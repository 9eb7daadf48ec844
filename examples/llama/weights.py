"""Reads checkpoints of four kinds: GGUF and Hugging Face's of every family, Meta's and llama2.c's of LLaMA."""
from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from examples.llama.checkpoint import Checkpoint, Weight, check_layers, reorder
from examples.llama.config import Config, Rope
from examples.llama.gguf_files import load_gguf
from examples.llama.hf_files import load_hf
from examples.llama.rope_scaling import llama3_factors
from minigrad import Tensor
from minigrad.dtype import float32
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state import torch_load
from minigrad.state.fields import read_json
from minigrad.state.mapped import MappedFile, as_tensor


def load_checkpoint(path: Path) -> Checkpoint:
    """Weights from a GGUF file, a Hugging Face folder or .safetensors file, a Meta folder, or a llama2.c .bin file.

    Raises FormatError, in one line, for everything else and for files that are truncated or corrupt.
    """
    if path.is_dir():
        if (path / "params.json").is_file():
            return _load_meta(path)
        if (path / "config.json").is_file():
            return load_hf(path, None)
        single = sorted(path.glob("*.gguf"))
        if len(single) != 1:
            raise FormatError(f"{path}: expected config.json, params.json or one .gguf file in the folder, found "
                              f"{len(single)}; check --model")
        path = single[0]
    if not path.is_file():
        raise FormatError(f"{path}: there is no such model; expected a .gguf, .safetensors or .bin file or a folder; "
                          "check --model")
    loaders: dict[str, Callable[[Path], Checkpoint]] = {
        ".gguf": load_gguf, ".safetensors": lambda file: load_hf(file.parent, file), ".bin": _load_llama2c}
    if path.suffix not in loaders:
        raise FormatError(f"{path}: expected a file that ends in {', '.join(loaders)}, or a folder; check --model")
    return loaders[path.suffix](path)


# Meta

_META = {"attention_norm": "attention_norm", "query": "attention.wq", "key": "attention.wk", "value": "attention.wv",
         "attention_out": "attention.wo", "feed_norm": "ffn_norm", "gate": "feed_forward.w1", "up": "feed_forward.w3",
         "down": "feed_forward.w2"}
_META_OUTER = {"embedding": "tok_embeddings.weight", "norm": "norm.weight", "output": "output.weight"}

def _load_meta(folder: Path) -> Checkpoint:
    """params.json and consolidated.*.pth; with several files each holds a slice of every matrix."""
    path = folder / "params.json"
    fields = read_json(path)
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise FormatError(f"{folder}: expected consolidated.00.pth beside params.json, found none; copy it there")
    shards = [_meta_shard(file) for file in files]
    layers = fields.count("n_layers")
    check_layers(layers, shards[0], files[0])
    names = _META_OUTER | {f"layers.{layer}.{ours}": f"layers.{layer}.{theirs}.weight"
                           for layer in range(layers) for ours, theirs in _META.items()}
    for file, shard in zip(files, shards, strict=True):
        if not all([theirs in shard and len(shard[theirs].shape) == (1 if ours.endswith("norm") else 2)
                    for ours, theirs in names.items()]):
            raise FormatError(f"{file}: expected the {len(names)} matrices and vectors of a LLaMA model of "
                              f"{layers} layers; download it again")
    width, heads = fields.count("dim"), fields.count("n_heads")
    head_size = fields.count("head_dim", 2, 1 << 16, default=width // heads)
    tensors: dict[str, Weight] = {ours: _join([shard[theirs] for shard in shards], ours, width)
                                  for ours, theirs in names.items()}
    base = fields.real("rope_theta", 1, 1e12, 10000.0)
    scaled = fields.flag("use_scaled_rope", False)
    factors = llama3_factors(base, head_size // 2, 8192, 8, 1, 4) if scaled else None
    hidden, vocabulary = (evaluate(tensors[name].shape[0], {}) for name in ("layers.0.gate", "embedding"))
    config = Config(width, hidden, layers, heads, fields.count("n_kv_heads", default=heads), vocabulary,
                    fields.count("max_seq_len", default=2048), head_size, fields.real("norm_eps", 0, 1, 1e-5),
                    (Rope(base, factors=factors),))
    return Checkpoint(config, reorder(tensors, config), folder, {})


def _meta_shard(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, which are no larger together than the file: strides can make more elements of
    fewer."""
    loaded = torch_load(file)
    if not isinstance(loaded, dict):
        raise FormatError(f"{file}: expected a dictionary of tensors, got {type(loaded).__name__}; download it again")
    tensors = {name: tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}
    elements, size = sum([evaluate(tensor.numel(), {}) for tensor in tensors.values()]), file.stat().st_size
    if elements > size:
        raise FormatError(f"{file}: expected the weights of a file of {size} bytes, got views of {elements} elements; "
                          "download it again")
    return tensors


def _join(parts: list[Tensor], name: str, width: int) -> Tensor:
    """The whole of a tensor that model-parallel training cut: by outputs, by inputs, or not at all (norms)."""
    if len(parts) == 1 or len(parts[0].shape) == 1:
        return parts[0]
    by_inputs = name.endswith(("attention_out", "down")) or (name == "embedding" and parts[0].shape[1] != width)
    return parts[0].cat(*parts[1:], dim=1 if by_inputs else 0)


# llama2.c


def _load_llama2c(path: Path) -> Checkpoint:
    """Seven int32 and float32 arrays (version 0), or 256 bytes that start with "24ka", the version 1, the same seven.
    """
    file = MappedFile.open(path)
    head = file.part(0, 36, "the header").tobytes()
    legacy = head[:4] != b"24ka"
    if not legacy and head[4:8] != b"\x01\0\0\0":
        version = int.from_bytes(head[4:8], "little")
        raise FormatError(f"{path}: expected version 1 of llama2.c's format, got {version}; "
                          "export the model with --version 1")
    width, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack_from("<7i", head, 0 if legacy else 8)
    tied = vocabulary > 0 if legacy else bool(file.part(36, 1, "the header")[0])
    if min(width, hidden, layers, heads, kv_heads, context) < 1 or vocabulary == 0 or width % heads or heads % kv_heads:
        raise FormatError(f"{path}: expected a model of llama2.c, got a header of {width}, {hidden}, {layers}, "
                          f"{heads}, {kv_heads}, {vocabulary}, {context}; check --model")
    config = Config(width, hidden, layers, heads, kv_heads, abs(vocabulary), context, width // heads)
    tensors: dict[str, Weight] = {}
    at = 28 if legacy else 256
    for name, shape in _llama2c_arrays(config, legacy, tied):
        array = file.array(at, float32, shape, f"the array {name}")
        at += array.nbytes
        if name.startswith("layers."):
            for layer in range(layers):
                tensors[f"layers.{layer}.{name.removeprefix('layers.')}"] = as_tensor(array[layer], float32)
        elif name != "unused":
            tensors[name] = as_tensor(array, float32)
    if at != len(file.data):
        raise FormatError(f"{path}: corrupt: expected {at} bytes for these sizes, the file has {len(file.data)}; "
                          "download it again")
    return Checkpoint(config, reorder(tensors, config), path.parent, {})


def _llama2c_arrays(config: Config, legacy: bool, tied: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The arrays in the order of the file; "layers." ones have all layers in one."""
    layers, width, hidden, kv_width = config.layers, config.width, config.hidden, config.kv_heads * config.head_size
    embedding = ("embedding", (config.vocabulary, width))
    attention_norm, feed_norm = ("layers.attention_norm", (layers, width)), ("layers.feed_norm", (layers, width))
    norm, output = ("norm", (width,)), [] if tied else [("output", (config.vocabulary, width))]
    attention = [("layers.query", (layers, width, width)), ("layers.key", (layers, kv_width, width)),
                 ("layers.value", (layers, kv_width, width)), ("layers.attention_out", (layers, width, width))]
    feed = [("layers.gate", (layers, hidden, width)), ("layers.down", (layers, width, hidden)),
            ("layers.up", (layers, hidden, width))]
    if legacy:
        rotary = ("unused", (2, config.context, config.head_size // 2))  # cosines and sines, which we compute
        return [embedding, attention_norm, *attention, feed_norm, *feed, norm, rotary, *output]
    return [attention_norm, feed_norm, norm, embedding, *attention, *feed, *output]
