"""Rates, latencies, bandwidths by level and launch time of a device: kernels of ours, warm, the best of some runs."""
from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np

from minigrad.cli.device_check import best, launch_us
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.machines.gpus import cards, gpu, of_driver, own_records
from minigrad.codegen.passes import render
from minigrad.runtime.caches import cache_sizes, last_level
from minigrad.runtime.device import Device, Launch
from minigrad.target import Target

CHAINS, STEPS, ITEMS = 8, 500, 2048
"""Multiply-adds or loads in flight, steps of a launch that fills a GPU, work-items of a GPU's unit."""

FAR_BYTES, MOST_BYTES, PASS_BYTES = 256 << 20, 1 << 30, 16 << 20
"""Bytes that few caches hold, at most those that are read; bytes that a core reads in a launch at least."""

LINE, HOPS = 64, 1 << 17
"""Bytes from a load to the next of a chain; loads, or multiply-adds of a core, of a launch: it takes longer than
launching it."""

RUN_S = 0.02
"""Seconds of a run, which is as many launches as that takes."""


class Measurement(NamedTuple):
    """A fact of [speed], its value, and what was run."""

    fact: str
    value: float
    how: str


class Level(NamedTuple):
    """A cache or memory: bytes that all cores or units read together, and that a chain of loads goes through."""

    name: str
    together: int
    chain: int


def measure(device: Device, seconds: float) -> list[Measurement]:
    """All facts of [speed] that can be measured of a device, in about so many seconds."""
    target, found, every = device.target, [], levels(device)
    types = ["f32"] + ["f16"] * bool(target.features & {"fp16", "avx512fp16", "fullfp16"})
    each = seconds / (len(types) + 2 + 2 * len(every))
    for dtype in types:
        tflops = 2e-12 / multiply_add_s(device, dtype, CHAINS, _items(target), each)
        found.append(Measurement(f"{dtype}_tflops_measured", tflops, "multiply-adds in registers"))
    ns = 1e9 * target.lanes(32) * multiply_add_s(device, "f32", 1, 1, each)
    found.append(Measurement("fma_latency_ns_measured", ns, "each waits for the one before"))
    for level in every:
        gbs = 1e-9 * bytes_a_second(device, level.together, each)
        ns = 1e9 * hop_s(device, level.chain, every[-1].chain, each)
        found += [Measurement(f"{level.name}_gbs_measured", gbs, f"{_size(level.together)} read again and again"),
                  Measurement(f"{level.name}_latency_ns_measured", ns, f"random lines of {_size(level.chain)}")]
    found.append(Measurement("launch_us_measured", launch_us(device, each), "in a row of launches"))
    return found + _share({m.fact: m.value for m in found}, target)


def _share(found: dict[str, float], target: Target) -> list[Measurement]:
    """The share of a GPU's bandwidth, where the specification of the card is known."""
    card = of_driver(target.cpu) if target.is_gpu else ""
    if card not in cards() or card not in own_records():
        return []
    return [Measurement("dram_share_measured", found["dram_gbs_measured"] / gpu(card).dram_gbs, "of the specification")]


def levels(device: Device) -> list[Level]:
    """The levels of a device that can be told apart."""
    target, last = device.target, last_level()
    if target.is_gpu:
        facts = gpu(of_driver(target.cpu))
        caches = [Level("l2", facts.l2_bytes // 2, facts.l2_bytes // 2)]
        if facts.l3_bytes > 2 * facts.l2_bytes:
            caches.append(Level("l3", facts.l3_bytes // 2, facts.l3_bytes // 2))
        last = max(facts.l2_bytes, facts.l3_bytes)
    else:
        l1, l2 = cache_sizes()
        caches = [Level(name, size // 2 * target.units, size // 2) for name, size in (("l1", l1), ("l2", l2))]
        if last > 8 * l2 * target.units:
            caches.append(Level("l3", 4 * l2 * target.units, min(8 * l2, last // 2)))
    most = getattr(getattr(device, "info", None), "max_allocation", MOST_BYTES)  # an OpenCL device's
    far = min(max(FAR_BYTES, 4 * last), MOST_BYTES, most)
    return [*(level for level in caches if 2 * max(level.together, level.chain) <= far), Level("dram", far, far)]


def multiply_add_s(device: Device, dtype: str, chains: int, items: int, seconds: float) -> float:
    """Seconds of a multiply-add among `chains` in flight in each of `items`, a vector's lanes counted one by one."""
    width = device.target.lanes(int(dtype[1:]))
    steps = STEPS if device.target.is_gpu and items > 1 else HOPS
    text = (f"func rate(in x: {dtype}[{width}], out y: {dtype}[{items * width}])\n  for p in 0..{items} parallel:\n"
            f"    for v in 0..{width} vector:\n      alloc s: {dtype}[{chains}] register\n"
            f"      for c in 0..{chains} unroll:\n        s[c] = x[v] * {dtype}(index(c+p))\n"
            f"      for k in 0..{steps} serial:\n        for c in 0..{chains} unroll:\n"
            f"          s[c] = fma(s[c], x[v], x[v])\n"
            f"      for c in 1..{chains} unroll:\n        s[0] = s[0] + s[c]\n      y[{width}*p+v] = s[0]\n")
    kind = np.float16 if dtype == "f16" else np.float32
    return _launch_s(device, text, [np.full(width, 0.5, kind), np.zeros(items * width, kind)], items, seconds) / (
        items * width * chains * steps)


def bytes_a_second(device: Device, nbytes: int, seconds: float) -> float:
    """Bytes a second of all cores or units that read an array: a core a part of it, a GPU's items elements side by
    side."""
    target = device.target
    width, items = target.lanes(32), _items(target)
    steps = max(1, nbytes // (4 * width * items * CHAINS))
    again = max(1, PASS_BYTES // (4 * width * steps * CHAINS)) if not target.is_gpu else 4
    at = f"{items}*({CHAINS}*k+c)+p" if target.is_gpu else f"{width * CHAINS}*steps*p+{width}*({CHAINS}*k+c)+v"
    a_step = items * width * CHAINS
    text = (f"func read(in x: f32[{a_step}*steps], out y: f32[{items * width}], {_dim('steps')}, {_dim('again')})\n"
            f"  for p in 0..{items} parallel:\n    for v in 0..{width} vector:\n      alloc s: f32[{CHAINS}] register\n"
            f"      for c in 0..{CHAINS} unroll:\n        s[c] = 0.0\n"
            f"      for a in 0..again serial:\n        for k in 0..steps serial:\n"
            f"          for c in 0..{CHAINS} unroll:\n            s[c] = s[c] + x[{at}]\n"
            f"      for c in 1..{CHAINS} unroll:\n        s[0] = s[0] + s[c]\n      y[{width}*p+v] = s[0]\n")
    arrays = [np.full(a_step * steps, 0.5, np.float32), np.zeros(items * width, np.float32)]
    return 4 * a_step * steps * again / _launch_s(device, text, arrays, items, seconds, (steps, again))


def hop_s(device: Device, nbytes: int, most: int, seconds: float) -> float:
    """Seconds from one load to the next, each of which needs the one before to know where: in `nbytes` of an array of
    `most`, so that all have one program."""
    step = LINE // 4
    order = np.random.default_rng(0).permutation(nbytes // LINE).astype(np.int32) * step
    follows = np.zeros(most // 4, np.int32)
    follows[order] = np.roll(order, -1)
    text = (f"func hops(in x: i32[{len(follows)}], inout y: i32[1])\n  for p in 0..1 parallel:\n"
            f"    alloc at: i32[1] register\n    at[0] = y[p]\n    for k in 0..{HOPS} serial:\n"
            f"      at[0] = x[{{i64(at[0]) in 0..{len(follows) - 1}}}]\n    y[p] = at[0]\n")
    return _launch_s(device, text, [follows, order[:1].copy()], 1, seconds) / HOPS


def _dim(name: str) -> str:
    """A size that is an argument: one program for all of them."""
    return f"{name}: index in 1..{2**31 - 1}"


def _launch_s(device: Device, text: str, arrays: list[np.ndarray], items: int, seconds: float,
              sizes: tuple[int, ...] = ()) -> float:
    """Seconds of a launch of a kernel with these arguments, the fastest of several runs of some."""
    executable, = device.load([render(parse_function(text), device.target)])
    held = [device.alloc(a.nbytes) for a in arrays]
    try:
        for buffer, array in zip(held, arrays, strict=True):
            device.copy_in(buffer, array)
        launch = Launch(executable, (*held, *sizes), items)
        count, took = 1, 0.0
        while took < min(RUN_S, seconds / 8) and count < 1 << 16:
            count *= 2 if took else 1
            start = perf_counter()
            device.launch([launch] * count)
            device.synchronize()
            took = perf_counter() - start
        return best(lambda: device.launch([launch] * count), device.synchronize, seconds / 2) / count
    finally:
        for buffer in held:
            device.free(buffer)


def _items(target: Target) -> int:
    """Work-items that fill a device, or one for each core."""
    return target.units * (ITEMS if target.is_gpu else 1)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"
