"""Operations beside PyTorch's: values, gradients and operands."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import Tensor

try:
    import torch
except ImportError:
    torch = None


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def check(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray, tolerance: float = 1e-5) -> None:
    """The value, and the gradient of a random sum of it by every float argument."""
    a = [Tensor(v, requires_grad=v.dtype.kind == "f" or None) for v in arrays]
    b = [torch.tensor(v, requires_grad=v.dtype.kind == "f") for v in arrays]
    got, expected = ours(*a), theirs(*b)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    seed = normal(*expected.shape, seed=5)
    (got * Tensor(seed)).sum().backward()
    (expected * torch.tensor(seed)).sum().backward()
    for x, y in zip(a, b, strict=True):
        if y.requires_grad:
            slope = np.zeros(y.shape) if y.grad is None else y.grad.numpy()
            found = np.zeros(y.shape) if x.grad is None else x.grad.numpy()
            np.testing.assert_allclose(found, slope, rtol=10 * tolerance, atol=10 * tolerance)
