"""Times of this tree, for later ones to be compared with: rows of several benchmarks in one file, with their spread.

    python -m bench baseline                       writes bench/baseline-PROCESSOR.json
    python -m bench compare OLD_TREE               how old and new differ, measured in turn: see compare.py
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

from bench.options import common_parser
from bench.report import OURS, load_average, version_of

PARTS: dict[str, tuple[str, ...]] = {
    "matmul": (),
    "conv": ("--grad", "forward", "data", "weights"),
    "depthwise": ("--grad", "forward", "data", "weights"),
    "matvec": (),
    "rowops": (),
    "attention": (),
    "efficientnet": (),
    "llama": (),
    "node": (),
}
"""Benchmarks with their options, each without peers."""
LONG: dict[str, tuple[str, ...]] = {"zoo": ("--no-memory",), "scripts": ("--no-first",), "networks": ("--count", "40")}
"""Those that take part only where they are named."""
KEPT = ("work", "variant", "best_s", "quartiles_s", "median_s", "runs", "first_s", "load_average")


def options_of(arguments: list[str], parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """The options, and those that each benchmark is given."""
    parser.add_argument("--parts", nargs="+", choices=PARTS | LONG, default=list(PARTS), metavar="BENCHMARK",
                        help=f"among {', '.join(PARTS)} (default: all these), {', '.join(LONG)}")
    options = parser.parse_args(arguments)
    given = ["--threads", str(options.threads), "--against", "none"]
    given += [word for name in ("only", "rounds") if (value := getattr(options, name)) is not None
              for word in (f"--{name}", str(value))]
    return options, given + ["--quick"] * options.quick + ["--cpu-time"] * options.cpu_time


def is_kept(row: dict[str, Any]) -> bool:
    """True where a row is a work of ours, no mean of several and no read stream."""
    return row["peer"] == OURS and "geometric mean" not in row["work"]


def main(arguments: list[str]) -> int:
    from bench.__main__ import measure
    from minigrad.runtime.registry import get_device

    options, given = options_of(arguments, common_parser("baseline", "a file that later trees are held against"))
    rows: list[dict[str, Any]] = []
    for name in options.parts:
        rows += [{"benchmark": name} | {key: row[key] for key in KEPT if key in row}
                 for row in measure(name, [*given, *(PARTS | LONG)[name]]).rows if is_kept(row)]
    target = get_device("CPU").target
    head = {"processor": target.cpu, "cores": os.cpu_count(), "threads": options.threads,
            "clock": "processor time" if options.cpu_time else "wall time", "system": platform.platform(),
            "date": datetime.date.today().isoformat(), "load_average": load_average(),
            "versions": {"python": platform.python_version(), "numpy": version_of("numpy"),
                         "llvmlite": version_of("llvmlite"), "minigrad": version_of("minigrad")}}
    path = options.json or Path(__file__).parent / f"baseline-{target.cpu}.json"
    with open(path, "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(row) for row in rows)
        file.write(f'{{"machine": {json.dumps(head, indent=1)},\n"rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows in {path}")
    return 0
