"""Prefetches: what later iterations read, or this one is going to store, `ahead p1 at k by 1 of j`."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigrad.codegen.ir.nodes import Loop, Prefetch, Stmt
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.steps.ahead import Ahead, places_after
from minigrad.dtype import DType
from minigrad.expr import Index, Var, coefficient, subs, variables
from minigrad.value import Value, free_variables, value_atoms, walk


def operands_ahead(ctx: Context, bodies: Sequence[Value], name: str, here: Position) -> list[Stmt]:
    """The prefetches of an iteration of a sum's loop, of what its terms read."""
    out: list[Stmt] = []
    for a in ctx.ahead:
        if a.at == name and (a.of or any(ctx.loops.kind.get(x) == "vector" for x in here.places)):
            loads = [(v.indices[0], v.dtype) for v in walk(*bodies)
                     if v.op == "load" and v.buffer == a.operand]
            moved = [x for x in loads if not a.of or moves(x[0], ctx.loops.root[a.of])]
            out += _prefetches(ctx, a, moved, here, out)
    return out


def moves(e: Index, v: Var) -> bool:
    """True where a place moves with a variable, and what it reads itself does not: that would be read for the prefetch,
    and beyond the last iteration lies outside its buffer."""
    return v in variables(e) and not any([v in free_variables(a.value) for a in value_atoms(e)])


def outputs_ahead(ctx: Context, name: str, here: Position) -> list[Stmt]:
    """The prefetches of an iteration of a loop around the sums, of what it stores and reads after them."""
    out: list[Stmt] = []
    for a in ctx.ahead:
        if a.at == name and not ctx.loops.space[name]:
            inside = tuple([x for x in ctx.loops.order if x not in here.places and not ctx.loops.space[x]])
            places = [(at, ctx.dtypes[a.operand]) for at in places_after(ctx.nest, a.operand) if not value_atoms(at)]
            out += _prefetches(ctx, a, places, replace(here, copies=inside), out)
    return out


def _prefetches(ctx: Context, a: Ahead, places: Sequence[tuple[Index, DType]], here: Position, known: list[Stmt]
                ) -> list[Stmt]:
    """Prefetches of places of a buffer, moved ahead, for copies that are open or not, a line of memory once."""
    loops = ctx.loops
    copies = {x: Var(x, 0, loops.most(x) - 1) for x in here.copies if loops.kind[x] == "unroll"}
    open_ = here.omitted.union(here.places, copies)
    start: dict[str, Index] = {x: 0 for x in loops.order if x not in open_ or loops.kind.get(x) == "vector"}
    inside = replace(here, places={**here.places, **start, **copies})
    used_by = frozenset[Var]().union(*[variables(index) for index, _ in places])
    at = {v: loops.place(v.name, inside) for v in loops.variables if v in used_by and ctx.is_open(v.name, inside)}
    if a.of and loops.root[a.of] in at:
        at[loops.root[a.of]] += a.by * loops.stride(a.of, here)
    out: list[Stmt] = []
    for index, dtype in places:
        place = subs(index, at) + (0 if a.of else a.by * 8 // dtype.bits)
        run = _run(ctx, a, place, copies, dtype, here)
        if run is not None:
            out += [s for s in run if s not in out and s not in known]
            continue
        line, used = LINE * 8 // dtype.bits, list[tuple[Var, int]]()
        for x, v in copies.items():
            step = coefficient(place, v)
            beside = max(line // abs(step), 1) if isinstance(step, int) and step else 1  # copies that share a line
            count = 1 if step == 0 else -(-loops.most(x) // beside)
            each = Var(x, 0, count - 1)
            used += [(each, count)] if count > 1 else []
            place = subs(place, {v: each * beside if count > 1 else 0})
        sharing = [x for x in _between(ctx, a, here) if here.places[x] not in variables(place)]
        if len(used) == 1 and sharing:
            (each, count), x = used[0], sharing[-1]
            share = -(-count // loops.most(x)) if isinstance(loops.extent(x), int) else 1
            first = here.places[x] * share
            fetches: list[Stmt] = [Prefetch(a.operand, subs(place, {each: (first + q) % count}), a.far)
                                   for q in range(share)]
        else:
            fetches = [Prefetch(a.operand, place, a.far)]
            for each, count in reversed(used):
                fetches = [Loop(each, 0, count, "unroll", tuple(fetches))]
        out += [s for s in fetches if s not in out and s not in known]
    return out


def _between(ctx: Context, a: Ahead, here: Position) -> list[str]:
    """Open loops of the domain that are serial and inside the one that a prefetch is ahead of."""
    order = ctx.loops.order
    first = order.index(a.of) + 1 if a.of in order else len(order)
    return [x for x in order[first:] if x in here.places and ctx.loops.kind[x] == "serial" and not ctx.loops.space[x]]


def _run(ctx: Context, a: Ahead, place: Index, copies: dict[str, Var], dtype: DType, here: Position
         ) -> list[Stmt] | None:
    """Lines of one run of memory, of which each iteration of a sum's loop prefetches its share; None where the copies
    and that loop do not read one."""
    loops, k = ctx.loops, here.places[a.at]
    if not isinstance(k, Var) or not loops.space[a.at] or not a.of or loops.space[a.of]:
        return None
    root = loops.root[a.at]
    step = coefficient(place, k)
    apart = [(v, coefficient(place, v)) for v in copies.values()]
    apart = [(v, c) for v, c in apart if c != 0]
    serial = [x for x in loops.inside(root.name) if loops.kind[x] != "unroll"]
    if len(apart) != 1 or serial != [a.at] or step != loops.stride(a.at, here) or apart[0][1] != root.hi + 1:
        return None
    (v, _), line = apart[0], LINE * 8 // dtype.bits
    share = (v.hi + 1) * step
    if not isinstance(share, int):
        return None
    start = subs(place, {v: 0, k: 0})
    return [Prefetch(a.operand, start + k * share + q * line, a.far) for q in range(-(-share // line))]
