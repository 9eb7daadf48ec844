"""Reads LLaMA checkpoints of four kinds: GGUF, Hugging Face, Meta, llama2.c."""
from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.llama.checkpoint import FACTORS, GGUF, HF, META, Checkpoint, Config, Weight, names_of, reorder
from minigrad import Tensor
from minigrad.dtype import float32
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state import GGUFTensor, gguf_load, safe_load, torch_load
from minigrad.state.fields import Fields, brief, read_json, read_text
from minigrad.state.mapped import MappedFile, as_tensor


def load_checkpoint(path: Path) -> Checkpoint:
    """Weights from a GGUF file, a Hugging Face folder or .safetensors file, a Meta folder, or a llama2.c .bin file.

    Raises FormatError, in one line, for everything else and for files that are truncated or corrupt.
    """
    if path.is_dir():
        if (path / "params.json").is_file():
            return _load_meta(path)
        if (path / "config.json").is_file():
            return _load_hf(path, None)
        single = sorted(path.glob("*.gguf"))
        if len(single) != 1:
            raise FormatError(f"{path}: expected config.json, params.json or one .gguf file in the folder, found "
                              f"{len(single)}; check --model")
        path = single[0]
    if not path.is_file():
        raise FormatError(f"{path}: there is no such model; expected a .gguf, .safetensors or .bin file or a folder; "
                          "check --model")
    loaders: dict[str, Callable[[Path], Checkpoint]] = {
        ".gguf": _load_gguf, ".safetensors": lambda file: _load_hf(file.parent, file), ".bin": _load_llama2c}
    if path.suffix not in loaders:
        raise FormatError(f"{path}: expected a file that ends in {', '.join(loaders)}, or a folder; check --model")
    return loaders[path.suffix](path)


# GGUF


def _load_gguf(path: Path) -> Checkpoint:
    metadata, stored = gguf_load(path)
    fields = Fields(metadata, path)
    architecture = fields.text("general.architecture")
    if architecture != "llama":
        raise FormatError(f"{path}: the model's architecture is {brief(architecture)}; expected 'llama'; use another "
                          "model")
    if "token_embd.weight" not in stored:
        raise FormatError(f"{path}: expected the tensor token_embd.weight, found {len(stored)} others; it holds only a "
                          "vocabulary, use a file with weights")
    width, heads = fields.count("llama.embedding_length"), fields.count("llama.attention.head_count")
    head_size = _head_size(fields, "llama.attention.key_length", width, heads)
    scaling = fields.text("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise FormatError(f"{path}: the rotary embedding is scaled by {brief(scaling)}; expected none or factors in "
                          "the file; use another model")
    factors = stored.get("rope_freqs.weight")
    if factors is not None and factors.shape != (head_size // 2,):
        raise FormatError(f"{path}: expected {head_size // 2} factors in rope_freqs.weight, got shape "
                          f"{list(factors.shape)}; download it again")
    rows = stored["token_embd.weight"].shape
    config = Config(width, fields.count("llama.feed_forward_length"), fields.count("llama.block_count"), heads,
                    fields.count("llama.attention.head_count_kv", default=heads),
                    rows[0] if rows else 0, fields.count("llama.context_length"), head_size,
                    _epsilon(fields, "llama.attention.layer_norm_rms_epsilon", 1e-5),
                    _rope_base(fields, "llama.rope.freq_base"),
                    None if factors is None else tuple(factors.numpy().tolist()))
    return Checkpoint(config, reorder(_gguf_tensors(stored, config, path), config), path, metadata)


def _gguf_tensors(stored: Mapping[str, GGUFTensor], config: Config, path: Path) -> dict[str, Weight]:
    """Half and block-quantised matrices as the file has them: products read them so."""
    names = names_of(config.layers, GGUF, stored, path)
    return {ours: stored[theirs].stored() for ours, theirs in names.items() if theirs in stored}


def _head_size(fields: Fields, key: str, width: int, heads: int) -> int:
    return fields.count(key, 2, 1 << 16, default=width // heads)


def _epsilon(fields: Fields, key: str, default: float) -> float:
    return fields.real(key, 0, 1, default)


def _rope_base(fields: Fields, key: str) -> float:
    return fields.real(key, 1, 1e12, 10000.0)


# Hugging Face


def _load_hf(folder: Path, single: Path | None) -> Checkpoint:
    """config.json, and safetensors: the file given, or all that the folder's index lists, or model.safetensors."""
    path = folder / "config.json"
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file; expected the model's description beside its weights; "
                          "copy it there")
    fields = read_json(path)
    kind = fields.text("model_type")
    if kind not in ("llama", "mistral"):
        raise FormatError(f"{path}: the model's type is {brief(kind)}; expected 'llama' or 'mistral'; use another "
                          "model")
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_size = _head_size(fields, "head_dim", width, heads)
    base = _rope_base(fields, "rope_theta")
    stored: dict[str, Tensor] = {}
    for file in [single] if single else _hf_files(folder):
        stored |= safe_load(file)
    names = names_of(fields.count("num_hidden_layers"), HF, stored, path)
    config = Config(width, fields.count("intermediate_size"), fields.count("num_hidden_layers"), heads,
                    fields.count("num_key_value_heads", default=heads), fields.count("vocab_size"),
                    fields.count("max_position_embeddings", default=2048), head_size,
                    _epsilon(fields, "rms_norm_eps", 1e-6), base,
                    _rope_factors(fields.inner("rope_scaling"), base, head_size))
    tensors: dict[str, Weight] = {ours: stored[theirs] for ours, theirs in names.items() if theirs in stored}
    if fields.flag("tie_word_embeddings", False):
        tensors.pop("output", None)
    return Checkpoint(config, tensors, folder, _chat_template(folder))


def _chat_template(folder: Path) -> dict[str, Any]:
    """The template in a file of its own or in tokenizer_config.json, which may list several by name."""
    if (folder / "chat_template.jinja").is_file():
        return {"tokenizer.chat_template": read_text(folder / "chat_template.jinja")}
    settings = folder / "tokenizer_config.json"
    fields = read_json(settings) if settings.is_file() else Fields({}, settings)
    if isinstance(fields.content.get("chat_template"), list):
        named = [Fields(entry, settings) for entry in fields.items("chat_template", dict)]
        fields = Fields({"chat_template": next((entry.text("template") for entry in named
                                                if entry.text("name") == "default"), None)}, settings)
    return {"tokenizer.chat_template": fields.text("chat_template")} if "chat_template" in fields else {}


def _hf_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weights = read_json(index).inner("weight_map")
        files = [folder / name for name in sorted({weights.file_name(tensor) for tensor in weights})]
    else:
        files = [folder / "model.safetensors"]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise FormatError(f"{missing[0]}: there is no such file; expected {len(files)} files of weights in the folder; "
                          "download it")
    return files


def _rope_factors(scaling: Fields, base: float, head_size: int) -> tuple[float, ...] | None:
    """The divisors of the rotary frequencies: LLaMA 3.1's stretch of the long wavelengths, or a plain linear one."""
    if not list(scaling):
        return None
    kind = scaling.text("rope_type" if "rope_type" in scaling else "type")
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise FormatError(f"{scaling.source}: the rotary embedding is scaled by {brief(kind)}; expected 'llama3' or "
                          "'linear'; use another model")
    pairs, factor = head_size // 2, scaling.real("factor", *FACTORS)
    if kind == "linear":
        return (factor,) * pairs
    low = scaling.real("low_freq_factor", *FACTORS)
    high = scaling.real("high_freq_factor", low + FACTORS[0], 2 * FACTORS[1])
    original = scaling.count("original_max_position_embeddings")
    turns = original * base ** (-np.arange(pairs) / pairs) / (2 * np.pi)  # that each pair makes in the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


# Meta


def _load_meta(folder: Path) -> Checkpoint:
    """params.json and consolidated.*.pth; with several files each holds a slice of every matrix."""
    path = folder / "params.json"
    fields = read_json(path)
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise FormatError(f"{folder}: expected consolidated.00.pth beside params.json, found none; copy it there")
    shards = [_meta_shard(file) for file in files]
    names = names_of(fields.count("n_layers"), META, shards[0], files[0])
    for file, shard in zip(files, shards, strict=True):
        if not all([theirs in shard and len(shard[theirs].shape) == (1 if ours.endswith("norm") else 2)
                    for ours, theirs in names.items()]):
            raise FormatError(f"{file}: expected the {len(names)} matrices and vectors of a LLaMA model of "
                              f"{fields.count('n_layers')} layers; download it again")
    width, heads = fields.count("dim"), fields.count("n_heads")
    head_size = _head_size(fields, "head_dim", width, heads)
    tensors: dict[str, Weight] = {ours: _join([shard[theirs] for shard in shards], ours, width)
                                  for ours, theirs in names.items()}
    base = _rope_base(fields, "rope_theta")
    scaling = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192} if fields.flag("use_scaled_rope", False) else {}
    hidden, vocabulary = (evaluate(tensors[name].shape[0], {}) for name in ("layers.0.gate", "embedding"))
    config = Config(width, hidden, fields.count("n_layers"), heads, fields.count("n_kv_heads", default=heads),
                    vocabulary, fields.count("max_seq_len", default=2048), head_size,
                    _epsilon(fields, "norm_eps", 1e-5), base, _rope_factors(Fields(scaling, path), base, head_size))
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
