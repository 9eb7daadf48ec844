"""Reading values in a captured function raises an error that says what to do instead, and that works."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from minigrad import Tensor, jit, nn, optim
from minigrad.errors import CaptureError

pytestmark = pytest.mark.usefixtures("on_cpu")
ONE, TWO = Tensor([1.0], device="CPU"), Tensor([1.0, 2.0], device="CPU")


def chosen(x: Tensor) -> Tensor:
    if x.sum() > 2:
        return x * 2
    return x


def repeated(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = x * 2
    return x


READS: list[tuple[Callable[[Tensor], object], str]] = [
    (lambda x: x * x.sum().item(), "return the tensor and read it outside"),
    (lambda x: Tensor(x.numpy()), "return the tensor and read it outside"),
    (lambda x: Tensor(x.tolist()), "return the tensor and read it outside"),
    (lambda x: x * float(x.sum()), "return the tensor and read it outside"),
    (lambda x: f"{x.sum()}", "show it outside"),
    (lambda x: x[:int(x.sum())], "keep it a Tensor"),
    (chosen, r"choose with condition.where\(a, b\)"), (repeated, r"choose with condition.where\(a, b\)"),
    (lambda x: x if x.equal(x) else x + 1, r"choose with condition.where\(a, b\)"),
    (lambda x: x if x.allclose(x) else x + 1, r"choose with condition.where\(a, b\)"),
    (lambda x: x[x > 1], "keep the shape"), (lambda x: x.nonzero(), "keep the shape"),
    (lambda x: x.masked_select(x > 1), "keep the shape"), (lambda x: x.int().unique(), "keep the shape"),
    (lambda x: x.int().bincount(), "keep the shape")]


@pytest.mark.parametrize("function, advice", READS)
def test_a_read_is_refused_with_advice(function: Callable[[Tensor], object], advice: str) -> None:
    captured = jit(function)
    with pytest.raises(CaptureError, match=rf"(?s)\[jit\] expected no value.*test_capture_advice.py:\d+; .*{advice}"):
        for _ in range(3):
            captured(Tensor([1.0, 2.0]).realize())


def test_lbfgs_goes_outside_and_its_closure_may_be_captured() -> None:
    model, x = nn.Linear(2, 1), Tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]).realize()
    optimizer = optim.LBFGS(list(model.parameters()), lr=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    step = jit(lambda: optimizer.step(closure))
    with pytest.raises(CaptureError, match=r"LBFGS.step\(\).*call step\(closure\) outside.*such as Adam"):
        for _ in range(3):
            step()

    captured = jit(closure)
    losses = [float(optimizer.step(captured)) for _ in range(4)]
    assert losses[-1] < 1e-3 < losses[0] and np.isfinite(losses).all()


@pytest.mark.parametrize("args,reason", [
    ((Tensor([1.0, 2.0, 3.0]), 2), "'x' has shape [3], and had [2]; a size that changes may be a Variable"),
    ((Tensor([1, 2]), 2), "'x' has type int32, and had float32"),
    ((Tensor([1.0, 2.0], requires_grad=True), 2),
     "'x' has another gradient or requires_grad, or is another argument too"),
    ((Tensor([1.0, 2.0]), 3), "'k' changed from 2 to 3; make it a Variable or a Tensor if it changes often"),
    ((Tensor([1.0, 2.0]), 0.5), "'k' changed from 2 to 0.5; make it a Variable or a Tensor if it changes often"),
    ((Tensor([1.0, 2.0]), None), "'k' changed; make it a Variable or a Tensor if it changes often"),
], ids=["shape", "type", "requires_grad", "number", "float", "none"])
def test_the_reason_of_another_capture_says_what_changed(args: tuple[Tensor, object], reason: str) -> None:
    @jit
    def f(x: Tensor, k: float | None) -> Tensor:
        return x * (k or 1)

    f(Tensor([1.0, 2.0]), 2)
    f(*args)
    assert f.last_reason == reason


@dataclass
class Pair:
    x: Tensor
    k: int


@pytest.mark.parametrize("before,now,reason", [
    ({"k": 2}, {"k": 3}, "'k' changed from 2 to 3; make it a Variable or a Tensor if it changes often"),
    ({"k": ONE}, {"k": TWO}, "'k' has shape [2], and had [1]; a size that changes may be a Variable"),
    ({"k": [ONE, ONE]}, {"k": [ONE, TWO]}, "'k[1]' has shape [2], and had [1]; a size that changes may be a Variable"),
    ({"k": (1, "a")}, {"k": (1, "b")}, "'k[1]' changed from 'a' to 'b'; make it a Variable"),
    ({"k": [1]}, {"k": [1, 2]}, "'k' has 2 elements, and had 1"),
    ({"k": {"a": ONE, "b": (0.5, 1)}}, {"k": {"a": ONE, "b": (0.25, 1)}},
     "\"k['b'][0]\" changed from 0.5 to 0.25; make it a Variable or a Tensor if it changes often"),
    ({"k": Pair(ONE, 1)}, {"k": Pair(TWO, 1)},
     "'k.x' has shape [2], and had [1]; a size that changes may be a Variable"),
    ({"k": {"a": 1}}, {"k": {"b": 1}}, "'k' changed; make it a Variable or a Tensor if it changes often"),
    ({"k": [1]}, {"k": 1}, "'k' changed; make it a Variable or a Tensor if it changes often"),
], ids=["number", "tensor", "list", "tuple", "length", "dictionary", "dataclass", "keys", "kind"])
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by position"])
def test_the_reason_names_what_changed_inside_of_an_argument(before: dict[str, object], now: dict[str, object],
                                                             reason: str, by_name: bool) -> None:
    @jit
    def f(k: object) -> Tensor:
        return Tensor([1.0]) * 2

    for kwargs in (before, now):
        f(**kwargs) if by_name else f(*kwargs.values())
    assert f.last_reason is not None and f.last_reason.startswith(reason)


def test_the_reason_is_the_difference_to_the_nearest_capture() -> None:
    captured = jit(lambda x: x * 2)
    for x in (TWO, Tensor([1.0, 2.0, 3.0]), Tensor([1, 2])):
        captured(x)
    assert captured.last_reason == "'x' has type int32, and had float32"
