"""Sums of four byte products as one or a few instructions: of unsigned by signed bytes, each four added in int32.

    (w & 255) * (x << 24 >> 24) + (w >> 8 & 255) * (x << 16 >> 24) + (w >> 16 & 255) * (x << 8 >> 24)
                                + (w >> 24 & 255) * (x >> 24)                      for 32-bit integers w and x
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from minigrad.codegen.render.llvm_text import type_of, typed
from minigrad.codegen.render.refs import Ref
from minigrad.dtype import int32, uint32
from minigrad.errors import present
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

Dot = Callable[..., Ref]
"""Emits the sums for Refs of w and x, and of what they are added to if there is such a one."""

_WORD = 0xFFFFFFFF
_SDOT, _USDOT = (f"llvm.aarch64.neon.{name}.v4i32.v16i8" for name in ("sdot", "usdot"))
_PAIRS = {16: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
          8: ("avx2", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
          4: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd")}
"""By lanes of int32: the feature, and the instructions that add products of neighbouring bytes and of int16."""


def dot_of(v: Value) -> tuple[Value, Value] | None:
    """(w, x) where the int32 value `v` is that sum, its terms in any order; else None."""
    found = signed_dot_of(v)
    return None if found is None or found[1] != (False, True) else found[0]


@lru_cache(maxsize=1 << 12)
def signed_dot_of(v: Value) -> tuple[tuple[Value, Value], tuple[bool, bool]] | None:
    """Two words, and for each whether its bytes are signed, where the int32 value `v` is the sum of the products of
    their bytes, its terms in any order; unsigned bytes first. Else None."""
    if v.op != "add" or v.dtype is not int32:
        return None
    terms, stack = [], [v]
    while stack:
        t = stack.pop()
        if t.op == "add":
            stack.extend(t.args)
        else:
            terms.append(t)
    found: dict[int, tuple[_Byte, _Byte]] = {}
    for t in terms:
        pair = _product(t)
        if pair is None or pair[0].place in found:
            return None
        found[pair[0].place] = pair
    if len(terms) != 4 or len({frozenset([x[1:] for x in pair]) for pair in found.values()}) != 1:
        return None
    w, x = sorted(found[0], key=lambda byte: byte.signed)
    return (w.word, x.word), (w.signed, x.signed)


class _Byte(NamedTuple):
    """A byte of a word, the lowest one at place 0, widened to 32 bits."""

    place: int
    word: Value
    signed: bool


def _product(v: Value) -> tuple[_Byte, _Byte] | None:
    """The bytes at one place of two words that `v` is the product of."""
    if v.op != "mul":
        return None
    a, b = map(_byte, v.args)
    return None if a is None or b is None or a.place != b.place else (a, b)


def _byte(v: Value) -> _Byte | None:
    if v.op == "and" and _is_const(v.args[1], 255):
        x = v.args[0]
        if x.op == "shr" and any(_is_const(x.args[1], n) for n in (8, 16, 24)):
            return _Byte(int(x.args[1].number) // 8, x.args[0], False)
        return _Byte(0, x, False)
    if v.op == "shr" and _is_const(v.args[1], 24):
        x = v.args[0]
        if x.op == "shl" and any(_is_const(x.args[1], n) for n in (8, 16, 24)):
            return _Byte(3 - int(x.args[1].number) // 8, x.args[0], True)
        return _Byte(3, x, True)
    return None


def _is_const(v: Value, number: int) -> bool:
    return v.op == "const" and v.number == number and v.dtype is int32


def possible_bits(v: Value) -> int:
    """The bits that a 32-bit integer value may have set, as a mask."""
    if v.op == "const":
        return int(v.number) & _WORD
    if v.op in ("and", "or", "xor"):
        a, b = map(possible_bits, v.args)
        return a & b if v.op == "and" else a | b
    if v.op == "cast" and v.args[0].dtype in (int32, uint32):
        return possible_bits(v.args[0])
    if v.op == "shl" and v.args[1].op == "const":
        return possible_bits(v.args[0]) << int(v.args[1].number) & _WORD
    return _WORD


def dot_for(features: frozenset[str], lanes: int, w: Value) -> Dot | None:
    """Emits that sum for words `w` in so many lanes; None where the processor has nothing for it."""
    if {16: "avx512vnni", 8: "avxvnni"}.get(lanes) in features:
        return partial(_by_bytes, name=f"llvm.x86.avx512.vpdpbusd.{32 * lanes}")
    small = not possible_bits(w) & 0x80808080
    if lanes in _PAIRS and _PAIRS[lanes][0] in features:
        return dot_of_pairs if small else dot_of_halves
    if lanes == 4 and "i8mm" in features:
        return partial(_by_bytes, name=_USDOT)
    if lanes == 4 and "dotprod" in features:
        return partial(_by_bytes, name=_SDOT) if small else dot_of_signed
    return None


def dot_of_signed(out: Emitter, w: Ref, x: Ref, before: Ref | None = None) -> Ref:
    """The sums, plus `before` if there is one, by NEON's instruction for signed bytes: of 128 less than those of `w`,
    and of 128, which is twice 64, for each of `x`."""
    total = None
    for _ in range(2):
        total = _by_bytes(out, out.every(0x40404040, int32, w.lanes), x, total, name=_SDOT)
    lowered = out.pure(f"xor {typed(w)}, splat (i32 {0x80808080})", int32, w.lanes, (w,))
    return _add(out, _by_bytes(out, lowered, x, total, name=_SDOT), before)


def dot_of_pairs(out: Emitter, w: Ref, x: Ref, before: Ref | None = None) -> Ref:
    """The sums where no byte of `w` exceeds 127, so that no sum of two products exceeds an int16: pmaddubsw."""
    _, name, _ = _PAIRS[w.lanes]
    kind, pairs = f"<{4 * w.lanes} x i8>", f"<{2 * w.lanes} x i16>"
    a, b = [out.pure(f"bitcast {typed(r)} to {kind}", r.dtype, r.lanes, (r,), "bytes") for r in (w, x)]
    sums = out.pure(f"call {pairs} @{name}({kind} {a.text}, {kind} {b.text})", int32, w.lanes, (a, b), "pairs")
    return _add(out, _madd(out, sums.text, "splat (i16 1)", (sums,)), before)


def dot_of_halves(out: Emitter, w: Ref, x: Ref, before: Ref | None = None) -> Ref:
    """The same for any bytes, in int16: those at even places, and those at odd ones, by pmaddwd."""
    kind, total = f"<{2 * w.lanes} x i16>", before
    a, b = [out.pure(f"bitcast {typed(r)} to {kind}", r.dtype, r.lanes, (r,), "halves") for r in (w, x)]

    def of(r: Ref, operation: str, operand: str) -> Ref:
        return out.pure(f"{operation} {kind} {r.text}, splat (i16 {operand})", int32, w.lanes, (r,), "halves")

    for unsigned, signed in ((of(a, "and", "255"), of(of(b, "shl", "8"), "ashr", "8")),
                             (of(a, "lshr", "8"), of(b, "ashr", "8"))):
        total = _add(out, _madd(out, unsigned.text, signed.text, (unsigned, signed)), total)
    return present(total, "[render] expected a sum")


def _by_bytes(out: Emitter, w: Ref, x: Ref, before: Ref | None = None, *, name: str) -> Ref:
    """The sums by an instruction that adds products of bytes."""
    sums, kind = type_of(w), f"<{4 * w.lanes} x i8>"
    words = [out.pure(f"bitcast {typed(r)} to {kind}", r.dtype, r.lanes, (r,), "bytes") for r in (w, x)]
    before = before or out.every(0, int32, w.lanes)
    text = f"call {sums} @{name}({sums} {before.text}, {kind} {words[0].text}, {kind} {words[1].text})"
    return out.pure(text, int32, w.lanes, (w, x, before, *words), "dot")


def _madd(out: Emitter, a: str, b: str, operands: tuple[Ref, ...]) -> Ref:
    """Sums of products of neighbouring int16."""
    lanes = operands[0].lanes
    pairs = f"<{2 * lanes} x i16>"
    text = f"call <{lanes} x i32> @{_PAIRS[lanes][2]}({pairs} {a}, {pairs} {b})"
    return out.pure(text, int32, lanes, operands, "dot")


def _add(out: Emitter, total: Ref, before: Ref | None) -> Ref:
    if before is None:
        return total
    return out.pure(f"add {typed(before)}, {total.text}", int32, total.lanes, (before, total))
