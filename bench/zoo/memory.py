"""Peak memory of one model of the zoo: each side in a process of its own, as the kernel counts its pages.

    python -m bench.zoo.memory minigrad resnet18 float32 2 0 ""      prints {"before": ..., "peak": ...} in bytes

`before` is resident once the library is loaded and inputs and weights are drawn, `peak` the most that was resident
during the second call: the model's own weights, activations, workspaces, and the compiled programs.
"""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from bench.memory import RESET, resident
from bench.peers import set_threads


def peak_of(side: str, model: str, dtype: str, threads: int, tiny: bool, file: str = "") -> tuple[int, int] | str:
    """(bytes before, peak) of one side, or why there are none, in a line. onnxruntime reads the model from `file`."""
    if not RESET.exists():
        return "it needs Linux's /proc"
    command = [sys.executable, "-m", "bench.zoo.memory", side, model, dtype, str(threads), str(int(tiny)), file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the process failed"])[-1]
    figures = json.loads(done.stdout.splitlines()[-1])
    return figures["before"], figures["peak"]


def main(side: str, name: str, dtype: str, threads: int, tiny: bool, file: str) -> None:
    set_threads(threads)
    from bench.zoo import sides
    from bench.zoo.models import MODELS

    entry = MODELS[name]
    arrays = entry.draw(tiny, np.random.default_rng(0))
    call: Callable[[], Any]
    if side == "minigrad":
        from minigrad import config

        state = sides.drawn_state(entry, tiny)
        before = resident("VmRSS") - sum(v.nbytes for v in state.values())  # the model's Tensors take these over
        with config(threads=threads):
            call = sides.Model(entry, tiny, state, arrays, dtype)
            del state
            return _measure(before, call)
    if side == "onnxruntime":
        import_module("onnxruntime")  # loaded before anything is counted
        before = resident("VmRSS")
        return _measure(before, sides.onnxruntime_call(file, arrays, threads, spin=False))
    import torch

    torch.set_num_threads(threads)
    before = resident("VmRSS")
    module = entry.torch(tiny).to(getattr(torch, dtype)).eval()
    inputs = sides.torch_inputs(arrays, dtype)
    _measure(before, sides.torch_call(module, inputs))


def _measure(before: int, call: Callable[[], Any]) -> None:
    call()
    RESET.write_text("5")
    call()
    print(json.dumps({"before": before, "peak": resident("VmHWM")}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1", sys.argv[6])
