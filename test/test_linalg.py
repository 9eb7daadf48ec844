"""`minigrad.linalg` and norms against PyTorch's: every order of every norm, factors, what is solved, gradients."""
from __future__ import annotations

import inspect
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch
from support.beside_torch import check, normal

from minigrad import Tensor, config, linalg
from minigrad.errors import MinigradError, ShapeError

try:
    import torch
except ImportError:
    torch = None

INF = math.inf
SHAPES = [(3, 3), (2, 4, 3), (2, 3, 5), (1, 1)]


pytestmark = pytest.mark.usefixtures("on_numpy")


def both(name: str, x: np.ndarray, *args: Any, **options: Any) -> tuple[Any, Any]:
    """What PyTorch's linalg gives, None where it refuses, and what minigrad's does."""
    results: list[Any] = []
    for package, tensor in ((torch.linalg, torch.tensor(x)), (linalg, Tensor(x))):
        try:
            results.append(getattr(package, name)(tensor, *args, **options).numpy())
        except (RuntimeError, IndexError, MinigradError):
            results.append(None)
    return results[0], results[1]


@needs_torch
@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (2, 2, 3, 3), (0,), (0, 3), (2, 0, 3), ()], ids=str)
def test_every_order_of_every_norm(shape: tuple[int, ...]) -> None:
    """Of values with zeros and infinities: the same values, and the same combinations are refused."""
    x = normal(*shape)
    x[x > 1] = 0
    axes = [None, *range(-1, len(shape)), (0,), (0, 1), (-1, 0), (1, 1)]
    vectors, all_orders = (0, 1, 2, 3, 0.5, -1, -2, INF, -INF), ("fro", "nuc", 1, -1, 2, -2, INF, -INF, 0, 3, "max")
    cases: list[tuple[str, Any, Any]] = [("vector_norm", o, d) for o, d in product(vectors, axes)]
    cases += [("norm", o, d) for o, d in product((None, *all_orders, 0.5), axes)]
    cases += [("matrix_norm", o, d) for o, d in product(all_orders, (*axes[-3:], (-2, -1)))]
    for k, (name, order, dim) in enumerate(cases):
        keep = k % 2 == 1
        wanted, got = both(name, x, order, dim, keep)
        assert (wanted is None) == (got is None), (name, order, dim, wanted, got)
        if wanted is not None:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6, err_msg=f"{name} {order} {dim} {keep}")


@needs_torch
@pytest.mark.parametrize("p", ["fro", "nuc", None, 0, 1, 2, 3, 0.5, -1, INF, -INF])
def test_norm_of_tensors(p: Any) -> None:
    """By place as PyTorch has them: x.norm(p, dim, keepdim)."""
    x = normal(3, 4)
    for dim, keep in product((None, 0, -1, (0, 1)), (False, True)):
        if p == "nuc" and isinstance(dim, int):
            with pytest.raises(ShapeError, match=r"\[norm\] expected two axes"):
                Tensor(x).norm(p, dim, keep)
        elif p == 0:
            assert np.array_equal(Tensor(x).norm(p, dim, keep).numpy(), torch.tensor(x).norm(p, dim, keep).numpy())
        else:
            check(lambda t, d=dim, k=keep: t.norm(p, d, k), lambda t, d=dim, k=keep: t.norm(p, d, k), x, tolerance=2e-5)


@needs_torch
@pytest.mark.parametrize("left", [True, False])
def test_what_solve_takes_for_vectors(left: bool) -> None:
    """All pairs of shapes of up to three axes: solved alike, or refused by both."""
    sides = [s for k in (2, 3, 4) for s in product((1, 3), repeat=k) if s[-1] == s[-2] == 3]
    others = [s for k in range(4) for s in product((1, 3), repeat=k)]
    accepted = 0
    for a, b in product(sides, others):
        x, y = normal(*a) + 3 * np.eye(a[-1], dtype=np.float32), normal(*b)
        try:
            wanted = torch.linalg.solve(torch.tensor(x), torch.tensor(y), left=left).numpy()
        except RuntimeError:
            with pytest.raises(ShapeError):
                linalg.solve(Tensor(x), Tensor(y), left=left)
            continue
        got = linalg.solve(Tensor(x), Tensor(y), left=left)
        assert got.shape == wanted.shape, (a, b)
        accepted += 1
        if accepted % 4 == 0:
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert accepted > 20


@needs_torch
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors(shape: tuple[int, ...]) -> None:
    """LU, reflections and QR of all modes, with gradients where PyTorch has them."""
    x = normal(*shape)
    check(lambda t: linalg.lu_factor(t)[0], lambda t: torch.linalg.lu_factor(t)[0], x, tolerance=1e-3)
    for k in range(3):
        check(lambda t, k=k: linalg.lu(t)[k] + 0 * t.sum(), lambda t, k=k: torch.linalg.lu(t)[k] + 0 * t.sum(), x,
              tolerance=1e-3)
    pivots = torch.linalg.lu_factor(torch.tensor(x))[1].numpy()
    assert np.array_equal(linalg.lu_factor(Tensor(x)).pivots.numpy(), pivots)
    for mine, theirs in zip(Tensor(x).geqrf(), torch.geqrf(torch.tensor(x)), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    for mode, k in product(("reduced", "complete", "r"), range(2)):
        if mode == "complete" and shape[-2] > shape[-1]:
            mine, theirs = linalg.qr(Tensor(x), mode)[k], torch.linalg.qr(torch.tensor(x), mode)[k]
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-5)
        elif mode == "reduced":
            check(lambda t, k=k: linalg.qr(t)[k], lambda t, k=k: torch.linalg.qr(t)[k], x, tolerance=1e-3)
        else:
            assert linalg.qr(Tensor(x), mode)[k].shape == torch.linalg.qr(torch.tensor(x), mode)[k].shape


@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (3, 0), (0, 2, 2), (4, 4)], ids=str)
@pytest.mark.parametrize("rank", [9, 1, 0])
def test_singular_vectors_are_bases(shape: tuple[int, ...], rank: int) -> None:
    """Whole orthonormal bases with full_matrices, also of matrices of lower rank."""
    m, n = shape[-2:]
    x = normal(*shape) if rank == 9 else normal(*shape[:-1], rank) @ normal(*shape[:-2], rank, n)
    for whole in (True, False):
        u, s, vh = linalg.svd(Tensor(x), full_matrices=whole)
        k = min(m, n)
        assert u.shape == (*shape[:-2], m, m if whole else k) and vh.shape == (*shape[:-2], n if whole else k, n)
        np.testing.assert_allclose(u.numpy()[..., :k] * s.numpy()[..., None, :] @ vh.numpy()[..., :k, :], x, atol=5e-6)
        if whole:
            for v in (u.numpy(), vh.numpy()):
                one = np.broadcast_to(np.eye(v.shape[-1]), v.shape)
                np.testing.assert_allclose(v @ v.swapaxes(-1, -2), one, atol=3e-6)
    assert linalg.matrix_rank(Tensor(x)).numpy().reshape(-1).tolist() == [min(rank, k)] * math.prod(shape[:-2])


@needs_torch
@pytest.mark.parametrize("n", range(-3, 5))
def test_powers_of_matrices(n: int) -> None:
    x = normal(2, 3, 3) + 2 * np.eye(3, dtype=np.float32)
    check(lambda t: linalg.matrix_power(t, n) + t * 0, lambda t: torch.linalg.matrix_power(t, n) + t * 0, x,
          tolerance=1e-4)


MATRIX, SPD = normal(2, 3, 3), np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]], np.float32)
ROWS: list[Any] = [
    (lambda m, x: m.linalg.pinv(x), normal(2, 4, 3)), (lambda m, x: m.linalg.pinv(x), normal(3, 1) @ normal(1, 4)),
    (lambda m, x: m.linalg.pinv(x, hermitian=True), SPD), (lambda m, x: m.linalg.pinv(x, atol=1.0, rtol=0.0), SPD),
    *[(lambda m, x, p=p: m.linalg.cond(x, p), MATRIX) for p in (None, 2, -2)],
    *[(lambda m, x, p=p: m.linalg.cond(x.detach(), p) * x, MATRIX[0]) for p in ("fro", "nuc", 1, -1, INF, -INF)],
    (lambda m, x: m.linalg.svdvals(x), normal(2, 3, 4)), (lambda m, x: m.linalg.eigh(x, "U")[0], SPD),
    (lambda m, x: m.linalg.eigvalsh(x, UPLO="U"), SPD), (lambda m, x: m.linalg.cholesky_ex(x)[0], SPD),
    (lambda m, x: m.linalg.inv_ex(x)[0], SPD), (lambda m, x: m.linalg.solve_ex(x, x[0])[0], SPD),
    (lambda m, x: m.linalg.lstsq(x[0], x[1])[0], normal(2, 4, 3)),
    (lambda m, x: m.linalg.lstsq(x[0], x[1])[0], normal(2, 3, 4)),
    (lambda m, x: m.linalg.lstsq(x[0], x[1], driver="gelsd")[1], normal(2, 4, 3)),
    (lambda m, x: m.linalg.tensorinv(x, 2), normal(2, 3, 6)), (lambda m, x: m.linalg.tensorinv(x, 1), normal(6, 2, 3)),
    (lambda m, x: m.linalg.tensorsolve(x, x[:, :, 0]), normal(2, 3, 6)),
    (lambda m, x: m.linalg.tensorsolve(x, x[:, :, 0], dims=(0, 2)), normal(2, 3, 6)),
    (lambda m, x: m.linalg.multi_dot([x[0, 0], x[0], x[1].T, x[0], x[0, 1]]), normal(2, 3, 3)),
    (lambda m, x: m.linalg.vecdot(x[:1], x, dim=0), normal(3, 4)), (lambda m, x: m.linalg.vander(x), normal(2, 3)),
    (lambda m, x: m.linalg.vander(x, N=5), normal(2)), (lambda m, x: m.linalg.cross(x, x[:1]), normal(4, 3)),
    (lambda m, x: m.linalg.diagonal(x, offset=1), MATRIX), (lambda m, x: m.linalg.slogdet(x).logabsdet, MATRIX),
    (lambda m, x: m.linalg.solve_triangular(x, x[0], upper=True, left=False), MATRIX),
    (lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(x), x), MATRIX),
    (lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(x), x, left=False, adjoint=True), MATRIX),
    (lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(x), x, adjoint=True), MATRIX),
    (lambda m, x: m.linalg.householder_product(x[:, :2], x[0]), normal(4, 2)),
    (lambda m, x: (m if m is torch else Tensor).ormqr(x, x[0], x), normal(3, 3)),
    (lambda m, x: (m if m is torch else Tensor).ormqr(x, x[0], x, False, True), normal(3, 3)),
]


FURTHER: list[Any] = [
    *[(lambda m, x, k=k: m.cat([x[0, :0], x, x[:1], x[0, :0]][k:], -2), normal(2, 3)) for k in (0, 1)],
    (lambda m, x: m.tensordot(x, x[:1], dims=([0, 1], [1, 0])), normal(3, 3)),
    (lambda m, x: m.tensordot(x[:1, :1], x, dims=([0, 1], [1, 0])), normal(3, 3)),
    (lambda m, x: m.cumulative_trapezoid(x, dim=0), normal(4, 3)),
    (lambda m, x: m.cumulative_trapezoid(x, x * x), normal(4, 3)), (lambda m, x: m.trapezoid(x, x[0]), normal(4, 3)),
    (lambda m, x: m.combinations(x), normal(5)), (lambda m, x: m.combinations(x, 3, True), normal(4)),
    (lambda m, x: m.combinations(x, 3), normal(2)), (lambda m, x: m.atleast_3d([x, x[0]])[1], normal(2, 3)),
    (lambda m, x: m.atleast_1d(x, x.sum())[1], normal(2, 3)), (lambda m, x: m.unsafe_chunk(x, 2, 1)[1], normal(2, 5)),
    (lambda m, x: x * sum(m.unravel_index(m.arange(6), (2, 3))), normal(6)),
]


@needs_torch
@pytest.mark.parametrize("row", FURTHER, ids=range(len(FURTHER)))
def test_further_functions(row: Any) -> None:
    run, x = row
    check(lambda t: run(Tensor, t) + 0 * t.sum(), lambda t: run(torch, t) + 0 * t.sum(), x, tolerance=1e-5)


class Mine:
    linalg = linalg


@needs_torch
@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_values_and_gradients(row: Any) -> None:
    run, x = row
    check(lambda t: run(Mine, t), lambda t: run(torch, t), x, tolerance=2e-3)


@pytest.mark.parametrize("device", devices())
def test_on_devices(device: str) -> None:
    with config(device=device):
        x = normal(2, 4, 3)
        p, low, up = linalg.lu(Tensor(x))
        np.testing.assert_allclose((p @ low @ up).numpy(), x, atol=1e-6)
        q, r = linalg.qr(Tensor(x), "complete")
        np.testing.assert_allclose((q @ r).numpy(), x, atol=1e-6)
        found = linalg.lstsq(Tensor(x), Tensor(x))[0].numpy()
        np.testing.assert_allclose(found, np.broadcast_to(np.eye(3), found.shape), atol=1e-5)


@needs_torch
@pytest.mark.filterwarnings("ignore:torch.triangular_solve")
@pytest.mark.parametrize("flags", list(product((False, True), repeat=3)))
def test_triangular_solve(flags: tuple[bool, ...]) -> None:
    x = normal(3, 3) + 2 * np.eye(3, dtype=np.float32)
    check(lambda t: t.triangular_solve(t, *flags)[0], lambda t: t.triangular_solve(t, *flags)[0], x, tolerance=1e-3)


def test_who_is_to_blame() -> None:
    """info of singular and indefinite matrices, counted from 1, and 0 of others."""
    x = Tensor([[[1.0, 2], [2, 4]], [[1, 2], [2, 5]], [[0, 0], [0, 0]]])
    assert linalg.inv_ex(x).info.tolist() == linalg.lu_factor_ex(x).info.tolist() == [2, 0, 1]
    assert linalg.solve_ex(x, x)[1].tolist() == [2, 0, 1]
    assert linalg.cholesky_ex(Tensor([[[1.0, 2], [2, 1]], [[4, 1], [1, 4]]])).info.tolist() == [2, 0]
    assert linalg.cond(x).numpy()[2] == linalg.cond(x, 1).numpy()[0] == INF


@needs_torch
def test_names_and_arguments_are_torchs() -> None:
    """Every public function is in torch.linalg, whose others give complex results or need what is not there."""
    mine = {n for n, f in vars(linalg).items() if inspect.isfunction(f) and not n.startswith("_")
            and f.__module__ == linalg.__name__} | {"det", "matrix_exp", "matrix_power"}
    theirs = {n for n in dir(torch.linalg) if not n.startswith("_") and callable(getattr(torch.linalg, n))}
    assert mine <= theirs
    assert {n for n in theirs - mine if n[0].islower()} == {
        "eig", "eigvals", "ldl_factor", "ldl_factor_ex", "ldl_solve", "common_notes"} & theirs


@pytest.mark.parametrize("run, message", [
    (lambda x: linalg.norm(x, 3), "[norm] expected order 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2 of a matrix norm"),
    (lambda x: linalg.norm(x.unsqueeze(0), 2), "[norm] expected one axis or two with an order, got None of [1, 2, 3]"),
    (lambda x: linalg.matrix_norm(x, dim=(0, 0)), "[matrix_norm] expected distinct axes in -2..1, got (0, 0)"),
    (lambda x: x.norm("max"), "[norm] expected p as a number, 'fro' or 'nuc', got 'max'"),
    (lambda x: linalg.lu(x, pivot=False), "[lu] expected pivot=True"),
    (lambda x: linalg.qr(x, "full"), "[qr] expected mode 'reduced', 'complete' or 'r', got 'full'"),
    (lambda x: linalg.multi_dot([x]), "[multi_dot] expected at least two tensors, got 1"),
    (lambda x: linalg.multi_dot([x, x]), "[multi_dot] expected matrices that can be multiplied, vectors at the ends"),
    (lambda x: linalg.tensorinv(x, 1), "[tensorinv] expected as many elements in the first 1 axes as in the others"),
    (lambda x: linalg.tensorsolve(x, x), "[tensorsolve] expected as many elements in the first 2 axes"),
    (lambda x: linalg.cross(x, x[0]), "[cross] expected as many axes of both, got [2, 3] and [3]"),
    (lambda x: linalg.vander(x, 1), "[vander] expected N above 1, got 1"),
    (lambda x: x.orgqr(x[0]), "[orgqr] expected [..., M, N] with M >= N and tau [..., K] with K <= N, got [2, 3]"),
    (lambda x: x.lu_solve(x, x), "[lu_solve] expected factors [..., N, N] and [..., N, K], got [2, 3] and [2, 3]"),
    (lambda x: x.T.eigh("M"), "[eigh] expected square matrices and UPLO 'L' or 'U', got [3, 2] and 'M'"),
    (lambda x: linalg.lstsq(x, x, driver="qr"), "[lstsq] expected driver 'gels', 'gelsy', 'gelsd' or 'gelss', got "),
])
def test_mistakes(run: Any, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        run(Tensor.zeros(2, 3))
    assert message in str(caught.value)
