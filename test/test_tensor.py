"""Tensor: construction, promotion, indexing, assignment, Python protocols."""
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

from minigrad import Tensor, Variable, dtypes
from minigrad.dtype import ALL, bool_, float32, int32, promote
from minigrad.mixins.all import AllMixins
from minigrad.ops import build as B
from minigrad.ops.composite import apart
from minigrad.ops.node import Node
from minigrad.runtime.registry import get_device

pytestmark = pytest.mark.usefixtures("on_numpy")


# Construction


def test_types_of_new_tensors() -> None:
    assert Tensor(True).dtype is bool_ and Tensor(3).dtype is int32 and Tensor(3.0).dtype is float32
    assert Tensor([1, 2]).dtype is int32 and Tensor([1, 2.5]).dtype is float32 and Tensor([True]).dtype is bool_
    assert Tensor([2**40]).dtype is dtypes.int64 and Tensor(2**40).dtype is dtypes.int64
    assert Tensor(np.zeros(2)).dtype is dtypes.float64 and Tensor(np.float16(1)).dtype is dtypes.float16
    assert Tensor([1.5], dtype="bfloat16").numpy().dtype == np.float32
    assert Tensor([]).shape == (0,) and Tensor([]).dtype is float32
    assert Tensor(b"\x01\x02").tolist() == [1, 2]


def test_a_tensor_is_flat() -> None:
    """The methods of all mixins, over two bases, which Python visits when an object dies."""
    assert [c.__name__ for c in Tensor.__mro__] == ["Tensor", "Base", "object"]
    for c in AllMixins.__mro__[:-2]:
        assert not [name for name in vars(c) if name not in vars(Tensor)], c
    assert vars(Tensor)["add"] is AllMixins.add and Tensor.__slots__ == ()


def test_tensor_copies_and_from_blob_aliases() -> None:
    array = np.arange(4, dtype=np.float32)
    copy, alias = Tensor(array), Tensor.from_blob(array)
    array[0] = 7
    assert copy.tolist() == [0, 1, 2, 3] and alias.tolist() == [7, 1, 2, 3]
    out = copy.numpy()
    out[:] = 5
    assert copy.tolist() == [0, 1, 2, 3]


def test_creation() -> None:
    assert Tensor.zeros(2, 3).shape == (2, 3) and Tensor.ones((2, 3)).numpy().sum() == 6
    assert Tensor.full((2,), 7).tolist() == [7, 7] and Tensor.full((2,), 7).dtype is int32
    assert Tensor.arange(5).tolist() == [0, 1, 2, 3, 4] and Tensor.arange(5, 0, -2).tolist() == [5, 3, 1]
    np.testing.assert_allclose(Tensor.arange(0.5, 3, 0.4).numpy(), np.arange(0.5, 3, 0.4), rtol=1e-6)
    assert Tensor.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1] and Tensor.linspace(2, 3, 1).tolist() == [2]
    assert Tensor.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    x = Tensor([[1, 2]], dtype="int8")
    assert x.zeros_like().dtype is dtypes.int8 and x.ones_like().tolist() == [[1, 1]]
    assert x.full_like(3, dtype=float32).tolist() == [[3, 3]] and Tensor.empty(0, 4).numpy().shape == (0, 4)


@pytest.mark.parametrize("a,b", list(itertools.product(ALL, ALL)), ids=lambda d: d.name)
def test_promotion(a: dtypes.DType, b: dtypes.DType) -> None:
    assert (Tensor([1], dtype=a) + Tensor([1], dtype=b)).dtype is promote(a, b)


def test_python_numbers_are_weak() -> None:
    for kind in ALL:
        x = Tensor([1], dtype=kind)
        assert (x * 2).dtype is (int32 if kind is bool_ else kind)
        assert (x * 2.5).dtype is (kind if kind.is_float else float32)
    assert (2 - Tensor([1, 2])).tolist() == [1, 0] and (1 / Tensor([2, 4])).tolist() == [0.5, 0.25]
    assert (2 ** Tensor([1.0, 3.0])).tolist() == [2, 8] and (7 // Tensor([2, -2])).tolist() == [3, -4]
    assert (-7 % Tensor([4, -4])).tolist() == [1, -3] and (1 << Tensor([3])).tolist() == [8]


def test_integer_powers() -> None:
    x = Tensor([-3, 2, 5])
    assert (x**3).tolist() == [-27, 8, 125] and (x**0).tolist() == [1, 1, 1]
    assert (x ** Tensor([2, 3, 1])).tolist() == [9, 8, 5]
    np.testing.assert_allclose((x**-1).numpy(), [-1 / 3, 0.5, 0.2], rtol=1e-6)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_int], ids=str)
@one_in(3, CPU_DRIVERS)
def test_powers_of_integers_wrap_and_lose_no_digit(dtype: Any, device: str) -> None:
    bits, signed = 8 * dtype.itemsize, dtype.kind == "i"
    bases, exponents = [0, 1, 2, 3, 7, 10, 113], [0, 1, 2, 5, 18, 39, 63, 64, 65, 100]
    if signed:
        bases, exponents = [*bases, -1, -2, -3, int(dtype.min)], [*exponents, -1, -2, int(dtype.min)]
    def exact(b: int, e: int) -> int:
        found = b ** e if e >= 0 else 1 if b == 1 or (b == -1 and e % 2 == 0) else -int(b == -1)
        found %= 1 << bits
        return found - (1 << bits) if signed and found >> bits - 1 else found
    x, y = Tensor(bases, dtype=dtype, device=device), Tensor(exponents, dtype=dtype, device=device)
    found = x.reshape(-1, 1) ** y
    assert found.dtype is dtype and found.tolist() == [[exact(b, e) for e in exponents] for b in bases]
    assert (3 ** y).tolist() == [exact(3, e) for e in exponents] and (True ** y).tolist() == [1] * len(exponents)


def test_powers_of_bools() -> None:
    x, y = Tensor([False, False, True, True]), Tensor([False, True, False, True])
    assert (x ** y).tolist() == [True, False, True, True] and (Tensor([True]) + 2**31).tolist() == [2**31 + 1]


def test_negative_zero_and_nan_constants() -> None:
    assert np.signbit(Tensor([1.0]).full_like(-0.0).numpy()).all()
    assert not np.signbit(Tensor([1.0]).full_like(0.0).numpy()).any()
    assert np.isnan(Tensor(float("nan")).numpy())
    assert Tensor.full((2,), 1).dtype is int32 and Tensor.full((2,), True).dtype is bool_
    x = Tensor([-0.0])
    assert np.signbit((x * 1).numpy())[0] and not np.signbit((x + 0.0).numpy())[0] and np.signbit((x - 0.0).numpy())[0]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_float], ids=str)
def test_signs_of_nan_count(device: str, dtype: Any) -> None:
    if dtype is dtypes.float64 and device != "NUMPY" and "fp64" not in get_device(device).target.features:
        pytest.skip(f"{device} has no float64")
    x = Tensor([math.nan, -math.nan, 0.0, -0.0], dtype=dtype, device=device)
    assert x.signbit().tolist() == [False, True, False, True]
    assert Tensor([1.0] * 4, device=device).copysign(x.float()).tolist() == [1, -1, 1, -1]


# Graph building


def leaf(*shape: int) -> Node:
    return Tensor(np.ones(shape, np.float32)).node


@pytest.fixture
def own_numbers() -> Iterator[None]:
    """Numbers that no other test has handles of, by which they would be apart."""
    with apart():
        yield


@pytest.mark.usefixtures("own_numbers")
def test_equal_graphs_are_one_object() -> None:
    x = leaf(2)

    def by(value: float) -> Node:
        return B.mul(x, B.full_like(x, value))

    nan = float("nan")
    assert by(2) is by(2.0) and by(0.0) is not by(-0.0) and by(nan) is by(nan + 1)
    numbers = [Tensor(v).node for v in (1, True, 1.0, -0.0, 0.0, 0, False)]
    assert len(set(numbers)) == len(numbers)


def test_floats_of_handles_are_apart() -> None:
    x = Tensor([1.0, 2.0])
    y = x + 1
    assert (x + 1).node is not y.node and B.add(x.node, B.full_like(x.node, 1)) is not y.node
    assert (x > 1).node is (x > 1).node and x.int().node is x.int().node


@pytest.mark.usefixtures("own_numbers")
def test_local_rewrites() -> None:
    x, one, zero = leaf(2, 3), B.full(1.0, (2, 3), float32, "NUMPY"), B.full(0.0, (2, 3), float32, "NUMPY")
    rows: list[tuple[Node, Node]] = [
        (B.mul(x, one), x), (B.mul(one, x), x), (B.div(x, one), x), (B.sub(x, zero), x), (B.neg(B.neg(x)), x),
        (B.reshape(B.reshape(x, (6,)), (2, 3)), x), (B.reshape(B.reshape(x, (6,)), (3, 2)), B.reshape(x, (3, 2))),
        (B.permute(B.permute(x, (1, 0)), (1, 0)), x), (B.expand(x, (2, 3)), x),
        (B.slice_(x, (0, 0), (2, 3)), x), (B.pad(x, ((0, 0), (0, 0))), x), (B.cast(x, float32), x),
        (B.cast(B.cast(x, dtypes.float64), dtypes.float16), B.cast(x, dtypes.float16)),
        (B.add(one, one), B.full(2.0, (2, 3), float32, "NUMPY")), (B.exp(zero), one),
        (B.permute(one, (1, 0)), B.full(1.0, (3, 2), float32, "NUMPY")),
        (B.where(B.full(True, (2, 3), bool_, "NUMPY"), x, one), x),
    ]  # fmt: skip
    for k, (got, want) in enumerate(rows):
        assert got is want, f"row {k}: {got} is not {want}"


def test_rewrites_that_would_change_values_stay_away() -> None:
    x, zero = leaf(2), B.full(0.0, (2,), float32, "NUMPY")
    assert B.add(x, zero) is not x and B.mul(x, zero) is not zero
    half = B.cast(x, dtypes.float16)
    assert B.cast(half, float32) is not x


# Indexing


def test_basic_indexing_like_numpy() -> None:
    rng = np.random.default_rng(3)
    array = rng.standard_normal((4, 5, 6)).astype(np.float32)
    x = Tensor(array)
    ends = [None, 0, 1, 2, 5, 9, -1, -2, -9]
    for _ in range(150):
        key: list[Any] = []
        for _ in range(rng.integers(0, 4)):
            kind = rng.integers(0, 4)
            if kind == 0:
                key.append(int(rng.integers(-4, 4)))
            elif kind == 1:
                key.append(None)
            else:
                step = int(rng.choice([1, 1, 2, 3, -1, -2, -7]))
                key.append(slice(ends[rng.integers(9)], ends[rng.integers(9)], step))
        if rng.random() < 0.4:
            key.insert(int(rng.integers(len(key) + 1)), Ellipsis)
        want = array[tuple(key)]
        np.testing.assert_array_equal(x[tuple(key)].numpy(), want, err_msg=str(key))


def test_tensor_indexing_like_numpy() -> None:
    array = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    x, i, j = Tensor(array), np.array([[0, -1], [2, 1]]), np.array([3, 0])
    keys: list[tuple] = [
        (i,), (slice(None), i), (i, j), (i, slice(1, 3), j), (slice(None), i, j), (None, i, j),
        (slice(None), None, i), (Ellipsis, j), (slice(None), 2, j), (j, None, j),
    ]  # fmt: skip
    for key in keys:
        mine = tuple(Tensor(k) if isinstance(k, np.ndarray) else k for k in key)
        np.testing.assert_array_equal(x[mine].numpy(), array[key], err_msg=str(key))
    np.testing.assert_array_equal(x[[1, 2]].numpy(), array[[1, 2]])


def test_setitem_like_numpy() -> None:
    start = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    i = np.array([2, 0])
    keys: list = [0, -1, slice(1, 3), (slice(None), 2), (Ellipsis, slice(4, 0, -2)), (1, 2, 3), (i,), (slice(None), i),
                  (i, slice(1, 3)), (i, i), slice(2, 2)]  # fmt: skip
    for key in keys:
        array, x = start.copy(), Tensor(start)
        value = -np.arange(array[key].size, dtype=np.float32).reshape(array[key].shape)
        array[key] = value
        parts = key if isinstance(key, tuple) else (key,)
        x[tuple(Tensor(k) if isinstance(k, np.ndarray) else k for k in parts)] = Tensor(value)
        np.testing.assert_array_equal(x.numpy(), array, err_msg=str(key))


def test_iteration_and_len() -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert len(x) == 2 and [row.tolist() for row in x] == [[1, 2], [3, 4]]


# Assignment: versions (every device)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("realized", [False, True])
def test_slice_keeps_old_values(device: str, realized: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0], device=device) * 1
    if realized:
        x.realize()
    y, z = x[0:2], x
    x[0] = 9
    assert y.tolist() == [1, 2] and x.tolist() == [9, 2, 3, 4] and z is x
    x[1:3] = Tensor([7.0, 8.0], device=device)
    assert y.tolist() == [1, 2] and x.tolist() == [9, 7, 8, 4]


@pytest.mark.parametrize("device", devices())
def test_read_after_write_order(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=device).realize()
    before = x + 0.5
    x.assign(x * 10)
    after = x + 0.5
    assert after.tolist() == [10.5, 20.5, 30.5] and before.tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("device", devices())
def test_overlapping_assignment(device: str) -> None:
    x = Tensor([0.0, 1.0, 2.0, 3.0, 4.0], device=device).realize()
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
    x[:-1] = x[1:]
    assert x.tolist() == [0, 1, 2, 3, 3]
    x.assign(x.flip(0))
    assert x.tolist() == [3, 3, 2, 1, 0]


@pytest.mark.parametrize("device", devices())
def test_other_handles_keep_the_old_version(device: str) -> None:
    x = Tensor([1.0, 2.0], device=device).realize()
    y = Tensor(x)
    x.assign(Tensor([5.0, 6.0], device=device)).realize()
    assert y.tolist() == [1, 2] and x.tolist() == [5, 6]
    z = y.clone()
    y[0] = 3
    assert z.tolist() == [1, 2] and y.tolist() == [3, 2]


@pytest.mark.parametrize("device", devices())
def test_chained_updates(device: str) -> None:
    x, total = Tensor.zeros(3, device=device).contiguous().realize(), 0
    for k in range(20):
        x.assign(x + k)
        total += k
        if k % 3 == 0:
            x.realize()
    assert x.tolist() == [total] * 3


def test_assign_casts_and_broadcasts() -> None:
    x = Tensor.zeros(2, 3, dtype="int32")
    x.assign(Tensor([1.7, 2.2, -3.9]))
    assert x.tolist() == [[1, 2, -3], [1, 2, -3]] and x.dtype is int32
    x.assign(4)
    assert x.tolist() == [[4] * 3] * 2


@pytest.mark.parametrize("device", devices())
def test_between_devices(device: str) -> None:
    x = Tensor([1.0, 2.0], device="NUMPY", requires_grad=True)
    y = (x * 2).to(device)
    assert y.device != "NUMPY" or device == "NUMPY"
    z = (y * y).to("NUMPY")
    z.sum().backward()
    assert z.tolist() == [4, 16] and x.grad is not None and x.grad.tolist() == [8, 16]


# Symbolic dims


@pytest.mark.parametrize("device", devices())
def test_symbolic_slices_and_sums(device: str) -> None:
    array = np.arange(24, dtype=np.float32).reshape(8, 3)
    x = Tensor(array, device=device)
    pos = Variable("pos", 1, 8)
    for value in (1, 3, 8):
        n = pos.bind(value)
        np.testing.assert_array_equal(x[:n].sum(0).numpy(), array[:value].sum(0))
        np.testing.assert_array_equal((x[:n] * 2).numpy(), array[:value] * 2)
        np.testing.assert_array_equal(x[n - 1].numpy(), array[value - 1])
        assert (x[:n].flatten() + 1).shape == (n * 3,)


@pytest.mark.parametrize("device", devices())
def test_growing_cache(device: str) -> None:
    cache = Tensor.zeros(6, 2, device=device).contiguous().realize()
    want = np.zeros((6, 2), np.float32)
    pos = Variable("pos", 0, 5)
    for k in range(6):
        p = pos.bind(k)
        cache[p:p + 1] = Tensor([[k + 1.0, -k]], device=device)
        want[k] = [k + 1, -k]
        np.testing.assert_array_equal(cache[:p + 1].numpy(), want[:k + 1])
    np.testing.assert_array_equal(cache.numpy(), want)


def test_symbolic_shapes() -> None:
    n, pos = Variable("n", 1, 16).bind(4), Variable("pos", 0, 16).bind(3)
    x = Tensor.ones(32, 8)[:pos + n]
    assert x.reshape(pos + n, 2, 4).permute(1, 0, 2).shape == (2, pos + n, 4)
    assert x.reshape(-1).reshape(pos + n, 8).numpy().shape == (7, 8)
    scores = Tensor.ones(n, 8) @ x.T
    assert scores.shape == (n, x.shape[0]) and scores.softmax(-1).sum().item() == pytest.approx(4)
    assert Tensor.arange(pos, pos + n).tolist() == [3, 4, 5, 6]
    assert (Tensor([1.0, 2.0]) * pos).tolist() == [3, 6] and Tensor(pos).item() == 3


# Python protocols


def test_protocols() -> None:
    x = Tensor([[1.5, 2.0]])
    assert x.item if x.ndim else None
    assert float(x[0, 0]) == 1.5 and int(Tensor(3)) == 3 and bool(Tensor([1])) and not Tensor([0.0])
    assert [10, 20, 30][Tensor(1)] == 20
    assert np.asarray(x).tolist() == [[1.5, 2.0]] and x.tolist() == [[1.5, 2.0]]
    assert repr(x) == "tensor([[1.5000, 2.0000]])" and "lazy" in repr(x + 1)
    assert x.numel() == 2 and x.nbytes() == 8 and x.size(1) == 2 and x.size() == (1, 2) and x.element_size() == 4
    assert len({x, x, Tensor(1)}) == 2
    assert (np.float32(2) * Tensor([1.0])).tolist() == [2.0]
    assert (x == x).all().item() and (x != 1.5).tolist() == [[False, True]]


def test_training_mode_is_a_context() -> None:
    x = Tensor.ones(1000)
    assert x.dropout(0.5) is x
    with Tensor.train():
        assert Tensor.training
        dropped = x.dropout(0.5).numpy()
        with Tensor.train(False):
            assert not Tensor.training
        assert Tensor.training
    assert not Tensor.training and set(np.unique(dropped)) == {0.0, 2.0}


def test_numbers_become_integers_as_in_a_cast():
    wide = [3e9, -3e9, math.inf, -math.inf, math.nan, 2.9, -2.9]
    cast = Tensor(wide).cast("int32").tolist()
    assert cast == [2**31 - 1, -2**31, 2**31 - 1, -2**31, 0, 2, -2]
    assert Tensor.full((2,), 300.0).cast("uint8").tolist() == [255, 255]
    assert Tensor(300).cast("uint8").item() == 44  # integers wrap


def test_lists_of_tensors_are_joined():
    a, b = Tensor([[1, 2]]), Tensor([[3, 4]])
    assert Tensor.cat([a, b], dim=1).tolist() == Tensor.cat(a, b, dim=1).tolist() == [[1, 2, 3, 4]]
    assert Tensor.cat([a[:0], a[:0].float()]).dtype is float32  # though there is nothing to join
    assert Tensor.stack((a, b)).tolist() == a.stack(b).tolist() == [[[1, 2]], [[3, 4]]]


def test_fills_and_indices_of_any_kind() -> None:
    assert Tensor.full((2,), np.float32(2.5)).tolist() == [2.5, 2.5]
    assert Tensor.full((1,), Tensor(2.5)).tolist() == [2.5]
    assert Tensor.full((1,), np.int64(3)).dtype is int32 and Tensor.arange(Tensor(3)).tolist() == [0, 1, 2]
    assert Tensor(np.arange(3, dtype=">f4")).tolist() == [0, 1, 2]
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x[[]].shape == (0, 2) and x.take([1, -1]).tolist() == [2, 4]
    assert x.gather(1, [[1], [0]]).tolist() == [[2], [3]] and x.embedding(np.array([1])).tolist() == [[3, 4]]
    assert Tensor(2.0).softmax(-1).item() == 1 and Tensor.zeros(3, 0).softmax(-1).shape == (3, 0)
    none = Tensor.ones(1, 0, 3)
    assert Tensor.ones(1, 2, 3).scaled_dot_product_attention(none, none).tolist() == [[[0, 0, 0], [0, 0, 0]]]


def test_rows_of_the_ignored_class_do_not_count() -> None:
    logits, classes = Tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 0.0]]), [1, -100, 0]
    counted = logits[[0, 2]].cross_entropy([1, 0])
    assert logits.cross_entropy(classes, ignore_index=-100).item() == pytest.approx(counted.item(), rel=1e-6)


@pytest.mark.parametrize("formula", ["...ij,...jk->...ik", "...ij,jk", "i...,j...->...", "bij,...j->bi..."])
def test_einsum_with_an_ellipsis_like_numpy(formula: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"...ij,...jk->...ik": ((5, 2, 3, 4), (2, 4, 2)), "...ij,jk": ((5, 2, 3), (3, 4)),
              "i...,j...->...": ((2, 3, 4), (3, 4)), "bij,...j->bi...": ((2, 3, 4), (5, 4))}[formula]
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    result = Tensor.einsum(formula, Tensor(a), Tensor(b)).numpy()
    np.testing.assert_allclose(result, np.einsum(formula, a, b), rtol=1e-5, atol=1e-6)


def test_a_mask_without_axes_is_set_through() -> None:
    x = Tensor(3.0)
    x[x > 5] = 1
    x[x > 1] = 0.25
    assert x.item() == 0.25
