"""LLaMA checkpoints of four kinds, brought to one form: a `Config` and tensors under the names of `model.py`.

Half of every head's rotary pairs stand `head_size / 2` apart in our model (Hugging Face's order). GGUF, Meta and
llama2.c keep the two of a pair side by side, so the rows of their query and key matrices are reordered here, once.
"""
from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.dtype import float32
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state import GGUFTensor, gguf_load, safe_load, torch_load
from minigrad.state.mapped import MappedFile, as_tensor


@dataclass(frozen=True)
class Config:
    """Sizes of the model. `rope_factors` divide the rotary frequencies, one per pair (None: ones)."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    head_size: int
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    rope_factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a file or folder holds. `source` is where a tokenizer may be.

    `metadata` is a GGUF file's own; of other kinds only its "tokenizer.chat_template" is there, where they have one.
    """

    config: Config
    tensors: dict[str, Tensor]
    source: Path
    metadata: dict[str, Any]


# Our name of each tensor of a layer -> its name in GGUF, Hugging Face's and Meta's checkpoints.
_LAYER_NAMES = {
    "attention_norm": ("attn_norm", "input_layernorm", "attention_norm"),
    "query": ("attn_q", "self_attn.q_proj", "attention.wq"),
    "key": ("attn_k", "self_attn.k_proj", "attention.wk"),
    "value": ("attn_v", "self_attn.v_proj", "attention.wv"),
    "attention_out": ("attn_output", "self_attn.o_proj", "attention.wo"),
    "feed_norm": ("ffn_norm", "post_attention_layernorm", "ffn_norm"),
    "gate": ("ffn_gate", "mlp.gate_proj", "feed_forward.w1"),
    "up": ("ffn_up", "mlp.up_proj", "feed_forward.w3"),
    "down": ("ffn_down", "mlp.down_proj", "feed_forward.w2"),
}
_OUTER_NAMES = {
    "embedding": ("token_embd", "model.embed_tokens", "tok_embeddings"),
    "norm": ("output_norm", "model.norm", "norm"),
    "output": ("output", "lm_head", "output"),
}
_GGUF, _HF, _META = range(3)
_LAYER_PREFIX = ("blk", "model.layers", "layers")


def _names(layers: int, kind: int) -> dict[str, str]:
    """Our name -> the name in a checkpoint of this kind, for every tensor of the model."""
    names = {ours: theirs[kind] + ".weight" for ours, theirs in _OUTER_NAMES.items()}
    for layer in range(layers):
        for ours, theirs in _LAYER_NAMES.items():
            names[f"layers.{layer}.{ours}"] = f"{_LAYER_PREFIX[kind]}.{layer}.{theirs[kind]}.weight"
    return names


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


def _adjacent_to_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows [heads, pairs, 2] of a query or key matrix -> [heads, 2, pairs]: the order that our rotary embedding takes.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).permute(0, 2, 1, 3).reshape(rows, width).contiguous()


def _reorder(tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    for layer in range(config.layers):
        for name, heads in (("query", config.heads), ("key", config.kv_heads)):
            full = f"layers.{layer}.{name}"
            if full in tensors and tensors[full].shape == (heads * config.head_size, config.width):
                tensors[full] = _adjacent_to_halves(tensors[full], heads)
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: expected JSON: {error}; download it again") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a JSON object, got {type(content).__name__}; download it again")
    return content


def _number(content: Mapping[str, Any], key: str, path: Path, default: Any = None, kind: type = int) -> Any:
    """A number of a model's description, as `kind`; its absence without a default is a FormatError."""
    value = content.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{path}: expected the number {key!r} in the model's description, got {value!r}; "
                          "use a LLaMA model")
    return kind(value)


# GGUF


def _load_gguf(path: Path) -> Checkpoint:
    metadata, stored = gguf_load(path)
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise FormatError(f"{path}: the model's architecture is {architecture!r}; expected 'llama'; use another model")
    if "token_embd.weight" not in stored:
        raise FormatError(f"{path}: expected the tensor token_embd.weight, found {len(stored)} others; it holds only a "
                          "vocabulary, use a file with weights")

    def number(key: str, default: Any = None, kind: type = int) -> Any:
        return _number(metadata, f"llama.{key}", path, default, kind)

    width, heads = number("embedding_length"), number("attention.head_count")
    head_size = number("attention.key_length", width // max(heads, 1))
    factors = stored.get("rope_freqs.weight")
    config = Config(width, number("feed_forward_length"), number("block_count"), heads,
                    number("attention.head_count_kv", heads), stored["token_embd.weight"].shape[0],
                    number("context_length"), head_size, number("attention.layer_norm_rms_epsilon", 1e-5, float),
                    number("rope.freq_base", 10000.0, float),
                    None if factors is None else tuple(factors.numpy().reshape(-1).tolist()))
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise FormatError(f"{path}: the rotary embedding is scaled by {scaling!r}; expected none or factors in the "
                          "file; use another model")
    return Checkpoint(config, _reorder(_gguf_tensors(stored, config), config), path, metadata)


def _gguf_tensors(stored: Mapping[str, GGUFTensor], config: Config) -> dict[str, Tensor]:
    names = _names(config.layers, _GGUF)
    return {ours: stored[theirs].to_tensor() for ours, theirs in names.items() if theirs in stored}


# Hugging Face


def _load_hf(folder: Path, single: Path | None) -> Checkpoint:
    """config.json, and safetensors: the file given, or all that the folder's index lists, or model.safetensors."""
    path = folder / "config.json"
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file; expected the model's description beside its weights; "
                          "copy it there")
    settings = _read_json(path)
    if settings.get("model_type") not in ("llama", "mistral"):
        raise FormatError(f"{path}: the model's type is {settings.get('model_type')!r}; expected 'llama' or 'mistral'; "
                          "use another model")
    width, heads = _number(settings, "hidden_size", path), _number(settings, "num_attention_heads", path)
    head_size = _number(settings, "head_dim", path, width // max(heads, 1))
    base = _number(settings, "rope_theta", path, 10000.0, float)
    config = Config(width, _number(settings, "intermediate_size", path), _number(settings, "num_hidden_layers", path),
                    heads, _number(settings, "num_key_value_heads", path, heads), _number(settings, "vocab_size", path),
                    _number(settings, "max_position_embeddings", path, 2048), head_size,
                    _number(settings, "rms_norm_eps", path, 1e-6, float), base,
                    _hf_rope_factors(settings.get("rope_scaling"), base, head_size, path))
    stored: dict[str, Tensor] = {}
    for file in [single] if single else _hf_files(folder):
        stored |= safe_load(file)
    tensors = {ours: stored[theirs] for ours, theirs in _names(config.layers, _HF).items() if theirs in stored}
    if settings.get("tie_word_embeddings"):
        tensors.pop("output", None)
    return Checkpoint(config, tensors, folder, _chat_template(folder))


def _chat_template(folder: Path) -> dict[str, Any]:
    """The template in a file of its own or in tokenizer_config.json, which may list several by name."""
    if (folder / "chat_template.jinja").is_file():
        return {"tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8")}
    settings = folder / "tokenizer_config.json"
    template = _read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return {"tokenizer.chat_template": template} if isinstance(template, str) else {}


def _hf_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _read_json(index).get("weight_map")
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
        return (_number(scaling, "factor", path, kind=float),) * pairs
    if kind != "llama3":
        raise FormatError(f"{path}: the rotary embedding is scaled by {kind!r}; expected 'llama3' or 'linear'; "
                          "use another model")
    factor, low, high, original = (_number(scaling, key, path, kind=float) for key in (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    turns = original * base ** (-np.arange(pairs) / pairs) / (2 * np.pi)  # that each pair makes in the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


# Meta


def _load_meta(folder: Path) -> Checkpoint:
    """params.json and consolidated.*.pth; with several files each holds a slice of every matrix."""
    path = folder / "params.json"
    params = _read_json(path)
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise FormatError(f"{folder}: expected consolidated.00.pth beside params.json, found none; copy it there")
    shards = [torch_load(file) for file in files]
    names = _names(_number(params, "n_layers", path), _META)
    for file, shard in zip(files, shards, strict=True):
        if not isinstance(shard, dict) or not all(isinstance(shard.get(name), Tensor) for name in names.values()):
            raise FormatError(f"{file}: expected the {len(names)} tensors of a LLaMA model; download it again")
    width, heads = _number(params, "dim", path), _number(params, "n_heads", path)
    tensors = {ours: _join([shard[theirs] for shard in shards], ours, width) for ours, theirs in names.items()}
    scaled = params.get("use_scaled_rope")
    base = _number(params, "rope_theta", path, 10000.0, float)
    scaling = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192} if scaled else None
    hidden, vocabulary = (evaluate(tensors[name].shape[0], {}) for name in ("layers.0.gate", "embedding"))
    config = Config(width, hidden, params["n_layers"], heads, _number(params, "n_kv_heads", path, heads), vocabulary,
                    _number(params, "max_seq_len", path, 2048), width // max(heads, 1),
                    _number(params, "norm_eps", path, 1e-5, float), base,
                    _hf_rope_factors(scaling, base, width // max(heads, 1), path))
    return Checkpoint(config, _reorder(tensors, config), folder, {})


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
    tensors: dict[str, Tensor] = {}
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
    return Checkpoint(config, _reorder(tensors, config), path.parent, {})


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
