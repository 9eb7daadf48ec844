"""`rounding`: what rounding decides is no difference, and mistakes are, also in programs that amplify roundings.

In each program some elements are decided by rounding, and the last ones are not, or are exact.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support import random_graphs, rounding
from support.rounding import TorchErrors, assert_close, rounded_runs

from minigrad import Tensor
from minigrad.dtype import bfloat16, float16, float32
from minigrad.report.reduced.rounding import numpy_errors

try:
    import torch
except ImportError:
    torch = None

NUMBERS = np.random.default_rng(0).uniform(1, 2, (7, 33)).astype(np.float32)
SIGNED = NUMBERS * np.where(np.arange(33) % 2, 1, -1).astype(np.float32)
SCALES = np.array([1e12, 3e13, 1, 0.5], np.float32)[:, None]
LAST_OF_7 = np.array([0, 0, 0, 0, 0, 0, 1], np.float32)
NEARLY = np.where(np.arange(33) < 25, NUMBERS[0], 3)
QUARTERS = np.arange(-8, 9).astype(np.float32) / 4

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sine of large numbers": lambda T: ((T(NUMBERS[:4]) / 3) * T(SCALES)).sin(),
    "sign of a sum that cancels": lambda T: (
        ((T(NUMBERS) / 3).sum(1) - (T(NUMBERS).flip(1) / 3).sum(1) + T(LAST_OF_7)) * 1e9).clip(-1, 1),
    "quotient by a difference": lambda T: 1 / ((T(NUMBERS[0]) * T(NUMBERS[1])) / T(NUMBERS[1]) - T(NEARLY)),
    "comparison of a product": lambda T: T(NUMBERS[0]) / 3 * 3 > T(NEARLY),
    "sign of a zero": lambda T: 1 / (T(LAST_OF_7) * 8).maximum(T(-LAST_OF_7)),
    "cells of a steep function": lambda T: ((T(NUMBERS[:4]) / 7) * T(SCALES) % 5).round(),
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "bounds of clip": lambda T: (T(QUARTERS) * 4 / 2).clip(-1, 1) * 8,
    "comparisons of equal numbers": lambda T: T(QUARTERS) * 2 + 1 > T(QUARTERS + QUARTERS + 1),
    "sums": lambda T: (T(QUARTERS.reshape(1, 17)) * T(np.ones((5, 17), np.float32))).sum(1),
    "products of matrices": lambda T: T(QUARTERS.reshape(1, 17)) @ T(QUARTERS.reshape(17, 1)),
    "what is moved": lambda T: T(NUMBERS).T.flip(0).reshape(-1)[3:80],
}


def on_numpy(program: Callable[[Any], Any]) -> list[np.ndarray]:
    return [program(partial(Tensor, device="NUMPY")).numpy()]


def on_torch(program: Callable[[Any], Any]) -> list[np.ndarray]:
    return [program(torch.tensor).numpy()]


SIDES = [pytest.param(on_numpy, numpy_errors, id="NUMPY"),
         pytest.param(on_torch, TorchErrors, id="torch", marks=needs_torch)]


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake is compared with every run that there may be: these tests need not wait for all of them."""
    monkeypatch.setattr(rounding, "RUNS", 24)


@pytest.mark.parametrize("evaluate, errors", SIDES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_rounding_decides_is_no_difference(name: str, evaluate: Any, errors: Any) -> None:
    want, = evaluate(PROGRAMS[name])
    others = rounded_runs(lambda: evaluate(PROGRAMS[name]), errors)
    differing = 0
    for seed in range(1000, 1020):
        with errors(seed), np.errstate(all="ignore"):
            got, = evaluate(PROGRAMS[name])
        differing += int(not np.allclose(got, want, 1e-4, 1e-4))
        assert_close(got, want, 1e-4, 1e-4, name, partial(others, 0))
    assert differing, "expected a program whose result rounding decides"


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("evaluate, errors", SIDES)
@pytest.mark.parametrize("name", [*PROGRAMS, *EXACT])
def test_a_mistake_beside_it_is_found(name: str, evaluate: Any, errors: Any) -> None:
    program = (PROGRAMS | EXACT)[name]
    want, = evaluate(program)
    others = rounded_runs(lambda: evaluate(program), errors)
    got = want.copy()
    got.flat[-1] = not got.flat[-1] if got.dtype == bool else got.flat[-1] * 1.01 + 0.01
    with pytest.raises(AssertionError, match=name):
        assert_close(got, want, 1e-3, 1e-3, name, partial(others, 0))


@pytest.mark.parametrize("evaluate, errors", SIDES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_results_have_no_errors(name: str, evaluate: Any, errors: Any) -> None:
    with errors(1):
        moved, = evaluate(EXACT[name])
    np.testing.assert_array_equal(moved, *evaluate(EXACT[name]))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32])
def test_errors_are_of_the_size_of_a_rounding(dtype: Any) -> None:
    """Of a product one unit, of a sum one of the sum of its parts without their signs."""
    x, y = (Tensor(a, device="NUMPY").cast(dtype).realize() for a in (SIGNED, NUMBERS))

    def results() -> list[np.ndarray]:
        return [(x * y).float().numpy(), x.sum(1).float().numpy(), x.float().abs().sum(1).numpy()]

    product, total, parts = results()
    unit = {float16: 2.0 ** -10, bfloat16: 2.0 ** -7, float32: 2.0 ** -23}[dtype]
    with numpy_errors(5):
        moved_product, moved_total, _ = results()
    assert 0 < np.abs(moved_product / product - 1).max() <= 1.5 * unit
    assert 0 < np.abs(moved_total - total).max()
    assert (np.abs(moved_total - total) <= 1.5 * unit * np.abs(total) + 1.5 * 2.0 ** -23 * parts).all()


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("seed", range(2, 62, 6))
def test_a_wrong_element_of_a_random_program_is_found(seed: int) -> None:
    """Numbers of magnitudes up to 1e4; the last number is off by a quarter of the largest."""
    want, tolerance = random_graphs.results(seed, "NUMPY")
    others = rounded_runs(lambda: random_graphs.results(seed, "NUMPY")[0], numpy_errors)
    for k, value in enumerate(want):
        finite = np.isfinite(value)
        if value.dtype.kind == "f" and finite.any():
            got = value.copy()
            got.flat[np.flatnonzero(finite)[-1]] += max(np.abs(value[finite]).astype(np.float64).max(), 1) / 4
            with pytest.raises(AssertionError, match=f"seed {seed}"):
                random_graphs.close(got, value, tolerance, f"seed {seed}", partial(others, k))
