"""Names what is in photos: python examples/efficientnet/classify.py IMAGE...

EfficientNet-Lite with its ImageNet weights, fetched on first use, or with --weights a model that train.py made; prints
the five likeliest classes of each image.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples.efficientnet.model import EfficientNet
    from examples.efficientnet.train import MEAN, STD, build
else:  # from the repository, or installed as minigrad_examples
    from .model import EfficientNet
    from .train import MEAN, STD, build

from minigrad import Tensor, config, nn
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.data import read_image as read_pixels
from minigrad.errors import FormatError
from minigrad.state import load_state_dict, safe_load
from minigrad.state.fetch import fetch_member
from minigrad.state.safe import safe_metadata

# The names of the 1000 classes, from the wheel timm 1.0.20 (Apache-2.0): identifiers in order, and words for each.
SYNSETS = ("timm/data/_info/imagenet_synsets.txt", "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15")
LEMMAS = ("timm/data/_info/imagenet_synset_to_lemma.txt",
          "1b8babda187421a4bde0c9c5a197c36f6bdda962f7ca11ffb2813806cbb2178f")


def class_names() -> list[str]:
    """The 1000 ImageNet classes in order, such as "tabby, tabby cat"."""
    synsets = fetch_member("timm", "1.0.20", *SYNSETS)
    lemmas = fetch_member("timm", "1.0.20", *LEMMAS)
    with open(lemmas, encoding="utf-8") as lines:
        words = dict(line.rstrip("\n").split("\t") for line in lines)
    with open(synsets, encoding="utf-8") as lines:
        return [words[line.strip()] for line in lines]


def read_image(path: str, size: int) -> np.ndarray:
    """The photo as float32 [3, size, size] in about -1..1: shorter side to size + 32, centre crop, (x - 127) / 128.

    Raises FormatError for a file that is missing or not an image.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise FormatError('reading images needs pillow: pip install "minigrad[examples]"') from None
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        reason = error.strerror.lower() if error.strerror else "not an image, or truncated"
        raise FormatError(f"{path}: {reason}; expected an image file such as JPEG or PNG") from None
    scale = (size + 32) / min(image.size)
    image = image.resize([max(size, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32)
    return np.ascontiguousarray((pixels.transpose(2, 0, 1) - 127) / 128)


def likeliest(probabilities: np.ndarray, names: list[str], count: int = 5) -> list[str]:
    """A line for each of the `count` likeliest classes, best first: the probability and the name."""
    return [f"{probabilities[index]:7.2%}  {names[index]}" for index in np.argsort(-probabilities)[:count]]


def classify(paths: list[str], lite: int = 0, weights: str | None = None) -> dict[str, list[str]]:
    """The classes that a model sees in each photo, five lines each at most: EfficientNet-Lite<lite>, or the one in the
    file `weights` that train.py made."""
    if weights is None:
        model = EfficientNet(lite, lite=True)
        images, names = np.stack([read_image(path, model.image_size) for path in paths]), class_names()
        model.load_from_pretrained()
    else:
        model, images, names = trained(weights, paths)
    with Tensor.train(False):
        probabilities = model(Tensor(images)).softmax(-1).numpy()
    return {path: likeliest(row, names) for path, row in zip(paths, probabilities, strict=True)}


def trained(weights: str, paths: list[str]) -> tuple[Any, np.ndarray, list[str]]:
    """(the model in a file of train.py, photos as it was evaluated with, names of classes)."""
    try:
        facts = json.loads(safe_metadata(weights)["minigrad"])
        size, load, channels, names = (facts[key] for key in ("size", "load_size", "channels", "classes"))
        model = build(facts["model"], len(names), channels, size, 0.0, False)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{weights}: expected the model.safetensors of a run of train.py, got another file") from None
    load_state_dict(model, safe_load(weights))
    if isinstance(model, nn.Module):
        model.eval()
    read = [read_pixels(path, load, "L" if channels == 1 else "RGB") for path in paths]
    start = (load - size) // 2
    pixels = np.stack(read)[:, :, start:start + size, start:start + size].astype(np.float32)
    return model, (pixels - MEAN) / STD, names


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument("--lite", type=int, default=0, choices=(0, 1, 2), help="which EfficientNet-Lite (default 0)")
    parser.add_argument("--weights", metavar="FILE", help="the model.safetensors of a run of train.py")
    parser.add_argument("--device", help="CPU, CL, CL:<name>, NUMPY (default: MINIGRAD_DEVICE, else CPU)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args()
    return finish("classify", arguments.debug, lambda: run(arguments))


def run(arguments: argparse.Namespace) -> None:
    with config(**({"device": arguments.device} if arguments.device else {})):
        for path, lines in classify(arguments.images, arguments.lite, arguments.weights).items():
            print(path, *lines, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
