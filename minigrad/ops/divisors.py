"""The greatest common divisor, as a composite."""
from __future__ import annotations

import math

from minigrad.dtype import int32, uint32, uint64
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply


def _gcd(x: Node, y: Node) -> Node:
    """Euclid's algorithm with the least absolute remainder: each step divides the smaller number by 1 + sqrt(2) at
    least, which bounds their count."""
    kind = x.dtype
    a, b = _size(x), _size(y)
    zero = B.full_like(a, 0)
    for _ in range(math.ceil(kind.bits * math.log(2) / math.log(1 + math.sqrt(2))) + 2):
        rest = B.mod(a, b)  # 0 by 0
        a, b = B.where(B.eq(b, zero), a, b), B.minimum(rest, B.sub(b, rest))
    return B.cast(a if kind.kind == "u" else B.bitcast(a, kind if kind.bits == 64 else int32), kind)


def _size(x: Node) -> Node:
    """|x| in an unsigned type, which has that of the least number too."""
    if x.dtype.kind == "u":
        return x if x.dtype.bits >= 32 else B.cast(x, uint32)
    wide = x if x.dtype.bits >= 32 else B.cast(x, int32)
    size = B.where(B.lt(wide, B.full_like(wide, 0)), B.neg(wide), wide)
    return B.bitcast(size, uint64 if wide.dtype.bits == 64 else uint32)


GCD = composite("gcd", lambda shapes, dtypes: (shapes[0], dtypes[0]), _gcd, lambda node, g: (None, None))


def gcd(x: Node, y: Node) -> Node:
    """Of integers; gcd(0, 0) is 0."""
    return apply(GCD, x, y)
