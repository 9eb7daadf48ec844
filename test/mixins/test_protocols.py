"""Tensors beside numpy arrays, in formats, copied and pickled."""
from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, dtypes, jit, nn
from minigrad.errors import DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.mark.parametrize("run", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt,
                                 operator.ge, operator.eq, operator.ne, operator.matmul])
def test_an_array_on_the_left_gives_a_tensor(run: Callable[[Any, Any], Any]) -> None:
    a, b = np.array([[1.0, 2], [3, 4]], np.float32), np.array([[2.0, 2], [0.5, 1]], np.float32)
    result = run(a, Tensor(b))
    assert type(result) is Tensor
    np.testing.assert_allclose(result.numpy(), run(a, b), rtol=1e-6)
    if run is not operator.matmul:
        assert type(run(np.float32(2), Tensor(b))) is Tensor


def test_gradients_and_captures_see_through_arrays() -> None:
    w, a = Tensor([1.0, 2.0], requires_grad=True), np.array([3.0, 4.0], np.float32)
    (a * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [3, 4]
    with pytest.raises(ValueError, match="copy=False"):
        w.__array__(np.float64, copy=False)
    scaled = jit(lambda x: a * x)
    assert [scaled(Tensor([k, 1.0])).tolist() for k in (1.0, 2.0)] == [[3, 4], [6, 4]]


def test_formats() -> None:
    assert f"{Tensor(3.14159):.2f}" == "3.14" and f"{Tensor([[7]]):03d}" == "007"
    assert f"{Tensor([1.0, 2.0])}" == "tensor([1., 2.])"
    with pytest.raises(ShapeError, match=r"expected one element for the format '.2f', got shape \[2\]"):
        f"{Tensor([1.0, 2.0]):.2f}"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_apart(copied: Callable[[Tensor], Tensor]) -> None:
    for x in (Tensor([1.0, 2.0]), Tensor([1.0, 1.0]) + Tensor([0.0, 1.0]), Tensor([1.0, 2.0], dtype="bfloat16")):
        y = copied(x)
        y[0] = 9
        assert x.tolist() == [1, 2] and y.tolist() == [9, 2] and y.dtype is x.dtype and y.device == x.device
    for x in (Tensor(True), Tensor(3, dtype="uint8"), Tensor.zeros(0, 3)):
        y = copied(x)
        assert y.tolist() == x.tolist() and y.shape == x.shape and y.dtype is x.dtype
    w = Tensor([1.0, 2.0], requires_grad=True)
    v = copied(w)
    assert v.requires_grad
    (v * 3).sum().backward()
    assert v.grad is not None and v.grad.tolist() == [3, 3] and (w.grad is None or w.grad.tolist() == [0, 0])


def test_a_copy_of_a_model_and_its_optimizer_learns_alone() -> None:
    model = nn.Linear(2, 1)
    optimizer = nn.optim.Adam(nn.state.get_parameters(model))
    model(Tensor([[1.0, 2.0]])).sum().backward()
    (other, moved), before = copy.deepcopy((model, optimizer)), model.weight.tolist()
    assert moved.params[0] is other.weight and other.weight.grad is not None and other.weight.grad.tolist() == [[1, 2]]
    assert other.weight.tolist() == before
    moved.step()
    assert model.weight.tolist() == before and other.weight.tolist() != before
    loaded = pickle.loads(pickle.dumps(other))
    assert loaded.weight.tolist() == other.weight.tolist() and loaded.weight.requires_grad


def test_types_are_one_object() -> None:
    for kind in dtypes.ALL:
        assert pickle.loads(pickle.dumps(kind)) is kind and copy.deepcopy(kind) is kind


def test_gradients_are_checked_when_set() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(DTypeError, match=r"\[grad\] expected a Tensor, got ndarray"):
        x.grad = np.zeros(2)  # type: ignore[assignment]
    with pytest.raises(ShapeError, match=r"\[grad\] expected a gradient of shape \[2\], got \[3\]"):
        x.grad = Tensor.ones(3)
