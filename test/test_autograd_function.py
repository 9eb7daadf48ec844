"""Operations with gradients of one's own, and `autograd.grad`: eager, inside `jit` and differentiated twice, with torch
as the second opinion."""
# mypy: disable-error-code="arg-type,attr-defined,misc,valid-type,union-attr"
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, autograd, config, jit
from minigrad.engine.stats import stats
from minigrad.errors import DTypeError, MinigradError, ShapeError

try:
    import torch
except ImportError:
    torch = None

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4,)).astype(np.float32)


def functions(base: Any) -> dict[str, Any]:
    """Written once, for either framework."""

    class Exp(base):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            y, = ctx.saved_tensors
            return g * y

    class Scaled(base):
        """x * w * factor, with a tensor kept for nothing, and a gradient that was not broadcast back."""

        @staticmethod
        def forward(ctx: Any, x: Any, factor: float, w: Any, name: str) -> Any:
            assert ctx.needs_input_grad[1] is ctx.needs_input_grad[3] is False
            ctx.save_for_backward(x, w, None)
            ctx.factor = factor
            return x * w * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, w, _ = ctx.saved_tensors
            return (g * w * ctx.factor if ctx.needs_input_grad[0] else None, None,
                    (g * x * ctx.factor).sum(0) if ctx.needs_input_grad[2] else None, None)

    class Summed(Scaled):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, w, _ = ctx.saved_tensors
            return g * w * ctx.factor, None, g * x * ctx.factor, None

    class Reverse(base):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -g

    class Rounded(base):
        """Straight through."""

        @staticmethod
        def forward(x: Any) -> Any:
            return x.round()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, = ctx.saved_tensors
            return g * (x.abs() < 1)

    class Two(base):
        """Not linear in its gradients, so that it shows whether both come together."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y, z = x.sin(), x.cos()
            ctx.save_for_backward(x, y, z)
            where = x.argmax(1)
            ctx.mark_non_differentiable(where)
            return y, z, where

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any, _: Any) -> Any:
            x, y, z = ctx.saved_tensors
            return (g * z - h * y).clip(-0.5, 0.5) + (g * h).sum() * x

    return {f.__name__: f.apply for f in (Exp, Scaled, Summed, Reverse, Rounded, Two)}


def two(f: Any, x: Any, w: Any) -> Any:
    y, z, _ = f["Two"](x * 2)
    return (y * w + z.square()).sum()


ROWS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "exp": lambda f, x, w: (f["Exp"](x * w) * x).sum(),
    "exp of exp": lambda f, x, w: f["Exp"](f["Exp"](x * 0.5) * w).sum(),
    "scaled": lambda f, x, w: f["Scaled"](x, 3.0, w, "name").square().sum(),
    "one argument without": lambda f, x, w: f["Scaled"](x.detach(), 3.0, w, "name").square().sum() + x.sum() * 0,
    "summed": lambda f, x, w: f["Summed"](x, 3.0, w, "name").square().sum(),
    "reverse": lambda f, x, w: (f["Reverse"](x) * w * x).sum(),
    "rounded": lambda f, x, w: (f["Rounded"](x * w) * w).square().sum(),
    "two": two,
    "one of two": lambda f, x, w: (f["Two"](x)[1] * w).sum(),
    "equal calls": lambda f, x, w: (f["Exp"](x) * f["Exp"](x) * w).sum(),
    "same value, other rule": lambda f, x, w: (f["Reverse"](x) * w + f["Reverse"](f["Reverse"](x)) * w * 3).sum(),
}


def theirs(row: Callable[[Any, Any, Any], Any], twice: bool) -> list[np.ndarray]:
    x, w = (torch.tensor(a, requires_grad=True) for a in (X, W))
    y = row(functions(torch.autograd.Function), x, w)
    found = torch.autograd.grad(y, (x, w), create_graph=twice)
    if twice:
        found = torch.autograd.grad(sum((g * g).sum() for g in found), (x, w), materialize_grads=True)
    return [y.detach().numpy(), *[g.numpy() for g in found]]


def ours(row: Callable[[Any, Any, Any], Any], twice: bool, x: Any, w: Any) -> list[Tensor]:
    y = row(functions(autograd.Function), x, w)
    found: Any = autograd.grad(y, (x, w), create_graph=twice)
    if twice:
        found = autograd.grad(sum((g * g).sum() for g in found), (x, w), materialize_grads=True)
    return [y, *found]


@needs_torch
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_as_torch(name: str, twice: bool, device: str) -> None:
    with config(device=device):
        x, w = (Tensor(a, requires_grad=True) for a in (X, W))
        run = jit(lambda x, w: ours(ROWS[name], twice, x, w))
        for _ in range(4 if device == "CPU" else 1):
            got = [ours(ROWS[name], twice, x, w)] + ([run(x, w)] if device == "CPU" else [])
            for values in got:
                for a, b in zip(values, theirs(ROWS[name], twice), strict=True):
                    np.testing.assert_allclose(a.numpy(), b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_training_inside_jit(device: str) -> None:
    """With other inputs at each call; no new plan is made for any of them."""
    f = functions(autograd.Function)
    with config(device=device):
        w = Tensor(W, requires_grad=True)

        def step(x: Tensor) -> Tensor:
            w.grad = None
            loss = f["Scaled"](x, 2.0, f["Exp"](w), "").square().mean()
            loss.backward()
            assert w.grad is not None
            w.assign(w.detach() - 0.01 * w.grad)
            return loss

        results = []
        for run in (step, jit(step)):
            w.assign(W)
            results.append([run(Tensor(X + k)).item() for k in range(6)])
            made = stats.kernels, stats.schedules
            results[-1].append(run(Tensor(X + 9)).item())
            assert (stats.kernels, stats.schedules) == made
        np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
        expected, v = [], W.astype(np.float64)
        for k in (0, 1, 2, 3, 4, 5, 9):
            x = (X + k).astype(np.float64)
            expected.append(((x * np.exp(v) * 2) ** 2).mean())
            v = v - 0.01 * (2 * (x * 2) ** 2 * np.exp(2 * v)).sum(0) / x.size
        np.testing.assert_allclose(results[0], expected, rtol=2e-5)


def test_what_backward_is_told() -> None:
    seen: list[Any] = []

    class Told(autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, n: Any, w: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            ctx.set_materialize_grads(False)
            return x * n * w, 7, x.int(), x + w

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            seen.append([g is None for g in gradients])
            return gradients[0], None, None

    with config(device="NUMPY"):
        x, w = Tensor(X, requires_grad=True), Tensor(W)
        y, seven, whole, _ = Told.apply(x, Tensor([2]), w)
        assert seven == 7 and whole.dtype.name == "int32" and y.requires_grad
        y.sum().backward()
        assert seen == [(True, False, True), (True, False, False), [False, True, True, True]]
        y.sum().gradient(w, materialize_grads=True)
        assert seen[3] == (False, False, True)
        with Tensor.no_grad():
            assert not Told.apply(x, 2, w)[0].requires_grad and seen[5] == (False, False, False)
        assert not Told.apply(Tensor(X), 2, w)[0].requires_grad


def test_what_is_saved_keeps_its_value() -> None:
    """Of a tensor that is given another one before backward; and nothing is kept once the result is gone."""
    f = functions(autograd.Function)
    with config(device="NUMPY"):
        x, w = Tensor(X, requires_grad=True), Tensor(W, requires_grad=True)
        y = f["Scaled"](x, 1.0, w * 1, "").sum()
        w.assign(w * 0)
        y.backward()
        np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(W, X.shape))
        result = f["Exp"](x)
        node = ref(result.lazydata)
        result.sum().backward()
        x.grad = None
        del result
        gc.collect()
        assert node() is None


def test_grad_and_backward() -> None:
    with config(device="NUMPY"):
        x, w, b = Tensor(X, requires_grad=True), Tensor(W, requires_grad=True), Tensor(W, requires_grad=True)
        with pytest.raises(MinigradError, match="targets that the result was made from"):
            autograd.grad((x * w).sum(), (x, b))
        found = autograd.grad((x * w).sum(), (x, b, w), allow_unused=True)
        assert found[1] is None and found[0].shape == X.shape and not found[0].requires_grad and x.grad is None
        assert autograd.grad((x * w).sum(), b, materialize_grads=True)[0].tolist() == [0] * 4
        assert autograd.grad((x * w).sum(), b, allow_unused=True) == (None,)
        y = autograd.grad([x.square(), w.sum()], [x, w], [Tensor(X), None])
        np.testing.assert_allclose(y[0].numpy(), 2 * X * X, rtol=1e-6)
        autograd.backward([w.sum(), (w * b).sum() * 2])
        np.testing.assert_allclose(w.grad.numpy(), 1 + 2 * W, rtol=1e-6)
        with pytest.raises(ShapeError, match="expected a gradient for an output of more than one element"):
            autograd.grad([x, w], x)
        with pytest.raises(MinigradError, match="a gradient or None for each, got 2 and 1"):
            autograd.grad([x, w], x, [x])


def giving(*gradients: Any) -> Any:
    class Wrong(autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, n: Any) -> Any:
            return x * n

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return gradients

    return Wrong.apply


@pytest.mark.parametrize("gradients, kind, message", [
    ((1,), MinigradError, "[Wrong.backward] expected a gradient or None for each of 2 arguments of forward, got 1"),
    ((1, 2, 3), MinigradError, "of 2 arguments of forward, got 3"),
    ((None, 5), MinigradError, "expected None for argument 1 of forward, which is no float Tensor, got 5"),
    ((3.0, None), DTypeError, "[Wrong.backward] expected a Tensor, got float"),
    ((np.zeros(2, np.float32), None), ShapeError, "[Wrong.backward] expected a gradient [3], got [2]"),
    ((np.zeros(3, np.int32), None), DTypeError, "[Wrong.backward] expected float gradients, got int32"),
])
def test_mistakes(gradients: Any, kind: type[Exception], message: str) -> None:
    with config(device="NUMPY"):
        run = giving(*[Tensor(g) if isinstance(g, np.ndarray) else g for g in gradients])
        x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
        with pytest.raises(kind) as caught:
            run(x, 2).sum().backward()
        assert message in str(caught.value)
        assert (giving(x, None, None)(x, 2).sum().gradient(x)[0] is not None)
        with pytest.raises(MinigradError, match="static method forward"):
            autograd.Function.apply(x)


def test_a_leaf_that_is_gone() -> None:
    """The error says what may be wrong; hooks of what is still there are called."""
    with config(device="NUMPY"):
        loss = Tensor([1.0, 2.0], requires_grad=True).square().sum()
        gc.collect()
        with pytest.raises(MinigradError, match=r"it is gone .keep a reference to it., has another value by now, or"):
            loss.backward()
        h = Tensor([1.0, 2.0], requires_grad=True) * 2
        h.retain_grad()
        h.square().sum().backward()
        assert h.grad.tolist() == [4.0, 8.0]
        with pytest.raises(MinigradError, match="requires_grad=True, got none; what `jit` returns"):
            Tensor(1.0).backward()
