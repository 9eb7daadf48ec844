"""Totals across lanes of several vectors, made together: halves of two vectors fill one.

    for u in 0..16 unroll:                          16 times 12 instructions, one by one
      total[u] = across(sum, acc[u])                45 for all of them, and one for each to take it out
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Stmt, Store
from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.render.accesses import slot, write_slot
from minigrad.codegen.render.refs import Ref

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter


def totals(out: Emitter, s: Loop) -> bool:
    """Emits unrolled loops that do nothing but set registers to totals across lanes; False for other loops."""
    inner: Stmt = s
    while isinstance(inner, Loop) and inner.kind == "unroll" and len(inner.body) == 1:
        inner, = inner.body
    if not isinstance(inner, Store) or inner.value.op != "across" or inner.conditions:
        return False
    memory, (vector,) = out.memory[inner.buffer], inner.value.args
    if memory.place != "register":
        return False
    slots, vectors = list[int](), list[Ref]()
    for _ in out.copies.straight((s,)):
        out.brief = {}
        slots.append(slot(out, memory, out.copies.at(inner.offset)))
        vectors.append(out.spread(out.values.emit(vector), out.width))
    if vectors:
        found = out.language.across(MONOIDS[inner.value.monoid].combine, vectors)
        for k, total in zip(slots, found, strict=True):
            write_slot(out, memory, k, total, None)
    return True
