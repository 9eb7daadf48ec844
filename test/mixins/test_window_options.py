"""Every option of pooling, resampling, dropout of channels and softmax without an axis, and convolutions of one
example, against PyTorch."""
from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, nn
from minigrad.errors import MinigradError
from minigrad.nn import functional

try:
    import torch
except ImportError:
    torch = None

RNG = np.random.default_rng(5)


pytestmark = pytest.mark.usefixtures("on_numpy")


def agree(name: str, arrays: tuple[np.ndarray, ...], *args: Any, exact: bool = False, **options: Any) -> None:
    """The function of both on the same arrays gives the same values, types, and gradients of a sum of squares."""
    floats = arrays[0].dtype.kind == "f"
    mine = [Tensor(a, requires_grad=floats) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=floats) for a in arrays]
    ours = getattr(functional, name)(*mine, *args, **options)
    wanted = getattr(torch.nn.functional, name)(*theirs, *args, **options)
    if isinstance(wanted, tuple):
        assert np.array_equal(ours[1].numpy(), wanted[1].numpy()), (name, args, options)
        ours, wanted = ours[0], wanted[0]
    assert ours.shape == tuple(wanted.shape) and ours.dtype.name == str(wanted.dtype).removeprefix("torch."), options
    said = f"{name} {args} {options}"
    np.testing.assert_allclose(ours.numpy(), wanted.detach().numpy(), rtol=2e-5, atol=2e-5, err_msg=said)
    if floats:
        gradients = (ours * ours).sum().gradient(*mine, materialize_grads=True)
        found = torch.autograd.grad((wanted * wanted).sum(), theirs, materialize_grads=True)
        for g, t in zip(gradients, found, strict=True):
            np.testing.assert_allclose(g.numpy(), t.numpy(), rtol=1e-4, atol=1e-4, err_msg=said)


def of_axes(axes: int, batch: tuple[int, ...] = (2, 3), kind: str = "float32") -> np.ndarray:
    return (RNG.permutation(6 * 210) - 600)[:np.prod((*batch, *(7, 6, 5)[:axes]))].reshape(
        *batch, *(7, 6, 5)[:axes]).astype(kind) / (100 if kind == "float32" else 1)


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_average_pools(axes: int, kind: str) -> None:
    x = of_axes(axes, (2,), kind).astype(kind)
    for size, stride, pad, ceil, inside, divisor in product((2, 3), (None, 1, 2), (0, 1), (False, True), (False, True),
                                                            (None, 5, -2)):
        if axes > 1 or not divisor:
            agree(f"avg_pool{axes}d", (x,), size, stride, pad, ceil, inside, *([divisor] if axes > 1 else []))


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_largest_of_windows_and_their_places(axes: int) -> None:
    for batch, places in product(((2, 3), (3,)), (False, True)):
        x = of_axes(axes, batch)
        for size in (1, 3, 4, (5, 4, 5)[:axes], *([(None, 2, 3)[:axes]] if axes > 1 else [])):
            agree(f"adaptive_max_pool{axes}d", (x,), size, return_indices=places)
        for size, stride, pad, dilation, ceil in product((2, 3), (None, 1, 2), (0, 1), (1, 2), (False, True)):
            agree(f"max_pool{axes}d", (x,), size, stride, pad, dilation, ceil, return_indices=places)


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_powers_of_windows_of_zeros(axes: int) -> None:
    x = np.maximum(of_axes(axes), 0)
    x[0] = 0
    for p, stride, ceil in product((1, 2, 3, 1.5, -2), (None, 1), (False, True)):
        agree(f"lp_pool{axes}d", (x if p > 0 else x + 1,), p, 2, stride, ceil)


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_of_one_example(axes: int) -> None:
    for batch, groups in product(((2, 4), (4,)), (1, 2)):
        x = RNG.standard_normal((*batch, *(7, 6, 5)[:axes])).astype(np.float32)
        w, b = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 4 // groups, *(3, 2, 2)[:axes]), (6,)))
        agree(f"conv{axes}d", (x, w, b), 2, 1, 1, groups)
        w = RNG.standard_normal((4, 6 // groups, *(3, 2, 2)[:axes])).astype(np.float32)
        agree(f"conv_transpose{axes}d", (x, w, b), 2, 1, 1, groups)


@needs_torch
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "linear", "bilinear", "trilinear", "bicubic"])
@pytest.mark.filterwarnings("ignore:The default behavior for interpolate")
def test_resampling(mode: str) -> None:
    weighs = mode.endswith(("linear", "bicubic"))
    axes = {"linear": [1], "bilinear": [2], "bicubic": [2], "trilinear": [3]}.get(mode, [1, 2, 3])
    for n, aligned, again in product(axes, (None, True, False) if weighs else (None,), (None, True, False)):
        x = RNG.standard_normal((1, 2, *(5, 4, 3)[:n])).astype(np.float32)
        for scale in (2, 1.7, 0.6, (2.5, 0.7, 1.0)[:n]):
            agree("interpolate", (x,), None, scale, mode, aligned, again)
        if not again:
            for size in (3, (7, 4, 2)[:n]):
                agree("interpolate", (x,), size, None, mode, aligned)
                if mode in ("bilinear", "bicubic"):
                    agree("interpolate", (x,), size, None, mode, aligned, antialias=True)


@needs_torch
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "linear", "bilinear", "trilinear", "bicubic"])
@pytest.mark.filterwarnings("ignore:The default behavior for interpolate")
def test_resampling_from_and_to_one_element(mode: str) -> None:
    """PyTorch 2.13 gives the first row of several for all of them where antialiasing leaves one column."""
    aligns = (True, False) if mode.endswith(("linear", "bicubic")) else (None,)
    for n in {"linear": [1], "bilinear": [2], "bicubic": [2], "trilinear": [3]}.get(mode, [1, 2, 3]):
        shapes = ((1, 1, 1), (1, 4, 1), (3, 1, 2), (5, 5, 5))
        for lengths, size, aligned in product(shapes, shapes, aligns):
            x = RNG.standard_normal((1, 2, *lengths[:n])).astype(np.float32)
            agree("interpolate", (x,), size[:n], None, mode, aligned)
            if mode in ("bilinear", "bicubic") and not (size[0] > 1 and size[1] == 1):
                agree("interpolate", (x,), size[:n], None, mode, aligned, antialias=True)


@needs_torch
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("pads", ["zeros", "border", "reflection"])
def test_samples_at_places(axes: int, pads: str) -> None:
    x = RNG.standard_normal((2, 3, *(5, 4, 3)[:axes])).astype(np.float32)
    places = RNG.uniform(-1.4, 1.4, (2, *(3, 4, 2)[:axes], axes)).astype(np.float32)
    for mode, aligned in product(("nearest", "bilinear", "bicubic")[:5 - axes], (False, True)):
        agree("grid_sample", (x, places), mode, pads, aligned)


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_gradients_of_unpooling(axes: int) -> None:
    """Of windows that overlap too: an element that was found twice has the gradient of its place twice."""
    x = torch.tensor(of_axes(axes))
    values, places = getattr(torch.nn.functional, f"max_pool{axes}d")(x, 3, 1, return_indices=True)
    t, m = values.clone().requires_grad_(), Tensor(values.numpy(), requires_grad=True)
    wanted = getattr(torch.nn.functional, f"max_unpool{axes}d")(t, places, 3, 1)
    got = getattr(functional, f"max_unpool{axes}d")(m, Tensor(places.numpy()), 3, 1)
    assert np.array_equal(got.numpy(), wanted.detach().numpy())
    g = (got * got).sum().gradient(m)[0].numpy()
    np.testing.assert_allclose(g, torch.autograd.grad((wanted * wanted).sum(), t)[0].numpy(), rtol=1e-6)


@needs_torch
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_without_an_axis(name: str) -> None:
    """Both warn and take the same axis; so do layers."""
    layer = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "softmin": "Softmin"}[name]
    for rank in range(1, 5):
        x = RNG.standard_normal((2, 3, 4, 5)[:rank]).astype(np.float32)
        with pytest.warns(UserWarning, match="dim") as caught:
            agree(name, (x,))
            wanted = getattr(torch.nn, layer)()(torch.tensor(x)).numpy()
            np.testing.assert_allclose(getattr(nn, layer)()(Tensor(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert len(caught) == 4 and __file__ in {w.filename for w in caught}
        agree(name, (x,), -1, 3, dtype=None)


@needs_torch
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("rank", range(1, 7))
def test_what_dropout_takes_for_channels(axes: int, rank: int) -> None:
    """The same shapes are refused and warned of, and the same elements share a fate."""
    shape, name = (14, 9, 3, 3, 2, 2)[:rank], f"dropout{axes}d"
    torch.manual_seed(1)
    Tensor.manual_seed(1)
    outcomes: list[Any] = []
    for package, ones in ((functional, Tensor.ones(*shape)), (torch.nn.functional, torch.ones(shape))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                kept = getattr(package, name)(ones, 0.5).numpy() != 0
            except (MinigradError, RuntimeError):
                outcomes.append(None)
                continue
        together = tuple(bool((kept == kept.take([0], a)).all()) for a in range(rank))
        outcomes.append((together, len(caught)))
    assert outcomes[0] == outcomes[1]
    if outcomes[0] is not None and not outcomes[0][1]:
        x = getattr(nn, f"Dropout{axes}d")(0.5)
        assert np.array_equal(x(Tensor.ones(*shape)).numpy(), np.ones(shape))
