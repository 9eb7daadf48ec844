"""Optimizers against PyTorch over ten steps, and what a step may not do."""
from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in
from support.optim import BIAS, CASES, INPUTS, WEIGHT, loss_of

from minigrad import Tensor, jit, nn
from minigrad.engine.stats import stats
from minigrad.errors import MinigradError
from minigrad.nn.optim import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    RMSprop,
    Rprop,
)
from minigrad.nn.state import get_parameters, get_state_dict, load_state_dict
from minigrad.ops.node import Node

FIGURES: dict[str, tuple[float, float, float]] = {
    "sgd dampening": (0.401216, -0.490067, -0.499624),
    "nadam decoupled": (0.466158, -0.494693, -0.350209),
    "radam decoupled": (0.416159, -0.544319, -0.315309),
    "adagrad decay": (0.529403, -0.433409, -0.410736),
    "adafactor": (0.484348, -0.376315, -0.589780),
    "adafactor decay": (0.472942, -0.368856, -0.579105),
    "rprop": (0.676802, -0.289684, -0.561639),
    "rprop bounds": (0.672215, 0.375729, -1.227052),
    "asgd": (0.375738, -0.461985, -0.450591),
    "asgd averages": (0.281847, -0.136357, -0.874548),
}
"""Of PyTorch after the ten steps: two weights and a bias."""


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_torchs(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    ours, theirs_name, options = CASES[name]
    parameters = [Tensor(WEIGHT, requires_grad=True), Tensor(BIAS, requires_grad=True)]
    theirs = [torch.tensor(WEIGHT, requires_grad=True), torch.tensor(BIAS, requires_grad=True)]
    optimizer, reference = ours(parameters, **options), getattr(torch.optim, theirs_name)(theirs, **options)
    x = Tensor(INPUTS)
    for step in range(10):
        if step == 5:
            optimizer.lr = options["lr"] / 4
            reference.param_groups[0]["lr"] = options["lr"] / 4
        for o, loss in ((optimizer, loss_of(x, *parameters)), (reference, loss_of(torch.tensor(INPUTS), *theirs))):
            o.zero_grad()
            loss.backward()
            o.step()
    for p, q in zip(parameters, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("device", devices())
@one_in(3, CPU_DRIVERS)
def test_ten_steps_give_figures(name: str, device: str) -> None:
    """Captured, with a new learning rate in between."""
    kind, _, options = CASES[name]
    weight, bias, x = (Tensor(a, device=device) for a in (WEIGHT, BIAS, INPUTS))
    optimizer = kind([weight.requires_grad_(), bias.requires_grad_()], **options)

    @jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(x, weight, bias).backward()
        optimizer.step()

    for k in range(10):
        if k == 5:
            optimizer.lr = options["lr"] / 4
        step(x)
    found = weight.numpy()[1, 2], weight.numpy()[3, 0], bias.numpy()[1]
    np.testing.assert_allclose(found, FIGURES[name], rtol=2e-5, atol=5e-6)


def test_lion_takes_steps_of_one_size() -> None:
    p, b1, b2, decay, lr = Tensor(WEIGHT, requires_grad=True), 0.9, 0.99, 0.2, 0.01
    optimizer = Lion([p], lr=lr, weight_decay=decay)
    w, m = WEIGHT.astype(np.float64), np.zeros(WEIGHT.shape)
    for seed in range(4):
        g = np.random.default_rng(seed).standard_normal(WEIGHT.shape).astype(np.float32)
        g[0, 0] = 0
        p.grad = Tensor(g)
        optimizer.step()
        w, m = w - lr * (np.sign(b1 * m + (1 - b1) * g) + decay * w), b2 * m + (1 - b2) * g
    np.testing.assert_allclose(p.numpy(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make, message", [
    (lambda p: Lion(p, betas=(1.0, 0.9)), r"\[Lion\] expected two betas in 0..1, below 1, got \(1.0, 0.9\)"),
    (lambda p: RMSprop(p, alpha=2), r"\[RMSprop\] expected an alpha in 0..1, got 2"),
    (lambda p: SGD(p, 0.1, 0.9, 0.5, 0.0, True), r"\[SGD\] expected a dampening of 0 with nesterov=True, got 0.5"),
    (lambda p: Rprop(p, etas=(1.2, 0.5)), r"\[Rprop\] expected two etas, the smaller one first"),
    (lambda p: Rprop(p, etas=(1.1, 1.2)), r"\[Rprop\] expected etas below and above 1"),
    (lambda p: Adafactor(p, beta2_decay=1), r"\[Adafactor\] expected a beta2_decay of at most 0, got 1"),
    (lambda p: Adafactor(p, eps=1e-8),  # type: ignore[arg-type]
     r"\[Adafactor\] expected eps as None or a number and a number"),
    (lambda p: Adafactor(p, d=0.5), r"\[Adafactor\] expected a d of at least 1, got 0.5"),
])
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(MinigradError, match=message):
        make([Tensor.ones(2, requires_grad=True)])


def test_the_learning_rate_is_a_tensor_that_setting_assigns() -> None:
    optimizer = SGD([Tensor.ones(2, requires_grad=True)], lr=0.5)
    handle = optimizer.lr
    assert handle.item() == 0.5
    optimizer.lr = 0.125
    assert optimizer.lr is handle and handle.item() == 0.125
    optimizer.lr = Tensor([0.25])
    assert handle.item() == 0.25


def test_zero_grad_forgets_and_gradients_accumulate_without_it() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = SGD([p], lr=1.0)
    for _ in range(2):
        (p * Tensor([1.0, 3.0])).sum().backward()
    assert p.grad is not None
    np.testing.assert_array_equal(p.grad.numpy(), [2.0, 6.0])
    optimizer.zero_grad()
    assert p.grad is None


def test_a_tied_parameter_is_updated_once() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = SGD([p, p], lr=1.0)
    p.sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), [0.0, 1.0])


def test_a_step_brings_running_statistics_up_to_date() -> None:
    layer = nn.BatchNorm(3, momentum=0.5)
    optimizer = SGD(get_parameters(layer), lr=0.1)
    assert len(optimizer.params) == 2 and len(optimizer.buffers) == 3
    with Tensor.train():
        (layer(Tensor(INPUTS[:, :3])) * Tensor(INPUTS[:, 1:])).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(layer.running_mean.numpy(), INPUTS[:, :3].mean(0) / 2, rtol=1e-5, atol=1e-6)


def test_a_loss_read_after_the_step_is_the_loss_before_it() -> None:
    p = Tensor([3.0], requires_grad=True)
    optimizer = SGD([p], lr=1.0)
    loss = (p * p).sum()
    loss.backward()
    optimizer.step()
    assert p.item() == -3.0 and loss.item() == 9.0


def test_a_step_is_one_realize(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.BatchNorm(3)
    optimizer = Adam(get_parameters(layer))
    asked = []
    module = import_module("minigrad.tensor")
    realize = module.realize

    def counted(nodes: list[Node]) -> None:
        asked.append(len(nodes))
        realize(nodes)

    monkeypatch.setattr(module, "realize", counted)
    with Tensor.train():
        layer(Tensor(INPUTS[:, :3])).square().mean().backward()
        optimizer.step()
    # Weight and bias with two moments each, the count of steps and three running statistics.
    assert asked == [10]


@pytest.mark.parametrize("device", [name for name in devices() if name != "NUMPY"])
@pytest.mark.parametrize("make, launches", [(SGD, 1), (lambda p: SGD(p, momentum=0.9), 1), (Adam, 2), (AdamW, 2),
                                            (lambda p: RMSprop(p, momentum=0.9, centered=True), 1), (Adagrad, 1),
                                            (lambda p: Lion(p, weight_decay=0.1), 1)])
@one_in(3, CPU_DRIVERS)
def test_the_launches_of_a_step_do_not_grow_with_the_parameters(make: Any, launches: int, device: str) -> None:
    for shapes in ([(5,)], [(5,), (3, 4), (5,), (16, 4, 3, 3)]):
        parameters = [Tensor(np.ones(shape, np.float32), device=device, requires_grad=True) for shape in shapes]
        optimizer = make(parameters)
        for p in parameters:
            p.grad = Tensor(np.full(p.shape, 0.5, np.float32), device=device)
        before = stats.snapshot()
        optimizer.step()
        assert (stats.snapshot() - before).launches == launches


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("captured", [False, True])
def test_a_frozen_parameter_stays_as_it_is(name: str, captured: bool) -> None:
    """Momentum and weight decay do not move it either, until it is unfrozen."""
    kind, _, options = CASES[name]
    x, weight, bias = (Tensor(a, device="CPU") for a in (INPUTS, WEIGHT, BIAS))
    weight.requires_grad_(), bias.requires_grad_()
    optimizer = kind([weight, bias], **options)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(x, weight, bias).backward()
        optimizer.step()

    run = jit(step) if captured else step
    run(x)
    before = [t.numpy() for t in (weight, bias)]
    weight.requires_grad_(False)
    for _ in range(3):
        run(x)
    assert weight.numpy().tobytes() == before[0].tobytes() and bias.numpy().tobytes() != before[1].tobytes()
    weight.requires_grad_()
    run(x)
    assert weight.numpy().tobytes() != before[0].tobytes()


@pytest.mark.parametrize("name", CASES)
def test_the_state_of_an_optimizer_is_saved_and_loaded(name: str) -> None:
    kind, _, options = CASES[name]
    weight, bias = (Tensor(a, device="CPU", requires_grad=True) for a in (WEIGHT, BIAS))
    optimizer, x = kind([weight, bias], **options), Tensor(INPUTS, device="CPU")

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        return loss_of(x, weight, bias).backward()

    optimizer.step(closure)
    saved = {k: t.detach().clone().realize() for k, t in get_state_dict(optimizer).items()}
    expected = [optimizer.step(closure).item() for _ in range(3)]
    load_state_dict(optimizer, saved)
    assert [optimizer.step(closure).item() for _ in range(3)] == expected


def test_nothing_to_update() -> None:
    with pytest.raises(MinigradError, match=r"\[SGD\] expected at least one parameter, got none"):
        SGD([])


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(MinigradError, match=r"\[SGD\] expected a momentum above 0"):
        SGD([Tensor.ones(2, requires_grad=True)], nesterov=True)
