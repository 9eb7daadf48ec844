"""`jit` of training steps: replays equal eager runs bit for bit, random numbers advance, gradients keep their state."""
# Tests know their dims are ints.
# mypy: disable-error-code="union-attr"

import numpy as np
import pytest
from conftest import devices
from support.jit_steady import random

from minigrad import Tensor, config, jit, manual_seed, nn, optim, show


@pytest.fixture(autouse=True, params=["CPU"])
def device(request):
    with config(device=request.param):
        yield request.param


def same(a: Tensor, b: Tensor) -> None:
    np.testing.assert_array_equal(a.numpy(), b.numpy())


class Net:
    def __init__(self, seed=1):
        manual_seed(seed)
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3)

    def __call__(self, x):
        return self.second(self.norm(self.first(x)).relu().dropout(0.25))


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
}


def training(kind: str, captured: bool, zero_grad: bool = True, steps: int = 6) -> tuple[list, int]:
    """Everything that `steps` steps of training change, and the number of replays."""
    net = Net()
    opt = OPTIMIZERS[kind](nn.state.get_parameters(net))

    def step(x, y):
        with Tensor.train():
            loss = net(x).cross_entropy(y)
            if zero_grad:
                opt.zero_grad()
            loss.backward()
            opt.step()
        return loss

    step = jit(step) if captured else step
    manual_seed(7)
    found = []
    for k in range(steps):
        if k == 4:
            opt.lr = 0.001
        x, y = random(5, 6, seed=k), np.arange(5, dtype=np.int32) % 3
        found.append(step(Tensor(x), Tensor(y)).numpy())
    found += [t.numpy() for t in nn.state.get_state_dict(net).values()]
    found += [p.grad.numpy() for p in opt.params]
    for name in ("velocities", "means", "variances"):
        found += [t.numpy() for t in getattr(opt, name, [])]
    return found, step.replays if captured else 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("zero_grad", [True, False])
def test_training_equals_eager_bit_for_bit(kind, zero_grad):
    eager, _ = training(kind, False, zero_grad)
    captured, replays = training(kind, True, zero_grad)
    assert replays == 4 and len(eager) == len(captured)
    for a, b in zip(eager, captured, strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_numbers_advance_and_follow_the_seed():
    f = jit(lambda x: (x + Tensor.rand(50), Tensor.rand(2)))
    x = Tensor.zeros(50).contiguous().realize()
    manual_seed(3)
    first = [f(x)[0].numpy() for _ in range(3)] + [Tensor.rand(4).numpy()]
    assert f.replays == 2 and not np.array_equal(first[1], first[2])
    manual_seed(3)
    again = [f(x)[0].numpy() for _ in range(3)] + [Tensor.rand(4).numpy()]
    with config(jit=False):
        manual_seed(3)
        eager = [f(x)[0].numpy() for _ in range(3)] + [Tensor.rand(4).numpy()]
    for a, b, c in zip(first, again, eager, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, c)


def test_a_seed_set_inside_runs_eagerly():
    @jit
    def f():
        manual_seed(1)
        return Tensor.rand(3)

    assert f().tolist() == f().tolist() == f().tolist()
    assert f.replays == 0 and "seed" in f.last_reason


def test_gradients_of_arguments():
    @jit
    def f(x):
        (x * x).sum().backward()

    for k in range(3):
        x = Tensor([1.0 + k, 2.0], requires_grad=True)
        f(x)
        assert x.grad.tolist() == [2 + 2 * k, 4]
        f(x)
        assert x.grad.tolist() == [4 + 4 * k, 8]
    assert (f.captures, f.replays) == (2, 4)


def test_an_optimizer_step_alone():
    w = Tensor([1.0, 2.0], requires_grad=True)
    opt = optim.SGD([w], lr=0.5)
    step = jit(opt.step)
    for _ in range(4):
        opt.zero_grad()
        (w * w).sum().backward()
        step()
    assert w.tolist() == [0, 0] and step.replays == 3


def test_gradients_that_are_held_stay_as_they_were():
    w = Tensor([1.0, 2.0], requires_grad=True)

    @jit
    def f(x):
        w.grad = None
        (w * x).sum().backward()

    held, lazy = [], []
    for k in range(5):
        f(Tensor([float(k), 1.0]))
        (held if k % 2 else lazy).append(w.grad if k % 2 else w.grad * 2)
    assert [g.tolist() for g in held] == [[1, 1], [3, 1]] and [g.tolist() for g in lazy] == [[0, 2], [4, 2], [8, 2]]
    assert (f.captures, f.replays) == (2, 3)


def test_gradients_are_scaled_in_place():
    w = Tensor([1.0, 2.0], requires_grad=True)

    @jit
    def f(x):
        (w * x).sum().backward()
        w.grad.assign(w.grad * 0.5)

    expected = np.zeros(2)
    for k in range(5):
        f(Tensor([float(k), 1.0]))
        expected = (expected + np.array([k, 1])) * 0.5
        assert w.grad.tolist() == expected.tolist()
    assert (f.captures, f.replays) == (2, 3)


@pytest.mark.parametrize("name", [d for d in devices() if d != "CPU"])
def test_other_devices(name):
    w = Tensor(random(3, 2), device=name, requires_grad=True)
    opt = optim.SGD([w], lr=0.1, momentum=0.9)

    @jit
    def step(x):
        loss = (x @ w).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    reference, velocity = random(3, 2).astype(np.float64), 0.0
    for k in range(4):
        x = random(4, 3, seed=k).astype(np.float64)
        loss = step(Tensor(x.astype(np.float32), device=name)).item()
        assert loss == pytest.approx(np.square(x @ reference).sum(), rel=1e-4)
        velocity = 0.9 * velocity + 2 * x.T @ x @ reference
        reference = reference - 0.1 * velocity
    np.testing.assert_allclose(w.numpy(), reference, rtol=1e-3, atol=1e-4)
    assert step.replays == (0 if name == "NUMPY" else 2)


def test_a_constant_that_was_looked_at_elsewhere_stays_one():
    """An equal constant that is in memory, or is put there by the same plan, does not change how others are computed:
    their last bits would depend on what else there is."""
    with config(device="CPU"):
        x = random(8, 6, seed=1)

        def normalised():
            return (Tensor(x) * 3).batchnorm_train(None, None)[0]

        lazy = normalised()
        expected = show(lazy, stage="kernels")
        held = Tensor.ones(6).realize()
        assert show(lazy, stage="kernels") == expected and held.numpy().tolist() == [1] * 6
        kept, before = Tensor.ones(6).contiguous(), lazy.numpy().tobytes()
        again = normalised()
        Tensor.realize(kept, again)
        assert again.numpy().tobytes() == before and kept.numpy().tolist() == [1] * 6
        one = Tensor.ones(6, requires_grad=True)
        y = one * 2
        one.realize()
        y.sum().backward()
        assert one.grad.tolist() == [2] * 6
