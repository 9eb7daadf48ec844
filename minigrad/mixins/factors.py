"""LU factors and Householder's reflections in LAPACK's form, and what is solved and multiplied with them."""
from __future__ import annotations

from typing import Any, Self

from minigrad.dtype import int32
from minigrad.errors import ShapeError, quantity
from minigrad.mixins.base import Base, as_tensor
from minigrad.mixins.decompositions import sizes_of_matrices
from minigrad.ops import build as B
from minigrad.ops.factors import eliminated, lu


class FactorMixin(Base):
    """Matrices are the last two axes, of known sizes."""

    __slots__ = ()

    # LU

    def lu(self, pivot: bool = True, get_infos: bool = False) -> tuple[Self, ...]:
        """(LU [..., M, N], pivots int32 [..., K]) of matrices [..., M, N]: L below the diagonal of ones, U above and on
        it, K = min(M, N), and which row, counted from 1, each row was exchanged with, in this order. With `get_infos`
        also which pivot is the first that is 0, counted from 1, or 0. The gradient is there where none is 0."""
        factors, pivots, _ = self._lu(pivot)
        if not get_infos:
            return factors, pivots
        none = factors.detach().diagonal(0, -2, -1).eq(0)
        return factors, pivots, none.any(-1).where(none.argmax(-1) + 1, 0) if none.shape[-1] else none.sum(-1).int()

    def _lu(self, pivot: bool = True) -> tuple[Self, Self, Self]:
        """(LU, pivots, the row of x that each row of L @ U is, int32 [..., M])."""
        if not pivot:
            raise ShapeError("[lu] expected pivot=True: not all matrices have factors without exchanges of rows")
        rows, columns = sizes_of_matrices("lu", self)
        x, count, batch = self._as_float(), min(rows, columns), self.shape[:-2]
        if 0 in self.shape:
            order = type(self).arange(rows, device=self.device).expand(*batch, rows)
            return x, order[..., :count] + 1, order
        wide = x.cast(x.dtype.compute).reshape(B.numel(batch), rows, columns)
        both = self._wrap(eliminated(wide.detach().node))
        pivots = both[:, rows, :count].int().reshape(*batch, count) + 1
        order = both[:, :rows, columns].int()
        found = wide.take_along_dim(order.unsqueeze(-1), 1)._lu_of_ordered(both[:, :rows, :columns], count)
        return found.reshape(*self.shape).cast(x.dtype), pivots, order.reshape(*batch, rows)

    def _lu_of_ordered(self, found: Self, count: int) -> Self:
        """The factors `found` of [batch, M, N], with their gradient: of the first K rows and columns, L^-1 of what is
        right of these and U^-1 of what is below them."""
        corner = self[:, :count, :count]
        factors = self._wrap(lu(corner.node, found[:, :count, :count].detach().node), corner)
        if self.shape[2] != count:
            right = factors.solve_triangular(self[:, :count, count:], upper=False, unitriangular=True)
            return factors.cat(right, dim=-1)
        if self.shape[1] != count:
            return factors.cat(factors.solve_triangular(self[:, count:, :count], upper=True, left=False), dim=-2)
        return factors

    def lu_unpack(self, pivots: Self, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Self, Self, Self]:
        """(P [..., M, M], L [..., M, K], U [..., K, N]) of `lu`'s result, whose product is what was decomposed. What is
        not to be unpacked is empty."""
        rows, columns = sizes_of_matrices("lu_unpack", self)
        count, empty = min(rows, columns), self.zeros(0, dtype=self.dtype, device=self.device)
        p, low, up = empty, empty, empty
        if unpack_pivots:
            p = self.eye(rows, dtype=self.dtype, device=self.device)[_order_of(pivots, rows)].transpose(-1, -2)
        if unpack_data:
            low = self[..., :count].tril(-1) + self.eye(rows, count, dtype=self.dtype, device=self.device)
            up = self[..., :count, :].triu()
        return p, low, up

    def lu_solve(self, LU_data: Self, LU_pivots: Self, *, left: bool = True, adjoint: bool = False) -> Self:
        """X of A @ X = x, for x [..., N, K] and the result of `A.lu()`; of A.T with `adjoint`, and X of X @ A = x,
        [..., K, N], without `left`."""
        factors = as_tensor("lu_solve", LU_data)
        rows, columns = sizes_of_matrices("lu_solve", factors)
        if rows != columns or self.ndim < 2 or self.shape[-2 if left else -1] != rows:
            raise ShapeError(f"[lu_solve] expected factors [..., N, N] and {'[..., N, K]' if left else '[..., K, N]'}, "
                             f"got {list(factors.shape)} and {list(self.shape)}")
        if not left:  # (X A)^T = A^T X^T
            return self.transpose(-1, -2).lu_solve(factors, LU_pivots, adjoint=not adjoint).transpose(-1, -2)
        p = factors.lu_unpack(LU_pivots, False)[0]
        if adjoint:
            inner = factors.transpose(-1, -2).solve_triangular(self, upper=False)
            return p.dot(factors.transpose(-1, -2).solve_triangular(inner, upper=True, unitriangular=True))
        inner = factors.solve_triangular(p.transpose(-1, -2).dot(self), upper=False, unitriangular=True)
        return factors.solve_triangular(inner, upper=True)

    def triangular_solve(self, A: Self, upper: bool = True, transpose: bool = False,
                         unitriangular: bool = False) -> tuple[Self, Self]:
        """(X of A @ X = x, A) for x [..., N, K] and a triangle A [..., N, N], of its transpose with `transpose`."""
        a = as_tensor("triangular_solve", A)
        triangle = a.transpose(-1, -2) if transpose and a.ndim > 1 else a
        return triangle.solve_triangular(self, upper=upper != transpose, unitriangular=unitriangular), a

    # Reflections

    def geqrf(self) -> tuple[Self, Self]:
        """(R above and on the diagonal, below it vectors v of reflections 1 - tau v v.T with ones on the diagonal, tau
        [..., K]) of matrices [..., M, N], LAPACK's form of `qr`."""
        rows, columns = sizes_of_matrices("geqrf", self)
        x, count = self._as_float(), min(rows, columns)
        given, x = x.dtype, x.cast(x.dtype.compute)
        down, across = (type(self).arange(n, device=self.device) for n in (rows, columns))
        taus: list[Self] = []
        for k in range(count):
            column = x[..., k]
            under, head = (down > k).where(column, 0), column[..., k:k + 1]
            size = under.square().sum(-1, keepdim=True)
            none = size.eq(0)
            end = none.where(head, (head <= 0).where(1, -1) * (size + head.square()).sqrt())
            tau = none.where(0, (end - head) / none.where(1, end))
            v = down.eq(k).where(1, under / none.where(1, head - end))
            taken = x - (tau * v).unsqueeze(-1) * v.unsqueeze(-2).dot(x)
            rest = (across > k).where(taken, x)
            made = (down > k).where(v, down.eq(k).where(end, column)).unsqueeze(-1)
            x = across.eq(k).where(made, rest).contiguous()
            taus.append(tau)
        tau = taus[0].cat(*taus[1:], dim=-1) if taus else x.sum(-2)[..., :0]
        return x.cast(given), tau.cast(given)

    def orgqr(self, tau: Self) -> Self:
        """The first N columns of the product of the reflections of `geqrf`: Q [..., M, N]."""
        rows, columns = sizes_of_matrices("orgqr", self)
        count: Any = as_tensor("orgqr", tau).shape[-1]
        if rows < columns or tau.shape[:-1] != self.shape[:-2] or count > columns:
            raise ShapeError(f"[orgqr] expected [..., M, N] with M >= N and tau [..., K] with K <= N, got "
                             f"{list(self.shape)} and {list(tau.shape)}")
        start = self.eye(rows, columns, dtype=self.dtype, device=self.device).expand(*self.shape)
        return self._reflect(tau, start, False)

    def ormqr(self, tau: Self, other: Self, left: bool = True, transpose: bool = False) -> Self:
        """Q @ other of the reflections of `geqrf`, whose Q [M, M] is whole, or Q.T with `transpose`, or other @ Q
        without `left`."""
        if not left:
            return self.ormqr(tau, other.transpose(-1, -2), True, not transpose).transpose(-1, -2)
        rows, _ = sizes_of_matrices("ormqr", self)
        if other.ndim < 2 or other.shape[-2] != rows:
            raise ShapeError(f"[ormqr] expected {quantity(rows, 'row')} of what is multiplied, got {list(other.shape)}")
        return self._reflect(tau, other, transpose)

    def _reflect(self, tau: Self, x: Self, forward: bool) -> Self:
        """The reflections of this tensor applied to x, the last one first unless `forward`."""
        rows, _ = sizes_of_matrices("orgqr", self)
        down = type(self).arange(rows, device=self.device)
        count = tau._known_length("orgqr", tau.ndim - 1)
        for k in range(count) if forward else reversed(range(count)):
            v = down.eq(k).where(1, (down > k).where(self[..., k], 0))
            along = v.unsqueeze(-2).dot(x)
            x = (x - (tau[..., k:k + 1] * v).unsqueeze(-1) * along).contiguous()
        return x


def _order_of(pivots: Any, rows: int) -> Any:
    """The row that stands in each place after the exchanges: int32 [..., rows]."""
    swaps = as_tensor("lu_unpack", pivots).cast(int32) - 1
    place = type(swaps).arange(rows, device=swaps.device)
    order = place.expand(*swaps.shape[:-1], rows)
    for k in range(swaps._known_length("lu_unpack", swaps.ndim - 1)):
        other = swaps[..., k:k + 1]
        mine, theirs = order[..., k:k + 1], order.take_along_dim(other, -1)
        order = place.eq(k).where(theirs, place.eq(other).where(mine, order)).contiguous()
    return order
