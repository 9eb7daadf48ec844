"""Each float handle is a variable of its own: gradients by constants and by equal expressions are those of torch, or as
counted by hand, eager and inside `jit`, first and second, by `gradient`, `autograd.grad`, `retain_grad` and hooks."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, autograd, config, jit, manual_seed
from minigrad.errors import MinigradError
from minigrad.scheduler.graph import build_graph

try:
    import torch
except ImportError:
    torch = None

X = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.5]], np.float32)

CONSTANTS: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: Tensor.zeros(3), "ones": lambda: Tensor.ones(3), "full": lambda: Tensor.full((3,), -0.5),
    "empty": lambda: Tensor.empty(3), "number": lambda: Tensor(2.0), "list": lambda: Tensor([1.0, 1.0]),
    "array": lambda: Tensor(np.ones(2, np.float32)), "zeros_like": lambda: Tensor(X).zeros_like(),
    "ones_like": lambda: Tensor(X).ones_like(), "full_like": lambda: Tensor(X).full_like(3),
    "new_zeros": lambda: Tensor(X).new_zeros(3), "new_ones": lambda: Tensor(X).new_ones(3),
    "arange": lambda: Tensor.arange(3.0), "arange_cast": lambda: Tensor.arange(3).float(),
    "arange_dtype": lambda: Tensor.arange(3, dtype="float32"), "linspace": lambda: Tensor.linspace(0, 1, 4),
    "eye": lambda: Tensor.eye(2), "tril": lambda: Tensor.ones(2, 2).tril(), "rand": lambda: Tensor.rand(3),
    "randn": lambda: Tensor.randn(3), "uniform": lambda: Tensor.uniform(3, low=-1.0),
    "normal": lambda: Tensor.normal(3), "rand_like": lambda: Tensor(X).rand_like(),
    "half": lambda: Tensor.ones(3, dtype="float16"),
    "double": lambda: Tensor.zeros(3, dtype="float64"), "bfloat16": lambda: Tensor.full((3,), 2.0, dtype="bfloat16"),
    "one_hot": lambda: Tensor([0, 1]).one_hot(3).float(), "cast": lambda: Tensor(1).float(),
    "scalar_shape": lambda: Tensor.ones(()), "none": lambda: Tensor.ones(0),
    "of_ints": lambda: Tensor.ones(3).int().float(), "sum": lambda: Tensor.ones(3).sum(),
    "folded": lambda: Tensor.ones(3) * 2 + 1, "reshaped": lambda: Tensor.ones(6).reshape(2, 3),
    "expanded": lambda: Tensor.ones(1).expand(3), "minus": lambda: -Tensor.zeros(3),
    "copy": lambda: copy.copy(Tensor.ones(3)), "of_tensor": lambda: Tensor(Tensor.ones(3)),
    "detached": lambda: Tensor.ones(3).detach(),
}
"""Tensors whose values depend on nothing; two of them are equal, or as if they might be."""


def by_constants(make: Callable[[], Tensor]) -> list[tuple[Any, Any]]:
    """(gradient, what it is by hand), first and second, by two tensors made alike."""
    a, b = make(), make()
    by_a, by_b = (a * 2 + b * 3 + a * a * b).sum().gradient(a, b)
    (of_a,), (of_b,) = autograd.grad(by_a.sum(), a), autograd.grad(by_a.sum(), [b])
    five, = (a * 5).sum().gradient(a)
    assert of_a is not None and of_b is not None
    return [(by_a, 2 + 2 * a * b), (by_b, 3 + a * a), (of_a, 2 * b), (of_b, 2 * a), (five, a.full_like(5))]


def same(pairs: list[tuple[Any, Any]]) -> None:
    for got, wanted in pairs:
        assert got.shape == wanted.shape and got.dtype is wanted.dtype
        rtol = 1e-2 if got.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=rtol)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    """Of `rand` and `randn`: 2 + 2ab of others may come out near 0, where float32 rounds by its terms."""
    manual_seed(1)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_variables(name: str) -> None:
    with config(device="NUMPY"):
        same(by_constants(CONSTANTS[name]))
        a, b = CONSTANTS[name]().requires_grad_(), CONSTANTS[name]().requires_grad_()
        (a * 2 + b * 3).sum().backward()
        same([(a.grad, a.full_like(2)), (b.grad, a.full_like(3))])


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_constants_are_variables_in_kernels_and_captures(device: str) -> None:
    made = [name for name in CONSTANTS if name not in ("half", "double", "bfloat16")]

    def step() -> list[Tensor]:
        return [t for name in made for pair in by_constants(CONSTANTS[name])[::2] for t in pair]

    captured = jit(step)
    with config(device=device):
        for results in (captured(), captured(), captured()):
            same(list(zip(results[::2], results[1::2], strict=True)))
    assert captured.captures == 1 and captured.replays == 2


EQUAL: dict[str, Callable[[Any], Any]] = {
    "times": lambda x: x * 2, "times_one": lambda x: x * 1, "one_times": lambda x: 1 * x, "over_one": lambda x: x / 1,
    "minus_zero": lambda x: x - 0, "plus_minus_zero": lambda x: x + -0.0, "minus": lambda x: -x,
    "exp": lambda x: x.exp(), "minus_minus": lambda x: x.neg().neg(), "same_shape": lambda x: x.reshape(2, 3),
    "reshaped": lambda x: x.reshape(3, 2), "twice_reshaped": lambda x: x.reshape(6).reshape(3, 2),
    "permuted": lambda x: x.permute(1, 0), "sum": lambda x: x.sum(),
    "twice_permuted": lambda x: x.permute(1, 0).permute(1, 0),
    "expanded": lambda x: x.reshape(1, 2, 3).expand(4, 2, 3), "sliced": lambda x: x[:, 1:], "whole": lambda x: x[:],
    "sums": lambda x: x.sum(0), "mean": lambda x: x.mean(), "clone": lambda x: x.clone(),
    "double": lambda x: x.double(), "double_float": lambda x: x.double().float(), "softmax": lambda x: x.softmax(-1),
    "product": lambda x: x @ x.T, "max": lambda x: x.amax(1), "power": lambda x: x ** 1,
    "where": lambda x: (x > 100).where(x, x) if isinstance(x, Tensor) else torch.where(x > 100, x, x),
    "cat": lambda x: type(x).cat(x, x) if isinstance(x, Tensor) else torch.cat([x, x]), "flip": lambda x: x.flip(0),
    "relu": lambda x: x.relu(), "mask": lambda x: x * (x > 0), "view": lambda x: x.unsqueeze(0),
}
"""Operations, some of which are equal to their operand or, done twice, to less."""


def results(f: Callable[[Any], Any], x: Any) -> tuple[Any, list[Any]]:
    """(a number, what it was made from) where equal expressions meet: made twice, and made of each other."""
    y, z = f(x), f(x)
    w = (y * 2).reshape(y.shape)
    v = z.neg().neg()
    u = f(x).sum() / 2 + x.sum() * 4 + x.mean()
    return (y * 3 + z * z + w * 5 + v * 7).sum() + u * u, [y, z, w, v, u, x]


def of_results(f: Callable[[Any], Any], grad: Callable[..., Any], x: Any) -> list[Any]:
    """First gradients by all of them, and second ones by x."""
    total, made = results(f, x)
    first = grad(total, made, create_graph=True)
    return [*first, *grad(sum([g.sum() for g in first[:2]], first[-1].sum()), [x])]


def accumulated(f: Callable[[Any], Any], x: Any) -> list[Any]:
    """The same by `backward`: what is retained of all of them, after hooks of two."""
    total, made = results(f, x)
    for t in made[:-1]:
        t.retain_grad()
    made[0].register_hook(lambda g: g * 2)
    made[3].register_hook(lambda g: g + 1)
    total.backward()
    return [t.grad for t in made]


@needs_torch
@pytest.mark.parametrize("name", EQUAL)
def test_equal_expressions_are_variables(name: str) -> None:
    f, theirs = EQUAL[name], torch.tensor(X, requires_grad=True)
    wanted = [of_results(f, torch.autograd.grad, theirs), accumulated(f, theirs)]
    with config(device="NUMPY"):
        compare(of_results(f, autograd.grad, Tensor(X)), wanted[0])  # needs no requires_grad
        compare(of_results(f, autograd.grad, Tensor(X, requires_grad=True)), wanted[0])
        compare(accumulated(f, Tensor(X, requires_grad=True)), wanted[1])


@needs_torch
@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_equal_expressions_are_variables_in_kernels_and_captures(device: str) -> None:
    names = [name for name in EQUAL if not name.startswith("double")]

    def step(x: Tensor) -> list[list[Tensor]]:
        return [part for name in names for part in (
            of_results(EQUAL[name], autograd.grad, x), accumulated(EQUAL[name], x.detach().requires_grad_()))]

    captured = jit(step)
    wanted = [part for name in names for part in (
        of_results(EQUAL[name], torch.autograd.grad, torch.tensor(X, requires_grad=True)),
        accumulated(EQUAL[name], torch.tensor(X, requires_grad=True)))]
    with config(device=device):
        for got in (captured(Tensor(X)), captured(Tensor(X)), captured(Tensor(X))):
            for ours, theirs in zip(got, wanted, strict=True):
                compare(ours, theirs)
    assert captured.captures == 1 and captured.replays == 2


def compare(ours: list[Tensor], theirs: list[Any]) -> None:
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


ALIASES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "Tensor": (Tensor, True), "copy": (copy.copy, True), "float": (lambda x: x.float(), True),
    "contiguous": (lambda x: x.contiguous(), True), "squeeze": (lambda x: x.squeeze(0), True),
    "roll": (lambda x: x.roll(3, 1), True), "whole": (lambda x: x[...], True),
    "detach": (lambda x: x.detach(), False), "data": (lambda x: x.data, False), "deepcopy": (copy.deepcopy, True),
    "replace": (lambda x: x.zeros_like().replace(x), True), "assign": (lambda x: x.zeros_like().assign(x), True),
    "in_place": (lambda x: x.zeros_like().add_(x), True),
}
"""Handles on the value of another: (how they are made, whether gradients go through them)."""


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ALIASES)
def test_handles_of_one_value_are_variables(name: str, lazy: bool) -> None:
    make, through = ALIASES[name]
    with config(device="NUMPY"):
        x = Tensor(X) * 1.5 if lazy else Tensor(X)
        y = make(x)
        by_x, by_y = (x * 2 + y * y).sum().gradient(x, y)
        same([(by_y, 2 * y), (by_x, 2 + 2 * y if through else y.full_like(2))])


def test_operations_inside_others_are_no_variables() -> None:
    """What an operation makes for itself, of operands that the user has applied the same to, is not the user's."""
    with config(device="NUMPY"):
        x = Tensor(X)
        row = x[0]
        wide, total = row.expand(2, 3), x.sum()
        by_wide, by_total = (wide * 10 + (x + row) + total * 3 + x.mean()).sum().gradient(wide, total)
        same([(by_wide, wide.full_like(10)), (by_total, total.full_like(18))])
        e = x.exp()
        by_e, = (e * 2 + x.exp() * 5 + x.softmax()).sum().gradient(e)
        same([(by_e, e.full_like(2))])
        with Tensor.no_grad():
            w = Tensor(X, requires_grad=True)
            a, b = w * 2, w * 2
        by_a, by_b = (a * 3 + b * 4).sum().gradient(a, b)
        same([(by_a, a.full_like(3)), (by_b, a.full_like(4))])


def test_what_is_apart_for_gradients_is_one_in_a_plan() -> None:
    """Kernels know constants, and compute what is equal once."""
    with config(device="CPU"):
        x, one, zero = Tensor(X), Tensor.ones(2, 3), Tensor.full((2, 3), -0.0)
        same([((x * one + zero).reshape(6).reshape(3, 2), x.reshape(3, 2)), (one * 2 + one, x.full_like(3))])
        y, z = x.exp() * 2, x.exp() * 2
        Tensor.realize(y, z)
        assert y.node.storage is z.node.storage
        assert len(build_graph([(x * 1).contiguous().node]).nodes) == 2


def test_targets_are_known_when_they_were_realized_and_refused_with_another_value() -> None:
    with config(device="NUMPY"):
        for x in (Tensor.ones(3), Tensor.ones(3, requires_grad=True), Tensor([1.0, 2.0]), Tensor([1.0, 2.0]) * 3):
            y = (x * x).sum()
            x.realize()
            same([(y.gradient(x)[0], 2 * x)])
            with Tensor.no_grad():
                x += 1
            with pytest.raises(MinigradError, match=r"\[gradient\] expected targets .* keep it .* requires_grad"):
                y.gradient(x)


def test_hooks_of_equal_results_are_their_own() -> None:
    with config(device="NUMPY"):
        w = Tensor(X, requires_grad=True)
        seen: list[str] = []
        y, z = w * 2, w * 2
        y.register_hook(lambda g: seen.append("y"))
        (z * 3).sum().backward()
        assert not seen
        (y * 3).sum().backward()
        assert seen == ["y"]
