"""Pooling with indices, interpolation, sampling at places, columns of windows, pixels: against torch, and by hand."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import check, normal

from minigrad import Tensor, config, jit
from minigrad.errors import ShapeError

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    torch = None


SIZES: list[dict[str, Any]] = [
    {"size": (7, 3)}, {"size": 5}, {"scale_factor": 2}, {"scale_factor": (0.5, 1.5)}, {"size": (1, 1)},
    {"size": (4, 5)},
]
MODES: list[dict[str, Any]] = [
    {"mode": "nearest"}, {"mode": "nearest-exact"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True},
    {"mode": "bicubic"}, {"mode": "bicubic", "align_corners": True}, {"mode": "area"},
]


@needs_torch
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_interpolate(size: dict[str, Any], mode: dict[str, Any]) -> None:
    with config(device="NUMPY"):
        check(lambda x: x.interpolate(**size, **mode), lambda x: F.interpolate(x, **size, **mode), normal(2, 3, 4, 5))


@needs_torch
@pytest.mark.parametrize("device", devices())
def test_interpolate_on(device: str) -> None:
    with config(device=device):
        check(lambda x: x.interpolate(scale_factor=2, mode="bilinear"),
              lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(1, 2, 5, 3))
        check(lambda x: x.interpolate((9, 4), mode="bicubic"), lambda x: F.interpolate(x, (9, 4), mode="bicubic"),
              normal(1, 2, 5, 3))


@needs_torch
def test_interpolate_signals_and_volumes() -> None:
    with config(device="NUMPY"):
        check(lambda x: x.interpolate(9, "linear"), lambda x: F.interpolate(x, 9, mode="linear"), normal(2, 3, 4))
        check(lambda x: x.interpolate(scale_factor=1.1, mode="linear"),
              lambda x: F.interpolate(x, scale_factor=1.1, mode="linear"), normal(2, 3, 7))
        check(lambda x: x.interpolate(scale_factor=1.7, mode="linear", align_corners=True),
              lambda x: F.interpolate(x, scale_factor=1.7, mode="linear", align_corners=True), normal(2, 3, 7))
        check(lambda x: x.interpolate((3, 4, 5), "trilinear"), lambda x: F.interpolate(x, (3, 4, 5), mode="trilinear"),
              normal(1, 2, 2, 3, 4))


@pytest.mark.parametrize("device", devices())
def test_interpolate_by_hand(device: str) -> None:
    x = Tensor([[[0.0, 1.0, 4.0]]], device=device)
    np.testing.assert_array_equal(x.interpolate(6).numpy()[0, 0], [0, 0, 1, 1, 4, 4])
    np.testing.assert_allclose(x.interpolate(5, "linear", True).numpy()[0, 0], [0, 0.5, 1, 2.5, 4])
    np.testing.assert_allclose(x.interpolate(6, "linear").numpy()[0, 0], [0, 0.25, 0.75, 1.75, 3.25, 4])
    assert Tensor([[[1, 2]]], device=device).interpolate(4).tolist() == [[[1, 1, 2, 2]]]
    assert x.interpolate(0).shape == (1, 1, 0)
    assert Tensor.zeros(0, 2, 3, device=device).interpolate(5).shape == (0, 2, 5)
    half = x.half().interpolate(6, "linear")
    assert half.dtype.name == "float16" and half.numpy()[0, 0, 4] == 3.25


GRIDS = [(m, p, a) for m in ("bilinear", "nearest") for p in ("zeros", "border", "reflection") for a in (True, False)]


@needs_torch
@pytest.mark.parametrize("mode, padding, aligned", GRIDS)
def test_grid_sample(mode: str, padding: str, aligned: bool) -> None:
    with config(device="NUMPY"):
        grid = normal(2, 3, 4, 2, seed=1) * 1.3
        check(lambda x, g: x.grid_sample(g, mode, padding, aligned),
              lambda x, g: F.grid_sample(x, g, mode, padding, aligned), normal(2, 3, 5, 6), grid)


@needs_torch
@pytest.mark.parametrize("device", devices())
def test_affine_maps(device: str) -> None:
    with config(device=device):
        for aligned in (False, True):
            check(lambda x, m, a=aligned: x.grid_sample(m.affine_grid((2, 1, 4, 3), a), align_corners=a),
                  lambda x, m, a=aligned: F.grid_sample(x, F.affine_grid(m, [2, 1, 4, 3], a), align_corners=a),
                  normal(2, 1, 5, 6), normal(2, 2, 3, seed=1) * 0.5, tolerance=2e-5)


def test_an_identity_grid_gives_the_image_back() -> None:
    with config(device="CPU"):
        x = normal(1, 2, 4, 5)
        grid = Tensor([[[1.0, 0, 0], [0, 1, 0]]]).affine_grid((1, 2, 4, 5))
        np.testing.assert_allclose(Tensor(x).grid_sample(grid).numpy(), x, atol=1e-6)
        far = Tensor(x).grid_sample(Tensor(np.full((1, 1, 1, 2), np.nan, np.float32)))
        assert far.numpy().tolist() == [[[[0.0]], [[0.0]]]]


COLUMNS: list[dict[str, Any]] = [{"kernel_size": 2}, {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
                                 {"kernel_size": 2, "dilation": 2, "padding": 1, "stride": 2}]


@needs_torch
@pytest.mark.parametrize("options", COLUMNS, ids=str)
def test_columns(options: dict[str, Any]) -> None:
    with config(device="NUMPY"):
        x = normal(2, 3, 6, 5)
        check(lambda x: x.im2col(**options), lambda x: F.unfold(x, **options), x)
        columns = F.unfold(torch.tensor(x), **options).numpy()
        check(lambda c: c.col2im((6, 5), **options), lambda c: F.fold(c, (6, 5), **options), columns)


@pytest.mark.parametrize("device", devices())
def test_columns_come_back(device: str) -> None:
    x = Tensor(normal(1, 2, 4, 6), device=device)
    np.testing.assert_array_equal(x.im2col(2, stride=2).col2im((4, 6), 2, stride=2).numpy(), x.numpy())
    counts = Tensor.ones(1, 4, 6, device=device).col2im((3, 4), 2)
    np.testing.assert_array_equal(counts.numpy()[0, 0], [[1, 2, 2, 1], [2, 4, 4, 2], [1, 2, 2, 1]])


@needs_torch
def test_pixels_and_channels() -> None:
    with config(device="NUMPY"):
        check(lambda x: x.pixel_shuffle(2), lambda x: F.pixel_shuffle(x, 2), normal(2, 8, 3, 2))
        check(lambda x: x.pixel_shuffle(3), lambda x: F.pixel_shuffle(x, 3), normal(9, 3, 2))
        check(lambda x: x.pixel_unshuffle(2), lambda x: F.pixel_unshuffle(x, 2), normal(2, 3, 4, 6))
        check(lambda x: x.channel_shuffle(3), lambda x: F.channel_shuffle(x, 3), normal(2, 6, 2, 2))
        x = Tensor(normal(2, 3, 4, 6))
        np.testing.assert_array_equal(x.pixel_unshuffle(2).pixel_shuffle(2).numpy(), x.numpy())


POOLS: list[dict[str, Any]] = [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
                               {"kernel_size": (3, 2), "stride": 2, "ceil_mode": True},
                               {"kernel_size": 2, "dilation": 2, "stride": 1}]


@needs_torch
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@pytest.mark.parametrize("options", POOLS, ids=str)
def test_places_of_the_largest(options: dict[str, Any], device: str) -> None:
    x = np.round(normal(2, 3, 7, 6) * 2)  # ties
    x[0, 0, :3, :3] = -np.inf
    values, places = Tensor(x, device=device).max_pool2d(**options, return_indices=True)
    expected = F.max_pool2d(torch.tensor(x), **options, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), expected[0].numpy())
    np.testing.assert_array_equal(places.numpy(), expected[1].numpy())


@pytest.mark.parametrize("device", devices())
def test_unpooling(device: str) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    values, places = Tensor(x, device=device).max_pool2d(2, return_indices=True)
    assert places.tolist() == [[[[5, 7], [13, 15]]]] and places.dtype.name == "int32"
    back = values.max_unpool2d(places)
    np.testing.assert_array_equal(back.numpy(), np.where(np.isin(x, [5, 7, 13, 15]), x, 0))
    assert values.max_unpool2d(places, output_size=(1, 1, 5, 4)).shape == (1, 1, 5, 4)
    nothing = Tensor.zeros(0, 2, 4, 4, device=device).max_pool2d(2, ceil_mode=True, return_indices=True)
    assert nothing[0].shape == nothing[1].shape == (0, 2, 2, 2)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    @jit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        y, places = x.max_pool2d(2, return_indices=True)
        return x.interpolate(scale_factor=2, mode="bilinear").mean((2, 3)), y.max_unpool2d(places), x.im2col(2)

    for seed in range(3):
        x = normal(1, 2, 4, 4, seed=seed)
        means, kept, columns = step(Tensor(x, device=device).realize())
        largest = x.reshape(1, 2, 2, 2, 2, 2).max((3, 5))
        np.testing.assert_allclose(kept.numpy().reshape(1, 2, 2, 2, 2, 2).sum((3, 5)), largest)
        np.testing.assert_allclose(columns.numpy()[0, 1].reshape(3, 3), x[0, 0, :3, 1:])
        np.testing.assert_allclose(means.numpy(), Tensor(x, device="NUMPY").interpolate(
            scale_factor=2, mode="bilinear").mean((2, 3)).numpy(), atol=1e-6)


@pytest.mark.parametrize("run, message", [
    (lambda x: x.interpolate(3, "cubic"), "[interpolate] expected mode 'nearest', 'nearest-exact', 'linear'"),
    (lambda x: x.interpolate(), "[interpolate] expected size or scale_factor, got None and None"),
    (lambda x: x.interpolate(3, scale_factor=2), "[interpolate] expected size or scale_factor, got 3 and 2"),
    (lambda x: x.interpolate(scale_factor=-1), "[interpolate] expected scales above 0, got -1"),
    (lambda x: x.grid_sample(x), "[grid_sample] expected x [N, C, H, W] and grid [N, A, B, 2], or "),
    (lambda x: x[:, :, :2, :2].grid_sample(x[..., :2], "cubic"), "[grid_sample] expected mode 'bilinear' or 'nearest'"),
    (lambda x: x.pixel_shuffle(4), "[pixel_shuffle] expected [..., C * 16, H, W], got [1, 6, 4, 3]"),
    (lambda x: x.pixel_unshuffle(2), "[pixel_unshuffle] expected [..., C, H * 2, W * 2], got [1, 6, 4, 3]"),
    (lambda x: x.channel_shuffle(4), "[channel_shuffle] expected [N, C * 4, ...], got [1, 6, 4, 3]"),
    (lambda x: x[0].im2col(2), "[im2col] expected x [N, C, ...] with 2 further axes, got [6, 4, 3]"),
    (lambda x: x[0].col2im((4, 4), 2), "[col2im] expected columns [N, C * 4, 9] for sizes [4, 4], got [6, 4, 3]"),
    (lambda x: x.max_unpool2d(x[0].int()), "[max_unpool2d] expected indices [1, 6, 4, 3], got [6, 4, 3]"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor.zeros(1, 6, 4, 3))
    assert message in str(caught.value)
