"""The quality of ranking plans: cycles that `codegen/cost/plans.py` predicts beside times measured, over random
products.

For each product plans of all ways that its policy knows run in turn, on one thread: the one that is chosen, the
cheapest by prediction, others by chance. Printed are the rank correlation of prediction and time, over all and within a
product, and the loss of the first two against the fastest.
"""
from __future__ import annotations

import argparse
import json
from dataclasses import replace
from statistics import geometric_mean, median
from time import process_time
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.ir.nodes import extent_of
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions
from minigrad.codegen.passes import render
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.choose import product_plan, product_ways
from minigrad.codegen.transforms.bounded_sums import bounded_sums
from minigrad.runtime.device import Device, Launch
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule

MOST = 16
"""Plans of a product that are measured, those of the policy and of the model among them."""

LEAST_WORK, SAMPLE_S, SAMPLES = 1 << 17, 0.003, 7


def product(random: np.random.Generator, device: Device) -> tuple[str, Kernel]:
    """A product of random sizes, its second operand along the sum or across it; worth more than a launch."""
    while True:
        m, n, k = (int(2 ** random.uniform(2, 9)) for _ in range(3))
        if m * n * k >= LEAST_WORK:
            break
    transposed = bool(random.integers(2))
    x = Tensor(np.zeros((m, k), np.float32), device=device.name).realize()
    w = Tensor(np.zeros((n, k) if transposed else (k, n), np.float32), device=device.name).realize()
    graph = build_graph([(x @ (w.transpose(0, 1) if transposed else w)).node])
    kernel = schedule(graph, frozenset(), device.target).steps[-1].kernel
    return f"{m}x{n}x{k}" + (" transposed" if transposed else ""), collapse(flatten(split_divisions(kernel)))


def times(kernel: Kernel, plans: list[tuple[Nest, Plan]], device: Device) -> list[float]:
    """Seconds of each plan: the least of some samples, taken in turn."""
    sizes = [int(p.shape[0]) for p in kernel.params]
    buffers = [device.alloc(4 * size) for size in sizes]
    for buffer, size in zip(buffers, sizes, strict=True):
        device.copy_in(buffer, np.random.default_rng(0).standard_normal(size).astype(np.float32))
    functions = [bounded_sums(build(kernel, *plan, "product"), {}) for plan in plans]
    loaded = device.load([render(f, device.target) for f in functions])
    launches = [[Launch(x, tuple(buffers), int(extent_of(f)))]
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench plans", description="prediction and time of plans")
    parser.add_argument("--count", type=int, default=200, help="products (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="CPU", help="CPU, or OpenCL on a processor, as CL:pocl")
    parser.add_argument("--json", metavar="FILE", help="write a line for each product")
    options = parser.parse_args(arguments)
    random, device = np.random.default_rng(options.seed), get_device(options.device)
    if device.name == "CPU" and device.target.units != 1:
        parser.error(f"expected MINIGRAD_THREADS=1, got {device.target.units} threads")
    one = replace(device.target, units=1)
    rows: list[dict[str, Any]] = []
    predicted: list[float] = []
    measured: list[float] = []
    while len(rows) < options.count:
        name, kernel = product(random, device)
        nest = kernel.nests[0]
        chosen, every = product_plan(nest, one), [w.made(c, one) for w in product_ways(nest, one) for _, c in w.choices]
        if chosen is None or len(every) < 4:
            continue
        cheapest = min(every, key=lambda x: estimate(x[0], x[1], one).cycles)
        some = [every[k] for k in random.permutation(len(every))[:MOST - 2]]
        plans = list(dict.fromkeys([chosen, cheapest, *some]))
        cycles, seconds = [estimate(n, p, one).cycles for n, p in plans], times(kernel, plans, device)
        predicted, measured = predicted + cycles, measured + seconds
        best = min(seconds)
        rows.append({"product": name, "plans": len(plans), "correlation": rank_correlation(cycles, seconds),
                     "model": seconds[plans.index(cheapest)] / best, "policy": seconds[0] / best, "best_s": best})
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(f"{len(rows)} products, {len(measured)} plans on {device.name}, {device.target.cpu}, processor time")
    print(f"rank correlation  all {rank_correlation(predicted, measured):.3f}, within a product median "
          f"{median(row['correlation'] for row in rows):.3f}")
    ratio = [s / c for s, c in zip(measured, predicted, strict=True)]
    off = [max(r / median(ratio), median(ratio) / r) for r in ratio]
    print(f"error             half of all within {median(off):.2f}x of the median rate, nine tenths within "
          f"{sorted(off)[int(0.9 * len(off))]:.2f}x")
    for who in ("model", "policy"):
        lost = [row[who] for row in rows]
        print(f"{who:<6} chooses    {geometric_mean(lost):.3f}x the fastest, {np.quantile(lost, 0.95):.2f}x for 95%, "
              f"{max(lost):.2f}x at worst, within 10% for "
              f"{100 * sum(x <= 1.1 for x in lost) / len(lost):.0f}% of products")
    return 0
