"""Costs of starting: a process from its first instruction to its first training step done, with empty caches and with
what the first one left; Python's part of it; then the compile of a matmul that is new, and of further ones.

All are processes of their own that find Python's bytecode, as where a package was installed: compiling our sources
would be most of an import, and of a first kernel.
"""
from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.efficientnet_step import QUICK_SIZE
from bench.options import Bench

_STEP = """
from time import perf_counter
import numpy as np
from bench.efficientnet_step import QUICK_CLASSES, quick_or_b0, trainer
random = np.random.default_rng(0)
images = random.standard_normal(({batch}, 3, {size}, {size}), np.float32)
trainer(quick_or_b0({quick}), images, random.integers(0, QUICK_CLASSES, {batch}), False)()
done = perf_counter()
from minigrad.engine.stats import stats
print(done, stats.schedule_s + stats.lower_s + stats.render_s, stats.kernels, stats.programs)
"""
"""A training step; when it was done, by the clock of the whole system, and what it took."""
MATMULS = (
    (512, 512, 512, ""), (384, 640, 768, ""), (1000, 300, 700, ""), (64, 1024, 1024, ""), (4096, 256, 24, ""),
    (6272, 144, 24, ""), (784, 240, 40, ""), (49, 1152, 192, ""), (3136, 16, 96, ""), (200, 300, 200, ""),
    (33, 45, 67, ""), (64, 64, 64, ""), (10, 17, 5, ""), (1, 1024, 1024, ""), (2, 2048, 2048, ""), (8, 1024, 1024, ""),
    (512, 512, 512, "A"), (512, 512, 512, "B"), (100, 700, 300, "B"))
"""Rows, depth, columns and the operand that is transposed in memory: one new form of the programs after the other, and
one that is known, 1000x300x700. Tall and narrow, a small number of rows, B in place, sizes as constants, small, and
operands along the sum."""

Shape = tuple[int, int, int, str]


def measure_starts(bench: Bench, name: str, batch: int, size: int) -> None:
    """Rows 'first step, empty caches', 'second process', from the process's start to the step's end; the seconds until
    it is gone and those of processors, a helper's included; the seconds of scheduling, lowering and rendering per
    kernel that was new; then the rows of `matmul_seconds`."""
    code = _STEP.format(batch=batch, size=size, quick=bench.quick)
    figure = bench.report.add_figure
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(os.path.join(folder, "bytecode"), MINIGRAD_THREADS=str(bench.options.threads))
        small = _STEP.format(batch=2, size=QUICK_SIZE, quick=True)
        _process(small, environment | {"MINIGRAD_CACHE": os.path.join(folder, "other")})
        environment["MINIGRAD_CACHE"] = os.path.join(folder, "empty")
        for which in ("first step of a process, empty caches", "first step of a second process"):
            start, end, busy, output = _process(code, environment)
            done, python_s, kernels, programs = (float(word) for word in output.split())
            figure(f"{which}, {name}", [done - start], 1.0, "s")
            figure("  until the process is gone", [end - start], 1.0, "s")
            figure("  processor time of it", [busy], 1.0, "s")
            if programs:
                figure(f"  python per distinct kernel, {kernels:.0f} of them", [python_s / kernels], 1e-3, "ms")
                figure(f"  python per distinct program, {programs:.0f} of them", [python_s / programs], 1e-3, "ms")
        _measure_matmuls(bench, environment)


def _process(code: str, environment: dict[str, str]) -> tuple[float, float, float, str]:
    """(start, end, processor seconds, output) of a process running `code`: start and end by time.perf_counter."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = run_process(code, environment, stdout=subprocess.PIPE, text=True).stdout
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return start, end, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, output


def with_bytecode(folder: str, **more: str) -> dict[str, str]:
    """The environment of processes that keep Python's bytecode in a folder, with `more` variables."""
    return os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder} | more


def run_process(code: str, environment: dict[str, str], **how: Any) -> subprocess.CompletedProcess:
    """Python running `code` from the root of the tree that minigrad is of; `how` is for subprocess.run."""
    found = find_spec("minigrad")
    assert found is not None and found.origin is not None
    return subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                          cwd=Path(found.origin).parent.parent, **how)


def _measure_matmuls(bench: Bench, environment: dict[str, str]) -> None:
    """Rows 'new matmul' and 'further matmul'."""
    shapes = MATMULS[:1] if bench.quick else MATMULS
    code = f"import json; from bench.starts import matmul_seconds; print(json.dumps(matmul_seconds({shapes})))"
    found = json.loads(_process(code, environment)[3])
    for k, ((rows, depth, columns, transposed), seconds) in enumerate(zip(shapes, found, strict=True)):
        which = "new matmul" if k == 0 else "further matmul"
        how = f", {transposed} transposed" if transposed else ""
        bench.report.add_figure(f"{which} {rows}x{depth} @ {depth}x{columns}{how}", [seconds], 1e-3, "ms")


def matmul_seconds(shapes: tuple[Shape, ...]) -> list[float]:
    """Seconds that the first call of a matmul takes beyond the second, for rows, depth, columns and the operand that is
    transposed: planning, rendering and compiling."""
    import numpy as np

    from minigrad import Tensor, config

    (Tensor(np.ones((3, 3), np.float32)) + 1).realize()
    found = []
    with config(disk_cache=False):
        for rows, depth, columns, transposed in shapes:
            a, b = (Tensor(np.ones(shape[::-1] if name in transposed else shape, np.float32)).realize()
                    for name, shape in (("A", (rows, depth)), ("B", (depth, columns))))
            a, b = a.T if "A" in transposed else a, b.T if "B" in transposed else b
            spent = []
            for _ in range(2):
                start = time.perf_counter()
                (a @ b).realize()
                spent.append(time.perf_counter() - start)
            found.append(max(0.0, spent[0] - spent[1]))
    return found
