"""Eigenvalues and eigenvectors of symmetric matrices by Jacobi's rotations, as a composite with its gradient by hand.

In each round all neighbours (0, 1), (2, 3), ... are rotated so that the element between the two is 0, and then rows and
columns change places so that after n - 1 rounds, a sweep, every two have been neighbours (R. Brent and F. Luk, 1985).
All rounds are the same two kernels. The size of the matrix decides the number of sweeps: off the diagonal is then
nothing but rounding, as each sweep squares what is left.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType, float64, int32
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.matrices import cut, filled, identity, kept, mirrored, product, ramp, transposed
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape


def _line(count: int, device: str) -> Node:
    return B.iota(count, device)


def _beside(places: Node) -> Node:
    """The places of the other one of each two neighbours."""
    return B.xor(places, B.full_like(places, 1))


def _next(n: int, device: str) -> Node:
    """The row that comes to each place after a round: the first stays, the others go round."""
    i, two = _line(n, device), B.full(2, (n,), int32, device)
    even = B.eq(B.and_(i, B.full_like(i, 1)), B.full_like(i, 0))
    first = B.lt(i, two)
    down = B.where(first, B.full_like(i, 0), B.where(B.eq(i, two), B.full_like(i, 1), B.sub(i, two)))
    up = B.where(B.eq(i, B.full_like(i, n - 1)), B.full_like(i, max(n - 2, 0)), B.add(i, two))
    return i if n == 2 else B.where(even, down, up)


def _taken(x: Node, places: Node, axis: int) -> Node:
    """Slices of an axis of [batch, ., .] in another order."""
    shape = tuple([places.shape[0] if a == axis else d for a, d in enumerate(x.shape)])
    line = B.reshape(places, tuple([places.shape[0] if a == axis else 1 for a in range(3)]))
    return B.gather(x, B.expand(line, shape), axis)


def _rotations(m: Node, n: int) -> Node:
    """[batch, 2, n] of the matrix above in m [batch, 2n, n]: the cosine of each column's rotation, and the sine with
    the sign by which the column beside it counts (H. Rutishauser 1966). What is 0 but for rounding is left alone."""
    a = cut(m, 1, 0, n)
    batch: Any = m.shape[0]
    own = B.reshape(_line(n, m.device), (1, n, 1))
    own = B.expand(own, (batch, n, 1))
    diagonal = B.gather(a, own, 2)
    between = B.gather(a, _beside(own), 2)
    beside = _beside(_line(n, m.device))
    other = _taken(diagonal, beside, 1)
    between = B.mul(B.add(between, _taken(between, beside, 1)), filled(between, 0.5))  # else the angles of both differ
    one, zero = filled(diagonal, 1), filled(diagonal, 0)
    odd = B.ne(B.and_(own, B.full_like(own, 1)), B.full_like(own, 0))
    apart = B.sub(diagonal, other)
    tau = B.div(B.where(odd, apart, B.neg(apart)), B.add(between, between))
    t = B.div(one, B.add(B.abs_(tau), B.sqrt(B.add(B.mul(tau, tau), one))))
    t = B.where(B.lt(tau, zero), B.neg(t), t)
    least = filled(between, 2.0**-56 if m.dtype is float64 else 2.0**-27)  # the largest element is 1
    t = B.where(B.le(B.abs_(between), least), zero, t)
    cosine = B.div(one, B.sqrt(B.add(B.mul(t, t), one)))
    sine = B.mul(B.where(odd, t, B.neg(t)), cosine)
    pair = B.add(B.pad(cosine, ((0, 0), (0, 0), (0, 1))), B.pad(sine, ((0, 0), (0, 0), (1, 0))))
    return kept(transposed(pair))


def _round(m: Node, n: int) -> Node:
    """Of [A over V]: A rotated from both sides and V from the right, rows of A and columns in their next places."""
    found = _rotations(m, n)
    order = _next(n, m.device)
    rotations = _taken(found, order, 2)
    cosine, sine = (B.expand(cut(rotations, 1, k, k + 1), m.shape) for k in (0, 1))
    columns = B.add(B.mul(_taken(m, order, 2), cosine), B.mul(_taken(m, _beside(order), 2), sine))
    above = cut(columns, 1, 0, n)
    cosine, sine = (B.expand(transposed(cut(rotations, 1, k, k + 1)), above.shape) for k in (0, 1))
    above = B.add(B.mul(_taken(above, order, 1), cosine), B.mul(_taken(above, _beside(order), 1), sine))
    none = ((0, 0), (0, n), (0, 0))
    below = B.pad(cut(columns, 1, n, 2 * n), ((0, 0), (n, 0), (0, 0)), -0.0)
    return kept(B.add(B.pad(above, none, -0.0), below))


def _eigen(x: Node) -> Node:
    """[w over V]. A matrix of odd size gets a row and a column of zeros more, which no rotation touches."""
    size: Any = x.shape[-1]
    batch: Any = x.shape[0]
    n = size + size % 2
    a = mirrored(x)
    top = B.reshape(B.max(B.abs_(a), (1, 2)), (batch, 1, 1))
    scale = B.where(B.eq(top, filled(top, 0)), filled(top, 1), top)
    a = B.pad(B.div(a, B.expand(scale, a.shape)), ((0, 0), (0, n - size), (0, n - size)))
    m = B.add(B.pad(a, ((0, 0), (0, n), (0, 0)), -0.0), B.pad(identity(n, a), ((0, 0), (n, 0), (0, 0)), -0.0))
    m = kept(m)
    sweeps = (6 if x.dtype is float64 else 3) + (n - 1).bit_length()
    for _ in range(sweeps * (n - 1)):
        m = _round(m, n)
    own = B.expand(B.reshape(_line(n, x.device), (1, n, 1)), (batch, n, 1))
    values = transposed(B.gather(cut(m, 1, 0, n), own, 2))
    vectors = cut(m, 1, n, 2 * n)
    extra = B.ne(cut(vectors, 1, n - 1, n), filled(values, 0)) if n > size else None
    keys = values if extra is None else B.where(extra, filled(values, float("inf")), values)
    places = kept(_ascending(keys))
    both = B.add(B.pad(B.mul(values, B.expand(scale, values.shape)), ((0, 0), (0, n), (0, 0)), -0.0),
                 B.pad(vectors, ((0, 0), (1, 0), (0, 0)), -0.0))
    ordered = B.gather(both, B.expand(places, both.shape), 2)
    return cut(cut(ordered, 1, 0, size + 1), 2, 0, size)


def _ascending(keys: Node) -> Node:
    """Of [batch, 1, n]: the index of the smallest, of the next, ...: int32 [batch, 1, n]. Equal ones keep their order.
    """
    batch, _, n = keys.shape
    across = B.expand(keys, (batch, n, n))
    down = B.expand(transposed(keys), (batch, n, n))
    first = B.lt(ramp(across, 1), ramp(across, 2))
    before = B.or_(B.lt(down, across), B.and_(B.eq(down, across), first))
    rank = B.reshape(B.sum(B.cast(before, int32), (1,)), (batch, n, 1))
    hit = B.eq(B.expand(rank, (batch, n, n)), ramp(across, 2))
    place = ramp(across, 1)
    return B.reshape(B.sum(B.where(hit, place, B.full_like(place, 0)), (1,)), (batch, 1, n))


def _eigen_vjp(node: Node, g: Node) -> tuple[Node]:
    """V (diag(dw) + F * (V.T dV)) V.T with F[i, j] = 1 / (w[j] - w[i]), made symmetric: infinite for vectors of equal
    eigenvalues, and 0 where these have no gradient."""
    n: Any = node.shape[-1]
    values, vectors = cut(node, 1, 0, 1), cut(node, 1, 1, n + 1)
    along = B.expand(values, vectors.shape)
    apart = B.sub(along, transposed(along))
    change = product(transposed(vectors), cut(g, 1, 1, n + 1))
    same = B.eq(apart, filled(apart, 0))
    degenerate = B.where(B.eq(change, filled(change, 0)), change, filled(change, float("inf")))
    inner = B.where(same, degenerate, B.div(change, B.where(same, filled(apart, 1), apart)))
    diagonal = B.eq(ramp(inner, 1), ramp(inner, 2))
    inner = B.where(diagonal, B.expand(cut(g, 1, 0, 1), inner.shape), inner)
    back = product(vectors, inner, transposed(vectors))
    return (B.mul(B.add(back, transposed(back)), filled(back, 0.5)),)


def _eigen_infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    batch, rows, columns = shapes[0]
    return (batch, rows + 1, columns), dtypes[0]


EIGEN = composite("eigen", _eigen_infer, _eigen, _eigen_vjp)


def eigen(x: Node) -> Node:
    """Of symmetric matrices [batch, n, n], n >= 1, of which the lower triangle counts: [batch, n + 1, n], the
    eigenvalues in ascending order over columns of eigenvectors."""
    return apply(EIGEN, x)
