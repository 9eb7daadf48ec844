"""The quality of ranking plans: cycles that `codegen/cost/plans.py` predicts beside times measured, over random
kernels of each kind.

For each kernel plans of all ways that policies know run in turn, on one thread: the one that is chosen, the cheapest
by prediction, others by chance. Printed are the rank correlation of prediction and time, and the loss of the first two
against the fastest. `--fit` finds the costs of a machine (`[plans]` in its file) from what was measured there.
"""
from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import geometric_mean, median
from time import process_time
from typing import Any

import numpy as np

from bench.plan_fit import fitted
from bench.plan_kernels import KINDS, kernels
from minigrad.codegen.cost.counts import Counts, counts
from minigrad.codegen.cost.plans import estimate, of_counts
from minigrad.codegen.ir.nodes import extent_of
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.machines.machine import Machine, machine
from minigrad.codegen.passes import render
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.sizes import without_sizes
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.codegen.policy.choose import choose_plan, compared
from minigrad.codegen.transforms.bounded_sums import bounded_sums
from minigrad.runtime.device import Device, Launch
from minigrad.runtime.registry import get_device

MOST = 16
"""Plans of a kernel that are measured, those of the policy and of the model among them."""

SAMPLE_S, SAMPLES = 0.003, 7


def times(kernel: Kernel, plans: list[tuple[Nest, Plan]], device: Device) -> list[float]:
    """Seconds of each plan: the least of some samples, taken in turn."""
    sizes = [int(p.shape[0]) for p in kernel.params]
    buffers = [device.alloc(4 * size) for size in sizes]
    for buffer, size in zip(buffers, sizes, strict=True):
        device.copy_in(buffer, np.random.default_rng(0).standard_normal(size).astype(np.float32))
    functions = [bounded_sums(build(kernel, *plan, "product"), {}) for plan in plans]
    loaded = device.load([render(f, device.target) for f in functions])
    launches = [[Launch(x, (*buffers, *[1.0] * len(kernel.scalars)), int(extent_of(f)))]
                for x, f in zip(loaded, functions, strict=True)]

    def seconds(launch: list[Launch], count: int) -> float:
        start = process_time()
        for _ in range(count):
            device.launch(launch)
        device.synchronize()
        return (process_time() - start) / count

    counts = [max(1, int(SAMPLE_S / max(min(seconds(one, 1) for _ in range(2)), 1e-7))) for one in launches]
    found = [min(samples) for samples in zip(*(
        [seconds(one, n) for one, n in zip(launches, counts, strict=True)] for _ in range(SAMPLES)), strict=True)]
    for buffer in buffers:
        device.free(buffer)
    return found


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's."""
    ranks_a, ranks_b = (np.argsort(np.argsort(np.array(x))) for x in (a, b))
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def measured(name: str, kernel: Kernel, device: Device, random: np.random.Generator) -> dict[str, Any] | None:
    """The plans of a kernel that are measured: the chosen one, the cheapest by the estimate, and others by chance; each
    with its cycles, seconds, and counts. None where there is nothing to choose from."""
    nest, one = kernel.nests[0], replace(device.target, units=1)
    every = [plan for plans in compared(nest, one) for plan in plans]
    chosen, found = choose_plan(nest, one)
    if len(every) < 2 or not isinstance(found, Plan):
        return None
    cheapest = min(every, key=lambda x: estimate(x[0], x[1], one).cycles)
    some = [every[k] for k in random.permutation(len(every))[:MOST - 2]]
    wanted = [(n, without_sizes(p)) for n, p in [(chosen, found), cheapest, *some]]
    kept = {p: (n, p) for n, p in wanted}
    if len(kept) < 2:
        return None
    plans = [{"text": str(p), "seconds": t, "counts": asdict(counts(resolve(n, p), one))}
             for (n, p), t in zip(kept.values(), times(kernel, list(kept.values()), device), strict=True)]
    return {"kernel": name, "plans": plans}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench plans", description="prediction and time of plans")
    parser.add_argument("--kinds", default="products", help=f"of kernels, with commas: {', '.join(KINDS)} (products)")
    parser.add_argument("--count", type=int, default=200, help="kernels of each kind (200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="CPU", help="CPU, or OpenCL on a processor, as CL:pocl")
    parser.add_argument("--json", metavar="FILE", help="append a line for each kernel")
    parser.add_argument("--fit", nargs="+", type=Path, metavar="FILE",
                        help="print [plans] fitted to such files, and measure nothing")
    options = parser.parse_args(arguments)
    device = get_device(options.device)
    one = replace(device.target, units=1)
    if options.fit:
        known = [json.loads(line) for path in options.fit for line in path.read_text(encoding="utf-8").splitlines()]
        costs = fitted(known, one)
        print("\n".join(["[plans]", *[f"{name} = {value:.2g}" for name, value in asdict(costs).items()]]))
        for facts in (machine(one), replace(machine(one), plans=costs)):
            for kind in dict.fromkeys(row["kind"] for row in known):
                print(f"{kind}\n{summary([row for row in known if row['kind'] == kind], facts)}")
        return 0
    if device.name == "CPU" and device.target.units != 1:
        parser.error(f"expected MINIGRAD_THREADS=1, got {device.target.units} threads")
    for kind in options.kinds.split(","):
        if kind not in KINDS:
            parser.error(f"expected kinds among {', '.join(KINDS)}, got {kind}")
        random, rows = np.random.default_rng(options.seed), list[dict[str, Any]]()
        for name, kernel in kernels(kind, random, device):
            row = measured(name, kernel, device, random)
            if row is not None:
                rows.append({"kind": kind, **row})
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
            if len(rows) == options.count:
                break
        print(f"{kind} on {device.name}, {device.target.cpu}, processor time", flush=True)
        print(summary(rows, machine(one)), flush=True)
    return 0


def summary(rows: Sequence[dict[str, Any]], facts: Machine) -> str:
    """Lines about how well plans are predicted on a machine, and chosen among those that were measured."""
    cycles = [[of_counts(Counts(**p["counts"]), facts).cycles for p in row["plans"]] for row in rows]
    seconds = [[p["seconds"] for p in row["plans"]] for row in rows]
    within = [rank_correlation(c, s) for c, s in zip(cycles, seconds, strict=True) if len(c) > 2]
    ratio = [s / c for row in zip(seconds, cycles, strict=True) for s, c in zip(*row, strict=True)]
    off = [max(r / median(ratio), median(ratio) / r) for r in ratio]
    lines = [f"{len(rows)} kernels, {len(ratio)} plans; rank correlation within a kernel median "
             f"{median(within) if within else 1.0:.3f}; half of all within {median(off):.2f}x of the median rate, nine "
             f"tenths within {np.quantile(off, 0.9):.2f}x"]
    for who, chosen in (("model", [c.index(min(c)) for c in cycles]), ("policy", [0] * len(rows))):
        lost = [s[k] / min(s) for k, s in zip(chosen, seconds, strict=True)]
        near = sum(x <= 1.1 for x in lost) / len(lost)
        lines.append(f"{who:<6} chooses {geometric_mean(lost):.3f}x the fastest, 95% at most "
                     f"{np.quantile(lost, 0.95):.2f}x, {max(lost):.2f}x at worst, within 10% for {100 * near:.0f}%")
    return "\n".join(lines)
