"""Stable Diffusion 1.x and XL from one safetensors file with the names of CompVis' and Stability's programs.

Such a file says nothing of itself: what is not known from the shapes of its tensors are the number of attention's heads
(8 in 1.x, as many as 64 go into the width in XL) and the sampler's configuration, which are those of the first models.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from examples.diffusion import clip, schedulers, unet
from examples.diffusion.checkpoint import VAE, Checkpoint, State
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.state import safe_load

NET, AUTOENCODER = "model.diffusion_model.", "first_stage_model."
FIRST, SECOND = "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."
ONLY = "cond_stage_model.transformer."
OTHERS = {"cond_stage_model.model.": "Stable Diffusion 2.x; use its folder in the layout of diffusers",
          "conditioner.embedders.0.model.": "the refiner of XL",
          "model.diffusion_model.joint_blocks.": "Stable Diffusion 3", "double_blocks.": "Flux",
          "down_blocks.": "a part of a folder of diffusers; name the folder", "lora_": "a LoRA"}
"""Beginnings of names, and the models that have them."""


def load_single(path: Path, tokenizers: tuple[Path, ...]) -> Checkpoint:
    """A file with all parts; `tokenizers` are folders with vocab.json and merges.txt. Raises FormatError for others."""
    stored = safe_load(path)
    xl = f"{SECOND}ln_final.weight" in stored
    net = stored.get(f"{NET}input_blocks.0.0.weight")
    if net is None or not (xl or f"{ONLY}text_model.final_layer_norm.weight" in stored):
        other = next((name for start, name in OTHERS.items() if any(key.startswith(start) for key in stored)),
                     "another model")
        raise FormatError(f"{path}: expected Stable Diffusion 1.x or XL with its texts' encoders and its autoencoder, "
                          f"got {other}")
    if int(net.shape[1]) != 4:
        raise FormatError(f"{path}: the U-Net takes {net.shape[1]} channels; expected 4: no model for inpainting")
    texts = (_text(stored, FIRST), _open_clip(stored)) if xl else (_text(stored, ONLY),)
    config, autoencoder = _unet(stored, xl), _vae(stored, xl)

    def state(part: str) -> State:
        if part == "text_encoder_2":
            return _open_clip_state(stored)
        if part == "text_encoder":
            start = FIRST if xl else ONLY
            return {name.removeprefix(start): tensor for name, tensor in stored.items()
                    if name.startswith(start) and not name.endswith("position_ids")}
        if part == "unet":
            return renamed(stored, NET, unet_names(config), RESIDUAL)
        return _flat(renamed(stored, AUTOENCODER, vae_names(len(autoencoder.channels), autoencoder.layers), ATTENTION))

    return Checkpoint(path, texts, config, autoencoder, schedulers.Config("euler" if xl else "ddim"), tokenizers, state,
                      xl, 1024 if xl else 512)


# Names

RESIDUAL = {"in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj", "out_layers.0": "norm2",
            "out_layers.3": "conv2", "skip_connection": "conv_shortcut"}
ATTENTION = {"nin_shortcut": "conv_shortcut", "norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v",
             "proj_out": "to_out.0"}
"""Names inside of residual blocks, and in autoencoders also inside of attention."""


def renamed(stored: State, start: str, parts: Mapping[str, str], inner: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors below `start` by our names: `parts` has ours for those of parts of the model, `inner` for what is
    inside of a part. Other names stay, and are said to be unknown where a model is filled."""
    found = {}
    for name, tensor in stored.items():
        if not name.startswith(start):
            continue
        name = name.removeprefix(start)
        theirs = next((part for part in _beginnings(name) if part in parts), None)
        if theirs is not None:
            rest, _, kind = name[len(theirs):].removeprefix(".").rpartition(".")
            name = ".".join(part for part in (parts[theirs], inner.get(rest, rest), kind) if part)
        found[name] = tensor
    return found


def _beginnings(name: str) -> Iterator[str]:
    """A name without its last parts, the longest first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def unet_names(config: unet.Config) -> dict[str, str]:
    """Our names of the U-Net's parts by theirs, which count layers without levels."""
    count, last = config.layers + 1, len(config.channels) - 1
    names = {"input_blocks.0.0": "conv_in", "out.0": "conv_norm_out", "out.2": "conv_out",
             "time_embed.0": "time_embedding.linear_1", "time_embed.2": "time_embedding.linear_2",
             "label_emb.0.0": "add_embedding.linear_1", "label_emb.0.2": "add_embedding.linear_2",
             "middle_block.0": "mid_block.resnets.0", "middle_block.1": "mid_block.attentions.0",
             "middle_block.2": "mid_block.resnets.1"}
    for level in range(last + 1):
        depth = config.depths[level]
        for layer in range(config.layers):
            names[f"input_blocks.{1 + level * count + layer}.0"] = f"down_blocks.{level}.resnets.{layer}"
            names[f"input_blocks.{1 + level * count + layer}.1"] = f"down_blocks.{level}.attentions.{layer}"
        names[f"input_blocks.{(level + 1) * count}.0.op"] = f"down_blocks.{level}.downsamplers.0.conv"
        up, first = last - level, (last - level) * count
        for layer in range(count):
            names[f"output_blocks.{first + layer}.0"] = f"up_blocks.{up}.resnets.{layer}"
            if depth:
                names[f"output_blocks.{first + layer}.1"] = f"up_blocks.{up}.attentions.{layer}"
        names[f"output_blocks.{first + config.layers}.{2 if depth else 1}.conv"] = f"up_blocks.{up}.upsamplers.0.conv"
    return names


def vae_names(count: int, layers: int) -> dict[str, str]:
    """Our names of the autoencoder's parts by theirs, which count the levels of the decoder from the image's size."""
    names: dict[str, str] = {}
    for side, way, sample, more in (("encoder", "down", "downsample", 0), ("decoder", "up", "upsample", 1)):
        names |= {f"{side}.conv_in": f"{side}.conv_in", f"{side}.norm_out": f"{side}.conv_norm_out",
                  f"{side}.conv_out": f"{side}.conv_out", f"{side}.mid.attn_1": f"{side}.mid_block.attentions.0",
                  f"{side}.mid.block_1": f"{side}.mid_block.resnets.0",
                  f"{side}.mid.block_2": f"{side}.mid_block.resnets.1"}
        for level in range(count):
            ours = f"{side}.{way}_blocks.{count - 1 - level if more else level}"
            names[f"{side}.{way}.{level}.{sample}.conv"] = f"{ours}.{sample}rs.0.conv"
            names |= {f"{side}.{way}.{level}.block.{layer}": f"{ours}.resnets.{layer}"
                      for layer in range(layers + more)}
    return names


def _flat(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Attention's 1x1 convolutions as the matrices of linear layers."""
    return {name: tensor.reshape(*tensor.shape[:2]) if ".attentions." in name and tensor.ndim == 4 else tensor
            for name, tensor in state.items()}


OPEN_CLIP = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1",
             "mlp.c_proj": "mlp.fc2"}


def _open_clip_state(stored: State) -> State:
    """OpenCLIP's encoder of texts by the names of transformers: query, key and value are one matrix in it, and the
    projection is applied from the other side."""
    parts = {f"transformer.resblocks.{n}": f"text_model.encoder.layers.{n}" for n in range(_count(stored, SECOND + (
        "transformer.resblocks.")))}
    parts |= {"token_embedding": "text_model.embeddings.token_embedding", "ln_final": "text_model.final_layer_norm"}
    found: dict[str, Tensor] = {}
    for name, tensor in renamed(stored, SECOND, parts, OPEN_CLIP).items():
        if ".attn.in_proj_" in name or name.endswith((".in_proj_weight", ".in_proj_bias")):
            inside, _, kind = name.rpartition("in_proj_")
            inside = inside.removesuffix("attn.")
            for letter, part in zip("qkv", tensor.chunk(3, dim=0), strict=True):
                found[f"{inside}self_attn.{letter}_proj.{kind}"] = part
        elif name == "text_projection":
            found["text_projection.weight"] = tensor.transpose(0, 1)
        elif name == "positional_embedding":
            found["text_model.embeddings.position_embedding.weight"] = tensor
        elif name != "logit_scale":
            found[name] = tensor
    return found


# Sizes


def _count(stored: State, start: str) -> int:
    """The number of parts that are counted behind `start`."""
    numbers = [name.removeprefix(start).partition(".")[0] for name in stored if name.startswith(start)]
    return 1 + max([int(number) for number in numbers if number.isdecimal()], default=-1)


def _size(stored: State, name: str, axis: int = 0) -> int:
    if name not in stored:
        raise FormatError(f"the file lacks {name}; expected a whole checkpoint; get it again")
    return int(stored[name].shape[axis])


def _unet(stored: State, xl: bool) -> unet.Config:
    """Levels are told by where sizes are halved, and depths by numbers of transformer blocks."""
    channels, depths = [], []
    blocks = _count(stored, f"{NET}input_blocks.")
    halved = [n for n in range(blocks) if f"{NET}input_blocks.{n}.0.op.weight" in stored]
    layers = (halved[0] if halved else blocks) - 1
    for level in range(len(halved) + 1):
        first = f"{NET}input_blocks.{1 + level * (layers + 1)}"
        channels.append(_size(stored, f"{first}.0.out_layers.3.weight"))
        depths.append(_count(stored, f"{first}.1.transformer_blocks."))
    middle = f"{NET}middle_block.1"
    heads = tuple([width // 64 if xl else 8 for width in channels])
    added = _size(stored, f"{NET}label_emb.0.0.weight", 1) if xl else 0
    size_width = (added - _size(stored, f"{SECOND}text_projection", 1)) // 6 if xl else 0
    return unet.Config(tuple(channels), layers, tuple(depths), _count(stored, f"{middle}.transformer_blocks."), heads,
                       _size(stored, f"{middle}.transformer_blocks.0.attn2.to_k.weight", 1),
                       stored[f"{middle}.proj_in.weight"].ndim == 2, size_width, added)


def _vae(stored: State, xl: bool) -> VAE:
    side = f"{AUTOENCODER}encoder.down."
    channels = [_size(stored, f"{side}{level}.block.0.conv1.weight") for level in range(_count(stored, side))]
    return VAE(tuple(channels), _count(stored, f"{side}0.block."), 0.13025 if xl else 0.18215)


def _text(stored: State, start: str) -> clip.Config:
    inside = f"{start}text_model."
    width = _size(stored, f"{inside}final_layer_norm.weight")
    return clip.Config(width, _size(stored, f"{inside}encoder.layers.0.mlp.fc1.weight"),
                       _count(stored, f"{inside}encoder.layers."), max(1, width // 64),
                       vocabulary=_size(stored, f"{inside}embeddings.token_embedding.weight"),
                       positions=_size(stored, f"{inside}embeddings.position_embedding.weight"))


def _open_clip(stored: State) -> clip.Config:
    inside = f"{SECOND}transformer.resblocks."
    width = _size(stored, f"{SECOND}ln_final.weight")
    return clip.Config(width, _size(stored, f"{inside}0.mlp.c_fc.weight"), _count(stored, inside), max(1, width // 64),
                       "gelu", _size(stored, f"{SECOND}text_projection", 1),
                       _size(stored, f"{SECOND}token_embedding.weight"), _size(stored, f"{SECOND}positional_embedding"))
