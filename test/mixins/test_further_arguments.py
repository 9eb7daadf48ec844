"""Arguments that say how to count, join, repeat and compare, against PyTorch, with gradients."""
# mypy: disable-error-code="arg-type,attr-defined,call-arg,union-attr,no-any-return"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

from minigrad import Tensor, config, jit
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.nn import functional
from minigrad.runtime.registry import get_device

torch = pytest.importorskip("torch", reason="torch is the second opinion here")

X = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
# f(x [4, 3], kind), where kind("int64", list) makes a tensor and kind.own is the class or the module of functions
CASES: list[Callable[[Any, Any], Any]] = [
    lambda x, k: x.diff(), lambda x, k: x.diff(2), lambda x, k: x.diff(3, 0), lambda x, k: x.diff(0),
    lambda x, k: x.diff(9), lambda x, k: x.diff(1, 0, x[:1] * 2), lambda x, k: x.diff(append=x[:, :2], n=2, dim=1),
    lambda x, k: x.diff(2, -1, x, x * 3), lambda x, k: x.diff(0, prepend=x), lambda x, k: x[:0].diff(dim=0),
    lambda x, k: (x > 0).diff(), lambda x, k: (x > 0).diff(2, 0), lambda x, k: x.long().diff(n=2, dim=0),
    lambda x, k: x.cumsum(0, dtype=k.float64), lambda x, k: x.cumprod(1, dtype=k.float64),
    lambda x, k: (x.detach() * 3).cumsum(1, dtype=k.int32), lambda x, k: (x > 0).cumsum(0, dtype=k.float32),
    lambda x, k: x.long().cumprod(dim=0, dtype=k.int8), lambda x, k: x.cumsum(-1, dtype=k.float32),
    lambda x, k: x.repeat_interleave(k("int64", [1, 0, 3]), 1), lambda x, k: x.repeat_interleave(k("int64", [2]), 0),
    lambda x, k: x.repeat_interleave(k("int32", [0, 2, 1, 0]), dim=-2), lambda x, k: x.repeat_interleave(2),
    lambda x, k: x.repeat_interleave(k("int64", [2, 0, 1]), 1, output_size=3), lambda x, k: x.repeat_interleave(3, 1),
    lambda x, k: x.repeat_interleave(k("int64", 2), 1), lambda x, k: x.repeat_interleave(k("int64", [0, 0, 0]), 1),
    lambda x, k: x.repeat_interleave(k("int64", range(12))), lambda x, k: x[0, 0].repeat_interleave(k("int64", 3)),
    lambda x, k: x.tensor_split(k("int64", [1, 2]))[1], lambda x, k: x.tensor_split(k("int64", 3), 0)[0],
    lambda x, k: x.tensor_split(k("int64", [1]), 1)[1], lambda x, k: x.tensor_split(k("int64", [-1, -3]))[2],
    lambda x, k: x.hsplit(k("int64", [1]))[1], lambda x, k: x.vsplit(k("int64", 2))[1],
    lambda x, k: x[:, :1].masked_scatter(k("bool", [True, False, True]), x[:3]),
    lambda x, k: x[0].masked_scatter(x > 0, x * 2), lambda x, k: x.masked_scatter(k("bool", True), x * 2),
    lambda x, k: x.masked_scatter(k("bool", [False] * 3), x[:0]),
    lambda x, k: k.own.block_diag(x[0, 0], x[1], x[:2], x[0, :0]), lambda x, k: k.own.block_diag(x[0, 0]),
    lambda x, k: k.own.block_diag(x[0], x.long()[:, :1]),
    lambda x, k: k.own.meshgrid(x[0, 0], x[1], indexing="ij")[0], lambda x, k: k.own.meshgrid(
        x[0, 0], x[1], indexing="xy")[1], lambda x, k: k.own.meshgrid(x[0, 0], x[0, 1], indexing="xy")[1],
    lambda x, k: k.own.meshgrid([x[0], x[:, 1]], indexing="ij")[1],
    lambda x, k: x.masked_fill(x > 0, float("nan")).isclose(x.masked_fill(x > 0, float("nan")), equal_nan=True),
    lambda x, k: x.masked_fill(x > 0, float("nan")).isclose(x * 1.000001, equal_nan=True),
    lambda x, k: x.log().isclose(x.log()), lambda x, k: x.long().isclose(x.long(), equal_nan=True),
    lambda x, k: x.narrow(1, -2, 2), lambda x, k: x.narrow(0, k("int64", 1), 2), lambda x, k: x.narrow(0, 4, 0),
    lambda x, k: k("int64", [1, 2, 2, 0]).bincount(x[:, 0].detach()), lambda x, k: k("int64", [1, 3]).bincount(
        k("int64", [2, 3]), 6), lambda x, k: k("int32", [1, 1]).bincount(weights=k("float16", [0.5, 2])),
    lambda x, k: k("int64", []).bincount(k("float32", []), minlength=2),
    lambda x, k: (x > 0).nonzero(as_tuple=True)[1], lambda x, k: (x[0, 0] > -9).nonzero(as_tuple=True)[0],
    lambda x, k: (x > 0).nonzero(as_tuple=False), lambda x, k: (x > 0).isclose(x > 1, equal_nan=True),
    lambda x, k: k.searchsorted(k("int64", [1, 3, 3, 5]), k("int64", [0, 3, 6]), side="right"),
    lambda x, k: k.searchsorted(k("int64", [3, 5, 1, 3]), k("int64", [0, 3, 6]), sorter=k("int64", [2, 0, 3, 1])),
    lambda x, k: k.searchsorted(k("int64", [1, 3]), k("int64", [[3], [4]]), side="left", out_int32=True),
    lambda x, k: x.gather(1, k("int64", np.zeros((2, 0)))), lambda x, k: x[0].gather(0, k("int64", np.zeros((2, 0)))),
    lambda x, k: x.scatter(0, k("int64", np.zeros((0, 3))), x.detach()), lambda x, k: x[0, 0].unique(True, True)[1],
    lambda x, k: x[0, 0].unique_consecutive(True)[1], lambda x, k: x.index_fill(0, k("int64", []), 1.0),
    lambda x, k: k.losses.multi_margin_loss(x[0, 0], k("int64", 0)), lambda x, k: k.losses.multi_margin_loss(
        x[0], k("int64", 2), reduction="none"),
]


class Ours:
    own, float32, float64, int32, int8 = Tensor, "float32", "float64", "int32", "int8"
    searchsorted, losses = staticmethod(Tensor.searchsorted), functional

    def __call__(self, dtype: str, data: Any) -> Any:
        return Tensor(np.array(data, dtype))


class Theirs:
    own, float32, float64, int32, int8 = torch, torch.float32, torch.float64, torch.int32, torch.int8
    searchsorted, losses = torch.searchsorted, torch.nn.functional

    def __call__(self, dtype: str, data: Any) -> Any:
        return torch.from_numpy(np.array(data, dtype))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("run", CASES)
@one_in(5, CPU_DRIVERS)
def test_results_and_gradients_are_those_of_pytorch(run: Callable[[Any, Any], Any], device: str) -> None:
    if get_device(device).target.language == "opencl" and "fp64" not in get_device(device).target.features:
        pytest.skip(f"{device} has no float64")
    with config(device=device, check_indices=True):
        x, y = torch.tensor(X, requires_grad=True), Tensor(X, requires_grad=True)
        want, got = run(x, Theirs()), run(y, Ours())
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
        if want.dtype in (torch.float32, torch.float64, torch.int8, torch.bool):
            assert got.dtype.name == str(want.dtype).removeprefix("torch.")
        if want.requires_grad and want.numel():
            weights = np.arange(1, want.numel() + 1, dtype=np.float32).reshape(want.shape)
            (want * torch.tensor(weights)).sum().backward()
            (got * Tensor(weights)).sum().backward()
            np.testing.assert_allclose(y.grad.numpy(), x.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("values", [
    [[1, 2], [0, 2], [1, 2], [0, 1]], [[1.5, -0.0], [1.5, 0.0], [-1, 7]], [[3, 3, 3]], [[True, False], [True, False]],
    np.zeros((0, 2)), np.random.default_rng(2).integers(0, 2, (9, 2, 3)), np.arange(4),
])
def test_distinct_slices(values: Any) -> None:
    """Along each axis, with where they went and how often they are there."""
    array = np.array(values)
    with config(device="NUMPY"):
        for dim in range(array.ndim):
            if 0 in array.shape[:dim] + array.shape[dim + 1:]:
                with pytest.raises(ShapeError, match="slices with elements"):
                    Tensor(array).unique(dim=dim)
                continue
            want = torch.from_numpy(array).unique(dim=dim, return_inverse=True, return_counts=True)
            for mine, other in zip(Tensor(array).unique(True, True, True, dim), want, strict=True):
                np.testing.assert_array_equal(mine.numpy(), other.numpy())
            np.testing.assert_array_equal(Tensor(array).unique(dim=dim - array.ndim).numpy(), want[0].numpy())
        nan = Tensor([[np.nan, 1.0], [0.0, 1.0], [np.nan, 1.0]]).unique(dim=0, return_counts=True)
        assert nan[0].shape == (3, 2) and nan[0][0].tolist() == [0, 1] and nan[1].tolist() == [1, 1, 1]


def test_repeats_whose_sum_is_given_are_not_read() -> None:
    @jit
    def repeated(x: Tensor, counts: Tensor) -> Tensor:
        return x.repeat_interleave(counts, output_size=4)

    for counts in ([1, 3], [0, 4], [4, 0], [2, 2]):
        assert repeated(Tensor([5.0, 6.0]), Tensor(counts)).tolist() == [5.0] * counts[0] + [6.0] * counts[1]


@pytest.mark.parametrize("run, message", [
    (lambda x: x.repeat_interleave(Tensor([1, -1]), 0), "[repeat_interleave] expected repeats [4], got [2]"),
    (lambda x: x.repeat_interleave([1, -1, 2], 1), "[repeat_interleave] expected repeats of 0 or more, got -1"),
    (lambda x: x.repeat_interleave(Tensor([1.0]), 0), "[repeat_interleave] expected an integer index, got float32"),
    (lambda x: x.tensor_split(Tensor([[1]])), "[tensor_split] expected a number of sections or indices [k], got [1, 1"),
    (lambda x: x.tensor_split(Tensor([1.0])), "[tensor_split] expected an integer index, got float32"),
    (lambda x: x.diff(-1), "[diff] expected n as an integer of 0 or more, got -1"),
    (lambda x: x.diff(1, 0, x[0]), "[cat] expected shapes equal beside axis 0"),
    (lambda x: Tensor([1, 2]).bincount(Tensor([1.0])), "[bincount] expected weights [2], got [1]"),
    (lambda x: Tensor.meshgrid(x), "[meshgrid] expected tensors of one axis, got [4, 3]"),
    (lambda x: x.narrow(0, 2, 3), "[narrow] expected start in -4..4 and no more than the 4 elements along axis 0"),
    (lambda x: x.narrow(0, -5, 0), "[narrow] expected start in -4..4"),
    (lambda x: x.select_scatter(x[0], 0, 1.0), "[select_scatter] expected an integer index, got 1.0"),
    (lambda x: x.isclose(x, rtol=-1), "[isclose] expected rtol and atol of 0 or more, got -1 and 1e-08"),
    (lambda x: x.isclose(x.double()), "[isclose] expected tensors of the same type, got float32 and float64"),
    (lambda x: x[0].searchsorted(x, True, side="left"), "[searchsorted] expected side 'left' or 'right' that agrees"),
    (lambda x: x[0].searchsorted(x, sorter=[0, 1]), "[searchsorted] expected a sorter [3], got [2]"),
    (lambda x: x[0].searchsorted(x, sorter=[0, 1, 3]), "[searchsorted] expected indices in 0..2 for an axis of 3"),
    (lambda x: x.unsqueeze(0).diag(), "[diag] expected a vector or a matrix, got [1, 4, 3]"),
    (lambda x: x.rot90(1, (1, -1)), "[rot90] expected two axes, got 1 and -1 of [4, 3]"),
    (lambda x: x.masked_fill(x > 0, x[0]), "[masked_fill] expected a number or a tensor of shape (), got [3]"),
])
def test_mistakes(run: Callable[[Tensor], Any], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(MinigradError) as caught:
        run(Tensor(X))
    assert message in str(caught.value)


@pytest.mark.parametrize("name, run", [
    ("scatter", lambda x, i, s: x.scatter(0, i, s)), ("scatter_add", lambda x, i, s: x.scatter_add(0, i, s)),
    ("scatter_reduce", lambda x, i, s: x.scatter_reduce(0, i, s, "sum")), ("put", lambda x, i, s: x.put(i, s)),
    ("index_add", lambda x, i, s: x.index_add(0, i, s)), ("index_copy", lambda x, i, s: x.index_copy(0, i, s)),
    ("index_reduce", lambda x, i, s: x.index_reduce(0, i, s, "amax")),
    ("index_put", lambda x, i, s: x.index_put((i,), s)), ("masked_scatter", lambda x, i, s: x.masked_scatter(x > 9, s)),
])
def test_sources_have_the_type_of_what_they_are_written_to(name: str, run: Callable[..., Any]) -> None:
    """As in PyTorch; lists and arrays, and what `x[index] = y` assigns, are cast."""
    with config(device="NUMPY"):
        x, i = Tensor(X[:, 0]), Tensor([2, 0])
        for wrong in (Tensor([1, 2]), Tensor([1.0, 2.0], dtype="float64"), Tensor([True, False])):
            with pytest.raises(DTypeError, match=rf"\[{name}\] expected a source of float32, got {wrong.dtype}"):
                run(x, i, wrong)
        for right in ([1, 2], np.array([1, 2]), Tensor([1.0, 2.0])):
            assert run(x, i, right).dtype.name == "float32"
        x[i] = Tensor([7, 8])
        assert x[2].item() == 7
