"""Windows over operands that lie scattered in memory: these are copied first, so that the sums read whole vectors."""
# mypy: disable-error-code="misc"
from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.config import config
from minigrad.engine.show import show
from minigrad.nn import functional as F

SIZE, CHANNELS = 40, 16


def ready(*shape: int, seed: int = 0) -> Tensor:
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(numbers, device="CPU").realize()


def gathered(x: Tensor) -> Tensor:
    return x[:, :, Tensor(np.random.default_rng(1).permutation(SIZE), device="CPU").realize()]


OPERANDS: dict[str, Callable[[Tensor], Tensor]] = {
    **{mode: lambda x, mode=mode: F.pad(x, (3, 3, 3, 3), mode=mode) for mode in ("reflect", "replicate", "circular")},
    **{f"resampled {mode}": lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")},
    "resampled by 1.5": lambda x: F.interpolate(x, scale_factor=1.5),
    "shuffled pixels": lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "gathered": gathered,
}


def scattered_sums(text: str) -> list[str]:
    """The lines of kernels whose sums look up or divide to find where they read, or read several places."""
    return [line for line in text.splitlines() if "sum(" in line and (
        "{" in line or "//" in line or line.count("p0[") + line.count("p1[") > 2)]


@pytest.mark.parametrize("name", OPERANDS)
def test_scattered_operands_are_copied_before_windows_read_them(name: str):
    x, w = ready(2, CHANNELS, SIZE, SIZE).requires_grad_(), ready(24, CHANNELS, 3, 3, seed=2).requires_grad_()
    y = F.conv2d(OPERANDS[name](x), w, padding=1)
    of_w, = (y * y).sum().gradient(w)
    assert not scattered_sums(show([y, of_w]))

    copied = F.conv2d(Tensor(OPERANDS[name](x).numpy(), device="CPU"), w, padding=1)
    expected, = (copied * copied).sum().gradient(w)
    np.testing.assert_allclose(y.numpy(), copied.numpy(), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(of_w.numpy(), expected.numpy(), rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("name", OPERANDS)
def test_sums_are_not_made_where_their_elements_are_put_into_places(name: str):
    x, w = ready(2, CHANNELS, SIZE, SIZE).requires_grad_(), ready(24, CHANNELS, 3, 3, seed=2)
    y = F.conv2d(OPERANDS[name](x), w, padding=1)
    of_x, = (y * y).sum().gradient(x)
    for kernel in show(of_x).split("\n\n"):
        assert not ("sum=" in kernel and "sum(" in kernel), kernel


@pytest.mark.parametrize("act", [Tensor.relu, lambda x: x * 2 + 1, lambda x: x.roll(5, 3),
                                 lambda x: x.cat(x, dim=1)[:, 4:CHANNELS + 4]])
def test_operands_that_move_along_with_their_window_are_computed_inside(act: Callable[[Tensor], Tensor]):
    x, w = ready(2, CHANNELS, SIZE, SIZE), ready(24, CHANNELS, 3, 3, seed=2)
    assert show(F.conv2d(act(x), w, padding=1)).count("kernel ") == 1


def test_small_windows_read_scattered_operands_themselves():
    with config(device="CPU"):
        x, w = ready(1, 1, 4, 4), ready(1, 1, 2, 2)
        assert show(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w)).count("kernel ") == 1
