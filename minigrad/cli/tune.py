"""Search faster plans for the kernels of a step, by measuring; they give the same bits, and are kept.

MODEL is a file in ONNX, or `file.py:function`: a call of the function makes a step, or returns the function that does.
The step runs once; then other plans for its kernels are timed on copies of its memory, for as long as --seconds says,
those that take the largest part of the step first. What is faster is kept in the cache folder and used by every process
from then on (MINIGRAD_TUNED=0: not used). Ctrl-C has what was found until then confirmed and kept, a second one keeps
nothing.
"""
from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from minigrad.capture.jit import Jit
from minigrad.capture.searched import captured_and_searched
from minigrad.cli.devices import table
from minigrad.cli.machine import measured_file
from minigrad.config import config, current
from minigrad.engine.search import Found, Outcome, Search
from minigrad.engine.tuned import file_of, read_rows
from minigrad.errors import MinigradError, quantity
from minigrad.runtime.device import Device
from minigrad.runtime.registry import get_device
from minigrad.tensor import Tensor


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad tune MODEL [--seconds N] [--rounding any] [--replay FILE]`."""
    parser.add_argument("model", metavar="MODEL", help="a file in ONNX, or file.py:function")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for the search (default: 120)")
    parser.add_argument("--rounding", choices=("same", "any"), default="same",
                        help="any: plans may add sums in another order; results are compared by a tolerance "
                             "(default: same, bit for bit)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="measure the plans of this file, and no others")
    parser.add_argument("--device", help="where to run it (default: as MINIGRAD_DEVICE says)")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", dest="sizes",
                        help="a size that a model in ONNX leaves open (default: 1)")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each kernel that was tried, then what was gained."""
    if not 0 < options.seconds < float("inf"):
        raise MinigradError(f"[tune] expected --seconds of more than 0, got {options.seconds}")
    replay = None if options.replay is None else read_rows(options.replay)
    if replay == []:
        raise MinigradError(f"[tune] expected rows of plans in {options.replay}, found none")
    with config(device=options.device or current().device, jit=True, tuned=current().tuned and replay is None):
        if hint := unmeasured(get_device(current().device)):
            print(hint, flush=True)
        step = Jit(step_of(options), 1, False, 0, partial(captured_and_searched, start=partial(
            Search, options.seconds, options.rounding == "any", replay, say=partial(print, flush=True))))
        step()
        report(step.searched, options)
    return 0


def step_of(options: argparse.Namespace) -> Callable[[], Any]:
    """The step that the options name. Raises MinigradError where there is none."""
    path, _, name = options.model.rpartition(":")
    if not path.endswith(".py"):
        return _of_onnx(options)
    if not Path(path).is_file():
        raise MinigradError(f"[tune] expected a file of Python, got {path}")
    sys.path.insert(0, str(Path(path).resolve().parent))
    function = runpy.run_path(path).get(name)
    if not callable(function):
        raise MinigradError(f"[tune] expected the name of a function in {path}, got {name!r}")
    made = function()
    return made if callable(made) else function


def _of_onnx(options: argparse.Namespace) -> Callable[[], Any]:
    try:
        from minigrad.cli.onnx_files import feeds_of
        from minigrad.onnx import OnnxModel
    except ImportError as error:
        raise MinigradError(f"[tune] expected the extra onnx (pip install \"minigrad[onnx]\"), got: {error}") from None
    model = OnnxModel(Path(options.model), options.device)
    options.inputs = []
    feeds = {name: Tensor(value, device=options.device).realize() for name, value in feeds_of(model, options).items()}
    return lambda: model.eager(feeds)


def unmeasured(device: Device) -> str:
    """A line about a processor whose speed was not measured, or ''. When it is, policies may have other plans, which
    rows of before do not replace. No plan depends on that of a GPU."""
    target = device.target
    if target.is_gpu or target.language not in ("llvm", "opencl") or measured_file(target).is_file():
        return ""
    option = "" if device.name == "CPU" else f" --device {device.name}"
    return f"the speed of {device.name} was not measured: run `python -m minigrad machine measure{option}` first, as " \
        "plans may be others then"


def report(found: Outcome | None, options: argparse.Namespace) -> None:
    """Prints what a search came to."""
    if found is None or not found.kernels:
        raise MinigradError(f"[tune] expected a step that runs kernels of {current().device}, got one without any")
    total = sum(kernel.seconds for kernel in found.kernels) or 1.0
    rows: list[tuple[str, ...]] = [("kernel", "x", "share", "ms before", "ms after", "plans", "")]
    rows += [_line(kernel, total) for kernel in found.kernels if kernel.tried]
    print("\n".join(table(rows)))
    path = file_of(get_device(current().device))
    if found.rows:
        print(f"{quantity(len(found.rows), 'row')} kept in {path}" if path is not None else "nothing is kept on disk")
    elif path is not None and path.exists():
        print(f"that no plan is faster is kept in {path}")


def _line(kernel: Found, total: float) -> tuple[str, ...]:
    better = kernel.best is not None and kernel.old.runs
    old, new = (f"{1e3 * t.seconds:.3f}" if better else "" for t in (kernel.old, kernel.new))
    gain = f"{kernel.old.seconds / kernel.new.seconds:.2f} times as fast" if better else ""
    return (kernel.name, str(len(kernel.places)), f"{kernel.seconds / total:.1%}",
            old or f"{1e3 * kernel.seconds:.3f}", new, str(kernel.tried), gain)
