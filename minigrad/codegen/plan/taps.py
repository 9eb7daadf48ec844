"""Terms of windows, element by element of the copy that they read.

    order .. r0 u, both unrolled,        for r0: for u: acc[u] += x[u+r0] * w[r0]
    and x is staged as [u+r0]      ->    x = x_staged[0];  acc[0] += x * w[0]
                                         x = x_staged[3];  acc[3] += x * w[0];  acc[2] += x * w[1];  acc[1] += x * w[2]
                                         ..

Each element is loaded once and goes into all sums that it meets; as neighbours go into the same ones, which takes its
time, every third element comes first (of three taps); not where two workers make a sum, as the order of its terms
depends on the copy then.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from minigrad.codegen.ir.nodes import Let, Loop, Stmt, Store
from minigrad.codegen.ir.walk import map_all
from minigrad.codegen.kernel.nodes import Store as KernelStore
from minigrad.codegen.kernel.value_walk import replace_values
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.coordinates import terms_of
from minigrad.codegen.plan.loop_nest import swept
from minigrad.codegen.plan.loops import Loops, divides
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.spaces import Unit
from minigrad.expr import Index, Var, subs
from minigrad.value import Value, local, substitute, walk

LIGHT = 6
"""Operations after the sums of a tile up to which they are written out."""


@dataclass(frozen=True, slots=True)
class Meetings:
    """A tap and a copy of the tile whose sum is a coordinate of memory; by element the iterations of both that meet
    it, in the order in which elements are loaded."""

    tap: str
    copy: str
    elements: list[list[tuple[int, int]]]


def meetings(ctx: Context, around: Sequence[str], here: Position) -> Meetings | None:
    """Those of a sum with loops `around` it, where the tap and the copy are unrolled and innermost; else None."""
    loops = ctx.loops
    order = [x for x in loops.order if x in around or x in here.copies]
    for c in [c for made in ctx.staged for c in made.step.layout]:
        terms = [(f, x) for f, x in terms_of(c) if x in loops.root]
        for (f, x), (g, tap) in (terms, terms[::-1]) if len(terms) == 2 else ():
            copy = next((y for y in sorted(loops.inside(x)) if loops.kind[y] == "unroll"
                         and loops.stride(y, Position()) == 1), "")
            if f < 0 or copy not in order or tap not in order or not {tap, copy} & set(around):
                continue
            if all([loops.kind[y] == "unroll" for y in order[min(order.index(tap), order.index(copy)):]]):
                meet: dict[int, list[tuple[int, int]]] = {}
                for t, k in product(range(loops.most(tap)), range(loops.most(copy))):
                    meet.setdefault(f * k + g * t, []).append((t, k))
                step, places = 1 if _again(loops, copy) else -(-loops.most(tap) // f), sorted(meet)
                return Meetings(tap, copy, [meet[p] for k in range(step) for p in places[k::step]])
    return None


def _again(loops: Loops, copy: str) -> bool:
    """True where blocks of workers reach back: two copies make the same sum, and must add its terms in one order."""
    return any([s.edge == "back" and loops.root[s.loop] is loops.root[copy] and not divides(s, loops.extent(s.loop))
                and any([loops.kind[x] == "parallel" for x in loops.inside(s.outer)]) for s in loops.split.values()])


def by_element(ctx: Context, met: Meetings, around: Sequence[str], step: Callable[[Position, bool], list[Stmt]],
               here: Position) -> list[Stmt]:
    """The terms of all taps and copies, `step` making those of one place; where a block is not whole those that it has,
    one by one."""
    own = met.tap, met.copy
    if here.omitted & set(own):
        left = [x for x in around if x in own and x not in here.omitted]
        return swept(ctx, left, here, lambda at: step(at, False))
    ctx.written_out = True
    loops = [Var(x, 0, ctx.loops.most(x) - 1) for x in (*own, *[x for x in here.copies if x not in own])]
    at = here
    for v in loops:
        at = ctx.opened(at, v.name, v)
    term, out = tuple(step(at, False)), list[Stmt]()
    for meet in met.elements:
        for places in product(*[range(ctx.loops.most(v.name)) for v in loops[2:]]):
            made = [x for taps in meet for x in placed(term, dict(zip(loops, (*taps, *places), strict=True)))]
            out += _loaded_once(ctx, made)
    return out


def placed(body: tuple[Stmt, ...], at: dict[Var, Index]) -> tuple[Stmt, ...]:
    """Statements with indices in place of variables."""
    return tuple(map_all(body, lambda v: substitute(v, at), lambda e: subs(e, at), lambda _, e: subs(e, at)))


def written_out(body: Sequence[Stmt]) -> list[Stmt]:
    """Statements with those in unrolled loops once for each iteration."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and s.kind == "unroll" and isinstance(s.stop, int):
            out += [x for k in range(s.stop) for x in written_out(placed(s.body, {s.var: k}))]
        else:
            out.append(s)
    return out


def is_light(body: Sequence[Unit]) -> bool:
    """True where what follows the sums of a tile that is written out is as short written out as looped over."""
    values = [s.value for s in body if isinstance(s, KernelStore)]
    return len(values) == len(body) and sum(
        v.op not in ("const", "local", "load", "index") for v in walk(*values)) <= LIGHT


def _loaded_once(ctx: Context, made: list[Stmt]) -> list[Stmt]:
    """Statements with a name for each element of a copy that they read."""
    memory = {x.memory for x in ctx.staged}
    found: dict[Value, None] = dict.fromkeys([v for x in made if isinstance(x, Store) for v in walk(x.value)
                                              if v.op == "load" and v.buffer in memory])
    names = {v: local(ctx.name("x"), v.dtype) for v in found}
    return [*[Let(x.name, v) for v, x in names.items()],
            *[Store(x.buffer, x.offset, replace_values(x.value, names), x.conditions) if isinstance(x, Store) else x
              for x in made]]
