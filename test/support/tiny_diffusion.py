"""Tiny diffusion models: their configurations, as diffusers' folders have them, and weights that follow from names.

test/support/make_tiny_diffusion.py gives them to diffusers and keeps what it computes; the tests give them to
examples/diffusion. Nobody has to keep the weights.
"""
from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.state import safe_save

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 1,
                        "vocab_size": 600, "max_position_embeddings": 16, "layer_norm_eps": 1e-5, "bos_token_id": 598}
TEXTS: dict[str, dict[str, Any]] = {
    "CLIPTextModel": TEXT | {"hidden_act": "quick_gelu", "eos_token_id": 2},
    "CLIPTextModelWithProjection": TEXT | {"hidden_act": "gelu", "eos_token_id": 599, "hidden_size": 128,
                                           "num_attention_heads": 2, "projection_dim": 24}}
NET: dict[str, Any] = {"sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "act_fn": "silu",
                       "norm_num_groups": 32, "norm_eps": 1e-5, "flip_sin_to_cos": True, "freq_shift": 0}
FIRST: dict[str, Any] = {"block_out_channels": [32, 64], "cross_attention_dim": 64, "attention_head_dim": 8,
                         "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
                         "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}
NETS: dict[str, dict[str, Any]] = {
    "1.5": NET | FIRST,
    "xl": NET | {"block_out_channels": [64, 128], "cross_attention_dim": 192, "attention_head_dim": [1, 2],
                 "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
                 "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "transformer_layers_per_block": [1, 2],
                 "use_linear_projection": True, "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
                 "projection_class_embeddings_input_dim": 72},
    "lcm": NET | FIRST | {"time_cond_proj_dim": 16}}
AUTOENCODER: dict[str, Any] = {
    "in_channels": 3, "out_channels": 3, "block_out_channels": [32, 64], "layers_per_block": 1, "latent_channels": 4,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2, "act_fn": "silu",
    "norm_num_groups": 32, "scaling_factor": 0.18215}
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
    "ddim-v-trailing": ("DDIMScheduler", {"clip_sample": False, "prediction_type": "v_prediction",
                                          "timestep_spacing": "trailing", "rescale_betas_zero_snr": True}),
    "euler": ("EulerDiscreteScheduler", {"timestep_spacing": "leading", "steps_offset": 1}),
    "euler-v": ("EulerDiscreteScheduler", {"timestep_spacing": "linspace", "prediction_type": "v_prediction"}),
    "euler-trailing": ("EulerDiscreteScheduler", {"timestep_spacing": "trailing"}),
    "euler-ancestral": ("EulerAncestralDiscreteScheduler", {"timestep_spacing": "trailing"}),
    "lcm": ("LCMScheduler", {"clip_sample": False, "set_alpha_to_one": True, "original_inference_steps": 50})}
"""Samplers by a name: diffusers' class and what its configuration says besides BETAS."""
STEPS = {"ddim": 7, "ddim-v-trailing": 5, "euler": 6, "euler-v": 4, "euler-trailing": 3, "euler-ancestral": 5, "lcm": 4}
KINDS = {"1.5": ("StableDiffusionPipeline", "ddim", ["CLIPTextModel"]),
         "xl": ("StableDiffusionXLPipeline", "euler", ["CLIPTextModel", "CLIPTextModelWithProjection"]),
         "lcm": ("LatentConsistencyModelPipeline", "lcm", ["CLIPTextModel"])}
"""Whole pipelines: diffusers' class, the sampler and the encoders of texts."""
PROMPT, NEGATIVE = "A cat's  hat, in RED!", "ugly dog"


def weight(part: str, name: str, shape: Iterable[int]) -> np.ndarray:
    """The weight of a name: norms near 1, biases near 0, others such that signals keep their size."""
    shape = tuple(shape)
    random = np.random.default_rng(zlib.crc32(f"{part}/{name}".encode()))
    drawn = random.standard_normal(shape, np.float32)
    if len(shape) < 2:
        return drawn * np.float32(0.1) + np.float32("norm" in name and name.endswith("weight"))
    return drawn / np.float32(math.sqrt(math.prod(shape[1:])))


def drawn(shape: Iterable[int], seed: int = 0) -> np.ndarray:
    """An input of a model."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)


def sampler_config(name: str) -> dict[str, Any]:
    kind, more = SAMPLERS[name]
    return {"_class_name": kind, **BETAS, **more}


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """(pieces, merges) of a tiny tokenizer of CLIP's kind: all bytes, alone and at the end of a word, and a few words.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    merges = ["a t</w>", "c at</w>", "h at</w>", "r e", "re d</w>", "u g", "ug l", "ugl y</w>", "d o", "do g</w>"]
    pieces = [*letters, *[f"{letter}</w>" for letter in letters], *["".join(merge.split()) for merge in merges]]
    found = {piece: number for number, piece in enumerate(pieces)}
    return found | {"<|startoftext|>": 598, "<|endoftext|>": 599}, merges


def write_tokenizer(folder: Path, pad: str) -> None:
    folder.mkdir(parents=True)
    pieces, merges = vocabulary()
    (folder / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": pad}), encoding="utf-8")


def write_folder(folder: Path, kind: str, shapes: dict[str, dict[str, list[int]]]) -> Path:
    """A model as diffusers lays it out, with the tensors whose names and shapes are in `shapes`, by parts."""
    pipeline, sampler, texts = KINDS[kind]
    configs: dict[str, dict[str, Any]] = {"unet": {"_class_name": "UNet2DConditionModel", **NETS[kind]},
                                          "vae": {"_class_name": "AutoencoderKL", **AUTOENCODER}}
    for number, name in enumerate(texts):
        end = f"_{number + 1}" if number else ""
        configs[f"text_encoder{end}"] = {"architectures": [name], "model_type": "clip_text_model", **TEXTS[name]}
        write_tokenizer(folder / f"tokenizer{end}", "!" if number else "<|endoftext|>")
    for part, config in configs.items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config), encoding="utf-8")
        file = "model" if part.startswith("text") else "diffusion_pytorch_model"
        safe_save({name: Tensor(weight(part, name, shape)) for name, shape in shapes[part].items()},
                  folder / part / f"{file}.safetensors")
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(sampler_config(sampler)), encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps(
        {"_class_name": pipeline} | ({"force_zeros_for_empty_prompt": True} if kind == "xl" else {})), encoding="utf-8")
    return folder
