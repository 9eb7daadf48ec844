"""Stable Diffusion on tiny random models: what diffusers computes, from folders and from single files.

The goldens are made by test/support/make_tiny_diffusion.py.
"""
from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_diffusion import (
    KINDS,
    NEGATIVE,
    PROMPT,
    SAMPLERS,
    STEPS,
    drawn,
    sampler_config,
    weight,
    write_folder,
)

from examples.diffusion import clip, pipeline, schedulers, unet
from examples.diffusion.checkpoint import Checkpoint, fill, load_folder
from examples.diffusion.clip import CLIPText
from examples.diffusion.pipeline import Pipeline, Request
from examples.diffusion.single_file import FIRST, ONLY, SECOND, load_single
from examples.diffusion.tokenizer import CLIPTokenizer
from examples.diffusion.unet import UNet2DConditionModel
from examples.zoo.vae import AutoencoderKLDecoder, AutoencoderKLEncoder
from minigrad import Tensor, jit
from minigrad.errors import FormatError
from minigrad.state import get_state_dict, safe_save
from minigrad.state.fields import Fields

HERE = Path(__file__).parent
GOLDEN = dict(np.load(HERE / "golden.npz"))
NAMES = json.loads(gzip.decompress((HERE / "names.json.gz").read_bytes()))
TOLERANCE = 1e-4

pytest.importorskip("tokenizers", reason="tokenizers is not installed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind."""
    root = tmp_path_factory.mktemp("diffusion")
    return {kind: write_folder(root / kind, kind, NAMES[kind]["shapes"]) for kind in KINDS}


def close(found: np.ndarray, name: str) -> None:
    assert np.abs(GOLDEN[name]).max() > 0.1
    np.testing.assert_allclose(found, GOLDEN[name], rtol=TOLERANCE, atol=TOLERANCE)


def of(checkpoint: Checkpoint, model: Any, part: str) -> Any:
    return fill(model, checkpoint.state(part), part)


# Parts


@pytest.mark.parametrize("kind", KINDS)
def test_unets(kind: str, folders: dict[str, Path]) -> None:
    checkpoint = load_folder(folders[kind])
    net = of(checkpoint, UNet2DConditionModel(checkpoint.unet), "unet")
    latents, text = Tensor(drawn((2, 4, 8, 8))), Tensor(drawn((2, 16, checkpoint.unet.text), 1))
    more = {"xl": {"summary": Tensor(drawn((2, 24), 2)), "sizes": Tensor([[64.0, 48, 8, 0, 96, 80]] * 2)},
            "lcm": {"guidance": Tensor(drawn((2, 16), 3))}}.get(kind, {})
    close(net(latents, Tensor([7.0, 981.0]), text, **more).numpy(), f"{kind}/unet")


def test_autoencoder(folders: dict[str, Path]) -> None:
    checkpoint = load_folder(folders["1.5"])
    state = checkpoint.state("vae")
    for kind, starts, given, name in (
            (AutoencoderKLDecoder, ("decoder.", "post_"), drawn((2, 4, 8, 8)), "decoded"),
            (AutoencoderKLEncoder, ("encoder.", "quant_"), drawn((1, 3, 16, 16)), "encoded")):
        model = fill(kind(checkpoint.vae.channels, 1), {n: t for n, t in state.items() if n.startswith(starts)}, "vae")
        close(model(Tensor(given)).numpy(), f"1.5/{name}")


def test_encoders_of_texts(folders: dict[str, Path]) -> None:
    checkpoint = load_folder(folders["xl"])
    tokens = np.array([[598, *range(40, 45), 599, *[0] * 9], [598, *range(90, 104), 599]])
    for part, config in zip(("text_encoder", "text_encoder_2"), checkpoint.texts, strict=True):
        last, before, summary = of(checkpoint, CLIPText(config), part)(Tensor(tokens))
        close(last.numpy()[:, ::5], f"xl/{part}/last")
        close(before.numpy()[:, ::5], f"xl/{part}/before")
        close(summary.numpy(), f"xl/{part}/summary")


def test_tokens(folders: dict[str, Path]) -> None:
    for name in ("tokenizer", "tokenizer_2"):  # the second is filled up with "!", which in the prompt is another token
        assert CLIPTokenizer(folders["xl"] / name, 16, 600)(PROMPT) == GOLDEN[f"xl/{name}"].tolist()
    assert GOLDEN["xl/tokenizer"].tolist() != GOLDEN["xl/tokenizer_2"].tolist()


XL_NET = unet.Config((320, 640, 1280), 2, (0, 2, 10), 10, (5, 10, 20), 2048, True, 256, 2816)
BIG_TEXT = clip.Config(1280, 5120, 32, 20, "gelu", 1280)
PUBLISHED: list[tuple[Callable[[], Any], int]] = [
    (UNet2DConditionModel, 859_520_964), (lambda: UNet2DConditionModel(XL_NET), 2_567_463_684),
    (CLIPText, 123_060_480), (lambda: CLIPText(BIG_TEXT), 694_659_840), (AutoencoderKLEncoder, 34_163_664)]
"""Of Stable Diffusion 1.5 and XL: their U-Nets, their texts' encoders, the autoencoder's encoder."""


@pytest.mark.parametrize("make, count", PUBLISHED)
def test_parameters_are_as_many_as_published(make: Callable[[], Any], count: int) -> None:
    assert sum(math.prod(map(int, tensor.shape)) for tensor in get_state_dict(make()).values()) == count


# Samplers


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name: str) -> None:
    """Over all steps, with a function in place of a model."""
    config = schedulers.read_config(Fields(sampler_config(name), name))
    schedule = schedulers.schedule_of(config, STEPS[name])
    x, found = drawn((1, 4, 3, 3)) * schedule.alone, []
    for number, step in enumerate(schedule.steps):
        output = np.tanh(x * step.scale) * 1.3 + 0.2
        x = step.keep * x + step.take * output + step.spread * drawn((1, 4, 3, 3), number + 1)
        found.append(x)
    close(np.stack(found), f"sampler/{name}")
    np.testing.assert_allclose([step.time for step in schedule.steps], GOLDEN[f"times/{name}"], atol=1e-3)


def test_a_step_leaves_the_noise_of_the_next_time_where_the_model_is_right() -> None:
    """Whatever is predicted: of clean latents and noise, mixed as a time has them, the step makes the mixture of the
    next time, and guesses the clean ones."""
    clean, noise = drawn((4,), 1).astype(np.float64), drawn((4,), 2).astype(np.float64)
    for prediction in ("epsilon", "v_prediction", "sample"):
        config = schedulers.Config("ddim", prediction=prediction, ends_at_one=True)
        signal, schedule = schedulers.signal_of(config), schedulers.schedule_of(config, 10)
        for step, following in zip(schedule.steps, schedule.steps[1:], strict=False):
            a, b = np.sqrt(signal[int(step.time)]), np.sqrt(1 - signal[int(step.time)])
            output = {"epsilon": noise, "v_prediction": a * noise - b * clean, "sample": clean}[prediction]
            x = a * clean + b * noise
            np.testing.assert_allclose(step.clean[0] * x + step.clean[1] * output, clean, atol=1e-9)
            left = signal[int(following.time)]
            np.testing.assert_allclose(step.keep * x + step.take * output,
                                       np.sqrt(left) * clean + np.sqrt(1 - left) * noise, atol=1e-9)


# Whole pipelines


def picture(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, **options: Any) -> np.ndarray:
    """0..1 [16, 16, 3], from the noise that diffusers was given."""
    monkeypatch.setattr(Pipeline, "_noise", lambda self, request, step: drawn((1, 4, 8, 8), 5 + step))
    request = Request(PROMPT, **{"steps": 4, "guidance": 4.0, "height": 16, "width": 16, **options})
    found: list[np.ndarray] = []

    class Seen(Pipeline):
        def decoded(self, latents: np.ndarray) -> np.ndarray:
            found.append(super().decoded(latents))
            return found[0]

    pixels = Seen(checkpoint)(request)
    values = np.clip(found[0][0].transpose(1, 2, 0) / 2 + 0.5, 0, 1)
    np.testing.assert_allclose(pixels, values * 255, atol=0.51)
    return values


@pytest.mark.parametrize("kind, name, options", [
    ("1.5", "picture", {}), ("1.5", "negative", {"negative": NEGATIVE}), ("xl", "picture", {}), ("lcm", "picture", {}),
    ("xl", "negative", {"negative": NEGATIVE})])
def test_pictures(kind: str, name: str, options: dict[str, Any], folders: dict[str, Path],
                  monkeypatch: pytest.MonkeyPatch) -> None:
    close(picture(load_folder(folders[kind]), monkeypatch, **options), f"{kind}/{name}")


def test_an_image_to_begin_with(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.tanh(drawn((3, 16, 16), 4))
    close(picture(load_folder(folders["1.5"]), monkeypatch, image=image, strength=0.6, steps=5), "1.5/image")


def single_file(kind: str, path: Path) -> Path:
    """The tiny model of a kind under the names of single files."""
    stored, shapes, names = {}, NAMES[kind]["shapes"], NAMES[kind]["single"]
    for part in ("unet", "vae"):
        for name, theirs in names[part].items():
            array = weight(part, name, shapes[part][name])
            flat = part == "vae" and ".attentions." in name and array.ndim == 2
            stored[theirs] = array[:, :, None, None] if flat else array
    texts = {name: weight("text_encoder", name, shape) for name, shape in shapes["text_encoder"].items()}
    stored |= {(FIRST if kind == "xl" else ONLY) + name: array for name, array in texts.items()}
    if kind == "xl":
        stored |= open_clip({name: weight("text_encoder_2", name, shape)
                             for name, shape in shapes["text_encoder_2"].items()})
    safe_save({name: Tensor(np.ascontiguousarray(array)) for name, array in stored.items()}, path)
    return path


def open_clip(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """An encoder of texts as OpenCLIP keeps it."""
    layers = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "self_attn.out_proj": "attn.out_proj",
              "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    found = {"token_embedding.weight": state["text_model.embeddings.token_embedding.weight"],
             "positional_embedding": state["text_model.embeddings.position_embedding.weight"],
             "text_projection": state["text_projection.weight"].T, "logit_scale": np.ones((), np.float32)}
    for kind in ("weight", "bias"):
        found[f"ln_final.{kind}"] = state[f"text_model.final_layer_norm.{kind}"]
        for number in range(3):
            inside = f"text_model.encoder.layers.{number}."
            found[f"transformer.resblocks.{number}.attn.in_proj_{kind}"] = np.concatenate(
                [state[f"{inside}self_attn.{letter}_proj.{kind}"] for letter in "qkv"])
            for ours, theirs in layers.items():
                found[f"transformer.resblocks.{number}.{theirs}.{kind}"] = state[f"{inside}{ours}.{kind}"]
    return {SECOND + name: array for name, array in found.items()}


@pytest.mark.parametrize("kind", ["1.5", "xl"])
def test_single_files_are_the_folders(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Every part's configuration and tensors, but for what such a file does not say."""
    folder = load_folder(folders[kind])
    single = load_single(single_file(kind, tmp_path / "model.safetensors"), folder.tokenizers)
    assert single.unet == folder.unet and single.vae.channels == folder.vae.channels and single.blank == folder.blank
    assert single.texts[0] == folder.texts[0] if kind == "1.5" else single.texts[1].projection == 24
    parts = ["unet", "vae", "text_encoder", *["text_encoder_2"] * (kind == "xl")]
    for part in parts:
        ours, theirs = folder.state(part), single.state(part)
        assert set(ours) == set(theirs)
        for name, tensor in ours.items():
            np.testing.assert_array_equal(theirs[name].numpy(), tensor.numpy(), err_msg=name)


def test_half_types_are_near(folders: dict[str, Path]) -> None:
    """Weights and what is computed in float16, and latents between steps in float32."""
    config, seen = unet.Config((32,), 1, (1,), 1, (4,), 64), []
    state = {name: Tensor(weight("unet", name, map(int, tensor.shape)))
             for name, tensor in get_state_dict(UNet2DConditionModel(config)).items()}
    checkpoint = replace(load_folder(folders["1.5"]), unet=config, state=lambda part: state)
    request = Request(PROMPT, steps=1, guidance=1.0, height=16, width=16)
    words = pipeline.Words(Tensor(drawn((1, 16, 64))), None)
    for dtype in ("float32", "float16"):
        pipe, schedule = Pipeline(checkpoint, dtype), schedulers.schedule_of(checkpoint.sampler, 1)
        seen += [x for x, _ in pipe.denoised(request, schedule, words, pipe.begun(request, schedule))]
    assert seen[0].dtype == seen[1].dtype == np.float32
    assert 1e-5 < np.abs(seen[0] - seen[1]).max() < 0.02 * np.abs(seen[0]).max()


def test_each_step_is_seen_and_one_program_makes_them(folders: dict[str, Path],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def noted(function: Any) -> Any:
        made.append(jit(function))
        return made[-1]

    monkeypatch.setattr(pipeline, "jit", noted)
    seen: list[tuple[int, int]] = []
    checkpoint = load_folder(folders["1.5"])
    checkpoint = replace(checkpoint, sampler=replace(checkpoint.sampler, sampler="euler-ancestral"))
    first = Pipeline(checkpoint)(Request(PROMPT, steps=5, height=16, width=16, seed=3),
                                 lambda number, count, clean: seen.append((number, count)))
    assert seen == [(n, 5) for n in range(1, 6)] and len(made) == 2  # the step and the decoder
    again = Pipeline(checkpoint)(Request(PROMPT, steps=5, height=16, width=16, seed=3))
    other = Pipeline(checkpoint)(Request(PROMPT, steps=5, height=16, width=16, seed=4))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first.astype(int) - other).max() > 10


def test_weights_of_another_model(folders: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = load_folder(folders["1.5"])
    other = load_folder(folders["lcm"])
    with pytest.raises(FormatError, match=r"unet: expected the weights that its configuration describes: .*lacks"):
        fill(UNet2DConditionModel(other.unet), checkpoint.state("unet"), "unet")
