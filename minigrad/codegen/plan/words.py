"""Narrow operands as words of 32 bits, for instructions that multiply neighbours and add up their products.

    int32(p0[4*k]) * int32(p1[4*k]) + ...         ->      p0[4*k] | p0[4*k + 1] << 8 | p0[4*k + 2] << 16 | ...

`KINDS` of microkernels/tile.py says what there is. Products of integers are exact: 32 bits wrap alike in any order.
Bytes of A that are signed where an instruction takes them unsigned are 128 more (`BIAS`); what that adds to a sum is
the sum of a row of 128s.

AMX and `vdpbf16ps` take subnormals for zero, in operands, in products and in sums. bfloat16 has the exponents of
float32: operands times 2^12, and with them whatever of their products float32 can represent, are away from subnormals.
Where something overflows for its sake, or is no finite number, neither is the sum: it is computed again from the
operands as they are (`unscale.py`). Other sums, divided by the scale twice, are as exact as in float32 or better. AMX
rounds once per 32 products; `vdpbf16ps` is two fused multiply-adds, the upper element's first, rounded to nearest
whatever the mode: so Intel's manual has it, and a Zen 4 agreed in a million random words.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.kernel.value_interval import interval
from minigrad.dtype import DType, bfloat16, float32, int8, int16, int32, uint8, uint16, uint32
from minigrad.value import Value, binary, bitcast, cast, const, guard

PAIRS = "bf16x2"
_ANY = int8, uint8, int16
TAKES: dict[str, tuple[tuple[DType, ...], tuple[DType, ...]]] = {
    "i8x4": ((int8,), (int8,)), "u8x4": ((int8, uint8), (int8,)), "i16x2": (_ANY, _ANY), PAIRS: ((bfloat16,),) * 2}
"""Types of a and of b, the kinds with most products per instruction first."""

BIAS = 0x80808080
SCALE = 2.0 ** 12
UPPER = 0xFFFF0000


def narrowed(value: Value) -> Value | None:
    """A value of 32 bits as it was before it was widened, or as an int16 if its bounds fit in one, as those of a
    difference of bytes do; else None."""
    if value.op == "cast":
        inside = value.args[0]
        fits = inside.dtype in _ANY if value.dtype in (int32, uint32) else (value.dtype, inside.dtype) == (float32,
                                                                                                           bfloat16)
        return inside if fits else None
    if value.op == "guard" and value.args[1].op == "const" and value.args[1].number == 0:
        inside_guard = narrowed(value.args[0])
        return None if inside_guard is None else guard(inside_guard, const(0, inside_guard.dtype), value.conditions)
    if value.dtype is int32 and int16.min <= interval(value)[0] and interval(value)[1] <= int16.max:
        return cast(value, int16)
    return None


def is_biased(kind: str, a: Value) -> bool:
    """True where 128 is added to the bytes of an operand, given as it was or is before it was widened."""
    return kind == "u8x4" and (narrowed(a) or a).dtype is int8


def word_of(parts: Sequence[Value], kind: str, biased: bool = False) -> Value:
    """The word of neighbours, uint32, the first one in the low bits."""
    if kind == PAIRS:
        return _pair(*parts)
    bits = 32 // len(parts)
    word, *others = [cast(bitcast(x, uint8) if bits == 8 else bitcast(cast(x, int16), uint16), uint32) for x in parts]
    for t, part in enumerate(others, 1):
        word = binary("or", word, binary("shl", part, const(bits * t, uint32)))
    return binary("xor", word, const(BIAS, uint32)) if biased else word


def _pair(first: Value, second: Value) -> Value:
    """The word of two bfloat16 values times the scale."""
    upper, half = const(UPPER, uint32), const(16, uint32)
    low, high = (cast(bitcast(x, uint16), uint32) for x in (first, second))
    raw = binary("or", low, binary("shl", high, half))
    low, high = (bitcast(binary("mul", bitcast(x, float32), const(SCALE, float32)), uint32)
                 for x in (binary("shl", raw, half), binary("and", raw, upper)))
    return binary("or", binary("shr", low, half), binary("and", high, upper))
