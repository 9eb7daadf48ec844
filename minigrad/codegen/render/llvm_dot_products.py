"""Sums of four byte products as one instruction: VNNI multiplies unsigned by signed bytes and adds each four in int32.

    (w & 255) * (x << 24 >> 24) + (w >> 8 & 255) * (x << 16 >> 24) + (w >> 16 & 255) * (x << 8 >> 24)
                                + (w >> 24 & 255) * (x >> 24)                      for 32-bit integers w and x
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.dtype import int32
from minigrad.value import Value


@lru_cache(maxsize=1 << 12)
def dot_of(v: Value) -> tuple[Value, Value] | None:
    """(w, x) where the int32 value `v` is that sum, its terms in any order; else None."""
    if v.op != "add" or v.dtype is not int32:
        return None
    terms, stack = [], [v]
    while stack:
        t = stack.pop()
        if t.op == "add":
            stack.extend(t.args)
        else:
            terms.append(t)
    found: dict[int, tuple[Value, Value]] = {}
    for t in terms:
        pair = _product(t)
        if pair is None or pair[0] in found:
            return None
        found[pair[0]] = pair[1:]
    if len(terms) != 4 or len(found) != 4 or len(set(found.values())) != 1:
        return None
    return found[0]


def _product(v: Value) -> tuple[int, Value, Value] | None:
    """(j, w, x) for the product of byte j of w, unsigned, and byte j of x, signed."""
    if v.op != "mul":
        return None
    for a, b in (v.args, v.args[::-1]):
        unsigned, signed = _unsigned_byte(a), _signed_byte(b)
        if unsigned is not None and signed is not None and unsigned[0] == signed[0]:
            return unsigned[0], unsigned[1], signed[1]
    return None


def _unsigned_byte(v: Value) -> tuple[int, Value] | None:
    if v.op != "and" or not _is_const(v.args[1], 255):
        return None
    x = v.args[0]
    if x.op == "shr" and any(_is_const(x.args[1], n) for n in (8, 16, 24)):
        return int(x.args[1].number) // 8, x.args[0]
    return 0, x


def _signed_byte(v: Value) -> tuple[int, Value] | None:
    if v.op != "shr" or not _is_const(v.args[1], 24):
        return None
    x = v.args[0]
    if x.op == "shl" and any(_is_const(x.args[1], n) for n in (8, 16, 24)):
        return 3 - int(x.args[1].number) // 8, x.args[0]
    return 3, x


def _is_const(v: Value, number: int) -> bool:
    return v.op == "const" and v.number == number and v.dtype is int32
