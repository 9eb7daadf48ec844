"""Draws a sheet of pictures: for each class of a model of train.py, a row of samples.

    python examples/diffusion/sheet.py                              # the model of clothing that is in the repository
    python examples/diffusion/sheet.py --classes Sneaker,Bag --count 8 --seed 3
    python examples/diffusion/sheet.py --model runs/flow/model.safetensors --output sheet.png
"""
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import minigrad
from examples.diffusion.flow import draw, load_flow
from examples.diffusion.pictures import check_name, write_sheet
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.errors import ConfigError

MODEL = Path(__file__).with_name("clothing.safetensors")


def parser_of_options() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="sheet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, default=MODEL, help="a file of train.py (default: the one beside this program)")
    add("--classes", help="names of classes, with commas between (default: all)")
    add("--count", type=int, default=8, help="pictures of each class (default 8)")
    add("--steps", type=int, default=40, help="steps from noise to pictures (default 40)")
    add("--guidance", type=float, default=2.0, help="how much the class counts; 1: as it was trained (default 2)")
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=Path("sheet.png"), help="the file to write (default sheet.png)")
    add("--device", help="CPU, CL, CL:<name> (default: MINIGRAD_DEVICE, else CPU)")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def chosen(names: list[str], text: str | None) -> list[int]:
    """The numbers of the classes in a list with commas. Raises ConfigError for a name that is none."""
    known = {name.lower(): number for number, name in enumerate(names)}
    asked = [part.strip() for part in (text.split(",") if text is not None else names)]
    for part in asked:
        if part.lower() not in known:
            raise ConfigError(f"--classes: expected some of {', '.join(names)}, got {part!r}")
    return [known[part.lower()] for part in asked]


def run(arguments: list[str]) -> int:
    o = parser_of_options().parse_args(arguments)
    for name in ("count", "steps"):
        if getattr(o, name) < 1:
            raise ConfigError(f"--{name}: expected 1 or more, got {getattr(o, name)}")
    if not 0 <= o.guidance <= 100 or o.seed < 0:
        raise ConfigError(f"expected --guidance from 0 to 100 and --seed of 0 or more, got {o.guidance:g} and {o.seed}")
    check_name(o.output, "--output")
    with minigrad.config(**({"device": o.device} if o.device else {})):
        started = time.perf_counter()
        model, names = load_flow(o.model)
        classes = chosen(names, o.classes)
        each = [number for number in classes for _ in range(o.count)]
        images = draw(model, each, o.steps, o.guidance, o.seed).reshape(len(classes), o.count, 28, 28)
        write_sheet(images, [names[number] for number in classes], o.output)
    print(f"{len(each)} pictures in {time.perf_counter() - started:.1f} s: {o.output}")
    return 0


def main() -> int:
    return finish("sheet", "--debug" in sys.argv, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
