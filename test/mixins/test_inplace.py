"""Methods that end in `_`, `x += y`, and `to` with types: values, handles, gradients, `jit`, and mistakes."""
# Mistakes are made on purpose.
# mypy: disable-error-code="attr-defined,arg-type"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import normal

from minigrad import Tensor, config, dtypes, jit
from minigrad.engine.stats import stats
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.mixins.inplace import InPlaceMixin

try:
    import torch
except ImportError:
    torch = None


@pytest.fixture(params=devices())
def device(request: Any) -> Any:
    with config(device=request.param):
        yield request.param


ROWS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x.add_(y), lambda x, y: x.add_(y, alpha=-0.5), lambda x, y: x.sub_(y, alpha=2), lambda x, y: x.mul_(3),
    lambda x, y: x.div_(y), lambda x, y: x.pow_(2), lambda x, y: x.abs_().sqrt_(), lambda x, y: x.neg_().exp_(),
    lambda x, y: x.clamp_(-0.5, 0.5), lambda x, y: x.clamp_min_(0), lambda x, y: x.lerp_(y, 0.3),
    lambda x, y: x.relu_(), lambda x, y: x.masked_fill_(y > 0, 7),
    lambda x, y: x.addcmul_(y, y, value=2), lambda x, y: x.addcdiv_(y, y.exp(), value=0.1), lambda x, y: x.zero_(),
    lambda x, y: x.fill_(2.5), lambda x, y: x.copy_(y), lambda x, y: x.copy_(y[0]),
    lambda x, y: x.tril_(), lambda x, y: x.triu_(1), lambda x, y: x.remainder_(0.3), lambda x, y: x.tanh_().sigmoid_(),
    lambda x, y: x.eq_(y), lambda x, y: x.lt_(0), lambda x, y: x.logical_and_(y), lambda x, y: x.atan2_(y).cosh_(),
    lambda x, y: x.cumsum_(1), lambda x, y: x.xlogy_(y.abs()), lambda x, y: x.renorm_(2, 0, 1),
    lambda x, y: x.index_put_((y > 0,), y[0, 0] * 2), lambda x, y: x.fill_diagonal_(7), lambda x, y: x.unsqueeze_(1),
    lambda x, y: x.t_().add_(1), lambda x, y: x.transpose_(0, 1), lambda x, y: x.unsqueeze_(0).squeeze_(0).mul_(2),
    lambda x, y: x.t_().fill_diagonal_(3, wrap=True),
    lambda x, y: x.floor_().add_(1), lambda x, y: x.mul_(x).add_(x),
]


@needs_torch
@pytest.mark.parametrize("run", ROWS)
@pytest.mark.parametrize("lazy", [False, True])
def test_as_torch(run: Callable[[Any, Any], Any], lazy: bool) -> None:
    x, y = normal(3, 4), normal(3, 4, seed=1)
    with config(device="NUMPY"):
        ours = Tensor(x) if not lazy else Tensor(x / 2) * 2
        result = run(ours, Tensor(y))
        theirs = torch.tensor(x)
        run(theirs, torch.tensor(y))
        assert result is ours
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-6, atol=1e-7)


def test_other_handles_keep_the_old_value(device: str) -> None:
    for lazy in (False, True):
        x = Tensor(normal(5)) * 1 if lazy else Tensor(normal(5)).realize()
        old, half, alias = x * 1, x[:2], x
        x += 2
        x.mul_(3)
        x -= old
        assert alias is x
        np.testing.assert_array_equal(half.numpy(), normal(5)[:2])
        np.testing.assert_allclose(x.numpy(), (normal(5) + 2) * 3 - normal(5), rtol=1e-6)
        np.testing.assert_array_equal(old.numpy(), normal(5))


def test_gradients_are_those_of_what_was_read(device: str) -> None:
    """Where PyTorch raises an error, as a value was replaced that its backward needs, the old value is still there."""
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = w * 2
    z = y * y
    y.add_(1)
    y *= w
    (z + y).sum().backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 8 * np.array([1, 2, 3]) + 4 * np.array([1, 2, 3]) + 1)
    w.grad.zero_()
    (w * 5).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [5, 5, 5])


def test_a_step_by_hand(device: str) -> None:
    """The loop of PyTorch's first tutorial: the parameter stays a leaf."""
    x = Tensor(normal(20, 3))
    target = x.dot(Tensor([[1.0], [-2.0], [0.5]])).realize()
    w = Tensor(np.zeros((3, 1), np.float32), requires_grad=True)
    kept = w
    for _ in range(60):
        loss = ((x @ w - target) ** 2).mean()
        loss.backward()
        assert w.grad is not None
        with Tensor.no_grad():
            w -= w.grad * 0.3
            w.grad.zero_()
    assert kept is w and w.requires_grad
    np.testing.assert_allclose(w.numpy()[:, 0], [1, -2, 0.5], atol=1e-3)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    with config(device=device):
        total, count = Tensor(np.zeros(4, np.float32)).realize(), Tensor(np.zeros((), np.int32)).realize()

        @jit
        def step(x: Tensor) -> Tensor:
            y = x * 2
            y += 1
            total.add_(y, alpha=0.5)
            count.add_(1)
            return y

        expected = np.zeros(4, np.float32)
        for k in range(6):
            x = normal(4, seed=k)
            np.testing.assert_allclose(step(Tensor(x).realize()).numpy(), 2 * x + 1, rtol=1e-6)
            expected += (2 * x + 1) / 2
            np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5)
            assert count.item() == k + 1


def test_a_lazy_value_is_replaced_without_a_kernel_of_its_own() -> None:
    with config(device="CPU"):
        x = Tensor(normal(64)).realize()
        before = stats.launches
        y = x * 2
        y += 1
        y.sum().realize()
        assert stats.launches - before == 1


def test_modes_are_decorators_too() -> None:
    with config(device="CPU"):
        w = Tensor([1.0, 2.0], requires_grad=True)

        @jit
        @Tensor.train()
        def step(x: Tensor) -> Tensor:
            return x.dropout(0.5) + 1

        @Tensor.no_grad()
        def halve(t: Tensor) -> Tensor:
            return t.mul_(0.5)

        for _ in range(3):
            assert set(np.unique(step(Tensor.ones(200).contiguous().realize()).numpy())) == {1, 3}
        assert halve(w).tolist() == [0.5, 1] and w.requires_grad and not Tensor.training and Tensor.grad_enabled


def test_random_numbers(device: str) -> None:
    Tensor.manual_seed(0)
    x = Tensor.zeros(2000)
    assert abs(x.normal_(3, 0.5).mean().item() - 3) < 0.05 and abs(x.std().item() - 0.5) < 0.05
    assert 2 <= x.uniform_(2, 4).min().item() < 2.1 and 3.9 < x.max().item() < 4
    assert abs(x.exponential_(2).mean().item() - 0.5) < 0.06 and x.min().item() > 0
    assert set(np.unique(x.bernoulli_(0.25).numpy())) == {0, 1} and abs(x.mean().item() - 0.25) < 0.05
    assert set(np.unique(x.random_(3).numpy())) == {0, 1, 2} and set(np.unique(x.random_(5, 7).numpy())) == {5, 6}
    integers = Tensor.zeros(2000, dtype="uint8").random_()
    assert integers.dtype.name == "uint8" and integers.max().item() > 200


def test_integers_and_empty_tensors(device: str) -> None:
    x = Tensor([1, 2, 3])
    x += 2
    x //= 2
    x |= 4
    assert x.tolist() == [5, 6, 6] and x.dtype.name == "int32"
    assert (Tensor.zeros(0, 3).add_(1).mul_(2)).shape == (0, 3)
    half = Tensor(np.ones(3, np.float16))
    half.add_(Tensor([0.5, 0.25, 0.125]))
    assert half.dtype.name == "float16" and half.tolist() == [1.5, 1.25, 1.125]


def test_every_method_has_one_without_an_underscore() -> None:
    made = [n for n in vars(InPlaceMixin) if n.endswith("_") and not n.startswith("_")]
    without = {"zero_", "fill_", "copy_", "normal_", "uniform_", "exponential_", "bernoulli_", "random_", "detach_",
               "geometric_", "log_normal_", "cauchy_", "fill_diagonal_"}
    assert len(made) > 50 and all(hasattr(Tensor, n[:-1]) for n in made if n not in without)
    assert "add_" in repr(Tensor.add_.__name__) and "`add`" in (Tensor.add_.__doc__ or "")


@pytest.mark.parametrize("run, kind, message", [
    (lambda x, w: w.add_(1), MinigradError,
     "[add_] expected anything but a leaf with requires_grad=True while gradients are recorded, got one of shape [3]"),
    (lambda x, w: w.zero_(), MinigradError, "write `with Tensor.no_grad():` around it, or x = f(x)"),
    (lambda x, w: x.add_(Tensor.ones(2, 3)), ShapeError, "[add_] expected a result of shape [3], got [2, 3]"),
    (lambda x, w: Tensor([1, 2, 3]).add_(0.5), DTypeError,
     "[add_] expected a result that int32 can hold, got float32: use x = x.add(...)"),
    (lambda x, w: (x > 0).mul_(2), DTypeError, "[mul_] expected a result that bool can hold, got int32"),
    (lambda x, w: x.fill_([1]), DTypeError, "[fill_] expected value as a number, got [1]"),
    (lambda x, w: x.copy_(Tensor.ones(4)), ShapeError, "[assign] expected shapes that broadcast, got [3] and [4]"),
    (lambda x, w: x.div(2, rounding_mode="up"), DTypeError, "[div] expected rounding_mode None, 'floor' or 'trunc'"),
])
def test_mistakes(run: Callable[[Tensor, Tensor], object], kind: type[Exception], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(kind) as caught:
        run(Tensor([1.0, 2.0, 3.0]), Tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert message in str(caught.value)


def test_to_another_type_and_device(device: str) -> None:
    x = Tensor([1.5, -2.5])
    assert x.to(dtypes.float16).dtype is dtypes.float16 and x.to(dtype="int32").tolist() == [1, -2]
    there = x.to("NUMPY", dtypes.float16)
    assert there.device == "NUMPY" and there.dtype is dtypes.float16
    back = there.to(x)
    assert back.device == x.device and back.dtype is x.dtype and back.tolist() == [1.5, -2.5]
    assert x.to("float16").dtype is dtypes.float16 and x.to("NUMPY", "int8").device == "NUMPY"
    assert x.to(x.device) is x and x.to(device="NUMPY", dtype="float64").dtype is dtypes.float64
    w = Tensor([1.0, 2.0], requires_grad=True)
    (w.to("NUMPY", dtypes.float64) ** 2).sum().backward()
    assert w.grad is not None and w.grad.device == w.device and w.grad.tolist() == [2, 4]


@needs_torch
def test_rounded_quotients() -> None:
    with config(device="NUMPY"):
        for kind in (np.int32, np.float32):
            x, y = np.array([7, -7, 7, -7, 0], kind), np.array([2, 2, -2, -2, 3], kind)
            for mode in ("floor", "trunc"):
                expected = torch.tensor(x).div(torch.tensor(y), rounding_mode=mode).numpy()
                got = Tensor(x).div(Tensor(y), rounding_mode=mode)
                np.testing.assert_array_equal(got.numpy(), expected)
                assert got.dtype.name == np.dtype(kind).name
        assert Tensor(np.array([7], np.uint8)).div(2, rounding_mode="trunc").tolist() == [3]
        least = -1 << 31
        found = Tensor([5, -5, least, least, -5, 5]).div(Tensor([least, least, least, 3, 0, 0]), rounding_mode="trunc")
        assert found.tolist() == [0, 0, 1, -715827882, 0, 0]
