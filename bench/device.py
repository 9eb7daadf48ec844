"""One device, for a report: copies, products, launches, a conversation, EfficientNet, compile times.

    python -m bench device --device CL:... --json rows.jsonl

Each part is a process of its own, which is stopped where it takes more than its share of `--budget`: a slow driver, or
one that hangs or ends its process, costs that part alone.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import minigrad
from bench.efficientnet_step import classifier, quick_or_b0, trainer
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from examples.efficientnet.shootout import ended, signal_name
from minigrad import Tensor, config, jit
from minigrad.cli.device_check import LAUNCHES, launch_us
from minigrad.runtime.opencl_quirks import CACHE_VARIABLES
from minigrad.runtime.registry import canonical, get_device

PEERS: list[str] = []
ROOT = Path(__file__).resolve().parents[1]
PARTS = ("copy", "triad", "matmul", "matvec", "launch", "infer", "train", "chat", "compile")
COPY, PRODUCT, ROWS = 64 << 20, 1024, 4096
DTYPES = ("float32", "float16")
BUDGET_S = 900
ROW_S = 10
"""Seconds after which a row has enough samples, however few."""

CHILD = """
import json, sys, time
import numpy as np
start = time.perf_counter()
from bench.efficientnet_step import classifier, quick_or_b0
from minigrad.engine.stats import stats
size, quick = int(sys.argv[1]), sys.argv[2] == "quick"
images, labels = np.zeros((1, 3, size, size), np.float32), np.zeros(1, np.int64)
classifier(quick_or_b0(quick), images, labels, True)()
print(json.dumps({"seconds": time.perf_counter() - start, "programs": stats.programs}))
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default=None, help="CPU, CL, CL:<name> (default: MINIGRAD_DEVICE, else CPU)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"among {', '.join(PARTS)} (default: all)")
    parser.add_argument("--model", type=Path, help="for chat (default: SmolLM2-135M-Instruct, fetched once)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS",
                        help=f"for all parts (default {BUDGET_S}); 0: all in this process, however long")


def run(bench: Bench) -> None:
    name = canonical(bench.options.device or config.current().device)
    if bench.options.budget > 0 and not bench.quick:
        _in_turn(bench, name)
    else:
        with config(device=name):
            for part in bench.options.parts:
                MEASURES[part](bench)
            if bench.options.budget < 0:
                return
    info = getattr(get_device(name), "info", None)
    about = f"device {name}" + (f": {info.name}, {info.platform} {info.driver}" if info else "")
    for line in ("", about, "", *table(bench.report.rows)):
        bench.report.say(line)


def _in_turn(bench: Bench, device: str) -> None:
    """Each part in a process of its own, which has as long as is left for each of those to come."""
    options, end = bench.options, time.monotonic() + bench.options.budget
    words = ["--device", device, "--threads", str(options.threads), "--budget", "-1"]
    for name in ("rounds", "only", "model"):
        if getattr(options, name) is not None:
            words += [f"--{name}", str(getattr(options, name))]
    if options.against is not None:
        words += ["--against", ",".join(options.against) or "none"]
    words += ["--cpu-time"] if options.cpu_time else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *[p for p in sys.path if p]])}
    for k, part in enumerate(options.parts):
        share = (end - time.monotonic()) / (len(options.parts) - k)
        with tempfile.TemporaryDirectory() as folder:
            rows, said = Path(folder) / "rows.jsonl", Path(folder) / "said.txt"
            rows.touch()
            command = [sys.executable, "-m", "bench", "device", *words, "--parts", part, "--json", str(rows)]
            with said.open("wb") as out:
                code = ended(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                              stderr=out, start_new_session=True), share)
            for row in rows.read_text(encoding="utf-8").splitlines():
                bench.report.record(json.loads(row))
            lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines if code in (0, None) else lines[-1:]:
            bench.report.say(line)
        if code is None:
            bench.report.say(f"{part}: stopped after {share:.3g} s")
        elif code:
            bench.report.say(f"{part}: {f'ended by {signal_name(-code)}' if code < 0 else 'failed'}")


def table(rows: list[dict]) -> list[str]:
    """The rows as a table to paste: work, best time, rate."""
    units = {"gflops": "GFLOP/s", "gb_s": "GB/s", "img_s": "img/s", "tok_s": "tok/s"}
    lines = ["| work | best | rate |", "|---|---|---|"]
    for row in rows:
        rate = ", ".join(f"{row[field]:g} {unit}" for field, unit in units.items() if field in row)
        lines.append(f"| {row['work']} | {row['best_s'] * 1e3:.4g} ms | {rate} |")
    return lines


def _measure(bench: Bench, work: Work, run: Callable[[], object]) -> None:
    if bench.wants(work):
        bench.measure(work, [Side(OURS, "jit", run)], schedule=bench.schedule._replace(most_s=ROW_S))


def _captured(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    step = jit(lambda *tensors: function(*tensors).contiguous().realize())

    def call() -> None:
        step(*inputs)
        minigrad.synchronize()

    return call


def _vectors(bench: Bench, count: int) -> list[Tensor]:
    elements = 1024 if bench.quick else COPY // 4
    return [Tensor.full((elements,), 1.0 + k).contiguous().realize() for k in range(count)]


def _bytes(x: Tensor) -> int:
    return int(x.nbytes())


def _copy(bench: Bench) -> None:
    x, = _vectors(bench, 1)
    _measure(bench, Work("copy float32", "device", bytes=2 * _bytes(x)), _captured(lambda x: x + 0.5, x))


def _triad(bench: Bench) -> None:
    x, y = _vectors(bench, 2)
    _measure(bench, Work("triad float32", "device", bytes=3 * _bytes(x)), _captured(lambda x, y: x * 0.5 + y, x, y))


def _matrix(bench: Bench, dtype: str, *shape: int) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return Tensor(values).cast(dtype).contiguous().realize()


def _matmul(bench: Bench) -> None:
    n = 16 if bench.quick else PRODUCT
    for dtype in DTYPES:
        a, b = _matrix(bench, dtype, n, n), _matrix(bench, dtype, n, n)
        work = Work(f"matmul {n}x{n}x{n} {dtype}", "device", flop=2 * n**3)
        _measure(bench, work, _captured(lambda a, b: a @ b, a, b))


def _matvec(bench: Bench) -> None:
    n = 16 if bench.quick else ROWS
    for dtype in DTYPES:
        a, x = _matrix(bench, dtype, n, n), _matrix(bench, dtype, n)
        work = Work(f"matvec {n}x{n} {dtype}", "device", flop=2 * n * n, bytes=_bytes(a))
        _measure(bench, work, _captured(lambda a, x: a @ x, a, x))


def _launch(bench: Bench) -> None:
    device = get_device(config.current().device)
    seconds = [launch_us(device, 0.05 if bench.quick else 0.5) * 1e-6]
    bench.report.add_figure(f"launch, {LAUNCHES} in a row", seconds, 1e-6, "us")


def _network(bench: Bench, mode: str) -> None:
    name, batch = "efficientnet quick" if bench.quick else "efficientnet-b0", 1 if mode == "infer" else 8
    size = 16 if bench.quick else 224
    work = Work(f"{name} {mode} batch {batch}", f"device {mode}", images=batch)
    if bench.wants(work):
        random = np.random.default_rng(0)
        images, labels = random.standard_normal((batch, 3, size, size), np.float32), random.integers(0, 10, batch)
        make = classifier if mode == "infer" else trainer
        _measure(bench, work, make(quick_or_b0(bench.quick), images, labels, True))


def _chat(bench: Bench) -> None:
    from bench import llama

    parser = argparse.ArgumentParser()
    llama.add_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        if not hasattr(bench.options, name):
            setattr(bench.options, name, default)
    llama.run(bench)


def _compile(bench: Bench) -> None:
    """The first inference of a process with nothing in any cache, then of the next process."""
    size, words = (16, "quick") if bench.quick else (224, "b0")
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {name: f"{folder}/{name.lower()}" for name in CACHE_VARIABLES} | {
            "MINIGRAD_CACHE": folder, "MINIGRAD_DISK_CACHE": "1", "MINIGRAD_DEVICE": config.current().device,
            "PYTHONPATH": str(ROOT)}
        for which in ("cold", "warm"):
            done = subprocess.run([sys.executable, "-c", CHILD, str(size), words], env=environment,
                                  capture_output=True, text=True)
            if done.returncode:
                bench.report.say(f"first inference, {which}: {done.stderr.strip().splitlines()[-1]}")
                return
            found = json.loads(done.stdout.splitlines()[-1])
            bench.report.add_figure(f"first inference, {which} process", [found["seconds"]], 1.0, "s",
                                    programs=found["programs"])


MEASURES: dict[str, Callable[[Bench], None]] = {
    "copy": _copy, "triad": _triad, "matmul": _matmul, "matvec": _matvec, "launch": _launch,
    "infer": lambda bench: _network(bench, "infer"), "train": lambda bench: _network(bench, "train"),
    "chat": _chat, "compile": _compile,
}
