"""What a kernel computes again has the bits of what another one stored, whatever else uses its parts."""
from collections.abc import Callable

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config
from minigrad.nn import functional as F

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a + p": lambda a, p: a + p, "p + a": lambda a, p: p + a, "a - p": lambda a, p: a - p, "p - a": lambda a, p: p - a,
    "p + p": lambda a, p: p + p * 0.3, "p / a + p": lambda a, p: p / a + p, "silu": lambda a, p: F.silu(a + p),
    "1 / sqrt": lambda a, p: (a + p) / (p * p + 1.1).sqrt()}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_each_largest_is_found_again(form: str, dtype: str, device: str) -> None:
    """A sum with a product that is also used alone, beside its largest elements, which another kernel stored."""
    rng = np.random.default_rng(7)
    with config(device=device):
        a, b = [F.interpolate(Tensor(rng.standard_normal((1, 13, 16)).astype(np.float32)).cast(dtype).realize(),
                              scale_factor=4) for _ in range(2)]
        p = (b - 0.3) * Tensor(rng.standard_normal((1, 13, 1)).astype(np.float32)).cast(dtype).realize()
        whole = FORMS[form](a, p)
        largest = whole.reshape(13, 32, 2).max(2, keepdim=True).expand(13, 32, 2).reshape(1, 13, 64)
        found = (whole == largest).float()
        used = (found * p.float()).sum((0, 2)).numpy()
        np.testing.assert_allclose(used, p.float().numpy().sum((0, 2)), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("device", devices())
def test_gradient_of_pools_behind_a_sum_with_a_norm(device: str) -> None:
    rng = np.random.default_rng(1)

    def gradient(name: str) -> np.ndarray:
        with config(device=name):
            x = Tensor(image).requires_grad_()
            up = F.interpolate(x, scale_factor=4)
            y = F.max_pool1d(F.max_pool1d(up + F.batch_norm(up, None, None, training=True), 2), 2, padding=1)
            return (y * Tensor(weights)).sum().gradient(x)[0].numpy()

    image = rng.standard_normal((1, 27, 16)).astype(np.float32)
    weights = rng.standard_normal((1, 27, 17)).astype(np.float32)
    np.testing.assert_allclose(gradient(device), gradient("NUMPY"), rtol=1e-4, atol=1e-4)
