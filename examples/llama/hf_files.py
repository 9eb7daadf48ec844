"""Reads Hugging Face folders of all families: config.json, and sharded or single safetensors."""
from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.llama.checkpoint import Checkpoint, Weight, check_layers, names_of, parted
from examples.llama.config import FACTORS, Config, Experts, LayerKind, Mixer, Recurrence, Rope
from examples.llama.families import HF, Family, family_of
from examples.llama.rope_scaling import read_rope
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.expr import evaluate
from minigrad.state import QuantizedTensor, safe_load
from minigrad.state.fields import Fields, brief, read_json, read_text

MIXERS: dict[str, Mixer] = {"full_attention": "attention", "sliding_attention": "attention", "conv": "convolution",
                            "linear_attention": "gated delta", "mamba": "state space"}
"""Names in configurations of what a layer does with other tokens."""
ACTIVATIONS = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh", "gelu_tanh"), "clamped": ("silu",)}
"""Names in configurations of the activation of a family."""

MXFP4: tuple[tuple[str, tuple[tuple[str, int | None], ...]], ...] = (
    ("gate_up_proj", (("gate_proj", 0), ("up_proj", 1))), ("down_proj", (("down_proj", None),)))
"""Products of all experts in gpt-oss's own files, and the first of every second row of each of their parts."""


def load_hf(folder: Path, single: Path | None) -> Checkpoint:
    """config.json, and safetensors: the file given, or all that the folder's index lists, or model.safetensors."""
    path = folder / "config.json"
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file; expected the model's description beside its weights; "
                          "copy it there")
    fields = read_json(path)
    family = family_of(fields.text("model_type"), HF, path)
    if "text_config" in fields:
        fields = fields.inner("text_config")
    stored: dict[str, Weight] = {}
    for file in [single] if single else _hf_files(folder):
        stored |= safe_load(file)
    layers = fields.count("num_hidden_layers")
    check_layers(layers, stored, path)
    config = _config(fields, family, layers)
    embedding = family.outer["embedding"][HF]
    outer = next((name.removesuffix(embedding) for name in stored if name.endswith(embedding)), "model.")
    output = next((name.removesuffix("lm_head.weight") for name in stored if name.endswith("lm_head.weight")), "")
    prefixes = f"{outer}layers.", outer, output
    if config.experts is not None:
        stored = _stacked(stored, config, prefixes[0], layers)
    names = names_of(family, HF, layers, stored, prefixes, path)
    tensors: dict[str, Weight] = {ours: _of_family(ours, stored[theirs], family) for ours, theirs in names.items()}
    if fields.flag("tie_word_embeddings", fields.flag("tie_embedding", family.scaled_embedding)):
        tensors.pop("output", None)
    return Checkpoint(config, parted(tensors, config), folder, _chat_template(folder))


def _config(fields: Fields, family: Family, layers: int) -> Config:
    width = fields.count("hidden_size")
    heads = fields.count("num_attention_heads") if family.attends else 1
    head_size = fields.count("head_dim", 2, 1 << 16, default=width // heads) if family.attends else 2
    epsilon = fields.real(next((key for key in ("norm_eps", "layer_norm_epsilon") if key in fields), "rms_norm_eps"),
                          0, 1, 1e-6)
    for name in ("hidden_act", "hidden_activation"):
        if name in fields and fields.text(name) not in ACTIVATIONS[family.activation]:
            raise FormatError(f"{fields.source}: the activation is {brief(fields.text(name))}; expected "
                              f"{ACTIVATIONS[family.activation][0]!r}; use another model")
    context = fields.count("max_position_embeddings", default=2048 if family.attends else 1 << 20)
    experts = _experts(fields, family)
    scale = fields.real("query_pre_attn_scalar", *FACTORS, default=0.0) if family.wide_scale_layers else 0
    kv_heads = fields.count("num_key_value_heads", default=heads) if family.attends else 1
    return Config(
        width, _hidden(fields), layers, heads, kv_heads, fields.count("vocab_size"), context, head_size, epsilon,
        _ropes(fields, family, head_size, context), _kinds(fields, family, layers, experts is not None), family.besides,
        experts, family.activation, scale ** -0.5 if scale else None,
        attention_cap=fields.real("attn_logit_softcapping", 0, 1e6, 0.0) or None,
        output_cap=fields.real("final_logit_softcapping", 0, 1e6, 0.0) or None,
        embedding_scale=math.sqrt(width) if family.scaled_embedding else 1.0,
        gated_attention=family.gated_attention, convolution=fields.count("conv_L_cache", default=1),
        recurrence=_recurrence(fields, family))


def _recurrence(fields: Fields, family: Family) -> Recurrence | None:
    names = {"gated delta": ("linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim",
                             "linear_value_head_dim", "linear_conv_kernel_dim"),
             "state space": ("num_heads", "n_groups", "state_size", "head_dim", "conv_kernel")}
    if family.recurrent is None:
        return None
    heads, groups, key, value, kernel = [fields.count(name) for name in names[family.recurrent]]
    return Recurrence(heads, groups, key, value, kernel)


def _hidden(fields: Fields) -> int:
    """The width of feed-forward networks, which LFM2's files state before it is made smaller."""
    hidden = fields.count("block_ff_dim" if "block_ff_dim" in fields else "intermediate_size", default=1)
    if not fields.flag("block_auto_adjust_ff_dim", False):
        return hidden
    step = fields.count("block_multiple_of", default=256)
    hidden = int(fields.real("block_ffn_dim_multiplier", *FACTORS, default=1.0) * int(2 * hidden / 3))
    return -(-hidden // step) * step


def _experts(fields: Fields, family: Family) -> Experts | None:
    count = next((fields.count(key) for key in ("num_local_experts", "num_experts") if key in fields), 0)
    if not count:
        return None
    if "router" not in family.names:
        raise FormatError(f"{fields.source}: the model has {count} experts; expected none in this family; use another "
                          "model")
    hidden = fields.count("moe_intermediate_size" if "moe_intermediate_size" in fields else "intermediate_size")
    return Experts(count, fields.count("num_experts_per_tok"), hidden,
                   family.activation == "clamped" or fields.flag("norm_topk_prob", "shared_gate" in family.names),
                   fields.count("shared_expert_intermediate_size") if "shared_gate" in family.names else 0)


def _kinds(fields: Fields, family: Family, layers: int, sparse: bool) -> tuple[LayerKind, ...]:
    """The kind of each layer."""
    window = fields.count("sliding_window", default=1 << 30)
    if not fields.flag("use_sliding_window", True) or "sliding_window" not in fields:
        window = 0
    types = _types(fields, family, layers, window)
    plain = fields.items("no_rope_layers", int, length=layers, default=[
        int(not family.plain or (layer + 1) % fields.count("no_rope_layer_interval", default=family.plain) != 0)
        for layer in range(layers)])
    dense = fields.items("mlp_only_layers", int, default=[])
    step = fields.count("decoder_sparse_step", default=1)
    kinds = []
    for layer, name in enumerate(types):
        has_window = name == "sliding_attention" and window > 0
        rope = int(has_window and family.window_base is not None) if plain[layer] and family.attends else None
        kinds.append(LayerKind(MIXERS[name], window if has_window else None, rope,
                               sparse and layer not in dense and (layer + 1) % step == 0, "feed_norm" in family.names))
    return tuple(kinds)


def _types(fields: Fields, family: Family, layers: int, window: int) -> list[str]:
    """One of MIXERS for each layer."""
    if not family.attends:
        names = ["mamba"] * layers
    elif "layer_types" in fields:
        names = fields.items("layer_types", str, length=layers)
    elif "full_attn_idxs" in fields:
        full = fields.items("full_attn_idxs", int)
        names = ["full_attention" if layer in full else "conv" for layer in range(layers)]
    elif family.recurrent:
        every = fields.count("full_attention_interval", default=family.interval)
        names = ["full_attention" if layer % every == every - 1 else "linear_attention" for layer in range(layers)]
    elif not window:
        names = ["full_attention"] * layers
    else:
        every = fields.count("sliding_window_pattern", default=family.windows or layers + 1)
        first = fields.count("max_window_layers", 0, default=0)
        names = ["sliding_attention" if layer >= first and layer % every < every - 1 else "full_attention"
                 for layer in range(layers)]
    known = [name for name, mixer in MIXERS.items() if (mixer == "attention" and family.attends) or mixer == (
        family.recurrent or ("convolution" if "convolution" in family.names else None))]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise FormatError(f"{fields.source}: a layer is of kind {brief(wrong)}; expected one of {', '.join(known)}; "
                          "use another model")
    return names


def _ropes(fields: Fields, family: Family, head_size: int, context: int) -> tuple[Rope, ...]:
    """The rotary embedding, and that of layers with a window where it differs. Files of before 2026 have the scaling in
    `rope_scaling` and the base apart from it."""
    if not family.attends:
        return ()
    scaling = fields.inner("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    whole = scaling.inner("full_attention") if "full_attention" in scaling else scaling
    content = dict(whole.content)
    if "original_max_position_embeddings" in fields:
        content.setdefault("original_max_position_embeddings", fields.count("original_max_position_embeddings"))
    merged = Fields(content, whole.file, whole.name)
    share = merged.real("partial_rotary_factor", 0, 1, fields.real("partial_rotary_factor", 0, 1, 1.0))
    usual = 1e6 if family.window_base else 10000.0
    base = merged.real("rope_theta", 1, 1e12, fields.real("rope_theta", 1, 1e12, usual))
    rope = read_rope(merged, base, max(int(head_size * share), 2), context)
    if family.window_base is None:
        return (rope,)
    narrow = scaling.inner("sliding_attention")
    local = fields.real("rope_local_base_freq", 1, 1e12, family.window_base)
    return rope, read_rope(narrow, narrow.real("rope_theta", 1, 1e12, local), head_size, context)


def _stacked(stored: Mapping[str, Weight], config: Config, prefix: str, layers: int) -> dict[str, Weight]:
    """The tensors with those of all experts of a layer as one, under the name that has * for the number: files have one
    for each expert, or one with gate above up, or, gpt-oss's, one with inputs before outputs and rows of gate and up in
    turns, or with rows of MXFP4 apart from their scales."""
    found, experts = dict(stored), config.experts
    for layer in range(layers if experts else 0):
        inside = f"{prefix}{layer}.mlp.experts."
        for part in ("gate_proj", "up_proj", "down_proj"):
            names = [f"{inside}{number}.{part}.weight" for number in range(experts.count if experts else 0)]
            each = [found[name] for name in names if name in found]
            plain = [tensor for tensor in each if isinstance(tensor, Tensor)]
            if len(plain) == len(names):
                found[f"{inside}*.{part}.weight"] = _together(plain)
                found = {name: tensor for name, tensor in found.items() if name not in names}
        for name, parts in MXFP4:
            codes, scales = [found.get(f"{inside}{name}_{kind}") for kind in ("blocks", "scales")]
            if isinstance(codes, Tensor) and isinstance(scales, Tensor):
                del found[f"{inside}{name}_blocks"], found[f"{inside}{name}_scales"]
                for part, start in parts:
                    found[f"{inside}*.{part}.weight"] = _mxfp4(codes.numpy(), scales.numpy(), start, inside + name)
        halves = found.get(f"{inside}gate_up_proj")
        if experts and config.activation != "clamped" and isinstance(halves, Tensor) and len(halves.shape) == 3:
            gate, up = halves[:, :experts.hidden], halves[:, experts.hidden:]  # Qwen3.5's, outputs first
            down = found.pop(f"{inside}down_proj", None)
            del found[f"{inside}gate_up_proj"]
            for part, whole in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
                if isinstance(whole, Tensor):
                    found[f"{inside}*.{part}.weight"] = whole.contiguous().realize()
        for kind, axis in (("", 2), ("_bias", 1)):
            both, down = found.pop(f"{inside}gate_up_proj{kind}", None), found.pop(f"{inside}down_proj{kind}", None)
            for start, part, whole in ((0, "gate_proj", both), (1, "up_proj", both), (None, "down_proj", down)):
                if isinstance(whole, Tensor) and len(whole.shape) == axis + 1:
                    name = f"{inside}*.{part}.weight" if axis == 2 else f"{inside}{part}_bias"
                    found[name] = _turned(whole, start, axis)
    return found


def _together(matrices: list[Tensor]) -> Tensor:
    """Matrices [rows, columns] as one tensor [count, rows, columns]."""
    first, *others = [matrix.unsqueeze(0) for matrix in matrices]
    return first.cat(*others, dim=0).realize()


def _turned(whole: Tensor, start: int | None, axis: int) -> Tensor:
    """Every second output from `start`, all if it is None; of matrices the outputs first."""
    if start is not None:
        outputs = evaluate(whole.shape[axis], {})
        whole = whole[..., start:outputs:2]
    return (whole.transpose(1, 2) if axis == 2 else whole).contiguous().realize()


def _mxfp4(codes: np.ndarray, scales: np.ndarray, start: int | None, name: str) -> QuantizedTensor:
    """Codes [count, rows, blocks, 16], two neighbours in a byte, and scales [count, rows, blocks], as GGUF files have
    them: bytes of a block's element k and k + 16, behind its scale. Every second row from `start`, all if it is None.
    """
    if codes.dtype != np.uint8 or scales.dtype != np.uint8 or codes.shape != (*scales.shape, 16) or scales.ndim != 3:
        raise FormatError(f"the model's {name} has blocks {list(codes.shape)} of {codes.dtype} and scales "
                          f"{list(scales.shape)} of {scales.dtype}; expected uint8, and 16 codes for each scale; "
                          "download the model again")
    if start is not None:
        codes, scales = codes[:, start::2], scales[:, start::2]
    each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*scales.shape, 2, 16)
    blocks = np.concatenate([scales[..., None], each[..., 0, :] | each[..., 1, :] << 4], axis=-1)
    count, rows, columns = scales.shape
    return QuantizedTensor.from_blocks("MXFP4", (count, rows, 32 * columns), blocks.reshape(-1))


def _of_family(name: str, tensor: Weight, family: Family) -> Weight:
    """A tensor as the model takes it."""
    if isinstance(tensor, QuantizedTensor):
        return tensor
    kind = name.split(".")[-1]
    if kind == "rate":
        return (-tensor.float().exp()).realize()
    if kind == "shared_scale" and len(tensor.shape) == 2 and tensor.shape[0] == 1:
        return tensor.reshape(-1)
    if kind.endswith("norm") and family.norm_offset and tensor.dtype.is_float:
        return (tensor.float() + family.norm_offset).realize()
    if name.endswith("convolution") and len(tensor.shape) == 3:
        return tensor.reshape(tensor.shape[0], -1) if tensor.shape[1] == 1 else tensor
    return tensor


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
