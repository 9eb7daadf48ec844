"""Where operations were once other than PyTorch's in silence: positions of arguments, types of results, NaN, infinities
and ties, halves that were rounded more than once."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, config
from minigrad.dtype import ALL, DType
from minigrad.errors import MinigradError
from minigrad.nn import functional as F

REDUCTIONS: dict[str, list[tuple]] = {
    "sum": [(), (1,), (1, True), ((0, 2), True)], "prod": [(), (1,), (1, True)], "any": [(), (1,), (1, True)],
    "all": [(), (1,), (1, True)], "mean": [(), (1,), (1, True), ((0, 1), True)], "amax": [(), (1,), (1, True)],
    "amin": [(), (1,), (1, True)], "argmax": [(), (1,), (1, True)], "argmin": [(), (1,), (1, True)],
    "var": [(), (True,), (False,), (1,), (1, False), (1, True, True), ((0, 2), False, True)],
    "std": [(), (True,), (False,), (1,), (1, False), (1, True, True), ((0, 2), False, True)],
    "var_mean": [(), (True,), (False,), (1,), (1, False), (1, True, True)],
    "std_mean": [(), (True,), (False,), (1,), (1, False), (1, True, True)],
    "norm": [(), (1,), (2,), (math.inf,), (1, 0), (3, (0, 1)), (2, 1, True), ("fro", 1), ("nuc", (0, 1))],
    "logsumexp": [(1,), (1, True)], "softmax": [(1,)], "log_softmax": [(1,)], "nansum": [(), (1,), (1, True)],
    "nanmean": [(), (1,), (1, True)], "count_nonzero": [(), (1,)], "cumsum": [(1,)], "cumprod": [(1,)],
    "logcumsumexp": [(1,)], "cummax": [(1,)], "cummin": [(1,)], "quantile": [(0.3,), (0.3, 1), (0.3, 1, True)],
    "nanquantile": [(0.3,), (0.3, 1, True)], "mode": [(1,), (1, True)], "kthvalue": [(2, 1), (2, 1, True)],
    "sort": [(1,), (1, True)], "topk": [(2, 1), (2, 1, False)], "renorm": [(2, 1, 0.5)], "diff": [(), (1,), (2, 1)],
    "aminmax": [()], "median": [()], "nanmedian": [()], "trapezoid": [()]}


@needs_torch
@pytest.mark.parametrize("name", REDUCTIONS)
def test_positions_of_reductions(name: str) -> None:
    """Every order of positions that PyTorch knows means the same here."""
    import torch

    x = np.random.default_rng(3).standard_normal((3, 4, 5)).astype(np.float32)
    for args in REDUCTIONS[name]:
        with config(device="NUMPY"):
            got = getattr(Tensor(x), name)(*args)
        expected = getattr(torch, name)(torch.from_numpy(x), *args)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for g, e in pairs:
            assert tuple(g.shape) == tuple(e.shape), (args, g.shape, e.shape)
            np.testing.assert_allclose(g.numpy(), e.numpy(), 1e-5, 1e-6, err_msg=str(args))


@needs_torch
@pytest.mark.parametrize("dtype", [d for d in ALL if d.name not in ("uint16", "uint32", "uint64")])
def test_types_of_results(dtype: DType) -> None:
    """Those of PyTorch, where it has the operation in a type."""
    import torch

    x, y = Tensor([0, 1, 1], dtype=dtype, device="NUMPY"), Tensor([1, 0, 1], dtype=dtype, device="NUMPY")
    kind = getattr(torch, dtype.name)
    tx, ty = torch.tensor([0, 1, 1]).to(kind), torch.tensor([1, 0, 1]).to(kind)

    def agrees(name: str, *operands: tuple) -> None:
        try:
            expected = getattr(tx, name)(*[o[1] for o in operands])
        except RuntimeError:
            return
        assert getattr(x, name)(*[o[0] for o in operands]).dtype.name == str(expected.dtype)[6:], name

    for name in ("sum", "prod", "any", "all", "square", "count_nonzero", "nansum", "amax", "abs", "sgn", "sqrt",
                 "exp", "isnan", "signbit", "logical_not"):
        agrees(name)
    for name in ("cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax"):
        agrees(name, (0, 0))
    for name in ("add", "mul", "div", "maximum", "heaviside", "hypot", "atan2", "xlogy", "fmax", "copysign", "eq",
                 "logical_and", "logaddexp"):
        agrees(name, (y, ty))
    assert x.addr(x, y).dtype is dtype and x.sum_to_size(3).dtype is dtype
    index = Tensor([0, 0, 1], device="NUMPY")
    for way in ("sum", "prod", "amax", "amin"):
        for own in (True, False):
            assert x.scatter_reduce(0, index, y, way, include_self=own).dtype is dtype, way
    if dtype.is_float:
        loss = x.reshape(1, 3).cross_entropy(Tensor([1], device="NUMPY"))
        assert loss.dtype is dtype and F.softmin(x, 0, dtype="float64").dtype.name == "float64"
    if dtype.is_int:
        assert x.hardtanh(-0.5, 0.5).dtype is dtype and x.hardtanh(-0.5, 0.5).tolist() == [0, 0, 0]


HALVES: dict[str, Callable[..., Any]] = {
    name: eval(f"lambda x, y, w: {name}") for name in (
        "x.addcmul(y, w)", "x.addcdiv(y, w, value=0.3)", "x.lerp(y, 0.4)", "x.lerp(y, w)", "x.sinc()", "x.tan()",
        "x.log2()", "x.log10()", "x.exp2()", "x.rsqrt()", "x.gelu()", "x.gelu('none')", "x.mish()", "x.softplus(2)",
        "x.elu()", "x.selu()", "x.celu()", "x.softsign()", "x.tanhshrink()", "x.hardswish()", "x.logsigmoid()",
        "x.tanh()", "x.sigmoid()", "x.silu()", "x.erf()", "x.asinh()", "x.atan2(y)", "x.hypot(y)", "x.logaddexp(y)",
        "x.xlogy(w)", "x / w", "x.softmax(0)", "x.log_softmax(1)", "x.logsumexp(0)", "x.mean(0)", "x.var(1)",
        "x.std(0)", "x.norm(3, 1)", "x.prod(0)", "x.cumprod(0)", "x.logcumsumexp(1)", "x.round(decimals=1)",
        "x.normalize(dim=0)", "x.cosine_similarity(y, 0)", "x.cdist(y)", "x.glu()", "x.mse_loss(y)", "x.logit(0.01)",
        "x.binary_cross_entropy_with_logits(w)", "x.gaussian_nll_loss(y, w)", "x.huber_loss(y)", "x.mv(y[0])",
        "x.addr(y[:, 0], w[0])", "x.addmm(y[:, :4], w)", "x.corrcoef()", "x.cov()")}


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_rounded_once(name: str) -> None:
    """Of bfloat16 and float16: the result of float32, and its gradients, to within half a unit of the last place."""
    rng = np.random.default_rng(5)
    values = [(rng.random((4, 6)) * 0.9 + 0.05).astype(np.float32) for _ in range(3)]
    for dtype, unit in (("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        narrow = [Tensor(v, dtype=dtype, device="NUMPY", requires_grad=True) for v in values]
        wide = [Tensor(t.detach().float().numpy(), device="NUMPY", requires_grad=True) for t in narrow]
        results = [HALVES[name](*t) for t in (narrow, wide)]
        assert results[0].dtype.name == dtype
        pairs = [tuple(results)]
        if "round" not in name:
            seed = (rng.integers(-8, 8, results[0].shape) / 4).astype(np.float32)
            pairs += list(zip(*[(r * Tensor(seed, dtype=r.dtype, device="NUMPY")).sum().gradient(
                *t, materialize_grads=True) for r, t in zip(results, (narrow, wide), strict=True)], strict=True))
        for got, exact in pairs:
            exact = exact.numpy()
            np.testing.assert_allclose(got.float().numpy(), exact, 1.02 * unit, 2e-7)


def test_infinities_and_nan() -> None:
    inf, nan = math.inf, math.nan
    with config(device="NUMPY"):
        assert Tensor([inf, nan, -inf, 3.0]).hypot(Tensor([nan, -inf, nan, 4.0])).tolist() == [inf, inf, inf, 5.0]
        assert math.isnan(Tensor([nan]).hypot(Tensor([1.0])).item())
        x = Tensor([-1.0, 0.0, inf])
        assert [x.quantile(q).item() for q in (0.25, 0.5, 0.7, 1.0)] == [-0.5, 0, inf, inf]
        assert [Tensor([-inf, 1.0]).quantile(q).item() for q in (0.0, 0.75, 1.0)] == [-inf, -inf, 1]
        assert Tensor([-inf, nan, 2.0]).nanquantile(1.0).item() == 2
        steps = Tensor([nan, -1.0, -0.0, 0.0, 2.0]).heaviside(Tensor(0.5))
        assert steps.tolist() == [0.0, 0.0, 0.5, 0.5, 1.0] and not np.signbit(steps.numpy()).any()


def test_gradients_at_corners() -> None:
    with config(device="NUMPY"):
        y, x = Tensor([0.0, 1.0], requires_grad=True), Tensor([0.0, 0.0], requires_grad=True)
        dy, dx = y.atan2(x).sum().gradient(y, x)
        assert dy.tolist() == [0, 0] and dx.tolist() == [0, -1]
        z = Tensor([0.0, 2.0, 3.0], requires_grad=True)
        weights = Tensor([1.0, 2.0, 3.0])
        first, = z.prod().gradient(z)
        second, = (first * weights).sum().gradient(z)
        assert first.tolist() == [6, 0, 0] and second.tolist() == [2 * 3 + 3 * 2, 3 * 1, 2 * 1]
        zeros = Tensor([0.0, 0.0, 3.0], requires_grad=True)
        first, = zeros.prod().gradient(zeros)
        second, = (first * weights).sum().gradient(zeros)
        assert first.tolist() == [0, 0, 0] and second.tolist() == [2 * 3, 1 * 3, 0]
        for run in (lambda t: t.softplus(), lambda t: t.logaddexp(0.0), lambda t: t.logaddexp(Tensor([0.0])),
                    lambda t: t.binary_cross_entropy_with_logits(Tensor([0.0]))):
            t = Tensor([0.0], requires_grad=True)
            first, = run(t).sum().gradient(t)
            second, = first.sum().gradient(t)
            assert first.item() == 0.5 and second.item() == pytest.approx(0.25)


def test_arguments_that_were_ignored() -> None:
    with config(device="NUMPY"):
        x = Tensor([0.1, 1.0, 3.0])
        assert F.softplus(x, 2.0, 0.5).tolist()[1:] == [1.0, 3.0] and F.softplus(x, 2.0, 0.5).tolist()[0] > 0.3
        mean, target = Tensor([[1.0, 2.0], [3.0, 5.0]]), Tensor([[0.0, 0.0], [0.0, 0.0]])
        rows = F.gaussian_nll_loss(mean, target, Tensor([4.0, 9.0]), reduction="none", full=True)
        expected = [[0.5 * (math.log(v) + m * m / v + math.log(2 * math.pi)) for m in row]
                    for row, v in zip([[1, 2], [3, 5]], [4, 9], strict=True)]
        np.testing.assert_allclose(rows.numpy(), expected, 1e-6)
        least = F.gaussian_nll_loss(mean, target, Tensor(np.zeros((2, 2), np.float32)), reduction="none", eps=0.5)
        np.testing.assert_allclose(least.numpy(), 0.5 * (math.log(0.5) + mean.numpy() ** 2 / 0.5), 1e-6)
        assert Tensor([[1.0, 2.0, 4.0]]).cov().shape == () == Tensor([[1.0, 2.0, 4.0]]).corrcoef().shape
        assert Tensor([1.0, 2.0, 4.0]).var(correction=0.5).item() == pytest.approx(14 / 3 / 2.5)
        assert Tensor([-1.0, 0.5, 2.0]).hinge_embedding_loss(Tensor([0.0, 1.0, -1.0]), reduction="none").tolist() == [
            1.0, 0.5, 0.0]
        nothing = Tensor([[math.nan]]).addr(Tensor([1.0]), Tensor([2.0]), beta=0)
        assert nothing.tolist() == [[2.0]] and Tensor([1.0, 2.0]).diff(n=2).shape == (0,)
        drawn = Tensor.normal(Tensor([0.0, 100.0]), Tensor([0.1, 0.1]))
        assert drawn.shape == (2,) and Tensor.normal(5.0, Tensor([0.0, 0.0, 0.0])).tolist() == [5.0, 5.0, 5.0]
        assert Tensor.normal(2.0, 0.0, (2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("run", [
    lambda x: -Tensor([True]), lambda x: x.hardtanh(1, -1), lambda x: x.softshrink(-1), lambda x: x.isclose(x, -1),
    lambda x: x.gaussian_nll_loss(x, x[:, :2]), lambda x: x.gaussian_nll_loss(x, x, eps=0.0),
    lambda x: x.prelu(Tensor([1.0, 2.0])), lambda x: Tensor.arange(0, -3, 2), lambda x: x.rot90(1, (1, 1)),
    lambda x: x.triplet_margin_loss(x, x, -1), lambda x: x.detach().clone().cauchy_(0, 0),
    lambda x: x.detach().clone().exponential_(0), lambda x: x.detach().clone().log_normal_(0, 0),
    lambda x: Tensor.normal(0.0, -1.0, (2,)), lambda x: x.quantile(0.5, interpolation="cubic"), lambda x: x.diff(-1),
    lambda x: x.cov(fweights=Tensor([1.0])), lambda x: x.norm("one"), lambda x: x.norm("nuc", 1),
    lambda x: x.reshape(1, 2, 3).diag(), lambda x: x[0].fliplr(), lambda x: x.var(correction="one")])
def test_refused(run: Callable[[Tensor], object]) -> None:
    with config(device="NUMPY"), pytest.raises(MinigradError, match=r"^\[\w+\] expected "):
        run(Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
