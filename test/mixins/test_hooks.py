"""Functions that `backward` calls with gradients: of leaves and of results, eager and inside `jit`, against torch."""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, config, jit, nn
from minigrad.errors import MinigradError, ShapeError

try:
    import torch
except ImportError:
    torch = None

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def of_a_result(x: Any) -> None:
    h = x * 2
    y = h.exp()
    h.register_hook(lambda g: g * 10)  # used before already
    h.register_hook(lambda g: g + 1)
    h.retain_grad()
    (y * h).sum().backward()
    x.grad = x.grad + h.grad


def of_a_leaf(x: Any) -> None:
    kept = x.register_hook(lambda g: g * 3)
    x.register_hook(lambda g: None)
    (x * x).sum().backward()
    kept.remove()
    x.sum().backward()


def of_the_last_result(x: Any) -> None:
    y = (x * x).sum()
    y.register_hook(lambda g: g * 5)
    y.backward()


def retained_twice(x: Any) -> None:
    h = x * 3
    h.retain_grad()
    (h * h).sum().backward(retain_graph=True)
    h.sin().sum().backward()
    x.grad = x.grad * h.grad


def after_accumulation(x: Any) -> None:
    def halve(t: Any) -> None:
        t.grad = t.grad * 0.5

    x.register_post_accumulate_grad_hook(halve)
    (x * x).sum().backward()
    (x * x).sum().backward()


@needs_torch
@pytest.mark.parametrize("run", [of_a_result, of_a_leaf, of_the_last_result, retained_twice, after_accumulation])
def test_as_torch(run: Callable[[Any], None]) -> None:
    with config(device="NUMPY"):
        ours, theirs = Tensor(X, requires_grad=True), torch.tensor(X, requires_grad=True)
        run(ours)
        run(theirs)
        assert ours.grad is not None
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    """What hooks compute is part of a capture, and a change of a leaf's hooks makes another one."""
    with config(device=device):
        w = Tensor([1.0, 2.0, 3.0], requires_grad=True)

        @jit
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            w.grad = None
            h = w * x
            h.register_hook(lambda g: g.clamp(-4, 4))
            h.retain_grad()
            (h * h).sum().backward()
            assert w.grad is not None and h.grad is not None
            return w.grad, h.grad

        x = np.array([1.0, 1.5, 0.5], np.float32)
        for scale, change in [(1, None), (3, lambda g: g * 3), (1, None)]:
            handle = None if change is None else w.register_hook(change)
            for k in range(1, 5):
                given = x * k
                clipped = np.clip(2 * given * np.array([1, 2, 3]), -4, 4)
                got, inner = step(Tensor(given).realize())
                np.testing.assert_allclose(inner.numpy(), clipped, rtol=1e-6)
                np.testing.assert_allclose(got.numpy(), clipped * given * scale, rtol=1e-6)
            if handle is not None:
                handle.remove()
        assert step.captures in (2, 3) and step.last_reason == "a tensor of shape [3] has other hooks now"


def test_a_leaf_stays_one_with_its_hooks() -> None:
    with config(device="CPU"):
        w = Tensor([1.0, 2.0], requires_grad=True)
        w.register_hook(lambda g: g + 1)
        assert w.requires_grad is True and w.is_leaf
        optimizer = nn.optim.SGD([w], lr=1.0)
        with Tensor.train():
            (w * w).sum().backward()
            optimizer.step()
        assert w.tolist() == [-2, -3]
        w.requires_grad_().realize()
        assert w.sum().gradient(w)[0].tolist() == [2, 2]
        y = Tensor.zeros(2)
        y.assign(w)
        assert y.requires_grad is True and y.sum().gradient(y)[0].tolist() == [1, 1]
        w.requires_grad = False
        assert not w.requires_grad and w.requires_grad_().sum().gradient(w)[0].tolist() == [1, 1]
        with w.register_hook(lambda g: g * 7):
            assert w.sum().gradient(w)[0].tolist() == [7, 7]
        assert w.sum().gradient(w)[0].tolist() == [1, 1]


def test_gradients_go_through_gradients_that_were_asked_for() -> None:
    with config(device="NUMPY"):
        w = Tensor([1.0, 2.0], requires_grad=True)
        (w ** 3).sum().backward(create_graph=True)
        first = w.grad
        assert first is not None and first.requires_grad and first.tolist() == [3, 12]
        w.grad = None
        first.sum().backward(retain_graph=True)
        assert w.grad is not None and w.grad.tolist() == [6, 12] and not w.grad.requires_grad


def test_only_results_on_the_way_have_gradients() -> None:
    with config(device="NUMPY"):
        w, seen = Tensor([1.0, 2.0], requires_grad=True), []
        a, b = w * 2, w * 3
        a.register_hook(lambda g: seen.append("a"))
        kept = b.register_hook(lambda g: seen.append("b"))
        (a * a).sum().backward()
        assert seen == ["a"] and not a.retains_grad and b.grad is None
        kept.remove()
        kept.remove()
        (a * b).sum().gradient(b)
        assert seen == ["a"]  # `a` is no part of what was asked for


def test_hooks_that_refer_to_their_tensor_go_with_it() -> None:
    with config(device="NUMPY"):
        w = Tensor([1.0, 2.0], requires_grad=True)
        h = w * 2

        def scaled(g: Tensor, of: Tensor = h) -> Tensor:
            return g * of

        h.register_hook(scaled)
        h.retain_grad()
        h.sum().backward()
        gone = ref(h.node)
        del h, scaled
        w.grad = None
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("run, kind, message", [
    (lambda x, w: x.register_hook(print), MinigradError,
     "[register_hook] expected a function, and a tensor with requires_grad=True, got <built-in function print> for one "
     "with requires_grad=False"),
    (lambda x, w: w.register_hook(3), MinigradError, "[register_hook] expected a function"),
    (lambda x, w: (w * 2).register_post_accumulate_grad_hook(print), MinigradError, "expected a leaf, got a result"),
    (lambda x, w: x.retain_grad(), MinigradError, "[retain_grad] expected a tensor with requires_grad=True"),
    (lambda x, w: (w.register_hook(lambda g: g.sum()), (w * w).sum().backward()), ShapeError,
     "[hook] expected None or a gradient float32[2], got float32[]"),
])
def test_mistakes(run: Callable[[Tensor, Tensor], object], kind: type[Exception], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(kind) as caught:
        run(Tensor([1.0, 2.0]), Tensor([1.0, 2.0], requires_grad=True))
    assert message in str(caught.value)
