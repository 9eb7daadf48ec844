"""The command: bad input is one line before anything is computed; tiles; memory."""
from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_diffusion import write_folder

from examples.diffusion import generate, memory
from examples.diffusion.checkpoint import load_folder
from examples.diffusion.pipeline import Pipeline
from examples.diffusion.tiles import decode_tiled, starts
from examples.llama.memory import TooLarge
from minigrad import Tensor
from minigrad.state import safe_load, safe_save

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
NAMES = json.loads(gzip.decompress((Path(__file__).parent / "names.json.gz").read_bytes()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny", "lcm", NAMES["lcm"]["shapes"])


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    """(exit status, what was said as an error) of the command."""
    monkeypatch.setattr("sys.argv", ["generate", *map(str, arguments)])
    try:
        status = generate.main()
    except SystemExit as ended:
        status = int(str(ended.code))
    return status, capsys.readouterr().err


def test_a_picture_with_a_preview(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The U-Net, which test_diffusion.py sees to, is left out here."""
    previews: list[np.ndarray] = []
    monkeypatch.setattr(generate, "previewer", lambda folder, path: previews.append)
    monkeypatch.setattr(Pipeline, "denoised", lambda self, request, schedule, words, latents: (
        (latents * step.time / 1000, latents) for step in schedule.steps))
    out = tmp_path / "a.png"
    status, error = said(capsys, monkeypatch, "--model", model, "--prompt", "a cat", "--size", "16", "--steps", "2",
                         "--preview", tmp_path / "p.png", "--output", out)
    assert (status, error) == (0, "")
    with Image.open(out) as picture:
        assert picture.size == (16, 16) and np.ptp(np.asarray(picture)) > 50
    assert [latents.shape for latents in previews] == [(1, 4, 8, 8)] * 2


Change = Callable[[Path], object]


def edited(file: str, **fields: Any) -> Change:
    """Changes fields of a JSON file."""
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


BAD: list[tuple[str, Change | None, list[str], str]] = [
    ("no folder", None, ["--model", "nowhere"], r"nowhere: there is no such model; expected a folder"),
    ("a language model", lambda folder: (folder / "model_index.json").unlink(), [],
     r"expected model_index\.json in a model's folder"),
    ("another kind", edited("model_index.json", _class_name="FluxPipeline"), [],
     r"the model is a 'FluxPipeline'; expected Stable Diffusion 1\.x, 2\.x or XL"),
    ("no JSON", lambda folder: (folder / "unet/config.json").write_text("{"), [], r"expected JSON"),
    ("inpainting", edited("unet/config.json", in_channels=9), [], r"in_channels is 9; expected 4"),
    ("other levels", edited("unet/config.json", up_block_types=["UpBlock2D"] * 2), [], r"the levels are .*the same up"),
    ("other heads", edited("unet/config.json", attention_head_dim=5), [], r"expected channels that"),
    ("other texts", edited("text_encoder/config.json", hidden_size=128), [], r"takes rows of 128 numbers"),
    ("T5", edited("text_encoder/config.json", architectures=["T5EncoderModel"]), [],
     r"the model is a 'T5EncoderModel'; expected CLIPTextModel"),
    ("no weights", lambda folder: (folder / "unet/diffusion_pytorch_model.safetensors").unlink(), [],
     r"expected a \.safetensors file with weights"),
    ("weights cut short", lambda folder: (folder / "unet/diffusion_pytorch_model.safetensors").write_bytes(b"123"), [],
     r"truncated or corrupt"),
    ("another sampler", edited("scheduler/scheduler_config.json", use_karras_sigmas=True), [], r"use_karras_sigmas is"),
    ("another vocabulary", lambda folder: (folder / "tokenizer/vocab.json").write_text('{"a": 1}'), [],
     r"expected CLIP's vocabulary, with <\|startoftext\|>"),
    ("a token too far", edited("tokenizer/vocab.json", cat=600), [], r"the id of 'cat' to be an integer below 600"),
    ("bad merges", lambda folder: (folder / "tokenizer/merges.txt").write_text("a\n"), [], r"expected a merge to"),
    ("long prompt", None, ["--prompt", "cat " * 15], r"the text has 15 tokens; expected at most 14.*shorten it"),
    ("size", None, ["--size", "30"], r"--size: expected a multiple of 4, or WIDTHxHEIGHT of such, got 30"),
    ("size", None, ["--size", "16x"], r"--size: expected"),
    ("steps", None, ["--steps", "0"], r"--steps: expected 1 to 50 with lcm, got 0"),
    ("strength", None, ["--image", "IMAGE", "--strength", "0.1"], r"--strength: 0\.1 of 4 steps is none"),
    ("image", None, ["--image", "nothing.png"], r"nothing\.png: no such file or directory; expected an image"),
    ("no image", None, ["--image", "TEXT"], r"text\.png: not an image, or cut short; expected an image"),
    ("guidance", None, ["--guidance", "nan"], r"--guidance: expected 0 to 100, got nan"),
    ("seed", None, ["--seed", "-1"], r"--seed: expected 0 or more"),
    ("memory", None, ["--memory", "much"], r"expected an amount of memory such as '2GB'"),
    ("little memory", None, ["--memory", "1MB"], r"does not fit: the U-Net takes .* and 1 MB may be taken"),
    ("output", None, ["--output", "a.txt"], r"--output: expected a file that ends in \.png"),
    ("folder of the output", None, ["--output", "nowhere/a.png"], r"--output: there is no folder nowhere"),
    ("tile", None, ["--tile", "3"], r"--tile: expected 0, or 8 or more"),
    ("preview", None, ["--preview", "p.png"], r"--preview: expected taesd_decoder\.safetensors in .*; --taesd"),
    ("tokenizer", None, ["--tokenizer", "."], r"--tokenizer: expected vocab\.json in \., found none"),
    ("scheduler", None, ["--scheduler", "pndm"], r"invalid choice: 'pndm'")]


@pytest.mark.parametrize("name, change, arguments, expected", BAD)
def test_bad_input_is_one_line(name: str, change: Change | None, arguments: list[str], expected: str, model: Path,
                               tmp_path: Path, capsys: pytest.CaptureFixture[str],
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("image.png")
    Path("text.png").write_text("no picture")
    if change:
        change(model)
    places = {"IMAGE": "image.png", "TEXT": "text.png"}
    given = ["--model", model, "--prompt", "a cat", "--size", "16", *[places.get(each, each) for each in arguments]]
    status, error = said(capsys, monkeypatch, *given)
    assert status in (1, 2) and error.count("\n") == 1 and error.startswith("generate: ")
    assert re.search(expected, error), error
    assert not Path("picture.png").exists()


SINGLE: list[tuple[dict[str, tuple[int, ...]], str]] = [
    ({"model.layers.0.weight": (2,)}, "got another model"),
    ({"cond_stage_model.model.ln_final.weight": (2,), "model.diffusion_model.input_blocks.0.0.weight": (2, 4, 3, 3)},
     r"got Stable Diffusion 2\.x; use its folder"),
    ({"double_blocks.0.img_attn.proj.weight": (2, 2)}, "got Flux"),
    ({"conditioner.embedders.0.model.ln_final.weight": (2,)}, "got the refiner of XL"),
    ({"down_blocks.0.resnets.0.norm1.weight": (2,)}, "got a part of a folder of diffusers; name the folder"),
    ({"cond_stage_model.transformer.text_model.final_layer_norm.weight": (64,),
      "model.diffusion_model.input_blocks.0.0.weight": (32, 9, 3, 3)}, "expected 4: no model for inpainting"),
    ({"cond_stage_model.transformer.text_model.final_layer_norm.weight": (64,),
      "model.diffusion_model.input_blocks.0.0.weight": (32, 4, 3, 3)}, "the file lacks .*; expected a whole")]


@pytest.mark.parametrize("tensors, expected", SINGLE)
def test_single_files_of_other_models(tensors: dict[str, tuple[int, ...]], expected: str, model: Path, tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.safetensors"
    safe_save({name: Tensor.zeros(*shape) for name, shape in tensors.items()}, path)
    status, error = said(capsys, monkeypatch, "--model", path, "--prompt", "a", "--tokenizer", model / "tokenizer")
    assert status == 1 and error.count("\n") == 1 and re.search(expected, error), error
    status, error = said(capsys, monkeypatch, "--model", path, "--prompt", "a")
    assert status == 1 and "the file has no tokenizer; expected --tokenizer FOLDER" in error


def test_what_does_not_fit_is_halved_and_tiled(model: Path) -> None:
    checkpoint = load_folder(model)

    def chosen(budget: int | None, **fixed: Any) -> memory.Choice:
        return memory.choose(checkpoint, 2048, 2048, 2, budget, fixed.get("dtype"), fixed.get("tile"))

    free = chosen(None)
    assert (free.dtype, free.tile) == ("float32", 0)
    tiled = chosen(free.total - 1)
    assert tiled.dtype == "float32" and tiled.tile == 96 and tiled.total < free.total
    least = memory.net_bytes(checkpoint, 2048, 2048, 2, "float16")
    assert chosen(least).dtype == "float16" and chosen(least).total <= least
    with pytest.raises(TooLarge, match="the decoder takes"):
        chosen(free.total - 1, tile=0)
    with pytest.raises(TooLarge, match=r"the U-Net takes .* what may help: a smaller --size, --guidance 1"):
        chosen(least - 1)


@pytest.mark.parametrize("height, width, tile", [(40, 56, 16), (16, 50, 24), (33, 33, 32)])
def test_tiles_cover_a_picture_without_seams(height: int, width: int, tile: int) -> None:
    """A decoder that looks at no neighbours gives the same in tiles; tiles that disagree meet in a ramp."""
    latents = np.random.default_rng(0).standard_normal((1, 4, height, width)).astype(np.float32)
    shapes = set()

    def decode(part: np.ndarray) -> np.ndarray:
        shapes.add(part.shape)
        return np.repeat(np.repeat(part[:, :3], 8, axis=2), 8, axis=3)

    np.testing.assert_allclose(decode_tiled(decode, latents, tile), decode(latents), atol=1e-5)
    assert len(shapes - {latents.shape}) == 1
    count = iter(range(100))
    steps = decode_tiled(lambda part: np.full((1, 3, part.shape[2] * 8, part.shape[3] * 8), float(next(count)),
                                              np.float32), latents[:, :, :tile], tile)
    assert np.abs(np.diff(steps[0, 0, 0])).max() < 1.01 / (tile // 4 * 8) * 2
    assert next(count) == len(starts(width, tile))


def test_files_of_both_types_are_read_in_float32(model: Path) -> None:
    """As on the Hub: the same weights in float16, beside."""
    folder = model / "unet"
    whole = folder / "diffusion_pytorch_model.safetensors"
    halves = {name: tensor.half() for name, tensor in safe_load(whole).items()}
    safe_save(halves, folder / "diffusion_pytorch_model.fp16.safetensors")
    assert {tensor.dtype.name for tensor in load_folder(model).state("unet").values()} == {"float32"}
    whole.unlink()
    assert {tensor.dtype.name for tensor in load_folder(model).state("unet").values()} == {"float16"}
