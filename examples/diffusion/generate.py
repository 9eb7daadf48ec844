"""Draws a picture from words, with Stable Diffusion 1.x, 2.x or XL.

    python examples/diffusion/generate.py --model sd15 --prompt "a lighthouse at dawn, oil painting"
    python examples/diffusion/generate.py --model sdxl.safetensors --tokenizer clip --prompt "a cat" --memory 8GB
    python examples/diffusion/generate.py --model sd15 --prompt "in winter" --image photo.png --strength 0.6
    python examples/diffusion/generate.py --model sdxl-turbo --prompt "a cat" --steps 1 --guidance 0

--model is a folder in the layout of diffusers, or one .safetensors file with the names of CompVis or Stability; such a
file has no tokenizer: --tokenizer names a folder with CLIP's vocab.json and merges.txt.
"""
from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import minigrad
from examples.diffusion.checkpoint import Checkpoint, fill, load_folder
from examples.diffusion.memory import DTYPES, choose
from examples.diffusion.pictures import check_name, read_picture, write_picture
from examples.diffusion.pipeline import Pipeline, Request
from examples.diffusion.schedulers import SAMPLERS, SPACINGS, schedule_of
from examples.diffusion.single_file import load_single
from examples.llama.memory import free_memory, size
from examples.zoo.taesd import decoder
from minigrad import Tensor, jit
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.config import bytes_of
from minigrad.errors import ConfigError, FormatError
from minigrad.state import safe_load

if TYPE_CHECKING:
    from collections.abc import Callable


def parser_of_options() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="a folder of diffusers, or a .safetensors file")
    add("--prompt", required=True, help="what to draw")
    add("--negative", help="what not to draw")
    add("--image", type=Path, help="a picture to begin with")
    add("--strength", type=float, default=0.75, help="how much of it may change, up to 1 (default 0.75)")
    add("--steps", type=int, help="default 20, with lcm 4")
    add("--guidance", type=float, help="how much the prompt counts; 1 or less: each step runs once (default 7.5, XL 5)")
    add("--seed", type=int, default=0, help="another one draws another picture (default 0)")
    add("--size", help="of the picture, such as 512 or 768x512 (default: the model's)")
    add("--scheduler", choices=SAMPLERS, help="how steps are made (default: the model's, ddim if it is not known)")
    add("--spacing", choices=SPACINGS, help="which times are taken (default: the model's)")
    add("--memory", help="what may be taken, such as 4GB (default: what is free)")
    add("--weights", choices=[*DTYPES], help="type of weights (default: float32 if it fits, else float16)")
    add("--tile", type=int, help="decode tiles of so many latents, 8 pixels each (0: all at once; default: what fits)")
    add("--tokenizer", type=Path, action="append", help="folder with vocab.json and merges.txt, for a single file")
    add("--preview", type=Path, metavar="FILE", help="a picture that is written after each step")
    add("--taesd", type=Path, help="folder with taesd_decoder.safetensors, for --preview (default: beside the model)")
    add("--output", type=Path, default=Path("picture.png"), help="the file to write (default picture.png)")
    add("--device", help="CPU, CL, CL:<name> (default: MINIGRAD_DEVICE, else CPU)")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def load(path: Path, tokenizers: list[Path] | None) -> Checkpoint:
    """The checkpoint of a folder or a file. Raises FormatError."""
    if path.is_dir():
        found = load_folder(path)
        return replace(found, tokenizers=_folders(tokenizers, len(found.texts))) if tokenizers else found
    if not path.is_file():
        raise FormatError(f"{path}: there is no such model; expected a folder of diffusers or a .safetensors file")
    beside = path.parent / "tokenizer"
    given = tokenizers or ([beside] if beside.is_dir() else [])
    if not given:
        raise ConfigError(f"{path}: the file has no tokenizer; expected --tokenizer FOLDER with CLIP's vocab.json and "
                          "merges.txt")
    found = load_single(path, ())
    return replace(found, tokenizers=_folders(given, len(found.texts)))


def _folders(given: list[Path], count: int) -> tuple[Path, ...]:
    """A folder for each encoder of texts, the last one for those behind."""
    if len(given) > count:
        raise ConfigError(f"--tokenizer: expected at most {count} folders, got {len(given)}")
    for folder in given:
        for name in ("vocab.json", "merges.txt"):
            if not (folder / name).is_file():
                raise ConfigError(f"--tokenizer: expected {name} in {folder}, found none")
    return tuple([given[min(number, len(given) - 1)] for number in range(count)])


def size_of(text: str | None, checkpoint: Checkpoint) -> tuple[int, int]:
    """(height, width) of a size such as 768x512. Raises ConfigError where the model cannot halve it so often."""
    unit = 2 ** (len(checkpoint.vae.channels) + len(checkpoint.unet.channels) - 2)
    parts = str(text or checkpoint.size).lower().split("x")
    sides = [int(part) if part.isdecimal() and len(part) < 6 else 0 for part in parts]
    if len(sides) > 2 or any(side < unit or side % unit for side in sides):
        raise ConfigError(f"--size: expected a multiple of {unit}, or WIDTHxHEIGHT of such, got {text}")
    return sides[-1], sides[0]


def previewer(folder: Path, path: Path) -> Callable[[np.ndarray], None]:
    """A function that decodes latents by TAESD, or the one for XL, and writes them. Raises ConfigError without it."""
    found = sorted(folder.glob("taesd*_decoder.safetensors"))
    if not found:
        raise ConfigError(f"--preview: expected taesd_decoder.safetensors in {folder}, found none; --taesd names "
                          "another folder")
    decode = jit(fill(decoder(), safe_load(found[0]), str(found[0])))

    def write(latents: np.ndarray) -> None:
        with Tensor.no_grad():
            image = decode(Tensor(latents)).clamp(0, 1).numpy()[0]
        write_picture(np.rint(image.transpose(1, 2, 0) * 255).astype(np.uint8), path)

    return write


def request_of(o: argparse.Namespace, checkpoint: Checkpoint) -> Request:
    """The request of the options, checked before anything is computed."""
    height, width = size_of(o.size, checkpoint)
    guidance = (5.0 if checkpoint.xl else 7.5) if o.guidance is None else o.guidance
    if not 0 <= guidance <= 100:
        raise ConfigError(f"--guidance: expected 0 to 100, got {guidance:g}")
    if o.seed < 0:
        raise ConfigError(f"--seed: expected 0 or more, got {o.seed}")
    steps = o.steps if o.steps is not None else 4 if checkpoint.sampler.sampler == "lcm" else 20
    schedule_of(checkpoint.sampler, steps, 1.0 if o.image is None else o.strength)
    image = None if o.image is None else read_picture(o.image, height, width)
    return Request(o.prompt, o.negative, steps, guidance, o.seed, height, width, image, o.strength)


def draw(o: argparse.Namespace) -> int:
    for option, path in (("--output", o.output), ("--preview", o.preview)):
        if path is not None:
            check_name(path, option)
    if o.tile is not None and (o.tile < 0 or 0 < o.tile < 8):
        raise ConfigError(f"--tile: expected 0, or 8 or more, got {o.tile}")
    checkpoint = load(o.model, o.tokenizer)
    sampler = replace(checkpoint.sampler, **{name: value for name, value in (("sampler", o.scheduler), (
        "spacing", o.spacing)) if value})
    checkpoint = replace(checkpoint, sampler=sampler)
    request = request_of(o, checkpoint)
    guided = Pipeline(checkpoint).guided(request)
    budget = free_memory() if o.memory is None else bytes_of("--memory", o.memory)
    choice = choose(checkpoint, request.height, request.width, 1 + guided, budget, o.weights, o.tile,
                    request.image is not None)
    preview = previewer(o.taesd or checkpoint.path.parent / "taesd", o.preview) if o.preview else None
    print(f"{request.width}x{request.height}, {sampler.sampler}, weights in {choice.dtype}"
          f"{f', tiles of {choice.tile}' if choice.tile else ''}: about {size(choice.total)} of memory", flush=True)
    started = time.perf_counter()
    with tqdm(total=request.steps, unit="step", leave=False, disable=None) as bar:
        def seen(number: int, count: int, clean: np.ndarray) -> None:
            bar.total = count
            bar.update()
            if preview is not None:
                preview(clean)

        picture = Pipeline(checkpoint, choice.dtype, choice.tile)(request, seen)
    write_picture(picture, o.output)
    print(f"{time.perf_counter() - started:.1f} s: {o.output}")
    return 0


def run(arguments: list[str]) -> int:
    o = parser_of_options().parse_args(arguments)
    with minigrad.config(**({"device": o.device} if o.device else {})):
        return draw(o)


def main() -> int:
    return finish("generate", "--debug" in sys.argv, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
