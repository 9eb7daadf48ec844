"""python -m bench dojo --ours TABLE: predicted times of minigrad's default plans beside those measured of a library.

Of products of float32 on the cards of a table that have a record: the geometric mean of the library's time over ours,
and the rows where ours are the slowest, which are work for planners. No figure of ours was measured.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.codegen.machines.gpus import cards, of_driver
from minigrad.report.dojo import Program, predict_step

TABLES = ("matmul_torch", "gemm_rocblas", "gemm_deepbench")
WORST = 20


def report(path: Path, tables: Any, sample: int) -> int:
    """Prints both for each card of a table, given by (device, facts, columns, seconds)."""
    worst = []
    for device, facts, columns, measured in tables:
        known = of_driver(str(facts.get("name", ""))), device.partition("_")[0]
        card = next((name for name in known if name in cards()), None)
        if card is None:
            print(f"{device}: no record of {facts.get('name')}")
            continue
        wanted = [i for i in range(len(measured)) if str(columns.get("dtype", ["f32"] * len(measured))[i]) == "f32"]
        ratios = []
        for i in [wanted[k] for k in np.linspace(0, len(wanted) - 1, min(sample, len(wanted))).astype(int)]:
            row = {name: column[i] for name, column in columns.items()}
            found, = predict_step(product(row), [card])
            ratios.append(measured[i] / found.seconds)
            worst.append((ratios[-1], card, row, found.seconds, measured[i], found.programs[0]))
        print(f"{device} ({card}): library / ours {np.exp(np.mean(np.log(ratios))):.2f} in the geometric mean of "
              f"{len(ratios)} shapes, median {np.median(ratios):.2f}")
    print(f"\nthe worst of {path.name}:")
    for ratio, card, row, ours, theirs, program in sorted(worst, key=lambda x: x[0])[:WORST]:
        print(_line(ratio, card, row, ours, theirs, program))
    return 0


def _line(ratio: float, card: str, row: Mapping[str, Any], ours: float, theirs: float, program: Program) -> str:
    what = " ".join(f"{name}={value}" for name, value in row.items())
    return (f"{ratio:5.2f}  {card:<12} {1e6 * ours:9.0f} us, library {1e6 * theirs:9.0f} us  {what}  "
            f"{program.how.splitlines()[0].removeprefix('plan ')}, {program.bound}")


def product(row: Mapping[str, Any]) -> Callable[[], Callable[[], Tensor]]:
    """A function that makes the operands of a row and gives its step."""
    batch, m, n, k = (int(row.get(name, 1)) for name in ("batch", "m", "n", "k"))
    linear, layout = row.get("kernel") == "linear", str(row.get("layout", "nn"))
    if linear:
        batch, m, layout = 1, batch * m, "nt"

    def operand(rows: int, columns: int, turned: bool) -> Callable[[], Tensor]:
        size = (columns, rows) if turned else (rows, columns)
        made = Tensor.empty(*(size if batch == 1 else (batch, *size))).contiguous().realize()
        return lambda: made.transpose(-2, -1) if turned else made

    def make() -> Callable[[], Tensor]:
        a, b = operand(m, k, layout[0] == "t"), operand(k, n, layout[1] == "t")
        return lambda: a() @ b()

    return make
