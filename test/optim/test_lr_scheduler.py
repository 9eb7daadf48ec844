"""Schedules of the learning rate and gradient clipping against PyTorch, also inside `jit`."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,list-item"
from __future__ import annotations

import math
from functools import partialmethod
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, config, jit, nn
from minigrad.engine.stats import stats
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.nn.optim import SGD, lr_scheduler
from minigrad.nn.utils import clip_grad_norm_, clip_grad_value_

try:
    import torch
except ImportError:
    torch = None

SCHEDULES: dict[str, Any] = {
    "step": lambda m, o: m.StepLR(o, 3, 0.5),
    "milestones": lambda m, o: m.MultiStepLR(o, [2, 5, 5], 0.1),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, T_max=6),
    "cosine from": lambda m, o: m.CosineAnnealingLR(o, 4, eta_min=0.02),
    "linear": lambda m, o: m.LinearLR(o, total_iters=4),
    "linear down": lambda m, o: m.LinearLR(o, 1.0, 0.25, 7),
    "lambda": lambda m, o: m.LambdaLR(o, lambda count: 0.95 ** count),
    "constant": lambda m, o: m.ConstantLR(o, 0.3, 4),
    "polynomial": lambda m, o: m.PolynomialLR(o, 9, 2.0),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 4, eta_min=0.01),
    "longer restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 2, 2),
    "one cycle": lambda m, o: m.OneCycleLR(o, 0.5, total_steps=14),
    "one cycle of lines": lambda m, o: m.OneCycleLR(o, 0.5, epochs=2, steps_per_epoch=7, pct_start=0.5,
                                                    anneal_strategy="linear", div_factor=10.0),
    "three phases": lambda m, o: m.OneCycleLR(o, [0.5], total_steps=14, three_phase=True, base_momentum=[0.8]),
    "scaled cycles": lambda m, o: m.CyclicLR(o, [0.01], [0.2], 2, scale_fn=lambda cycle: 1 / (cycle + 1)),
    "scaled steps": lambda m, o: m.CyclicLR(o, 0.01, 0.2, 2, 3, "", 1.0, lambda n: 0.9 ** n, "iterations"),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda count: 0.9 + count * 0.01),
    "cycles": lambda m, o: m.CyclicLR(o, 0.01, 0.2, 3, 2),
    "lower cycles": lambda m, o: m.CyclicLR(o, 0.01, 0.2, 2, mode="triangular2"),
    "fading cycles": lambda m, o: m.CyclicLR(o, 0.01, 0.2, 2, mode="exp_range", gamma=0.8),
    "chain": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 4), m.ExponentialLR(o, 0.9)]),
    "warm-up": lambda m, o: m.SequentialLR(o, [m.LinearLR(o, 0.1, 1.0, 3), m.CosineAnnealingLR(o, 5),
                                              m.ExponentialLR(o, 0.5)], [3, 8]),
}


def rates_of_torch(make: Any, steps: int, lr: float = 0.1) -> list[float]:
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=lr, momentum=0.9)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@needs_torch
@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_torchs(name: str) -> None:
    with config(device="NUMPY"):
        optimizer = SGD([Tensor.ones(2, requires_grad=True)], lr=0.1)
        schedule = SCHEDULES[name](lr_scheduler, optimizer)
        rates = [optimizer.lr.item()]
        for _ in range(13):
            schedule.step()
            rates += schedule.get_last_lr()
    np.testing.assert_allclose(rates, rates_of_torch(SCHEDULES[name], 13), rtol=1e-5, atol=1e-8)


@needs_torch
@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_training_inside_jit_clips_and_follows_the_schedule(device: str) -> None:
    start = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    batches = np.random.default_rng(1).standard_normal((9, 5, 4)).astype(np.float32)
    with config(device=device):
        p, b = Tensor(start, requires_grad=True), Tensor(start[0], requires_grad=True)
        optimizer = SGD([p, b], lr=0.1, momentum=0.9)
        schedule = SCHEDULES["warm-up"](lr_scheduler, optimizer)

        @jit
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            loss = (x @ p + b).square().sum()
            loss.backward()
            norm = clip_grad_norm_([p, b], 1.5)
            changed = [*optimizer.schedule_step(), *schedule.schedule_step()]
            Tensor.realize(loss, norm, *changed)
            return loss, norm

        got = [[t.item() for t in step(Tensor(x).realize())] for x in batches]
        rate, weight = optimizer.lr.item(), p.numpy()
    q, c = torch.tensor(start, requires_grad=True), torch.tensor(start[0], requires_grad=True)
    reference = torch.optim.SGD([q, c], lr=0.1, momentum=0.9)
    follows = SCHEDULES["warm-up"](torch.optim.lr_scheduler, reference)
    expected = []
    for x in batches:
        reference.zero_grad()
        loss = (torch.tensor(x) @ q + c).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([q, c], 1.5)
        reference.step()
        follows.step()
        expected.append([loss.item(), norm.item()])
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    np.testing.assert_allclose(weight, q.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert rate == pytest.approx(reference.param_groups[0]["lr"], rel=1e-5)


def test_a_schedule_keeps_the_handle_of_the_rate() -> None:
    optimizer = SGD([Tensor.ones(2, requires_grad=True)], lr=0.5)
    optimizer.lr = 0.25
    handle = optimizer.lr
    schedule = lr_scheduler.StepLR(optimizer, 1, 0.5)
    schedule.step()
    assert optimizer.lr is handle and handle.item() == 0.125 and schedule.count.item() == 1


@needs_torch
@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_what_sets_the_rate_beside_a_schedule(name: str) -> None:
    """Assignments, before and in between, a second schedule, several at once, and one that goes on from an epoch."""
    found = []
    for library, m in ((nn.optim, lr_scheduler), (torch.optim, torch.optim.lr_scheduler)):
        with config(device="NUMPY"):
            weight = (Tensor if library is nn.optim else torch).ones(2, requires_grad=True)
            rates: list[float] = []

            def run(optimizer: Any, *schedules: Any, steps: int = 5) -> None:
                for _ in range(steps):
                    for schedule in schedules:
                        optimizer.step()
                        schedule.step()
                    rates.append(float(optimizer.param_groups[0]["lr"]))  # noqa: B023

            optimizer = library.SGD([weight], lr=0.1, momentum=0.9)
            make = SCHEDULES[name]
            first = make(m, optimizer)
            run(optimizer, first)
            if name != "warm-up":  # in which PyTorch's parts take an assignment up to the next one
                optimizer.param_groups[0]["lr"] = 0.3
                run(optimizer, first, steps=4)
            optimizer.param_groups[0]["lr"] = 0.2
            second = make(m, optimizer)
            rates.append(float(optimizer.param_groups[0]["lr"]))
            run(optimizer, second)
            if name not in ("warm-up", "chain"):
                third = m.ExponentialLR(optimizer, 0.9)
                run(optimizer, third, second, steps=3)
            # PyTorch has no `last_epoch` of parts, and takes it for that since a restart.
            if name not in ("warm-up", "chain", "longer restarts"):
                state, other = optimizer.state_dict(), library.SGD([weight], lr=1.0, momentum=0.9)
                other.load_state_dict(state)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(type(second), "__init__", partialmethod(type(second).__init__, last_epoch=7))
                    fourth = make(m, other)
                run(other, fourth, steps=3)
        found.append(rates)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-8)


def gradients(seed: int = 0) -> tuple[list[Tensor], list[Any]]:
    """Parameters with gradients of several shapes, one without elements and one without a gradient, ours and torch's.
    """
    rng = np.random.default_rng(seed)
    ours, theirs = [], []
    for shape in [(3, 4), (), (0, 2), (5,)]:
        values = np.asarray(rng.standard_normal(shape)).astype(np.float32)
        p, q = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
        p.grad, q.grad = Tensor(values * 3), torch.tensor(values * 3)
        ours.append(p)
        theirs.append(q)
    return [*ours, Tensor.ones(2, requires_grad=True)], [*theirs, torch.ones(2, requires_grad=True)]


@needs_torch
@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("kind", [2.0, 1, 3.5, math.inf])
def test_clipping_by_norm(kind: float, limit: float) -> None:
    ours, theirs = gradients()
    norm = clip_grad_norm_([*ours, ours[0]], limit, kind)
    if math.isinf(kind):
        del ours[2], theirs[2]  # torch has no largest element of none
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit, kind)
    assert norm.shape == () and norm.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, q in zip(ours, theirs, strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5)


def test_clipping_keeps_types_and_takes_a_tensor_as_limit() -> None:
    p = Tensor([3.0, 4.0], dtype="float16", requires_grad=True)
    p.grad = Tensor([3.0, 4.0], dtype="float16")
    assert clip_grad_norm_(p, Tensor(1.0)).item() == 5.0
    assert p.grad is not None and p.grad.dtype.name == "float16"
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0.8], rtol=1e-3)
    assert clip_grad_norm_([Tensor.ones(2, requires_grad=True)], 1.0).item() == 0.0


def test_a_norm_that_is_no_number_makes_every_gradient_none() -> None:
    p, q = Tensor.ones(2, requires_grad=True), Tensor.ones(1, requires_grad=True)
    p.grad, q.grad = Tensor([1.0, math.nan]), Tensor([1.0])
    assert math.isnan(clip_grad_norm_([p, q], 1.0).item())
    assert q.grad is not None and math.isnan(q.grad.item())


@needs_torch
def test_clipping_by_value() -> None:
    ours, theirs = gradients()
    clip_grad_value_(ours, 1.25)
    torch.nn.utils.clip_grad_value_(theirs, 1.25)
    for p, q in zip(ours[:4], theirs[:4], strict=True):
        assert p.grad is not None
        np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_clipping_runs_with_the_step(device: str) -> None:
    parameters = [Tensor(np.ones(s, np.float32), device=device, requires_grad=True) for s in [(5,), (5,), (3, 4)]]
    optimizer = SGD(parameters)
    for p in parameters:
        p.grad = Tensor(np.full(p.shape, 0.5, np.float32), device=device)
    before = stats.snapshot()
    clip_grad_norm_(parameters, 1.0)
    assert (stats.snapshot() - before).launches == 0
    optimizer.step()
    assert (stats.snapshot() - before).launches <= 2 * len(parameters) + 1


@needs_torch
@pytest.mark.parametrize("device", devices())
def test_a_row_keeps_no_sum_that_it_waits_for(device: str) -> None:
    """The kernel of a bias's gradient needs the norm of all gradients, to which other rows' gradients belong."""
    random = np.random.default_rng(3)
    with config(device=device):
        ours = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10))
    theirs = torch.nn.Sequential(torch.nn.Conv1d(2, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 10))
    nn.state.load_state_dict(ours, {k: Tensor(v.numpy(), device=device) for k, v in theirs.state_dict().items()})
    images, labels = random.standard_normal((4, 2, 8), np.float32), np.array([1, 2, 3, 4])
    optimizer = nn.optim.AdamW(nn.state.get_parameters(ours), lr=0.01)
    ours(Tensor(images, device=device)).cross_entropy(Tensor(labels, device=device)).backward()
    clip_grad_norm_(optimizer.params, 1.0)
    optimizer.step()
    peer = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    torch.nn.functional.cross_entropy(theirs(torch.tensor(images)), torch.tensor(labels)).backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    peer.step()
    for name, p in nn.state.get_state_dict(ours).items():
        np.testing.assert_allclose(p.numpy(), theirs.state_dict()[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def with_gradient() -> Tensor:
    p = Tensor.ones(2, requires_grad=True)
    p.grad = Tensor.ones(2)
    return p


def sgd() -> SGD:
    return SGD([Tensor.ones(2, requires_grad=True)], lr=0.1)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: lr_scheduler.StepLR(3, 1), MinigradError, r"\[StepLR\] expected an Optimizer, got int"),
    (lambda: lr_scheduler.StepLR(sgd(), 0), ShapeError, r"\[StepLR\] expected step_size as an integer of 1 or more"),
    (lambda: lr_scheduler.StepLR(sgd(), 1, "a"), DTypeError, r"\[StepLR\] expected gamma as a number, got 'a'"),
    (lambda: lr_scheduler.CosineAnnealingLR(sgd(), 0), ShapeError, r"\[CosineAnnealingLR\] expected T_max"),
    (lambda: lr_scheduler.LambdaLR(sgd(), 0.5), MinigradError, r"\[LambdaLR\] expected a function"),
    (lambda: lr_scheduler.LambdaLR(sgd(), lambda count: count.reshape(1)), ShapeError,
     r"\[LambdaLR\] expected a factor of shape \[\], got \[1\]"),
    (lambda: lr_scheduler.MultiStepLR(sgd(), [3, 1]), MinigradError, r"\[MultiStepLR\] expected milestones in incr"),
    (lambda: lr_scheduler.SequentialLR(sgd(), [lr_scheduler.StepLR(sgd(), 1)], []), MinigradError,
     r"\[SequentialLR\] expected schedules of the same optimizer"),
    (lambda: clip_grad_norm_(3, 1.0), MinigradError, r"\[clip_grad_norm_\] expected Tensors, .* got int"),
    (lambda: clip_grad_norm_([], 1.0, -1), MinigradError, r"\[clip_grad_norm_\] expected a norm_type above 0, got -1"),
    (lambda: clip_grad_norm_(with_gradient(), "a"), DTypeError, r"\[clip_grad_norm_\] expected max_norm as a number"),
    (lambda: clip_grad_value_([1.0], 1.0), MinigradError, r"\[clip_grad_value_\] expected Tensors"),
]


@pytest.mark.parametrize("run, kind, message", ERRORS)
def test_mistakes(run: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), config(device="NUMPY"):
        run()


def test_a_milestone_less_than_schedules() -> None:
    optimizer = sgd()
    with pytest.raises(MinigradError, match=r"\[SequentialLR\] expected 0 milestones for 1 schedules, got \[4\]"):
        nn.optim.lr_scheduler.SequentialLR(optimizer, [lr_scheduler.StepLR(optimizer, 1)], [4])
