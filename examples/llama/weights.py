"""Reads LLaMA checkpoints of four kinds: GGUF, Hugging Face, Meta, llama2.c."""
from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.llama.checkpoint import GGUF, HF, META, Checkpoint, Config, Weight, names_of, number, read_json, reorder
from minigrad import Tensor
from minigrad.dtype import float32
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state import GGUFTensor, gguf_load, safe_load, torch_load
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
            raise FormatError(f"{path}: expected config.json, params.json or one .gguf file in the folder, found none; "
                              "check --model")
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
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise FormatError(f"{path}: the model's architecture is {architecture!r}; expected 'llama'; use another model")
    if "token_embd.weight" not in stored:
        raise FormatError(f"{path}: expected the tensor token_embd.weight, found {len(stored)} others; it holds only a "
                          "vocabulary, use a file with weights")

    def field(key: str, default: Any = None, kind: type = int) -> Any:
        return number(metadata, f"llama.{key}", path, default, kind)

    width, heads = field("embedding_length"), field("attention.head_count")
    head_size = field("attention.key_length", width // heads)
    factors = stored.get("rope_freqs.weight")
    config = Config(width, field("feed_forward_length"), field("block_count"), heads,
                    field("attention.head_count_kv", heads), stored["token_embd.weight"].shape[0],
                    field("context_length"), head_size, field("attention.layer_norm_rms_epsilon", 1e-5, float),
                    field("rope.freq_base", 10000.0, float),
                    None if factors is None else tuple(factors.numpy().reshape(-1).tolist()))
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise FormatError(f"{path}: the rotary embedding is scaled by {scaling!r}; expected none or factors in the "
                          "file; use another model")
    return Checkpoint(config, reorder(_gguf_tensors(stored, config), config), path, metadata)


def _gguf_tensors(stored: Mapping[str, GGUFTensor], config: Config) -> dict[str, Weight]:
    """Half and block-quantised matrices as the file has them: products read them so."""
    names = names_of(config.layers, GGUF)
    return {ours: stored[theirs].stored() for ours, theirs in names.items() if theirs in stored}


# Hugging Face


def _load_hf(folder: Path, single: Path | None) -> Checkpoint:
    """config.json, and safetensors: the file given, or all that the folder's index lists, or model.safetensors."""
    path = folder / "config.json"
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file; expected the model's description beside its weights; "
                          "copy it there")
    settings = read_json(path)
    if settings.get("model_type") not in ("llama", "mistral"):
        raise FormatError(f"{path}: the model's type is {settings.get('model_type')!r}; expected 'llama' or 'mistral'; "
                          "use another model")
    width, heads = number(settings, "hidden_size", path), number(settings, "num_attention_heads", path)
    head_size = number(settings, "head_dim", path, width // heads)
    base = number(settings, "rope_theta", path, 10000.0, float)
    config = Config(width, number(settings, "intermediate_size", path), number(settings, "num_hidden_layers", path),
                    heads, number(settings, "num_key_value_heads", path, heads), number(settings, "vocab_size", path),
                    number(settings, "max_position_embeddings", path, 2048), head_size,
                    number(settings, "rms_norm_eps", path, 1e-6, float), base,
                    _hf_rope_factors(settings.get("rope_scaling"), base, head_size, path))
    stored: dict[str, Tensor] = {}
    for file in [single] if single else _hf_files(folder):
        stored |= safe_load(file)
    tensors: dict[str, Weight] = {ours: stored[theirs] for ours, theirs in names_of(config.layers, HF).items()
                                  if theirs in stored}
    if settings.get("tie_word_embeddings"):
        tensors.pop("output", None)
    return Checkpoint(config, tensors, folder, _chat_template(folder))


def _chat_template(folder: Path) -> dict[str, Any]:
    """The template in a file of its own or in tokenizer_config.json, which may list several by name."""
    if (folder / "chat_template.jinja").is_file():
        return {"tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8")}
    settings = folder / "tokenizer_config.json"
    template = read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return {"tokenizer.chat_template": template} if isinstance(template, str) else {}


def _hf_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict):
            raise FormatError(f"{index}: expected 'weight_map' in it; download it again")
        files = [folder / name for name in sorted(set(names.values()))]
    else:
        files = [folder / "model.safetensors"]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise FormatError(f"{missing[0]}: there is no such file; expected {len(files)} files of weights in the folder; "
                          "download it")
    return files


def _hf_rope_factors(scaling: Any, base: float, head_size: int, path: Path) -> tuple[float, ...] | None:
    """The divisors of the rotary frequencies: LLaMA 3.1's stretch of the long wavelengths, or a plain linear one."""
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return None
    pairs = head_size // 2
    if kind == "linear":
        return (number(scaling, "factor", path, kind=float),) * pairs
    if kind != "llama3":
        raise FormatError(f"{path}: the rotary embedding is scaled by {kind!r}; expected 'llama3' or 'linear'; "
                          "use another model")
    factor, low, high, original = (number(scaling, key, path, kind=float) for key in (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    turns = original * base ** (-np.arange(pairs) / pairs) / (2 * np.pi)  # that each pair makes in the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


# Meta


def _load_meta(folder: Path) -> Checkpoint:
    """params.json and consolidated.*.pth; with several files each holds a slice of every matrix."""
    path = folder / "params.json"
    params = read_json(path)
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise FormatError(f"{folder}: expected consolidated.00.pth beside params.json, found none; copy it there")
    shards = [torch_load(file) for file in files]
    names = names_of(number(params, "n_layers", path), META)
    for file, shard in zip(files, shards, strict=True):
        if not isinstance(shard, dict) or not all(isinstance(shard.get(name), Tensor) for name in names.values()):
            raise FormatError(f"{file}: expected the {len(names)} tensors of a LLaMA model; download it again")
    width, heads = number(params, "dim", path), number(params, "n_heads", path)
    tensors: dict[str, Weight] = {ours: _join([shard[theirs] for shard in shards], ours, width)
                                  for ours, theirs in names.items()}
    scaled = params.get("use_scaled_rope")
    base = number(params, "rope_theta", path, 10000.0, float)
    scaling = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192} if scaled else None
    hidden, vocabulary = (evaluate(tensors[name].shape[0], {}) for name in ("layers.0.gate", "embedding"))
    config = Config(width, hidden, params["n_layers"], heads, number(params, "n_kv_heads", path, heads), vocabulary,
                    number(params, "max_seq_len", path, 2048), width // heads,
                    number(params, "norm_eps", path, 1e-5, float), base,
                    _hf_rope_factors(scaling, base, width // heads, path))
    return Checkpoint(config, reorder(tensors, config), folder, {})


def _join(parts: list[Tensor], name: str, width: int) -> Tensor:
    """The whole of a tensor that model-parallel training cut: by outputs, by inputs, or not at all (norms)."""
    if len(parts) == 1 or len(parts[0].shape) == 1:
        return parts[0]
    by_inputs = name.endswith(("attention_out", "down")) or name == "embedding" and parts[0].shape[1] != width
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
