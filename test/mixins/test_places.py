"""Indices along an axis, diagonals, histograms, distances, statistics and products: against torch, and by hand."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import normal
from support.places import X, both, i

from minigrad import Tensor, config, jit, nn
from minigrad.errors import DTypeError, MinigradError, ShapeError

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    torch = None

INDEX = np.array([2, 0, 2])
PLACES = np.array([[0, 2, 1, 1, 3], [2, 2, 0, 1, 3]])
SAME: list[Callable[[Any, Any], Any]] = [
    # methods of both, of x [4, 5] and y [4, 5], both with gradients
    lambda x, y: x.index_add(0, i(x, INDEX), y[:3]), lambda x, y: x.index_add(1, i(x, INDEX), y[:, :3], alpha=2),
    lambda x, y: x.index_copy(0, i(x, INDEX[1:]), y[:2]), lambda x, y: x.index_fill(1, i(x, INDEX), 7),
    lambda x, y: x.take_along_dim(i(x, PLACES), 0), lambda x, y: x.take_along_dim(i(x, PLACES[:1]), 1),
    lambda x, y: x.take_along_dim(i(x, INDEX)),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "sum", include_self=False),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "mean"),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "mean", include_self=False),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "amax", include_self=False),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "amin"),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "prod"),
    lambda x, y: x.scatter_reduce(0, i(x, PLACES), y[:2], "prod", include_self=False),
    lambda x, y: x.relu().scatter_reduce(0, i(x, PLACES), y[:2].relu(), "prod"), lambda x, y: x.take(i(x, PLACES)),
    lambda x, y: x[:, :0].diff(), lambda x, y: x[:, :0].logsumexp(1), lambda x, y: x[:0].logcumsumexp(0),
    lambda x, y: x.masked_scatter(i(x, X > 0), y), lambda x, y: x.masked_scatter(i(x, X[0] > 0), y),
    lambda x, y: x.diagonal(1), lambda x, y: x.diagonal(-2), lambda x, y: x.diag(-1),
    lambda x, y: x.reshape(2, 5, 2).diagonal(1, 2, 1), lambda x, y: x.reshape(2, 2, 5).diagonal(0, -1, 0),
    lambda x, y: x[0].diag(2), lambda x, y: x.diag_embed(), lambda x, y: x.diag_embed(-1, 0, 2),
    lambda x, y: x.diagflat(1),
    lambda x, y: x.norm(1, dim=1), lambda x, y: x.norm(p=3, dim=0), lambda x, y: x.norm(p=math.inf, dim=1),
    lambda x, y: x.norm(p=-1, dim=1), lambda x, y: x.norm(p="fro"), lambda x, y: (x * 0).norm(dim=1),
    lambda x, y: (x * 0 + 1).std(dim=1), lambda x, y: (x * 0).norm(p=3, dim=1), lambda x, y: x.dist(y, 3),
    lambda x, y: x.cov(), lambda x, y: x[0].cov(), lambda x, y: x.cov(correction=0), lambda x, y: x.corrcoef(),
    lambda x, y: x.quantile(0.3), lambda x, y: x.quantile(0.5, 1), lambda x, y: x.quantile(0.25, 0, True),
    lambda x, y: x.quantile(i(x, np.array([0, 0.1, 1], np.float32)), 1),
    lambda x, y: x.quantile(i(x, np.array([0.2, 0.9], np.float32)), 0, True),
    lambda x, y: x.aminmax(dim=1)[0], lambda x, y: x.aminmax(dim=1)[1],
    lambda x, y: x.inner(y), lambda x, y: x[0].inner(y[0]), lambda x, y: x[:, :3].cross(y[:, 1:4], dim=1),
    lambda x, y: x[:3].cross(y[1:], dim=0), lambda x, y: x[:, :4].matrix_power(3),
    lambda x, y: x[:, :4].matrix_power(0),
    lambda x, y: x.reshape(2, 2, 5).baddbmm(y.reshape(2, 2, 5), y[0].diag().reshape(1, 5, 5).expand(2, 5, 5), alpha=2),
    lambda x, y: x.fmax(y), lambda x, y: x.fmin(y), lambda x, y: x.hypot(y), lambda x, y: x.atan2(y),
    lambda x, y: x.exp().xlogy(y.exp()), lambda x, y: x.xlogy(3),
    lambda x, y: x.double().xlogy(y.abs().int() + 3), lambda x, y: (x * 9).fmod(y), lambda x, y: x.sinc(),
    lambda x, y: (x / (y - y[0])).nan_to_num(1.0, 2.0, 3.0), lambda x, y: x.deg2rad(), lambda x, y: x.rad2deg(),
    lambda x, y: x.sigmoid().logit(0.3), lambda x, y: x.copysign(-1.0), lambda x, y: x.add(y, alpha=3),
]
OTHER: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    (lambda x, y: x.normalize(), lambda x, y: F.normalize(x)),
    (lambda x, y: (x * 0).normalize(p=1, dim=0), lambda x, y: F.normalize(x * 0, p=1, dim=0)),
    (lambda x, y: x.cosine_similarity(y), lambda x, y: F.cosine_similarity(x, y)),
    (lambda x, y: x.cosine_similarity(y[:1] * 0, dim=0), lambda x, y: F.cosine_similarity(x, y[:1] * 0, dim=0)),
    (lambda x, y: x.pairwise_distance(y), lambda x, y: F.pairwise_distance(x, y)),
    (lambda x, y: x.pairwise_distance(y, 1, keepdim=True), lambda x, y: F.pairwise_distance(x, y, 1, keepdim=True)),
    (lambda x, y: x.cdist(y[:3]), lambda x, y: torch.cdist(x, y[:3])),
    (lambda x, y: x.cdist(x), lambda x, y: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")),
    (lambda x, y: x.reshape(2, 2, 5).cdist(y[:3], 1), lambda x, y: torch.cdist(x.reshape(2, 2, 5), y[:3], 1)),
    (lambda x, y: x.kron(y[:2, :3]), lambda x, y: torch.kron(x, y[:2, :3])),
    (lambda x, y: x[0].kron(y), lambda x, y: torch.kron(x[0], y)),
    (lambda x, y: x.tensordot(y, ([0], [0])), lambda x, y: torch.tensordot(x, y, ([0], [0]))),
    (lambda x, y: x.tensordot(y.t(), 1), lambda x, y: torch.tensordot(x, y.t(), 1)),
    (lambda x, y: x.tensordot(y, 0), lambda x, y: torch.tensordot(x, y, 0)),
    (lambda x, y: Tensor.block_diag(x, y[:1]), lambda x, y: torch.block_diag(x, y[:1])),
    (lambda x, y: Tensor.einsum("ij,ii,kk->ik", x[:, :4], y[:, :4], x[1:, :3]),
     lambda x, y: torch.einsum("ij,ii,kk->ik", x[:, :4], y[:, :4], x[1:, :3])),
    (lambda x, y: Tensor.einsum("iji...->j...", x.reshape(2, 5, 2)),
     lambda x, y: torch.einsum("iji...->j...", x.reshape(2, 5, 2))),
    (lambda x, y: x.prelu(y[0]), lambda x, y: F.prelu(x, y[0])),
    (lambda x, y: x.prelu(y[0, :1]), lambda x, y: F.prelu(x, y[0, :1])),
    (lambda x, y: x.celu(0.7), lambda x, y: F.celu(x, 0.7)),
    (lambda x, y: x[:, :4].glu(), lambda x, y: F.glu(x[:, :4])),
    (lambda x, y: x.softmin(1), lambda x, y: F.softmin(x, 1)),
    (lambda x, y: x.hardshrink(), lambda x, y: F.hardshrink(x)),
    (lambda x, y: x.softshrink(0.3), lambda x, y: F.softshrink(x, 0.3)),
    (lambda x, y: x.tanhshrink(), lambda x, y: F.tanhshrink(x)),
    (lambda x, y: x.threshold(0.1, 5), lambda x, y: F.threshold(x, 0.1, 5)),
]


@needs_torch
@pytest.mark.parametrize("run", SAME)
def test_as_torch(run: Callable[[Any, Any], Any]) -> None:
    with config(device="NUMPY"):
        both(run, run)


@needs_torch
@pytest.mark.parametrize("ours, theirs", OTHER)
def test_functions_of_torch(ours: Callable[[Any, Any], Any], theirs: Callable[[Any, Any], Any]) -> None:
    with config(device="NUMPY"):
        both(ours, theirs)


@pytest.mark.parametrize("device", devices())
def test_by_hand(device: str) -> None:
    with config(device=device):
        x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        assert x.index_add(0, [0, 0], x[1:]).tolist()[0] == [12, 15, 18, 21] and x.diagonal(1).tolist() == [1, 6, 11]
        assert x.index_fill(1, [0], -1)[:, 0].tolist() == [-1, -1, -1] and x[0, 1:3].diag_embed(1).tolist() == [
            [0, 1, 0], [0, 0, 2], [0, 0, 0]]
        assert x.take_along_dim(x.argmax(1, keepdim=True), 1).tolist() == [[3], [7], [11]]
        assert x.scatter_reduce(0, [[1, 1, 1, 1]], Tensor.zeros(1, 4), "mean").tolist()[1] == [2, 2.5, 3, 3.5]
        assert x.masked_scatter(x > 9, Tensor([1.0, 2.0])).tolist()[2] == [8, 9, 1, 2]
        assert Tensor([3.0, 4.0]).norm().item() == 5 and x.quantile(0.5).item() == 5.5
        assert x.cdist(x).tolist()[0] == [0, 8, 16] and x[:, :2].kron(Tensor([[1.0], [2.0]])).shape == (6, 2)
        assert Tensor([1.0, 0, 0]).cross(Tensor([0.0, 1, 0])).tolist() == [0, 0, 1]
        np.testing.assert_allclose(x.cov().numpy(), np.cov(x.numpy()), rtol=1e-6)
        assert Tensor([np.nan, np.inf, -np.inf, 1]).nan_to_num().tolist() == [
            0, np.finfo(np.float32).max, np.finfo(np.float32).min, 1]
        assert Tensor([np.nan, 1.0]).quantile(0.5).isnan().item() and Tensor([1, 5, 2]).one_hot().shape == (3, 6)
        assert Tensor([-1.0, 0.0, 2.0]).heaviside(0.5).tolist() == [0, 0.5, 1]


@needs_torch
def test_triangles_and_histograms() -> None:
    with config(device="NUMPY"):
        for args in [(4, 5, 0), (3, 3, 1), (5, 2, -2), (0, 3, 0)]:
            np.testing.assert_array_equal(Tensor.tril_indices(*args).numpy(), torch.tril_indices(*args).numpy())
            np.testing.assert_array_equal(Tensor.triu_indices(*args).numpy(), torch.triu_indices(*args).numpy())
        values = np.append(normal(200), [2, -2, 7]).astype(np.float32)
        for bins, low, high in [(10, -2, 2), (7, 0, 0), (3, 0, 1)]:
            np.testing.assert_array_equal(Tensor(values).histc(bins, low, high).numpy(),
                                          torch.histc(torch.tensor(values), bins, low, high).numpy())
        values[3] = np.nan
        assert Tensor(values).histc(5, -9, 9).sum().item() == 202 and Tensor.ones(4).histc(3).tolist() == [0, 4, 0]


def test_empty_tensors() -> None:
    with config(device="NUMPY"):
        none = Tensor.zeros(0, 3)
        assert none.cdist(Tensor.ones(2, 3)).shape == (0, 2) and none.normalize().shape == (0, 3)
        assert none.diagonal().shape == (0,) and Tensor.ones(4, 5).diagonal(9).shape == (0,)
        assert none.diag_embed().shape == (0, 3, 3) and none.cov().shape == (0, 0)
        assert none.histc(4).tolist() == [0] * 4 and none.kron(Tensor.ones(2, 2)).shape == (0, 6)
        assert none.tensordot(none, ([0], [0])).tolist() == [[0.0] * 3] * 3
        assert none.index_add(0, np.zeros(0, np.int32), none).shape == (0, 3)
        assert Tensor.ones(3).index_add(0, [], Tensor.zeros(0)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    @jit
    def step(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return (x.index_add(0, index, x[:2]), x.diagonal(1), x.cdist(x), x.masked_scatter(x > 0, x.flatten()),
                x.histc(4, -2, 2), x.quantile(0.5, 1), x.atan(), x.asinh())

    for seed in range(3):
        x, index = normal(3, 4, seed=seed), np.array([seed, 2 - seed])
        got = [t.numpy() for t in step(Tensor(x, device=device).realize(), Tensor(index, device=device).realize())]
        expected = x.copy()
        np.add.at(expected, index, x[:2])
        np.testing.assert_allclose(got[0], expected, rtol=1e-6)
        np.testing.assert_array_equal(got[1], np.diagonal(x, 1))
        np.testing.assert_allclose(got[2], np.sqrt(((x[:, None] - x) ** 2).sum(-1)), rtol=1e-5, atol=1e-6)
        expected = x.copy()
        expected[x > 0] = x.flatten()[:(x > 0).sum()]
        np.testing.assert_array_equal(got[3], expected)
        np.testing.assert_array_equal(got[4], np.histogram(x, 4, (-2, 2))[0])
        np.testing.assert_allclose(got[5], np.median(x, 1), atol=1e-6)
        np.testing.assert_allclose(got[6], np.arctan(x), rtol=1e-6)
        np.testing.assert_allclose(got[7], np.arcsinh(x), rtol=1e-6)


@pytest.mark.parametrize("device", devices())
def test_inverses_are_accurate(device: str) -> None:
    """Within 4 units in the last place of float32, at the ends too; expm1 and its gradient where exp is large."""
    wide = np.concatenate([np.linspace(-30, 30, 4001), 10.0 ** np.arange(-30, 30, 2), -10.0 ** np.arange(-30, 30, 2)])
    unit = np.concatenate([np.linspace(-1, 1, 4001), 10.0 ** np.arange(-30, 0, 2)])
    for name, twin, values in [("atan", np.arctan, wide), ("asinh", np.arcsinh, wide), ("asin", np.arcsin, unit),
                               ("acos", np.arccos, unit), ("atanh", np.arctanh, unit), ("expm1", np.expm1, wide[:4001]),
                               ("acosh", np.arccosh, np.abs(wide) + 1), ("sinh", np.sinh, wide[:4001])]:
        x = values.astype(np.float32)
        with np.errstate(all="ignore"):
            expected = twin(x.astype(np.float64))
        got = getattr(Tensor(x, device=device), name)().numpy()
        np.testing.assert_allclose(got, expected, rtol=5e-7, atol=1e-37, err_msg=name)
    x = Tensor(np.array([-100.0, 0.0, 20.0, 80.0], np.float32), device=device)
    slope = x.expm1().sum().gradient(x)[0].numpy()
    np.testing.assert_allclose(slope, np.exp(x.numpy().astype(np.float64)), rtol=1e-6, atol=1e-7)


def test_the_inverse_of_erf() -> None:
    with config(device="CPU"):
        x = np.linspace(-0.9999, 0.9999, 999)
        np.testing.assert_allclose(Tensor(x).erfinv().erf().numpy(), x, atol=1e-13)
        np.testing.assert_allclose(Tensor(x.astype(np.float32)).erfinv().numpy(), Tensor(x.astype(np.float32).astype(
            np.float64)).erfinv().numpy(), rtol=2e-6, atol=1e-9)
        assert Tensor([-1.0, 1.0]).erfinv().tolist() == [-np.inf, np.inf] and Tensor([1.5]).erfinv().isnan().item()


def test_choices_by_gumbel() -> None:
    Tensor.manual_seed(0)
    with config(device="CPU"):
        x = Tensor(np.log(np.array([0.2, 0.5, 0.3], np.float32)), requires_grad=True)
        hard = x.expand(3000, 3).gumbel_softmax(hard=True)
        assert set(np.unique(hard.numpy().round(6))) == {0, 1}
        np.testing.assert_allclose(hard.mean(0).numpy(), [0.2, 0.5, 0.3], atol=0.04)
        soft = x.expand(50, 3).gumbel_softmax(0.5)
        np.testing.assert_allclose(soft.sum(1).numpy(), 1, rtol=1e-5)
        (soft[:, 0]).sum().backward()
        assert x.grad is not None and np.isfinite(x.grad.numpy()).all()


def test_axes_by_name() -> None:
    with config(device="NUMPY"):
        x = normal(2, 12, 3)
        t = Tensor(x)
        image = t.rearrange("b (h w) c -> b c h w", h=4)
        np.testing.assert_array_equal(image.numpy(), x.reshape(2, 4, 3, 3).transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(image.rearrange("b c h w -> b (h w) c").numpy(), x)
        patches = image.rearrange("b c (h p) (w q) -> (b h w) (p q c)", p=2, q=3)
        np.testing.assert_array_equal(patches.numpy(), image.numpy().reshape(2, 3, 2, 2, 1, 3).transpose(
            0, 2, 4, 3, 5, 1).reshape(4, 18))
        np.testing.assert_array_equal(t.rearrange("... c -> c ...").numpy(), x.transpose(2, 0, 1))
        assert t.rearrange("a ... -> (...) 1 a").shape == (36, 1, 2)
        assert t.rearrange("a b c -> b 1 (a c)").shape == (12, 1, 6) and Tensor(1.0).rearrange("-> 1").shape == (1,)
        assert Tensor.ones(2, 1).rearrange("a 1 -> a").shape == (2,)


def test_lists_and_dictionaries_of_layers() -> None:
    with config(device="NUMPY"):
        class Model:
            def __init__(self) -> None:
                self.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)]).append(nn.Linear(2, 3))
                self.heads = nn.ModuleDict({"mask": nn.Linear(3, 1), "box": nn.Linear(3, 4)})

        model = Model()
        names = list(nn.state.get_state_dict(model))
        assert names[:2] == ["blocks.0.weight", "blocks.0.bias"] and "heads.box.bias" in names and len(names) == 10
        assert len(nn.state.get_parameters(model)) == 10 and len(model.blocks.extend([nn.ReLU()])) == 4
        assert isinstance(model.blocks[1:], nn.ModuleList) and model.blocks[0](Tensor.ones(1, 2)).shape == (1, 2)
        assert list(model.heads.keys()) == ["mask", "box"]
        for wrong, message in [(lambda: nn.ModuleList(3),  # type: ignore[arg-type]
                                "[ModuleList] expected layers in a list, got int"),
                               (lambda: nn.ModuleDict({"a.b": nn.ReLU()}), "expected names without a dot, got 'a.b'")]:
            with pytest.raises(DTypeError) as caught:
                wrong()
            assert message in str(caught.value)


@pytest.mark.parametrize("run, message", [
    (lambda x: x.index_add(0, [0], x), "[index_add] expected a source [1, 3] for [2, 3] and 1 indices along axis 0"),
    (lambda x: x.take_along_dim(x[0].int(), 0), "[take_along_dim] expected indices of 2 axes for [2, 3], got [3]"),
    (lambda x: x.scatter_reduce(0, x.int(), x, "var"), "[scatter_reduce] expected reduce among sum, prod, mean"),
    (lambda x: x.masked_scatter(x, x), "[masked_scatter] expected a bool mask, got float32"),
    (lambda x: x[0].diagonal(), "[diagonal] expected a matrix and an integer offset, got [3] and 0"),
    (lambda x: x.diagonal(0, 1, 1), "[diagonal] expected two axes, got 1 and 1 of [2, 3]"),
    (lambda x: x.diag_embed(0.5), "[diag_embed] expected diagonals [..., N] and an integer offset, got [2, 3] and 0.5"),
    (lambda x: x.histc(0), "[histc] expected bins as an integer of 1 or more, got 0"),
    (lambda x: x.cdist(x[0]), "[cdist] expected x [..., P, D] and other [..., R, D] with equal D, got [2, 3] and [3]"),
    (lambda x: x.cross(x[:, :2]), "[cross] expected shapes that broadcast, got [2, 3] and [2, 2]"),
    (lambda x: x.quantile(1.5), "[quantile] expected q in 0..1, got 1.5"),
    (lambda x: x.tensordot(x, 1), "[tensordot] expected equal lengths, got [3] of [2, 3] and [2] of [2, 3]"),
    (lambda x: x.matrix_power(2), "[matrix_power] expected square matrices and n as an integer, got [2, 3]"),
    (lambda x: x.norm(p="max"), "[norm] expected p as a number, 'fro' or 'nuc', got 'max'"),
    (lambda x: x.glu(), "[glu] expected an even length along axis -1, got [2, 3]"),
    (lambda x: x.reshape(1, 2, 3).cov(), "[cov] expected variables [V, N], or [N] of one, got [1, 2, 3]"),
    (lambda x: x.rearrange("a b"), "[rearrange] expected a formula such as 'b (h w) c -> b c h w', got 'a b'"),
    (lambda x: x.rearrange("a b -> a"), "[rearrange] expected each name once on both sides"),
    (lambda x: x.rearrange("a (b c) -> a b c"), "[rearrange] expected lengths of b c whose product is 3, at most one"),
    (lambda x: x.rearrange("a (b c) -> a b c", b=2), "[rearrange] expected lengths of b c whose product is 3"),
    (lambda x: x.rearrange("a (b -> a b"), "[rearrange] expected brackets in pairs, none inside others"),
    (lambda x: x.rearrange("a b? -> a b"), "[rearrange] expected names, 1, ... and brackets, got '?'"),
    (lambda x: x.rearrange("a 1 -> a"), "[rearrange] expected lengths of 1 whose product is 3"),
    (lambda x: Tensor.block_diag(x.unsqueeze(0)), "[block_diag] expected at least one matrix, and at most 2 axes, got"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(MinigradError) as caught:
        run(Tensor.zeros(2, 3))
    assert message in str(caught.value) and isinstance(caught.value, (ShapeError, DTypeError))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("compute", [
    lambda t: t.layernorm(), lambda t: t.softmax(-1), lambda t: t.layernorm(0), lambda t: t - t.max(-1, keepdim=True),
    lambda t: t.flatten().softmax(0).reshape(*t.shape),
], ids=["layernorm", "softmax", "columns", "max", "all"])
def test_gradients_that_are_computed_by_rows_add_up(compute: Callable[[Tensor], Tensor], device: str) -> None:
    """Rows of a table that occur many times, normalised: a row's gradient is a sum over kernels that run by rows."""
    table, places, upstream = normal(6, 20), np.arange(300) * 7 % 5, normal(300, 20, seed=2)
    found = []
    for on in ("NUMPY", device):
        with config(device=on):
            t = Tensor(table, requires_grad=True)
            (compute(t.embedding(Tensor(places))) * Tensor(upstream)).sum().backward()
            index = Tensor(places).reshape(1, 300).expand(20, 300)
            added = Tensor.zeros(20, 8).scatter_add(1, index, compute(Tensor(upstream.T.copy())))
            assert t.grad is not None
            found.append((t.grad.numpy(), added.numpy()))
    for got, want in zip(*found[::-1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
