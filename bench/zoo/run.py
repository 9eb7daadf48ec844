"""`python -m bench zoo`: inference of models that people deploy, at batch 1: latency and peak memory beside torch,
torch.compile and onnxruntime, with the same weights."""
from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import QUICK, Schedule, Side
from bench.zoo import sides
from bench.zoo.memory import peak_of
from bench.zoo.models import MODELS, Entry, Inputs

PEERS = ["torch", "onnxruntime"]
TOLERANCE = 1e-4
LONG = Schedule(rounds=3, pause_s=0.5)
DEFAULT = [name for name in MODELS if name != "sd-vae-512"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "all"], default=DEFAULT, metavar="MODEL",
                        help=f"among {', '.join(MODELS)}, or all (default: all but sd-vae-512, which takes minutes)")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32",
                        help="of weights and inputs; half types are compared with float32, too")
    parser.add_argument("--compile", action="store_true", help="torch.compile too: takes minutes and a C++ compiler")
    parser.add_argument("--no-memory", action="store_true", help="without the processes that tell the peak of memory")


def run(bench: Bench) -> None:
    chosen = list(MODELS) if "all" in bench.options.models else bench.options.models
    for name in ["mobilenetv2"] if bench.quick and chosen == DEFAULT else chosen:
        _measure(bench, name, MODELS[name])


def _measure(bench: Bench, name: str, entry: Entry) -> None:
    dtype, tiny = bench.options.dtype, bench.quick
    title = f"zoo {'quick ' if tiny else ''}{name}{'' if dtype == 'float32' else ' ' + dtype}"
    if not bench.wants(Work(title, "")):
        return
    arrays, state = entry.draw(tiny, np.random.default_rng(0)), sides.drawn_state(entry, tiny)
    ours = sides.Model(entry, tiny, state, arrays, dtype)
    found = [Side(OURS, "jit", ours)]
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        if "torch" in bench.peers:
            module, inputs = sides.torch_module(entry, tiny, state, dtype), sides.torch_inputs(arrays, dtype)
            found += _torch_sides(bench, entry, module, inputs)
            if entry.shared:
                errors = _check(bench, name, entry, state, arrays, ours, sides.torch_call(module, inputs))
            if "onnxruntime" in bench.peers:
                found += _onnxruntime_sides(bench, module, inputs, arrays, file)
        schedule = QUICK if tiny else LONG if entry.long and bench.options.rounds is None else None
        work = Work(title, f"zoo {dtype}", flop=ours.flop, images=1)
        bench.measure(work, found, schedule=schedule)
        if errors:
            told = ", ".join(f"{who} {error:.1e}" for who, error in errors.items())
            bench.report.say(f"  error of the largest number, beside torch in float32: {told}")
        if not bench.options.no_memory:
            _tell_memory(bench, name, [OURS, *sorted({s.peer for s in found} - {OURS}, reverse=True)], file)


def _torch_sides(bench: Bench, entry: Entry, module: Any, inputs: list[Any]) -> list[Side]:
    layouts = [False, True] if not entry.long and any(x.ndim == 4 for x in inputs) else [False]
    found = [Side("torch", "eager channels_last" if last else "eager", sides.torch_call(module, inputs, False, last))
             for last in reversed(layouts)]
    if bench.options.compile:
        found.append(Side("torch", "compile", sides.torch_call(module, inputs, True)))
    return found


def _onnxruntime_sides(bench: Bench, module: Any, inputs: list[Any], arrays: Inputs, file: str) -> list[Side]:
    if bench.options.dtype != "float32":
        bench.report.say("without onnxruntime: it is measured in float32 only")
        return []
    try:
        Path(file).write_bytes(sides.exported(module, inputs))
    except Exception as error:  # the exporter raises errors of its own, without a common class
        bench.report.say(f"without onnxruntime: torch cannot export the model: {str(error).splitlines()[0]}")
        return []
    return [Side("onnxruntime", "spin" if spin else "sleep",
                 sides.onnxruntime_call(file, arrays, bench.options.threads, spin)) for spin in (True, False)]


def _check(bench: Bench, name: str, entry: Entry, state: sides.State, arrays: Inputs, ours: sides.Model,
           theirs: Any) -> dict[str, float]:
    """Errors beside torch in float32; one of ours in float32 above `TOLERANCE` is a failure."""
    dtype = bench.options.dtype
    exact = sides.torch_call(sides.torch_module(entry, bench.quick, state, "float32"),
                             sides.torch_inputs(arrays, "float32"))()
    errors = {OURS: sides.relative_error(ours(), exact)}
    if dtype != "float32":
        errors["torch"] = sides.relative_error(theirs(), exact)
    elif not errors[OURS] <= TOLERANCE:
        bench.report.fail(f"zoo {name}: an error of {errors[OURS]:.1e}, expected at most {TOLERANCE:.0e}")
    return errors


def _tell_memory(bench: Bench, name: str, who: list[str], file: str) -> None:
    for side in who:
        found = peak_of(side, name, bench.options.dtype, bench.options.threads, bench.quick, file)
        bench.report.say(f"  memory, {side}: {found}" if isinstance(found, str) else
                         f"  memory, {side}: {(found[1] - found[0]) / 1e6:.0f} MB at the peak, above the "
                         f"{found[0] / 1e6:.0f} MB of the loaded library")
