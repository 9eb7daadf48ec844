"""The order of kernels: after what they need, with little in memory, the same at every time."""
import random

import numpy as np

import minigrad
from minigrad import Tensor
from minigrad.scheduler.order import depth_first, lean_order


def test_every_kernel_comes_after_what_it_needs() -> None:
    rng = random.Random(4)
    for _ in range(200):
        n = rng.randint(1, 40)
        needs: list[set[int]] = [set() for _ in range(n)]
        for g in range(n):
            for _ in range(rng.randint(0, 3)):
                if g + 1 < n:
                    needs[g].add(rng.randint(g + 1, n - 1))
        makes = {g: float(rng.randint(0, 5)) for g in range(n)}
        reads = {g: {d for d in needs[g] if rng.random() < 0.8} for g in range(n)}
        order = lean_order(needs, list(range(n)), makes, reads)
        place = {g: i for i, g in enumerate(order)}
        assert sorted(order) == list(range(n)) and order == lean_order(needs, list(range(n)), makes, reads)
        assert all(place[d] < place[g] for g in range(n) for d in needs[g])


def test_without_a_difference_in_memory_it_is_a_depth_first_walk() -> None:
    needs = [{1, 2}, {3}, {4}, set(), set()]
    free = {g: 0.0 for g in range(5)}
    assert lean_order(needs, [0], free, {g: set() for g in range(5)}) == depth_first(needs, [0])


def test_branches_run_one_after_the_other() -> None:
    """Each branch has a large value that two kernels read; all branches at once would hold eight of them."""
    n, x = 1 << 16, Tensor(np.ones(1 << 16, np.float32), device="CPU").realize()
    low, high = [], []
    for k in range(8):
        y = (x[64 * k:] * 2).contiguous()
        low.append(y.sum())
        high.append((y[::2] - y[1::2]).max())
    found = minigrad.plan([*low, *high])
    assert found.peak_bytes < 4 * 4 * n
