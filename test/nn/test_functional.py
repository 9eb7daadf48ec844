"""`nn.functional` against torch's: the same expressions of both modules, values and gradients."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,call-arg"
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.beside_torch import check, normal

from minigrad import Tensor
from minigrad.errors import MinigradError
from minigrad.nn import functional

try:
    import torch
except ImportError:
    torch = None


pytestmark = pytest.mark.usefixtures("on_numpy")


X, IMAGE, SIGNAL, VOLUME = normal(4, 6), normal(2, 4, 6, 5), normal(2, 4, 7), normal(1, 2, 4, 3, 5)
CLASSES = np.array([0, 5, -100, 2])
PROBABILITIES = np.exp(X) / np.exp(X).sum(1, keepdims=True)
ROWS: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *[(lambda F, x, n=n: getattr(F, n)(x), (X,)) for n in (
        "relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid", "elu", "celu", "hardtanh", "sigmoid",
        "tanh", "logsigmoid", "softsign", "tanhshrink", "glu", "hardshrink", "softshrink", "leaky_relu", "gelu",
        "softplus", "normalize")],
    (lambda F, x: F.relu(x * 2, inplace=True) + x, (X,)), (lambda F, x: F.elu(x * 2, 0.5, inplace=True), (X,)),
    (lambda F, x: F.leaky_relu(x, negative_slope=0.3), (X,)), (lambda F, x: F.hardtanh(x, -0.5, 0.2), (X,)),
    (lambda F, x: F.threshold(x, 0.1, 3.0), (X,)), (lambda F, x, w: F.prelu(x, w), (X, normal(6))),
    (lambda F, x: F.softmax(x, dim=0), (X,)), (lambda F, x: F.log_softmax(x, -1), (X,)),
    (lambda F, x: F.softmin(x, dim=1), (X,)), (lambda F, x: F.gelu(x, approximate="tanh"), (X,)),
    (lambda F, x, w, b: F.linear(x, w, b), (X, normal(3, 6), normal(3))),
    (lambda F, x, w: F.linear(x, w), (X, normal(6))),
    (lambda F, i, w: F.embedding(i, w, padding_idx=-1), (np.array([[0, 4], [2, 0]]), normal(5, 3))),
    (lambda F, x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2), (IMAGE, normal(6, 2, 3, 2), normal(6))),
    (lambda F, x, w: F.conv2d(x, w, padding="same", dilation=2), (IMAGE, normal(3, 4, 3, 2))),
    (lambda F, x, w: F.conv1d(x, w, stride=2, padding="valid"), (SIGNAL, normal(3, 4, 3))),
    (lambda F, x, w: F.conv3d(x, w, None, 1, (1, 0, 2)), (VOLUME, normal(3, 2, 3, 2, 3))),
    (lambda F, x, w, b: F.conv_transpose2d(x, w, b, 2, (1, 0), 1, 2), (IMAGE, normal(4, 3, 3, 2), normal(6))),
    (lambda F, x, w: F.conv_transpose1d(x, w, dilation=2), (SIGNAL, normal(4, 3, 3))),
    (lambda F, x: F.unfold(x, (3, 2), padding=1), (IMAGE,)), (lambda F, x: F.fold(x, (3, 4), 2), (normal(2, 8, 6),)),
    (lambda F, x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)), (lambda F, x: F.max_pool2d(x, 2, ceil_mode=True), (IMAGE,)),
    (lambda F, x: F.max_pool2d(x, 2, return_indices=True)[0], (IMAGE,)),
    (lambda F, x: F.max_pool1d(x, 2, 1), (SIGNAL,)),
    (lambda F, x: F.max_pool3d(x, 2, 1), (VOLUME,)), (lambda F, x: F.avg_pool2d(x, (3, 2), 2, (1, 0)), (IMAGE,)),
    (lambda F, x: F.avg_pool1d(x, 3, 2, 1, True, False), (SIGNAL,)), (lambda F, x: F.avg_pool3d(x, 2, 1), (VOLUME,)),
    (lambda F, x: F.adaptive_avg_pool2d(x, (3, None)), (IMAGE,)), (lambda F, x: F.adaptive_avg_pool1d(x, 3), (SIGNAL,)),
    (lambda F, x: F.adaptive_avg_pool3d(x, 2), (VOLUME,)), (lambda F, x: F.adaptive_max_pool2d(x, 4), (IMAGE,)),
    (lambda F, x: F.adaptive_max_pool1d(x, 4), (SIGNAL,)),
    (lambda F, x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), (IMAGE,)),
    (lambda F, x: F.interpolate(x, (3, 4)), (IMAGE,)),
    (lambda F, x, t: F.grid_sample(x, F.affine_grid(t, (2, 4, 3, 3), align_corners=False), align_corners=False),
     (IMAGE, normal(2, 2, 3) * 0.3)),
    (lambda F, x: F.pixel_shuffle(x, 2), (IMAGE,)), (lambda F, x: F.pixel_unshuffle(x[:, :, :, :4], 2), (IMAGE,)),
    (lambda F, x: F.pad(x, (1, 2)), (X,)), (lambda F, x: F.pad(x, (1, 2, 0, 1), value=2.5), (X,)),
    (lambda F, x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (IMAGE,)),
    (lambda F, x: F.pad(x, (1, 2), "replicate"), (SIGNAL,)),
    (lambda F, x, w, b: F.layer_norm(x, (6,), w, b), (X, normal(6), normal(6))),
    (lambda F, x: F.layer_norm(x, (6, 5)), (IMAGE,)), (lambda F, x, w: F.rms_norm(x, (6,), w), (X, normal(6))),
    (lambda F, x, w, b: F.group_norm(x, 2, w, b), (IMAGE, normal(4), normal(4))),
    (lambda F, x: F.instance_norm(x), (IMAGE,)),
    (lambda F, x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach() ** 2, w, b),
     (IMAGE, normal(4), normal(4), normal(4), normal(4, seed=1))),
    (lambda F, x, w, b: F.batch_norm(x, None, None, w, b, training=True), (IMAGE, normal(4), normal(4))),
    (lambda F, x, y: F.cosine_similarity(x, y, dim=1), (X, normal(4, 6, seed=1))),
    (lambda F, x, y: F.pairwise_distance(x, y), (X, normal(4, 6, seed=1))),
    (lambda F, x: F.dropout(x, 0.5, training=False), (X,)), (lambda F, x: F.dropout2d(x, 1.0, training=True), (IMAGE,)),
    (lambda F, x, t: F.cross_entropy(x, t, label_smoothing=0.1), (X, CLASSES)),
    (lambda F, x, t: F.nll_loss(F.log_softmax(x, 1), t), (X, CLASSES)),
    (lambda F, x, t: F.cross_entropy(x, t, reduction="sum", ignore_index=5), (X, np.abs(CLASSES) % 6)),
    (lambda F, x, t: F.binary_cross_entropy(F.sigmoid(x), t.detach()), (X, PROBABILITIES)),
    (lambda F, x, t: F.binary_cross_entropy_with_logits(x, t, reduction="sum"), (X, PROBABILITIES)),
    *[(lambda F, x, y, n=n: getattr(F, n)(x, y), (X, normal(4, 6, seed=1))) for n in (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")],
    (lambda F, x, y: F.smooth_l1_loss(x, y, beta=0.3, reduction="none"), (X, normal(4, 6, seed=1))),
    (lambda F, x, t: F.kl_div(F.log_softmax(x, 1), t.detach(), reduction="batchmean"), (X, PROBABILITIES)),
    (lambda F, x, y, z: F.triplet_margin_loss(x, y, z, margin=0.5), (X, normal(4, 6, seed=1), normal(4, 6, seed=2))),
    (lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
     (normal(1, 2, 5, 4), normal(1, 2, 5, 4, seed=1), normal(1, 2, 5, 4, seed=2))),
]


@needs_torch
@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_as_torch(row: tuple[Callable[..., Any], tuple[np.ndarray, ...]]) -> None:
    run, arrays = row
    check(lambda *x: run(functional, *x), lambda *x: run(torch.nn.functional, *x), *arrays, tolerance=2e-5)


def test_by_hand() -> None:
    """Where torch is missing too: defaults that differ from those of the methods, and modes."""
    x = Tensor([-1.0, 0.0, 2.0])
    assert functional.gelu(x).numpy()[2] == pytest.approx(1.9544997) and x.gelu().numpy()[2] == pytest.approx(1.9545977)
    assert functional.cross_entropy(Tensor([[0.0, 0.0], [9.0, 1.0]]), Tensor([1, -100])).item() == pytest.approx(
        np.log(2))
    y = x * 1
    assert functional.relu(y, inplace=True) is y and y.tolist() == [0, 0, 2]
    assert set(np.unique(functional.dropout(Tensor.ones(500)).numpy())) == {0, 2}
    assert functional.one_hot(Tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    mean, var = Tensor.zeros(1), Tensor.ones(1)
    out = functional.batch_norm(Tensor([[1.0], [3.0]]), mean, var, training=True)
    np.testing.assert_allclose(out.numpy()[:, 0], [-1, 1], rtol=1e-4)
    np.testing.assert_allclose([mean.item(), var.item()], [0.2, 1.1], rtol=1e-6)
    mean, var = Tensor.zeros(1), Tensor.ones(1)
    functional.instance_norm(Tensor([[[1.0, 3.0]]]), mean, var)
    np.testing.assert_allclose([mean.item(), var.item()], [0.2, 1.1], rtol=1e-6)
    assert functional.max_pool2d(Tensor.ones(1, 1, 4, 4), 3, 1, 1).shape == (1, 1, 4, 4)


@needs_torch
def test_names_and_arguments_are_torchs() -> None:
    """Every public function has a namesake in torch; what both write out as arguments by place, agrees."""
    mine = {n: f for n, f in vars(functional).items() if inspect.isfunction(f) and not n.startswith("_")
            and n not in ("as_count", "as_tensor", "product", "projected", "result_of", "rounded_once")}
    compared = 0
    for name, function in mine.items():
        theirs = getattr(torch.nn.functional, name)
        written = inspect.signature(function).parameters.values()
        ours = [p.name for p in written if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "_stacklevel"]
        if not inspect.isfunction(theirs) or "self" in ours or any(p.kind is p.VAR_POSITIONAL for p in written):
            continue
        known = [p for p in inspect.signature(theirs).parameters.values() if p.name != "_stacklevel"]
        if not any(p.kind is p.VAR_POSITIONAL for p in known):
            assert ours == [p.name for p in known][:len(ours)], name
            compared += 1
    assert len(mine) > 80 and compared > 30


@pytest.mark.parametrize("run, message", [
    (lambda F, x: F.conv2d(x, x, padding="full"), "[conv2d] expected padding as an integer, one per axis, 'valid'"),
    (lambda F, x: F.conv1d(x, x), "[conv1d] expected x of 3 axes, or 2 of one example"),
    (lambda F, x: F.layer_norm(x, (3,)), "[layer_norm] expected [..., 3], got [2, 3, 4, 4]"),
    (lambda F, x: F.group_norm(x, 2), "[group_norm] expected [N, C * 2, ...], got [2, 3, 4, 4]"),
    (lambda F, x: F.batch_norm(x, None, None), "[batch_norm] expected a Tensor, got NoneType"),
])
def test_mistakes(run: Callable[[Any, Tensor], object], message: str) -> None:
    with pytest.raises(MinigradError) as caught:
        run(functional, Tensor.zeros(2, 3, 4, 4))
    assert message in str(caught.value)
