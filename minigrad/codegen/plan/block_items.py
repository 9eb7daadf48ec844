"""Nests of a block that work-items share: where they wait for each other, and what each has for itself.

    alloc s: f32[32] local, k: f32[16] local             alloc k: f32[16] local
    for t in 0..8 item:                                  for t in 0..8 item:
      for u in 0..4 unroll: s[8*u+t] = ..                  alloc s: f32[4] register
                                                           for u in 0..4 unroll: s[u] = ..
      for b in 0..n:                              ->       for b in 0..n:
                                                             barrier
        for c in 0..2: k[8*c+t] = p0[..]                     for c in 0..2: k[8*c+t] = p0[..]
                                                             barrier
        for u in 0..4 unroll: s[8*u+t] = k[..]               for u in 0..4 unroll: s[u] = k[..]

An element is a work-item's own whose number is the work-item's, but for a multiple of how many there are. What no other
one touches needs no barrier, and is in registers where unrolled loops alone say which element it is.
"""
from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Loop, Stmt
from minigrad.codegen.ir.walk import accesses, map_all, statements
from minigrad.codegen.kernel.value_walk import replace_values
from minigrad.expr import Index, Var, exact_quotient, variables
from minigrad.value import Value, load, walk

Touches = frozenset[tuple[str, bool, bool]]
"""Buffers that work-items touch, whether they store to them, and whether to elements of their own only."""


def by_items(body: Sequence[Stmt], item: Var, memory: Sequence[Alloc]) -> tuple[list[Alloc], list[Stmt]]:
    """The memory that work-items share, and what each of them does: statements with a barrier before each nest and each
    loop over nests, of which those stay that are needed."""
    alone = {s.name for s in statements(body) if isinstance(s, Alloc)}
    body, _ = _waiting(body, item, alone, frozenset())
    return in_registers(body, item, memory)


def in_registers(body: Sequence[Stmt], item: Var, memory: Sequence[Alloc]) -> tuple[list[Alloc], list[Stmt]]:
    """Statements of a work-item with memory of its own in registers, and the memory that is left."""
    unrolled = {s.var for s in statements(body) if isinstance(s, Loop) and s.kind == "unroll"}
    kept = {a.name for a in memory} - _called(body)
    for name, at, _ in accesses(body):
        own = _own(at, item)
        if own is None or not variables(own) <= unrolled:
            kept.discard(name)
    registers = [replace(a, size=-(-a.size // (int(item.hi) + 1)), scope="register") for a in memory if a.name in kept]

    def offset(name: str, at: Index) -> Index:
        own = _own(at, item) if name in kept else None
        return at if own is None else own

    def value(v: Value) -> Value:
        return replace_values(v, {x: load(x.buffer, (offset(x.buffer, x.indices[0]),), x.dtype)
                                  for x in walk(v) if x.op == "load" and x.buffer in kept})

    return [a for a in memory if a.name not in kept], [*registers, *map_all(tuple(body), value, lambda e: e, offset)]


def _waiting(body: Sequence[Stmt], item: Var, alone: Container[str], since: Touches) -> tuple[list[Stmt], Touches]:
    """Statements with the barriers that work-items need, and what they touch after the last one, if that was `since`
    one before."""
    out: list[Stmt] = []
    for k, s in enumerate(body):
        if isinstance(s, Barrier):
            nest = _touches(takewhile(lambda x: not isinstance(x, Barrier), body[k + 1:]), item, alone)
            if not any([a == b and (x or y) and not (own and theirs) for a, x, own in nest for b, y, theirs in since]):
                continue
            since = frozenset()
        elif isinstance(s, Loop) and any([isinstance(x, Barrier) for x in s.body]):
            inside, after = _waiting(s.body, item, alone, since)
            while not after <= since:  # the next iteration comes after this one
                since |= after
                inside, after = _waiting(s.body, item, alone, since)
            s = replace(s, body=tuple(inside))
        else:
            since |= _touches((s,), item, alone)
        out.append(s)
    return out, since


def _touches(body: Iterable[Stmt], item: Var, alone: Container[str]) -> Touches:
    body = tuple(body)
    touched = {(name, how == "store", _own(at, item) is not None) for name, at, how in accesses(body)}
    touched |= {(name, True, False) for name in _called(body)}
    return frozenset([x for x in touched if x[0] not in alone])


def _called(body: Iterable[Stmt]) -> set[str]:
    """The buffers that microkernels touch."""
    return {name for s in statements(body) if isinstance(s, Call) for name, _ in s.buffers}


def _own(at: Index, item: Var) -> Index | None:
    """The number of an element among those of its work-item; None where it may be another one's."""
    return exact_quotient(at - item, item.hi + 1)
