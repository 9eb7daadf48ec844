"""Random tensors: known answers of the generator, reproducible, the same on every device and in every order."""

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, manual_seed
from minigrad import random as state
from minigrad.dtype import uint32, uint64
from minigrad.ops import apply
from minigrad.ops import build as B
from minigrad.ops.storage import RANDOM_BITS, _threefry2x32

pytestmark = pytest.mark.usefixtures("on_numpy")


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    def rotate(v: int, r: int) -> int:
        return ((v << r) | (v >> (32 - r))) & 0xFFFFFFFF

    words = _threefry2x32(list(key), list(counter), lambda a, b: (a + b) & 0xFFFFFFFF, lambda a, b: a ^ b, rotate, int)
    return words[0], words[1]


def test_known_answers() -> None:
    # From the Random123 distribution's kat_vectors, threefry 2x32 with 20 rounds.
    ones = 0xFFFFFFFF
    assert threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    assert threefry((ones, ones), (ones, ones)) == (0x1CB996FC, 0xBB002BE7)
    assert threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)) == (0xC4923A9C, 0x483DF7A0)


@pytest.mark.parametrize("device", devices())
def test_bits_follow_key_and_counter(device: str) -> None:
    key, counter = (0x03707344 << 32) | 0x13198A2E, 5
    scalars = B.scalar(key, "key", uint64, device), B.scalar(counter, "counter", uint32, device)
    node = apply(RANDOM_BITS, *scalars, extents=(3, 7))
    got = Tensor._wrap(node).numpy()
    want = [threefry((0x13198A2E, 0x03707344), (i, counter))[0] for i in range(21)]
    assert got.reshape(-1).tolist() == want


@pytest.mark.parametrize("device", devices())
def test_same_numbers_on_every_device(device: str) -> None:
    def draw(name: str) -> list[np.ndarray]:
        manual_seed(42)
        made = [Tensor.rand(5, 3, device=name), Tensor.randint(9, low=-5, high=70, device=name)]
        return [t.numpy() for t in made]

    for want, got in zip(draw("NUMPY"), draw(device), strict=True):
        np.testing.assert_array_equal(got, want)
    manual_seed(1)
    want = Tensor.randn(33, device="NUMPY").numpy()
    manual_seed(1)
    np.testing.assert_allclose(Tensor.randn(33, device=device).numpy(), want, rtol=2e-5, atol=2e-5)


def test_order_of_realization_does_not_matter() -> None:
    manual_seed(3)
    a, b = Tensor.rand(4), Tensor.rand(4)
    second, first = b.tolist(), a.tolist()
    manual_seed(3)
    c = Tensor.rand(4).tolist()
    d = Tensor.rand(4).tolist()
    assert first == c and second == d and first != second


def test_distributions() -> None:
    manual_seed(7)
    u, z = Tensor.rand(20000).numpy(), Tensor.randn(20000).numpy()
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    assert abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.03 and np.isfinite(z).all()
    i = Tensor.randint(20000, low=-2, high=3).numpy()
    values, counts = np.unique(i, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2] and (abs(counts - 4000) < 400).all()
    assert sorted(Tensor.randperm(50).tolist()) == list(range(50))
    s = Tensor.uniform(1000, low=2, high=4).numpy()
    assert 2 <= s.min() and s.max() < 4


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_types(kind: str) -> None:
    u = Tensor.rand(3000, dtype=kind).numpy()
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.03


def test_initial_weights() -> None:
    manual_seed(0)
    shape = (64, 32, 3, 3)
    for name, bound in (("glorot_uniform", (6 / (96 * 9)) ** 0.5), ("kaiming_uniform", (6 / (1.0001 * 32 * 9)) ** 0.5)):
        w = getattr(Tensor, name)(*shape).numpy()
        assert abs(w).max() <= bound and abs(w).max() > bound * 0.99 and abs(w.mean()) < bound / 50
    w = Tensor.kaiming_normal(*shape).numpy()
    assert abs(w.std() / (2 / (1.0001 * 32 * 9)) ** 0.5 - 1) < 0.03


def test_counter_is_taken_when_the_graph_is_built() -> None:
    manual_seed(5)
    assert state.counter() == 0
    Tensor.rand(3)
    assert state.counter() == 1 and state.advance(4) == 1 and state.counter() == 5


def test_integers_of_another_tensors_shape() -> None:
    with config(device="NUMPY"):
        x = Tensor.zeros(40, 5, dtype="int64")
        y, z = x.randint_like(7), x.randint_like(-3, 2, dtype="int8")
        assert y.shape == z.shape == (40, 5) and y.dtype is x.dtype and z.dtype.name == "int8"
        assert set(np.unique(y.numpy())) == set(range(7)) and set(np.unique(z.numpy())) == set(range(-3, 2))
