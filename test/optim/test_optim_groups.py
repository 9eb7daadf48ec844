"""Groups of parameters, optimizers that look at a parameter as a whole, plateaus, and initial values."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,attr-defined,assignment"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, config, jit, nn
from minigrad.errors import MinigradError
from minigrad.nn import init
from minigrad.nn.optim import LAMB, LARS, SGD, AdamW, Muon, OptimizerGroup, lr_scheduler
from minigrad.optim.layerwise import orthogonal

try:
    import torch
except ImportError:
    torch = None

INPUTS = np.random.default_rng(0).standard_normal((8, 4), np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 3), np.float32)
BIAS = np.random.default_rng(2).standard_normal(3, np.float32)


def loss_of(x: Any, weight: Any, bias: Any) -> Any:
    y = (x @ weight + bias).tanh()
    return (y * y * y + y).mean()


@needs_torch
def test_groups_have_options_of_their_own() -> None:
    """As dictionaries and as optimizers, with a schedule, against torch; one plan per step."""
    with config(device="NUMPY"):
        mine: list[Any] = [Tensor(WEIGHT, requires_grad=True), Tensor(BIAS, requires_grad=True)]
        theirs = [torch.tensor(WEIGHT, requires_grad=True), torch.tensor(BIAS, requires_grad=True)]
        optimizers = [kind([{"params": [p[0]]}, {"params": [p[1]], "lr": 0.05, "weight_decay": 0.0}], lr=0.01,
                           weight_decay=0.3) for kind, p in ((AdamW, mine), (torch.optim.AdamW, theirs))]
        ours, reference = optimizers
        assert isinstance(ours, OptimizerGroup) and [type(m) for m in ours.members] == [AdamW, AdamW]
        schedules = [m.LinearLR(o, 0.5, 1.0, 4)
                     for m, o in ((lr_scheduler, ours), (torch.optim.lr_scheduler, reference))]
        for _ in range(5):
            for o, s, x, p in zip(optimizers, schedules, (Tensor(INPUTS), torch.tensor(INPUTS)), (mine, theirs),
                                  strict=True):
                o.zero_grad()
                loss_of(x, *p).backward()
                o.step()
                s.step()
        np.testing.assert_allclose(schedules[0].get_last_lr(), schedules[1].get_last_lr(), rtol=1e-6)
        for g in ours.param_groups:
            g["lr"] = g["lr"] / 2
        np.testing.assert_allclose([m.lr.item() for m in ours.members], [0.005, 0.025], rtol=1e-6)
        assert ours.param_groups[1]["weight_decay"] == 0 and ours.param_groups[0]["params"][0] is mine[0]
        for p, q in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_a_group_inside_jit(device: str) -> None:
    with config(device=device):
        w, b = Tensor(WEIGHT, requires_grad=True), Tensor(BIAS, requires_grad=True)
        optimizer = OptimizerGroup(SGD([w], lr=0.5), SGD([b], lr=0.25, momentum=0.5))

        @jit
        def step() -> Tensor:
            optimizer.zero_grad()
            loss = (w.square().sum() + b.square().sum()) * 0.5
            loss.backward()
            optimizer.step()
            return loss

        expected, velocity, c = WEIGHT.copy(), np.zeros(3), BIAS.astype(np.float64)
        for _ in range(5):
            step()
            expected = expected * 0.5
            velocity = 0.5 * velocity + c
            c = c - 0.25 * velocity
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(b.numpy(), c, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", devices())
def test_lamb_and_lars_by_hand(device: str) -> None:
    with config(device=device):
        for kind in ("lamb", "lars"):
            p = Tensor(WEIGHT, requires_grad=True)
            optimizer = LAMB([p], lr=0.1, weight_decay=0.2) if kind == "lamb" else LARS([p], lr=0.1, weight_decay=0.2)
            w, m, v = WEIGHT.astype(np.float64), np.zeros((4, 3)), np.zeros((4, 3))
            for t in range(1, 4):
                g = np.random.default_rng(t).standard_normal((4, 3))
                p.grad = Tensor(g.astype(np.float32))
                optimizer.step()
                if kind == "lamb":
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                    step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.2 * w
                    w = w - 0.1 * np.linalg.norm(w) / np.linalg.norm(step) * step
                else:
                    trust = 0.001 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.2 * np.linalg.norm(w))
                    m = 0.9 * m + 0.1 * trust * (g + 0.2 * w)
                    w = w - m
            np.testing.assert_allclose(p.numpy(), w, rtol=1e-4, atol=1e-5)
        none = Tensor.zeros(3, requires_grad=True)
        none.grad = Tensor.ones(3)
        LAMB([none], lr=0.1).step()
        np.testing.assert_allclose(none.numpy(), -0.1, rtol=1e-4)


def test_muon_turns_steps_orthogonal() -> None:
    with config(device="CPU"):
        x = np.random.default_rng(0).standard_normal((6, 20)).astype(np.float32)
        for matrix in (x, x.T.copy()):
            values = np.linalg.svd(orthogonal(Tensor(matrix)).numpy(), compute_uv=False)
            assert values.min() > 0.6 and values.max() < 1.3
        p = Tensor(WEIGHT, requires_grad=True)
        optimizer = Muon([p], lr=0.1, weight_decay=0.2)
        w, m = WEIGHT.astype(np.float64), np.zeros((4, 3))
        for t in range(3):
            g = np.random.default_rng(t).standard_normal((4, 3))
            p.grad = Tensor(g.astype(np.float32))
            optimizer.step()
            m = 0.95 * m + g
            x = (g + 0.95 * m).T
            x = x / (np.linalg.norm(x) + 1e-7)
            for _ in range(5):
                y = x @ x.T
                x = 3.4445 * x + (-4.775 * y + 2.0315 * y @ y) @ x
            w = w - 0.1 * (math.sqrt(4 / 3) * x.T + 0.2 * w)
        np.testing.assert_allclose(p.numpy(), w, rtol=1e-4, atol=1e-5)


METRICS = [5.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, math.nan, 3.5]
PLATEAUS: list[dict[str, Any]] = [
    {"patience": 2}, {"patience": 1, "cooldown": 2, "factor": 0.5}, {"mode": "max", "patience": 3, "min_lr": 0.02},
    {"patience": 0, "threshold": 1.5, "threshold_mode": "abs", "factor": 0.7},
]


@needs_torch
@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_plateaus(options: dict[str, Any]) -> None:
    with config(device="NUMPY"):
        optimizer = SGD([Tensor.ones(2, requires_grad=True)], lr=0.1)
        reference = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
        ours = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, **options)
        for k, metric in enumerate(METRICS):
            ours.step(Tensor(metric) if k % 2 else metric)
            theirs.step(metric)
            assert optimizer.lr.item() == pytest.approx(reference.param_groups[0]["lr"], rel=1e-5), k


def test_plateaus_inside_jit() -> None:
    with config(device="CPU"):
        optimizer = SGD([Tensor.ones(2, requires_grad=True)], lr=1.0)
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)

        @jit
        def step(metric: Tensor) -> None:
            schedule.step(metric)

        rates = []
        for metric in [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0]:
            step(Tensor(metric).contiguous().realize())
            rates.append(optimizer.lr.item())
        assert rates == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_initial_values() -> None:
    Tensor.manual_seed(0)
    with config(device="CPU"):
        w = Tensor.zeros(200, 60, 3, requires_grad=True)
        assert init.uniform_(w, -2, 3) is w and w.requires_grad
        assert -2 <= w.numpy().min() < -1.99 and 2.99 < w.numpy().max() < 3
        for name, options, deviation in [
                ("normal_", {"mean": 0.0, "std": 0.3}, 0.3), ("xavier_uniform_", {}, math.sqrt(2 / (180 + 600))),
                ("xavier_normal_", {"gain": 2.0}, 2 * math.sqrt(2 / (180 + 600))),
                ("kaiming_uniform_", {"a": math.sqrt(5)}, math.sqrt(1 / 3 / 180)),
                ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2 / 600))]:
            assert getattr(init, name)(w, **options) is w
            assert w.std().item() == pytest.approx(deviation, rel=0.02) and abs(w.mean().item()) < 0.02 * deviation
        x = init.trunc_normal_(w, 1.0, 2.0, -1.0, 2.0).numpy()
        assert x.min() >= -1 and x.max() <= 2 and abs((x < 1).mean() - 0.3413 / (0.3413 + 0.1915)) < 0.01
        assert init.constant_(w, 3).numpy().min() == 3 and init.zeros_(w).numpy().max() == 0
        assert init.ones_(w).numpy().min() == 1 and init.eye_(Tensor.zeros(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
        signal = Tensor(np.random.default_rng(0).standard_normal((2, 4, 7)).astype(np.float32))
        for shape in ((3, 5), (6, 2), (4, 2, 2)):
            flat = init.orthogonal_(Tensor.zeros(*shape), 2.0).reshape(shape[0], -1).numpy()
            small = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
            np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)
        same = signal.conv2d(init.dirac_(Tensor.zeros(4, 2, 3), 2), groups=2, padding=1)
        np.testing.assert_allclose(same.numpy(), signal.numpy(), rtol=1e-6)
        (w * 2).sum().backward()
        assert w.grad is not None and w.grad.numpy().max() == 2
        assert init.calculate_gain("leaky_relu", 1.0) == pytest.approx(1.0) and init.calculate_gain("tanh") == 5 / 3


def test_parameters_as_a_vector_and_sequences_of_unequal_lengths() -> None:
    with config(device="NUMPY"):
        layer: Any = nn.Linear(3, 2)
        flat = nn.utils.parameters_to_vector([layer.weight, layer.bias])
        assert flat.shape == (8,)
        nn.utils.vector_to_parameters(Tensor(np.arange(8, dtype=np.float32)), [layer.weight, layer.bias])
        assert layer.weight.tolist() == [[0, 1, 2], [3, 4, 5]] and layer.bias is not None and layer.bias.requires_grad
        padded = nn.utils.pad_sequence([Tensor([1.0, 2.0]), Tensor([3.0])], padding_value=-1.0)
        assert padded.tolist() == [[1, 3], [2, -1]]
        assert nn.utils.pad_sequence([Tensor.ones(2, 4), Tensor.ones(5, 4)], batch_first=True).shape == (2, 5, 4)


@pytest.mark.parametrize("run, message", [
    (lambda w: SGD([{"lr": 1}]), "[SGD] expected Tensors under 'params' in each group, got [['lr']]"),
    (lambda w: OptimizerGroup([w]), "[OptimizerGroup] expected optimizers, got ['list']"),
    (lambda w: OptimizerGroup(SGD([w]), SGD([w])), "[OptimizerGroup] expected each parameter in one group"),
    (lambda w: Muon([w]), "[Muon] expected parameters of two axes and more, got one of shape [2]: give it to AdamW"),
    (lambda w: nn.utils.pad_sequence([w, w.sum()]), "[pad_sequence] expected sequences [T, ...], equal but for T"),
    (lambda w: nn.utils.vector_to_parameters(w, [w, w]), "[vector_to_parameters] expected a vector [4], got [2]"),
    (lambda w: nn.Conv1d(1, 1, 1, padding_mode="ones"), "[Conv1d] expected padding_mode 'zeros', 'reflect'"),
    (lambda w: w.roll((1, 2), (0,)), "[roll] expected as many shifts as dims, got (1, 2) and (0,)"),
    (lambda w: w.movedim((0, 0), (0, 1)), "[movedim] expected an axis in -1..0, got 1"),
    (lambda w: LAMB([w], betas=(1, 2)), "[LAMB] expected two betas in 0..1, below 1, got (1, 2)"),
    (lambda w: lr_scheduler.OneCycleLR(SGD([w]), 0.1), "expected total_steps, or epochs and steps_per_epoch, as an"),
    (lambda w: lr_scheduler.ReduceLROnPlateau(SGD([w]), "least"), "[ReduceLROnPlateau] expected mode 'min' or 'max'"),
    (lambda w: init.kaiming_normal_(w), "[kaiming_normal_] expected weights [out, in, ...], got [2]"),
    (lambda w: init.calculate_gain("swish"), "[calculate_gain] expected one of linear, conv1d"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(MinigradError) as caught:
        run(Tensor.ones(2, requires_grad=True))
    assert message in str(caught.value)


def test_an_unknown_option_of_a_group() -> None:
    with config(device="NUMPY"):
        optimizer = SGD(nn.state.get_parameters(nn.Linear(2, 2)), lr=0.5)
        assert optimizer.param_groups[0]["lr"] == 0.5
        with pytest.raises(KeyError, match="expected one of params, lr, momentum"):
            optimizer.param_groups[0]["speed"]
