"""Comparisons of halves see what memory would hold: what was stored equals itself computed again, in another kernel,
where the sum, product or function before it is still in float32. Extremes are found again so by their gradients."""
from collections.abc import Callable

import numpy as np
import pytest
from conftest import devices, one_in

import minigrad.nn.functional as F
from minigrad import Tensor

HALVES = ("float16", "bfloat16")
SHAPE = (4, 8, 9)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool1d": lambda y: F.max_pool1d(y, 3, stride=1),
    "max_pool1d, dilated": lambda y: F.max_pool1d(y, 2, stride=1, dilation=3),
    "max_pool1d, of one": lambda y: F.max_pool1d(y, 1),
    "max_pool2d, padded": lambda y: F.max_pool2d(y, 3, stride=2, padding=1),
    "max_pool2d, side by side": lambda y: F.max_pool2d(y, 3, padding=1),
    "max_pool2d, with places": lambda y: F.max_pool2d(y, 2, stride=1, return_indices=True)[0],
    "max_pool3d": lambda y: F.max_pool3d(y.unsqueeze(0), 2, stride=1),
    "adaptive_max_pool2d": lambda y: F.adaptive_max_pool2d(y, (3, 4)),
    "amax": lambda y: y.amax(1),
    "amin": lambda y: y.amin((0, 2)),
    "cummax": lambda y: y.cummax(2)[0],
    "cummin": lambda y: y.cummin(1)[0],
    "sort": lambda y: y.sort(2)[0][..., :5],
    "topk": lambda y: y.topk(3, dim=2)[0],
    "median": lambda y: y.median(dim=2)[0],
    "maximum": lambda y: y.maximum(y.flip(2)),
    "clip": lambda y: y.clip(-0.3, 0.3),
    "argmax": lambda y: F.one_hot(y.argmax(-1), 9) * y,
    "where": lambda y: (y == y.amax(-1, keepdim=True)).where(y, 0),
}


def halves(dtype: str, device: str, seed: int) -> Tensor:
    numbers = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return Tensor(numbers, device=device).cast(dtype).realize()


@one_in(9, "CL:")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_find_what_was_chosen(name, dtype, device):
    """They are those of the same numbers in memory, also where the result is read first."""
    function, a, b = FUNCTIONS[name], halves(dtype, device, 0), halves(dtype, device, 1)
    w = Tensor(np.zeros(SHAPE, np.float32), device=device).cast(dtype).realize().requires_grad_()

    def computed() -> Tensor:
        return a * b.sigmoid() + w

    stored = function(computed().contiguous()).sum().gradient(w)[0].cast("float32").numpy()
    assert np.isfinite(stored).all() and stored.any()
    read = function(computed()).realize()
    for result in (function(computed()), read):
        np.testing.assert_array_equal(result.sum().gradient(w)[0].cast("float32").numpy(), stored)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", HALVES)
def test_a_stored_half_equals_itself_computed_again(dtype, device):
    a, b = halves(dtype, device, 0), halves(dtype, device, 1)

    def computed() -> Tensor:
        return a * b.sigmoid() + b

    stored, largest = computed().realize(), computed().max().realize()
    assert (computed() == stored).all().item() and not (computed() < stored).any().item()
    assert (computed() == computed().max()).sum().item() >= 1
    assert (computed() == largest).sum().item() == (stored == largest).sum().item() >= 1
    assert (computed().bool() == stored.bool()).all().item()


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_compared_is_rounded_as_numbers_are(dtype):
    """Constants, padding and numbers that a half type cannot hold, as they are in memory."""
    a = halves(dtype, "CPU", 0)
    tenth = Tensor.full(SHAPE, 0.1, dtype=dtype).realize()
    assert (a * 0 + 0.1 == tenth).all().item()
    assert (Tensor.full(SHAPE, 0.1, dtype=dtype) == tenth).all().item()
    padded = a.pad((1, 1), value=0.1)
    assert (padded == padded.contiguous()).all().item()
    assert ((a * 0 + 6e4) * 1e35 * 10).isinf().all().item()


@pytest.mark.parametrize("device", [d for d in devices() if d.startswith("CL:")])
@pytest.mark.parametrize("length", [9, 18])
def test_vectors_of_halves_begin_anywhere(length, device):
    """Drivers may read them as if they were aligned: windows over odd rows are read at each place."""
    numbers = np.random.default_rng(2).standard_normal((4, 8, length)).astype(np.float16)
    x = Tensor(numbers, device=device)
    found = F.max_pool1d(x.cast("float32").exp(), 3, stride=1).numpy()
    wanted = np.lib.stride_tricks.sliding_window_view(np.exp(numbers.astype(np.float32)), 3, -1).max(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
