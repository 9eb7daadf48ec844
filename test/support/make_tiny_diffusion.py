"""Has diffusers compute with the tiny models of tiny_diffusion.py, and keeps the results for test/examples/diffusion.

    PYTHONPATH=.:test python test/support/make_tiny_diffusion.py         writes golden.npz and names.json.gz there

It needs torch, transformers and diffusers (0.42.1), the tests that read the files none of them. names.json.gz has the
names and shapes of tensors in diffusers' files, and those in single files by diffusers' own conversion of them.
"""
from __future__ import annotations

import gzip
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from support.tiny_diffusion import (
    AUTOENCODER,
    KINDS,
    NEGATIVE,
    NETS,
    PROMPT,
    SAMPLERS,
    STEPS,
    TEXTS,
    drawn,
    sampler_config,
    weight,
    write_tokenizer,
)

from examples.diffusion import checkpoint, single_file
from minigrad.state.fields import Fields

diffusers = import_module("diffusers")
FOLDER = Path(__file__).resolve().parents[1] / "examples" / "diffusion"


def filled(model: Any, part: str) -> Any:
    """The model with weights that follow from names, those of transformers' files."""
    bare = type(model).__name__ == "CLIPTextModel"
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(weight(part, f"text_model.{name}" if bare else name, tensor.shape)))
    return model.eval()


def shapes_of(model: Any) -> dict[str, list[int]]:
    bare = type(model).__name__ == "CLIPTextModel"
    return {f"text_model.{name}" if bare else name: list(t.shape) for name, t in model.state_dict().items()}


def models_of(kind: str) -> dict[str, Any]:
    _, _, texts = KINDS[kind]
    found: dict[str, Any] = {}
    for number, name in enumerate(texts):
        part = "text_encoder" if not number else f"text_encoder_{number + 1}"
        found[part] = filled(getattr(transformers, name)(transformers.CLIPTextConfig(**TEXTS[name])), part)
    found["unet"] = filled(diffusers.UNet2DConditionModel(**NETS[kind]), "unet")
    found["vae"] = filled(diffusers.AutoencoderKL(**AUTOENCODER), "vae")
    return found


def pipeline_of(kind: str, models: dict[str, Any], folder: Path) -> Any:
    sampler = getattr(diffusers, SAMPLERS[KINDS[kind][1]][0]).from_config(sampler_config(KINDS[kind][1]))
    parts: dict[str, Any] = {**models, "scheduler": sampler}
    for number in range(len(KINDS[kind][2])):
        end = f"_{number + 1}" if number else ""
        pad = "!" if number else "<|endoftext|>"
        write_tokenizer(folder / f"tokenizer{end}", pad)
        parts[f"tokenizer{end}"] = transformers.CLIPTokenizer.from_pretrained(
            folder / f"tokenizer{end}", pad_token=pad, model_max_length=16)
    if kind != "xl":
        parts |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    found = getattr(diffusers, KINDS[kind][0])(**parts)
    found.set_progress_bar_config(disable=True)
    return found


def pipelines(kind: str, models: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """The whole way, from given noise, and what the parts of it give."""
    found = {}
    pipe = pipeline_of(kind, models, folder)
    for name in ("tokenizer", "tokenizer_2")[:len(KINDS[kind][2])]:
        found[name] = np.array(getattr(pipe, name)(PROMPT, padding="max_length", max_length=16).input_ids)
    noise = torch.from_numpy(drawn((1, 4, 8, 8), 5))
    fresh = iter(range(6, 20))

    def randn(shape: Any, *_: Any, **__: Any) -> Any:
        return torch.from_numpy(drawn(shape, next(fresh)))

    sys.modules[type(pipe.scheduler).__module__].randn_tensor = randn  # type: ignore[attr-defined]
    options: dict[str, Any] = {"latents": noise, "num_inference_steps": 4, "height": 16, "width": 16,
                               "guidance_scale": 4.0, "output_type": "np"}
    if kind == "xl":
        options |= {"original_size": (16, 16), "target_size": (16, 16)}
    found["picture"] = pipe(PROMPT, **options).images[0]
    if kind != "lcm":
        found["negative"] = pipe(PROMPT, negative_prompt=NEGATIVE, **options).images[0]
    if kind == "1.5":
        second = diffusers.StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
        second.set_progress_bar_config(disable=True)
        module = sys.modules[type(second).__module__]
        module.randn_tensor = lambda shape, *_, **__: noise  # type: ignore[attr-defined]
        encode = module.retrieve_latents
        module.retrieve_latents = lambda out, **_: encode(out, sample_mode="argmax")  # type: ignore[attr-defined]
        image = torch.from_numpy(np.tanh(drawn((1, 3, 16, 16), 4)))
        found["image"] = second(PROMPT, image=image, strength=0.6, num_inference_steps=5, guidance_scale=4.0,
                                output_type="np").images[0]
    return {f"{kind}/{name}": value for name, value in found.items()}


def parts(kind: str, models: dict[str, Any]) -> dict[str, np.ndarray]:
    """What each model gives for drawn inputs."""
    found = {}
    net, count = models["unet"], NETS[kind]["cross_attention_dim"]
    latents, text = torch.from_numpy(drawn((2, 4, 8, 8))), torch.from_numpy(drawn((2, 16, count), 1))
    options: dict[str, Any] = {}
    if kind == "xl":
        options["added_cond_kwargs"] = {"text_embeds": torch.from_numpy(drawn((2, 24), 2)),
                                        "time_ids": torch.tensor([[64.0, 48, 8, 0, 96, 80]] * 2)}
    if kind == "lcm":
        options["timestep_cond"] = torch.from_numpy(drawn((2, 16), 3))
    with torch.no_grad():
        found["unet"] = net(latents, torch.tensor([7.0, 981.0]), text, **options).sample.numpy()
        if kind == "1.5":
            found["decoded"] = models["vae"].decode(latents).sample.numpy()
            found["encoded"] = models["vae"].encode(torch.from_numpy(drawn((1, 3, 16, 16)))).latent_dist.mean.numpy()
        if kind == "xl":
            tokens = torch.tensor([[598, *range(40, 45), 599, *[0] * 9], [598, *range(90, 104), 599]])
            for name in ("text_encoder", "text_encoder_2"):
                out = models[name](tokens, output_hidden_states=True)
                for row, rows in (("last", out.last_hidden_state), ("before", out.hidden_states[-2])):
                    found[f"{name}/{row}"] = rows[:, ::5].numpy()  # every fifth token is enough
                found[f"{name}/summary"] = (out.pooler_output if name == "text_encoder" else out.text_embeds).numpy()
    return {f"{kind}/{name}": value for name, value in found.items()}


def samplers() -> dict[str, np.ndarray]:
    """The latents after each step, with a stand-in for the model."""
    found = {}
    for name, (kind, _) in SAMPLERS.items():
        sampler = getattr(diffusers, kind).from_config(sampler_config(name))
        sampler.set_timesteps(STEPS[name])
        x, seen = torch.from_numpy(drawn((1, 4, 3, 3))) * sampler.init_noise_sigma, []
        fresh = iter(range(1, 20))
        module = sys.modules[type(sampler).__module__]
        module.randn_tensor = lambda shape, *_, fresh=fresh, **__: torch.from_numpy(  # type: ignore[attr-defined]
            drawn(shape, next(fresh)))
        for time in sampler.timesteps:
            output = torch.tanh(sampler.scale_model_input(x, time)) * 1.3 + 0.2
            x = sampler.step(output, time, x).prev_sample
            seen.append(x.numpy())
        found[f"sampler/{name}"] = np.stack(seen)
        found[f"times/{name}"] = sampler.timesteps.numpy().astype(np.float32)
    return found


def originals(kind: str, models: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Names in single files by those of diffusers, of the U-Net and the autoencoder. The conversion is that of
    diffusers: ours only finds which name it comes from, by asking for each."""
    convert = import_module("diffusers.loaders.single_file_utils")
    unet = checkpoint._unet(Fields(NETS[kind], "a U-Net"))
    vae = checkpoint._vae(Fields(AUTOENCODER, "an autoencoder"))
    found = {}
    for part, start, known, inner, function in (
            ("unet", single_file.NET, single_file.unet_names(unet), single_file.RESIDUAL,
             convert.convert_ldm_unet_checkpoint),
            ("vae", single_file.AUTOENCODER, single_file.vae_names(len(vae.channels), vae.layers),
             single_file.ATTENTION, convert.convert_ldm_vae_checkpoint)):
        names = list(models[part].state_dict())
        theirs = [start + _original(name, known, inner) for name in names]
        converted = function({name: torch.full((1, 1, 1, 1), float(n)) for n, name in enumerate(theirs)},
                             dict(models[part].config))
        assert {name: int(t.reshape(())) for name, t in converted.items()} == {name: n for n, name in enumerate(names)}
        found[part] = dict(zip(names, theirs, strict=True))
    return found


def _original(name: str, known: dict[str, str], inner: dict[str, str]) -> str:
    ours = {part: theirs for theirs, part in known.items()}
    part = next((part for part in single_file._beginnings(name) if part in ours), "")
    if not part:
        return name
    rest, _, kind = name[len(part):].removeprefix(".").rpartition(".")
    inside = {mine: theirs for theirs, mine in inner.items()}.get(rest, rest)
    return ".".join(each for each in (ours[part], inside, kind) if each)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    goldens: dict[str, Any] = dict(samplers())
    names: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        models = models_of(kind)
        names[kind] = {"shapes": {part: shapes_of(model) for part, model in models.items()}}
        if kind != "lcm":
            names[kind]["single"] = originals(kind, models)
        goldens |= parts(kind, models)
        with tempfile.TemporaryDirectory() as folder:
            goldens |= pipelines(kind, models, Path(folder))
    np.savez_compressed(FOLDER / "golden.npz", **goldens)
    (FOLDER / "names.json.gz").write_bytes(gzip.compress(json.dumps(names).encode(), mtime=0))


if __name__ == "__main__":
    main()
