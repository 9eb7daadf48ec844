"""Sorting, selection, searching and running extremes against torch and numpy: odd and empty sizes, ties, NaN, all
types, gradients, and inside `jit`."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, needs_torch, one_in

from minigrad import Tensor, Variable, config, jit
from minigrad.errors import DTypeError, ShapeError
from minigrad.runtime.registry import get_device

try:
    import torch
except ImportError:
    torch = None

SHAPES = [((0,), 0), ((), 0), ((1,), -1), ((7,), 0), ((5, 300), 1), ((300, 3), 0), ((2, 600, 2), 1), ((4, 0, 3), 2)]
KINDS = ["float32", "float16", "float64", "int64", "int32", "uint8", "bool"]


def values_of(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    """Many ties; among floats NaN of both signs, infinities, both zeros and a subnormal."""
    rng = np.random.default_rng(seed)
    if kind.startswith("float"):
        odd = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, *rng.standard_normal(30)]
        return np.asarray(rng.choice(np.array(odd), shape)).astype(kind)
    if kind == "int64":
        return np.asarray(rng.integers(-1 << 62, 1 << 62, shape) >> rng.integers(0, 60, shape))
    return np.asarray(rng.integers(0, 2 if kind == "bool" else 50, shape)).astype(kind)


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape, axis", [SHAPES[4]])
def test_sort(shape: tuple[int, ...], axis: int, kind: str, device: str) -> None:
    x = values_of(shape, kind)
    for descending in (False, True):
        values, indices = Tensor(x, device=device).sort(axis, descending)
        expected = torch.tensor(x).sort(dim=axis, descending=descending, stable=True)
        np.testing.assert_array_equal(indices.numpy(), expected.indices.numpy())
        np.testing.assert_array_equal(values.numpy(), expected.values.numpy())
        assert indices.dtype.name == "int32" and values.dtype.name == kind


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_sort_of_odd_sizes(shape: tuple[int, ...], axis: int, kind: str) -> None:
    with config(device="NUMPY"):
        x = values_of(shape, kind)
        got = Tensor(x).argsort(axis, descending=True).numpy()
        np.testing.assert_array_equal(got, torch.tensor(x).argsort(dim=axis, descending=True, stable=True).numpy())


def test_sort_of_unsigned_integers() -> None:
    for kind in ("uint32", "uint64"):
        x = np.array([3, 2**31, 0, np.iinfo(kind).max, 2**31 - 1, 3], kind)
        np.testing.assert_array_equal(Tensor(x).argsort().numpy(), np.argsort(x, kind="stable"))


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("n, k", [(9, 4), (300, 1), (300, 299), (1500, 33), (800, 400)])
def test_topk(n: int, k: int, device: str) -> None:
    x = values_of((2, n), "float32")
    for largest in (True, False):
        values, indices = Tensor(x, device=device).topk(k, largest=largest)
        expected = torch.tensor(x).sort(dim=-1, descending=largest, stable=True)
        np.testing.assert_array_equal(indices.numpy(), expected.indices[:, :k].numpy())
        np.testing.assert_array_equal(values.numpy(), expected.values[:, :k].numpy())


def test_topk_of_nothing_and_of_wide_integers() -> None:
    assert Tensor.zeros(3, 4).topk(0, 0)[0].shape == (0, 4)
    assert Tensor(2.0).topk(1)[0].item() == 2.0 and Tensor(2.0).topk(0)[1].shape == (0,)
    x = values_of((700,), "int64")
    np.testing.assert_array_equal(Tensor(x).topk(5)[0].numpy(), np.sort(x)[::-1][:5])


@needs_torch
@pytest.mark.parametrize("device", devices())
def test_kthvalue_and_median(device: str) -> None:
    x = np.random.default_rng(0).integers(-40, 40, (3, 101)).astype(np.float32)
    ours, theirs = Tensor(x, device=device), torch.tensor(x)
    for k in (1, 50, 101):
        value, index = ours.kthvalue(k, 1)
        np.testing.assert_array_equal(value.numpy(), theirs.kthvalue(k, 1).values.numpy())
        np.testing.assert_array_equal(np.take_along_axis(x, index.numpy()[:, None], 1)[:, 0], value.numpy())
    assert ours.kthvalue(2, 0, keepdim=True)[0].shape == (1, 101)
    np.testing.assert_array_equal(ours.median(1).numpy(), theirs.median(1).values.numpy())
    np.testing.assert_array_equal(ours[:2].median(0, keepdim=True).numpy(), theirs[:2].median(0, True).values.numpy())
    assert ours.median().item() == theirs.median().item() and Tensor(3, device=device).median().item() == 3
    x[1, 7] = np.nan
    np.testing.assert_array_equal(Tensor(x, device=device).median(1).numpy(), torch.tensor(x).median(1).values.numpy())


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
@pytest.mark.parametrize("kind", ["float32", "int32", "float64"])
@one_in(5, CPU_DRIVERS)
def test_searchsorted(n: int, kind: str, device: str) -> None:
    if kind == "float64" and device != "NUMPY" and "fp64" not in get_device(device).target.features:
        pytest.skip(f"{device} has no float64")
    ordered = np.sort(values_of((n,), kind))
    wanted = values_of((3, 20), kind, seed=1)
    for right in (False, True):
        got = Tensor(ordered, device=device).searchsorted(Tensor(wanted, device=device), right)
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(ordered, wanted, "right" if right else "left"))


@needs_torch
def test_searchsorted_by_rows_and_bucketize() -> None:
    rows, wanted = np.sort(values_of((4, 33), "int32")), values_of((4, 5), "int32", seed=1)
    got = Tensor(rows).searchsorted(Tensor(wanted), right=True).numpy()
    np.testing.assert_array_equal(got, torch.searchsorted(torch.tensor(rows), torch.tensor(wanted), right=True).numpy())
    assert Tensor([1, 3, 5]).searchsorted(4.5).item() == 2
    x, edges = np.array([[3.0, 6.0, 9.0], [1.0, 0.5, 7.5]], np.float32), [1, 3, 5, 7, 9]
    for right in (False, True):
        expected = torch.bucketize(torch.tensor(x), torch.tensor(edges), right=right).numpy()
        np.testing.assert_array_equal(Tensor(x).bucketize(edges, right).numpy(), expected)


@needs_torch
def test_gradients_go_to_the_elements_that_were_chosen() -> None:
    x = np.random.default_rng(0).standard_normal((3, 301)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((3, 301)).astype(np.float32)
    uses: list[Any] = [
        lambda x, w: (x.sort(1)[0] * w).sum(), lambda x, w: (x.topk(5)[0] * w[:, :5]).sum(),
        lambda x, w: (x.kthvalue(7, 1)[0] * w[:, 0]).sum(), lambda x, w: x.median(),
        lambda x, w: (x.cummax(1)[0] * w).sum(), lambda x, w: (x.cummin(0)[0] * w).sum(),
        lambda x, w: ((x * 0.1 + 1).cumprod(1) * w).sum(),
    ]
    for use in uses:
        ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        use(ours, Tensor(weight)).backward()
        use(theirs, torch.tensor(weight)).backward()
        assert ours.grad is not None
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=2e-4, atol=2e-4)


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["float32", "int32", "int64", "bool"])
def test_running_extremes(kind: str, device: str) -> None:
    for shape, axis in SHAPES[:6]:
        x = values_of(shape, kind)
        for name in ("cummax", "cummin"):
            values, indices = getattr(Tensor(x, device=device), name)(axis)
            expected = getattr(torch.tensor(x), name)(axis)
            np.testing.assert_array_equal(indices.numpy(), expected.indices.numpy())
            np.testing.assert_array_equal(values.numpy(), expected.values.numpy())
            assert values.dtype.name == kind


@pytest.mark.parametrize("device", devices())
def test_running_products(device: str) -> None:
    x = 1 + values_of((2, 600), "int32").astype(np.float32) / 5000
    x[1, 20] = 0
    np.testing.assert_allclose(Tensor(x, device=device).cumprod(1).numpy(), x.cumprod(1), rtol=1e-4)
    signs = np.where(values_of((300,), "bool"), -1, 1).astype(np.int8)
    np.testing.assert_array_equal(Tensor(signs, device=device).cumprod().numpy(), signs.cumprod(dtype=np.int32))


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    @jit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        return *x.sort(), *x.topk(3), x.median(1), *x.cummin(1), x[0].sort()[0].searchsorted(x)

    for seed in range(4):
        x = values_of((2, 300), "int32", seed).astype(np.float32)
        got = [t.numpy() for t in step(Tensor(x, device=device).realize())]
        order = np.argsort(x, axis=1, kind="stable")
        np.testing.assert_array_equal(got[0], np.sort(x, 1))
        np.testing.assert_array_equal(got[1], order)
        np.testing.assert_array_equal(got[2], -np.sort(-x, 1)[:, :3])
        np.testing.assert_array_equal(got[4], np.sort(x, 1)[:, 149])
        np.testing.assert_array_equal(got[5], np.minimum.accumulate(x, 1))
        np.testing.assert_array_equal(got[7], np.searchsorted(np.sort(x[0]), x))


def test_what_is_put_in_order_is_not_asked_for_twice() -> None:
    x = Tensor(values_of((500,), "float32")).realize()
    values, indices = x.sort()
    assert indices.lazydata in values.lazydata.inputs


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda x: x.sort(2), ShapeError, r"\[sort\] expected an axis in -2..1, got 2"),
    (lambda x: x.topk(4), ShapeError, r"\[topk\] expected k of at most 3, got 4 for axis -1 of \[2, 3\]"),
    (lambda x: x.topk(-1), ShapeError, r"\[topk\] expected k as an integer of 0 or more, got -1"),
    (lambda x: x.topk(1.5), ShapeError, r"\[topk\] expected k as an integer"),
    (lambda x: x.kthvalue(0), ShapeError, r"\[kthvalue\] expected k as an integer of 1 or more, got 0"),
    (lambda x: x.kthvalue(3, 0), ShapeError, r"\[kthvalue\] expected k of at most 2, got 3 for axis 0 of \[2, 3\]"),
    (lambda x: x[:0].median(0), ShapeError, r"\[median\] expected at least one element along axis 0, got \[0, 3\]"),
    (lambda x: x.searchsorted(x[0]), ShapeError, r"\[searchsorted\] expected .* got \[2, 3\] and \[3\]"),
    (lambda x: x.bucketize(x), ShapeError, r"\[bucketize\] expected boundaries \[n\], got \[2, 3\]"),
    (lambda x: x.bucketize(3), DTypeError, r"\[bucketize\] expected a Tensor, got int"),
    (lambda x: x.cummax(3), ShapeError, r"\[cummax\] expected an axis in -2..1, got 3"),
    (lambda x: x.cumprod("a"), ShapeError, r"\[cumprod\] expected an axis in -2..1, got 'a'"),
    (lambda x: x[:, :Variable("n", 1, 3).bind(2)].sort(), ShapeError, r"\[sort\] expected a length that is known, got"),
]


@pytest.mark.parametrize("run, kind, message", ERRORS)
def test_mistakes(run: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run(Tensor(np.zeros((2, 3), np.float32), device="NUMPY"))
