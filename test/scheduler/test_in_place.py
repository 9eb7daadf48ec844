"""Large temporaries are overwritten by elementwise kernels that read them last."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import devices

import minigrad
from minigrad import Tensor
from minigrad.codegen.kernel.text import print_kernel
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import Schedule, schedule

ROWS, COLUMNS = 1024, 2048  # of float32: just large enough


def scheduled(*tensors: Tensor) -> Schedule:
    return schedule(build_graph([t.node for t in tensors]), frozenset(), get_device("CPU").target)


def updates(made: Schedule) -> list[str]:
    """Names of the kernels that store over what they read."""
    return [s.kernel.name for s in made.steps if any(p.mode == "inout" for p in s.kernel.params)]


def large(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> tuple[Tensor, np.ndarray]:
    """A sum of two transposed arrays, kept in memory: a temporary."""
    a, b = np.random.default_rng(seed).standard_normal((2, columns, rows), np.float32)
    return (Tensor(a).realize() + Tensor(b).realize()).T.contiguous(), (a + b).T


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x with the mean of all of it taken away, and the mean: two kernels that read x."""
    mean = x.mean()
    return (x - mean).exp(), mean


def test_the_last_reader_stores_over_its_operand() -> None:
    x, _ = large(0)
    made = scheduled(normalised(x)[0])
    assert len(updates(made)) == 1
    assert sum(p.mode == "inout" for s in made.steps for p in s.kernel.params) == 1
    step = next(s for s in made.steps if s.kernel.params[0].mode == "inout")
    assert step.values[0] == made.outputs[0], "the operand lies where the result will be"
    assert "inout o0" in print_kernel(step.kernel) and "exp(o0[" in print_kernel(step.kernel)


@pytest.mark.parametrize("device", devices())
def test_numbers_stay(device: str) -> None:
    with minigrad.config(device=device):
        x, expected = large(1)
        y, mean = normalised(x)
        result = (y * 2 + mean).sum(0)
        np.testing.assert_allclose(result.numpy(), (np.exp(expected - expected.mean()) * 2 + expected.mean()).sum(0),
                                   rtol=1e-4)


def test_sizes_that_vectors_do_not_divide() -> None:
    x, expected = large(2, 1031, 2053)
    assert updates(scheduled(normalised(x)[0]))
    np.testing.assert_allclose(normalised(x)[0].numpy(), np.exp(expected - expected.mean()), rtol=1e-4)


KEPT: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "asked for": lambda x: [x, normalised(x)[0]],
    "read later": lambda x: [(x @ (x.T @ normalised(x)[0]))],
    "flipped": lambda x: [(x - x.mean()).exp() + x.flip(0).cos()],
    "another type": lambda x: [(x - x.mean()).exp().half()],
    "small": lambda x: [normalised((x[:8] + 1).T.contiguous())[0]],
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_still_needed_stays(case: str) -> None:
    x, _ = large(3)
    for step in scheduled(*KEPT[case](x)).steps:
        assert all(p.mode != "inout" for p in step.kernel.params), print_kernel(step.kernel)


def test_the_peak_of_memory_is_lower() -> None:
    """Two values at a time instead of three: x and what is summed of it."""
    x, _ = large(4)
    nbytes = 4 * ROWS * COLUMNS
    y = (normalised(x)[0] * 3).T.contiguous().sum(0)
    planned = minigrad.plan(y)
    assert planned.peak_bytes < 4.5 * nbytes, str(planned)


def test_rows_are_put_where_their_target_lies() -> None:
    """x[places] = y stores the rows of y and copies nothing."""
    target, places = Tensor.zeros(64, 8).contiguous().realize(), Tensor(np.array([3, 60], np.int32)).realize()
    before = target.node
    target[places] = Tensor.ones(2, 8)
    graph = build_graph([target.node])
    made = schedule(graph, frozenset([graph.position[before]]), get_device("CPU").target)
    assert [s.kernel.name for s in made.steps] == ["scatter"] and made.donated == {graph.position[before]}
    assert made.outputs == (made.steps[0].values[0],)


@pytest.mark.parametrize("device", devices())
def test_rows_that_are_put_while_others_read_the_old_ones(device: str) -> None:
    """What is computed from the old version, before or in the same plan, has its values."""
    start, rows = np.arange(32, dtype=np.float32).reshape(8, 4), np.array([5, 1], np.int32)
    with minigrad.config(device=device):
        for read in (lambda x: x * 2, lambda x: x.sum(0), lambda x: x[Tensor(rows)] + 1):
            target = Tensor(start).realize()
            old, places = read(target), Tensor(rows)
            target[places] = target[places] * 10
            new = target + 1
            Tensor.realize(target, old, new)
            expected = start.copy()
            expected[rows] *= 10
            np.testing.assert_array_equal(target.numpy(), expected)
            np.testing.assert_array_equal(new.numpy(), expected + 1)
            np.testing.assert_array_equal(old.numpy(), read(Tensor(start)).numpy())
            target[places] = 0
            target[places] = target[places] - 1  # twice in one plan
            expected[rows] = -1
            np.testing.assert_array_equal(target.numpy(), expected)
