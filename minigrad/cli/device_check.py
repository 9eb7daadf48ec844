"""A short self-test of a device: a dozen kernels against numpy, then how fast it is."""
from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.passes import render
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.runtime.figures import Figures
from minigrad.runtime.registry import get_device
from minigrad.tensor import Tensor

BUDGET_S = 0.5
"""Seconds for each figure, after its first run."""

COPY_BYTES, PRODUCT, LAUNCHES, STEPS, CHAINS = 64 << 20, 768, 200, 500, 8
SMALL = 8
"""The number that sizes are divided by where a first run is slow."""


def failures(device: str) -> list[str]:
    """The kernels, of a dozen, whose results differ from numpy's; each with how much. Raises what a driver raises."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(shape, np.float32) for shape in ((37, 90), (90, 53)))
    image, weight, taps = (random.standard_normal(shape, np.float32)
                           for shape in ((2, 4, 9, 11), (5, 4, 3, 3), (4, 1, 3, 3)))
    rows = random.integers(0, 37, 20).astype(np.int32)
    a, b, i, w, t, at = (Tensor(v, device=device) for v in (x, y, image, weight, taps, rows))
    shifted = np.exp(x - x.max(1, keepdims=True))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    work: dict[str, tuple[Tensor, np.ndarray]] = {
        "pointwise": ((a * 2 + 1).exp() / 3, np.exp(x * 2 + 1) / 3),
        "transposed": (a.transpose(0, 1).contiguous() - 1, x.T - 1),
        "comparison": ((a > 0).where(a, -a * 0.5), np.where(x > 0, x, -x * 0.5)),
        "sum of rows": (a.sum(1), x.sum(1)),
        "sum of columns": (a.sum(0), x.sum(0)),
        "maximum": (a.max(), x.max()),
        "softmax": (a.softmax(1), shifted / shifted.sum(1, keepdims=True)),
        "product": (a @ b, x @ y),
        "product with a transposed operand": (b.transpose(0, 1) @ a.transpose(0, 1), y.T @ x.T),
        "convolution": (i.conv2d(w, padding=1), np.einsum("nchwuv,ocuv->nohw", windows, weight)),
        "depthwise convolution": (i.conv2d(t, padding=1, groups=4), np.einsum("nchwuv,cuv->nchw", windows, taps[:, 0])),
        "rows by number": (a[at], x[rows]),
        "integers": ((at * 7 - 3) // 5, (rows * 7 - 3) // 5),
        "float16": ((a.cast("float16") * 3).cast("float32"), (x.astype(np.float16) * np.float16(3)).astype(np.float32)),
    }
    results = [result for result, _ in work.values()]
    Tensor.realize(*results)
    found = []
    for name, (result, expected) in work.items():
        got = result.numpy()
        error = float(np.max(np.abs(got - expected) / (np.abs(expected) + 1)))
        if not error < (2e-3 if name == "float16" else 1e-4):
            found.append(f"{name}: off by {error:.2g} of what numpy says")
    return found


def measure(device: str) -> Figures:
    """The device's figures, each from the best of several runs."""
    opened = get_device(device)
    return Figures(peak_gflops(opened), product_gflops(device, "float16"), copy_gb_s(device), launch_us(opened))


def best(run: Callable[[], object], wait: Callable[[], object], budget_s: float = BUDGET_S) -> float:
    """Seconds of the fastest run, the first one apart."""
    run()
    wait()
    fastest, end = float("inf"), time.perf_counter() + budget_s
    while fastest == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        wait()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def fitting(make: Callable[[int], Callable[[], object]], wait: Callable[[], object], size: int) -> tuple[float, int]:
    """(seconds of the fastest run, size) at `size`, or smaller where one run takes all the time there is."""
    while True:
        run = make(size)
        run()
        wait()
        start = time.perf_counter()
        run()
        wait()
        if time.perf_counter() - start < BUDGET_S / 3 or size < 2 * SMALL:
            return best(run, wait), size
        size //= SMALL


def peak_gflops(device: Device) -> float:
    """GFLOP/s of float32 multiply-adds in registers on all cores or compute units: CHAINS vectors in each work-item or
    iteration."""
    width = device.target.lanes(32)
    items = device.target.units * (2048 if device.target.is_gpu else 4)
    function = parse_function(
        f"func peak(in x: f32[{width}], out y: f32[{items * width}])\n  for p in 0..{items} parallel:\n"
        f"    for v in 0..{width} vector:\n      alloc s: f32[{CHAINS}] register\n"
        f"      for c in 0..{CHAINS} unroll:\n        s[c] = x[v] * f32(index(c+p))\n"
        f"      for k in 0..{STEPS} serial:\n        for c in 0..{CHAINS} unroll:\n"
        f"          s[c] = fma(s[c], x[v], x[v])\n"
        f"      for c in 1..{CHAINS} unroll:\n        s[0] = s[0] + s[c]\n      y[{width}*p+v] = s[0]\n")
    executable, = device.load([render(function, device.target)])
    x, y = device.alloc(4 * width), device.alloc(4 * width * items)
    device.copy_in(x, np.full(width, 0.5, np.float32))

    def make(count: int) -> Callable[[], object]:
        return lambda: device.launch([Launch(executable, (x, y), items)] * count)

    seconds, count = fitting(make, device.synchronize, 4 * SMALL**2)
    for buffer in (x, y):
        device.free(buffer)
    return 2e-9 * count * items * width * CHAINS * STEPS / seconds


def product_gflops(device: str, dtype: str, size: int = PRODUCT) -> float:
    """GFLOP/s of a square matrix product, both operands of a type, as the library does it."""
    wait = get_device(device).synchronize

    def make(n: int) -> Callable[[], object]:
        a, b = (Tensor.full((n, n), 0.5, dtype=dtype, device=device).contiguous().realize() for _ in range(2))
        return lambda: (a @ b).contiguous().realize()

    seconds, n = fitting(make, wait, size)
    return 2e-9 * n**3 / seconds


def copy_gb_s(device: str, nbytes: int = COPY_BYTES) -> float:
    """GB/s, bytes read and written, of y = x + 1 over arrays of `nbytes`."""
    wait = get_device(device).synchronize

    def make(count: int) -> Callable[[], object]:
        x = Tensor.full((count,), 1.0, device=device).contiguous().realize()
        return lambda: (x + 1).realize()

    seconds, count = fitting(make, wait, nbytes // 4)
    return 8e-9 * count / seconds


def launch_us(device: Device, budget_s: float = BUDGET_S) -> float:
    """Microseconds per launch of a kernel that does next to nothing, in a row of them."""
    function = parse_function("func nothing(in x: f32[1], out y: f32[1])\n  for p in 0..1 parallel:\n    y[p] = x[p]\n")
    executable, = device.load([render(function, device.target)])
    buffers: list[Buffer] = [device.alloc(4), device.alloc(4)]
    device.copy_in(buffers[0], np.zeros(1, np.float32))
    launches = [Launch(executable, tuple(buffers), 1)] * LAUNCHES
    seconds = best(lambda: device.launch(launches), device.synchronize, budget_s)
    for buffer in buffers:
        device.free(buffer)
    return 1e6 * seconds / LAUNCHES
