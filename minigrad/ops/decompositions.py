"""Inverse, determinant, Cholesky's and Householder's factors of matrices, as composites with gradients by hand.

Each is a loop over columns on the whole matrix. The number k of a step is data, counted in memory, and what is done
there are masks and gathers at k, so that all steps run the same programs: a matrix of any size compiles as fast as a
small one. Work is 4 n**3 for the inverse, where a routine that shrinks the matrix does half of it; a step is two to
four launches.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType, int32
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.matrices import (
    after,
    at,
    cut,
    filled,
    from_,
    identity,
    is_,
    kept,
    lower,
    mirrored,
    product,
    ramp,
    steps,
    transposed,
)
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

Matrices = Sequence[Shape]


def _joined(x: Node, y: Node) -> Node:
    """[x | y] along the last axis."""
    none = ((0, 0),) * (len(x.shape) - 1)
    left, right = B.pad(x, (*none, (0, y.shape[-1])), -0.0), B.pad(y, (*none, (x.shape[-1], 0)), -0.0)
    return B.add(left, right)


# Elimination


def pivot_of(m: Node, k: Node, n: int) -> tuple[Node, Node, Node]:
    """(the row of rows k..n-1 with the largest element in column k, int32 [batch, 1, 1]; that row; row k)."""
    column = B.abs_(at(m, k, 2))
    order = ramp(column, 1)
    eligible = B.and_(from_(column, k, 1), B.lt(order, filled(order, n)))
    score = B.where(eligible, column, filled(column, -1))
    best = B.expand_reduced(B.max(score, (1,)), score.shape, (1,))
    first = B.min(B.where(B.eq(score, best), order, filled(order, n - 1)), (1,))
    place = kept(B.reshape(first, (m.shape[0], 1, 1)))
    row = B.gather(m, B.expand(place, (m.shape[0], 1, m.shape[2])), 1)
    return place, row, at(m, k, 1)


def _eliminated(m: Node, k: Node, place: Node, row: Node, other: Node, scaled: Node) -> Node:
    """Rows k and `place` exchanged, `scaled` as row k, and a multiple of it taken from all others."""
    swapped = B.where(B.eq(ramp(m, 1), B.expand(place, m.shape)), B.expand(other, m.shape), m)
    factor = B.expand(at(swapped, k, 2), m.shape)
    rest = B.sub(swapped, B.mul(factor, B.expand(scaled, m.shape)))
    return B.where(is_(m, k, 1), B.expand(scaled, m.shape), rest)


def _inverse(x: Node) -> Node:
    """Gauss and Jordan's elimination of [x | 1], with the largest pivots."""
    n: Any = x.shape[-1]
    m = kept(_joined(x, identity(n, x)))
    for k in steps(m, n):
        place, row, other = pivot_of(m, k, n)
        scaled = B.div(row, B.expand(at(row, k, 2), row.shape))
        m = kept(_eliminated(m, k, place, row, other, scaled))
    return cut(m, 2, n, 2 * n)


def _inverse_vjp(node: Node, g: Node) -> tuple[Node]:
    back = transposed(node)
    return (B.neg(product(back, g, back)),)


def _pivots(x: Node) -> Node:
    """The pivots of Gauss's elimination [batch, n], the sign of each exchange with them: their product is the
    determinant. They are kept in a row below the matrix."""
    n: Any = x.shape[-1]
    m = kept(B.pad(x, ((0, 0), (0, 1), (0, 0)), 1))
    order = ramp(m, 1)
    below = B.eq(order, filled(order, n))
    for k in steps(m, n):
        place, row, other = pivot_of(m, k, n)
        pivot = at(row, k, 2)
        none = B.eq(pivot, filled(pivot, 0))
        safe = B.expand(B.where(none, filled(pivot, 1), pivot), row.shape)
        scaled = B.div(row, safe)
        signed = B.where(B.eq(place, B.expand(k, place.shape)), pivot, B.neg(pivot))
        done = _eliminated(m, k, place, row, other, scaled)
        last = B.where(is_(m, k, 2), B.expand(signed, m.shape), m)
        m = kept(B.where(below, last, done))
    return B.reshape(cut(m, 1, n, n + 1), (x.shape[0], n))


def _det(x: Node) -> Node:
    return B.prod(pivots(x), (1,))


def _det_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    return (B.mul(B.expand(B.reshape(g, (x.shape[0], 1, 1)), x.shape), transposed(apply(ADJUGATE, x))),)


def _log_det(x: Node) -> Node:
    return B.sum(B.log(B.abs_(pivots(x))), (1,))


def _log_det_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    return (B.mul(B.expand(B.reshape(g, (x.shape[0], 1, 1)), x.shape), transposed(inverse(x))),)


def _adjugate(x: Node) -> Node:
    """det(x) times the inverse, which is finite for singular matrices, too: elimination of [x | 1] with the largest of
    all elements that are left as the pivot, the last of which nothing is divided by. No rows and columns are exchanged:
    x becomes a permutation."""
    n: Any = x.shape[-1]
    m = kept(_joined(x, identity(n, x)))
    scale = kept(B.full(1, (x.shape[0], 1, 1), x.dtype, x.device))
    places = filled(x, 0)  # 1 where pivots were
    for step in range(n):
        row, column, free = _largest(cut(m, 2, 0, n), places)
        along = B.gather(m, B.expand(row, (x.shape[0], 1, 2 * n)), 1)
        pivot, here = at(along, column, 2), is_(m, row, 1)
        none, factor = B.eq(pivot, filled(pivot, 0)), B.expand(at(m, column, 2), m.shape)
        last = step == n - 1
        divisor = filled(pivot, 1) if last else B.where(none, filled(pivot, 1), pivot)
        scaled = B.expand(B.div(along, B.expand(divisor, along.shape)), m.shape)
        others = B.mul(m, B.expand(pivot, m.shape)) if last else m
        crossed = B.ne(B.lt(ramp(x, 1), B.expand(row, x.shape)), B.lt(ramp(x, 2), B.expand(column, x.shape)))
        # How many pivots this one is exchanged with, by which the sign changes.
        count = B.cast(B.sum(B.where(crossed, places, filled(x, 0)), (1, 2)), int32)
        even = B.eq(B.and_(count, filled(count, 1)), filled(count, 0))
        signed = B.where(B.reshape(even, scale.shape), scale, B.neg(scale))
        scale = kept(signed if last else B.mul(signed, pivot))
        places = kept(B.where(free, filled(x, 1), places))
        m = kept(B.where(here, scaled, B.sub(others, B.mul(factor, scaled))))
    return B.mul(product(transposed(places), cut(m, 2, n, 2 * n)), B.expand(scale, x.shape))


def _largest(x: Node, places: Node) -> tuple[Node, Node, Node]:
    """(row, column) int32 [batch, 1, 1] of the largest element of x [batch, n, n] outside the rows and columns of
    places that are 1, and True there."""
    n: Any = x.shape[-1]
    taken = B.add(*[B.expand_reduced(B.sum(places, (a,)), x.shape, (a,)) for a in (1, 2)])
    score = B.where(B.eq(taken, filled(x, 0)), B.abs_(x), filled(x, -1))
    best = B.expand_reduced(B.max(score, (1, 2)), score.shape, (1, 2))
    order = B.add(B.mul(ramp(x, 1), filled(ramp(x, 1), n)), ramp(x, 2))
    first = B.min(B.where(B.eq(score, best), order, filled(order, n * n - 1)), (1, 2))
    place = kept(B.reshape(first, (x.shape[0], 1, 1)))
    size = filled(place, n)
    return B.floordiv(place, size), B.mod(place, size), B.eq(order, B.expand(place, x.shape))


def _adjugate_vjp(node: Node, g: Node) -> tuple[Node]:
    """Of matrices that have an inverse."""
    x = node.inputs[0]
    back, across = transposed(inverse(x)), transposed(node)
    total = B.expand_reduced(B.sum(B.mul(g, inverse(x)), (1, 2)), x.shape, (1, 2))
    return (B.sub(B.mul(total, across), product(back, g, across)),)


# Cholesky


def _cholesky(x: Node) -> Node:
    """Columns from left to right, each taken from all that follow it. What is above the diagonal is never read."""
    n: Any = x.shape[-1]
    m = kept(x)
    for k in steps(m, n):
        column = at(m, k, 2)
        root = B.sqrt(at(column, k, 1))
        down = B.where(from_(column, k, 1), B.div(column, B.expand(root, column.shape)), filled(column, 0))
        across = transposed(B.where(is_(column, k, 1), filled(column, 0), down))
        rest = B.sub(m, B.mul(B.expand(down, m.shape), B.expand(across, m.shape)))
        m = kept(B.where(is_(m, k, 2), B.expand(down, m.shape), rest))
    return lower(m)


def _half_lower(m: Node) -> Node:
    """The lower triangle with half of the diagonal."""
    same = B.eq(ramp(m, 2), ramp(m, 1))
    return B.where(same, B.mul(m, filled(m, 0.5)), lower(m))


def _cholesky_vjp(node: Node, g: Node) -> tuple[Node]:
    """I. Murray, "Differentiation of the Cholesky decomposition", 2016."""
    back = inverse(node)
    inner = _half_lower(product(transposed(node), lower(g)))
    s = product(transposed(back), inner, back)
    return (B.mul(B.add(s, transposed(s)), filled(s, 0.5)),)


# Householder


def _reflected(x: Node) -> Node:
    """[R | Q.T] of x [batch, m, n] = Q R: reflections of [x | 1], LAPACK's signs."""
    rows: Any = x.shape[1]
    columns: Any = x.shape[2]
    m = kept(_joined(x, identity(rows, x)))
    for k in steps(m, min(rows - 1, columns)):
        column = at(m, k, 2)
        zero = filled(column, 0)
        below = B.sum(B.where(after(column, k, 1), B.mul(column, column), zero), (1,))
        below = B.reshape(below, (x.shape[0], 1, 1))
        head = at(column, k, 1)
        norm = B.sqrt(B.add(below, B.mul(head, head)))
        away = B.where(B.lt(head, filled(head, 0)), B.neg(norm), norm)
        first = B.expand(B.add(head, away), column.shape)
        v = B.where(is_(column, k, 1), first, B.where(from_(column, k, 1), column, zero))
        length = B.add(below, B.mul(B.add(head, away), B.add(head, away)))
        done = B.eq(below, filled(below, 0))
        scale = B.where(done, filled(below, 0), B.div(filled(below, 2), B.where(done, filled(below, 1), length)))
        v, scale = kept(v), kept(scale)
        wide = B.expand(v, m.shape)
        along = B.expand_reduced(B.sum(B.mul(wide, m), (1,)), m.shape, (1,))
        m = kept(B.sub(m, B.mul(wide, B.mul(B.expand(scale, m.shape), along))))
    return m


def _q(x: Node) -> Node:
    m = _reflected(x)
    rows, columns = x.shape[1:]
    count = min(int(rows), int(columns))
    return transposed(cut(cut(m, 2, columns, columns + rows), 1, 0, count))


def _r(x: Node) -> Node:
    count = min(int(x.shape[1]), int(x.shape[2]))
    top = cut(cut(_reflected(x), 2, 0, x.shape[2]), 1, 0, count)
    return B.where(B.le(ramp(top, 1), ramp(top, 2)), top, filled(top, 0))


def _behind(x: Node, inner: Node) -> Node:
    """inner @ R^-T."""
    return product(inner, transposed(inverse(r_of(x))))


def _q_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    m = B.neg(product(transposed(g), node))
    return (_behind(x, B.add(g, product(node, mirrored(m)))),)


def _r_vjp(node: Node, g: Node) -> tuple[Node]:
    """Of tall and square matrices (Walter and Lehmann 2013); `mixins.decompositions` sees to it."""
    x = node.inputs[0]
    return (_behind(x, product(q_of(x), mirrored(product(node, transposed(g))))),)


def _q_infer(shapes: Matrices, dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    batch, rows, columns = shapes[0]
    return (batch, rows, min(int(rows), int(columns))), dtypes[0]


def _r_infer(shapes: Matrices, dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    batch, rows, columns = shapes[0]
    return (batch, min(int(rows), int(columns)), columns), dtypes[0]


INVERSE = composite("inverse", lambda shapes, dtypes: (shapes[0], dtypes[0]), _inverse, _inverse_vjp)
PIVOTS = composite("pivots", lambda shapes, dtypes: (shapes[0][:2], dtypes[0]), _pivots, lambda node, g: (None,))
DET = composite("det", lambda shapes, dtypes: (shapes[0][:1], dtypes[0]), _det, _det_vjp)
LOG_DET = composite("log_det", lambda shapes, dtypes: (shapes[0][:1], dtypes[0]), _log_det, _log_det_vjp)
ADJUGATE = composite("adjugate", lambda shapes, dtypes: (shapes[0], dtypes[0]), _adjugate, _adjugate_vjp)
CHOLESKY = composite("cholesky", lambda shapes, dtypes: (shapes[0], dtypes[0]), _cholesky, _cholesky_vjp)
QR_Q = composite("qr_q", _q_infer, _q, _q_vjp)
QR_R = composite("qr_r", _r_infer, _r, _r_vjp)


def inverse(x: Node) -> Node:
    """Of matrices [batch, n, n]; of singular ones infinities or NaN."""
    return apply(INVERSE, x)


def pivots(x: Node) -> Node:
    """[batch, n], whose product is the determinant of matrices [batch, n, n]. Without a gradient."""
    return apply(PIVOTS, x)


def det(x: Node) -> Node:
    """The determinants [batch] of matrices [batch, n, n]."""
    return apply(DET, x)


def log_det(x: Node) -> Node:
    """The logarithms [batch] of the sizes of determinants."""
    return apply(LOG_DET, x)


def cholesky(x: Node) -> Node:
    """L of symmetric positive definite matrices [batch, n, n] = L @ L.T; NaN of others."""
    return apply(CHOLESKY, x)


def q_of(x: Node) -> Node:
    """Orthonormal columns [batch, m, min(m, n)] of matrices [batch, m, n] = Q @ R."""
    return apply(QR_Q, x)


def r_of(x: Node) -> Node:
    """The upper triangle [batch, min(m, n), n] of matrices [batch, m, n] = Q @ R."""
    return apply(QR_R, x)


DECOMPOSITIONS = (INVERSE, PIVOTS, DET, LOG_DET, ADJUGATE, CHOLESKY, QR_Q, QR_R)
