"""Exports the models of the examples as programs for C, and as ONNX models.

    python examples/export/export_models.py efficientnet FOLDER [--number 0] [--size 224] [--lite]
    python examples/export/export_models.py llama FOLDER --model FILE_OR_FOLDER [--context 2048]

`efficientnet.c` and `llama.c`, beside this file, run the programs. With --onnx (and the extra `onnx`) an ONNX model is
written instead; --target names another processor, such as x86-64-v3. An EfficientNet-Lite has its trained weights, the
others random ones.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.efficientnet.model import EfficientNet
from examples.llama.model import DEFAULT_CONTEXT, Llama
from examples.llama.weights import load_checkpoint
from minigrad import Tensor, export
from minigrad.cli.outcome import OneLineParser, finish

Call = tuple[Callable[..., Any], tuple[Any, ...], list[str], list[str]]
"""A function, its arguments, and the names of inputs and outputs."""


def efficientnet(options: argparse.Namespace) -> Call:
    model = EfficientNet(options.number, lite=options.lite)
    if options.lite:
        model.load_from_pretrained()
    image = Tensor(np.zeros((1, 3, options.size, options.size), np.float32))
    return model, (image,), ["image"], ["logits"]


def llama(options: argparse.Namespace) -> Call:
    """A step: a token and its position to the logits of the next one. The caches are the program's state."""
    checkpoint = load_checkpoint(options.model)
    model = Llama(checkpoint.config, checkpoint.tensors, options.context)

    def step(tokens: Tensor, position: Any) -> Tensor:
        return model(tokens, position)

    return step, (Tensor(np.array([1], np.int32)), model.position.bind(0)), ["tokens"], ["logits"]


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("efficientnet", "llama"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lite", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--context", type=int, default=DEFAULT_CONTEXT)
    parser.add_argument("--target")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args()
    if options.what == "llama" and options.model is None:
        parser.error("expected --model for llama")
    return finish("export_models", options.debug, lambda: run(options))


def run(options: argparse.Namespace) -> None:
    with Tensor.train(False):
        f, inputs, names, outputs = {"efficientnet": efficientnet, "llama": llama}[options.what](options)
        if not options.onnx:
            print(export(f, *inputs, folder=options.folder, name=options.what, names=names, outputs=outputs,
                         target=options.target))
            return
        from minigrad.onnx import export as export_onnx

        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / f"{options.what}.onnx"
        model = export_onnx(f, *inputs, path=path, names=names, outputs=outputs)
        print(f"{path}: {len(model.graph.node)} nodes, {len(model.graph.initializer)} initializers")


if __name__ == "__main__":
    sys.exit(main())
