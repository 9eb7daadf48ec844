"""Losses: values and gradients against torch, numbers by hand where torch is missing, odd targets, and as objects."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,attr-defined"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import normal

from minigrad import Tensor, config, jit, nn
from minigrad.errors import ShapeError

try:
    import torch
except ImportError:
    torch = None


def shares(*shape: int, seed: int = 0) -> np.ndarray:
    e = np.exp(normal(*shape, seed=seed))
    return e / e.sum(1, keepdims=True)


CLASSES = np.array([0, 5, 2, -100, 2])
WEIGHT = np.array([1, 2, 0.5, 3, 0, 1.5], np.float32)
X, Y, P, T = normal(5, 6), normal(5, 6, seed=1), shares(5, 6), shares(5, 6, seed=1)
SIGNS = np.array([1, -1, 1, -1, 1], np.float32)
T0 = T.copy()
T0[0, 0] = 0
ROWS: list[tuple[str, Callable[[Any, Any], Any], tuple[np.ndarray, ...]]] = [
    # name, how to make the loss from nn and a converter, its arguments: the first gets a gradient
    ("classes", lambda n, t: n.CrossEntropyLoss(), (X, CLASSES)),
    ("weights", lambda n, t: n.CrossEntropyLoss(t(WEIGHT)), (X, CLASSES)),
    ("smooth weights", lambda n, t: n.CrossEntropyLoss(t(WEIGHT), label_smoothing=0.2), (X, CLASSES)),
    ("smooth weights, sum", lambda n, t: n.CrossEntropyLoss(t(WEIGHT), ignore_index=2, reduction="sum",
                                                            label_smoothing=0.1), (X, np.abs(CLASSES) % 6)),
    ("each", lambda n, t: n.CrossEntropyLoss(t(WEIGHT), reduction="none"), (X, CLASSES)),
    ("shares", lambda n, t: n.CrossEntropyLoss(t(WEIGHT), label_smoothing=0.3), (X, T)),
    ("planes", lambda n, t: n.CrossEntropyLoss(), (normal(2, 3, 4, 5), np.arange(40).reshape(2, 4, 5) % 3)),
    ("one row", lambda n, t: n.CrossEntropyLoss(), (X[0], np.array(3))),
    ("nll", lambda n, t: n.NLLLoss(), (X, CLASSES)),
    ("nll weights", lambda n, t: n.NLLLoss(t(WEIGHT)), (X, CLASSES)),
    ("nll each", lambda n, t: n.NLLLoss(t(WEIGHT), reduction="none"), (X, CLASSES)),
    ("nll planes", lambda n, t: n.NLLLoss(), (normal(2, 3, 4), np.arange(8).reshape(2, 4) % 3)),
    ("bce", lambda n, t: n.BCELoss(), (P, T)),
    ("bce weights", lambda n, t: n.BCELoss(t(WEIGHT), reduction="sum"), (P, T)),
    ("bce logits", lambda n, t: n.BCEWithLogitsLoss(), (X * 40, T)),
    ("bce logits weights", lambda n, t: n.BCEWithLogitsLoss(t(WEIGHT), reduction="none", pos_weight=t(WEIGHT + 1)),
     (X * 40, T)),
    ("mse", lambda n, t: n.MSELoss(), (X, Y)),
    ("l1", lambda n, t: n.L1Loss(reduction="sum"), (X, Y)),
    ("smooth l1", lambda n, t: n.SmoothL1Loss(beta=0.7), (X, Y)),
    ("smooth l1 of 0", lambda n, t: n.SmoothL1Loss(reduction="none", beta=0), (X, Y)),
    ("huber", lambda n, t: n.HuberLoss(delta=0.7), (X, Y)),
    ("kl", lambda n, t: n.KLDivLoss(reduction="batchmean"), (np.log(P), T0)),
    ("kl of logarithms", lambda n, t: n.KLDivLoss(reduction="sum", log_target=True), (np.log(P), np.log(T))),
    ("gaussian", lambda n, t: n.GaussianNLLLoss(full=True), (X, Y, P)),
    ("poisson", lambda n, t: n.PoissonNLLLoss(), (X, np.abs(Y) * 2)),
    ("poisson rates", lambda n, t: n.PoissonNLLLoss(False, True), (P, np.abs(Y) * 3)),
    ("ranking", lambda n, t: n.MarginRankingLoss(0.3), (X[:, 0], Y[:, 0], SIGNS)),
    ("hinge", lambda n, t: n.HingeEmbeddingLoss(0.8, reduction="sum"), (X[:, 0], SIGNS)),
    ("soft margin", lambda n, t: n.SoftMarginLoss(), (X[:, 0], SIGNS)),
    ("cosine", lambda n, t: n.CosineEmbeddingLoss(0.1), (X, Y, SIGNS)),
    ("triplet", lambda n, t: n.TripletMarginLoss(), (X, Y, P)),
    ("triplet swapped", lambda n, t: n.TripletMarginLoss(2, p=1, swap=True, reduction="none"), (X, Y, P)),
]


@needs_torch
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0])
def test_as_torch(row: tuple[str, Any, tuple[np.ndarray, ...]], device: str) -> None:
    _, make, arrays = row
    theirs = [torch.tensor(a, requires_grad=i == 0) for i, a in enumerate(arrays)]
    expected = make(torch.nn, torch.tensor)(*theirs)
    with config(device=device):
        ours = [Tensor(a, requires_grad=i == 0 or None) for i, a in enumerate(arrays)]
        got = make(nn, Tensor)(*ours)
        seed = normal(*expected.shape, seed=3)
        got.backward(Tensor(seed))
        expected.backward(torch.tensor(seed))
        np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-5, atol=2e-6)
        assert ours[0].grad is not None
        np.testing.assert_allclose(ours[0].grad.numpy(), theirs[0].grad.numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("device", devices())
def test_by_hand(device: str) -> None:
    with config(device=device):
        logs = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], np.float32))
        classes = Tensor(np.array([1, -100]))
        assert nn.NLLLoss()(Tensor(logs), classes).item() == pytest.approx(math.log(4), rel=1e-6)
        assert nn.CrossEntropyLoss()(Tensor(logs), classes).item() == pytest.approx(math.log(4), rel=1e-6)
        weight = Tensor([1.0, 3.0, 1.0])
        both = Tensor(logs).cross_entropy(Tensor([1, 2]), weight=weight)
        assert both.item() == pytest.approx((3 * math.log(4) - math.log(0.7)) / 4, rel=1e-5)
        p, t = Tensor([0.0, 1.0, 0.0, 0.5], requires_grad=True), Tensor([0.0, 1.0, 1.0, 0.5])
        loss = p.binary_cross_entropy(t, "none")
        np.testing.assert_allclose(loss.numpy(), [0, 0, 100, math.log(2)], rtol=1e-6)
        loss.sum().backward()
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), [0, 0, -1e12, 0], rtol=1e-6)
        far = Tensor([-1e4, 1e4]).binary_cross_entropy_with_logits(Tensor([0.0, 0.0]), "none", pos_weight=3.0)
        np.testing.assert_allclose(far.numpy(), [0, 1e4])
        d = Tensor([0.0, 0.5, 3.0])
        np.testing.assert_allclose(nn.SmoothL1Loss(reduction="none")(d, 0).numpy(), [0, 0.125, 2.5])
        np.testing.assert_allclose(nn.HuberLoss(reduction="none", delta=2.0)(d, 0).numpy(), [0, 0.125, 4])
        assert nn.KLDivLoss(reduction="sum")(Tensor([-1.0, -2.0]), Tensor([0.0, 1.0])).item() == 2
        assert math.isnan(Tensor([math.nan, 1.0]).huber_loss(0).item())


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    criterion = nn.CrossEntropyLoss(Tensor(WEIGHT, device=device), label_smoothing=0.1)

    @jit
    def step(x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        loss = criterion(x, classes)
        return loss, loss.gradient(x)[0]

    for seed in range(4):
        x, classes = normal(5, 6, seed=seed), np.random.default_rng(seed).integers(0, 6, 5)
        loss, gradient = step(Tensor(x, device=device).realize(), Tensor(classes, device=device).realize())
        logs = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
        chosen = WEIGHT[classes]
        hard = -(logs[np.arange(5), classes] * chosen)
        smooth = -(logs * WEIGHT).sum(1) / 6
        assert loss.item() == pytest.approx((0.9 * hard + 0.1 * smooth).sum() / chosen.sum(), rel=1e-5)
        np.testing.assert_allclose(gradient.numpy().sum(1), 0, atol=1e-6)


def test_losses_of_nothing_are_no_numbers() -> None:
    with config(device="NUMPY"):
        empty = Tensor.zeros(0, 3)
        assert math.isnan(empty.mse_loss(empty).item()) and empty.mse_loss(empty, "sum").item() == 0
        assert empty.nll_loss(Tensor(np.zeros(0, np.int32)), "none").shape == (0,)
        assert nn.CrossEntropyLoss(reduction="sum")(empty, Tensor(np.zeros(0, np.int32))).item() == 0


def test_weights_are_part_of_the_state() -> None:
    with config(device="NUMPY"):
        criterion = nn.CrossEntropyLoss(Tensor(WEIGHT))
        assert list(nn.state.get_state_dict(criterion)) == ["weight"]


@pytest.mark.parametrize("run, message", [
    (lambda x: nn.MSELoss(reduction="average"), "[MSELoss] expected reduction 'mean', 'sum', 'none', got 'average'"),
    (lambda x: nn.KLDivLoss(reduction="all"),
     "[KLDivLoss] expected reduction 'mean', 'sum', 'none', 'batchmean', got 'all'"),
    (lambda x: nn.BCELoss()(x, x[0]), "[BCELoss] expected a target of the input's shape [2, 3], got [3]"),
    (lambda x: x.cross_entropy([0, 1], weight=x[0, :2]),
     "[cross_entropy] expected weights [3] for classes of [2, 3], got [2]"),
    (lambda x: x.huber_loss(x, delta=0), "[huber_loss] expected a delta above 0, got 0"),
    (lambda x: x.smooth_l1_loss(x, beta=-1), "[smooth_l1_loss] expected a beta of 0 or more, got -1"),
    (lambda x: x.sum().kl_div(x.sum(), "batchmean"), "[kl_div] expected a first axis for reduction 'batchmean'"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor.zeros(2, 3))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_every_prediction_with_every_target_is_a_warning(name: str) -> None:
    with config(device="NUMPY"):
        x, y = Tensor(normal(5, 1)), Tensor(normal(5, seed=1))
        with pytest.warns(UserWarning, match=r"a target that broadcasts to \[5, 1\].*differences are \[5, 5\]"):
            assert getattr(x, name)(y.tolist(), reduction="none").shape == (5, 5)
        with pytest.warns(UserWarning, match=r"\[5, 1\] or predictions that do to its shape, got \[5\]"):
            assert getattr(x, name)(y, reduction="none").shape == (5, 5)
        assert getattr(x, name)(y.reshape(5, 1), reduction="none").shape == (5, 1)  # and no warning: it were an error
        assert getattr(x, name)(0.5, reduction="none").shape == getattr(x, name)(y[:1], reduction="none").shape
