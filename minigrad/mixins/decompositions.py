"""Inverses, determinants, factors of matrices, and what is solved with them.

Matrices are the last two axes, [..., n, n], of floats; half types compute in float32. Sizes must be known: graphs have
some twenty Nodes per column, so that this is for matrices of tens to a few hundred columns. Nothing checks whether a
matrix is singular or positive definite, as values are not there yet: what has no answer gives infinities or NaN.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.resampling import ResamplingMixin
from minigrad.ops import build as B
from minigrad.ops import decompositions as D
from minigrad.ops.eigen import eigen
from minigrad.ops.node import Node


class DecompositionMixin(ResamplingMixin):
    """Gradients are those of the functions, not of the loops that compute them."""

    __slots__ = ()

    def inverse(self) -> Self:
        """The inverse of square matrices."""
        return self._of_matrices("inverse", D.inverse)

    def det(self) -> Self:
        """The determinant of square matrices, [...]; its gradient is infinite or NaN where it is 0."""
        return self._pivots("det").prod(-1)

    def slogdet(self) -> tuple[Self, Self]:
        """(sign of the determinant, logarithm of its absolute value), [...] each: no overflow for large matrices."""
        pivots = self._pivots("slogdet")
        return pivots.sign().prod(-1), pivots.abs().log().sum(-1)

    def logdet(self) -> Self:
        """The logarithm of the determinant, [...]; NaN where that is negative."""
        sign, size = self.slogdet()
        return (sign < 0).where(float("nan"), size)

    def _pivots(self, name: str) -> Self:
        return self._of_matrices(name, D.pivots, matrix=False)

    def cholesky(self, upper: bool = False) -> Self:
        """L of symmetric positive definite matrices L @ L.T, 0 above the diagonal; its transpose with `upper`. What is
        above the diagonal is not read; the gradient is symmetric, as in PyTorch."""
        result = self._of_matrices("cholesky", D.cholesky)
        return result.transpose(-1, -2) if upper else result

    def qr(self) -> tuple[Self, Self]:
        """(Q, R) of matrices [..., M, N] = Q @ R: K = min(M, N) orthonormal columns [..., M, K], and [..., K, N] that
        is 0 below the diagonal. Its gradient is there for M >= N with columns that do not depend on each other. Signs
        are LAPACK's."""
        x = self
        if self.ndim > 1 and self._known_length("qr", self.ndim - 2) < self._known_length("qr", self.ndim - 1):
            x = self.detach()
        return x._of_matrices("qr", D.q_of, square=False), x._of_matrices("qr", D.r_of, square=False)

    def solve(self, other: Any) -> Self:
        """X of x @ X = other, for square matrices x [..., N, N] and other [..., N, K], or [N]: by the inverse."""
        other = as_tensor("solve", self._operand(other))
        if self.ndim < 2 or self.shape[-2:-1] != (other.shape[-2:-1] if other.ndim > 1 else other.shape):
            raise ShapeError(f"[solve] expected [..., N, N] and [..., N, K] or [N], got {list(self.shape)} and "
                             f"{list(other.shape)}")
        return self.inverse().dot(other)

    def eigh(self) -> tuple[Self, Self]:
        """(eigenvalues [..., N] in ascending order, orthonormal eigenvectors as columns [..., N, N]) of symmetric
        matrices, of which the lower triangle is read. Errors are some units of rounding of the largest eigenvalue. The
        gradient is symmetric, and of vectors there where their eigenvalues differ from all others; signs are free.

        By Jacobi's rotations, in N * (3 + log2(N)) rounds, 6 for 3 in float64, of two launches: for N of tens.
        """
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[eigh] expected square matrices, got {list(self.shape)}")
        if 0 in self.shape:
            none = self._as_float()
            return none.sum(-1), none
        both = self._of_matrices("eigh", eigen)
        rows = both.ndim - 2
        n: Any = self.shape[-1]
        return both._cut(rows, 0, 1).squeeze(rows), both._cut(rows, 1, n + 1)

    def eigvalsh(self) -> Self:
        """The eigenvalues of `eigh`."""
        return self.eigh()[0]

    def svd(self) -> tuple[Self, Self, Self]:
        """(U [..., M, K], S [..., K] in descending order, V [..., N, K]) of matrices [..., M, N] = U @ diag(S) @ V.T,
        with K = min(M, N) orthonormal columns: `eigh` of [[0, x], [x.T, 0]], whose eigenvalues are S and -S.

        Columns that belong to singular values of 0 are not orthonormal. The gradient of vectors is there where their
        singular values differ from all others and from 0.
        """
        if self.ndim < 2:
            raise ShapeError(f"[svd] expected matrices, got {list(self.shape)}")
        x = self._as_float()
        rows, columns = (self._known_length("svd", self.ndim - k) for k in (2, 1))
        count, size = min(rows, columns), rows + columns
        if 0 in self.shape:
            batch = self.shape[:-2]
            return tuple([self.zeros(*batch, *shape, dtype=x.dtype, device=x.device)  # type: ignore[return-value]
                          for shape in ((rows, count), (count,), (columns, count))])
        below = x.transpose(-1, -2).pad((0, columns, rows, 0))
        values, vectors = (below + below.transpose(-1, -2)).eigh()
        largest = vectors._cut(self.ndim - 1, size - count, size).flip(-1) * math.sqrt(2)
        return (largest._cut(self.ndim - 2, 0, rows),
                values._cut(self.ndim - 2, size - count, size).flip(-1).maximum(0),
                largest._cut(self.ndim - 2, rows, size))

    def pinverse(self, rcond: float = 1e-6) -> Self:
        """The pseudo-inverse [..., N, M] of matrices [..., M, N] by `svd`: singular values of at most `rcond` times the
        largest count as 0."""
        u, s, v = self.svd()
        if 0 in self.shape:
            return v.dot(u.transpose(-1, -2))
        small = s <= s._cut(self.ndim - 2, 0, 1) * rcond
        return (v * small.where(0, 1 / small.where(1, s)).unsqueeze(-2)).dot(u.transpose(-1, -2))

    def cholesky_solve(self, factor: Any, upper: bool = False) -> Self:
        """X of A @ X = x, for x [..., N, K] and the Cholesky factor [..., N, N] of A: two triangular solutions."""
        factor = as_tensor("cholesky_solve", self._operand(factor))
        lower = factor.transpose(-1, -2) if upper and factor.ndim > 1 else factor
        return lower.transpose(-1, -2).solve_triangular(lower.solve_triangular(self, upper=False), upper=True)

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of the matrix whose Cholesky factor this is, [..., N, N]."""
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[cholesky_inverse] expected square matrices, got {list(self.shape)}")
        size: Any = self.shape[-1]
        return self.eye(size, dtype=self._as_float().dtype, device=self.device).expand(*self.shape).cholesky_solve(
            self, upper)

    def lstsq(self, other: Any) -> Self:
        """X for which |x @ X - other| is least, for x [..., M, N], M >= N, with columns that do not depend on each
        other, and other [..., M, K] or [M]: R^-1 @ Q.T @ other."""
        other = as_tensor("lstsq", self._operand(other))
        if self.ndim < 2 or self.shape[-2] < self.shape[-1] or self.shape[-2:-1] != (  # type: ignore[operator]
                other.shape[-2:-1] if other.ndim > 1 else other.shape):
            raise ShapeError(f"[lstsq] expected [..., M, N] with M >= N and [..., M, K] or [M], got "
                             f"{list(self.shape)} and {list(other.shape)}")
        q, r = self.qr()
        return r.solve_triangular(q.transpose(-1, -2).dot(other), upper=True)

    def solve_triangular(self, other: Any, *, upper: bool, unitriangular: bool = False) -> Self:
        """X of x @ X = other, for x [..., N, N] of which one triangle counts, with ones on the diagonal if
        `unitriangular`, and other [..., N, K] or [N]. In log2(N) steps: inverses of twice as large diagonal blocks."""
        other = as_tensor("solve_triangular", self._operand(other))
        if self.ndim < 2 or self.shape[-1] != self.shape[-2] or self.shape[-2:-1] != (
                other.shape[-2:-1] if other.ndim > 1 else other.shape):
            raise ShapeError(f"[solve_triangular] expected [..., N, N] and [..., N, K] or [N], got {list(self.shape)} "
                             f"and {list(other.shape)}")
        lower = (self.transpose(-1, -2) if upper else self)._as_float()
        inverse = lower._triangular_inverse(unitriangular)
        return (inverse.transpose(-1, -2) if upper else inverse).dot(other)

    def _triangular_inverse(self, unit: bool) -> Self:
        """Of [..., N, N], lower triangles."""
        n = self._known_length("solve_triangular", self.ndim - 1)
        if n == 0:
            return self
        size = 1 << (n - 1).bit_length()
        batch = self.shape[:-2]
        inside = self.tril(-1).pad((0, size - n, 0, size - n)).reshape(B.numel(batch), size, size)
        ends = self.ones_like().diagonal(0, -2, -1) if unit else self.diagonal(0, -2, -1)
        ends = ends.pad((0, size - n), value=1.0).reshape(B.numel(batch), size, 1, 1)
        blocks, s = ends.reciprocal(), 1
        while s < size:
            count = size // (2 * s)
            tiles = inside.reshape(B.numel(batch), count, 2 * s, count, 2 * s).diagonal(0, 1, 3)
            under = tiles.permute(0, 3, 1, 2)[:, :, s:, :s]
            pairs = blocks.reshape(B.numel(batch), count, 2, s, s)
            first, second = pairs[:, :, 0], pairs[:, :, 1]
            corner = -second.dot(under).dot(first)
            top = first.pad((0, s))
            blocks = top.cat(corner.cat(second, dim=-1), dim=-2).contiguous()
            s *= 2
        return blocks.reshape(*batch, size, size)._cut(self.ndim - 1, 0, n)._cut(self.ndim - 2, 0, n)

    def _of_matrices(self, name: str, build: Callable[[Node], Node], square: bool = True, matrix: bool = True) -> Self:
        """A function of matrices [batch, m, n] that gives as many matrices, or rows without `matrix`."""
        if self.ndim < 2 or (square and self.shape[-1] != self.shape[-2]):
            raise ShapeError(f"[{name}] expected {'square ' if square else ''}matrices, got {list(self.shape)}")
        rows, columns = (self._known_length(name, self.ndim - k) for k in (2, 1))
        x = self._as_float()
        batch = B.numel(x.shape[:-2])
        wide = x.cast(x.dtype.compute).reshape(batch, rows, columns)
        if 0 in self.shape:
            shape = (*x.shape[:-2], rows, min(rows, columns)) if build is D.q_of else (
                *x.shape[:-2], min(rows, columns), columns)
            return self.zeros(*shape[:None if matrix else -1], dtype=x.dtype, device=x.device)
        found = self._wrap(build(wide._node), wide).cast(x.dtype)
        return found.reshape(*x.shape[:-2], *found.shape[1:])
