"""Inverses, determinants, factors of matrices, and what is solved with them.

Matrices are the last two axes, [..., n, n], of floats; half types compute in float32, and all in float64 what loses
digits: eigenvalues, singular values and what is made of them, triangular solutions. Sizes must be known: but for
eigenvalues and singular values, which are LAPACK's, graphs have some twenty Nodes per column, so that this is for
matrices of tens to a few hundred columns. Nothing checks whether a
matrix is singular or positive definite, as values are not there yet: what has no answer gives infinities or NaN.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad.dtype import DType, promote
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_tensor
from minigrad.ops import build as B
from minigrad.ops import decompositions as D
from minigrad.ops.eigen import eigen
from minigrad.ops.factors import pseudo_inverse
from minigrad.ops.node import Node
from minigrad.runtime.registry import get_device


class DecompositionMixin(Base):
    """Gradients are those of the functions, not of the loops that compute them."""

    __slots__ = ()

    def inverse(self) -> Self:
        """The inverse of square matrices."""
        return self._of_matrices("inverse", D.inverse)

    def det(self) -> Self:
        """The determinant of square matrices, [...]. Its gradient is the matrix of cofactors, of singular ones too; the
        gradient of that is infinite or NaN where the determinant is 0."""
        return self._pivots("det").prod(-1) if 0 in self.shape else self._of_matrices("det", D.det)

    def slogdet(self) -> tuple[Self, Self]:
        """(sign of the determinant, logarithm of its absolute value), [...] each: no overflow for large matrices."""
        sign = self._pivots("slogdet").sign().prod(-1)
        return sign, sign.zeros_like() if 0 in self.shape else self._of_matrices("slogdet", D.log_det)

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

    def qr(self, some: bool = True) -> tuple[Self, Self]:
        """(Q, R) of matrices [..., M, N] = Q @ R: K = min(M, N) orthonormal columns [..., M, K], and [..., K, N] that
        is 0 below the diagonal; without `some` M columns, and [..., M, N]. Gradients are there where the first K
        columns of x do not depend on each other, and not for more columns than those. Signs are LAPACK's."""
        rows, columns = sizes_of_matrices("qr", self)
        if rows < columns and 0 not in self.shape:  # those of the first columns, and the others as seen from them
            last = self.ndim - 1
            q, r = self._cut(last, 0, rows).qr()
            return q, r.cat(q.transpose(-1, -2).dot(self._cut(last, rows, columns)), dim=-1)
        q, r = self._of_matrices("qr", D.q_of, square=False), self._of_matrices("qr", D.r_of, square=False)
        if some or rows <= columns:
            return q, r
        if columns == 0:
            return self.eye(rows, dtype=q.dtype, device=self.device).expand(*self.shape[:-2], rows, rows), \
                self._as_float()
        more = self.detach().pad((0, rows - columns))._of_matrices("qr", D.q_of)._cut(self.ndim - 1, columns, rows)
        return q.cat(more, dim=-1), r.pad((0, 0, 0, rows - columns))

    def solve(self, other: Any, *, left: bool = True) -> Self:
        """X of x @ X = other, for square matrices x [..., N, N] and other [..., N, K] or vectors: [N], or [..., N] of
        as many as there are matrices. Without `left`, X of X @ x = other [..., K, N]. By the inverse."""
        other = as_tensor("solve", self._operand(other))
        vectors = other.ndim == 1 or (other.ndim == self.ndim - 1 and other.shape == self.shape[:-1])
        right = other.unsqueeze(-1) if vectors else other
        place = -2 if left else -1
        if min(self.ndim, right.ndim) < 2 or self.shape[-1] != right.shape[place] or (vectors and not left):
            wanted = "[..., N, K] or [..., N]" if left else "[..., K, N]"
            raise ShapeError(f"[solve] expected [..., N, N] and {wanted}, got {list(self.shape)} and "
                             f"{list(other.shape)}")
        found = self.inverse().dot(right) if left else right.dot(self.inverse())
        return found.squeeze(-1) if vectors else found

    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:  # noqa: N803  (PyTorch's name)
        """(eigenvalues [..., N] in ascending order, orthonormal eigenvectors as columns [..., N, N]) of symmetric
        matrices, of which the lower triangle is read, or the upper one for 'U'. Errors are some units of rounding of
        the largest eigenvalue. The gradient is symmetric, and of vectors there where their eigenvalues differ from all
        others; signs are free.

        By LAPACK on the host, where values of other devices are copied to and back.
        """
        if self.ndim < 2 or self.shape[-1] != self.shape[-2] or str(UPLO).upper() not in ("L", "U"):
            raise ShapeError(f"[eigh] expected square matrices and UPLO 'L' or 'U', got {list(self.shape)} and "
                             f"{UPLO!r}")
        x = self._as_float()
        if 0 in self.shape:
            return x.sum(-1), x
        lower = (x if UPLO.upper() == "L" else x.transpose(-1, -2))._on_host()._in_double()
        both = lower._of_matrices("eigh", eigen).cast(x.dtype).to(x.device)
        rows = both.ndim - 2
        n: Any = self.shape[-1]
        return both._cut(rows, 0, 1).squeeze(rows), both._cut(rows, 1, n + 1)

    def _on_host(self) -> Self:
        """These numbers where plans may call the host: on their own device, or on the CPU."""
        return self if self.device == "NUMPY" or get_device(self.device).calls_host else self.to("CPU")

    def eigvalsh(self, UPLO: str = "L") -> Self:  # noqa: N803  (PyTorch's name)
        """The eigenvalues of `eigh`."""
        return self.eigh(UPLO)[0]

    def svd(self, some: bool = True, compute_uv: bool = True) -> tuple[Self, Self, Self]:
        """(U [..., M, K], S [..., K] in descending order, V [..., N, K]) of matrices [..., M, N] = U @ diag(S) @ V.T,
        with K = min(M, N) orthonormal columns: `eigh` of [[0, x], [x.T, 0]], whose eigenvalues are S and -S. Without
        `some`, U [..., M, M] and V [..., N, N] are whole bases; without `compute_uv` they are zeros of these shapes.

        With `some`, columns that belong to singular values of 0 are not orthonormal. The gradient of vectors is there
        where their singular values differ from all others and from 0.
        """
        rows, columns = sizes_of_matrices("svd", self)
        given = self._as_float().dtype
        u, s, v = self._in_double()._singular(rows, columns)
        if not some and compute_uv:
            rounding = 8 * max(rows, columns) * epsilon(s.dtype)
            least = s._cut(s.ndim - 1, 0, 1) * rounding if min(rows, columns) else s
            u, v = u._whole_basis(s > least), v._whole_basis(s > least)
        u, s, v = u.cast(given), s.cast(given), v.cast(given)
        if not compute_uv:
            return (self.zeros(*self.shape[:-2], rows, rows, dtype=s.dtype, device=self.device), s,
                    self.zeros(*self.shape[:-2], columns, columns, dtype=s.dtype, device=self.device))
        return u, s, v

    def _whole_basis(self, counts: Self) -> Self:
        """These columns [..., N, K], of which those that count are orthonormal and come first, and behind them others
        up to N, in the place of those that do not count too: what reflections that give these make of others."""
        n, k = sizes_of_matrices("svd", self)
        if n == 0 or k == 0 or 0 in self.shape[:-2]:
            return self.eye(n, dtype=self.dtype, device=self.device).expand(*self.shape[:-2], n, n)
        seen = counts.unsqueeze(-2).where(self, 0).detach().pad((0, n - k))
        known = counts.unsqueeze(-2).pad((0, n - k), value=0)
        return known.where(self.pad((0, n - k)), seen._of_matrices("svd", D.q_of))

    def _singular(self, rows: int, columns: int) -> tuple[Self, Self, Self]:
        x = self._as_float()
        count, size = min(rows, columns), rows + columns
        if 0 in self.shape:
            batch = self.shape[:-2]
            left, values, right = (self.zeros(*batch, *shape, dtype=x.dtype, device=x.device)
                                   for shape in ((rows, count), (count,), (columns, count)))
            return left, values, right
        below = x.transpose(-1, -2).pad((0, columns, rows, 0))
        values, vectors = (below + below.transpose(-1, -2)).eigh()
        largest = vectors._cut(self.ndim - 1, size - count, size).flip(-1) * math.sqrt(2)
        return (largest._cut(self.ndim - 2, 0, rows),
                values._cut(self.ndim - 2, size - count, size).flip(-1).maximum(0),
                largest._cut(self.ndim - 2, rows, size))

    def pinverse(self, rcond: Any = 1e-6, hermitian: bool = False) -> Self:
        """The pseudo-inverse [..., N, M] of matrices [..., M, N] by `svd`: singular values of at most `rcond` times the
        largest count as 0. `hermitian` ones are symmetric, and read below the diagonal alone."""
        return self._pseudo_inverse(0.0, rcond, hermitian)

    def _pseudo_inverse(self, atol: Any, rtol: Any, hermitian: bool) -> Self:
        """`pinverse`, where singular values of at most max(atol, rtol * the largest) count as 0. The gradient is that
        of matrices of the same rank."""
        sizes_of_matrices("pinverse", self)
        given = self._as_float()
        if 0 in self.shape:
            return given.transpose(-1, -2)
        x = given._in_double()
        large, s, u, v = x.detach()._large_singular_values(atol, rtol, hermitian)
        found = (v * large.where(1 / large.where(s, 1), 0).unsqueeze(-2)).dot(u.transpose(-1, -2))
        return x._with_pseudo_inverse(found).cast(given.dtype)

    def _with_pseudo_inverse(self, found: Self) -> Self:
        """`found`, which was computed apart as the pseudo-inverse of these matrices, with its gradient."""
        rows, columns = sizes_of_matrices("pinverse", self)
        batch = B.numel(self.shape[:-2])
        source = self.reshape(batch, rows, columns)
        node = pseudo_inverse(source.node, found.reshape(batch, columns, rows).node)
        return self._wrap(node, source).reshape(*self.shape[:-2], columns, rows)

    def _large_singular_values(self, atol: Any, rtol: Any, hermitian: bool) -> tuple[Self, Self, Self, Self]:
        """(which of S are more than max(atol, rtol * the largest), S, U, V); eigenvalues of `hermitian` matrices."""
        u, s, v = self._singular(*sizes_of_matrices("pinverse", self)) if not hermitian else (self, self, self)
        if hermitian:
            s, u = self.eigh()
            v = u
        size = s.abs()
        bounds = [b.unsqueeze(-1) if isinstance(b, type(self)) and b.ndim else b for b in (atol, rtol)]
        return size > (size.max(-1, keepdim=True) * bounds[1]).maximum(bounds[0]), s, u, v

    def cholesky_solve(self, factor: Any, upper: bool = False) -> Self:
        """X of A @ X = x, for x [..., N, K] and the Cholesky factor [..., N, N] of A: two triangular solutions."""
        factor = as_tensor("cholesky_solve", self._operand(factor))
        if min(self.ndim, factor.ndim) < 2 or factor.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[cholesky_solve] expected [..., N, K] and a factor [..., N, N], got {list(self.shape)} "
                             f"and {list(factor.shape)}")
        found = factor._inverse_of_product("cholesky_solve", upper).dot(self._in_double())
        return found.cast(promote(self._as_float().dtype, factor.dtype))

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of the matrix whose Cholesky factor this is, [..., N, N]."""
        return self._inverse_of_product("cholesky_inverse", upper).cast(self._as_float().dtype)

    def _inverse_of_product(self, name: str, upper: bool) -> Self:
        """The inverse of L @ L.T, in float64. The other triangle is not read, but has a gradient, as in PyTorch: that
        of the product of whole matrices."""
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"[{name}] expected square matrices, got {list(self.shape)}")
        whole = (self.transpose(-1, -2) if upper else self)._in_double()
        if 0 in self.shape:
            return whole
        back = whole.detach().tril()._triangular_inverse(False)
        return whole.dot(whole.transpose(-1, -2))._with_pseudo_inverse(back.transpose(-1, -2).dot(back))

    def lstsq(self, other: Any) -> Self:
        """X for which |x @ X - other| is least, for x [..., M, N] with columns, or rows where these are fewer, that do
        not depend on each other, and other [..., M, K] or [M]: (R^-1 @ Q.T) @ other. Of many such X the shortest."""
        other = as_tensor("lstsq", self._operand(other))
        if self.ndim < 2 or self.shape[-2:-1] != (other.shape[-2:-1] if other.ndim > 1 else other.shape):
            raise ShapeError(f"[lstsq] expected [..., M, N] and [..., M, K] or [M], got {list(self.shape)} and "
                             f"{list(other.shape)}")
        rows, columns = sizes_of_matrices("lstsq", self)
        wide = self._in_double()
        x = wide.detach()
        q, r = (x if rows >= columns else x.transpose(-1, -2)).qr()
        inverse = r.solve_triangular(q.transpose(-1, -2), upper=True)
        found = inverse if rows >= columns else inverse.transpose(-1, -2)
        solved = wide._with_pseudo_inverse(found).dot(other._in_double())
        return solved.cast(promote(self._as_float().dtype, other.dtype))

    def solve_triangular(self, other: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """X of x @ X = other, for x [..., N, N] of which one triangle counts, with ones on the diagonal if
        `unitriangular`, and other [..., N, K] or [N]; without `left`, X of X @ x = other [..., K, N]. In log2(N) steps:
        inverses of twice as large diagonal blocks."""
        other = as_tensor("solve_triangular", self._operand(other))
        if not left and min(self.ndim, other.ndim) > 1:
            across = self.transpose(-1, -2).solve_triangular(other.transpose(-1, -2), upper=not upper,
                                                             unitriangular=unitriangular)
            return across.transpose(-1, -2)
        if self.ndim < 2 or self.shape[-1] != self.shape[-2] or self.shape[-2:-1] != (
                other.shape[-2:-1] if other.ndim > 1 else other.shape):
            raise ShapeError(f"[solve_triangular] expected [..., N, N] and [..., N, K] or [N], got {list(self.shape)} "
                             f"and {list(other.shape)}")
        lower = (self.transpose(-1, -2) if upper else self)._in_double()
        inverse = lower._triangular_inverse(unitriangular)
        found = (inverse.transpose(-1, -2) if upper else inverse).dot(other._in_double())
        return found.cast(promote(self._as_float().dtype, other.dtype))

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
        found = self._wrap(build(wide.node), wide).cast(x.dtype)
        return found.reshape(*x.shape[:-2], *found.shape[1:])


def sizes_of_matrices(name: str, x: Base) -> tuple[int, int]:
    """(M, N) of x [..., M, N]. Raises ShapeError."""
    if x.ndim < 2:
        raise ShapeError(f"[{name}] expected matrices, got {list(x.shape)}")
    return x._known_length(name, x.ndim - 2), x._known_length(name, x.ndim - 1)


def epsilon(dtype: DType) -> float:
    """The distance of 1 to the next number of a float type."""
    return {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype.name, 2.0**-23)
