"""Eigenvalues of symmetric matrices, singular values, pseudo-inverses: against numpy and torch, with gradients."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import check, normal

from minigrad import Tensor, config, jit
from minigrad.engine.stats import stats
from minigrad.errors import ShapeError

try:
    import torch
except ImportError:
    torch = None


def symmetric(*shape: int, kind: str = "float64") -> np.ndarray:
    x = normal(*shape).astype(kind)
    return x + x.swapaxes(-1, -2)


def graded(n: int) -> np.ndarray:
    q = np.linalg.qr(normal(n, n).astype(np.float64))[0]
    return q @ np.diag(10.0 ** -np.linspace(0, 12, n)) @ q.T


CASES = [symmetric(1, 1), symmetric(2, 2), symmetric(2, 3, 5, 5), symmetric(12, 12), np.ones((7, 7)), np.eye(6),
         np.zeros((3, 3)), np.diag([3.0, 1.0, 2.0, 1.0]), graded(9), symmetric(4, 4) * 1e30, symmetric(5, 5) * 1e-30,
         1 / (1 + np.add.outer(np.arange(8.0), np.arange(8.0))), np.diag([1.0] * 4, 4) + np.diag([1.0] * 4, -4)]


@pytest.mark.parametrize("k", range(len(CASES)))
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_eigenvalues(k: int, kind: str) -> None:
    """Errors in units of rounding of the largest eigenvalue."""
    x = CASES[k].astype(kind)
    unit = 40 * float(np.finfo(kind).eps)
    with config(device="NUMPY"):
        w, v = (t.numpy().astype(np.float64) for t in Tensor(x).eigh())
        assert Tensor(x).eigvalsh().dtype.name == kind
    wide, scale = x.astype(np.float64), max(float(abs(x).max()), 1e-300)
    np.testing.assert_allclose(w / scale, np.linalg.eigvalsh(wide / scale), atol=unit)
    np.testing.assert_allclose(wide / scale @ v, v * (w / scale)[..., None, :], atol=unit)
    np.testing.assert_allclose(v.swapaxes(-1, -2) @ v, np.broadcast_to(np.eye(x.shape[-1]), x.shape), atol=unit)
    assert (np.diff(w) >= 0).all()


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_on_devices(device: str) -> None:
    with config(device=device):
        x = symmetric(2, 5, 5, kind="float32")
        w, v = Tensor(x).eigh()
        np.testing.assert_allclose((v * w.unsqueeze(-2)).dot(v.transpose(-1, -2)).numpy(), x, atol=1e-5)
        below = np.tril(x) + np.triu(normal(5, 5, seed=3), 1)
        np.testing.assert_allclose(Tensor(below).eigvalsh().numpy(), np.linalg.eigvalsh(x), atol=1e-5)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_every_size_is_a_few_launches(device: str) -> None:
    """Lazy, in batches, between other operations, captured with other numbers; with gradients on the CPU."""
    def together(x: Tensor) -> list[Tensor]:
        u, s, v = (x * 2).svd()
        w = (x @ x.transpose(-1, -2)).eigvalsh()
        loss = s.sum() + (x * 2).pinverse().square().sum() if device == "CPU" else s.sum()
        gradients = loss.gradient(x) if device == "CPU" else ()
        return [(u * s.unsqueeze(-2)) @ v.transpose(-1, -2) / 2, w + 1, loss, *gradients]

    with config(device=device):
        for rows, columns in ((1, 1), (3, 5), (17, 33)) if device == "CPU" else ((3, 5),):
            captured = jit(together)
            for seed in range(3):
                x = normal(2, rows, columns, seed=seed)
                found = [t.numpy() for t in captured(Tensor(x, requires_grad=True).realize())]
                with config(device="NUMPY"):
                    expected = [t.numpy() for t in together(Tensor(x.astype(np.float64), requires_grad=True))]
                np.testing.assert_allclose(found[0], x, atol=1e-5)
                for mine, wanted in zip(found, expected, strict=True):
                    np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=1e-3 * abs(wanted).max())
        launches, x = stats.launches, normal(100, 100)
        np.testing.assert_allclose(Tensor(x).svd()[1].numpy(), np.linalg.svd(x)[1], rtol=1e-4, atol=1e-4)
        assert stats.launches - launches < 20


def test_what_is_not_finite_is_that_of_its_matrix_alone() -> None:
    x = symmetric(3, 4, 4)
    x[1, 2, 1] = np.nan
    for device in ("NUMPY", "CPU"):
        w, v = (t.numpy() for t in Tensor(x, device=device).eigh())
        assert np.isnan(w[1]).all() and np.isnan(v[1]).all()
        np.testing.assert_allclose(w[::2], np.linalg.eigvalsh(x[::2]), atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 6), (1, 1), (1, 4)])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_singular_values(shape: tuple[int, ...], kind: str) -> None:
    x = normal(*shape).astype(kind)
    unit = 40 * float(np.finfo(kind).eps)
    with config(device="NUMPY"):
        u, s, v = (t.numpy() for t in Tensor(x).svd())
        np.testing.assert_allclose(s, np.linalg.svd(x.astype(np.float64), compute_uv=False), atol=unit)
        np.testing.assert_allclose(u * s[..., None, :] @ v.swapaxes(-1, -2), x, atol=unit)
        for columns in (u, v):
            same = columns.swapaxes(-1, -2) @ columns
            np.testing.assert_allclose(same, np.broadcast_to(np.eye(same.shape[-1]), same.shape), atol=unit)
        np.testing.assert_allclose(Tensor(x).pinverse().numpy(), np.linalg.pinv(x.astype(np.float64)), rtol=1e-3,
                                   atol=1e-4)


def test_of_lower_rank_and_of_nothing() -> None:
    with config(device="NUMPY"):
        x = normal(4, 2) @ normal(2, 5, seed=1)
        u, s, v = Tensor(x).svd()
        np.testing.assert_allclose(s.numpy()[2:], 0, atol=1e-5)
        np.testing.assert_allclose((u * s).dot(v.t()).numpy(), x, atol=1e-5)
        np.testing.assert_allclose(Tensor(x).pinverse(1e-4).numpy(), np.linalg.pinv(x, 1e-4), atol=1e-4)
        assert Tensor.ones(0, 0).eigh()[0].shape == (0,) and Tensor.ones(2, 0, 3).svd()[2].shape == (2, 3, 0)
        assert Tensor.ones(0, 3).pinverse().shape == (3, 0) and Tensor.ones(3, 2, 2).int().eigvalsh().shape == (3, 2)


def spectral(values: Any, vectors: Any) -> Any:
    """A function of both that does not look at signs."""
    return (vectors ** 2 @ values.sin().reshape(*values.shape, 1)).reshape(values.shape) + values ** 2


@needs_torch
@pytest.mark.parametrize("ours, theirs", [
    (lambda x: spectral(*(x + x.t()).eigh()), lambda x: spectral(*torch.linalg.eigh(x + x.t()))),
    (lambda x: (x + x.t()).eigvalsh(), lambda x: torch.linalg.eigvalsh(x + x.t())),
    (lambda x: x.svd()[1], lambda x: torch.linalg.svdvals(x)),
    (lambda x: spectral(x.svd()[1], x.svd()[0]), lambda x: spectral(x.svd()[1], x.svd()[0])),
    (lambda x: spectral(x[:3].svd()[1], x[:3].svd()[0]), lambda x: spectral(x[:3].svd()[1], x[:3].svd()[0])),
    (lambda x: (x[:, :3].svd()[2] ** 2).sin(), lambda x: (x[:, :3].svd()[2] ** 2).sin()),
    (lambda x: x[:, :3].pinverse(), lambda x: x[:, :3].pinverse()),
    (lambda x: (x @ x.t()).eigh()[0].gradient(x, gradient=x[0])[0] if isinstance(x, Tensor) else None,
     lambda x: torch.autograd.grad(torch.linalg.eigh(x @ x.t())[0], x, x[0], create_graph=True)[0]),
])
def test_gradients(ours: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> None:
    with config(device="NUMPY"):
        check(ours, theirs, normal(4, 4).astype(np.float64), tolerance=1e-6)


def test_equal_eigenvalues_have_gradients_of_values_alone() -> None:
    with config(device="NUMPY"):
        x = Tensor(np.eye(3, dtype=np.float32), requires_grad=True)
        np.testing.assert_allclose(x.eigvalsh().sum().gradient(x)[0].numpy(), np.eye(3), atol=1e-6)


@pytest.mark.parametrize("run, message", [
    (lambda x: x.eigh(), "[eigh] expected square matrices and UPLO 'L' or 'U', got [2, 3]"),
    (lambda x: x[0].svd(), "[svd] expected matrices, got [3]"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        run(Tensor.ones(2, 3))
    assert message in str(caught.value)
