"""Times training steps of EfficientNet on random images.

Settings come from the environment or as flags, for example `NUM=0 BS=4 benchmark_train_efficientnet --cnt 3`.
A line per run:
  cpy      making and uploading the batch
  run      from the start of the step to the loss on the host: build + realize + CL
  build    building the graph, with backward and optimizer
  realize  scheduling, compiling, enqueueing
  CL       waiting for the device; on SIM:<card> the time that is predicted for it, and no loss
  GFLOPS   counted operations over run
With --shootout, the first and the last of them for each of several drivers or compilers, side by side (shootout.py).
"""
from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples.efficientnet.model import EfficientNet
    from examples.efficientnet.shootout import LIMIT_S, entries_of, shootout, table
else:  # from the repository, or installed as minigrad_examples
    from .model import EfficientNet
    from .shootout import LIMIT_S, entries_of, shootout, table

import minigrad
from minigrad import Tensor
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.engine.stats import Stats, stats
from minigrad.errors import ConfigError
from minigrad.handles import count as live_tensors
from minigrad.nn.optim import SGD, Adam
from minigrad.nn.state import get_parameters
from minigrad.report.occupancy import occupancy
from minigrad.runtime.registry import get_device

SETTINGS = {
    "NUM": (2, "which B, 0-7"),
    "BS": (8, "batch size"),
    "CNT": (10, "runs"),
    "BACKWARD": (1, "1: backward pass and optimizer step, 0: forward only"),
    "TRAINING": (1, "1: batch norm uses the statistics of the batch, 0: the running ones"),
    "ADAM": (0, "1: Adam, 0: SGD"),
    "SE": (0, "1: squeeze-excite, 0: without"),
    "SIZE": (0, "image size, 0: the one that B<NUM> was designed for"),
    "CLASSES": (1000, "classes"),
    "REPEAT": (0, "1: the same batch in every run, 0: a new one"),
    "LR": (0.001, "learning rate"),
}
SWITCHES = ("BACKWARD", "TRAINING", "ADAM", "SE", "REPEAT")


@dataclass
class Run:
    """One training step: seconds, the loss, and what the engine counted meanwhile."""

    copy_s: float
    build_s: float
    realize_s: float
    wait_s: float
    loss: float
    tensors: int
    bytes_used: int
    counted: Stats

    @property
    def run_s(self) -> float:
        return self.build_s + self.realize_s + self.wait_s

    def __str__(self) -> str:
        return (
            f"{self.copy_s * 1e3:7.2f} ms cpy,  {self.run_s * 1e3:7.2f} ms run, {self.build_s * 1e3:7.2f} ms build, "
            f"{self.realize_s * 1e3:7.2f} ms realize, {self.wait_s * 1e3:7.2f} ms CL, {self.loss:7.2f} loss, "
            f"{self.tensors:4d} tensors, {self.bytes_used * 1e-9:.2f} GB used, "
            f"{self.counted.flops * 1e-9 / self.run_s:9.2f} GFLOPS"
        )

    def row(self) -> dict[str, Any]:
        """The object that `--json` writes; times are in seconds."""
        counted = self.counted
        return {"line": str(self), "copy_s": self.copy_s, "run_s": self.run_s, "build_s": self.build_s,
                "realize_s": self.realize_s, "wait_s": self.wait_s,
                "loss": None if math.isnan(self.loss) else self.loss, "tensors": self.tensors,
                "bytes_used": self.bytes_used, "gflops": counted.flops * 1e-9 / self.run_s,
                "schedule_s": counted.schedule_s + counted.lower_s, "render_s": counted.render_s,
                "compile_s": counted.compile_s, "launches": counted.launches, "programs": counted.programs}


def parse_settings(arguments: list[str]) -> argparse.Namespace:
    """The settings from flags, else the environment, else the defaults. Raises ConfigError for a bad value."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (default, meaning) in SETTINGS.items():
        parser.add_argument(f"--{name.lower()}", dest=name, metavar=name, default=os.environ.get(name, str(default)),
                            help=f"{meaning} (default {default})")
    parser.add_argument("--device", help="CPU, CL, CL:<name>, SIM:<card>, NUMPY (default: MINIGRAD_DEVICE, else CPU)")
    parser.add_argument("--occupancy", metavar="GPU", help="compile the kernels of a step for gfx1031, gfx1100, ... "
                        "and print how many waves a SIMD (NVIDIA: a multiprocessor) holds of each; nothing is run")
    parser.add_argument("--shootout", metavar="DEVICE,...", help="compare drivers: each in a process of its own, with "
                        "empty caches and the environment in brackets, CL:rusticl[AMD_DEBUG=cs,useaco]; AMD:... and "
                        "NV:... are compiled for and not run")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help=f"with --shootout: how long each may take (default {LIMIT_S})")
    parser.add_argument("--json", metavar="FILE", help="write rows as JSON lines, too; - writes them to stdout and "
                        "everything else to stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    settings = parser.parse_args(arguments)
    for name, (default, meaning) in SETTINGS.items():
        text = getattr(settings, name)
        try:
            value = type(default)(text)
        except ValueError:
            raise ConfigError(f"{name}: expected a number ({meaning}), got {text!r}") from None
        lowest = 1 if name in ("BS", "CNT", "CLASSES") else 0
        if value < lowest or (name in SWITCHES and value > 1):
            raise ConfigError(f"{name}: expected {'0 or 1' if name in SWITCHES else f'at least {lowest}'} ({meaning}), "
                              f"got {text}")
        setattr(settings, name, value)
    if settings.shootout is not None and (settings.device or settings.occupancy):
        raise ConfigError("[shootout] expected all devices in --shootout, got --device or --occupancy beside it")
    return settings


class Trainer:
    """The model, its optimizer and the batches."""

    def __init__(self, settings: argparse.Namespace):
        self.settings = settings
        self.model = EfficientNet(settings.NUM, settings.CLASSES, has_se=bool(settings.SE))
        self.size = settings.SIZE or self.model.image_size
        tensors = get_parameters(self.model)
        Tensor.realize(*tensors)
        optimizer = Adam if settings.ADAM else SGD
        self.optimizer = optimizer(tensors, lr=settings.LR)

    def batch(self, run: int) -> tuple[Tensor, Tensor]:
        """Random images [BS, 3, size, size] and classes [BS], uploaded."""
        settings = self.settings
        random = np.random.default_rng(0 if settings.REPEAT else run)
        images = Tensor(random.standard_normal((settings.BS, 3, self.size, self.size), np.float32))
        classes = Tensor(random.integers(0, settings.CLASSES, settings.BS, np.int32))
        Tensor.realize(images, classes)
        minigrad.synchronize()
        return images, classes

    def build(self, images: Tensor, classes: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss, lazy, and what else to realize."""
        updates: list[Tensor] = []
        loss = self.model(images).cross_entropy(classes)
        if self.settings.BACKWARD:
            self.optimizer.zero_grad()
            loss.backward()
            updates = self.optimizer.schedule_step()
        elif self.settings.TRAINING:
            updates = self.optimizer.buffers
        return loss, updates

    def step(self, run: int) -> Run:
        """One run, timed."""
        before = stats.snapshot()
        start = time.perf_counter()
        images, classes = self.batch(run)
        get_device(images.device).elapsed()  # on SIM:<card>, the step's own time begins here
        copied = time.perf_counter()
        loss, updates = self.build(images, classes)
        built = time.perf_counter()
        Tensor.realize(loss, *updates)
        realized = time.perf_counter()
        minigrad.synchronize()
        device = get_device(loss.device)
        value = math.nan if device.simulates else loss.item()
        waited = device.elapsed() if device.simulates else time.perf_counter() - realized
        return Run(copied - start, built - copied, realized - built, waited, value, live_tensors(),
                   stats.mem_used, stats.snapshot() - before)


def summary(first: Run, last: Run) -> str:
    """The first and the last run side by side."""
    rows = [
        ("run", "ms", first.run_s * 1e3, last.run_s * 1e3),
        ("build", "ms", first.build_s * 1e3, last.build_s * 1e3),
        ("realize", "ms", first.realize_s * 1e3, last.realize_s * 1e3),
        ("CL", "ms", first.wait_s * 1e3, last.wait_s * 1e3),
        ("scheduling", "ms", *(1e3 * (r.counted.schedule_s + r.counted.lower_s) for r in (first, last))),
        ("rendering", "ms", *(1e3 * r.counted.render_s for r in (first, last))),
        ("compiling", "ms", *(1e3 * r.counted.compile_s for r in (first, last))),
        ("kernels launched", "", first.counted.launches, last.counted.launches),
        ("distinct programs", "", first.counted.programs, last.counted.programs),
        ("loss", "", first.loss, last.loss),
    ]
    lines = [f"{'':20} {'first run':>12} {'last run':>12}"]
    for name, unit, a, b in rows:
        digits = 0 if isinstance(a, int) else 2
        lines.append(f"{name:20} {a:12.{digits}f} {b:12.{digits}f} {unit}".rstrip())
    return "\n".join(lines)


def main() -> int:
    return finish("benchmark_train_efficientnet", "--debug" in sys.argv, lambda: run(parse_settings(sys.argv[1:])))


class Output:
    """Lines for a reader, and rows for programs where they are asked for."""

    def __init__(self, lines: TextIO, rows: TextIO | None):
        self.lines, self.rows = lines, rows

    def say(self, text: str) -> None:
        print(text, file=self.lines, flush=True)

    def row(self, row: dict[str, Any]) -> None:
        if self.rows is not None:
            print(json.dumps(row), file=self.rows, flush=True)


def run(settings: argparse.Namespace) -> None:
    """Does what the settings ask for."""
    with ExitStack() as stack:
        to_stdout = settings.json == "-"
        rows = None if settings.json is None else sys.stdout if to_stdout else stack.enter_context(
            open(settings.json, "w", encoding="utf-8"))
        out = Output(sys.stderr if to_stdout else sys.stdout, rows)
        (inspect if settings.occupancy else train if settings.shootout is None else compare)(settings, out)


def compare(settings: argparse.Namespace, out: Output) -> None:
    """Several drivers, one after the other, and their figures side by side."""
    out.say(f"NUM:{settings.NUM} BS:{settings.BS} CNT:{settings.CNT}")
    given = {name: getattr(settings, name) for name in SETTINGS}
    outcomes = shootout(entries_of(settings.shootout), given, settings.limit, out.say)
    for outcome in outcomes:
        out.row(outcome.row())
    out.say("\n".join(["", *table(outcomes)]))


def inspect(settings: argparse.Namespace, out: Output) -> None:
    """The histogram of Max Waves over the kernels of a step, and what they take."""
    def prepare() -> Callable[[], None]:
        trainer = Trainer(settings)
        images, classes = trainer.batch(0)

        def step() -> None:
            with Tensor.train(bool(settings.TRAINING)):
                loss, updates = trainer.build(images, classes)
            Tensor.realize(loss, *updates)

        return step

    family = "NV" if settings.occupancy.startswith("sm_") else "AMD"
    found = occupancy(f"{family}:{settings.occupancy}", prepare)
    used = [k.resources for k, _ in found.kernels if k.resources is not None]
    about = f"{found.device}: {len(found.kernels)} kernels, {sum(n for _, n in found.kernels)} launches"
    out.row({"about": about.partition(": ")[2]})
    out.row({"max_waves": found.waves, "max_waves_unknown": found.missing, "programs": len(found.kernels),
             "compile_s": found.compile_s})
    out.say("\n".join([about, *found.histogram()]))
    if used:
        out.say(f"{sum(r.spills > 0 for r in used)} kernels spill, {sum(r.local > 0 for r in used)} use local memory; "
                f"at most {max(r.vgprs for r in used)} vector registers")


def train(settings: argparse.Namespace, out: Output) -> None:
    """The runs, a line each, then the first and the last one compared."""
    out.say(f"NUM:{settings.NUM} BS:{settings.BS} CNT:{settings.CNT}")
    runs = []
    with minigrad.config(**({"device": settings.device} if settings.device else {})) as config:
        device = get_device(config.device)
        info = getattr(device, "info", None)
        out.row({"about": f"{info.name}, {info.platform} {info.driver}" if info else device.target.cpu})
        if device.simulates:
            out.say(f"{device.name}: nothing runs, the times of CL are predicted")
        trainer = Trainer(settings)
        with Tensor.train(bool(settings.TRAINING)):
            for run in range(settings.CNT):
                runs.append(trainer.step(run))
                out.say(str(runs[-1]))
                out.row(runs[-1].row())
    out.say(summary(runs[0], runs[-1]))


if __name__ == "__main__":
    sys.exit(main())
