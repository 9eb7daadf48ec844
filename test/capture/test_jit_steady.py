"""Replays that find everything as the last one left it equal the function, and notice when something has changed."""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.jit_steady import random, settled, steady

from minigrad import Tensor, jit, nn, optim
from minigrad.engine.stats import stats
from minigrad.nn.state import get_parameters

pytestmark = pytest.mark.usefixtures("on_cpu")


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
    addresses = {t.node.storage.address for pair in kept for t in pair}
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


# ---- what has not changed is not looked at again ----


def looks(function) -> int:
    """How often the state of a captured function was compared with the last one, cell by cell."""
    return function._own._kept[0].steady.looks


def test_calls_that_change_nothing_look_at_nothing():
    plain, net = Net(lambda p: optim.Adam(p, lr=0.01)), Net(lambda p: optim.Adam(p, lr=0.01))
    captured = jit(net.step)
    classes = Tensor(np.arange(4, dtype=np.int32) % 3)
    for k in range(8):
        x = Tensor(random(4, 6, seed=k))
        loss = captured(x, classes)
        if k == 4:
            before = looks(captured)
        np.testing.assert_array_equal(loss.numpy(), plain.step(Tensor(random(4, 6, seed=k)), classes).numpy())
    assert looks(captured) > before  # the plain step builds Nodes
    loss, before = captured(x, classes), looks(captured)
    for _ in range(3):
        loss = captured(Tensor(random(4, 6)), classes)
        loss.item()
    assert looks(captured) == before


CHANGES = {
    "assigned": lambda w, other: w.assign(other),
    "assigned and computed": lambda w, other: w.assign(other).realize(),
    "a part assigned": lambda w, other: w.__setitem__(0, other[1]),
    "replaced": lambda w, other: w.replace(other),
    "requires a gradient": lambda w, other: w.requires_grad_(True),
    "has a gradient": lambda w, other: setattr(w, "grad", other),
    "updated by another function": lambda w, other: jit(lambda: w.assign(other + 1).realize())(),
    "updated by a captured function": lambda w, other: [f() for f in [jit(lambda: w.assign(w * 2).realize())]
                                                        for _ in range(4)],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("overwritten", [False, True])
def test_every_change_is_noticed(change, overwritten):
    def run(captured: bool) -> list[np.ndarray]:
        w, other, x = (Tensor(random(3, 3, seed=k)).realize() for k in range(3))

        def step(x):
            result = (x @ w).relu()
            if overwritten:
                w.assign(w * 0.5 + 1)
            return Tensor.realize(result, w)

        step = jit(step) if captured else step
        found = []
        for k in range(9):
            found += [step(x).numpy(), w.numpy(), np.float32(w.requires_grad)]
            if k == 5:
                CHANGES[change](w, other)
        return found

    for ours, theirs in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_gradient_is_noticed():
    weight = Tensor(random(3), requires_grad=True)
    weight.grad = Tensor(random(3)).realize()
    step = settled(jit(lambda: weight.assign(weight - weight.grad).realize()))
    expected = weight.numpy()
    step()
    for k in range(1, 4):
        weight.grad = Tensor(random(3, seed=k)).realize()
        for _ in range(3):
            step()
    for k in [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]:
        expected = expected - random(3, seed=k)
    np.testing.assert_array_equal(weight.numpy(), expected)


@pytest.mark.parametrize("forgotten", ["all", "one"])
def test_gradients_that_are_forgotten_between_calls(forgotten):
    plain, net = (Net(lambda p: optim.SGD(p, lr=0.1, momentum=0.9)) for _ in range(2))
    captured, classes = jit(net.step), Tensor(np.arange(4, dtype=np.int32) % 3)
    for k in range(10):
        x = Tensor(random(4, 6, seed=k))
        np.testing.assert_array_equal(captured(x, classes).numpy(), plain.step(x, classes).numpy())
        if k % 4 == 3:  # as a loop does that has zero_grad() outside too
            assert steady(captured)
            if forgotten == "all":
                net.optimizer.zero_grad()
            else:
                net.last.bias.grad = None
    for a, b in zip(get_parameters(plain), get_parameters(net), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_gradients_that_are_arguments():
    """The captured step hands its arguments to an optimizer, which reads them where they lie."""
    def run(captured: bool) -> list[np.ndarray]:
        weights = [Tensor(random(3, seed=k), requires_grad=True) for k in range(2)]
        optimizer = optim.Adam(weights, lr=0.01)

        def step(gradients):
            for w, g in zip(weights, gradients, strict=True):
                w.grad = g
            optimizer.step()

        step = jit(step) if captured else step
        gradients, found = [Tensor(random(3, seed=k)).realize() for k in range(2, 4)], []
        for k in range(16):
            step(gradients)
            assert not captured or not 3 < k < 8 or steady(step)
            found += [w.numpy() for w in weights] + [g.numpy() for g in gradients]
            if k == 5:
                gradients[0].assign(gradients[0] * 2).realize()
            if k == 8:
                gradients = [Tensor(random(3, seed=k)).realize() for k in range(4, 6)]
            if k == 12:
                gradients = gradients[::-1]
        return found

    for ours, theirs in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_frozen_weight_gets_no_gradient():
    a, b = (Tensor(random(3, seed=k), requires_grad=True) for k in range(2))

    def step(x):
        a.grad = b.grad = None
        loss = (a * b * x).sum()
        loss.backward()
        Tensor.realize(loss, *(t.grad for t in (a, b) if t.grad is not None))

    x = Tensor(random(3, seed=2))
    step = settled(jit(step), x)
    a.requires_grad = False
    step(x)
    assert a.grad is None and b.grad is not None


def test_a_node_that_somebody_looks_at_keeps_its_value():
    w = Tensor(random(3)).realize()
    step = settled(jit(lambda: w.assign(w * 0.5 + 1).realize()))
    node, expected = w.lazydata, w.numpy()
    step()
    np.testing.assert_array_equal(Tensor.over(node).numpy(), expected)


@pytest.mark.parametrize("plans", [1, 2])
def test_a_value_that_another_function_moves(plans):
    """The other function gives `w` another buffer at each call, with one plan or more, and makes nothing else."""
    w, m, x = (Tensor(random(4, 4, seed=k)).realize() for k in range(3))

    @jit
    def move():
        w.replace((w @ m).tanh().realize())
        if plans > 1:
            return (w * 2).realize()

    add, expected = settled(jit(lambda x: x + w), x), w.numpy()
    for k in range(8):
        before = w.node.storage.address
        move()
        assert w.node.storage.address != before and (k < 2 or steady(move) is (plans == 1))
        expected = np.tanh(expected @ m.numpy())
        for _ in range(3):
            np.testing.assert_allclose(add(x).numpy(), x.numpy() + expected, rtol=1e-4, atol=1e-5)


def test_values_that_others_hold_are_not_overwritten():
    """Each way to hold on to a value from outside, taken while the state is steady."""
    ways = [lambda w: w * 2, lambda w: w.detach(), lambda w: Tensor(w), lambda w: w.reshape(-1), lambda w: w[0]]
    for hold in ways:
        w = Tensor(random(3, 3)).realize()
        step = jit(lambda: w.assign(w * 0.5 + 1).realize())  # noqa: B023
        for _ in range(4):
            step()
        assert steady(step)
        held, expected = hold(w), hold(Tensor(w.numpy())).numpy()
        for _ in range(3):
            step()
        np.testing.assert_array_equal(held.numpy(), expected)


def test_a_gradient_that_somebody_reads_is_not_overwritten():
    weight = Tensor(random(3), requires_grad=True)

    @jit
    def step(x):
        weight.grad = None
        (weight * x * 2).sum().backward()
        weight.grad.realize()

    for k in range(5):
        step(Tensor(random(3, seed=k)))
    assert steady(step)
    held = weight.grad
    step(Tensor(random(3, seed=9)))
    np.testing.assert_array_equal(held.numpy(), random(3, seed=4) * 2)
    np.testing.assert_array_equal(weight.grad.numpy(), random(3, seed=9) * 2)


def test_a_tensor_of_the_surroundings_that_is_gone():
    state = {"w": Tensor(random(3)).realize()}
    step = jit(lambda x: x + state["w"])
    x = Tensor(random(3, seed=1))
    for _ in range(4):
        step(x)
    state["w"] = Tensor(random(3, seed=2)).realize()
    np.testing.assert_array_equal(step(x).numpy(), random(3, seed=1) + random(3, seed=2))


# ---- outputs that are handed out again ----


def test_a_result_that_died_lends_its_memory():
    double = jit(lambda x: x * 2)
    x = Tensor(random(100))
    for _ in range(4):
        double(x)
    places = {double(x).node.storage.address for _ in range(4)}
    assert len(places) == 1
    held, used = double(x), stats.mem_used
    values = held.numpy()
    assert {double(Tensor(random(100, seed=k))).node.storage.address for k in range(3)} not in places
    np.testing.assert_array_equal(held.numpy(), values)
    for _ in range(3):
        double(x)
    assert stats.mem_used <= used + 400


def test_a_result_becomes_state():
    """A result that another function overwrites in place, and one that becomes the value of a Tensor."""
    double, step = jit(lambda x: x * 2), jit(lambda s: s.assign(s + 1).realize())
    kept = Tensor(random(5)).realize()
    add = jit(lambda x: kept.assign(kept + x).realize())
    expected = random(5)
    for k in range(6):
        x = random(5, seed=k)
        s = step(double(Tensor(x)))
        np.testing.assert_array_equal(s.numpy(), x * 2 + 1)
        if k == 3:
            kept.replace(double(Tensor(x)))
            expected = x * 2
        add(Tensor(x))
        expected = expected + x
        np.testing.assert_array_equal(kept.numpy(), expected)
        np.testing.assert_array_equal(s.numpy(), x * 2 + 1)
    assert steady(step) and steady(add)


def test_results_in_threads_share_no_memory():
    double = jit(lambda x: x * 2)
    inputs = [Tensor(random(50, seed=k)).realize() for k in range(4)]
    for x in inputs:
        double(x)
    wrong = []

    def work(k: int) -> None:
        for _ in range(200):
            if not np.array_equal(double(inputs[k]).numpy(), random(50, seed=k) * 2):
                wrong.append(k)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


@pytest.mark.parametrize("size", [5, 600_000])
def test_donated_results_are_written_again(size):
    """Small results and those too large to be kept as spares; what is not donated keeps its value."""
    x = [Tensor(np.full(size, k, np.float32)).realize() for k in range(6)]
    donated, kept = jit(lambda t: t * 2 + 1, donate=True), jit(lambda t: t * 2 + 1)
    for k in range(4):
        donated(x[k]), kept(x[k])
    held, own = donated(x[4]), kept(x[4])
    assert held.numpy()[0] == own.numpy()[0] == 9
    assert donated(x[5]).numpy()[-1] == kept(x[5]).numpy()[-1] == 11
    assert held.numpy()[0] == 11 and own.numpy()[0] == 9


def test_a_donated_result_that_is_read_is_not_written_over():
    """The state of a loop: each call reads what the last one returned, at places that are not its own."""
    step = jit(lambda t, n: (t.flip(0) + t * 2, n * 2 + t.sum()), donate=True)
    t, n = Tensor(random(9)).realize(), Tensor(np.ones(3, np.float32)).realize()
    a, b = t.numpy(), n.numpy()
    for _ in range(8):
        t, n = step(t, n)
        a, b = a[::-1] + a * 2, b * 2 + a.sum()
        np.testing.assert_allclose(t.numpy(), a, rtol=1e-5)
        np.testing.assert_allclose(n.numpy(), b, rtol=1e-4)
    assert step.captures == 1


def test_donated_parameters_and_gradients_are_not_written_over():
    """What a function rebinds is no result: it keeps memory of its own."""
    plain, net = Net(lambda p: optim.SGD(p, lr=0.1)), Net(lambda p: optim.SGD(p, lr=0.1))
    captured, classes = jit(net.step, donate=True), Tensor(np.arange(4, dtype=np.int32) % 3)
    losses = []
    for k in range(6):
        x = Tensor(random(4, 6, seed=k))
        losses.append(captured(x, classes))
        np.testing.assert_array_equal(losses[-1].numpy(), plain.step(x, classes).numpy())
    assert losses[-1].numpy() == losses[-2].numpy()
    for a, b in zip(get_parameters(plain), get_parameters(net), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
