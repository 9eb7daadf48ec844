"""Bool masks as indices, and what else has as many results as the values say: nonzero, masked_select, unique,
bincount."""
from __future__ import annotations

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, jit
from minigrad.errors import CaptureError, DTypeError, ShapeError


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (0, 4)])
def test_reading_through_a_mask(shape: tuple[int, ...], device: str) -> None:
    x = numbers(*shape)
    for axes in range(1, len(shape) + 1):
        mask = numbers(*shape[:axes], seed=axes) > 0
        for key in (mask, Tensor(mask, device=device), mask.tolist() if mask.size else mask):
            np.testing.assert_array_equal(Tensor(x, device=device)[key].numpy(), x[mask])


def test_masks_beside_other_indices() -> None:
    x, mask, rows = numbers(4, 3, 5), numbers(3, 5, seed=1) > 0, np.array([True, False, True, True])
    t = Tensor(x)
    np.testing.assert_array_equal(t[1, mask].numpy(), x[1, mask])
    np.testing.assert_array_equal(t[..., mask[0]].numpy(), x[..., mask[0]])
    np.testing.assert_array_equal(t[rows, 1:].numpy(), x[rows, 1:])
    np.testing.assert_array_equal(t[rows, np.array([0, 2, 1])].numpy(), x[rows, np.array([0, 2, 1])])
    np.testing.assert_array_equal(t[np.zeros(4, bool)].numpy(), x[np.zeros(4, bool)])
    np.testing.assert_array_equal(t[None, rows].numpy(), x[None, rows])


def test_a_gradient_goes_back_through_a_mask() -> None:
    x = Tensor(numbers(3, 4), requires_grad=True)
    mask = numbers(3, 4, seed=2) > 0
    (x[mask] * 3).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.where(mask, 3, 0))


@pytest.mark.parametrize("device", devices())
def test_writing_through_a_mask(device: str) -> None:
    x, mask = numbers(3, 4, 2), numbers(3, 4, seed=3) > 0
    count = int(mask.sum())
    for value in (5.0, np.array([1, 2], np.float32), numbers(count, 2, seed=4), numbers(1, 2, seed=5)):
        want, got = x.copy(), Tensor(x, device=device)
        want[mask] = value
        got[Tensor(mask, device=device)] = value if isinstance(value, float) else Tensor(value, device=device)
        np.testing.assert_array_equal(got.numpy(), want)
    want, got = x.copy(), Tensor(x, device=device)
    want[1, mask[1]] = 7
    got[1, mask[1]] = 7
    np.testing.assert_array_equal(got.numpy(), want)
    half = Tensor(x, device=device).cast("float16")
    half[half > 0] = 0.5
    assert half.dtype.name == "float16" and half.numpy().max() == 0.5


def test_one_value_is_put_through_a_mask_without_reading_it() -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        y = x + 1
        y[y < 0] = 0
        return y

    for seed in range(3):
        x = numbers(4, 4, seed=seed)
        np.testing.assert_array_equal(step(Tensor(x)).numpy(), np.maximum(x + 1, 0))

    @jit
    def chosen(x: Tensor) -> Tensor:
        return x[x > 0]

    with pytest.raises(CaptureError):
        chosen(Tensor(numbers(4)))


@pytest.mark.parametrize("device", devices())
def test_the_largest_integer_beside_padding(device: str) -> None:
    """A guard around what is reduced: other values than the identity, and whole numbers, which have no infinity."""
    x = Tensor(np.array([[-3, -7, -5]], np.int32), device=device)
    assert x.pad((1, 2), value=-9).argmax(1).tolist() == [1] and x.pad((1, 0)).max(1).tolist() == [0]


def test_mistakes_with_masks() -> None:
    x = Tensor(numbers(3, 4))
    with pytest.raises(ShapeError, match=r"\[getitem\] expected a mask \[3\] from axis 0 of \[3, 4\], got \[4\]"):
        x[np.zeros(4, bool)]
    with pytest.raises(ShapeError, match=r"\[getitem\] expected a mask \[4\] from axis 1 of \[3, 4\], got \[3\]"):
        x[:, np.zeros(3, bool)]
    with pytest.raises(ShapeError, match=r"\[setitem\] expected a mask"):
        x[np.zeros((3, 3), bool)] = 1
    with pytest.raises(ShapeError, match=r"\[setitem\] expected a value that broadcasts to \[4\], got \[3\]"):
        x[np.ones(3, bool)] = Tensor([1.0, 2, 3])
    with pytest.raises(ShapeError, match="at most 2 indices"):
        x[np.zeros((3, 4, 1), bool)]
    with pytest.raises(DTypeError, match=r"\[getitem\] expected integer indices or a bool mask, got float32 \[\]"):
        x[Tensor(1.0)]
    with pytest.raises(DTypeError, match=r"\[masked_select\] expected a bool mask, got float32"):
        x.masked_select(x)


@pytest.mark.parametrize("device", devices())
def test_nonzero_and_masked_select(device: str) -> None:
    x = numbers(3, 4, 2)
    t = Tensor(x, device=device)
    np.testing.assert_array_equal(t.nonzero().numpy(), np.argwhere(x))
    assert t.nonzero().dtype.name == "int32" and Tensor(2.0, device=device).nonzero().shape == (1, 0)
    np.testing.assert_array_equal(t.masked_select(t > 0).numpy(), x[x > 0])
    row = np.array([True, False])
    np.testing.assert_array_equal(t.masked_select(Tensor(row, device=device)).numpy(), x[..., row].reshape(-1))
    assert Tensor(2.0).masked_select(Tensor(True)).tolist() == [2.0] and Tensor(2.0).masked_select(
        Tensor(False)).tolist() == []


def test_unique() -> None:
    x = numbers(5, 4)
    values, places, counts = Tensor(x).unique(return_inverse=True, return_counts=True)
    want, inverse, often = np.unique(x, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(values.numpy(), want)
    np.testing.assert_array_equal(places.numpy(), inverse.reshape(x.shape))
    np.testing.assert_array_equal(counts.numpy(), often)
    np.testing.assert_array_equal(values[places].numpy(), x)
    assert np.isnan(Tensor([np.nan, 1.0, np.nan]).unique().numpy()).tolist() == [False, True, True]
    assert Tensor([2, 1, 2], dtype="int8").unique().dtype.name == "int8" and Tensor.zeros(0).unique().shape == (0,)


@pytest.mark.parametrize("device", devices())
def test_bincount(device: str) -> None:
    x = np.array([1, 5, 1, 0, 5, 5], np.int32)
    assert Tensor(x, device=device).bincount().tolist() == np.bincount(x).tolist()
    assert Tensor(x, device=device).bincount(minlength=8).tolist() == np.bincount(x, minlength=8).tolist()
    assert Tensor([], dtype="int32", device=device).bincount(minlength=2).tolist() == [0, 0]
    with pytest.raises(ShapeError, match="expected no negative numbers, got -1"):
        Tensor([-1, 2], device=device).bincount()
    with pytest.raises(ShapeError, match=r"expected integers \[n\], got float32 \[2\]"):
        Tensor([1.0, 2.0]).bincount()


def test_a_mask_is_read_once_for_all_its_axes() -> None:
    """A mask over two axes reads its values once, not per axis."""
    from minigrad.engine.stats import stats

    x, mask = Tensor(numbers(8, 9)).realize(), Tensor(numbers(8, 9, seed=1)) > 0
    with config(disk_cache=False):
        before = stats.snapshot()
        x[mask].realize()
        assert (stats.snapshot() - before).launches == 2  # the mask, and the gather
