"""Arguments that are numbers, given as tensors: gradients go to them, or it is an error, and without one the tensor is
what the number is."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigrad.nn.functional as F
from minigrad import Tensor, linalg, nn
from minigrad.errors import DTypeError

pytestmark = pytest.mark.usefixtures("on_numpy")

A, PLANES = (np.random.default_rng(k).standard_normal(shape) for k, shape in ((0, (3, 4)), (1, (1, 2, 6, 6))))
LABELS = np.array([0, 1, 2])


def x() -> Tensor:
    return Tensor(A)


def image() -> Tensor:
    return Tensor(PLANES)


def above() -> Tensor:
    return Tensor(np.abs(A) + 0.5)


def seeded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(v: Any) -> Any:
        Tensor.manual_seed(3)
        return function(v)
    return run


Row = tuple[Callable[[Any], Any], float]
FLOWS: dict[str, Row] = {
    "gumbel_softmax": (seeded(lambda v: F.gumbel_softmax(x(), tau=v)), 0.7),
    "pad": (lambda v: F.pad(x(), (1, -1, 2, 0), value=v), 0.7),
    "pad of each axis": (lambda v: x().pad(((1, 1), (0, 2)), value=v), 0.7),
    "pad_sequence": (lambda v: nn.utils.rnn.pad_sequence([x()[0], x()[0, :2]], padding_value=v), 0.7),
    "scale": (lambda v: F.scaled_dot_product_attention(image(), image() * 2, image(), scale=v), 0.7),
    "scale, causal": (lambda v: image().scaled_dot_product_attention(image(), image(), is_causal=True, scale=v), 0.7),
    "normalize": (lambda v: F.normalize(x(), eps=v), 20.0),
    "cosine_similarity": (lambda v: x().cosine_similarity(x() * 2 + 1, eps=v), 20.0),
    "renorm": (lambda v: x().renorm(2.0, 0, v), 0.5), "logit": (lambda v: x().sigmoid().logit(v), 0.35),
    "huber_loss": (lambda v: F.huber_loss(x(), x() * 2, delta=v), 0.7),
    "smooth_l1_loss": (lambda v: F.smooth_l1_loss(x(), x() * 2, beta=v), 0.7),
    "triplet_margin_loss": (lambda v: F.triplet_margin_loss(x(), x() + 1, x() * 2, margin=v), 1.3),
    "margin_ranking_loss": (lambda v: F.margin_ranking_loss(x(), x() * 2, x().sign(), margin=v), 1.3),
    "dropout": (seeded(lambda v: F.dropout(x(), v)), 0.5), "leaky_relu": (lambda v: F.leaky_relu(x(), v), 0.2),
    "elu": (lambda v: F.elu(x(), v), 0.7), "softplus": (lambda v: F.softplus(x(), v), 1.3),
    "hardtanh": (lambda v: F.hardtanh(x(), -1.0, v), 0.3), "threshold": (lambda v: F.threshold(x(), 0.1, v), 0.7),
    "masked_fill": (lambda v: x().masked_fill(x() > 0, v), 0.7), "lerp": (lambda v: x().lerp(x() * 2, v), 0.7),
    "addmm": (lambda v: Tensor(np.ones((3, 3))).addmm(x(), x().T, alpha=v, beta=v), 0.7),
    "add": (lambda v: x().add(x() * 2, alpha=v), 0.7), "trapezoid": (lambda v: x().trapezoid(dx=v), 0.7),
    "local_response_norm": (lambda v: F.local_response_norm(image(), 2, alpha=v, beta=v, k=v), 0.8),
    "lp_pool2d": (lambda v: F.lp_pool2d(image().abs(), v, 2), 2.5), "quantile": (lambda v: x().quantile(v, 1), 0.4),
    "poisson_nll_loss": (lambda v: F.poisson_nll_loss(above(), above(), log_input=False, eps=v), 0.3),
}
REFUSED: dict[str, Row] = {
    "full": (lambda v: Tensor.full((2, 3), v), 0.7), "full_like": (lambda v: x().full_like(v), 0.7),
    "fill_diagonal_": (lambda v: x().clone().fill_diagonal_(v), 0.7),
    "nan_to_num": (lambda v: x().log().nan_to_num(v), 0.7), "linspace": (lambda v: Tensor.linspace(v, 2.0, 4), 0.1),
    "logspace": (lambda v: Tensor.logspace(0.0, 2.0, 4, base=v), 2.5),
    "arange": (lambda v: Tensor.arange(0, 2, v), 0.3),
    "hamming_window": (lambda v: Tensor.hamming_window(5, alpha=v), 0.5),
    "uniform": (seeded(lambda v: Tensor.uniform(3, low=v)), 0.1),
    "exponential_": (seeded(lambda v: x().clone().exponential_(v)), 1.3),
    "bernoulli_": (seeded(lambda v: x().clone().bernoulli_(v)), 0.3),
    "rrelu": (seeded(lambda v: F.rrelu(x(), v, training=True)), 0.1),
    "norm": (lambda v: x().norm(v), 2.5), "vector_norm": (lambda v: linalg.vector_norm(x(), v), 2.5),
    "cdist": (lambda v: x().cdist(x() + 1, p=v), 2.5), "dist": (lambda v: x().dist(x() * 2, v), 2.5),
    "layer_norm": (lambda v: F.layer_norm(x(), (4,), eps=v), 0.1),
    "rms_norm": (lambda v: F.rms_norm(x(), (4,), eps=v), 0.1),
    "group_norm": (lambda v: F.group_norm(image(), 2, eps=v), 0.1),
    "instance_norm": (lambda v: F.instance_norm(image(), eps=v), 0.1),
    "batch_norm": (lambda v: F.batch_norm(x(), None, None, training=True, eps=v), 0.1),
    "softcap": (lambda v: image().scaled_dot_product_attention(image(), image(), softcap=v), 2.0),
    "cross_entropy": (lambda v: F.cross_entropy(x(), Tensor(LABELS), label_smoothing=v), 0.1),
    "sparse_categorical_crossentropy": (
        lambda v: x().sparse_categorical_crossentropy(Tensor(LABELS), label_smoothing=v), 0.1),
    "gaussian_nll_loss": (lambda v: F.gaussian_nll_loss(x(), x() * 2, above() / 9, eps=v), 0.1),
    "var": (lambda v: x().var(1, correction=v), 1.3),
    "interpolate": (lambda v: F.interpolate(image(), scale_factor=v), 2.0),
    "embedding": (lambda v: F.embedding(Tensor([0, 2]), x(), max_norm=v), 0.5),
    "LeakyReLU": (lambda v: nn.LeakyReLU(v)(x()), 0.2), "ConstantPad1d": (lambda v: nn.ConstantPad1d(1, v)(x()), 0.7),
    "Softplus": (lambda v: nn.Softplus(v)(x()), 1.3), "LayerNorm": (lambda v: nn.LayerNorm(4, v)(x().float()), 0.1),
}


@pytest.mark.parametrize("name", FLOWS)
def test_gradients_go_to_numbers_in_tensors(name: str) -> None:
    function, value = FLOWS[name]
    given = Tensor(value, dtype="float64", requires_grad=True)
    y = function(given)
    weight = np.random.default_rng(2).standard_normal(y.shape)
    (y * Tensor(weight)).sum().backward()
    assert given.grad is not None
    with Tensor.no_grad():
        low, middle, high = (function(value + step).numpy() for step in (-1e-4, 0, 1e-4))
        np.testing.assert_allclose(function(given).numpy(), middle, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(y.detach().numpy(), middle, rtol=1e-6, atol=1e-7)
    assert given.grad.item() == pytest.approx(((high - low) * weight).sum() / 2e-4, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_a_gradient_says_so(name: str) -> None:
    function, value = REFUSED[name]
    given = Tensor(value, dtype="float64", requires_grad=True)
    with pytest.raises(DTypeError, match="got a tensor with requires_grad=True, to which no gradient goes"):
        function(given)
    want = function(value).numpy()
    np.testing.assert_allclose(function(given.detach()).numpy(), want, rtol=1e-6, atol=1e-7)
    with Tensor.no_grad():
        np.testing.assert_allclose(function(given).numpy(), want, rtol=1e-6, atol=1e-7)
