"""Two source trees beside each other: a process of each, which take turns within every row.

    python -m bench compare ../before                       old and new, all that a baseline has
    python -m bench compare ../before --parts matmul conv --only 512 --times 3

The benchmarks are those of this tree, minigrad and the examples those of either. Each tree has a cache of programs of
its own, empty at first. A ratio is the old time over the new one, above 1 where the new tree is faster.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bench import timing
from bench.baseline import LONG, PARTS, is_kept, options_of
from bench.options import common_parser

HERE = Path(__file__).resolve().parent.parent
ROUNDS = 8
"""Turns of each side within a row: both processes must have as many."""
COUNT = re.compile(r", \d+ of them")
"""The part of names of rows that depends on a tree."""
LEAST = 0.93
"""The ratio below which rows are listed again."""
_START = """import sys; sys.path.insert(0, {tree!r}); import minigrad
sys.path.insert(0, {here!r}); import bench.compare; bench.compare.take_turns({tree!r}, {parts!r})"""

Key = tuple[str, str, str, int]
Times = dict[Key, tuple[float, float]]
"""Benchmark, work, variant, and which of those of the same name -> the best and the median seconds."""


def main(arguments: list[str]) -> int:
    parser = common_parser("compare", "two source trees, in turn")
    parser.add_argument("old", type=Path, help="the tree to compare with, a folder that has minigrad/")
    parser.add_argument("new", type=Path, nargs="?", default=HERE, help="default: this one")
    parser.add_argument("--times", type=int, default=1, help="how often all of it is measured (default 1)")
    options, given = options_of(arguments, parser)
    if options.rounds is None and not options.quick:
        given += ["--rounds", str(ROUNDS)]
    trees = [path.resolve() for path in (options.old, options.new)]
    for tree in trees:
        if not (tree / "minigrad").is_dir():
            parser.error(f"expected a folder with minigrad/, got {tree}")
    parts = [(name, [*given, *(PARTS | LONG)[name]]) for name in options.parts] * options.times
    with tempfile.TemporaryDirectory() as folder:
        old, new = _alternate(trees, parts, Path(folder))
    ratios: dict[str, list[float]] = defaultdict(list)
    low = []
    for key, (best, median) in new.items():
        if key not in old:
            continue
        ratio, ratio_median = old[key][0] / best, old[key][1] / median
        ratios[key[0]].append(ratio)
        line = (f"{key[1]:<52} {key[2]:<18} old {old[key][0] * 1e3:10.4f} ms  new {best * 1e3:10.4f} ms  "
                f"{ratio:.3f}x (median {ratio_median:.3f}x)")
        low += [line] if ratio < LEAST else []
        print(line)
    for name, found in ratios.items():
        print(f"{name:<14} geometric mean of {len(found)}: {statistics.geometric_mean(found):.3f}x")
    found = [ratio for each in ratios.values() for ratio in each]
    if not found:
        parser.error(f"expected rows that both trees have, got none of {', '.join(options.parts)}")
    mean = statistics.geometric_mean(found)
    print(f"{'all':<14} geometric mean of {len(found)}: {mean:.3f}x, least {min(found):.3f}x")
    print("".join(f"below {LEAST}: {line}\n" for line in low), end="")
    return 0


def _alternate(trees: list[Path], parts: list[tuple[str, list[str]]], folder: Path) -> list[Times]:
    """Gives the processes the machine in turn until they are through; returns the times that each measured."""
    from minigrad.config import current

    processes = []
    for side, tree in enumerate(trees):
        cache = folder / str(side)
        cache.mkdir()
        models = current().cache_dir / "models"
        models.mkdir(parents=True, exist_ok=True)
        (cache / "models").symlink_to(models.resolve())  # what the chat reads is fetched once
        code = _START.format(here=str(HERE), tree=str(tree), parts=parts)
        processes.append(subprocess.Popen([sys.executable, "-c", code], text=True, cwd=tree, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE,
                                          env=os.environ | {"PYTHONPATH": str(tree), "MINIGRAD_CACHE": str(cache)}))
    found: dict[int, Times] = {}
    try:
        while len(found) < len(trees):
            for side, process in enumerate(processes):
                if side in found:
                    continue
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                told = process.stdout.readline()
                if not told:
                    raise SystemExit(f"bench compare: expected rows of {trees[side]}, its process ended")
                if told != "\n":
                    found[side] = _times(json.loads(told))
    finally:
        for process in processes:
            process.kill() if process.poll() is None else None
            process.communicate()
    return [found[side] for side in range(len(trees))]


def _times(runs: list[tuple[str, list[dict[str, Any]]]]) -> Times:
    """The best of all measurements of a row, and the median of their medians."""
    seen = defaultdict(list)
    for name, rows in runs:
        earlier = Counter[tuple[str, str]]()
        for row in filter(is_kept, rows):
            key = COUNT.sub("", row["work"]), row["variant"]
            seen[name, *key, earlier[key]].append((row["best_s"], row["median_s"]))
            earlier[key] += 1
    return {key: (min(best for best, _ in all_), statistics.median(m for _, m in all_)) for key, all_ in seen.items()}


def take_turns(tree: str, parts: list[tuple[str, list[str]]]) -> None:
    """The work of each process: measures, and hands over after every turn by an empty line; at last prints the rows."""
    sys.path.insert(0, tree)
    told = sys.stdout

    def wait() -> None:
        timing.settle(timing.Schedule().pause_s)
        told.write("\n")
        told.flush()
        if not sys.stdin.readline():
            raise SystemExit("bench compare has ended")

    sys.stdin.readline()
    from bench.__main__ import measure

    timing.between_turns = wait
    with contextlib.redirect_stdout(io.StringIO()):
        rows = [(name, measure(name, arguments).rows) for name, arguments in parts]
    import minigrad

    assert minigrad.__file__.startswith(tree), minigrad.__file__
    told.write(json.dumps(rows) + "\n")
    told.flush()
