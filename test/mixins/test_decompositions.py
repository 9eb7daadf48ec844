"""Inverse, determinant, Cholesky, QR and solving: against numpy and torch, batches, odd sizes, gradients, `jit`."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import check, normal

from minigrad import Tensor, Variable, config, jit
from minigrad.engine.stats import stats
from minigrad.errors import ShapeError

try:
    import torch
except ImportError:
    torch = None

SHAPES = [(3, 3), (2, 3, 3), (7, 7), (1, 1), (2, 2, 2, 2)]


def matrices(*shape: int, seed: int = 0) -> np.ndarray:
    """With a pivot that is not in its place, and columns that do not depend on each other."""
    x = normal(*shape, seed=seed)
    if shape[-1] > 1:
        x[..., 0, 0] = 0
    return x + 1e-3


def positive(*shape: int) -> np.ndarray:
    x = normal(*shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1], dtype=np.float32)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_as_numpy(shape: tuple[int, ...], device: str) -> None:
    x, p = matrices(*shape), positive(*shape)
    x = x + 1 if shape[-1] == 1 else x
    wide = x.astype(np.float64)
    with config(device=device):
        t = Tensor(x)
        np.testing.assert_allclose(t.inverse().numpy(), np.linalg.inv(wide), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(t.det().numpy(), np.linalg.det(wide), rtol=1e-4)
        np.testing.assert_allclose(Tensor(p).cholesky().numpy(), np.linalg.cholesky(p), rtol=1e-4, atol=1e-6)
        q, r = (v.numpy() for v in t.qr())
        np.testing.assert_allclose(q @ r, x, atol=2e-6)
        np.testing.assert_allclose(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(shape[-1]), shape), atol=2e-6)
        assert (np.tril(r, -1) == 0).all()
        solved = t.solve(Tensor(x[..., :1])).numpy()
        np.testing.assert_allclose(solved, np.broadcast_to(np.eye(shape[-1])[:, :1], solved.shape), atol=1e-5)


ROWS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda x: x.inverse(), lambda x: torch.linalg.inv(x)), (lambda x: x.det(), lambda x: torch.linalg.det(x)),
    (lambda x: x.slogdet()[1], lambda x: torch.linalg.slogdet(x)[1]),
    (lambda x: x.qr()[0], lambda x: torch.linalg.qr(x)[0]), (lambda x: x.qr()[1], lambda x: torch.linalg.qr(x)[1]),
    (lambda x: x.qr()[0] @ x.qr()[1] * x, lambda x: torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1] * x),
    (lambda x: x.solve(x * 2 + 1), lambda x: torch.linalg.solve(x, x * 2 + 1)),
    (lambda x: x.solve_triangular(x + 1, upper=True), lambda x: torch.linalg.solve_triangular(x, x + 1, upper=True)),
    (lambda x: (x + 1).cholesky_solve(x.tril()), lambda x: (x + 1).cholesky_solve(x.tril())),
    (lambda x: x.cholesky_solve(x.triu(), upper=True), lambda x: x.cholesky_solve(x.triu(), upper=True)),
    (lambda x: x.tril().cholesky_inverse(), lambda x: torch.cholesky_inverse(x.tril())),
    (lambda x: x.triu().cholesky_inverse(True), lambda x: torch.cholesky_inverse(x.triu(), True)),
    (lambda x: x.solve_triangular(x, upper=False, unitriangular=True),
     lambda x: torch.linalg.solve_triangular(x, x, upper=False, unitriangular=True)),
]


@needs_torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ours, theirs", ROWS)
def test_values_and_gradients_are_torchs(ours: Any, theirs: Any, shape: tuple[int, ...]) -> None:
    with config(device="NUMPY"):
        x = matrices(*shape, seed=1) + 2 * np.eye(shape[-1], dtype=np.float32)
        check(ours, theirs, x, tolerance=5e-5)


@needs_torch
@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_and_logarithms(shape: tuple[int, ...]) -> None:
    with config(device="NUMPY"):
        p = positive(*shape)
        check(lambda x: x.cholesky(), lambda x: torch.linalg.cholesky(x), p, tolerance=5e-5)
        check(lambda x: (x @ x.mT + 1).cholesky(upper=True), lambda x: torch.linalg.cholesky(x @ x.mT + 1, upper=True),
              p, tolerance=5e-5)
        check(lambda x: x.logdet(), lambda x: torch.logdet(x), p, tolerance=5e-5)


@needs_torch
def test_tall_and_wide_matrices() -> None:
    with config(device="NUMPY"):
        for shape in [(6, 3), (2, 5, 4), (4, 1)]:
            for k in (0, 1):
                check(lambda x, k=k: x.qr()[k], lambda x, k=k: torch.linalg.qr(x)[k], normal(*shape), tolerance=5e-5)
            rows = normal(*shape[:-1], 2, seed=3)
            check(lambda x, y: x.lstsq(y), lambda x, y: torch.linalg.lstsq(x, y).solution, normal(*shape), rows,
                  tolerance=1e-4)
        for found, expected in zip(Tensor(normal(3, 5)).qr(), torch.linalg.qr(torch.tensor(normal(3, 5))), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=2e-6)


def test_second_derivatives_are_those_of_the_functions() -> None:
    with config(device="NUMPY"):
        x = Tensor(matrices(3, 3, seed=2).astype(np.float64) + np.eye(3), requires_grad=True)
        first = x.inverse().sum().gradient(x)[0]
        second = (first * first).sum().gradient(x)[0].numpy()
        step = np.zeros((3, 3))
        step[1, 2] = 1e-5

        def size(a: np.ndarray) -> float:
            b = np.linalg.inv(a)
            g = -b.T @ np.ones((3, 3)) @ b.T
            return float((g * g).sum())

        slope = (size(x.numpy() + step) - size(x.numpy() - step)) / 2e-5
        assert second[1, 2] == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("device", devices())
def test_by_hand(device: str) -> None:
    with config(device=device):
        x = Tensor([[0.0, 2.0], [1.0, 0.0]])
        assert x.inverse().tolist() == [[0, 1], [0.5, 0]] and x.det().item() == -2
        assert x.slogdet()[0].item() == -1 and math.isnan(x.logdet().item())
        assert x.solve(Tensor([4.0, 3.0])).tolist() == [3, 2]
        singular = Tensor([[1.0, 2.0], [2.0, 4.0]])
        assert singular.det().item() == 0 and not np.isfinite(singular.inverse().numpy()).any()
        assert np.isnan(Tensor([[1.0, 2.0], [2.0, 1.0]]).cholesky().numpy()[1, 1])
        np.testing.assert_allclose(Tensor([[4.0, 9.0], [2.0, 5.0]]).cholesky().numpy(), [[2, 0], [1, 2]])
        np.testing.assert_allclose(Tensor([[2.0, 9.0], [1.0, 4.0]]).solve_triangular(
            Tensor([2.0, 5.0]), upper=False).numpy(), [1, 1])
        assert np.isnan(Tensor([[1.0, np.nan], [2.0, 4.0]]).inverse().numpy()).any()


def cofactors(x: np.ndarray) -> np.ndarray:
    """The derivatives of a determinant, minor by minor."""
    n = len(x)
    minors = [[np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(n)] for i in range(n)]
    return np.array(minors) * (-1.0) ** np.add.outer(np.arange(n), np.arange(n))


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_of_a_determinant_is_there_for_matrices_of_any_rank(dtype: str, device: str) -> None:
    rng = np.random.default_rng(4)
    for n in (1, 2, 3, 5):
        ranks = [rng.integers(-3, 4, (n, r)) @ rng.integers(-3, 4, (r, n)) for r in range(n + 1)]
        x = np.stack([*ranks, np.eye(n, k=1), np.eye(n)[rng.permutation(n)], np.diag(np.arange(n))]).astype(np.float64)
        weight = rng.standard_normal(len(x))
        t = Tensor(x, dtype=dtype, device=device, requires_grad=True)
        (t.det() * Tensor(weight, dtype=dtype, device=device)).sum().backward()
        assert t.grad is not None
        want = np.stack([cofactors(m) for m in x]) * weight[:, None, None]
        np.testing.assert_allclose(t.grad.numpy(), want, rtol=0,
                                   atol=(1e-5 if dtype == "float32" else 1e-13) * np.abs(want).max())


@needs_torch
@pytest.mark.parametrize("x", [np.zeros((1, 1)), np.ones((2, 2)), np.array([[4, 1], [2, 3]])], ids=str)
def test_logarithms_of_determinants_have_the_gradients_of_torch(x: np.ndarray) -> None:
    """Infinities, or NaN, where it is 0."""
    for name in ("slogdet", "logdet"):
        ours, theirs = Tensor(x, dtype="float64", device="NUMPY", requires_grad=True), torch.tensor(
            x, dtype=torch.float64, requires_grad=True)
        made, theirs_made = (getattr(t, name)() for t in (ours, theirs))
        made, theirs_made = (made[1], theirs_made[1]) if name == "slogdet" else (made, theirs_made)
        made.backward()
        theirs_made.backward()
        assert ours.grad is not None and made.item() == pytest.approx(theirs_made.item())
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)


def test_empty_and_half_matrices() -> None:
    with config(device="NUMPY"):
        assert Tensor.zeros(0, 0).inverse().shape == (0, 0) and Tensor.zeros(0, 3, 3).det().shape == (0,)
        assert Tensor.zeros(0, 0).det().item() == 1 and Tensor.zeros(2, 0, 0).cholesky().shape == (2, 0, 0)
        assert [t.shape for t in Tensor.zeros(4, 0).qr()] == [(4, 0), (0, 0)]
        half = Tensor(np.array([[2, 0], [0, 4]], np.float16)).inverse()
        assert half.dtype.name == "float16" and half.tolist() == [[0.5, 0], [0, 0.25]]
        assert Tensor([[2, 0], [0, 4]]).inverse().tolist() == [[0.5, 0], [0, 0.25]]
        assert Tensor([[4.0]]).inverse().tolist() == [[0.25]]  # a row of one element, whose place another one reads


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.solve(y), x.det(), (x @ x.mT).cholesky(), *x.qr()

    for seed in range(3):
        x, y = matrices(4, 4, seed=seed), normal(4, seed=seed)
        got = [t.numpy() for t in step(Tensor(x, device=device).realize(), Tensor(y, device=device).realize())]
        np.testing.assert_allclose(got[0], np.linalg.solve(x, y), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(got[1], np.linalg.det(x), rtol=1e-3)
        np.testing.assert_allclose(got[2] @ got[2].T, x @ x.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[3] @ got[4], x, atol=1e-5)


def test_larger_matrices_run_the_same_programs() -> None:
    """What steps do is compiled once; the launches of a step do not grow."""
    with config(device="CPU"):
        counts = []
        for n in (12, 24):
            x = Tensor(matrices(n, n)).realize()
            before = stats.snapshot()
            np.testing.assert_allclose(x.inverse().numpy() @ x.numpy(), np.eye(n), atol=1e-3)
            used = stats.snapshot() - before
            counts.append(used.programs)
            assert used.launches <= 7 * n
        assert max(counts) < 20


@pytest.mark.parametrize("run, message", [
    (lambda x: x.inverse(), "[inverse] expected square matrices, got [2, 3]"),
    (lambda x: x[0].qr(), "[qr] expected matrices, got [3]"),
    (lambda x: x.det(), "[det] expected square matrices, got [2, 3]"),
    (lambda x: x[:, :2].solve(x[0]), "[solve] expected [..., N, N] and [..., N, K] or [..., N], got [2, 2] and [3]"),
    (lambda x: x.lstsq(x.T), "[lstsq] expected [..., M, N] and [..., M, K] or [M], got [2, 3] and [3, 2]"),
    (lambda x: x.solve_triangular(x, upper=True), "[solve_triangular] expected [..., N, N] and [..., N, K] or [N]"),
    (lambda x: x[:Variable("n", 1, 2).bind(2), :2].qr(), "expected a length that is known"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor.zeros(2, 3))
    assert message in str(caught.value)
