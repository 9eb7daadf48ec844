"""The command: which entries run, in how many processes, and what is printed about them."""
from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

from .check import Count, applicable, check
from .counterparts import counterpart


def simple(entry: Any) -> bool:
    """True where an entry is an elementwise operation or a reduction."""
    return isinstance(entry, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo))


def entries(names: Sequence[str] = (), shard: tuple[int, int] = (0, 1)) -> list[int]:
    """Numbers in op_db of the entries with one of these names or patterns, or all."""
    chosen = [k for k, e in enumerate(op_db) if not names or any(
        fnmatch(own, name) for own in (e.name, e.formatted_name) for name in names)]
    return chosen[shard[0]::shard[1]]


def run_entry(task: tuple[int, str, str, str, int]) -> Count | None:
    """The counts of one entry in one type and direction; None where PyTorch has none."""
    number, dtype_name, direction, device, limit = task
    entry, dtype = op_db[number], getattr(torch, dtype_name)
    if not applicable(entry, dtype, direction):
        return None
    try:
        return check(entry, dtype, direction, device, limit)
    except Exception as error:  # the samples themselves
        return Count(0, 1, 0, f"samples: {type(error).__name__}: {error}"[:300])


def _counts(tasks: list[tuple], jobs: int) -> Iterator[Count | None]:
    if jobs == 1:
        torch.set_num_threads(1)
        yield from map(run_entry, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(run_entry, tasks)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 where every sample is right, else 1."""
    options = _parsed(argv)
    shard = tuple(map(int, options.shard.split("/")))
    chosen = entries(options.op, (shard[0], shard[1]))
    covered = [k for k in chosen if counterpart(op_db[k]) is not None]
    if options.list:
        print(*sorted({op_db[k].formatted_name for k in chosen} - {op_db[k].formatted_name for k in covered}), sep="\n")
        return 0
    directions = [*(["errors"] if options.errors else []),
                  *(["forward"] if not options.errors or options.grad else []),
                  *(["views"] if options.lazy else []),
                  *(["captured"] if options.lazy and options.device != "NUMPY" else []),
                  *["gradient", "second"][:options.grad]]
    tasks = [(k, dtype, direction, options.device, options.limit) for k in covered
             for dtype in options.dtype.split(",") for direction in directions
             if direction != "errors" or dtype == options.dtype.split(",")[0]]
    table: dict[tuple[str, str], list[Count]] = defaultdict(list)
    rows = []
    for task, count in zip(tasks, _counts(tasks, options.jobs), strict=True):
        if count is None or not (count.total or count.left_out):
            continue
        name, what = op_db[task[0]].formatted_name, ("" if task[2] == "errors" else task[1], task[2])
        table[what].append(count)
        rows.append({"op": name, "dtype": task[1], "direction": task[2], **vars(count)})
        if not options.failures or count.right < count.total:
            print(f"{name:40} {what[0]:9} {what[1]:9} {count.right:4} / {count.total:4}  {count.first}", flush=True)
    print(f"\n{len(covered)} of {len(chosen)} entries have a counterpart")
    for (dtype, direction), counts in table.items():
        print(_total(dtype, direction, counts))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=0))
    return int(any(c.right < c.total for counts in table.values() for c in counts))


def _total(dtype: str, direction: str, counts: list[Count]) -> str:
    right, total = sum(c.right for c in counts), sum(c.total for c in counts)
    whole = sum(c.right == c.total for c in counts)
    return (f"{dtype:9} {direction:9} {right} of {total} samples right ({100 * right / max(total, 1):.1f}%), "
            f"{whole} of {len(counts)} entries in all; {sum(c.left_out for c in counts)} samples left out")


def _parsed(argv: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python test/opinfo", description="OpInfo against minigrad")
    parser.add_argument("--op", nargs="*", default=[])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="NUMPY")
    parser.add_argument("--grad", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--json")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--failures", action="store_true")
    return parser.parse_args(argv)
