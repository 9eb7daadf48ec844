"""Makes a tiny model of each family with transformers, in both forms, and keeps it with its logits.

    python test/support/make_tiny_models.py [NAME ...]     writes test/models/NAME/: config.json, model.safetensors,
                                                           model.gguf and logits.npz

It needs torch, transformers and gguf; the tests that read the files need none of them. Weights are of a seeded normal
distribution, rounded to bfloat16 where a matrix is large, so that both forms have the same numbers. The GGUF form has
the names, the metadata and the order of rotary rows that llama.cpp's converter writes.
"""
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1] / "models"
WIDTH, HIDDEN, LAYERS, HEADS, KEYS, VOCABULARY = 32, 48, 4, 4, 2, 96
TOKENS = 40
COMMON = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "num_key_value_heads": KEYS, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

ATTENDING = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
             "rms_norm_eps")
"""What models without attention do not have."""


def rope(kind: str = "default", theta: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **more}


YARN = rope("yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)
LONG = rope("longrope", short_factor=[1.0, 1.1, 1.2], long_factor=[1.5, 2.5, 4.0], original_max_position_embeddings=16,
            partial_rotary_factor=0.75)
DELTA = ["linear_attention"] * 3 + ["full_attention"]
STATE = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 8,
         "linear_conv_kernel_dim": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                original_max_position_embeddings=16)}),
    "mistral": ("Mistral", {"sliding_window": 7, "rope_parameters": rope(), "head_dim": 16}),
    "qwen2": ("Qwen2", {"rope_parameters": rope()}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN | {"truncate": True}}),
    "qwen3": ("Qwen3", {"rope_parameters": rope(), "head_dim": 16, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", {"rope_parameters": rope(), "no_rope_layer_interval": 4}),
    "phi3": ("Phi3", {"sliding_window": 9, "rope_parameters": rope()}),
    "phi3-longrope": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16,
                               "sliding_window": None}),
    "gemma2": ("Gemma2", {"sliding_window": 5, "head_dim": 16, "query_pre_attn_scalar": 9,
                          "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0,
                          "rope_parameters": rope(), "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", {"sliding_window": 5, "head_dim": 16, "query_pre_attn_scalar": 25, "num_hidden_layers": 6,
                          "intermediate_size": 32, "tie_word_embeddings": True, "sliding_window_pattern": 6,
                          "rope_parameters": {"full_attention": rope("linear", 1000.0, factor=4.0),
                                              "sliding_attention": rope(theta=50.0)}}),
    "qwen3moe": ("Qwen3Moe", {"rope_parameters": rope(), "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2,
                              "moe_intermediate_size": 16, "norm_topk_prob": True, "decoder_sparse_step": 1}),
    "gpt-oss": ("GptOss", {"rope_parameters": YARN, "head_dim": 16, "sliding_window": 6, "num_local_experts": 4,
                           "num_experts_per_tok": 2, "intermediate_size": 32}),
    "lfm2": ("Lfm2", {"rope_parameters": rope(), "layer_types": ["conv", "full_attention", "conv", "conv"],
                      "conv_L_cache": 3, "norm_eps": 1e-5, "tie_word_embeddings": True,
                      "block_auto_adjust_ff_dim": False}),
    "qwen3next": ("Qwen3Next", {"rope_parameters": rope(partial_rotary_factor=0.5), "head_dim": 16,
                                "layer_types": DELTA, "num_experts": 4, "num_experts_per_tok": 2,
                                "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12,
                                "mlp_only_layers": [], **STATE}),
    "qwen35": ("Qwen3_5", {"rope_parameters": rope(partial_rotary_factor=0.5), "head_dim": 16, "layer_types": DELTA,
                           "intermediate_size": 32, **STATE}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "expand": 2, "conv_kernel": 4,
                          "layer_norm_epsilon": 1e-5, "num_hidden_layers": 3}),
}
"""Families, some in two forms: transformers' class and what the configuration says besides COMMON."""


OFFSET = ("gemma2", "gemma3", "qwen3next", "qwen35")
"""Models whose norms are kept less 1."""


def make(name: str) -> tuple[Any, Any]:
    """The model and its configuration."""
    prefix, more = MODELS[name]
    kind = f"{prefix}Text" if prefix in ("Gemma3", "Qwen3_5") else prefix
    common = {key: value for key, value in COMMON.items() if name != "mamba2" or key not in ATTENDING}
    config = getattr(transformers, f"{kind}Config")(**{**common, **more, "attn_implementation": "eager"})
    torch.manual_seed(sum(map(ord, name)))
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            values = torch.randn(tensor.shape) * scale_of(key, tensor, name)
            if key.endswith(("norm.weight", "norm_f.weight")) or "layernorm" in key:
                offset = name in OFFSET and not key.endswith("linear_attn.norm.weight")
                values = values + (0.0 if offset else 1.0)
            tensor.copy_(values.bfloat16().float())
    return model, config


def scale_of(key: str, tensor: torch.Tensor, name: str) -> float:
    """A standard deviation such that every part of the model matters."""
    if "embed" in key and "norm" not in key:
        return 0.25 if MODELS[name][1].get("tie_word_embeddings") else 1.5
    if tensor.ndim == 1 or key.endswith("_bias"):
        return 0.3
    inputs = tensor.shape[-2] if "experts" in key and name == "gpt-oss" else tensor.shape[-1]
    return (2.5 if any(part in key for part in ("q_proj", "k_proj", "qkv", "router", "gate.weight")) else 1.5) * (
        inputs ** -0.5)


def logits_of(model: Any, tokens: torch.Tensor) -> dict[str, np.ndarray]:
    """Logits of every position: of the whole prompt; and token by token behind a part of it."""
    with torch.no_grad():
        whole = model(tokens[None], use_cache=False).logits[0]
        start = 20  # beyond the windows, and beyond the original context
        cache = model(tokens[None, :start], use_cache=True)
        kept = "cache_params" if "cache_params" in cache else "past_key_values"
        rows = [cache.logits[0, -1]]
        for position in range(start, len(tokens)):
            cache = model(tokens[None, position:position + 1], use_cache=True, **{kept: cache[kept]})
            rows.append(cache.logits[0, -1])
        found = {"tokens": tokens.numpy(), "whole": whole.numpy(), "steps": torch.stack(rows).numpy()}
        found["short"] = model(tokens[None, :12], use_cache=False).logits[0].numpy()  # within the original context
    return found


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of halves [heads, 2, pairs] as pairs [heads, pairs, 2]."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, name: str, config: Any, tensors: dict[str, torch.Tensor]) -> None:
    architecture = name.split("-")[0] if name != "gpt-oss" else name
    architecture = "llama" if architecture == "mistral" else architecture
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer, name, config)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture),
                                     config.num_hidden_layers)
    for key, array in gguf_arrays(name, config, tensors):
        found = names.get_name(key, try_suffixes=(".weight", ".bias"))
        found = key if found is None else found
        half = array.ndim > 1 and array.shape[-1] > 8 and "gate_inp" not in found
        kind = gguf.GGMLQuantizationType.BF16 if half else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind)
        writer.add_tensor(found, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_arrays(name: str, config: Any, tensors: dict[str, torch.Tensor]) -> list[tuple[str, np.ndarray]]:
    """Tensors as llama.cpp's converter changes them: under Hugging Face's names where gguf knows these."""
    found: list[tuple[str, np.ndarray]] = []
    stacks: dict[str, list[np.ndarray]] = {}
    for key, tensor in tensors.items():
        array = tensor.float().numpy()
        if name in ("llama", "mistral", "smollm3") and ("q_proj" in key or "k_proj" in key):
            array = interleaved(array, HEADS if "q_proj" in key else KEYS)
        if name in OFFSET and key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
            array = array + 1
        if "conv.conv" in key or "conv1d.weight" in key:
            array = array[:, 0]
        if key.endswith("A_log"):
            array = -np.exp(array)
        if name == "qwen35" and "linear_attn" in key:
            array = tiled(key, array)
        if name == "mamba2" and key.endswith(("A_log", ".D")):
            array = array[:, None]
        if name == "mamba2" and key.endswith("mixer.norm.weight"):
            array = array.reshape(2, -1)
        key = key.replace("dt_bias", "dt_proj.bias")
        layer = key.split(".")[2] if key.startswith("model.layers.") else ""
        if name == "gpt-oss" and ".experts." in key:
            part = key.split(".")[-1]
            suffix = "bias" if part.endswith("_bias") else "weight"
            array = array if suffix == "bias" else array.swapaxes(1, 2)
            if part.startswith("gate_up"):
                found.append((f"blk.{layer}.ffn_gate_exps.{suffix}", array[:, ::2]))
                found.append((f"blk.{layer}.ffn_up_exps.{suffix}", array[:, 1::2]))
            else:
                found.append((f"blk.{layer}.ffn_down_exps.{suffix}", array))
        elif ".experts." in key:
            part = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}[key.split(".")[-2]]
            stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", []).append(array)
        elif key.endswith("in_proj_qkvz.weight"):
            each = array.reshape(2, -1, WIDTH)  # of two groups: 6 rows of queries and keys, 16 of values and gates
            rows = np.split(each, [6, 12, 28], axis=1)
            whole = np.concatenate([part.reshape(-1, WIDTH) for part in rows[:3]])
            found += [(f"blk.{layer}.attn_qkv.weight", whole),
                      (f"blk.{layer}.attn_gate.weight", rows[3].reshape(-1, WIDTH))]
        elif key.endswith("sinks"):
            found.append((f"blk.{layer}.attn_sinks.weight", array))
        else:
            found.append((key, array))
    found += [(key, np.stack(arrays)) for key, arrays in stacks.items()]
    scaling: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if name == "llama":
        found.append(("rope_freqs.weight", llama3(scaling)))
    if name == "phi3-longrope":
        found += [(f"rope_factors_{which}.weight", np.array(scaling[f"{which}_factor"])) for which in ("long", "short")]
    return found


def tiled(key: str, array: np.ndarray) -> np.ndarray:
    """Heads of values, two for each of two keys, with those of one key two apart."""
    def swapped(values: np.ndarray, size: int) -> np.ndarray:
        return values.reshape(2, 2, size, -1).swapaxes(0, 1).reshape(values.shape)

    size = {"in_proj_a.weight": 1, "in_proj_b.weight": 1, "dt_bias": 1, "A_log": 1, "in_proj_z.weight": 8}.get(
        key.split("linear_attn.")[1])
    if size is not None:
        return swapped(array, size)
    if "in_proj_qkv" in key or "conv1d" in key:
        return np.concatenate([array[:24], swapped(array[24:], 8)])
    return swapped(array.T.copy(), 8).T if "out_proj" in key else array


def llama3(scaling: dict[str, Any]) -> np.ndarray:
    """The factors of each pair, as the converter computes them: one wavelength at a time."""
    factors = []
    low, high = (scaling["original_max_position_embeddings"] / scaling[f"{which}_freq_factor"]
                 for which in ("low", "high"))
    size = WIDTH // HEADS
    for index in range(0, size, 2):
        wavelength = 2 * np.pi * scaling["rope_theta"] ** (index / size)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling["factor"])
        else:
            smooth = (scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors)


def describe(writer: Any, name: str, config: Any) -> None:
    """The metadata that a model needs."""
    if name in ("qwen3next", "qwen35", "mamba2"):
        describe_state(writer, config)
    if name == "mamba2":
        return
    scaling = config.rope_parameters
    scaling = scaling.get("full_attention", scaling)
    size = getattr(config, "head_dim", None) or WIDTH // HEADS
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    types: list[str] = getattr(config, "layer_types", None) or []
    writer.add_head_count_kv([0 if kind == "conv" else KEYS for kind in types] if name == "lfm2" else KEYS)
    writer.add_key_length(size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(scaling["rope_theta"])
    writer.add_rope_dimension_count(int(size * scaling.get("partial_rotary_factor", 1.0)))
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    if scaling["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if name == "phi3-longrope":
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(64 / 16) / np.log(16))))
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if name.startswith("gemma"):
        writer.add_attention_scale(config.query_pre_attn_scalar ** -0.5)
    if name == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", 50.0)
    if name in ("qwen3moe", "gpt-oss", "qwen3next"):
        writer.add_expert_count(6 if name == "qwen3moe" else 4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if name == "qwen3next":
        writer.add_expert_shared_feed_forward_length(12)
    if name == "lfm2":
        writer.add_shortconv_l_cache(config.conv_L_cache)


def describe_state(writer: Any, config: Any) -> None:
    """The metadata of recurrent layers."""
    if hasattr(config, "linear_num_value_heads"):
        sizes = 4, 6, 2, 4, 32
        writer.add_full_attention_interval(4)
    else:
        sizes = 4, 6, 2, 8, 64
        writer.add_context_length(1 << 20)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_layer_norm_rms_eps(1e-5)
    kernel, state, groups, heads, inner = sizes
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(inner)


def main(names: list[str]) -> None:
    for name in names or list(MODELS):
        model, config = make(name)
        folder = ROOT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = logits_of(model, torch.tensor(np.random.default_rng(1).integers(3, VOCABULARY, TOKENS)))
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        tensors = {key: tensor.bfloat16() for key, tensor in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        write_gguf(folder / "model.gguf", name, config, tensors)
        np.savez_compressed(folder / "logits.npz", allow_pickle=False, **found)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        print(name, sizes, "logits", float(found["whole"].std()), json.loads(
            (folder / "config.json").read_text())["model_type"])


if __name__ == "__main__":
    main(sys.argv[1:])
