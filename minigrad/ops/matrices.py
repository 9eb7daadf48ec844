"""Helpers for loops over matrices [batch, m, n]."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minigrad.dtype import int32
from minigrad.ops import build as B
from minigrad.ops import products
from minigrad.ops.node import Node, apply
from minigrad.ops.storage import CONTIGUOUS


def kept(x: Node) -> Node:
    return apply(CONTIGUOUS, x)


def ramp(x: Node, axis: int) -> Node:
    """0, 1, ... along one axis of x, in its shape."""
    line = B.reshape(B.iota(x.shape[axis], x.device), tuple([d if a == axis else 1 for a, d in enumerate(x.shape)]))
    return B.expand(line, x.shape)


def filled(x: Node, value: float) -> Node:
    return B.full_like(x, value)


def transposed(x: Node) -> Node:
    rank = len(x.shape)
    return B.permute(x, (*range(rank - 2), rank - 1, rank - 2))


def product(*factors: Node) -> Node:
    result = factors[0]
    for f in factors[1:]:
        result = products.matmul(result, f, result.dtype)
    return result


def cut(x: Node, axis: int, start: Any, stop: Any) -> Node:
    starts = tuple([start if a == axis else 0 for a in range(len(x.shape))])
    stops = tuple([stop if a == axis else d for a, d in enumerate(x.shape)])
    return B.slice_(x, starts, stops)


def identity(n: Any, like: Node) -> Node:
    """[batch, n, n] of the batch and type of `like`."""
    rows = B.expand(B.reshape(B.iota(n, like.device), (n, 1)), (n, n))
    columns = B.expand(B.reshape(B.iota(n, like.device), (1, n)), (n, n))
    return B.expand(B.cast(B.eq(rows, columns), like.dtype), (*like.shape[:-2], n, n))


def lower(m: Node) -> Node:
    return B.where(B.le(ramp(m, 2), ramp(m, 1)), m, filled(m, 0))


def mirrored(m: Node) -> Node:
    """The lower triangle, and it again above the diagonal."""
    strict = B.lt(ramp(m, 2), ramp(m, 1))
    return B.add(lower(m), transposed(B.where(strict, m, filled(m, 0))))


# Steps of a loop over columns


def steps(x: Node, count: int) -> Iterator[Node]:
    """0, 1, ... as int32 [1, 1, 1], each counted from the one before it."""
    k = kept(B.full(0, (1, 1, 1), int32, x.device))
    for _ in range(count):
        yield k
        k = kept(B.add(k, B.full_like(k, 1)))


def at(x: Node, k: Node, axis: int) -> Node:
    """The slice k of one axis, of length 1 there."""
    return B.gather(x, B.expand(k, tuple([1 if a == axis else d for a, d in enumerate(x.shape)])), axis)


def is_(x: Node, k: Node, axis: int) -> Node:
    """True where the index along an axis is k."""
    return B.eq(ramp(x, axis), B.expand(k, x.shape))


def from_(x: Node, k: Node, axis: int) -> Node:
    """True where the index along an axis is k or more."""
    return B.le(B.expand(k, x.shape), ramp(x, axis))


def after(x: Node, k: Node, axis: int) -> Node:
    """True where the index along an axis is more than k."""
    return B.lt(B.expand(k, x.shape), ramp(x, axis))
