"""`checkpoint`: the same gradients with less memory, random numbers and running statistics as without."""
import numpy as np
import pytest

import minigrad
from minigrad import Tensor, jit, nn
from minigrad.errors import MinigradError
from minigrad.nn.state import get_parameters
from minigrad.utils.checkpoint import checkpoint, checkpoint_sequential


def block(up, norm, down, x):
    return x + down(norm(up(x)).gelu().dropout(0.2))


def trained(wrap, captured):
    minigrad.manual_seed(1)
    layers = [(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 16)) for _ in range(4)]
    optimizer = nn.optim.SGD(get_parameters(layers), lr=0.1)
    x = Tensor(np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)).realize()

    def step(x):
        optimizer.zero_grad()
        for up, norm, down in layers:
            x = wrap(block, up, norm, down, x)
        loss = x.square().mean()
        loss.backward()
        Tensor.realize(loss, *optimizer.schedule_step())
        return loss

    with Tensor.train():
        peak = minigrad.plan(step, x).peak_bytes
        run = jit(step) if captured else step
        return [run(x).item() for _ in range(3)], [t.numpy() for t in get_parameters(layers)], peak


@pytest.mark.parametrize("captured", [False, True])
def test_training_is_the_same_with_less_memory(captured):
    losses, weights, peak = trained(lambda f, *args: f(*args), captured)
    again, found, less = trained(lambda f, *args: checkpoint(f, *args, use_reentrant=False), captured)
    assert losses == again and less < 0.8 * peak
    assert all(np.array_equal(a, b) for a, b in zip(weights, found, strict=True))


def test_several_results_and_other_values():
    x, w = Tensor.randn(3, 4, requires_grad=True), Tensor.randn(4, 4, requires_grad=True)

    def function(x, scale=1.0):
        h = (x @ w).tanh()
        return h * scale, h.sum(), "label"

    a, b, label = checkpoint(function, x, scale=2.0)
    (a.square().sum() + b * 3).backward()
    got = x.grad.numpy(), w.grad.numpy()
    x.grad = w.grad = None
    a, b, _ = function(x, scale=2.0)
    (a.square().sum() + b * 3).backward()
    assert label == "label"
    for mine, expected in zip(got, (x.grad, w.grad), strict=True):
        np.testing.assert_allclose(mine, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_match_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs torch to compare with")
    from torch.utils.checkpoint import checkpoint as of_torch

    x, w = (np.random.default_rng(k).standard_normal((5, 5)).astype(np.float32) for k in range(2))
    mine = [Tensor(a, requires_grad=True) for a in (x, w)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w)]
    y = checkpoint(lambda a: (a @ mine[1]).sigmoid() @ mine[1], mine[0])
    (y * y).sum().backward()
    z = of_torch(lambda a: (a @ theirs[1]).sigmoid() @ theirs[1], theirs[0], use_reentrant=False)
    (z * z).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_nested_and_without_gradients():
    x = Tensor.randn(4, requires_grad=True)
    y = checkpoint(lambda a: checkpoint(lambda b: b.exp().sin(), a).exp(), x)
    y.sum().backward()
    v = x.numpy().astype(np.float64)
    np.testing.assert_allclose(x.grad.numpy(), np.exp(np.sin(np.exp(v))) * np.cos(np.exp(v)) * np.exp(v), rtol=1e-4)
    with Tensor.no_grad():
        assert not checkpoint(Tensor.exp, x).requires_grad
    assert checkpoint(lambda a: a, x) is not None and checkpoint(lambda: 3) == 3


def test_sequences():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = Tensor.randn(3, 4)
    model(x).sum().backward()
    expected = [t.grad.numpy() for t in get_parameters(model)]
    for t in get_parameters(model):
        t.grad = None
    checkpoint_sequential(model, 2, x).sum().backward()
    for t, e in zip(get_parameters(model), expected, strict=True):
        np.testing.assert_allclose(t.grad.numpy(), e, rtol=1e-6)
    with pytest.raises(MinigradError, match="expected 1 to 5 segments, got 9"):
        checkpoint_sequential(model, 9, x)
    with pytest.raises(MinigradError, match="expected a function"):
        checkpoint(3)


def test_accumulated_gradients_are_those_of_one_batch():
    model, data = nn.Linear(6, 3), np.random.default_rng(2).standard_normal((8, 6)).astype(np.float32)
    optimizer = nn.optim.SGD(get_parameters(model), lr=0.0)

    @jit
    def part(x):
        (model(x).square().mean() / 4).backward()

    model(Tensor(data)).square().mean().backward()
    whole = [p.grad.numpy() for p in get_parameters(model)]
    for _ in range(3):
        optimizer.zero_grad()
        for k in range(4):
            part(Tensor(data[2 * k:2 * k + 2]))
        for p, expected in zip(get_parameters(model), whole, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), expected, rtol=1e-5, atol=1e-7)
