"""Loop -> loop: fewer iterations of longer bodies, for drivers that stop a work-item's loops after so many."""
from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from minigrad.codegen.ir.inline import copied
from minigrad.codegen.ir.nodes import Function, If, Loop, Stmt
from minigrad.codegen.ir.walk import blocks, map_blocks, map_function, names, statements
from minigrad.expr import Index, Var, bounds

MAX_COPIES = 64
"""The most copies of an innermost body: more would cost the driver's compiler minutes."""

LANES_AT_ONCE = 16


def iterations(body: Iterable[Stmt]) -> int:
    """A bound on the iterations that the serial loops of these statements run in one work-item, nested ones
    included."""
    total = 0
    for s in body:
        inner = max((iterations(block) for block in blocks(s)), default=0)
        if isinstance(s, Loop):
            trips = max(bounds(s.stop - s.start)[1], 0)
            if s.kind == "serial":
                inner = trips * (inner + 1)
            elif s.kind == "unroll":
                inner *= trips
            elif s.kind == "vector":
                inner *= ceil(trips / LANES_AT_ONCE)
        total += inner
    return total


def limit_iterations(function: Function, limit: int) -> Function:
    """Unrolls innermost serial loops in part until a work-item runs at most `limit` iterations; 0: no limit.

        for k in 0..10 serial:                    for k_b in 0..2 serial:
          y[0] = y[0] + a[k]         ->             for k_u in 0..4 unroll:
                                                      y[0] = y[0] + a[4*k_b+k_u]
                                                  for k in 8..10 serial:
                                                    y[0] = y[0] + a[k]

    The order of the iterations stays. What is still over the limit with bodies of MAX_COPIES is returned so.
    """
    copies = 1
    result = function
    while limit and copies < MAX_COPIES and iterations(result.body) > limit:
        copies *= 2
        used = names(function)
        result = map_function(function, lambda body: _shorter(body, copies, used))  # noqa: B023
    return result


def _shorter(body: tuple[Stmt, ...], copies: int, used: set[str]) -> tuple[Stmt, ...]:
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop | If):
            s = map_blocks(s, lambda inner: _shorter(inner, copies, used))
        if isinstance(s, Loop) and s.kind == "serial" and not _has_serial(s):
            made += _in_part(s, copies, used)
        else:
            made.append(s)
    return tuple(made)


def _has_serial(loop: Loop) -> bool:
    return any(isinstance(s, Loop) and s.kind == "serial" for s in statements(loop.body))


def _in_part(s: Loop, copies: int, used: set[str]) -> list[Stmt]:
    """The loop with `copies` iterations written out in each; all of them where there are no more."""
    trips = s.stop - s.start
    if isinstance(trips, int) and isinstance(s.start, int) and trips <= copies:
        return [Loop(s.var, s.start, s.stop, "unroll", s.body)]
    whole: Index = trips // copies
    block, copy = Var(s.var.name + "_b", 0, max(bounds(whole)[1] - 1, 0)), Var(s.var.name + "_u", 0, copies - 1)
    main = copied(s.body, {s.var: s.start + block * copies + copy}, used)
    made: list[Stmt] = [Loop(block, 0, whole, "serial", (Loop(copy, 0, copies, "unroll", main),))]
    if not isinstance(trips, int) or trips % copies:
        made.append(Loop(s.var, s.start + whole * copies, s.stop, "serial", s.body))
    return made
