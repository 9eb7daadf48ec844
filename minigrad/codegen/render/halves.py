"""Conversions of float16 and bfloat16 in integer arithmetic, for devices (and LLVM targets) without instructions,
and of constants.

Each works on scalars and vectors alike; half types come and go as their bits, uint16.
"""
from __future__ import annotations

import struct
from collections.abc import Callable

from minigrad.codegen.render.language import Language
from minigrad.codegen.render.refs import Ref
from minigrad.dtype import bool_, float32, uint16, uint32


def words(to: Language, lanes: int) -> Callable[[str, Ref, Ref | int], Ref]:
    """Operations on uint32 and numbers."""
    def op(name: str, a: Ref, b: Ref | int) -> Ref:
        return to.operation(name, (a, to.every(b, uint32, lanes) if isinstance(b, int) else b), uint32)

    return op


def bfloat_bits(value: float) -> int:
    """The bits of the nearest bfloat16."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0


def round_to_float32(value: float) -> float:
    """The nearest float32; what overflows becomes infinite."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def bits_to_half(to: Language, x: Ref) -> Ref:
    """float16 bits (uint16) -> float32, exact, without subnormal float32 on the way."""
    op, wide = words(to, x.lanes), to.convert(x, uint32)
    size = op("and", wide, 0x7FFF)
    shifted = op("shl", size, 13)
    tiny = to.operation("mul", (to.convert(size, float32), to.every(2.0**-24, float32, x.lanes)), float32)
    small = to.operation("lt", (size, to.every(0x400, uint32, x.lanes)), bool_)
    usual = to.operation("lt", (size, to.every(0x7C00, uint32, x.lanes)), bool_)
    bits = to.operation("where", (usual, op("add", shifted, 0x38000000), op("add", shifted, 0x70000000)), uint32)
    bits = to.operation("where", (small, to.reinterpret(tiny, uint32), bits), uint32)
    sign = op("shl", op("and", wide, 0x8000), 16)
    return to.reinterpret(to.operation("or", (bits, sign), uint32), float32)


def half_to_bits(to: Language, x: Ref) -> Ref:
    """float32 -> float16 bits (uint16), to nearest even."""
    op = words(to, x.lanes)

    def below(limit: int, yes: Ref, no: Ref) -> Ref:
        test = to.operation("lt", (size, to.every(limit, uint32, x.lanes)), bool_)
        return to.operation("where", (test, yes, no), uint32)

    wide = to.reinterpret(x, uint32)
    size = op("and", wide, 0x7FFFFFFF)
    odd = op("and", op("shr", size, 13), 1)
    usual = op("shr", op("add", op("add", op("sub", size, 0x38000000), 0xFFF), odd), 13)
    # Adding 0.5 rounds to multiples of 2**-24, the spacing of subnormal halves.
    half = to.every(0.5, float32, x.lanes)
    shifted = to.operation("add", (to.reinterpret(size, float32), half), float32)
    tiny = op("sub", to.reinterpret(shifted, uint32), 0x3F000000)
    special = below(0x7F800001, to.every(0x7C00, uint32, x.lanes), to.every(0x7E00, uint32, x.lanes))
    bits = below(0x38800000, tiny, below(0x477FF000, usual, special))
    return to.convert(op("or", bits, op("shr", op("and", wide, 0x80000000), 16)), uint16)


def bits_to_bfloat(to: Language, x: Ref) -> Ref:
    """bfloat16 bits (uint16) -> float32, exact."""
    return to.reinterpret(words(to, x.lanes)("shl", to.convert(x, uint32), 16), float32)


def bfloat_to_bits(to: Language, x: Ref) -> Ref:
    """float32 -> bfloat16 bits (uint16), to nearest even; NaN stays a quiet NaN."""
    op, bits = words(to, x.lanes), to.reinterpret(x, uint32)
    high = op("shr", bits, 16)
    rounded = op("shr", op("add", op("add", bits, 0x7FFF), op("and", high, 1)), 16)
    nan = to.operation("ne", (x, x), bool_)
    return to.convert(to.operation("where", (nan, op("or", high, 0x40), rounded), uint32), uint16)
