"""Costs of the host: Nodes made and keyed, a small realize, import, starts and compiles, warm steps."""
from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

from bench.options import Bench
from bench.starts import measure_starts, run_process, with_bytecode

PEERS: list[str] = []


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=8, help="of the training steps (default 8)")
    parser.add_argument("--size", type=int, default=224, help="of their images (default 224)")


def run(bench: Bench) -> None:
    runs = bench.options.rounds or (1 if bench.quick else 5)
    count = 200 if bench.quick else 20_000
    figure = bench.report.add_figure
    figure("node made", [made_seconds(count) for _ in range(runs)], 1e-6, "us per Node")
    figure("node keyed", [keyed_seconds(count) for _ in range(runs)], 1e-6, "us per Node")
    figure("realize a 64x64 product", [small_seconds(count // 10) for _ in range(runs)], 1e-6, "us, less its kernel")
    figure("import minigrad", import_seconds(runs), 1e-3, "ms")
    if bench.quick:
        batch, size = 1, 16
        name = "efficientnet quick train batch 1"
    else:
        batch, size = bench.options.batch, bench.options.size
        name = f"efficientnet-b0 train batch {batch}" + ("" if size == 224 else f" size {size}")
    measure_starts(bench, name, batch, size)
    _steps(bench, name, batch, size, runs)


def made_seconds(count: int) -> float:
    """Seconds per Node, over a chain of new elementwise Nodes."""
    from minigrad.ops import elementwise
    from minigrad.ops.node import apply
    from minigrad.tensor import Tensor

    start_node = Tensor.ones(4, 4).lazydata
    start = time.perf_counter()
    node = start_node
    for _ in range(count):
        node = apply(elementwise.ADD, node, start_node)
    return (time.perf_counter() - start) / count


def keyed_seconds(count: int) -> float:
    """Seconds per Node of finding out what a plan needs and of its key, hashed, over the same kind of chain."""
    from minigrad.ops import elementwise
    from minigrad.ops.node import apply
    from minigrad.scheduler.graph import build_graph
    from minigrad.tensor import Tensor

    node = start_node = Tensor.ones(4, 4).contiguous().realize().lazydata
    for _ in range(count):
        node = apply(elementwise.ADD, node, start_node)
    start = time.perf_counter()
    hash(build_graph([node]).key())
    return (time.perf_counter() - start) / count


def small_seconds(count: int) -> float:
    """Seconds of the host per product of two small matrices, made and realized, warm."""
    from minigrad.tensor import Tensor

    x = Tensor.ones(64, 64).contiguous().realize()

    def products() -> None:
        for _ in range(count):
            (x @ x).realize()

    products()
    return host_seconds(products) / count


def import_seconds(runs: int) -> list[float]:
    """Seconds that `import minigrad` takes in fresh processes; Python's bytecode is there, as in bench/starts.py."""
    code = "import time; start = time.perf_counter(); import minigrad; print(time.perf_counter() - start)"
    with TemporaryDirectory() as folder:
        found = [float(run_process(code, with_bytecode(folder), stdout=subprocess.PIPE, text=True).stdout)
                 for _ in range(runs + 1)]
    return found[1:]


def _steps(bench: Bench, name: str, batch: int, size: int, runs: int) -> None:
    """The host's part of training steps, whatever is not the device's own time."""
    import numpy as np

    from bench.efficientnet_step import QUICK_CLASSES, quick_or_b0, trainer

    random = np.random.default_rng(0)
    images = random.standard_normal((batch, 3, size, size), np.float32)
    labels = random.integers(0, QUICK_CLASSES, batch)
    eager = trainer(quick_or_b0(bench.quick), images, labels, False)
    figure = bench.report.add_figure
    eager()
    eager()
    figure(f"host per eager step, {name}", [host_seconds(eager) for _ in range(runs)], 1e-3, "ms")
    captured = trainer(quick_or_b0(bench.quick), images, labels, True)
    captured()
    captured()
    figure(f"host per captured step, {name}", [host_seconds(captured) for _ in range(runs)], 1e-3, "ms")


def host_seconds(step: Callable[[], object]) -> float:
    """Wall time of a step less what the device says it was busy: building, planning, keys, arguments, launching."""
    from minigrad.config import current
    from minigrad.runtime.registry import get_device

    device = get_device(current().device)
    device.synchronize()
    device.elapsed()
    start = time.perf_counter()
    step()
    device.synchronize()
    return time.perf_counter() - start - device.elapsed()
