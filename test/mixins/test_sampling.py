"""randperm, bernoulli, multinomial: right ranges, right shares, the same numbers on every device."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, jit
from minigrad.errors import DTypeError, ShapeError


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("n", [0, 1, 2, 50, 3000])
def test_randperm(n: int, device: str) -> None:
    Tensor.manual_seed(3)
    order = Tensor.randperm(n, device=device).numpy()
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    Tensor.manual_seed(3)
    np.testing.assert_array_equal(Tensor.randperm(n, device="NUMPY").numpy(), order)
    assert n < 50 or not np.array_equal(order, np.arange(n))


def test_every_order_of_three_is_as_likely() -> None:
    Tensor.manual_seed(0)
    draw = jit(lambda: Tensor.randperm(3))
    orders = [tuple(draw().tolist()) for _ in range(600)]
    counts = [orders.count(o) for o in sorted(set(orders))]
    assert len(counts) == 6 and min(counts) > 60  # 100 is expected, 9 the standard deviation


@pytest.mark.parametrize("device", devices())
def test_bernoulli(device: str) -> None:
    Tensor.manual_seed(1)
    p = np.repeat(np.array([0, 0.25, 1], np.float32), 4000)
    drawn = Tensor(p, device=device).bernoulli()
    assert drawn.dtype.name == "float32"
    none, quarter, each = drawn.numpy().reshape(3, 4000)
    assert none.max() == 0 and each.min() == 1 and set(quarter) == {0, 1}
    assert abs(quarter.mean() - 0.25) < 0.03  # over four standard deviations
    with pytest.raises(DTypeError, match="expected probabilities of a float type, got int32"):
        Tensor([1, 0]).bernoulli()


@pytest.mark.parametrize("device", devices())
def test_multinomial_with_replacement(device: str) -> None:
    Tensor.manual_seed(2)
    weights = np.array([[0, 1, 3, 0], [5, 0, 0, 0]], np.float32)  # sums need not be 1
    drawn = Tensor(weights, device=device).multinomial(4000, replacement=True)
    assert drawn.shape == (2, 4000) and drawn.dtype.name == "int32"
    first, second = drawn.numpy()
    assert set(first) == {1, 2} and abs((first == 2).mean() - 0.75) < 0.03 and set(second) == {0}
    single = Tensor(weights[0], device=device).multinomial(5, replacement=True)
    assert single.shape == (5,) and set(single.tolist()) <= {1, 2}


@pytest.mark.parametrize("device", devices())
def test_multinomial_without_replacement(device: str) -> None:
    Tensor.manual_seed(4)
    weights = Tensor(np.tile(np.array([1, 0, 2, 1], np.float32), (3000, 1)), device=device)
    drawn = weights.multinomial(3).numpy()
    np.testing.assert_array_equal(np.sort(drawn, 1), np.tile([0, 2, 3], (3000, 1)))
    assert abs((drawn[:, 0] == 2).mean() - 0.5) < 0.04
    # Then 1 of 2 for what is left: 2 first leaves 0 and 3 alike; 0 first leaves 2 and 3 as 2 to 1.
    after = drawn[drawn[:, 0] == 0][:, 1]
    assert abs((after == 2).mean() - 2 / 3) < 0.07


def test_a_captured_draw_is_a_new_one_each_time() -> None:
    draw = jit(lambda w: w.multinomial(1))
    weights = Tensor(np.ones(50, np.float32))
    assert len({draw(weights).item() for _ in range(20)}) > 5


def test_mistakes() -> None:
    with pytest.raises(ShapeError, match=r"\[multinomial\] expected float weights \[C\] or \[N, C\], got int32 \[2\]"):
        Tensor([1, 2]).multinomial(1)
    with pytest.raises(ShapeError, match=r"\[topk\] expected k of at most 2, got 3"):
        Tensor([1.0, 2.0]).multinomial(3)
    with pytest.raises(ShapeError, match="of at least one class"):
        Tensor.zeros(2, 0).multinomial(1)
    for count in (0, -1):
        with pytest.raises(ShapeError, match=r"\[multinomial\] expected num_samples"):
            Tensor([1.0, 2.0]).multinomial(count)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("bad", [-1.0, math.inf, -math.inf, math.nan, None])
def test_weights_that_are_refused(bad: float | None, replacement: bool) -> None:
    """Where values are read; else something is drawn."""
    weights = Tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0] if bad is None else [1.0, bad, 1.0]])
    assert weights.multinomial(2, replacement).shape == (2, 2)
    with config(check_indices=True), pytest.raises(ShapeError, match=r"\[multinomial\] expected finite weights of 0"):
        weights.multinomial(2, replacement)
    with config(check_indices=True):
        assert weights[:1].multinomial(2, replacement).shape == (1, 2)
        wrong: Any
        for wrong in ({"fweights": Tensor([1, -1, 2])}, {"aweights": Tensor([1.0, -1.0, 2.0])}):
            with pytest.raises(ShapeError, match=r"\[cov\] expected weights of 0 or more"):
                Tensor.ones(2, 3).cov(**wrong)
