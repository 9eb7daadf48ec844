"""Further functions of PyTorch's tensors against torch, with gradients, and by hand where torch has none."""
# Mistakes are made on purpose.
# mypy: disable-error-code="attr-defined,arg-type"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, needs_torch, one_in
from support.beside_torch import normal
from support.places import both, i

from minigrad import Tensor, config, jit
from minigrad.errors import DeviceError, DTypeError, MinigradError, ShapeError

try:
    import torch
except ImportError:
    torch = None

NAN = float("nan")
MASK = np.array([[True, False, True, True, False]] * 4)
ROWS: list[Callable[[Any, Any], Any]] = [
    # of x [4, 5] and y [4, 5], with gradients of both
    lambda x, y: x.erfc(), lambda x, y: (x * 4).lgamma(), lambda x, y: x.exp().digamma(), lambda x, y: x.digamma(),
    lambda x, y: x.exp().polygamma(1), lambda x, y: x.exp().polygamma(2), lambda x, y: (x.exp() + 2).mvlgamma(3),
    lambda x, y: x.logaddexp2(y), lambda x, y: (x * 500).logaddexp2(y), lambda x, y: x.exp().float_power(y).float(),
    lambda x, y: x.abs().float_power(2.5).float(), lambda x, y: x.ldexp(i(x, np.arange(5))), lambda x, y: x.ldexp(y),
    lambda x, y: x.frexp()[0], lambda x, y: x.positive(), lambda x, y: x.fix(), lambda x, y: x.sgn(),
    lambda x, y: x.hsplit((1, 3))[1], lambda x, y: x.vsplit(2)[1], lambda x, y: x[0].hsplit(5)[2],
    lambda x, y: x.reshape(2, 1, 10).dsplit(5)[3], lambda x, y: x.split_with_sizes((1, 3))[1],
    lambda x, y: x.swapaxes(axis0=1, axis1=0), lambda x, y: x.swapdims(dim0=0, dim1=1), lambda x, y: x.adjoint(),
    lambda x, y: x.mH, lambda x, y: x.H, lambda x, y: x.conj(), lambda x, y: x.narrow_copy(1, 2, 2),
    lambda x, y: x.sum_to_size(1, 5), lambda x, y: x.sum_to_size(5), lambda x, y: x.sum_to_size((4, 1)),
    lambda x, y: x[:, :2].addbmm(x.reshape(5, 4, 1), y.reshape(5, 1, 4)[:, :, :2], beta=2, alpha=3),
    lambda x, y: x[0].ger(y[0]), lambda x, y: x.msort(), lambda x, y: x.mode()[0], lambda x, y: x.nanmedian(),
    lambda x, y: x.log().nanmedian(), lambda x, y: x.nanquantile(0.3), lambda x, y: x.renorm(2, 0, 1.5),
    lambda x, y: x.renorm(1, 1, 2.0), lambda x, y: x.nanquantile(i(x, np.array([0.2, 0.9], np.float32)), 1, True),
    lambda x, y: x.index_put((i(x, np.array([0, 2])),), y[:2]),
    lambda x, y: x.index_put((i(x, np.array([0, 2])), i(x, np.array([1, 3]))), y[0, :2]),
    lambda x, y: x.index_put((i(x, np.array([0, 0, 2])), i(x, np.array([1, 1, -1]))), y[0, :3], accumulate=True),
    lambda x, y: x.index_put((i(x, np.array([0, 0])),), y[:2], True), lambda x, y: x.index_put((i(x, MASK),), y[0, 0]),
    lambda x, y: x.index_put((i(x, MASK),), y.reshape(-1)[:12], True),
    lambda x, y: x.put(i(x, np.array([3, -1, 7])), y[0, :3]),
    lambda x, y: x.put(i(x, np.array([[3, 3, 7]])), y[:1, :3], True),
    lambda x, y: x.index_reduce(0, i(x, np.array([1, 1, 3])), y[:3], "mean"),
    lambda x, y: x.index_reduce(1, i(x, np.array([1, 4])), y[:, :2], "amax", include_self=False),
    lambda x, y: x.diagonal_scatter(y[0, :4]), lambda x, y: x.diagonal_scatter(y[0, :3], 2),
    lambda x, y: x.diagonal_scatter(y[0, :2], -2, 0, 1), lambda x, y: x.diagonal_scatter(y[0, :4], -1, 1, 0),
    lambda x, y: x.reshape(2, 5, 2).diagonal_scatter(y[:2].t(), 0, 2, 0),
    lambda x, y: x.as_strided((3, 2), (2, 5), 1), lambda x, y: x.as_strided((4, 3), (1, 0)),
    lambda x, y: x.as_strided((), (), 7),
]
FUNCTIONS: list[tuple[str, Callable[[Any, Any, Any], Any]]] = [
    ("hstack", lambda m, x, y: m.hstack((x, y))), ("hstack_1d", lambda m, x, y: m.hstack((x[0], y[1]))),
    ("hstack_0d", lambda m, x, y: m.hstack((x[0, 0], y[1]))), ("vstack", lambda m, x, y: m.vstack((x, y[1]))),
    ("dstack", lambda m, x, y: m.dstack((x, y))), ("dstack_1d", lambda m, x, y: m.dstack([x[0], y[1]])),
    ("column_stack", lambda m, x, y: m.column_stack((x, y[:, 0]))),
    ("atleast_1d", lambda m, x, y: m.atleast_1d(x[0, 0])),
    ("atleast_2d", lambda m, x, y: m.atleast_2d(x[0])), ("atleast_3d", lambda m, x, y: m.atleast_3d(x)),
    ("atleast_3d_1d", lambda m, x, y: m.atleast_3d(x[0])),
    ("broadcast_tensors", lambda m, x, y: m.broadcast_tensors(x[:1], y[:, :1])[1]),
    ("cartesian_prod", lambda m, x, y: m.cartesian_prod(x[0], y[1, :2], x[2, :3])),
    ("cartesian_prod_1", lambda m, x, y: m.cartesian_prod(x[0])), ("trapezoid", lambda m, x, y: m.trapezoid(x, dx=2)),
    ("trapezoid_x", lambda m, x, y: m.trapezoid(x, y)), ("trapezoid_0", lambda m, x, y: m.trapezoid(x, y[:, 0], dim=0)),
]


@needs_torch
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("run", ROWS)
def test_as_torch(run: Callable[[Any, Any], Any]) -> None:
    with config(device="NUMPY"):
        both(run, run)


@needs_torch
@pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in FUNCTIONS])
def test_functions_of_torch(run: Callable[[Any, Any, Any], Any]) -> None:
    with config(device="NUMPY"):
        both(lambda x, y: run(Tensor, x, y), lambda x, y: run(torch, x, y))


ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 1.0, -1.5, 3e38, 1e-38, 7.0], np.float32)
EXACT: list[Callable[[Any, Any], Any]] = [
    # of odd floats and of integers -9..9, compared to the bit
    lambda x, n: x.frexp()[0], lambda x, n: x.frexp()[1], lambda x, n: x.ldexp(n[:12] * 16), lambda x, n: x.ldexp(n[0]),
    lambda x, n: x.double().ldexp(n[:12] * 130), lambda x, n: x.nextafter(x.flip((0,))),
    lambda x, n: x.double().nextafter(x.flip((0,)).double()), lambda x, n: x.nextafter(x * 0 + 1),
    lambda x, n: n.gcd(n.flip((0,))), lambda x, n: n.lcm(n.flip((0,))), lambda x, n: n.gcd(n * 0 + 6),
    lambda x, n: n.to(dtype(n, "int64")).gcd(n.flip((0,)).to(dtype(n, "int64")) * 2**40),
    lambda x, n: n.to(dtype(n, "int8")).gcd(n.flip((0,)).to(dtype(n, "int8"))),
    lambda x, n: n.abs().to(dtype(n, "uint8")).lcm(n.flip((0,)).abs().to(dtype(n, "uint8"))),
    lambda x, n: n.bitwise_left_shift(2), lambda x, n: n.bitwise_right_shift(1), lambda x, n: n.positive(),
    lambda x, n: n.sgn(), lambda x, n: x.fix(), lambda x, n: n.mode()[0],
    lambda x, n: n.reshape(-1, 5).mode(0)[0], lambda x, n: n.reshape(5, -1).mode(1, True)[0],
    lambda x, n: n.sort()[0].unique_consecutive(), lambda x, n: n.unique_consecutive(True, True)[1],
    lambda x, n: n.sort()[0].unique_consecutive(return_counts=True)[1],
    lambda x, n: (n.reshape(-1, 5) > 0).unique_consecutive(dim=0),
    lambda x, n: (n.reshape(-1, 5) > 0).unique_consecutive(dim=1, return_inverse=True)[1],
    lambda x, n: n[:0].unique_consecutive(), lambda x, n: n.msort(), lambda x, n: x.nanmedian(),
    lambda x, n: x.reshape(3, 4).nanquantile(0.5), lambda x, n: (n > 2).nonzero_static(size=9),
    lambda x, n: (n.reshape(-1, 5) > 2).nonzero_static(size=40, fill_value=-7), lambda x, n: n.float_power(2),
    lambda x, n: n.index_put((n.abs() > 3,), n[0]),
]


def dtype(like: Any, name: str) -> Any:
    return name if isinstance(like, Tensor) else getattr(torch, name)


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("k", range(len(EXACT)))
@one_in(3, CPU_DRIVERS)
def test_to_the_bit(k: int, device: str) -> None:
    numbers = np.random.default_rng(0).integers(-9, 10, 30).astype(np.int32)
    expected = EXACT[k](torch.tensor(ODD), torch.tensor(numbers)).numpy()
    with config(device=device):
        result = EXACT[k](Tensor(ODD), Tensor(numbers))
        try:
            got = result.numpy()
        except DeviceError as error:
            if "no float64" not in str(error):
                raise
            pytest.skip(str(error))
    if device.startswith("CL") and got.dtype == np.float32:  # some flush subnormal numbers
        expected, got = (np.where(abs(a) < 2e-38, 0, a) for a in (expected, got))
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected.astype(got.dtype))
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(expected)[got == got])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name, least, most, ulp", [
    ("erfc", -6, 10, 5), ("erfc", 5, 27, 6), ("lgamma", 0, 4, 5), ("lgamma", 4, 60, 4), ("lgamma", -9, 0, 4),
    ("lgamma", -300, -9, 4), ("digamma", 0, 3, 4), ("digamma", 3, 60, 4), ("digamma", -30, 0, 8),
    ("polygamma", 0, 30, 4), ("polygamma", -9, 0, 8)])
def test_few_units_of_the_last_place(name: str, least: float, most: float, ulp: float, kind: Any) -> None:
    """In units of the result; left of 0, where the functions have zeros, of 1 at least."""
    x = np.random.default_rng(0).uniform(least, most, 300).astype(kind)
    if name == "lgamma" and least == 4:
        x = np.append(x, 10.0 ** np.linspace(2, 30, 40)).astype(kind)
    if name == "erfc":
        x = x[x < (27 if kind is np.float64 else 9)]  # beyond are subnormal numbers
    if least == 0:
        x = np.append(x, [1e-15, 1e-3, 1 - 2**-22, 1 + 2**-22, 2 - 2**-21, 2 + 2**-21, 1.4616, 1.46163215]).astype(kind)
    exact = {"erfc": mpmath.erfc, "lgamma": lambda v: mpmath.re(mpmath.loggamma(v)),
             "digamma": mpmath.digamma, "polygamma": lambda v: mpmath.psi(1, v)}[name]
    with config(device="CPU"):
        tensor = Tensor(x)
        got = tensor.polygamma(1).numpy() if name == "polygamma" else getattr(tensor, name)().numpy()
    with mpmath.workprec(200):
        for v, y in zip(x, got, strict=True):
            right = exact(mpmath.mpf(float(v)))
            unit = np.spacing(kind(max(abs(float(right)), 1.0 if least < 0 and name != "erfc" else 0.0)))
            assert abs(mpmath.mpf(float(y)) - right) <= ulp * mpmath.mpf(float(unit)), (v, y, float(right))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_nothing_outside_of_a_domain(kind: str) -> None:
    with config(device="CPU"):
        x = Tensor([-1e30, -1e10, -32768.0, -2.0, 0.5, -float("inf"), NAN], dtype=kind)
        assert np.isnan(x.acosh().numpy()).all() and np.isnan((2 * x.minimum(-1)).logit().numpy()).all()
        assert np.isnan(Tensor([-128, -5, 3], dtype="int8").logit().numpy()).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gradients_that_cancel_nothing(kind: Any) -> None:
    """And what is finite though its exponential is not."""
    most = 89.2 if kind is np.float32 else 710.2
    x = np.array([1e-30, -1e-12, 1e-5, -1e-3, 0.02, 0.15, 0.159, 0.16, 0.4, -2.3, 7.0, 30.0], kind)
    rows: list[tuple[str, Any, Any]] = [
        ("sinc", mpmath.sincpi, lambda v: (mpmath.cospi(v) - mpmath.sincpi(v)) / v),
        ("sinh", mpmath.sinh, mpmath.cosh), ("cosh", mpmath.cosh, mpmath.sinh)]
    with config(device="CPU"), mpmath.workprec(400):
        for name, value, slope in rows:
            at = x if name == "sinc" else np.append(x, [most, -most]).astype(kind)
            t = Tensor(at, requires_grad=True)
            y = getattr(t, name)()
            for got, exact in ((y, value), (y.sum().gradient(t)[0], slope)):
                right = np.array([float(exact(mpmath.mpf(float(v)))) for v in at])
                limit = np.finfo(kind).eps * (100 if name == "sinc" else 8)  # the sine of a rounded pi * x
                np.testing.assert_allclose(got.numpy(), right, rtol=limit, atol=0 if name != "sinc" else limit)
        assert Tensor([0.0, 1.0, float("inf")], dtype=str(np.dtype(kind))).sinc().tolist()[0] == 1


def test_where_they_end() -> None:
    inf = float("inf")
    with config(device="CPU"):
        x = Tensor([0.0, -0.0, inf, -inf, NAN, -1.0, 1.0, 2.0, -1e-45, 1e-40])
        got = [x.lgamma().tolist(), x.digamma().tolist(), x.erfc().tolist()]
        np.testing.assert_allclose(got[0], [inf, inf, inf, inf, NAN, inf, 0, 0, 103.27893, 92.10340], rtol=1e-6)
        np.testing.assert_allclose(got[1], [-inf, inf, inf, NAN, NAN, NAN, -0.5772157, 0.42278433, inf, -inf],
                                   rtol=1e-6)
        np.testing.assert_allclose(got[2], [1, 1, 0, 2, NAN, 1.8427008, 0.15729921, 0.0046777350, 1, 1], rtol=1e-6)
        half = Tensor(np.array([3.0, 0.5], np.float16))
        assert half.lgamma().dtype.name == "float16" and half.lgamma().tolist()[0] == np.float16(np.log(2))
        assert Tensor([4]).lgamma().item() == pytest.approx(np.log(6)) and Tensor.ones(0).digamma().shape == (0,)
        assert Tensor([2.0], dtype="bfloat16").frexp()[0].item() == 0.5 and half.frexp()[1].tolist() == [2, 0]
        assert Tensor(np.array([1.0], np.float16)).nextafter(2.0).item() == 1 + 2**-10
        assert Tensor([-(2**31)], dtype="int32").gcd(6).item() == 2
        assert Tensor([832040 * 1346269, 1346269 * 2178309], dtype="int64").gcd(2178309 * 1346269).tolist() == [
            1346269, 2178309 * 1346269]


@pytest.mark.parametrize("device", devices())
def test_by_hand(device: str) -> None:
    with config(device=device):
        x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        assert x.isin([1.0, 7.0, 99.0]).nonzero().tolist() == [[0, 1], [1, 3]] and x.isin(5.0).sum().item() == 1
        assert x.isin(x, invert=True).any().item() is False and Tensor.zeros(0).isin(x).shape == (0,)
        assert x.frexp()[1].tolist()[0] == [0, 1, 2, 2] and x.mode(1)[1].tolist() == [0, 0, 0]
        assert Tensor([2, 1, 2, 1, 3]).mode()[1].item() == 3 and Tensor([5]).gcd(0).item() == 5
        values, counts = Tensor([1, 1, 3, 3, 3, 1]).unique_consecutive(return_counts=True)
        assert values.tolist() == [1, 3, 1] and counts.tolist() == [2, 3, 1]
        assert Tensor([NAN, NAN]).nanmedian().isnan().item() and Tensor([NAN, 2, 3]).nanquantile(0.5).item() == 2.5
        counted, edges = x.histogram(3, range=(0, 6))
        assert counted.tolist() == [2, 2, 3] and edges.tolist() == [0, 2, 4, 6]
        assert x.histogram(Tensor([0.0, 1, 100]), density=True)[0].sum().item() == pytest.approx(1 / 12 + 11 / 12 / 99)
        chosen = (x > 4).diagonal_scatter((x > 4).diagonal(1).logical_not(), 1)
        assert chosen.dtype.name == (x > 4)[0].diag_embed().dtype.name == "bool" and chosen[0, 1].item() is True
        assert x.sum_to_size(1, 1).tolist() == [[66]] and x.as_strided((2, 2), (1, 4)).tolist() == [[0, 4], [1, 5]]

        @jit
        def places(t: Tensor) -> Tensor:
            return (t > 3).nonzero_static(size=3)

        for shift in range(4):
            expected = np.argwhere(np.arange(8) - shift > 3)[:3]
            got = places(Tensor(np.arange(8, dtype=np.int32) - shift).realize()).numpy()
            np.testing.assert_array_equal(got, np.append(expected, np.full((3 - len(expected), 1), -1), 0))


@needs_torch
def test_histograms_and_windows() -> None:
    values, weight = normal(300), normal(300, seed=1)
    with config(device="NUMPY"):
        for options in ({"bins": 7}, {"bins": 4, "range": (-1.0, 0.5)}, {"bins": 3, "density": True}):
            ours, theirs = Tensor(values).histogram(**options), torch.tensor(values).histogram(**options)
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
        ours, theirs = Tensor(values).histogram(5, weight=Tensor(weight)), torch.tensor(values).histogram(
            5, weight=torch.tensor(weight))
        np.testing.assert_allclose(ours[0].numpy(), theirs[0].numpy(), rtol=1e-5)
        np.testing.assert_array_equal(Tensor.ones(4).histogram(2)[1].numpy(), torch.ones(4).histogram(2)[1].numpy())
        for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window"):
            for n, periodic in [(8, True), (9, False), (1, True), (2, False), (0, True)]:
                np.testing.assert_allclose(getattr(Tensor, name)(n, periodic).numpy(),
                                           getattr(torch, name)(n, periodic).numpy(), atol=3e-7)
        np.testing.assert_allclose(Tensor.logspace(-1, 2, 5).numpy(), torch.logspace(-1, 2, 5).numpy(), rtol=1e-6)


def test_what_a_tensor_is() -> None:
    with config(device="NUMPY"):
        x, w = Tensor.ones(3, 4, 5), Tensor([1.0, 2.0], requires_grad=True)
        assert x.stride() == (20, 5, 1) and x.stride(-2) == 5 and x.transpose(0, 2).stride() == (12, 3, 1)
        assert x.is_contiguous() and x.is_signed() and not Tensor([1], dtype="uint8").is_signed() and x.itemsize == 4
        assert w.is_leaf and x.is_leaf and not (w * 2).is_leaf and not x.is_complex() and x.ndimension() == 3
        assert Tensor(3.0).is_nonzero() and not Tensor([[0]]).is_nonzero() and x.is_same_size(x + 1)
        assert not x.is_same_size(w)


@pytest.mark.parametrize("run, kind, message", [
    (lambda x: x.gcd(2), DTypeError, "[gcd] expected integers, got float32 and 2"),
    (lambda x: x.int().frexp(), DTypeError, "[frexp] expected floats, got int32"),
    (lambda x: x.int().nextafter(x.int()), DTypeError, "[nextafter] expected floats, got int32"),
    (lambda x: x.hsplit(2), ShapeError, "[hsplit] expected sections that divide 3, got 2"),
    (lambda x: x[0].vsplit(1), ShapeError, "[vsplit] expected at least 2 axes, got [3]"),
    (lambda x: x.as_strided((2, 2), (3, 3), 1), ShapeError, "[as_strided] expected places in 0..5 of [2, 3], got 7"),
    (lambda x: x.diagonal_scatter(x[0]), ShapeError, "[diagonal_scatter] expected a source [2], got [3]"),
    (lambda x: x.put([0, 1], x[0]), ShapeError, "[put] expected as many elements as indices, got [3] and [2]"),
    (lambda x: x.sum_to_size(4), ShapeError, "[sum_to_size] expected"),
    (lambda x: x.histogram(0), ShapeError, "[histogram] expected bins as an integer of 1 or more, got 0"),
    (lambda x: x.is_nonzero(), ShapeError, "expected one element, got shape [2, 3]"),
    (lambda x: Tensor.hstack([]), ShapeError, "[hstack] expected at least one tensor, got none"),
    (lambda x: Tensor.cartesian_prod(x, x), ShapeError, "[cartesian_prod] expected vectors, got [[2, 3], [2, 3]]"),
    (lambda x: x.polygamma(-1), ShapeError, "[polygamma] expected n as an integer of 0 or more, got -1"),
    (lambda x: x.unsqueeze(0).H, ShapeError, "[H] expected a matrix, got [1, 2, 3]; use mH"),
    (lambda x: x[:0].mode(0), ShapeError, "[mode] expected at least one element along axis 0, got [0, 3]"),
    (lambda x: x.reshape(6).fill_diagonal_(1), ShapeError, "[fill_diagonal_] expected a matrix, or equal lengths"),
    (lambda x: x.requires_grad_().squeeze_(), MinigradError, "[squeeze_] expected anything but a leaf"),
])
def test_mistakes(run: Callable[[Tensor], object], kind: type[Exception], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(kind) as caught:
        run(Tensor.ones(2, 3))
    assert message in str(caught.value)
