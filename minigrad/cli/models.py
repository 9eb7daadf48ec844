"""Check, run or time a model in ONNX (needs the extra `onnx`)."""
from __future__ import annotations

import argparse
from pathlib import Path

from minigrad.errors import MinigradError


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad onnx check|run|bench MODEL`."""
    parser.add_argument("action", choices=("check", "run", "bench"),
                        help="check: operators, which of them are not supported, parameters, predicted launches and "
                             "memory; run: the outputs for inputs from files, random ones otherwise; bench: the time "
                             "of a call, beside onnxruntime where that is installed")
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file in ONNX")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", dest="inputs",
                        help="an input; the others are random")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", dest="sizes",
                        help="a size that the model leaves open, for random inputs (default: 1)")
    parser.add_argument("--device", help="where to run it (default: as MINIGRAD_DEVICE says)")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="for run: write each output as NAME.npy")
    parser.add_argument("--count", type=int, default=20, metavar="N", help="for bench: calls to time (default: 20)")


def run(options: argparse.Namespace) -> int:
    """Does one action; status 1 where an operator is not supported."""
    try:
        from minigrad.cli import onnx_files
    except ImportError as error:
        raise MinigradError(f"[onnx] expected the extra onnx (pip install \"minigrad[onnx]\"), got: {error}") from None
    action = {"check": onnx_files.check, "run": onnx_files.run, "bench": onnx_files.bench}[options.action]
    return action(options)
