"""Kernel + nest + plan -> loop IR: the one builder. Sums are in sums.py, the names of loops in loops.py.

A Kernel says what each element of an output is. The builder evaluates that at an index inside the loops that the plan
names; each split says what becomes of a block that is not whole, so that every plan that passes `check` gives the same
numbers, apart from the rounding of sums in parts.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from minigrad.codegen.ir.launch import function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, If, Let, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.ir.walk import fresh
from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter, loaded
from minigrad.codegen.plan.ahead import outputs_ahead
from minigrad.codegen.plan.call import Called, call_tile, with_tile
from minigrad.codegen.plan.call_blocks import call_blocks
from minigrad.codegen.plan.check import check
from minigrad.codegen.plan.groups import Items, copied_by_items
from minigrad.codegen.plan.here import Here
from minigrad.codegen.plan.loops import Cut, Loops, divides
from minigrad.codegen.plan.matrix_units import Wave, with_wave
from minigrad.codegen.plan.results import Gathered
from minigrad.codegen.plan.spaces import Unit, repeats, touched, units
from minigrad.codegen.plan.stage import fill, staged
from minigrad.codegen.plan.steps import Ahead, Plan, Stage, resolve
from minigrad.codegen.plan.steps.call import block_calls
from minigrad.codegen.plan.steps.results import results_of
from minigrad.codegen.plan.sums import inner_reductions, kept_sums, sums_together
from minigrad.expr import Index, Var, bounds, subs
from minigrad.value import Value, const, guard, load, local, substitute

Names = Mapping[str, Value]
"""The values that names of definitions stand for."""


def build(kernel: Kernel, nest: Nest, plan: Plan, name: str) -> Function:
    """The loops of one nest of a flat kernel. Raises PlanError where the plan is not one for it."""
    loops, wave, tile = with_microkernels(resolve(nest, plan))
    check(kernel, loops)
    return Builder(kernel, loops, wave, tile).function(name)


def with_microkernels(loops: Loops) -> tuple[Loops, Wave | None, Called | None]:
    """The loops with those of a matrix unit or a tile. Raises PlanError where the ones inside a call are others."""
    loops, wave = with_wave(loops)
    loops, tile = with_tile(loops)
    return loops, wave, tile


class Builder:
    """`outer`: loops of the domain around all sums; `copies`: unrolled ones inside them; `middle`: from the outermost
    loop of a sum to the last loop of the domain that is not unrolled, where sums are kept in memory between them.
    `items`: of work-groups. `repeats`: a block that reaches back stores again what is there; work-items would race."""

    def __init__(self, kernel: Kernel, loops: Loops, wave: Wave | None, tile: Called | None):
        self.kernel, self.nest, self.loops, self.wave, self.called = kernel, loops.nest, loops, wave, tile
        self.ahead, results = loops.of(Ahead), results_of(loops)
        self.taken = {p.name for p in kernel.params} | {s.name for s in kernel.scalars} | {d.name for d in kernel.dims}
        self.taken |= set(loops.root)
        self.dtypes = {p.name: p.dtype for p in kernel.params}
        order, first = loops.order, loops.first_sum
        kept = loops.kept
        if results is not None:
            first = order.index(results.at) + 1
            kept = [x for x in order if not loops.space[x] and loops.kind[x] != "unroll"]
        last = max([first, *(k + 1 for k, x in enumerate(order) if x in kept)])
        if tile is not None:
            last = order.index(tile.step.at) + 1
        self.outer, self.middle = tuple([x for x in order[:first] if not loops.space[x]]), order[first:last]
        self.copies = tuple([x for x in order[last:] if not loops.space[x] and loops.kind[x] != "call"
                             and tile is None])
        self.items = Items(self) if "item" in loops.kind.values() else None
        self.staged = tuple([staged(self, step) for step in loops.of(Stage)])
        self.stored, self.repeats = touched(self.nest.body)[1], self.items is None and repeats(kernel, self.nest)
        self.memory: list[Alloc] = [s.alloc() for s in self.staged]
        self.gathered: Gathered | None = None
        if results is not None:
            self.gathered = Gathered(self, results, self.loops.units[0])  # type: ignore[arg-type]
            self.memory += self.gathered.allocs()

    def name(self, stem: str) -> str:
        """A name that nothing else in the function has."""
        return fresh(stem, self.taken)

    def function(self, name: str) -> Function:
        loops = self.loops
        head = [x for x in self.outer if loops.kind[x] in ("parallel", "group")]
        p, total, places = spread([loops.count(x, Here()) for x in head], head[0] if len(head) == 1 else self.name("p"))
        here = self.located(Here(dict(zip(head, places, strict=True))))
        body = [*(s for x in head for s in (*self.fills(x, here), *outputs_ahead(self, x, here))),
                *self.domain(len(head), here)]
        if self.items is not None:
            body = [Loop(self.items.var, 0, self.items.count, "item", tuple(body))]
        kind = "parallel" if self.items is None else "group"
        return function_of(self.kernel, name, Loop(p, 0, total, kind, (*self.memory, *body)))

    # ---- loops ----

    def opened(self, here: Here, name: str, place: Index) -> Here:
        """`here` inside a loop."""
        at, places, wave = dict(here.at), {**here.places, name: place}, self.wave
        inside = Here(places, at, here.gone, here.whole, tuple([x for x in here.copies if x != name]), here.masked)
        opened = [name]
        if wave is not None and name == wave.each:
            places |= wave.places(places)
            opened = [wave.row, wave.column]
        for v in [self.loops.root[x] for x in opened]:
            if v not in at and self.is_open(v.name, inside):
                at[v] = self.loops.place(v.name, inside)
        return inside

    def instead(self, here: Here, s: Cut, place: Index) -> Here:
        """`here` inside a loop over what a split took apart, without the loops of its blocks."""
        gone = here.gone | self.loops.inside(s.outer) | self.loops.inside(s.inner)
        return self.opened(replace(here, gone=gone, whole=here.whole | {s.loop}), s.loop, place)

    def located(self, here: Here) -> Here:
        """`here` with what the variables are whose loops are all open."""
        at: dict[Var, Index] = {}
        here = replace(here, at=at)
        for v in self.loops.variables:
            if self.is_open(v.name, here):
                at[v] = self.loops.place(v.name, here)
        return here

    def is_open(self, name: str, here: Here) -> bool:
        """True where all loops that a loop was taken apart into are open."""
        s = self.loops.split.get(name)
        return name in here.places or s is not None and self.is_open(s.outer, here) and self.is_open(s.inner, here)

    def fills(self, name: str, here: Here) -> list[Stmt]:
        """The copies of operands that are made in a loop."""
        return [s for made in self.staged if made.filled == name and not made.step.items
                for s in fill(self, made, here)]

    def loop(self, name: str, here: Here, inner: Callable[[Here], list[Stmt]]) -> list[Stmt]:
        """A loop and what is inside it; work-items are there already."""
        if self.items is not None and name in self.items.places:
            return inner(self.opened(here, name, self.items.places[name]))
        count = self.loops.count(name, here)
        most = self.loops.most(name) if type(count) is not int and self.loops.is_short(name) else count
        var = Var(name, 0, most - 1)
        at = self.opened(here, name, var)
        loop = Loop(var, 0, count, self.loops.kind[name], (*self.fills(name, at), *outputs_ahead(self, name, at),
                                                           *inner(at)))
        return [loop] if self.items is None else copied_by_items(self, self.items, name, at, loop)

    def copied(self, names: Sequence[str], here: Here, inner: Callable[[Here], list[Stmt]]) -> list[Stmt]:
        """Loops inside each other, and what is inside them."""
        if not names:
            return inner(here)
        return self.loop(names[0], here, lambda at: self.copied(names[1:], at, inner))

    def domain(self, k: int, here: Here) -> list[Stmt]:
        """The loops of the domain from the k-th on, then the nest's statements."""
        left = [x for x in (*self.outer[k:], *self.copies) if x not in here.gone]
        outer = k < len(self.outer)
        for x in left[:1] if outer else left:
            s = self.undecided(x, here)
            if s is not None:
                return self.whole_or_rest(s, here, lambda at: self.domain(k, at))
        if not outer and self.gathered is not None:
            sums = call_blocks(self, here) if block_calls(self.loops) else self.kept(0, here)
            return [*sums, *self.gathered.leave(here)]
        if not outer and self.middle:
            return self.kept(0, here)
        if not outer:
            return self.tile(self.loops.units, replace(here, copies=tuple(left)))
        if self.outer[k] in here.gone:
            return self.domain(k + 1, here)
        return self.loop(self.outer[k], here, lambda at: self.domain(k + 1, at))

    def undecided(self, name: str, here: Here) -> Cut | None:
        """The outermost split around a loop whose last block may run as a loop of its own, if nothing is known yet of
        the present block."""
        found, s = None, self.loops.made_by.get(name)
        while s is not None:
            if s.edge == "rest" and name in self.loops.inside(s.inner) and s.loop not in here.whole and \
                    not divides(s, self.loops.count(s.loop, here)):
                found = s
            s = self.loops.made_by.get(s.loop)
        return found

    def whole_or_rest(self, s: Cut, here: Here, inner: Callable[[Here], list[Stmt]]) -> list[Stmt]:
        """A block of a split of the domain: whole, or what is left of it one by one."""
        base, length = self.loops.start(s, here), self.loops.count(s.loop, here)
        x = Var(s.loop, 0, length - 1)
        start = length // s.size * s.size if isinstance(length, int) else base  # only the last block is not whole
        rest = Loop(x, start, length, "serial", tuple(inner(self.instead(here, s, x))))
        if bounds(length)[1] < s.size:
            return [rest]
        whole = inner(replace(here, whole=here.whole | {s.loop}))
        return [If((length - base - s.size,), tuple(whole), (rest,))]

    # ---- statements ----

    def tile(self, body: Sequence[Unit], here: Here) -> list[Stmt]:
        """The nest's statements: sums for all copies at once, what follows them copy by copy."""
        out: list[Stmt] = []
        names: Names = {}
        while body and isinstance(body[0], tuple):
            emitted, names = sums_together(self, body[0], here, names)
            out += emitted
            body = body[1:]
        return [*out, *self.copy_by_copy(body, here, names)]

    def kept(self, k: int, here: Here) -> list[Stmt]:
        """Loops of a sum and of the domain inside them, from the k-th on: its accumulators stay in memory from one
        iteration of the sum's to the next."""
        if k < len(self.middle):
            return self.loop(self.middle[k], here, lambda at: self.kept(k + 1, at))
        if self.called is not None:
            return call_tile(self, self.called, here)
        first, *rest = self.loops.units
        here = replace(here, copies=self.copies)
        sums, results = kept_sums(self, first, here)  # type: ignore[arg-type]
        if self.gathered is not None:
            return [*sums.begin(here), *sums.steps(here), *sums.join(here), *sums.keep(here, ())]
        done = [*sums.join(here), *self.copy_by_copy(rest, here, results)]
        return [*sums.begin(here), *sums.steps(here), *sums.keep(here, done)]

    def copy_by_copy(self, body: Sequence[Unit], here: Here, names: Names) -> list[Stmt]:
        """The statements after the sums of a tile."""
        if not body:
            return []

        def each(masked: bool) -> list[Stmt]:
            at = replace(here, copies=(), masked=masked)
            return self.copied(here.copies, at, lambda at: self.each(body, at, names))

        whole = () if self.loops.valid else self.where_whole(here)
        return [If(whole, tuple(each(False)), tuple(each(True)))] if whole else each(bool(self.loops.valid))

    def each(self, body: Sequence[Unit], here: Here, names: Names, where: tuple[Index, ...] = ()) -> list[Stmt]:
        """Statements in order, one element of the domain at a time; stores `where` conditions hold."""
        out: list[Stmt] = []
        for k, s in enumerate(body):
            if isinstance(s, tuple):
                emitted, names = sums_together(self, s, here, names)
                out += emitted
            elif isinstance(s, Define):
                value, before = self.value(s.value, here, names)
                name, conditions = self.name(s.name), self.within(here) if loaded(s.value) else ()
                out += [*before, Let(name, guard(value, const(0, value.dtype), conditions))]
                names = {**names, s.name: local(name, value.dtype)}
            elif isinstance(s, Store):
                out += self.store(s, here, names, where)
            else:
                out += self.inner(s, here, names)
            if self.items is not None and touched((s,))[1] & touched(body[k + 1:])[0]:
                out.append(Barrier())
        return out

    def value(self, value: Value, here: Here, names: Names) -> tuple[Value, list[Stmt]]:
        """The value at a place; reductions inside it are computed before."""
        (value,), before = inner_reductions(self, [Rewriter({}, locals_=names).value(value)], here)
        return substitute(value, here.at), before

    def store(self, s: Store, here: Here, names: Names, where: tuple[Index, ...] = ()) -> list[Stmt]:
        value, before = self.value(s.value, here, names)
        offset = Rewriter(here.at, locals_=names).index(s.indices[0])
        if s.combine and s.combine != "set":
            value = MONOIDS[s.combine].apply(load(s.param, (offset,), value.dtype), value)
        conditions = (*where, *(self.own(here) if here.masked else ()), *self.within(here))
        once = () if self.items is None else self.items.once(here)
        return [*before, IRStore(s.param, offset, value, (*once, *conditions))]

    def inner(self, nest: Nest, here: Here, names: Names) -> list[Stmt]:
        """An inner nest: its loops, then its statements."""
        own = {v.name for v in nest.domain}
        names_of_loops = [x for x in self.loops.order if self.loops.root[x].name in own]
        return self.swept(names_of_loops, here, lambda at: self.each(units(nest.body), at, names))

    def swept(self, names: Sequence[str], here: Here, inner: Callable[[Here], list[Stmt]],
              first: Callable[[str, Here], list[Stmt]] = lambda _, __: []) -> list[Stmt]:
        """Loops that no worker shares, whole blocks first, then what those leave; what each iteration does `first`.
        Lanes that are open already leave theirs to whoever joins them."""
        if not names:
            return inner(here)
        x, left = names[0], names[1:]
        if x in here.gone:
            return self.swept(left, here, inner, first)
        loop = self.loop(x, here, lambda at: [*first(x, at), *self.swept(left, at, inner, first)])
        tails: list[Stmt] = []
        for s in self.begun_by(x, here):
            length = self.loops.count(s.loop, here)
            rest = Var(s.loop, 0, length - 1)
            tails.append(Loop(rest, length // s.size * s.size, length, "serial",
                              tuple(self.swept(left, self.instead(here, s, rest), inner, first))))
        return [*loop, *tails] if self.loops.count(x, here) != 0 or not tails else tails

    def begun_by(self, name: str, here: Here) -> list[Cut]:
        """Splits whose blocks a loop is the outermost over, and which may leave some elements; not those across lanes
        that are open."""
        found, s = [], self.loops.made_by.get(name)
        while s is not None:
            over, inside = self.loops.inside(s.outer), self.loops.inside(s.inner)
            if s.edge == "rest" and name == next(x for x in self.loops.order if x in over) and \
                    not divides(s, self.loops.count(s.loop, here)) and \
                    not any(self.loops.kind[i] == "vector" and i in here.places for i in inside):
                found.append(s)
            s = self.loops.made_by.get(s.loop)
        return found

    # ---- blocks that are not whole ----

    def within(self, here: Here, of: Container[Var] | None = None) -> tuple[Index, ...]:
        """The conditions of an element that no block with the edge guard has too much; of some variables."""
        return tuple([self.loops.count(s.loop, here) - 1 - self.loops.inside_block(s.loop, here)
                      for s in self.loops.split.values() if s.edge == "guard" and not self.loops.beyond(s)
                      and s.loop not in here.places and self.is_open(s.loop, here)
                      and (of is None or self.loops.root[s.loop] in of)
                      and not divides(s, self.loops.count(s.loop, here))])

    def reaching_back(self, here: Here) -> list[Cut]:
        """Splits of the domain whose last block may reach back over the one before it, where that must not store."""
        return [s for s in self.loops.split.values() if s.edge == "back" and not self.repeats
                and not here.gone & self.loops.inside(s.loop) and s.loop not in here.whole
                and s.loop not in here.places and not divides(s, self.loops.count(s.loop, here))]

    def where_whole(self, here: Here) -> tuple[Index, ...]:
        """The conditions under which all that a tile covers is its own: those of its last copy and its last lane."""
        within = (*here.copies, *[x for x in here.places if self.loops.kind.get(x) == "vector"])
        last = replace(here, places={**here.places, **{x: self.loops.most(x) - 1 for x in within}})
        first = replace(here, places={**here.places, **dict.fromkeys(within, 0)})
        found = []
        for s in self.reaching_back(here):
            total, step = self.loops.count(self.loops.top(s.loop), here), self.loops.step(s, here)
            known = self.loops.inside_block(s.inner, first) if s.outer in here.copies else 0
            found.append(total - self.loops.base(s, last) - step + known)
        return tuple(found)

    def own(self, here: Here) -> tuple[Index, ...]:
        """The conditions of an element that is its block's own."""
        own = [self.loops.place(self.loops.top(s.loop), here) - self.loops.base(s, here)
               for s in self.reaching_back(here)]
        return tuple([e for e in (*own, *(subs(e, here.at) for e in self.loops.valid)) if bounds(e)[0] < 0])
