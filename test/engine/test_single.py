"""One operation over realized values, again and again: its plan is found by the Node's Kind, and is the same plan."""
import numpy as np
import pytest

from minigrad import Tensor, Variable, config, plan, profile
from minigrad.engine.compiled import forget_plans, plans
from minigrad.engine.stats import stats

pytestmark = pytest.mark.usefixtures("on_cpu")


def random(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape, np.float32)).realize()


def is_known(t: Tensor) -> bool:
    return t.node.kind in plans


def test_results_are_those_of_the_first_time():
    forget_plans()
    w = random(7, 5)
    for k in range(6):
        x = random(3, 7, seed=k)
        y = x @ w
        assert is_known(y) is (k >= 2)
        before = stats.snapshot()
        y.realize()
        counted = stats.snapshot() - before
        assert (counted.calls, counted.launches, counted.nodes) == (1, 1, 3)
        np.testing.assert_allclose(y.numpy(), x.numpy() @ w.numpy(), rtol=1e-5, atol=1e-5)


def test_operands_that_are_the_same_are_another_plan():
    x, y = random(6, 6), random(6, 6, seed=1)
    for pairs in ([(x, y)] * 4 + [(x, x)] * 4) * 2, [(x, x), (x, y), (y, y), (y, x)] * 4:
        for a, b in pairs:
            np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), rtol=1e-5, atol=1e-5)
    c = random(6, 6, seed=2) > 0
    for k, (a, b) in enumerate([(x, y), (x, x), (y, x), (y, y)] * 4):
        np.testing.assert_array_equal(c.where(a, b).numpy(), np.where(c.numpy(), a.numpy(), b.numpy()), str(k))


def test_operands_that_are_not_there_yet():
    x, w = random(6, 6), random(6, 6, seed=1)
    for _ in range(4):
        (x @ w).realize()
    lazy = x.exp()
    assert is_known(lazy @ w)
    np.testing.assert_allclose((lazy @ w).numpy(), np.exp(x.numpy()) @ w.numpy(), rtol=1e-5, atol=1e-5)
    old, parts = x.numpy(), [x @ w, x + 1]
    x.assign(w)
    np.testing.assert_allclose((x @ w).numpy(), w.numpy() @ w.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(parts[0].numpy(), old @ w.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(parts[1].numpy(), old + 1)


def test_who_watches_sees_it():
    x, w = random(6, 6), random(6, 6, seed=1)
    for _ in range(4):
        (x @ w).realize()
    with profile() as seen:
        (x @ w).realize()
    assert sum([row.count for row in seen.rows()]) == 1
    assert len(plan(lambda: (x @ w).realize()).kernels) == 1
    y = x @ w
    assert is_known(y) and y.node.storage is None


def test_settings_and_threads(capsys):
    x = random(300, 300)
    expected = [(x @ x).numpy() for _ in range(4)][-1]
    for threads in (1, 2, 3):
        with config(threads=threads):
            np.testing.assert_array_equal((x @ x).numpy(), expected)
    with config(debug=1):
        (x @ x).realize()
    said = capsys.readouterr()
    assert "realize on CPU: matmul" in said.err + said.out


def test_dims_without_a_size_are_not_kept():
    n, x = Variable("n", 1, 8), random(8, 4)
    for k in range(1, 9):
        part = x[:n.bind(k)].contiguous().realize()
        np.testing.assert_array_equal((part * part).numpy(), (x.numpy() ** 2)[:k])


def test_gradients_pass_through_it():
    for _ in range(4):
        x, w = random(3, 4), random(4, 2, seed=1)
        x.requires_grad_()
        y = (x @ w).realize()
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.ones((3, 2)) @ w.numpy().T, rtol=1e-5)


def test_results_share_no_memory():
    x, w = random(4, 4), random(4, 4, seed=1)
    held = [(random(4, 4, seed=k) @ w).realize() for k in range(8)]
    assert len({t.node.storage.address for t in held}) == 8
    again = [(x + 0.5 * k).realize() @ w for k in range(8)]
    for k, t in enumerate(again):
        np.testing.assert_allclose(t.numpy(), (x.numpy() + 0.5 * k) @ w.numpy(), rtol=1e-4, atol=1e-5)
