"""LU factors with pivots, and what was computed elsewhere with a gradient by hand: LU factors and pseudo-inverses."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.decompositions import inverse, pivot_of
from minigrad.ops.matrices import after, at, filled, identity, is_, kept, product, ramp, steps, transposed
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape


def _eliminated(x: Node) -> Node:
    """[batch, m + 1, n + 1] of x [batch, m, n]: L below the diagonal and U, and numbers: in the last row the place of
    the pivot of each step, in the last column which row of x stands in each."""
    rows: Any = x.shape[1]
    columns: Any = x.shape[2]
    wide = B.pad(x, ((0, 0), (0, 1), (0, 1)))
    m = kept(B.where(B.eq(ramp(wide, 2), filled_int(wide, columns)), B.cast(ramp(wide, 1), wide.dtype), wide))
    last = B.eq(ramp(m, 1), filled_int(m, rows))
    for k in steps(m, min(rows, columns)):
        place, row, other = pivot_of(m, k, rows)
        swapped = B.where(B.eq(ramp(m, 1), B.expand(place, m.shape)), B.expand(other, m.shape),
                          B.where(is_(m, k, 1), B.expand(row, m.shape), m))
        column, pivot = at(swapped, k, 2), at(row, k, 2)
        none = B.eq(pivot, filled(pivot, 0))
        under = B.and_(after(column, k, 1), B.lt(ramp(column, 1), filled_int(column, rows)))
        share = B.div(column, B.expand(B.where(none, filled(pivot, 1), pivot), column.shape))
        factor = B.expand(B.where(under, share, filled(column, 0)), m.shape)
        inside = B.and_(after(m, k, 2), B.lt(ramp(m, 2), filled_int(m, columns)))
        rest = B.where(inside, B.sub(swapped, B.mul(factor, B.expand(row, m.shape))), swapped)
        done = B.where(B.and_(is_(m, k, 2), B.expand(under, m.shape)), factor, rest)
        m = kept(B.where(B.and_(last, is_(m, k, 2)), B.expand(B.cast(place, m.dtype), m.shape), done))
    return m


def filled_int(x: Node, value: int) -> Node:
    return B.full_like(ramp(x, 0), value)


def _lu_vjp(node: Node, g: Node) -> tuple[Node, None]:
    """L^-T (tril(L^T gL, -1) + triu(gU U^T)) U^-T (S. Walter and L. Lehmann, 2010)."""
    strict = B.lt(ramp(node, 2), ramp(node, 1))
    zero = filled(node, 0)
    left = B.add(B.where(strict, node, zero), identity(node.shape[-1], node))
    right = B.where(strict, zero, node)
    below = product(transposed(left), B.where(strict, g, zero))
    above = product(B.where(strict, zero, g), transposed(right))
    inner = B.where(strict, below, above)
    return product(transposed(inverse(left)), inner, transposed(inverse(right))), None


def _pseudo_vjp(node: Node, g: Node) -> tuple[Node, None]:
    """-P^T g P^T + (1 - x P) g^T P P^T + P^T P g^T (1 - P x) (G. Golub and V. Pereyra, 1973)."""
    x, p, back = node.inputs[0], transposed(node), transposed(g)
    mine = product(p, g, p)
    first, second = product(back, node, p), product(p, node, back)
    first = B.sub(first, product(x, node, first))
    second = B.sub(second, product(second, node, x))
    return B.sub(B.add(first, second), mine), None


def _eliminated_infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    batch, rows, columns = shapes[0]
    return (batch, rows + 1, columns + 1), dtypes[0]


def _second(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    return shapes[1], dtypes[1]


ELIMINATED = composite("eliminated", _eliminated_infer, _eliminated, None)
LU = composite("lu", _second, lambda x, found: found, _lu_vjp)
PSEUDO_INVERSE = composite("pseudo_inverse", _second, lambda x, found: found, _pseudo_vjp)


def eliminated(x: Node) -> Node:
    """[[LU, order], [pivots, 0]] of matrices [batch, m, n]: [batch, m + 1, n + 1]. Without a gradient."""
    return apply(ELIMINATED, x)


def lu(x: Node, found: Node) -> Node:
    """`found`, the factors in one matrix, with the gradient that they have as those of x [batch, n, n]."""
    return apply(LU, x, found)


def pseudo_inverse(x: Node, found: Node) -> Node:
    """`found` [batch, n, m], with the gradient that it has as the pseudo-inverse of x [batch, m, n]."""
    return apply(PSEUDO_INVERSE, x, found)


FACTORS = (ELIMINATED, LU, PSEUDO_INVERSE)
