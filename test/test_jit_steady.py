"""Replays that find everything as the last one left it equal the function, and notice when something has changed."""
import numpy as np
import pytest

from minigrad import Tensor, config, jit, nn, optim
from minigrad.engine.stats import stats
from minigrad.nn.state import get_parameters


@pytest.fixture(autouse=True)
def device():
    with config(device="CPU"):
        yield


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def steady(function) -> bool:
    """Whether some call of a captured function left a state that the next one may find."""
    return any(c.steady is not None for c in function._own._kept)


class Net:
    def __init__(self, optimizer):
        Tensor.manual_seed(1)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3)
        self.optimizer = optimizer(get_parameters(self))

    def step(self, x, y):
        with Tensor.train():
            loss = self.last(self.norm(self.first(x)).relu()).cross_entropy(y)
            self.optimizer.zero_grad()
            loss.backward()
            Tensor.realize(loss, *self.optimizer.schedule_step())
        return loss


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
                                  lambda p: optim.Adam(p, lr=0.01)])
def test_a_training_step_is_one_call_and_settles(make):
    plain, net = Net(make), Net(make)
    captured = jit(net.step)
    classes = Tensor(np.arange(4, dtype=np.int32) % 3)
    for k in range(7):
        x = Tensor(random(4, 6, seed=k))
        expected, before = plain.step(x, classes).numpy(), stats.snapshot()
        np.testing.assert_array_equal(captured(x, classes).numpy(), expected)
        if k > 1:
            assert (stats.snapshot() - before).calls == 1 and steady(captured)
    for a, b in zip(get_parameters(plain), get_parameters(net), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        if a.grad is not None:
            np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy())


def test_what_somebody_holds_keeps_its_value():
    plain, net = Net(lambda p: optim.SGD(p, lr=0.1)), Net(lambda p: optim.SGD(p, lr=0.1))
    captured = jit(net.step)
    x, classes = Tensor(random(4, 6)), Tensor(np.arange(4, dtype=np.int32) % 3)
    for _ in range(3):
        plain.step(x, classes), captured(x, classes)
    assert steady(captured)
    weight, handle, lazy = net.first.weight, net.last.bias.grad, net.first.weight * 2
    values = weight.numpy(), handle.numpy()
    other = plain.first.weight * 2
    for _ in range(3):
        np.testing.assert_array_equal(captured(x, classes).numpy(), plain.step(x, classes).numpy())
    np.testing.assert_array_equal(handle.numpy(), values[1])
    np.testing.assert_array_equal(lazy.numpy(), other.numpy())
    np.testing.assert_array_equal(lazy.numpy(), values[0] * 2)
    np.testing.assert_array_equal(weight.numpy(), plain.first.weight.numpy())


def test_changes_from_outside_are_seen():
    scale, shift = Tensor(random(5)).realize(), Tensor(random(5, seed=1)).realize()
    add = jit(lambda x: x * scale + shift)
    x = Tensor(random(3, 5))
    for _ in range(3):
        add(x)
    assert steady(add)
    scale.assign(Tensor(random(5, seed=2))).realize()
    np.testing.assert_allclose(add(x).numpy(), x.numpy() * random(5, seed=2) + random(5, seed=1), rtol=1e-6)
    shift.assign(shift * 2)  # lazy when the call finds it
    np.testing.assert_allclose(add(x).numpy(), x.numpy() * random(5, seed=2) + 2 * random(5, seed=1), rtol=1e-6)
    np.testing.assert_allclose(add(x).numpy(), x.numpy() * random(5, seed=2) + 2 * random(5, seed=1), rtol=1e-6)
    assert steady(add) and add.captures == 1


@pytest.mark.parametrize("size", [7, 700_000])
def test_results_that_live_share_no_memory(size):
    double = jit(lambda x: (x * 2, x + 1))
    x = random(size)
    kept = [double(Tensor(x + k)) for k in range(5)]
    for k, (a, b) in enumerate(kept):
        np.testing.assert_array_equal(a.numpy(), (x + k) * 2)
        np.testing.assert_array_equal(b.numpy(), x + k + 1)
    addresses = {t._node.storage.address for pair in kept for t in pair}
    assert len(addresses) == 10


def test_a_state_that_goes_in_and_out():
    @jit
    def step(state):
        return state.assign(state * 0.5 + 1).realize(), state.sum()

    state, expected = Tensor(random(4)).realize(), random(4)
    for _ in range(5):
        out, total = step(state)
        before, expected = expected, (expected * np.float32(0.5) + 1).astype(np.float32)
        del before
        assert out is state
        np.testing.assert_allclose(state.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(total.numpy(), expected.sum(), rtol=1e-5)


def test_a_result_is_the_next_argument():
    step = jit(lambda h, x: (h @ x).tanh())
    h, x = Tensor(random(4, 4)), Tensor(random(4, 4, seed=1))
    expected = h.numpy()
    for _ in range(6):
        h = step(h, x)
        expected = np.tanh(expected @ x.numpy())
        np.testing.assert_allclose(h.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert step.captures <= 2


def test_a_value_that_moves_from_buffer_to_buffer():
    """The new value is a product with the old one, which therefore cannot be overwritten."""
    hidden, x = Tensor(random(4, 4)).realize(), Tensor(random(4, 4, seed=1)).realize()

    @jit
    def step():
        return hidden.assign((hidden @ x).tanh()).realize().sum()

    expected = random(4, 4)
    for _ in range(6):
        total = step()
        expected = np.tanh(expected @ x.numpy())
        np.testing.assert_allclose(hidden.numpy(), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(total.numpy(), expected.sum(), rtol=1e-4, atol=1e-5)


def test_gradients_that_accumulate():
    weight = Tensor(random(3), requires_grad=True)
    weight.grad = Tensor(np.zeros(3, np.float32))

    @jit
    def accumulate(x):
        (weight * x).sum().backward()
        weight.grad.realize()

    total = np.zeros(3, np.float32)
    for k in range(5):
        x = random(3, seed=k)
        accumulate(Tensor(x))
        total = total + x
        np.testing.assert_allclose(weight.grad.numpy(), total, rtol=1e-6)


def test_random_numbers_advance():
    draw = jit(lambda x: x + Tensor.rand(5))
    x = Tensor(np.zeros(5, np.float32))
    Tensor.manual_seed(3)
    eager = [Tensor.rand(5).numpy() for _ in range(5)]
    Tensor.manual_seed(3)
    for values in eager:
        np.testing.assert_array_equal(draw(x).numpy(), values)
