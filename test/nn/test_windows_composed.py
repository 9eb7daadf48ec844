"""Gradients of convolutions beside pools, shuffles and upsampling, behind residual connections, concatenations and
products: as the device NUMPY has them."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

import minigrad.nn.functional as F
from minigrad import Tensor

CONVS = {"3x3": ((3, 3), 1), "5x5": ((5, 5), 1), "3x1": ((3, 1), 1), "groups": ((3, 3), 2)}
RESAMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": lambda x: F.avg_pool2d(x, 2), "max": lambda x: F.max_pool2d(x, 2), "avg3": lambda x: F.avg_pool2d(x, 3, 2),
    "unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :x.shape[2] // 2 * 2, :x.shape[3] // 2 * 2], 2),
    "shuffle": lambda x: F.pixel_shuffle(x, 2), "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "repeat": lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "alone": lambda x, y: y, "add": lambda x, y: x + y, "cat": lambda x, y: Tensor.cat(x, y, dim=1),
    "mul": lambda x, y: x * y}
SIZES = [(2, 16, 16, 16), (1, 32, 9, 21), (1, 16, 14, 14), (3, 8, 17, 12), (1, 48, 8, 32)]
CASES = [(*names, SIZES[k % len(SIZES)]) for k, names in enumerate(product(CONVS, RESAMPLE, JOINS))]


def gradients(device: str, case: tuple[str, str, str, tuple[int, ...]]) -> list[np.ndarray]:
    conv, resample, join, size = case
    first = resample in ("shuffle", "nearest", "repeat")
    random = np.random.default_rng(1)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        values = (random.standard_normal(shape) * scale).astype(np.float32)
        return Tensor(values, device=device, requires_grad=True)

    kernel, groups = CONVS[conv]
    x = drawn(*size)
    y = RESAMPLE[resample](x) if first else x
    channels = y.shape[1]
    w = drawn(channels, channels // groups, *kernel, scale=0.1)
    y = JOINS[join](y, F.conv2d(y, w, padding=(kernel[0] // 2, kernel[1] // 2), groups=groups))
    y = y if first else RESAMPLE[resample](y)
    found = (y * drawn(*y.shape)).sum().gradient(x, w)
    Tensor.realize(*found)
    return [g.numpy() for g in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case[:3]))
@pytest.mark.parametrize("device", [d for d in devices() if d in ("CPU", "CL:pocl")])
@one_in(11, CPU_DRIVERS)
@one_in(3, "CPU")
def test_gradients_of_compositions(device: str, case: tuple[str, str, str, tuple[int, ...]]) -> None:
    for got, expected in zip(gradients(device, case), gradients("NUMPY", case), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("stride", [2, 3, (1, 2)], ids=str)
@pytest.mark.parametrize("axes", [(-1,), (-2,), (-1, -2)], ids=str)
def test_strided_windows_read_backwards(axes: tuple[int, ...], stride: int | tuple[int, int]) -> None:
    random = np.random.default_rng(2)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((1, 17, 16, 64), (32, 17, 3, 3)))
    got, expected = (F.conv2d(Tensor(x, device=d), Tensor(w, device=d), stride=stride).flip(axes).numpy()
                     for d in ("CPU", "NUMPY"))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
