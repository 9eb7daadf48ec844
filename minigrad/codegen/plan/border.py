"""Borders of copies: what is inside the image is copied in whole vectors without conditions, what is not is filled.

    for y in 0..58: for x in 0..114:                    for y in 0..58:
      x_staged[y, x] = p0[..] else 0 if ..       ->       if row y is inside the image:
                                                            x_staged[y, 0..16] = 0;  x_staged[y, 128..144] = 0
                                                            for c in 0..7: for l in 0..16 vector:
                                                              x_staged[y, 16 + 16*c + l] = p0[..]
                                                          else: x_staged[y, ..] = 0

The inside begins at a whole vector. Short rows whose border fits into the vectors of the inside are copied border and
all. The copy is made in lanes of its own, or in those that are open.
"""
from __future__ import annotations

from minigrad.codegen.ir.nodes import If, Loop, Prefetch, Stmt, Store
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.rows import WRITTEN_OUT, Row, lanes_of, rows_of
from minigrad.codegen.plan.stage import Staged
from minigrad.expr import Index, Var, bounds, coefficient, emin, subs, variables
from minigrad.value import free_variables, guard, substitute, walk


def bordered(ctx: Context, s: Staged, here: Position) -> list[Stmt] | None:
    """The copy with its border apart; None where it has none that is told by constants."""
    if not s.apart:
        return None
    rows, width = rows_of(ctx, s.box, s.factor, here, ctx.name), lanes_of(ctx.loops)
    opened = next((here.places[x] for x in here.places if ctx.loops.kind.get(x) == "vector"), None)
    own = Var(ctx.name("l"), 0, width - 1)
    lane = own if opened is None else opened
    body: list[Stmt] = []
    within = ctx.within(here, free_variables(s.factor))
    for number, row in enumerate(rows):
        where = (*within, *[c for c in row.conditions if row.x not in variables(c)])
        filled, blank = _row(ctx, s, row, lane, width, s.ahead > 0 and number == 0)
        last = body[-1] if body else None
        if where and isinstance(last, If) and last.conditions == where:
            body[-1] = If(where, (*last.then, *filled), (*last.otherwise, *blank))
        else:
            body += [If(where, tuple(filled), tuple(blank))] if where else filled
    if opened is None:
        body = [Loop(own, 0, width, "vector", tuple(body))]
    for run, x in reversed(rows[0].around):
        body = [Loop(x, 0, run.count, "serial", tuple(body))]
    return body


def _row(ctx: Context, s: Staged, row: Row, lane: Index, width: int, hints: bool) -> tuple[list[Stmt], list[Stmt]]:
    """A row that is inside the image, and one that is not."""
    place, x, inside, nothing = s.box.at(row.at), row.x, row.hi + 1 - row.lo, row.outside

    def blanks(first: int, stop: int) -> list[Stmt]:
        return [Store(s.memory, subs(place, {x: k + lane}), nothing) for k in range(first, stop, width)]

    def vector(start: Index, masks: tuple[Index, ...] = ()) -> list[Stmt]:
        at = {x: start + lane}
        fetch = _ahead(s, row, start, width) if hints else []
        return [*fetch, Store(s.memory, subs(place, at), guard(substitute(row.inside, at), nothing, masks))]

    first = row.lo - -(-row.lo // width) * width
    if s.box.joined:
        around = (*[c for c in row.conditions if x in variables(c)], row.count - 1 - x)
        return [v for k in range(0, row.count, width) for v in vector(
            k, tuple([c for c in [subs(c, {x: k + lane}) for c in around] if bounds(c)[0] < 0]))], blanks(0, row.count)
    blocks, rest = -(-inside // width), inside % width
    if blocks <= WRITTEN_OUT:
        made = [v for k in range(blocks) for v in vector(
            row.lo + k * width, (inside - 1 - k * width - lane,) if (k + 1) * width > inside else ())]
        after = row.lo + blocks * width
    else:
        k = Var(ctx.name("c"), 0, blocks - 1)
        start = row.lo + (emin(k * width, inside - width) if rest else k * width)
        made, after = [Loop(k, 0, blocks, "serial", tuple(vector(start)))], row.hi + 1 - rest
    border = [*blanks(first, row.lo), *(blanks(after, row.count) if row.hi + 1 < row.count else [])]
    return [*border, *made], blanks(first, row.count)


def _ahead(s: Staged, row: Row, start: Index, width: int) -> list[Stmt]:
    """Prefetches of what is read a page after a vector that reads of each line: processors stop at the end of a page.
    """
    out: list[Stmt] = []
    for v in walk(row.inside):
        step = coefficient(v.indices[0], row.x) if v.op == "load" and row.x in variables(v.indices[0]) else None
        line = LINE // v.dtype.itemsize
        if isinstance(step, int) and step <= line:
            out += [Prefetch(v.buffer, subs(v.indices[0], {row.x: start}) + k + s.ahead // v.dtype.itemsize)
                    for k in range(0, width * step, line)]
    return out
