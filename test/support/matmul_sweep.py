"""Matrix products of all sizes around those of register tiles, against float64.

Every M, N and K of SIZES with neither, either and both operands transposed: half an hour, so that the suite takes a
sample. To run all of it: `PYTHONPATH=. python test/support/matmul_sweep.py`.
"""
from __future__ import annotations

import itertools

import numpy as np

from minigrad import Tensor

SIZES = (*range(1, 10), 15, 16, 17, 31, 32, 33, 47, 48, 49, 70)
TOLERANCE = 4e-7
"""Of the sum of magnitudes, per product."""


def check(m: int, n: int, k: int, random: np.random.Generator) -> None:
    """Raises AssertionError where a product of these sizes is wrong, however its operands lie in memory."""
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    exact, scale = a.astype(np.float64) @ b, np.abs(a) @ np.abs(b)
    for left, right in itertools.product((False, True), repeat=2):
        x = Tensor(np.ascontiguousarray(a.T), device="CPU").transpose() if left else Tensor(a, device="CPU")
        y = Tensor(np.ascontiguousarray(b.T), device="CPU").transpose() if right else Tensor(b, device="CPU")
        error = np.abs((x @ y).numpy() - exact)
        wrong = (error > TOLERANCE * scale + 1e-7).any()
        assert not wrong, f"{m}x{n}x{k}, transposed {left} {right}: off by {error.max()}"


def main() -> None:
    random = np.random.default_rng(0)
    for m in SIZES:
        for n, k in itertools.product(SIZES, SIZES):
            check(m, n, k, random)
        print(f"M={m}: {4 * len(SIZES) ** 2} products are right", flush=True)


if __name__ == "__main__":
    main()
