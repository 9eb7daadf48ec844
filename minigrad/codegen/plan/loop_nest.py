"""Loops of a nest as statements: each with the copies and prefetches that it begins with."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.codegen.plan.ahead import outputs_ahead
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.copies import fills
from minigrad.codegen.plan.groups import copied_by_items
from minigrad.codegen.plan.position import Position
from minigrad.expr import Var


def loop_of(ctx: Context, name: str, here: Position, inner: Callable[[Position], list[Stmt]]) -> list[Stmt]:
    """A loop and what is inside it; work-items are there already."""
    if ctx.items is not None and name in ctx.items.places:
        return inner(ctx.opened(here, name, ctx.items.places[name]))
    count = ctx.loops.count(name, here)
    most = ctx.loops.most(name) if type(count) is not int and ctx.loops.is_short(name) else count
    var = Var(name, 0, most - 1)
    at = ctx.opened(here, name, var)
    loop = Loop(var, 0, count, ctx.loops.kind[name], (*fills(ctx, name, at), *outputs_ahead(ctx, name, at), *inner(at)))
    return [loop] if ctx.items is None else copied_by_items(ctx, ctx.items, name, at, loop)


def copied(ctx: Context, names: Sequence[str], here: Position, inner: Callable[[Position], list[Stmt]]) -> list[Stmt]:
    """Loops inside each other, and what is inside them."""
    if not names:
        return inner(here)
    return loop_of(ctx, names[0], here, lambda at: copied(ctx, names[1:], at, inner))


def swept(ctx: Context, names: Sequence[str], here: Position, inner: Callable[[Position], list[Stmt]],
          first: Callable[[str, Position], list[Stmt]] = lambda _, __: []) -> list[Stmt]:
    """Loops that no worker shares, whole blocks first, then what those leave; what each iteration does `first`.
    Lanes that are open already leave theirs to whoever joins them."""
    if not names:
        return inner(here)
    x, left = names[0], names[1:]
    if x in here.omitted:
        return swept(ctx, left, here, inner, first)
    loop = loop_of(ctx, x, here, lambda at: [*first(x, at), *swept(ctx, left, at, inner, first)])
    tails: list[Stmt] = []
    for s in ctx.begun_by(x, here):
        length = ctx.loops.count(s.loop, here)
        rest = Var(s.loop, 0, length - 1)
        tails.append(Loop(rest, length // s.size * s.size, length, "serial",
                          tuple(swept(ctx, left, ctx.instead(here, s, rest), inner, first))))
    return [*loop, *tails] if ctx.loops.count(x, here) != 0 or not tails else tails
