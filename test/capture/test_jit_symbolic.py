"""Captured functions with symbolic sizes: one capture serves every size."""
# Tests know their dims are ints.
# mypy: disable-error-code="union-attr"
import numpy as np
import pytest
from support.jit_steady import random

from minigrad import Tensor, Variable, jit

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_cache_with_a_symbolic_position():
    length, width = 8, 3
    position = Variable("pos", 0, length - 1)
    cache = Tensor.zeros(length, width).contiguous().realize()

    @jit
    def step(x, pos):
        cache[pos:pos + 1] = x
        return cache[:pos + 1].sum(axis=0)

    expected = np.zeros((length, width), np.float32)
    for k in [0, 1, 2, 3, 4, 2, 7]:
        x = random(1, width, seed=k)
        expected[k] = x
        result = step(Tensor(x), position.bind(k))
        np.testing.assert_allclose(result.numpy(), expected[:k + 1].sum(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(cache.numpy(), expected)
    assert (step.captures, step.replays) == (1, 6)


def test_symbolic_shapes_in_and_out():
    n = Variable("n", 1, 6)
    f = jit(lambda x: x * 2)
    base = random(6, 2)
    for k in (2, 5, 1, 6):
        out = f(Tensor(base)[:n.bind(k)])
        assert out.numpy().shape == (k, 2)
        np.testing.assert_array_equal(out.numpy(), base[:k] * 2)
        np.testing.assert_array_equal((out + 1).numpy(), base[:k] * 2 + 1)
    assert (f.captures, f.replays) == (1, 3)


def test_symbolic_extents_may_become_zero():
    n = Variable("n", 0, 6)

    @jit
    def f(x, y, pos):
        part = x[:pos] * 2
        return part, part.sum() + y.sum(), y + 1

    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).realize()
    for k in (2, 5, 0, 1, 0, 6):
        part, total, other = f(x, Tensor([float(k), 1.0]), n.bind(k))
        assert part.tolist() == [2.0 * (i + 1) for i in range(k)]
        assert total.item() == k * (k + 1) + k + 1 and other.tolist() == [k + 1, 2]
    assert (f.captures, f.replays) == (1, 5)


def test_variables_that_are_no_arguments_keep_their_value():
    n = Variable("n", 1, 6)

    @jit
    def f(x, k):
        return x[:n.bind(k)].sum()

    for k in (3, 3, 4):
        assert f(Tensor([1.0] * 6), k).item() == k
    assert (f.captures, f.replays) == (2, 1)
