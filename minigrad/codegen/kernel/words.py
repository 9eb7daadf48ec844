"""Neighbours in memory as words: two bfloat16 or four int8 side by side, put together by shifts, are a load of 32 bits.

    u32(bitcast(p[2*i], u16)) | u32(bitcast(p[2*i + 1], u16)) << 16        ->    p_u32[i]

Programs for little-endian processors read them so; square blocks of words are transposed in registers.
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.kernel.value_walk import replace_values
from minigrad.dtype import uint32
from minigrad.expr import Index
from minigrad.value import Value, load, walk

VIEW = "_u32"
"""The end of the name of a buffer that is read in words."""


@lru_cache(maxsize=1 << 12)
def with_words(root: Value) -> Value:
    """The value with a load of `<buffer>_u32` wherever neighbours are put together; itself where there are none."""
    found = {}
    for v in walk(root):
        word = word_of(v)
        if word is not None:
            found[v] = word
    return replace_values(root, found) if found else root


def word_of(v: Value) -> Value | None:
    """The load that a value is, None if it is no word of neighbours."""
    if v.op != "or" or v.dtype is not uint32:
        return None
    loads: dict[int, Value] = {}
    stack = [v]
    while stack:
        t = stack.pop()
        if t.op == "or":
            stack.extend(t.args)
            continue
        part = _part(t)
        if part is None or part[0] in loads:
            return None
        loads[part[0]] = part[1]
    first = loads.get(0)
    if first is None:
        return None
    name, (start,) = first.buffer, first.indices
    bits = first.dtype.bits
    expected: list[tuple[int, str, Index]] = [(t * bits, name, start + t) for t in range(32 // bits)]
    if sorted(loads) != [shift for shift, _, _ in expected]:
        return None
    if any(loads[shift].attr != (name, (place,)) or loads[shift].dtype is not first.dtype
           for shift, name, place in expected):
        return None
    place = start // (32 // bits)
    return load(name + VIEW, (place,), uint32) if place * (32 // bits) == start else None


def _part(t: Value) -> tuple[int, Value] | None:
    """(shift, load) of an element whose bits are moved up by so many."""
    shift = 0
    if t.op == "shl" and t.args[1].op == "const":
        shift, t = int(t.args[1].number), t.args[0]
    if t.op != "cast" or t.args[0].dtype.kind != "u" or t.args[0].dtype.bits >= 32:
        return None
    x = t.args[0]
    if x.op == "bitcast":
        x = x.args[0]
    return (shift, x) if x.op == "load" and x.dtype.bits == t.args[0].dtype.bits else None
