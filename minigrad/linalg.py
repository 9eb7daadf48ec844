"""PyTorch's `torch.linalg` for real matrices, the last two axes of tensors: its names, order of arguments and defaults.

    from minigrad import linalg

Singular matrices give infinities or NaN where PyTorch raises: nothing is read to find out. Functions with `_ex` say in
`info` which column is the first to blame, counted from 1, or 0. There is no `eig`, whose results are complex.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from minigrad.dtype import DType, int64
from minigrad.errors import ShapeError
from minigrad.mixins import norms
from minigrad.mixins.base import as_axis, as_tensor, broadcast_shapes
from minigrad.mixins.decompositions import epsilon, sizes_of_matrices
from minigrad.mixins.rounding import rounded_once
from minigrad.tensor import Tensor

Axis = int | Sequence[int] | None


class Svd(NamedTuple):
    """A = U @ diag(S) @ Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    """A = eigenvectors @ diag(eigenvalues) @ eigenvectors.T."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Qr(NamedTuple):
    """A = Q @ R."""

    Q: Tensor
    R: Tensor


class Lu(NamedTuple):
    """A = P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LuFactor(NamedTuple):
    """Both factors in one matrix, and the exchanges of rows, counted from 1."""

    LU: Tensor
    pivots: Tensor


class Slogdet(NamedTuple):
    """The sign of a determinant and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class Lstsq(NamedTuple):
    """A least-squares solution. `residuals` are sums of squares [..., K], where there are more rows than columns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class LuFactorEx(NamedTuple):
    """`LuFactor`, and `info`: which pivot is 0, counted from 1; 0 where none is."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class Ex(NamedTuple):
    """A result, and `info`: the column, counted from 1, for which there is none; 0 where the result is right."""

    result: Tensor
    info: Tensor


# Norms


def vector_norm(x: Tensor, ord: Any = 2, dim: Axis = None, keepdim: bool = False, *,
                dtype: DType | str | None = None) -> Tensor:
    """(sum |x|**ord)**(1/ord) over axes, of all elements without them; see `Tensor.norm`."""
    return norms.vector_norm("vector_norm", as_tensor("vector_norm", x), ord, dim, keepdim, dtype)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *,
                dtype: DType | str | None = None) -> Tensor:
    """The norm of the matrices over two axes: 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2."""
    return norms.matrix_norm("matrix_norm", as_tensor("matrix_norm", A), ord, dim, keepdim, dtype)


def norm(A: Tensor, ord: Any = None, dim: Axis = None, keepdim: bool = False, *,
         dtype: DType | str | None = None) -> Tensor:
    """`vector_norm` over one axis or, without `ord`, over those given, else over all; with `ord` `matrix_norm` over two
    axes, or of a matrix."""
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    rank = as_tensor("norm", A).ndim if dim is None else len(dim) if isinstance(dim, Sequence) else 1
    if rank not in (1, 2):
        raise ShapeError(f"[norm] expected one axis or two with an order, got {dim} of {list(A.shape)}")
    if rank == 1:
        return norms.vector_norm("norm", A, ord, dim, keepdim, dtype)
    return norms.matrix_norm("norm", A, ord, (0, 1) if dim is None else dim, keepdim, dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The norm of matrices times that of their inverses, 2 unless told; infinite for singular ones."""
    wide = as_tensor("cond", A)._in_double()
    if p in (None, 2, -2):
        s = svdvals(wide)
        if 0 in A.shape[-2:]:
            return s.sum(-1).cast(A._as_float().dtype)
        large, small = s[..., 0], s[..., -1]
        found = small / large if p == -2 else large / small
    else:
        found = matrix_norm(wide, p) * matrix_norm(inv(wide), p)
    found = found.cast(A._as_float().dtype)
    return (found.isnan().bitwise_and(A.isfinite().all((-2, -1)))).where(math.inf, found)


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None,
                rtol: Any = None) -> Tensor:
    """The number of singular values that are more than max(atol, rtol * the largest), int64; see `pinv`."""
    sizes_of_matrices("matrix_rank", as_tensor("matrix_rank", A))
    if 0 in A.shape:
        return A.new_zeros(*A.shape[:-2], dtype=int64)
    atol, rtol = _tolerances(A, atol if tol is None else tol, rtol if tol is None else 0.0)
    return A._as_float().detach()._large_singular_values(atol, rtol, hermitian)[0].sum(-1)


def _tolerances(A: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """(atol, rtol): 0 and, where atol is 0 too, the larger side times the type's rounding."""
    default = max(sizes_of_matrices("pinv", A)) * epsilon(A._as_float().dtype)
    if rtol is None and isinstance(atol, Tensor):
        rtol = (atol > 0).where(0.0, default)
    elif rtol is None:
        rtol = 0.0 if atol else default
    return 0.0 if atol is None else atol, rtol


# Decompositions


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> Svd:
    """(U, S, Vh) of matrices; see `Tensor.svd`."""
    u, s, v = as_tensor("svd", A).svd(some=not full_matrices)
    return Svd(u, s, v.transpose(-1, -2))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of matrices [..., M, N], [..., min(M, N)] in descending order."""
    return as_tensor("svdvals", A).svd()[1]


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues and vectors of symmetric matrices; see `Tensor.eigh`."""
    return Eigh(*as_tensor("eigh", A).eigh(UPLO))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of `eigh`."""
    return as_tensor("eigvalsh", A).eigvalsh(UPLO)


def qr(A: Tensor, mode: str = "reduced") -> Qr:
    """(Q, R) of matrices; `mode` 'complete' gives all columns of Q, 'r' none. See `Tensor.qr`."""
    if mode not in ("reduced", "complete", "r"):
        raise ShapeError(f"[qr] expected mode 'reduced', 'complete' or 'r', got {mode!r}")
    q, r = as_tensor("qr", A).qr(some=mode != "complete")
    return Qr(q.new_zeros(0) if mode == "r" else q, r)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L of symmetric positive definite matrices; see `Tensor.cholesky`."""
    return as_tensor("cholesky", A).cholesky(upper)


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Ex:
    """(`cholesky`, info)."""
    found = cholesky(A, upper=upper)
    return Ex(found, _first(found.detach().diagonal(0, -2, -1).isnan()))


def lu(A: Tensor, *, pivot: bool = True) -> Lu:
    """(P, L, U) of matrices; see `Tensor.lu` and `Tensor.lu_unpack`."""
    factors, pivots = as_tensor("lu", A).lu(pivot)
    return Lu(*factors.lu_unpack(pivots))


def lu_factor(A: Tensor, *, pivot: bool = True) -> LuFactor:
    """(LU, pivots) of matrices; see `Tensor.lu`."""
    factors, pivots = as_tensor("lu_factor", A).lu(pivot)
    return LuFactor(factors, pivots)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LuFactorEx:
    """(LU, pivots, info)."""
    return LuFactorEx(*as_tensor("lu_factor", A).lu(pivot, get_infos=True))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True,
             adjoint: bool = False) -> Tensor:
    """X of A @ X = B for the factors of A, of A.T with `adjoint`, and X of X @ A = B without `left`."""
    return as_tensor("lu_solve", B).lu_solve(LU, pivots, left=left, adjoint=adjoint)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflections; see `Tensor.orgqr`."""
    return as_tensor("householder_product", A).orgqr(tau)


def _first(bad: Tensor) -> Tensor:
    """The position of the first True along the last axis, counted from 1, 0 where there is none: int32."""
    return bad.any(-1).where(bad.argmax(-1) + 1, 0) if bad.shape[-1] else bad.sum(-1).int()


# Inverses and what is solved


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices."""
    return as_tensor("inv", A).inverse()


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Ex:
    """(`inv`, info)."""
    return Ex(inv(A), _singular(A))


def _singular(A: Tensor) -> Tensor:
    return A.detach().lu(get_infos=True)[2]


def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None,
         ) -> Tensor:
    """The pseudo-inverse [..., N, M] of matrices [..., M, N]: singular values of at most max(atol, rtol * the largest)
    count as 0. `rtol` is max(M, N) times the type's rounding unless told or `atol` is."""
    atol, rtol = _tolerances(as_tensor("pinv", A), atol, rtol if rcond is None else rcond)
    return A._pseudo_inverse(atol, rtol, hermitian)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X of A @ X = B; see `Tensor.solve`."""
    return as_tensor("solve", A).solve(B, left=left)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Ex:
    """(`solve`, info)."""
    return Ex(solve(A, B, left=left), _singular(A))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Tensor:
    """X of A @ X = B for triangles A; see `Tensor.solve_triangular`."""
    return as_tensor("solve_triangular", A).solve_triangular(B, upper=upper, left=left, unitriangular=unitriangular)


def lstsq(A: Tensor, B: Tensor, rcond: Any = None, *, driver: str | None = None) -> Lstsq:
    """X for which |A @ X - B| is least; see `Tensor.lstsq`. As in PyTorch the rank, that of `matrix_rank`, comes with
    every driver but 'gels', residuals with all but 'gelsy', which None is, singular values with 'gelsd' and 'gelss'."""
    rows, columns = sizes_of_matrices("lstsq", as_tensor("lstsq", A))
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ShapeError(f"[lstsq] expected driver 'gels', 'gelsy', 'gelsd' or 'gelss', got {driver!r}")
    vectors = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vectors else B
    if right.shape[-2] != rows:
        raise ShapeError(f"[lstsq] expected [..., M, N] and [..., M, K] or [..., M], got {list(A.shape)} and "
                         f"{list(B.shape)}")
    wide, none = A._in_double(), A.new_zeros(0)
    found = wide.lstsq(right)
    seen = rows > columns and driver not in (None, "gelsy")
    left = (wide.dot(found) - right).square().sum(-2).cast(none.dtype) if seen else none
    found = found.cast(A.dtype)
    rank = none.long() if driver == "gels" else matrix_rank(A, atol=0.0, rtol=rcond)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else none
    return Lstsq(found.squeeze(-1) if vectors else found, left, rank, values)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a map from its last axes to its first `ind`: the last axes come first."""
    first, last = as_tensor("tensorinv", A).shape[:ind], A.shape[ind:]
    if ind < 1 or math.prod(first) != math.prod(last):
        raise ShapeError(f"[tensorinv] expected as many elements in the first {ind} axes as in the others, got "
                         f"{list(A.shape)}")
    return inv(A.reshape(math.prod(first), -1)).reshape(*last, *first)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X of tensordot(A, X, X.ndim) = B; the axes `dims` of A count as its last."""
    a = as_tensor("tensorsolve", A)
    if dims is not None:
        a = a.movedim(tuple(dims), tuple(range(a.ndim - len(dims), a.ndim)))
    shape = a.shape[as_tensor("tensorsolve", B).ndim:]
    if math.prod(shape) ** 2 != a.numel() or math.prod(shape) != B.numel():
        raise ShapeError(f"[tensorsolve] expected as many elements in the first {B.ndim} axes, and in the others, as B "
                         f"has, got {list(a.shape)} and {list(B.shape)}")
    return a.reshape(B.numel(), -1).solve(B.flatten()).reshape(*shape)


# Products


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices, the first and last of which may be vectors, in the order of fewest multiplications."""
    given = [as_tensor("multi_dot", t) for t in tensors]
    if len(given) < 2:
        raise ShapeError(f"[multi_dot] expected at least two tensors, got {len(given)}")
    chain = [given[0].unsqueeze(0) if given[0].ndim == 1 else given[0], *given[1:-1],
             given[-1].unsqueeze(1) if given[-1].ndim == 1 else given[-1]]
    if any(t.ndim != 2 for t in chain) or any(a.shape[1] != b.shape[0] for a, b in itertools.pairwise(chain)):
        raise ShapeError(f"[multi_dot] expected matrices that can be multiplied, vectors at the ends, got "
                         f"{[list(t.shape) for t in given]}")
    shape = [n for t, n in ((given[0], chain[0].shape[0]), (given[-1], chain[-1].shape[1])) if t.ndim == 2]
    return _chained(*chain).reshape(*shape)


@rounded_once
def _chained(*chain: Tensor) -> Tensor:
    best: dict[tuple[int, int], tuple[Any, Tensor]] = {(i, i): (0, t) for i, t in enumerate(chain)}
    for length in range(1, len(chain)):
        for i in range(len(chain) - length):
            k = i + length
            cost, middle = min([(best[i, j][0] + best[j + 1, k][0] + chain[i].shape[0] * chain[j].shape[1]
                                 * chain[k].shape[1], j) for j in range(i, k)])
            best[i, k] = cost, best[i, middle][1].dot(best[middle + 1, k][1])
    return best[0, len(chain) - 1][1]


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of products along an axis; shapes broadcast."""
    shape = broadcast_shapes("vecdot", as_tensor("vecdot", x).shape, as_tensor("vecdot", y).shape)
    return (x.expand(*shape) * y.expand(*shape)).sum(as_axis("vecdot", dim, len(shape)), dtype=x.dtype)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of each element in a new last axis; N is the length of the last one unless told."""
    x = as_tensor("vander", x).atleast_1d()
    count = x.shape[-1] if N is None else N
    if int(count) < 2:
        raise ShapeError(f"[vander] expected N above 1, got {count}")
    powers = x.unsqueeze(-1).expand(*x.shape, count - 1).cumprod(-1)
    return powers.cast(x.dtype).pad((1, 0), value=1)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product of vectors of 3 elements along an axis; shapes of as many axes broadcast."""
    if as_tensor("cross", input).ndim != as_tensor("cross", other).ndim:
        raise ShapeError(f"[cross] expected as many axes of both, got {list(input.shape)} and {list(other.shape)}")
    return input.cross(other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices; see `Tensor.diagonal`."""
    return as_tensor("diagonal", A).diagonal(offset, dim1, dim2)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Products of matrices; see `Tensor.matmul`."""
    return as_tensor("matmul", input).dot(other)


det, matrix_exp, matrix_power = Tensor.det, Tensor.matrix_exp, Tensor.matrix_power


def slogdet(A: Tensor) -> Slogdet:
    """(sign, logabsdet) of square matrices; see `Tensor.slogdet`."""
    return Slogdet(*as_tensor("slogdet", A).slogdet())
