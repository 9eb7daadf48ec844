"""Reads the GGUF files of all families, as llama.cpp writes them."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.llama.checkpoint import Checkpoint, Weight, names_of, parted, reorder
from examples.llama.config import FACTORS, Config, Experts, LayerKind, Mixer, Recurrence, Rope
from examples.llama.families import GGUF, Family, family_of
from examples.llama.rope_scaling import yarn_factors
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.state import GGUFTensor, gguf_load, repacked
from minigrad.state.fields import Fields, brief

PREFIXES = ("blk.", "", "")
VECTORS = ("rate", "skip", "state_scale", "shared_scale")
"""Vectors that some files have as matrices."""


def load_gguf(path: Path) -> Checkpoint:
    """Weights and metadata of a GGUF file. Half and block-quantised matrices stay as the file has them: products read
    them so."""
    metadata, stored = gguf_load(path)
    family = family_of(Fields(metadata, path).text("general.architecture"), GGUF, path)
    if "token_embd.weight" not in stored:
        raise FormatError(f"{path}: expected the tensor token_embd.weight, found {len(stored)} others; it holds only a "
                          "vocabulary, use a file with weights")
    prefix = f"{family.architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    fields = Fields(own, path, family.architecture)
    names = names_of(family, GGUF, _layers(fields), stored, PREFIXES, path)
    config = _config(fields, family, stored)
    return Checkpoint(config, _weights({ours: stored[theirs] for ours, theirs in names.items()}, config, family,
                                       path), path, metadata)


def _weights(stored: Mapping[str, GGUFTensor], config: Config, family: Family, path: Path) -> dict[str, Weight]:
    """The tensors as they are computed with. Those in blocks are repacked, or come from where an earlier process has
    kept them."""
    kept = repacked.load(path)
    tensors: dict[str, Weight] = {name: tensor.stored() for name, tensor in stored.items()
                                  if not (kept and tensor.in_blocks)}
    for name, weight in tensors.items():
        if name.split(".")[-1] in VECTORS and isinstance(weight, Tensor):
            tensors[name] = weight.reshape(-1)
    tensors = reorder(tensors, config) if family.interleaved else parted(tensors, config)
    if not any(name in tensors and isinstance(tensors[name], Tensor) for name in stored if stored[name].in_blocks):
        repacked.keep(path, tensors)
    return {**tensors, **kept}


def _layers(fields: Fields) -> int:
    """The number of layers; those that guess further tokens come behind them."""
    return max(fields.count("block_count") - fields.count("nextn_predict_layers", 0, default=0), 1)


def _config(fields: Fields, family: Family, stored: Mapping[str, GGUFTensor]) -> Config:
    width, layers = fields.count("embedding_length"), _layers(fields)
    heads = fields.count("attention.head_count") if family.attends else 1
    head_size = fields.count("attention.key_length", 2, 1 << 16, default=width // heads) if family.attends else 2
    rows = stored["token_embd.weight"].shape
    experts = _experts(fields, family)
    kinds, kv_heads = _kinds(fields, family, layers, heads, experts is not None)
    scale = 1 / math.sqrt(width / heads) if layers == family.wide_scale_layers else None
    return Config(
        width, fields.count("feed_forward_length", 0, default=1 if experts else width), layers, heads, kv_heads,
        rows[0] if rows else 0, fields.count("context_length"), head_size,
        fields.real("attention.layer_norm_rms_epsilon", 0, 1, 1e-5), _ropes(fields, family, head_size, stored), kinds,
        family.besides, experts, family.activation,
        fields.real("attention.scale", *FACTORS) if "attention.scale" in fields else scale,
        attention_cap=fields.real("attn_logit_softcapping", 0, 1e6, 0.0) or None,
        output_cap=fields.real("final_logit_softcapping", 0, 1e6, 0.0) or None,
        embedding_scale=math.sqrt(width) if family.scaled_embedding else 1.0,
        gated_attention=family.gated_attention, convolution=fields.count("shortconv.l_cache", default=1),
        recurrence=_recurrence(fields, family))


def _recurrence(fields: Fields, family: Family) -> Recurrence | None:
    if family.recurrent is None:
        return None
    heads = fields.count("ssm.time_step_rank")
    return Recurrence(heads, fields.count("ssm.group_count"), fields.count("ssm.state_size"),
                      max(fields.count("ssm.inner_size") // heads, 1), fields.count("ssm.conv_kernel"),
                      family.tiled_heads)


def _experts(fields: Fields, family: Family) -> Experts | None:
    count = fields.count("expert_count", 0, 1 << 16, 0)
    if not count:
        return None
    if "router" not in family.names:
        raise FormatError(f"{fields.source}: the model has {count} experts; expected none in this family; use another "
                          "model")
    return Experts(count, fields.count("expert_used_count"), fields.count(
        "expert_feed_forward_length", default=fields.count("feed_forward_length", 0, default=1)),
        shared=fields.count("expert_shared_feed_forward_length") if "shared_gate" in family.names else 0)


def _kinds(fields: Fields, family: Family, layers: int, heads: int, sparse: bool) -> tuple[tuple[LayerKind, ...], int]:
    """The kind of each layer, and the number of heads of keys."""
    if not family.attends:
        return (LayerKind("state space", rope=None, feeds=False),) * layers, 1
    kv_heads: list[int] = [fields.content.get("attention.head_count_kv", heads)] * layers
    if isinstance(fields.content.get("attention.head_count_kv"), list):  # 0 for layers without attention
        kv_heads = fields.items("attention.head_count_kv", int, length=layers)
    else:
        kv_heads = [fields.count("attention.head_count_kv", default=heads)] * layers
    most = max(kv_heads)
    if most < 1 or any([n not in (0, most) for n in kv_heads]) or (0 in kv_heads and "convolution" not in family.names):
        raise FormatError(f"{fields.source}: expected one number of key heads for all layers, got {brief(kv_heads)}; "
                          "use another model")
    window, narrow = fields.count("attention.sliding_window", 0, default=0), _narrow(fields, family, layers)
    every = fields.count("full_attention_interval", default=family.interval or 1)
    kinds = []
    for layer in range(layers):
        has_window = window > 0 and narrow[layer]
        rope = None if family.plain and (layer + 1) % family.plain == 0 else int(
            has_window and family.window_base is not None)
        mixer: Mixer = "attention" if kv_heads[layer] else "convolution"
        if family.recurrent and (layer + 1) % every:
            mixer = family.recurrent
        kinds.append(LayerKind(mixer, window if has_window else None, rope, sparse))
    return tuple(kinds), most


def _narrow(fields: Fields, family: Family, layers: int) -> list[bool]:
    """True for each layer that has the window."""
    key = "attention.sliding_window_pattern"
    if isinstance(fields.content.get(key), list):
        return fields.items(key, bool, length=layers)
    every = fields.count(key, 0, default=family.windows)
    return [every == 0 or layer % every < every - 1 for layer in range(layers)]


def _ropes(fields: Fields, family: Family, head_size: int, stored: Mapping[str, GGUFTensor]) -> tuple[Rope, ...]:
    """The rotary embedding, and that of layers with a window where it differs."""
    if not family.attends:
        return ()
    size = fields.count("rope.dimension_count", 2, default=head_size)
    base = fields.real("rope.freq_base", 1, 1e12, 10000.0)
    kind = fields.text("rope.scaling.type", "none")
    rope = Rope(base, size, scale=fields.real("rope.scaling.attn_factor", *FACTORS, default=1.0))
    original = fields.count("rope.scaling.original_context_length", default=fields.count("context_length"))
    lists = {name: _numbers(stored, f"{name}.weight", size // 2, fields.source)
             for name in ("rope_freqs", "rope_factors_short", "rope_factors_long")}
    if kind == "linear":
        rope = replace(rope, factors=(fields.real("rope.scaling.factor", *FACTORS),) * (size // 2))
    elif kind == "yarn":
        factor = fields.real("rope.scaling.factor", *FACTORS)
        ends = [fields.real(f"rope.scaling.yarn_beta_{which}", *FACTORS, default=usual)
                for which, usual in (("fast", 32.0), ("slow", 1.0))]
        rope = replace(rope, scale=rope.scale * (1 + 0.1 * math.log(max(factor, 1))), factors=yarn_factors(
            base, size, original, factor, ends[0], ends[1], family.truncated_yarn))
    elif kind not in ("none", "longrope"):
        raise FormatError(f"{fields.source}: the rotary embedding is scaled by {brief(kind)}; expected none, 'linear', "
                          "'yarn' or factors in the file; use another model")
    factors = lists["rope_freqs"] or lists["rope_factors_short"]
    if factors:
        rope = replace(rope, factors=factors, long_factors=lists["rope_factors_long"], original=original)
    if family.window_base is None:
        return (rope,)
    return (rope, Rope(fields.real("rope.freq_base_swa", 1, 1e12, family.window_base), size))


def _numbers(stored: Mapping[str, GGUFTensor], name: str, length: int, source: Any) -> tuple[float, ...] | None:
    """A list of factors that some files keep as a tensor."""
    if name not in stored:
        return None
    if stored[name].shape != (length,):
        raise FormatError(f"{source}: expected {length} factors in {name}, got shape {list(stored[name].shape)}; "
                          "download it again")
    return tuple(stored[name].numpy().tolist())


