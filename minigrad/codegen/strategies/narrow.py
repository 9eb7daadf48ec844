"""Products of small integers, packed several to a word: instructions that multiply neighbours and add them in int32.

    int32 sum over k of int32(a[m, k]) * int32(b[k, n])          a, b: int8, uint8 or int16; or uint32 likewise

becomes a contraction over words of 4 int8 or 2 int16 along k, for microkernels of kind 'u8x4', 'i8x4' or 'i16x2' (see
microkernels/tile.py). All of them are exact: 32 bits wrap alike in any order.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.microkernels.generate import FORMS
from minigrad.codegen.microkernels.tile import KINDS
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.dtype import DType, int8, int16, int32, uint8, uint16, uint32
from minigrad.errors import present
from minigrad.expr import Index, Var
from minigrad.target import Target
from minigrad.value import Value, binary, bitcast, cast, const, guard, substitute

_ANY = int8, uint8, int16
_TAKES: dict[str, tuple[tuple[DType, ...], tuple[DType, ...]]] = {
    "i8x4": ((int8,), (int8,)), "u8x4": ((int8, uint8), (int8,)), "i16x2": (_ANY, _ANY)}
"""Types of a and of b, the kinds with most products per instruction first."""

BIAS = 0x80808080
"""A word of four times 128: added to bytes that are signed where an instruction takes them unsigned."""


def narrow_kind(c: Contraction, target: Target) -> str:
    """The kind of word that the operands fit and the target has instructions for; '' if there is none."""
    a, b = narrowed(c.a), narrowed(c.b)
    if target.language != "llvm" or a is None or b is None or not any(isinstance(v.hi, int) for v in c.k):
        return ""
    for kind, (left, right) in _TAKES.items():
        known = any(kind in f.kinds and f.requires and f.requires <= target.features
                    and f.vector_bytes == target.vector_bytes for f in FORMS)
        if known and a.dtype in left and b.dtype in right:
            return kind
    return ""


def narrowed(value: Value) -> Value | None:
    """What a value of 32 bits was before it was widened; None if it is no such value."""
    if value.op == "cast" and value.dtype in (int32, uint32) and value.args[0].dtype in (int8, uint8, int16):
        return value.args[0]
    if value.op == "guard" and value.args[1].op == "const" and value.args[1].attr == 0:
        inside = narrowed(value.args[0])
        return None if inside is None else guard(inside, const(0, inside.dtype), value.attr)
    return None


def bias_rows(c: Contraction, kind: str) -> int:
    """1 where 128 was added to the bytes of words of a: a row of 128s beside them sums up what is to be subtracted."""
    return int(kind == "u8x4" and c.a.op == "xor")


def in_words(c: Contraction, kind: str) -> Contraction:
    """The contraction over words of `kind`: a variable of k counts groups of what it counted before.

        k<64: a[m, k]    ->    k<16: a[m, 4*k] | a[m, 4*k + 1] << 8 | a[m, 4*k + 2] << 16 | a[m, 4*k + 3] << 24
    """
    group = KINDS[kind][2]
    k = min((v for v in reversed(c.k) if isinstance(v.hi, int)), key=lambda v: filled(v, group) / extent(v))
    words = Var(k.name, 0, filled(k, group) // group - 1)
    a, b = (_word(narrowed(x), k, words, group) for x in (c.a, c.b))
    if kind == "u8x4" and narrowed(c.a).dtype is int8:  # type: ignore[union-attr]
        a = binary("xor", a, const(BIAS, uint32))
    return replace(c, a=a, b=b, k=tuple(words if v is k else v for v in c.k))


def filled(v: Var, group: int) -> int:
    return -(-extent(v) // group) * group


def _word(value: Value | None, k: Var, words: Var, group: int) -> Value:
    value = present(value, "[build] expected an operand of products of words")
    bits = 32 // group
    word: Value = const(0, uint32)
    for t in range(group):
        place: Index = words * group + t
        part = guard(substitute(value, {k: place}), const(0, value.dtype), (k.hi - place,))
        part = bitcast(part, uint8) if group == 4 else bitcast(cast(part, int16), uint16)
        part = cast(part, uint32)
        if t:
            part = binary("shl", part, const(bits * t, uint32))
        word = binary("or", word, part) if t else part
    return word
