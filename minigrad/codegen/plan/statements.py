"""The statements of a nest inside its loops, in order: sums, what is defined, what is stored, and inner nests."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minigrad.codegen.ir.nodes import Barrier, If, Let, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter, loaded
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.loop_nest import copied, swept
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.spaces import Unit, touched, units
from minigrad.codegen.plan.sums import inner_reductions, sums_together
from minigrad.codegen.plan.taps import is_light, written_out
from minigrad.expr import Index
from minigrad.value import Value, const, guard, load, local, substitute

Names = Mapping[str, Value]
"""The values that names of definitions stand for."""


def tile_of(ctx: Context, body: Sequence[Unit], here: Position) -> list[Stmt]:
    """The nest's statements: sums for all copies at once, what follows them copy by copy."""
    out: list[Stmt] = []
    names: Names = {}
    while body and isinstance(body[0], tuple):
        emitted, names = sums_together(ctx, body[0], here, names)
        out += emitted
        body = body[1:]
    return [*out, *copy_by_copy(ctx, body, here, names)]


def copy_by_copy(ctx: Context, body: Sequence[Unit], here: Position, names: Names) -> list[Stmt]:
    """The statements after the sums of a tile."""
    if not body:
        return []

    def each(masked: bool) -> list[Stmt]:
        at = replace(here, copies=(), masked=masked)
        made = copied(ctx, here.copies, at, lambda at: statements_of(ctx, body, at, names))
        return written_out(made) if ctx.written_out and is_light(body) else made

    whole = () if ctx.loops.valid else ctx.where_whole(here)
    return [If(whole, tuple(each(False)), tuple(each(True)))] if whole else each(bool(ctx.loops.valid))


def statements_of(ctx: Context, body: Sequence[Unit], here: Position, names: Names, where: tuple[Index, ...] = ()
                  ) -> list[Stmt]:
    """Statements in order, one element of the domain at a time; stores `where` conditions hold."""
    out: list[Stmt] = []
    for k, s in enumerate(body):
        if isinstance(s, tuple):
            emitted, names = sums_together(ctx, s, here, names)
            out += emitted
        elif isinstance(s, Define):
            value, before = _value(ctx, s.value, here, names)
            name, conditions = ctx.name(s.name), ctx.within(here) if loaded(s.value) else ()
            out += [*before, Let(name, guard(value, const(0, value.dtype), conditions))]
            names = {**names, s.name: local(name, value.dtype)}
        elif isinstance(s, Store):
            out += _stored(ctx, s, here, names, where)
        else:
            out += _inner_nest(ctx, s, here, names)
        if ctx.items is not None and touched((s,))[1] & touched(body[k + 1:])[0]:
            out.append(Barrier())
    return out


def _value(ctx: Context, value: Value, here: Position, names: Names) -> tuple[Value, list[Stmt]]:
    """The value at a place; reductions inside it are computed before."""
    (value,), before = inner_reductions(ctx, [Rewriter({}, locals_=names).value(value)], here)
    return substitute(value, here.at), before


def _stored(ctx: Context, s: Store, here: Position, names: Names, where: tuple[Index, ...] = ()) -> list[Stmt]:
    value, before = _value(ctx, s.value, here, names)
    offset = Rewriter(here.at, locals_=names).index(s.indices[0])
    if s.combine and s.combine != "set":
        value = MONOIDS[s.combine].apply(load(s.param, (offset,), value.dtype), value)
    conditions = (*where, *(ctx.own(here) if here.masked else ()), *ctx.within(here, ctx.of_stores))
    once = () if ctx.items is None else ctx.items.once(here)
    return [*before, IRStore(s.param, offset, value, (*once, *conditions))]


def _inner_nest(ctx: Context, nest: Nest, here: Position, names: Names) -> list[Stmt]:
    """An inner nest: its loops, then its statements."""
    own = {v.name for v in nest.domain}
    names_of_loops = [x for x in ctx.loops.order if ctx.loops.root[x].name in own]
    return swept(ctx, names_of_loops, here, lambda at: statements_of(ctx, units(nest.body), at, names))
