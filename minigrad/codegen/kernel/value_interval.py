"""Bounds of an int32 value from the operations that make it: bytes taken out of words, their products."""
from __future__ import annotations

from functools import lru_cache

from minigrad.dtype import int32
from minigrad.value import Value

Interval = tuple[int, int]
ANY: Interval = (int(int32.min), int(int32.max))


@lru_cache(maxsize=1 << 12)
def interval(v: Value) -> Interval:
    """The least and the greatest number that the value, an int32, can be."""
    if v.op == "const":
        return int(v.number), int(v.number)
    if v.op == "cast" and v.args[0].dtype.is_int and v.args[0].dtype.bits < 32:
        low, high = v.args[0].dtype.min, v.args[0].dtype.max
        return int(low), int(high)
    if len(v.args) != 2 or any(a.dtype is not int32 for a in v.args):
        return ANY
    (a, b), (c, d) = interval(v.args[0]), interval(v.args[1])
    if v.op == "and" and (a >= 0 or c >= 0):
        return 0, min(high for low, high in ((a, b), (c, d)) if low >= 0)
    if v.op == "shr" and 0 <= c == d < 32:
        return a >> c, b >> c
    if v.op == "add":
        return _wrapped(a + c, b + d)
    if v.op == "sub":
        return _wrapped(a - d, b - c)
    if v.op == "mul":
        ends = [x * y for x in (a, b) for y in (c, d)]
        return _wrapped(min(ends), max(ends))
    return ANY


def _wrapped(low: int, high: int) -> Interval:
    return (low, high) if ANY[0] <= low and high <= ANY[1] else ANY
