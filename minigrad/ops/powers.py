"""Powers of integers, as a composite."""
from __future__ import annotations

from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply


def _power(x: Node, y: Node) -> Node:
    """By squaring, modulo 2 to the number of bits; with a negative exponent 0 unless x is 1 or -1."""
    kind = x.dtype
    zero, one = B.full_like(x, 0), B.full_like(x, 1)
    result, base = one, x
    for k in range(kind.bits - (kind.kind == "i")):
        taken = B.and_(B.shr(y, B.full_like(y, k)), one)
        result = B.where(B.eq(taken, zero), result, B.mul(result, base))
        base = B.mul(base, base)
    if kind.kind == "u":
        return result
    sign = B.where(B.eq(x, one), one, B.where(B.eq(x, B.full_like(x, -1)), result, zero))  # of -1 the last bit decides
    return B.where(B.lt(y, zero), sign, result)


POWER = composite("integer_power", lambda shapes, dtypes: (shapes[0], dtypes[0]), _power, lambda node, g: (None, None))


def power(x: Node, y: Node) -> Node:
    """x ** y of integers of one type; it may overflow, and wraps."""
    return apply(POWER, x, y)
