"""Losses of sequences and of sets of labels, bags of embeddings, and layers that draw numbers, against torch."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,attr-defined"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.beside_torch import check, normal
from support.places import i

from minigrad import Tensor, config, jit, nn
from minigrad.errors import ShapeError
from minigrad.nn import functional

try:
    import torch
except ImportError:
    torch = None

LOGITS = normal(7, 4, 5)
LABELS = np.array([[1, 1, 2, 4], [3, 1, 3, 1], [2, 0, 0, 0], [4, 4, 4, 4]])
TIMES, SIZES = np.array([7, 7, 5, 6]), np.array([3, 4, 1, 0])


@needs_torch
@pytest.mark.parametrize("options, device", [({}, "NUMPY"), ({}, "CPU"), ({"reduction": "none"}, "NUMPY"),
                                             ({"reduction": "sum", "blank": 0}, "NUMPY")])
def test_ctc(options: dict[str, Any], device: str) -> None:
    def run(module: Any, x: Any) -> Any:
        return module.ctc_loss(x.log_softmax(-1), i(x, LABELS), i(x, TIMES), i(x, SIZES), **options)

    with config(device=device):
        check(lambda x: run(functional, x), lambda x: run(torch.nn.functional, x), LOGITS)


@needs_torch
def test_ctc_in_other_forms() -> None:
    """Targets in one axis, another blank, lengths as tuples, one sequence, and what is too long for its time."""
    flat = np.concatenate([row[:n] for row, n in zip(LABELS, SIZES, strict=True)])
    with config(device="NUMPY"):
        for form in [
            lambda f, x: f.ctc_loss(x.log_softmax(-1), i(x, flat), tuple(TIMES.tolist()), tuple(SIZES.tolist())),
            lambda f, x: f.ctc_loss(x.log_softmax(-1), i(x, LABELS % 4), i(x, TIMES), i(x, SIZES), 4),
            lambda f, x: f.ctc_loss(x[:, 0].log_softmax(-1), i(x, LABELS[0, :3]), i(x, TIMES[0]), i(x, SIZES[0])),
            lambda f, x: f.ctc_loss(x[:, 0].log_softmax(-1), i(x, LABELS[0, :3]), i(x, TIMES[0]), i(x, SIZES[0]),
                                    reduction="none"),
            lambda f, x: f.ctc_loss(x[:3].log_softmax(-1), i(x, LABELS), i(x, np.full(4, 3)), i(x, SIZES),
                                    zero_infinity=True),
        ]:
            check(lambda x, form=form: form(functional, x), lambda x, form=form: form(torch.nn.functional, x), LOGITS)
        short = Tensor(LOGITS[:3]).log_softmax(-1).ctc_loss(LABELS, np.full(4, 3), SIZES, reduction="none")
        assert np.isinf(short.numpy()).tolist() == [True, True, False, False]  # 1 1 needs a blank in between


def test_ctc_inside_jit_and_by_hand() -> None:
    with config(device="CPU"):
        @jit
        def loss(x: Tensor, y: Tensor, n: Tensor) -> Tensor:
            return nn.CTCLoss(reduction="none")(x, y, Tensor([2, 2]), n)

        even = Tensor(np.full((2, 2, 3), np.log(1 / 3), np.float32)).realize()
        for sizes, ways in [((1, 1), [3, 3]), ((0, 1), [1, 3]), ((1, 2), [3, 1])]:  # 1: _1, 1_, 11
            got = loss(even, Tensor([[1, 2], [1, 2]]).realize(), Tensor(sizes).realize())
            np.testing.assert_allclose(np.exp(-got.numpy()) * 9, ways, rtol=1e-5)


X, Y = normal(4, 6), normal(4, 6, seed=1)
CLASSES = np.array([0, 5, 2, 2])
SETS = np.array([[3, 0, -1, 1, 1, 1], [5, 4, 3, 2, 1, 0], [-1, 0, 0, 0, 0, 0], [2, 2, 1, -1, 0, 0]])
BAG = np.array([[1, 2, 2], [0, 5, 1]])
ROWS: list[Callable[[Any, Any, Any], Any]] = [
    # of nn.functional, x [4, 6] and y [4, 6]
    lambda f, x, y: f.multi_margin_loss(x, i(x, CLASSES)),
    lambda f, x, y: f.multi_margin_loss(x, i(x, CLASSES), 2, 0.5, y[0].abs().detach(), reduction="none"),
    lambda f, x, y: f.multi_margin_loss(x[0], i(x, CLASSES[1])),
    lambda f, x, y: f.multilabel_margin_loss(x, i(x, SETS)),
    lambda f, x, y: f.multilabel_margin_loss(x, i(x, SETS), reduction="none"),
    lambda f, x, y: f.multilabel_margin_loss(x[0], i(x, SETS[0])),
    lambda f, x, y: f.multilabel_soft_margin_loss(x, i(x, (Y > 0).astype(np.float32))),
    lambda f, x, y: f.multilabel_soft_margin_loss(x, i(x, (Y > 0).astype(np.float32)), weight=y[0].abs().detach(),
                                                  reduction="sum"),
    lambda f, x, y: f.triplet_margin_with_distance_loss(x, y, x * y, margin=0.5, swap=True),
    lambda f, x, y: f.triplet_margin_with_distance_loss(x, y, x + 2 * y, distance_function=lambda a, b: (
        a - b).abs().sum(1), reduction="none"),
    *[lambda f, x, y, m=m: f.embedding_bag(i(x, BAG), x.t(), mode=m) for m in ("sum", "mean", "max")],
    *[lambda f, x, y, m=m: f.embedding_bag(i(x, BAG.ravel()), x.t(), i(x, np.array([0, 0, 2])), mode=m)
      for m in ("sum", "mean", "max")],
    lambda f, x, y: f.embedding_bag(i(x, BAG), x.t(), mode="sum", per_sample_weights=y[:2, :3]),
    lambda f, x, y: f.embedding_bag(i(x, BAG.ravel()), x.t(), i(x, np.array([0, 4, 6])), include_last_offset=True),
    lambda f, x, y: f.embedding_bag(i(x, BAG), x.t(), padding_idx=2),
    lambda f, x, y: f.embedding_bag(i(x, BAG.ravel()), x.t(), i(x, np.array([0, 3, 6])), mode="max", padding_idx=-5),
    lambda f, x, y: f.bilinear(x, y, (x[:, :5].t() @ y)[:, :, None] * y.t()[None, :, :1].reshape(1, 1, 6)),
    lambda f, x, y: f.local_response_norm(x.reshape(1, 4, 6), 3, 0.1), lambda f, x, y: f.pdist(x),
    lambda f, x, y: f.pdist(x, 1), lambda f, x, y: f.lp_pool1d(x.abs()[None], 2, 2),
    lambda f, x, y: f.lp_pool2d(x.abs()[None], 3, (2, 3), 1),
    lambda f, x, y: f.max_unpool1d(*f.max_pool1d(x[None], 2, return_indices=True), 2),
    lambda f, x, y: f.max_unpool3d(*f.max_pool3d(x.reshape(1, 1, 2, 2, 6), 2, return_indices=True), 2),
    lambda f, x, y: f.rrelu(x, 0.1, 0.5), lambda f, x, y: f.alpha_dropout(x, 0.5),
]


@needs_torch
@pytest.mark.parametrize("run", ROWS)
def test_functions_of_torch(run: Callable[[Any, Any, Any], Any]) -> None:
    with config(device="NUMPY"):
        check(lambda x, y: run(functional, x, y) + (x * y).sum() * 0,
              lambda x, y: run(torch.nn.functional, x, y) + (x * y).sum() * 0, X, Y)


def test_layers() -> None:
    with config(device="NUMPY"):
        bag = nn.EmbeddingBag(6, 3, mode="sum", padding_idx=1)
        assert bag.weight.numpy()[1].tolist() == [0, 0, 0] and bag(Tensor(BAG)).shape == (2, 3)
        np.testing.assert_allclose(bag(Tensor([2, 0, 1]), Tensor([0, 2])).numpy()[0], bag.weight.numpy()[[2, 0]].sum(0),
                                   rtol=1e-6)
        assert bag(Tensor(np.zeros(0, np.int32)), Tensor([0, 0])).tolist() == [[0] * 3] * 2
        x = Tensor(X)
        losses: list[tuple[Any, np.ndarray]] = [(nn.MultiMarginLoss(), CLASSES), (nn.MultiLabelMarginLoss(), SETS),
                                                (nn.MultiLabelSoftMarginLoss(), (Y > 0).astype(np.float32))]
        for loss, target in losses:
            assert loss(x, Tensor(target)).item() > 0
        assert nn.TripletMarginWithDistanceLoss(margin=9.0)(x, x + 1, x - 1).item() == pytest.approx(9, rel=1e-4)
        values, places = nn.MaxPool1d(2, return_indices=True)(x[None])
        assert nn.MaxUnpool1d(2)(values, places).shape == (1, 4, 6) and nn.LPPool1d(1, 2)(x.abs()[None]).shape[2] == 3
        np.testing.assert_allclose(nn.LPPool2d(2, 2)(x[None]).numpy()[0, 0, 0], np.sqrt((X[:2, :2] ** 2).sum()),
                                   rtol=1e-6)
        assert list(nn.ParameterDict({"a": [1.0], "b": x})) == ["a", "b"]


def test_layers_that_draw_numbers() -> None:
    Tensor.manual_seed(0)
    with config(device="CPU"):
        x = Tensor(normal(300, 8, 5)).selu()
        alpha, planes, slopes = nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU()
        assert alpha(x) is x and planes(x) is x
        array = x.numpy()
        np.testing.assert_allclose(slopes(x).numpy(), np.where(array >= 0, array, array * 11 / 48), rtol=1e-6)
        with Tensor.train():
            for layer in (alpha, planes):
                y = layer(x).numpy()
                assert abs(y.mean() - x.numpy().mean()) < 0.06 and abs(y.std() - x.numpy().std()) < 0.06
            left = np.isclose(y, y.min(), rtol=1e-5)
            assert set(left.sum(2).ravel().tolist()) == {0, 5} and 0.25 < left.mean() < 0.35
            ratio = (slopes(x).numpy() / x.numpy())[x.numpy() < 0]
            assert 1 / 8 - 1e-6 <= ratio.min() < 0.13 and 0.325 < ratio.max() < 1 / 3 + 1e-6


@pytest.mark.parametrize("run, message", [
    (lambda x: x.ctc_loss([[1]], [4], [1]), "[ctc_loss] expected log-probabilities [T, N, C] or [T, C], got"),
    (lambda x: Tensor.zeros(4, 2, 3).ctc_loss([[1]], [4, 4], [1, 1]), "[ctc_loss] expected targets [2, S] and lengths"),
    (lambda x: Tensor.zeros(4, 1, 3).ctc_loss([[1]], [4], [1], blank=3), "[ctc_loss] expected a blank in 0..2, got 3"),
    (lambda x: Tensor.zeros(4, 1, 3).ctc_loss([1, 2], [4], [1]), "[ctc_loss] expected target lengths that add up to 2"),
    (lambda x: functional.embedding_bag(Tensor([1]), Tensor.ones(2, 2)), "[embedding_bag] expected indices [bags, N]"),
    (lambda x: nn.EmbeddingBag(3, 2, mode="min"), "[EmbeddingBag] expected mode among sum, mean, max, got 'min'"),
    (lambda x: Tensor.ones(2, 3).multi_margin_loss([1, 2], p=3), "[multi_margin_loss] expected scores [N, C]"),
    (lambda x: Tensor.ones(2, 3).multilabel_margin_loss([1, 2]), "[multilabel_margin_loss] expected scores and labels"),
    (lambda x: functional.rrelu(x, 1.0, 0.5), "[rrelu] expected lower <= upper, got 1.0 and 0.5"),
    (lambda x: functional.alpha_dropout(x, 2.0, True), "[alpha_dropout] expected a probability in 0..1, got 2.0"),
    (lambda x: Tensor.ones(3).pdist(), "[pdist] expected rows [N, D], got [3]"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor(1.0))
    assert message in str(caught.value)
