"""float32 matrix products, each measured in turn with numpy's on the same data."""
from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def measure(run: Callable[[], object], seconds: float = 0.2) -> float:
    """Seconds per call: the best call within about `seconds`, at least 3."""
    best, spent, calls = float("inf"), 0.0, 0
    while calls < 3 or spent < seconds:
        start = time.perf_counter()
        run()
        elapsed = time.perf_counter() - start
        best, spent, calls = min(best, elapsed), spent + elapsed, calls + 1
    return best


def compare(m: int, n: int, k: int, rounds: int = 5) -> tuple[float, float]:
    """Best seconds of minigrad and of numpy for [m, k] @ [k, n]."""
    import minigrad
    from minigrad import Tensor

    random = np.random.default_rng(0)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    x, y = Tensor(a).realize(), Tensor(b).realize()

    def ours() -> None:
        (x @ y).contiguous().realize()
        minigrad.synchronize()

    ours()
    times = [(measure(ours), measure(lambda: a @ b)) for _ in range(rounds)]
    return min(t for t, _ in times), min(t for _, t in times)


def main(arguments: list[str]) -> int:
    """Arguments are sizes: 512 is a square, 64x1000x1280 is MxNxK."""
    for text in arguments or ["128", "512", "1024"]:
        sizes = [int(part) for part in text.split("x")]
        m, n, k = sizes * 3 if len(sizes) == 1 else sizes
        ours, numpys = compare(m, n, k)
        work = 2e-9 * m * n * k
        print(f"matmul {m}x{n}x{k} float32: {work / ours:8.2f} GFLOP/s, numpy {work / numpys:8.2f}, "
              f"time {ours / numpys:6.2f} x numpy's")
    return 0
