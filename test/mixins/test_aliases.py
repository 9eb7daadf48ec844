"""Names of PyTorch that other methods already serve, and losses and activations, against torch."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, nn
from minigrad.errors import DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="torch is the second opinion here")
F = torch.nn.functional


pytestmark = pytest.mark.usefixtures("on_numpy")


BOTH: list[Callable[[Any], Any]] = [
    lambda x: x.t(), lambda x: x.mT, lambda x: x.ravel(), lambda x: x.swapaxes(0, 1), lambda x: x.movedim(0, -1),
    lambda x: x.reshape(2, 2, 6).movedim(2, 0), lambda x: x.narrow(1, 2, 3), lambda x: x.unbind(1)[2],
    lambda x: x.tile((2,)), lambda x: x.tile((2, 1, 3)), lambda x: x.mm(x.t()), lambda x: x.mv(x[1]),
    lambda x: x.reshape(2, 2, 6).bmm(x.reshape(2, 6, 2)), lambda x: x.amax(1), lambda x: x.amin(0, True),
    lambda x: (x > 0).logical_and(x < 1), lambda x: x.logical_or(x * 0), lambda x: x.logical_xor(x * 0),
    lambda x: x.expm1(), lambda x: (x * 1e-4).expm1(), lambda x: (x * 50).expm1(), lambda x: x.logaddexp(x.flip((0,))),
    lambda x: (x * 1e3).logaddexp(-x), lambda x: x.isclose(x + 1e-7),
    lambda x: x.diagonal(), lambda x: x.diag(), lambda x: x[0].diag(), lambda x: x[:, :3].trace(),
    lambda x: x.select(1, 2), lambda x: x.diff(), lambda x: x.diff(dim=0), lambda x: x.flipud(), lambda x: x.fliplr(),
    lambda x: x.view_as(x.t()), lambda x: x.moveaxis(0, 1), lambda x: x.swapdims(0, 1), lambda x: x.type_as(x > 0),
    lambda x: x.abs().byte(), lambda x: x.char(), lambda x: x.short(), lambda x: x.cpu(), lambda x: x.new_zeros(2, 3),
    lambda x: x.new_ones((3,)), lambda x: x.new_full((2,), 3.5),
    lambda x: x[:, :4].exp().addmm(x.abs(), x.abs().t(), alpha=2),
    lambda x: x.absolute(), lambda x: x.negative(), lambda x: x.subtract(x * 2), lambda x: x.multiply(3),
    lambda x: x.divide(2), lambda x: x.true_divide(x), lambda x: x.floor_divide(0.3), lambda x: x.remainder(0.75),
    lambda x: x.less(0), lambda x: x.less_equal(0), lambda x: x.greater(0), lambda x: x.greater_equal(x),
    lambda x: x.not_equal(x), lambda x: x.clamp_min(0.1), lambda x: x.clamp_max(0.1), lambda x: x.frac(),
    lambda x: x.addcmul(x, x, value=2), lambda x: x.addcdiv(x, x.exp(), value=2), lambda x: x.sigmoid().logit(),
    lambda x: (x / 0).isposinf(), lambda x: (x / 0).isneginf(), lambda x: (x * 0 / 0 * x).nansum(),
    lambda x: x.log().nansum(dim=1), lambda x: x.log().nanmean(dim=0, keepdim=True),
    lambda x: x.sum(dim=1), lambda x: x.mean(dim=(0, 1)), lambda x: x.prod(dim=0), lambda x: (x > 1).any(dim=0),
    lambda x: (x > -1).all(dim=1, keepdim=True), lambda x: x.var(dim=1), lambda x: x.std(dim=0, keepdim=True),
    lambda x: x.norm(dim=1), lambda x: x.argmax(dim=1), lambda x: x.argmin(dim=0), lambda x: x.logsumexp(dim=-1),
    lambda x: x.softmax(dim=0), lambda x: x.log_softmax(dim=1), lambda x: x.cumsum(dim=1), lambda x: x.amax(dim=0),
    lambda x: x.amin(dim=(0, 1)), lambda x: x.round().count_nonzero(dim=1),
    lambda x: x.roll((1, -2), (0, 1)), lambda x: x.roll(3), lambda x: x.roll(-1, (1,)),
    lambda x: x.reshape(4, 1, 6, 1).squeeze((1, 3)), lambda x: x.reshape(2, 2, 2, 3).movedim((0, 1), (-1, 0)),
    lambda x: x.logcumsumexp(1), lambda x: (x * 90).logcumsumexp(0), lambda x: x.repeat(1, 80).logcumsumexp(1),
    lambda x: x[0].vdot(x[1]), lambda x: x[:, 0].addmv(x, x[0], alpha=2), lambda x: x[:, :3].addr(x[:, 0], x[0, :3]),
    lambda x: x.rot90(), lambda x: x.rot90(2), lambda x: x.rot90(-1, (1, 0)), lambda x: x.tensor_split(4, 1)[1],
    lambda x: x.tensor_split((1, 3))[2], lambda x: x.tensor_split((3, 1))[1], lambda x: x.topk(2, sorted=True)[0],
    lambda x: x.sort(dim=1, descending=True, stable=True)[0], lambda x: x.argsort(dim=0, stable=True),
    lambda x: x.slice_scatter(x[:2] * 2, 0, 1, 3), lambda x: x.select_scatter(x[0] * 2, 0, 2),
    lambda x: (x > 0).argwhere(), lambda x: x.new_tensor([1.0, 2.0]),
    lambda x: x.log10(), lambda x: x.sinh(), lambda x: x.cosh(), lambda x: x.lerp(x * 2, 0.3), lambda x: x.expand_as(x),
]


@pytest.mark.parametrize("run", BOTH)
def test_as_in_torch(run: Callable[[Any], Any]) -> None:
    values = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    expected = run(torch.tensor(values)).numpy()
    np.testing.assert_allclose(run(Tensor(values)).numpy(), expected, rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["mish", "selu", "softsign", "hardtanh", "hardsigmoid", "hardswish", "logsigmoid"])
def test_activations_as_in_torch(name: str) -> None:
    values = np.linspace(-5, 5, 41, dtype=np.float32)
    np.testing.assert_allclose(getattr(Tensor(values), name)().numpy(), getattr(F, name)(torch.tensor(values)).numpy(),
                               rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_as_in_torch(reduction: str) -> None:
    values = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    classes = np.array([0, 5, 2, 2], np.int32)
    x, t = Tensor(values), torch.tensor(values)
    rows = [(x.mse_loss(x * 2, reduction), F.mse_loss(t, t * 2, reduction=reduction)),
            (x.l1_loss(x * 2, reduction), F.l1_loss(t, t * 2, reduction=reduction)),
            (x.nll_loss(Tensor(classes), reduction), F.nll_loss(t, torch.tensor(classes).long(), reduction=reduction))]
    for ours, theirs in rows:
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_counts_and_closeness() -> None:
    x = Tensor([[1.0, 0.0], [np.nan, np.inf]])
    assert x.dim() == 2 and x.nelement() == 4 and x.count_nonzero(0).tolist() == [2, 1]
    assert x[0].allclose(x[0] + 1e-9) and not x.allclose(x) and not x[0].allclose([1.0, 0.1])
    assert x[1, 1:].allclose([np.inf]) and not x[0].allclose(np.inf)
    assert x.isnan().equal([[False, False], [True, False]]) and not x.equal(x) and not x[0].equal(x[0, :1])
    with pytest.raises(ShapeError, match="expected a matrix"):
        Tensor.ones(1, 2, 3).trace()
    with pytest.raises(ShapeError, match="at most 2 axes"):
        Tensor.ones(1, 2, 3).t()


def test_extremes_with_their_indices_and_masks_of_bools() -> None:
    """`dim` by name gives values and indices, with gradients to the first of equal ones; triangles and filled masks of
    bools stay bools, and integers are no masks of attention."""
    x = np.array([[1, 3, 3], [np.nan, 5, np.inf], [-2, -2, -7]], np.float32)
    for name in ("max", "min"):
        for dim, keepdim in ((0, False), (-1, True)):
            ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
            got = getattr(ours, name)(dim=dim, keepdim=keepdim)
            want = getattr(theirs, name)(dim=dim, keepdim=keepdim)
            np.testing.assert_array_equal(got.values.numpy(), want.values.detach().numpy())
            np.testing.assert_array_equal(got.indices.numpy(), want.indices.numpy())
            values, _ = got
            (values * 2).sum().backward(), (want.values * 2).sum().backward()
            np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())  # type: ignore[union-attr]
    assert Tensor(3.0).max(dim=0).values.item() == 3 and Tensor(x).max(1).shape == (3,)
    mask = Tensor.ones(3, 3, dtype="bool")
    assert mask.tril().dtype.name == mask.triu(1).dtype.name == mask.masked_fill(mask, 0).dtype.name == "bool"
    assert mask.tril().tolist() == np.tri(3, dtype=bool).tolist()
    assert Tensor(x).flip(dims=(0,)).numpy()[0, 0] == -2
    q = Tensor.ones(1, 3, 4)
    with pytest.raises(DTypeError, match=r"a mask of bools, or of floats to add, got int32; use mask.bool"):
        q.scaled_dot_product_attention(q, q, mask.int())
    with pytest.raises(DTypeError, match=r"\[MultiheadAttention\] expected key_padding_mask of bools"):
        nn.MultiheadAttention(4, 1)(q, q, q, key_padding_mask=Tensor.zeros(3, 1, dtype="int32"))


def test_further_arguments_of_torch() -> None:
    x = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32) * 30
    for run in (lambda t: t.std(unbiased=False), lambda t: t.var(dim=1, unbiased=True), lambda t: t.round(decimals=1),
                lambda t: t.round(decimals=-1), lambda t: t.split(split_size=3, dim=1)[1], lambda t: t.max(-t),
                lambda t: t.min(t.flip(0))):
        np.testing.assert_allclose(run(Tensor(x)).numpy(), run(torch.tensor(x)).numpy(), rtol=1e-5)
    assert (Tensor(x) == None) is False and (Tensor(x) != None) is True  # noqa: E711


def test_nothing_to_unbind() -> None:
    assert Tensor.zeros(0, 3).unbind() == () and Tensor.zeros(2, 0).unbind(-1) == ()
    assert [part.shape for part in Tensor.zeros(2, 0).unbind()] == [(0,), (0,)]
