"""Powers of two as one instruction: AVX-512 scales a float by 2**n for a whole number n that is a float.

    (p * float_bits((h + 127) << 23)) * float_bits((n - h + 127) << 23)    with h = n >> 1, n = bits(t) - bits(ROUND)

is p * 2**n, rounded once: the end of every exp, where adding ROUND has left t = ROUND + n.
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.transforms.math_float32 import ROUND, whole
from minigrad.codegen.transforms.math_number import Number, scale
from minigrad.dtype import float32
from minigrad.value import Value

_WAY_DOWN = ("bitcast", "shl", "add", "shr", "sub", "bitcast")
"""The operations on first operands from the first factor of two down to t."""


@lru_cache(maxsize=1 << 12)
def scale_of(v: Value) -> tuple[Value, Value] | None:
    """(p, n), both float32, where the value `v` is that product, else None."""
    if v.op != "mul" or v.dtype is not float32 or v.args[0].op != "mul":
        return None
    p, t = v.args[0].args
    for op in _WAY_DOWN:
        if t.op != op:
            return None
        t = t.args[0]
    if t.dtype is not float32 or scale(Number(p), whole(Number(t))).value is not v:
        return None
    return p, (Number(t) - ROUND).value
