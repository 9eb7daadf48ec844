"""The form that every LLaMA checkpoint is brought to: a `Config`, and tensors under the names of `model.py`.

The rotary embedding of our model pairs elements of a head that are `head_size / 2` apart (Hugging Face's order). GGUF,
Meta and llama2.c keep the two of a pair side by side, so the rows of their query and key matrices are reordered, once.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.state import QuantizedTensor
from minigrad.state.fields import brief

Weight = Tensor | QuantizedTensor
DTYPES = ("float32", "float16", "bfloat16", "Q8_0", "Q4_0", "Q4_1")
"""Types that weight matrices can be converted to."""
MAX_HEADS = 16
"""The most times that all heads together can be as wide as the model."""
FACTORS = (1e-6, 1e6)
"""The least and the largest divisor of rotary frequencies."""


@dataclass(frozen=True)
class Config:
    """Sizes of the model. `rope_factors` divide the rotary frequencies, one per pair (None: ones).

    `quantize_activations`: products with quantised matrices round their inputs to signed bytes.
    """

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
    quantize_activations: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_size % 2:
            raise FormatError(f"expected heads divisible by key heads and an even head size, got {self.heads}, "
                              f"{self.kv_heads} and {self.head_size}; download the model again")
        if self.heads * self.head_size > MAX_HEADS * self.width:  # the cache would be out of proportion to the file
            raise FormatError(f"expected {self.heads} heads of {self.head_size} to be at most {MAX_HEADS} times as "
                              f"wide as the model, which has {self.width}; download the model again")
        factors, (least, most) = self.rope_factors, FACTORS
        if factors is not None and not (
                len(factors) == self.head_size // 2 and all(least <= factor <= most for factor in factors)):
            raise FormatError(f"expected {self.head_size // 2} factors of rotary frequencies from {least:g} to "
                              f"{most:g}, got {brief(factors)}; download the model again")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file or folder. `source` is where a tokenizer may be.

    `metadata` is a GGUF file's own; of other kinds only its "tokenizer.chat_template" is there, where they have one.
    """

    config: Config
    tensors: dict[str, Weight]
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
GGUF, HF, META = range(3)
_LAYER_PREFIX = ("blk", "model.layers", "layers")


def names_of(layers: int, kind: int, stored: Collection[str], source: Path) -> dict[str, str]:
    """Our name -> the name in a checkpoint of this kind, for every tensor of the model. Raises FormatError for more
    layers than the tensors that are `stored` in `source` can be."""
    if layers > len(stored):
        raise FormatError(f"{source}: expected {len(_LAYER_NAMES)} tensors for each of {layers} layers, got "
                          f"{len(stored)} in all; download the model again")
    names = {ours: theirs[kind] + ".weight" for ours, theirs in _OUTER_NAMES.items()}
    for layer in range(layers):
        for ours, theirs in _LAYER_NAMES.items():
            names[f"layers.{layer}.{ours}"] = f"{_LAYER_PREFIX[kind]}.{layer}.{theirs[kind]}.weight"
    return names


def _adjacent_to_halves(weight: Weight, heads: int) -> Weight:
    """Rows [heads, pairs, 2] of a query or key matrix -> [heads, 2, pairs], the order of our rotary embedding."""
    if isinstance(weight, QuantizedTensor):
        return weight.take_rows(np.arange(weight.shape[0]).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1))
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).permute(0, 2, 1, 3).reshape(rows, width).contiguous()


def converted(tensors: Mapping[str, Weight], dtype: str) -> dict[str, Weight]:
    """The same tensors with every matrix in `dtype`, one of DTYPES; vectors (the norms) stay as they are."""
    found: dict[str, Weight] = {}
    for name, weight in tensors.items():
        if len(weight.shape) == 2 and not (isinstance(weight, QuantizedTensor) and weight.kind == dtype):
            plain = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
            weight = plain.cast(dtype).contiguous().realize() if dtype[0] != "Q" else QuantizedTensor.quantize(
                plain, dtype)
        found[name] = weight
    return found


def reorder(tensors: dict[str, Weight], config: Config) -> dict[str, Weight]:
    """The same tensors with queries and keys from side-by-side pairs in our order."""
    for layer in range(config.layers):
        for name, heads in (("query", config.heads), ("key", config.kv_heads)):
            full = f"layers.{layer}.{name}"
            if full in tensors and tensors[full].shape == (heads * config.head_size, config.width):
                tensors[full] = _adjacent_to_halves(tensors[full], heads)
    return tensors
