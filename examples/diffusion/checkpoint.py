"""The parts of a checkpoint of Stable Diffusion, read from diffusers' folders.

    model_index.json, scheduler/scheduler_config.json, tokenizer/, text_encoder/, unet/, vae/
    tokenizer_2/, text_encoder_2/                                   of XL

Tensors are mapped from their files: nothing is read before a part is built, and what is dropped can be read again.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.diffusion import clip, schedulers, unet
from minigrad import Tensor
from minigrad.errors import FormatError, ShapeError
from minigrad.state import load_state_dict, safe_load
from minigrad.state.fields import Fields, brief, read_json

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class VAE:
    """Of the autoencoder: channels of the levels, residual blocks of each, and the factor of its latents."""

    channels: tuple[int, ...] = (128, 256, 512, 512)
    layers: int = 2
    scaling: float = 0.18215


@dataclass(frozen=True)
class Checkpoint:
    """The parts' sizes, and a function that maps a part's tensors by the names of diffusers. XL has two encoders of
    texts, of which the rows before the last layer are taken, and tokens for each of them.

    `blank` says that without a negative prompt there are zeros in its place; `size` is that of pictures it was trained
    with.
    """

    path: Path
    texts: tuple[clip.Config, ...]
    unet: unet.Config
    vae: VAE
    sampler: schedulers.Config
    tokenizers: tuple[Path, ...]
    state: Callable[[str], State]
    blank: bool
    size: int

    @property
    def xl(self) -> bool:
        return len(self.texts) == 2


def text_part(number: int) -> str:
    """The name of an encoder of texts."""
    return "text_encoder" if number == 0 else f"text_encoder_{number + 1}"


def fill(model: Any, state: State, source: str, dtype: str = "float32") -> Any:
    """`model` with the tensors of `state`, in a type, ready to be called. Raises FormatError for those of another."""
    model = model.to(dtype=dtype).eval()
    try:
        load_state_dict(model, state)
    except (FormatError, ShapeError) as error:
        raise FormatError(f"{source}: expected the weights that its configuration describes: {error}") from None
    return model.requires_grad_(False)


# diffusers' folders

PIPELINES = ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "LatentConsistencyModelPipeline",
             "StableDiffusionImg2ImgPipeline", "StableDiffusionXLImg2ImgPipeline")
CLASSES = {"unet": ("UNet2DConditionModel",), "vae": ("AutoencoderKL",),
           "text_encoder": ("CLIPTextModel", "CLIPTextModelWithProjection")}
UNET: dict[str, tuple[Any, ...]] = {
    "mid_block_type": ("UNetMidBlock2DCrossAttn",), "act_fn": ("silu",), "flip_sin_to_cos": (True,), "freq_shift": (0,),
    "center_input_sample": (False,), "downsample_padding": (1,), "mid_block_scale_factor": (1,), "in_channels": (4,),
    "out_channels": (4,), "only_cross_attention": (False,), "dual_cross_attention": (False,), "class_embed_type": (),
    "num_class_embeds": (), "encoder_hid_dim": (), "encoder_hid_dim_type": (), "time_embedding_type": ("positional",),
    "time_embedding_dim": (), "resnet_time_scale_shift": ("default",), "conv_in_kernel": (3,), "conv_out_kernel": (3,),
    "addition_embed_type": ("text_time",), "attention_type": ("default",), "num_attention_heads": (),
    "reverse_transformer_layers_per_block": (), "resnet_skip_time_act": (False,), "cross_attention_norm": ()}
"""Values that fields in configurations of U-Nets may have, where they are there."""
AUTOENCODER: dict[str, tuple[Any, ...]] = {
    "act_fn": ("silu",), "latent_channels": (4,), "norm_num_groups": (32,), "in_channels": (3,), "out_channels": (3,),
    "shift_factor": (), "latents_mean": (), "use_quant_conv": (True,), "use_post_quant_conv": (True,),
    "mid_block_add_attention": (True,)}


def load_folder(folder: Path) -> Checkpoint:
    """A folder in the layout of diffusers. Raises FormatError for other models, before any weight is read."""
    index = read_json(_file(folder, "model_index.json"))
    kind = index.text("_class_name")
    if kind not in PIPELINES:
        raise FormatError(f"{index.source}: the model is a {brief(kind)}; expected Stable Diffusion 1.x, 2.x or XL: "
                          f"{', '.join(PIPELINES[:3])}")
    count = 2 if "XL" in kind else 1
    texts = tuple([_text(_config(folder, text_part(number), "text_encoder")) for number in range(count)])
    net = _config(folder, "unet", "unet")
    found = _unet(net)
    wide = sum(text.width for text in texts)
    if found.text != wide or (count == 2) != bool(found.added):
        raise FormatError(f"{net.source}: expected a U-Net that takes rows of {wide} numbers as the texts' encoders "
                          f"give, got one of {found.text}")
    names = ["tokenizer", "tokenizer_2"][:count]
    return Checkpoint(
        folder, texts, found, _vae(_config(folder, "vae", "vae")),
        schedulers.read_config(read_json(_file(folder, "scheduler/scheduler_config.json"))),
        tuple([_file(folder, f"{name}/vocab.json").parent for name in names]),
        lambda part: _state(folder / part, part), index.flag("force_zeros_for_empty_prompt", count == 2),
        net.count("sample_size", default=64) * 8)


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FormatError(f"{folder}: expected {name} in a model's folder, found none; expected Stable Diffusion as "
                          "diffusers lays it out, or one .safetensors file")
    return folder / name


def _config(folder: Path, part: str, kind: str) -> Fields:
    """The configuration of a part, of the class expected."""
    fields = read_json(_file(folder, f"{part}/config.json"))
    given = fields.content.get("_class_name") or (fields.items("architectures", str, default=[""]) or [""])[0]
    if given not in CLASSES[kind]:
        raise FormatError(f"{fields.source}: the model is a {brief(given)}; expected {' or '.join(CLASSES[kind])}")
    return fields


def _check(fields: Fields, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    for key, known in allowed.items():
        found = fields.content.get(key)
        if found is not None and found not in known:
            raise FormatError(f"{fields.source}: {key} is {brief(found)}; expected "
                              f"{' or '.join(map(str, known)) or 'none'}; the model is of another kind")


def _each(fields: Fields, key: str, count: int, default: int) -> tuple[int, ...]:
    """A number for each level, of which configurations may state one for all."""
    if isinstance(fields.content.get(key), list):
        return tuple(fields.items(key, int, length=count))
    return (fields.count(key, default=default),) * count


def _unet(fields: Fields) -> unet.Config:
    _check(fields, UNET)
    channels = tuple(fields.items("block_out_channels", int))
    count = len(channels)
    down, up = (fields.items(f"{way}_block_types", str, length=count) for way in ("down", "up"))
    crossed = [kind == "CrossAttnDownBlock2D" for kind in down]
    mirrored = ["CrossAttnUpBlock2D" if each else "UpBlock2D" for each in reversed(crossed)]
    if not set(down) <= {"CrossAttnDownBlock2D", "DownBlock2D"} or up != mirrored:
        raise FormatError(f"{fields.source}: the levels are {brief(down)} and {brief(up)}; expected levels with and "
                          "without attention, the same up as down")
    depths, heads = (_each(fields, key, count, default) for key, default in (
        ("transformer_layers_per_block", 1), ("attention_head_dim", 8)))
    text = fields.text("addition_embed_type", "") == "text_time"
    groups = fields.count("norm_num_groups", default=32)
    if any(width % groups or width % head for width, head in zip(channels, heads, strict=True)):
        raise FormatError(f"{fields.source}: expected channels that {groups} groups and {list(heads)} heads share, got "
                          f"{list(channels)}")
    return unet.Config(
        channels, fields.count("layers_per_block", default=2),
        tuple([depth if each else 0 for depth, each in zip(depths, crossed, strict=True)]), depths[-1], heads,
        fields.count("cross_attention_dim", default=1280), fields.flag("use_linear_projection", False),
        fields.count("addition_time_embed_dim") if text else 0,
        fields.count("projection_class_embeddings_input_dim") if text else 0,
        fields.count("time_cond_proj_dim", 4) if "time_cond_proj_dim" in fields else 0, groups,
        fields.real("norm_eps", 0, 1, 1e-5))


def _text(fields: Fields) -> clip.Config:
    _check(fields, {"hidden_act": ("quick_gelu", "gelu")})
    projected = fields.items("architectures", str)[0] == "CLIPTextModelWithProjection"
    width, heads = fields.count("hidden_size", default=512), fields.count("num_attention_heads", default=8)
    if width % heads:
        raise FormatError(f"{fields.source}: expected a width that {heads} heads share, got {width}")
    return clip.Config(
        width, fields.count("intermediate_size", default=2048), fields.count("num_hidden_layers", default=12), heads,
        fields.text("hidden_act", "quick_gelu"), fields.count("projection_dim", default=512) if projected else 0,
        fields.count("vocab_size", default=49408), fields.count("max_position_embeddings", 3, default=77),
        fields.count("eos_token_id", default=49407), fields.real("layer_norm_eps", 0, 1, 1e-5))


def _vae(fields: Fields) -> VAE:
    _check(fields, AUTOENCODER)
    return VAE(tuple(fields.items("block_out_channels", int)), fields.count("layers_per_block", default=1),
               fields.real("scaling_factor", 1e-6, 1e6, 0.18215))


OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""Names of before 2023 in autoencoders' attention."""


def _state(folder: Path, part: str) -> State:
    """The tensors of a part. Where there are files of several types, those in float32 are taken."""
    files = sorted(folder.glob("*.safetensors"))
    plain = [file for file in files if ".fp16" not in file.name and "ema" not in file.name]
    if not files:
        raise FormatError(f"{folder}: expected a .safetensors file with weights, found none")
    state: dict[str, Tensor] = {}
    for file in plain or files:
        state |= safe_load(file)
    state.pop("text_model.embeddings.position_ids", None)
    if part.startswith("text_encoder") and "embeddings.token_embedding.weight" in state:
        state = {f"text_model.{name}": tensor for name, tensor in state.items()}
    if part == "vae":
        for old, new in OLD_ATTENTION.items():
            state = {name.replace(f"attentions.0.{old}.", f"attentions.0.{new}."): t for name, t in state.items()}
    return state
