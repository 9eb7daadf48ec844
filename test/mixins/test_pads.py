"""Pads of every mode, before and after an axis, negative, zero and positive, against PyTorch: its values, its gradients
and what it refuses."""
from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, needs_torch, one_in

from minigrad import Tensor, config
from minigrad.errors import ShapeError
from minigrad.nn import functional

try:
    import torch
except ImportError:
    torch = None

MODES = ("constant", "reflect", "replicate", "circular")


def undefined(mode: str, length: int, before: int, after: int) -> bool:
    """Whether PyTorch reads what is not there (more is wrapped than is left), or refuses an empty axis that stays."""
    left = length + min(before, 0) + min(after, 0)
    return (mode == "circular" and max(before, after) > max(left, 0)) or (
        length == 0 and (before, after) == (0, 0) and mode in ("reflect", "replicate"))


def of_torch(x: np.ndarray, pads: tuple[int, ...], mode: str) -> tuple[np.ndarray, np.ndarray] | None:
    """(values, gradient of half the sum of squares), None where it refuses."""
    t = torch.tensor(x, requires_grad=True)
    try:
        y = torch.nn.functional.pad(t, pads, mode=mode)
    except (RuntimeError, IndexError):
        return None
    (g,) = torch.autograd.grad((y * y).sum() / 2 + 0 * t.sum(), t)
    return y.detach().numpy(), g.numpy()


@needs_torch
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 1, 4), (1, 1, 1), (2, 3, 0)], ids=str)
def test_one_axis(mode: str, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    with config(device="NUMPY"):
        for pads in product(range(-4, 5), repeat=2):
            if undefined(mode, shape[-1], *pads):
                continue
            wanted, mine = of_torch(x, pads, mode), Tensor(x, requires_grad=True)
            if wanted is None:
                with pytest.raises(ShapeError, match=r"\[pad\] expected"):
                    functional.pad(mine, pads, mode=mode)
                continue
            y = functional.pad(mine, pads, mode=mode)
            gradient = (y * y).sum().mul(0.5).gradient(mine)[0]
            assert np.array_equal(y.numpy(), wanted[0]) and np.array_equal(gradient.numpy(), wanted[1]), pads


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [1, 2, 3])
@one_in(5, CPU_DRIVERS)
def test_several_axes(device: str, mode: str, axes: int) -> None:
    rng = np.random.default_rng(axes)
    for _ in range(4):
        shape = (*rng.integers(1, 3, 2), *rng.integers(3, 6, axes))
        pads: Any = tuple(int(p) for p in rng.integers(-1, 3, 2 * axes))
        if any(undefined(mode, n, *pads[2 * i:2 * i + 2]) for i, n in enumerate(shape[:1:-1])):
            continue
        x = rng.standard_normal(shape).astype(np.float32)
        wanted, mine = of_torch(x, pads, mode), Tensor(x, device=device, requires_grad=True)
        assert wanted is not None
        y = functional.pad(mine, pads, mode=mode)
        gradient = (y * y).sum().mul(0.5).gradient(mine)[0]
        assert np.array_equal(y.numpy(), wanted[0]), (shape, pads)
        np.testing.assert_allclose(gradient.numpy(), wanted[1], rtol=1e-5, atol=1e-5)
