"""What starting costs: a process from its first instruction to its first training step done, with empty caches and with
what the first one left; then the compile of a matmul that is new, and of further ones."""
from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.efficientnet_step import QUICK_SIZE
from bench.options import Bench

_STEP = """
import numpy as np
from bench.efficientnet_step import QUICK_CLASSES, quick_or_b0, trainer
random = np.random.default_rng(0)
images = random.standard_normal(({batch}, 3, {size}, {size}), np.float32)
trainer(quick_or_b0({quick}), images, random.integers(0, QUICK_CLASSES, {batch}), False)()
"""
MATMULS = ((512, 512, 512), (384, 640, 768), (1000, 300, 700), (64, 1024, 1024))


def measure_starts(bench: Bench, name: str, batch: int, size: int) -> None:
    """Rows 'first step, empty caches', 'second process' and their processors' seconds, a helper's included.

    Python's bytecode is there, as where a package was installed: compiling our sources would be most of an import.
    """
    code = _STEP.format(batch=batch, size=size, quick=bench.quick)
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(os.path.join(folder, "bytecode"), MINIGRAD_THREADS=str(bench.options.threads))
        small = _STEP.format(batch=2, size=QUICK_SIZE, quick=True)
        _process(small, environment | {"MINIGRAD_CACHE": os.path.join(folder, "other")})
        environment["MINIGRAD_CACHE"] = os.path.join(folder, "empty")
        for which in ("first step of a process, empty caches", "first step of a second process"):
            wall, busy = _process(code, environment)
            bench.report.add_figure(f"{which}, {name}", [wall], 1.0, "s")
            bench.report.add_figure("  processor time of it", [busy], 1.0, "s")


def _process(code: str, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds on the clock and of processors that a process running `code` takes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run_process(code, environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def with_bytecode(folder: str, **more: str) -> dict[str, str]:
    """The environment of processes that keep Python's bytecode in a folder, with `more` variables."""
    return os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder} | more


def run_process(code: str, environment: dict[str, str], **how: Any) -> subprocess.CompletedProcess:
    """Python running `code` from the repository's root; `how` is for subprocess.run."""
    return subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                          cwd=Path(__file__).parent.parent, **how)


def measure_matmuls(bench: Bench) -> None:
    """Seconds that the first call of a matmul takes beyond the second: planning, rendering and compiling."""
    import numpy as np

    from minigrad import Tensor, config
    from minigrad.engine import compiled

    (Tensor(np.ones((3, 3), np.float32)) + 1).realize()
    with config(disk_cache=False):
        compiled.forget_plans()
        for k, (rows, depth, columns) in enumerate(MATMULS[:1] if bench.quick else MATMULS):
            a, b = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((rows, depth), (depth, columns)))
            spent = []
            for _ in range(2):
                start = time.perf_counter()
                (a @ b).realize()
                spent.append(time.perf_counter() - start)
            which = "new matmul" if k == 0 else "further matmul"
            bench.report.add_figure(f"{which} {rows}x{depth} @ {depth}x{columns}", [max(0.0, spent[0] - spent[1])],
                                    1e-3, "ms")
