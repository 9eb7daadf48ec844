"""Peak memory of EfficientNet-B0's training step: each side in a process of its own, as the kernel counts its pages.

    python -m bench.memory minigrad 8 224      prints {"before": ..., "peak": ...} in bytes

`before` is resident once the library is loaded and the batch is made, `peak` the most that was resident during a step
after three others: parameters, gradients, activations, workspaces, and on our side the compiled programs too.
"""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import efficientnet_peers
from bench.report import Report
from examples.efficientnet.model import STAGES

WARM_STEPS = 3
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def report_peaks(report: Report, peers: list[str], batch: int, size: int) -> None:
    """A line per side."""
    if not RESET.exists():
        report.say("without --memory: it needs Linux's /proc")
        return
    for name in ("minigrad", *peers):
        command = [sys.executable, "-m", "bench.memory", name, str(batch), str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            report.say(f"training memory, {name}: the process failed")
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        grown = (figures["peak"] - figures["before"]) / 1e6
        report.say(f"training memory, {name}: {grown:.0f} MB above the {figures['before'] / 1e6:.0f} MB of the loaded "
                   "library")


def _ours(images: np.ndarray, labels: np.ndarray) -> tuple[int, Callable[[], Any]]:
    from bench.efficientnet_step import quick_or_b0, trainer

    before = resident("VmRSS")
    return before, trainer(quick_or_b0(False), images, labels, True)


def _torch(images: np.ndarray, labels: np.ndarray) -> tuple[int, Callable[[], Any]]:
    import torch

    before = resident("VmRSS")
    shape = efficientnet_peers.Shape(STAGES, 1280, 1000)
    (side,) = efficientnet_peers.torch_sides(torch, shape, "train", images, labels, False)
    return before, side.run


def resident(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the most since the last reset) of this process."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def main(name: str, batch: int, size: int) -> None:
    random = np.random.default_rng(0)
    images = random.standard_normal((batch, 3, size, size), np.float32)
    labels = random.integers(0, 1000, batch)
    before, step = (_ours if name == "minigrad" else _torch)(images, labels)
    for _ in range(WARM_STEPS):
        step()
    RESET.write_text("5")
    step()
    print(json.dumps({"before": before, "peak": resident("VmHWM")}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
