"""The extension `linalg`.

minigrad has no decompositions of complex matrices. What can be read off the real matrix [[A, -B], [B, A]] of twice the
size, which stands for A + iB, is; the others are refused.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad import linalg as L
from minigrad.array_api.elementwise import abs as _abs
from minigrad.array_api.linear import matmul, matrix_transpose, tensordot, vecdot
from minigrad.array_api.manipulation import broadcast_arrays
from minigrad.array_api.parts import Parts, as_parts, operands, real
from minigrad.array_api.statistics import sum as _sum
from minigrad.errors import ShapeError
from minigrad.functions import cat
from minigrad.tensor import Tensor

__all__ = ["cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
           "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
           "trace", "vecdot", "vector_norm"]


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthogonal columns and an upper triangle."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its size."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values in descending order, right singular vectors as rows."""

    U: Any
    S: Any
    Vh: Any


def _matrices(name: str, x: Any, square: bool = False) -> Tensor:
    t = real(name, x)
    if t.ndim < 2 or (square and t.shape[-1] != t.shape[-2]):
        raise ShapeError(f"[{name}] expected {'square ' if square else ''}matrices, got shape {list(t.shape)}")
    return t


def _doubled(x: Any) -> Any:
    """[[A, -B], [B, A]] for complex matrices A + iB, others as they are."""
    if as_parts("linalg", x, "fc").im is None:
        return x
    return type(x)(cat([cat([x.re, -x.im], dim=-1), cat([x.im, x.re], dim=-1)], dim=-2))


def _halved(like: Any, t: Tensor, rows: int, columns: int) -> Any:
    """Matrices of `rows` and `columns` that a result stands for: itself, or A + iB of [[A, -B], [B, A]]."""
    if like.im is None:
        return type(like)(t)
    return type(like)(t[..., :rows, :columns], t[..., rows:, :columns])


def _once(like: Any, t: Tensor) -> Any:
    """Values in order, each once: those of a doubled matrix come twice."""
    return type(like)(t if like.im is None else t[..., ::2])


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The triangle L of each positive definite matrix L L^T, or its transpose."""
    return type(x)(L.cholesky(_matrices("cholesky", x, True), upper=upper))


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross products of vectors of three elements along an axis."""
    least = min(as_parts("cross", x1).ndim, as_parts("cross", x2).ndim)
    if not -least <= axis < (least if x1.ndim == x2.ndim else 0):
        raise ShapeError(f"[cross] expected an axis in -{least}..-1, got {axis}")
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ShapeError(f"[cross] expected three elements along {axis}, got {list(x1.shape)} and {list(x2.shape)}")
    a, b = broadcast_arrays(*operands("cross", "iufc", x1, x2))
    place = axis % a.ndim

    def next_by(x: Any, by: int) -> Any:
        return x.map(lambda t: t.roll(-by, place))

    return next_by(a, 1) * next_by(b, 2) - next_by(a, 2) * next_by(b, 1)


def det(x: Any, /) -> Any:
    """Determinants."""
    return type(x)(_matrices("det", x, True).det())


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """A diagonal of each matrix, `offset` above the main one."""
    if as_parts("diagonal", x).ndim < 2:
        raise ShapeError(f"[diagonal] expected two axes or more, got shape {list(x.shape)}")
    return x.map(lambda t: t.diagonal(offset, -2, -1))


def eigh(x: Any, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    return EighResult(*[type(x)(t) for t in L.eigh(_matrices("eigh", x, True))])


def eigvalsh(x: Any, /) -> Any:
    """Eigenvalues of symmetric matrices."""
    return _once(x, L.eigvalsh(_matrices("eigvalsh", _doubled(x), True)))


def inv(x: Any, /) -> Any:
    """Inverses."""
    return _halved(x, L.inv(_matrices("inv", _doubled(x), True)), *x.shape[-2:])


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norms of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    if as_parts("matrix_norm", x).im is not None:
        if ord not in ("fro", None, 1, -1, np.inf, -np.inf):
            _matrices("matrix_norm", x)
        x = _abs(x)
    return type(x)(L.matrix_norm(_matrices("matrix_norm", x), "fro" if ord is None else ord, keepdim=keepdims))


def matrix_power(x: Any, n: int, /) -> Any:
    """The n-th powers of square matrices, of inverses for a negative n."""
    return _halved(x, _matrices("matrix_power", _doubled(x), True).matrix_power(n), *x.shape[-2:])


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """The number of singular values are greater than `rtol` times the greatest."""
    t = _matrices("matrix_rank", _doubled(x))
    limit = rtol.re if isinstance(rtol, Parts) else rtol
    if limit is None:
        limit = max(x.shape[-2:]) * float(np.finfo(t.dtype.np).eps)
    values = _once(x, L.svdvals(t)).re
    if not values.shape[-1]:
        return type(x)(Tensor.zeros(*values.shape[:-1], dtype="int64", device=t.device))
    most = values.amax(axis=-1, keepdim=True)
    least = most * (limit.unsqueeze(-1) if isinstance(limit, Tensor) else limit)
    return type(x)((values > least).cast("int64").sum(-1, dtype="int64"))


def outer(x1: Any, x2: Any, /) -> Any:
    """Products of each element of one vector with each of another."""
    if as_parts("outer", x1).ndim != 1 or as_parts("outer", x2).ndim != 1:
        raise ShapeError(f"[outer] expected two vectors, got shapes {list(x1.shape)} and {list(x2.shape)}")
    return x1[:, None] * x2[None, :]


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """Pseudo-inverses, of the singular values greater than `rtol` times the greatest."""
    limit = rtol.re if isinstance(rtol, Parts) else rtol
    return _halved(x, L.pinv(_matrices("pinv", _doubled(x)), rtol=limit), x.shape[-1], x.shape[-2])


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Orthogonal columns times a triangle; square matrices of columns for "complete"."""
    return QRResult(*[type(x)(t) for t in L.qr(_matrices("qr", x), mode)])


def slogdet(x: Any, /) -> SlogdetResult:
    """Signs and logarithms of determinants."""
    return SlogdetResult(*[type(x)(t) for t in L.slogdet(_matrices("slogdet", x, True))])


def solve(x1: Any, x2: Any, /) -> Any:
    """The solutions of x1 X = x2, for a vector x2 or matrices."""
    a, b = operands("solve", "fc", x1, x2)
    if a.im is not None:
        return _solved(a, b)
    square, right = _matrices("solve", a, True), b.re
    if right.ndim == 1:
        batch = square.shape[:-2]
        column = right.unsqueeze(-1).expand(*batch, right.shape[0], 1)
        return type(x1)(L.solve(square, column).squeeze(-1))
    shape = broadcast_arrays(*[type(x1)(Tensor.zeros(*t.shape[:-2], 1)) for t in (square, right)])[0].shape[:-1]
    return type(x1)(L.solve(square.expand(*shape, *square.shape[-2:]), right.expand(*shape, *right.shape[-2:])))


def _solved(a: Any, b: Any) -> Any:
    """The solutions of complex systems: X + iY of the doubled matrix times [X, Y] below each other."""
    vector = b.ndim == 1
    right = b[:, None] if vector else b
    both = type(a)(cat([right.re, right.im], dim=-2))
    found = solve(_doubled(a), both).re
    result = _halved(a, found, a.shape[-1], right.shape[-1])
    return result[..., 0] if vector else result


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values and vectors; square matrices of vectors with `full_matrices`."""
    return SVDResult(*[type(x)(t) for t in L.svd(_matrices("svd", x), full_matrices)])


def svdvals(x: Any, /) -> Any:
    """Singular values in descending order."""
    return _once(x, L.svdvals(_matrices("svdvals", _doubled(x))))


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sums of a diagonal of each matrix."""
    return _sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Norms of vectors along axes, of the flat array for None."""
    size = _abs(as_parts("vector_norm", x, "fc"))
    t, axes = size.re, tuple(range(x.ndim)) if axis is None else axis
    if axis is None:
        result = L.vector_norm(t.reshape(-1), ord)
        return type(x)(result.reshape((1,) * x.ndim) if keepdims else result)
    if not isinstance(axes, int) and len(axes) == 0:
        return type(x)((t != 0).cast(t.dtype) if ord == 0 else t)
    return type(x)(L.vector_norm(t, ord, axes, keepdims))
