"""Sums (and other reductions) under a plan: accumulators for all copies, loops, parts and lanes that are joined.

    alloc acc[copies * parts] register
    acc[...] = 0
    for r ...: for copies unroll: for parts unroll:
      acc[...] = combine(acc[...], body)
    acc[copy, 0] = all parts of a copy, by a tree           `parts`, and lanes along the sum
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import prod

from minigrad.codegen.ir.nodes import Alloc, If, Let, Loop, Stmt, Store
from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.kernel.monoid import MONOIDS, Monoid, accumulate
from minigrad.codegen.kernel.nodes import Define
from minigrad.codegen.kernel.value_walk import Rewriter, loaded, replace_values
from minigrad.codegen.microkernels.matrix import matrix_microkernel
from minigrad.codegen.plan.ahead import operands_ahead
from minigrad.codegen.plan.box import check_fused_rows_dense
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.group_reduction import Joined, joined
from minigrad.codegen.plan.kept import Kept, Level, runs
from minigrad.codegen.plan.loop_nest import copied, loop_of, swept
from minigrad.codegen.plan.loops import Cut, divides, refuse
from minigrad.codegen.plan.matrix_units import Wave
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.spaces import terms_of_sums
from minigrad.codegen.plan.taps import by_element, meetings
from minigrad.errors import present
from minigrad.expr import Index, Var, emin
from minigrad.value import Value, across, binary, const, free_variables, guard, load, local, substitute, walk


def sums_together(ctx: Context, group: Sequence[Define], here: Position, names: Mapping[str, Value]
                  ) -> tuple[list[Stmt], dict[str, Value]]:
    """Sums that share their loops, for all copies; and the names, with what the sums are now."""
    over = group[0].value.over
    bodies = list(zip([s.value.monoid for s in group], terms_of_sums(group, names), strict=True))
    emitted, results = _sums(ctx, over, bodies, [s.name for s in group], here)
    return emitted, dict(names) | {s.name: value for s, value in zip(group, results, strict=True)}


def inner_reductions(ctx: Context, values: Sequence[Value], here: Position) -> tuple[list[Value], list[Stmt]]:
    """Values with what the reductions inside them are, and the statements that compute those. Reductions over the same
    variables share their loops."""
    spaces: dict[tuple[Var, ...], list[Value]] = {}
    for v in outermost_reductions(values):
        spaces.setdefault(v.over, []).append(v)
    out: list[Stmt] = []
    known: dict[Value, Value] = {}
    for over, found in spaces.items():
        bodies = [(v.monoid, v.args[0]) for v in found]
        emitted, results = _sums(ctx, over, bodies, ["t"] * len(found), here)
        out += emitted
        known |= zip(found, results, strict=True)
    return [replace_values(v, known) for v in values] if known else list(values), out


def outermost_reductions(values: Sequence[Value]) -> list[Value]:
    """Reductions in values that are in no other reduction, each once."""
    found: dict[Value, None] = {}
    stack = list(reversed(values))
    seen: set[Value] = set()
    while stack:
        v = stack.pop()
        if v in seen or not v.reduces:
            continue
        seen.add(v)
        if v.op == "reduce":
            found[v] = None
        else:
            stack += reversed(v.args)
    return list(found)


def addends(value: Value) -> tuple[Value, ...]:
    """The terms that are added one after another to a sum: the terms of a value that has sums inside it, or all of
    it."""
    if value.op == "add" and value.dtype.is_float and value.reduces:
        return (*addends(value.args[0]), *addends(value.args[1]))
    return (value,)


def kept_sums(ctx: Context, group: Sequence[Define], here: Position) -> tuple[Sum, dict[str, Value]]:
    """The sums of a tile, whose accumulators are kept; and what the names of the sums are at the end."""
    loops, size = ctx.loops, 1
    place: Index = 0
    outside = [x for x in ctx.middle if loops.space[x] and loops.count(x, here) != 1]
    for x in ctx.middle:
        if not loops.space[x] and loops.kind[x] != "vector":
            place, size = place * loops.most(x) + here.places[x], size * loops.most(x)
    lane = next((x for x in (*ctx.outer, *ctx.middle) if loops.kind[x] == "vector" and x in here.places), None)
    over = group[0].value.over
    kept = Kept(*runs(ctx, outside, here), place,
                0 if lane is None else here.places[lane], 1 if lane is None else loops.most(lane))
    bodies = list(zip([s.value.monoid for s in group], terms_of_sums(group), strict=True))
    made = Sum(ctx, over, bodies, here, kept)
    for level in kept.levels if outside else ():
        for t in made.terms:
            if ctx.gathered is None:
                ctx.memory.append(Alloc(t.kept_in(level), t.body.dtype, size * kept.lanes * made.count(
                    (*t.used, *made.parts)), "scratch"))
            elif level.suffix:
                ctx.memory.append(Alloc(t.kept_in(level), t.body.dtype, ctx.gathered.box.size, "scratch"))
    return made, {s.name: value for s, value in zip(group, made.results(), strict=True)}


def _sums(ctx: Context, over: tuple[Var, ...], bodies: Sequence[tuple[str, Value]], names: Sequence[str], here: Position
          ) -> tuple[list[Stmt], list[Value]]:
    """The statements of reductions over one space, and their results: slots for copies that are not open yet, or else
    the names."""
    made = Sum(ctx, over, bodies, here)
    out, results = made.statements(), made.results()
    if not here.copies:
        for k, value in enumerate(results):
            name = ctx.name(names[k])
            out.append(Let(name, value))
            results[k] = local(name, value.dtype)
    return out, results


@dataclass(frozen=True, slots=True)
class Term:
    """One of several reductions with the same loops: how its body is combined, the copies that it differs in, and the
    register buffers of its accumulators and, with lanes along the sum, of its totals."""

    monoid: Monoid
    body: Value
    used: tuple[str, ...]
    acc: str
    total: str
    memory: str

    def kept_in(self, level: Level) -> str:
        """The memory in which it is kept during a run."""
        return f"{self.acc}_kept{level.suffix}" if level.suffix else self.memory


class Sum:
    """Reductions over one space. `around`: their loops, and copies that stand outside some of these; `lane`: the loop
    of theirs across lanes; `parts`: of theirs in accumulators of their own. `last`: the split that made lanes which are
    one vector and not whole: what is beyond the end is left out where lanes are joined."""

    def __init__(self, ctx: Context, over: tuple[Var, ...], bodies: Sequence[tuple[str, Value]], here: Position,
                 kept: Kept | None = None):
        self.ctx, self.here, self.kept = ctx, here, kept
        self.levels, self.resumed = ((), False) if kept is None else (kept.levels, kept.resumed)
        own, loops = {v.name for v in over}, ctx.loops
        self.over = over
        names = [x for x in loops.order if x not in here.omitted and x not in here.places and loops.kind[x] != "call"
                 and (loops.root[x].name in own or x in here.copies)]
        self.lane = next((x for x in names if loops.kind[x] == "vector" and x not in here.copies), None)
        names = [x for x in names if x != self.lane]
        split = loops.made_by.get(self.lane or "")
        one = split is not None and split.edge == "guard" and loops.extent(split.outer) == 1
        self.last = split if one and any([s.box.padded for s in ctx.staged]) else None
        last = max((k for k, x in enumerate(names) if x not in here.copies), default=-1) + 1
        self.around = names[:last]
        self.parts = tuple([x for x in self.around if x in loops.parts])
        self.joined: list[Joined] = []
        self.guarded = {v for v in over if any(s.edge == "guard" and loops.root[s.loop] is v
                                               for s in loops.split.values())}
        self.terms = []
        gathered = list(ctx.gathered.memory.values()) if kept is not None and ctx.gathered is not None else []
        for k, (monoid, body) in enumerate(bodies):
            free = free_variables(body)
            body = replace_values(body, {s.part: local(s.memory, s.part.dtype) for s in ctx.staged})
            check_fused_rows_dense(ctx.loops, body)
            used = tuple([x for x in here.copies if x in self.around or loops.root[x] in free])
            acc = ctx.name("acc")
            if gathered:
                used = here.copies
            total = acc if self.lane is None else ctx.name("total")
            self.terms.append(Term(MONOIDS[monoid], body, used, acc, total, gathered[k] if gathered else f"{acc}_kept"))

    def statements(self) -> list[Stmt]:
        """Everything up to the results."""
        if self.lane is not None:
            return self.across(self.lane)
        out = self.in_order(self.here)
        if self.ctx.items is not None and any(self.ctx.loops.kind[x] == "item" for x in self.around):
            self.joined = [joined(self.ctx, self.ctx.items, self.around, t.monoid, t.acc, self.count(t.used),
                                  self.count(self.parts), t.body.dtype, out) for t in self.terms]
        return out

    def results(self) -> list[Value]:
        """The results, read from where they are."""
        if self.joined:
            return [at(self.slot(t.used, (), self.here)) for t, at in zip(self.terms, self.joined, strict=True)]
        parts = self.parts if self.lane is None else ()
        return [load(t.total, (self.slot(t.used, parts, self.here),), t.body.dtype) for t in self.terms]

    def in_order(self, here: Position) -> list[Stmt]:
        """Accumulators, the loops, and the parts joined."""
        return [*self.begin(here), *self.steps(here), *self.join(here)]

    def steps(self, here: Position) -> list[Stmt]:
        """The loops, and what they add to the accumulators."""
        bodies = [t.body for t in self.terms]
        met = meetings(self.ctx, self.around, here)
        if met is None:
            around, terms = self.around, lambda at: self.step(at, False)
        else:
            around = [x for x in self.around if x not in (met.tap, met.copy)]
            terms = partial(by_element, self.ctx, met, self.around, self.step)
        return swept(self.ctx, around, here, terms, lambda name, at: operands_ahead(self.ctx, bodies, name, at))

    def count(self, names: Sequence[str]) -> int:
        return prod([self.ctx.loops.most(x) for x in names])

    def slot(self, copies: Sequence[str], parts: Sequence[str], here: Position) -> Index:
        """The place of an accumulator; a part that runs no more has the first one."""
        position: Index = 0
        for x in (*copies, *parts):
            count = self.ctx.loops.most(x)
            position = position * count + here.places.get(x, 0 if x in parts else Var(x, 0, count - 1))
        return position

    def begin(self, here: Position) -> list[Stmt]:
        """The accumulators, at their start; sums that are kept go on with what they were."""
        out: list[Stmt] = []
        for t in self.terms:
            start = self.each((t,), here, lambda t, slot, _: Store(t.acc, slot, t.monoid.init(t.body.dtype)))
            if self.resumed and self.levels and self.levels[0].first:
                again = self.each((t,), here, lambda t, slot, at: Store(t.acc, slot, self.kept_value(t, slot, at)))
                start = [If(self.levels[0].first, tuple(start), tuple(again))]
            out += [Alloc(t.acc, t.body.dtype, self.count((*t.used, *self.parts)), "register"), *start]
        return out

    def kept_at(self, t: Term, slot: Index, here: Position) -> Index:
        """The place where one of the sums is kept."""
        if self.ctx.gathered is not None:
            return self.ctx.gathered.box.at(here)
        kept = present(self.kept, "[plan] expected sums that are kept")
        return (kept.place * self.count((*t.used, *self.parts)) + slot) * kept.lanes + kept.lane

    def kept_value(self, t: Term, slot: Index, here: Position, k: int = 0) -> Value:
        """Reads what is kept of one of the sums, in the memory of the k-th level."""
        return load(t.kept_in(self.levels[k]), (self.kept_at(t, slot, here),), t.body.dtype)

    def keep(self, here: Position, done: Sequence[Stmt], k: int = 0) -> list[Stmt]:
        """The accumulators to memory until the sums go on, from the k-th level on; or `done` where they end."""
        if k == len(self.levels):
            return list(done)
        level = self.levels[k]
        kept = self.each(self.terms, here, lambda t, slot, at: Store(
            t.kept_in(level), self.kept_at(t, slot, at), load(t.acc, (slot,), t.body.dtype)))
        ends = bool(level.last) and (bool(done) or k + 1 < len(self.levels))
        out = list(done) or kept
        if ends:
            out = [If(level.last, tuple(self.keep(here, done, k + 1)), tuple(kept))]
        if k or not self.resumed:
            before = self.each(self.terms, here, lambda t, slot, at: Store(t.acc, slot, t.monoid.apply(
                self.kept_value(t, slot, at, k), load(t.acc, (slot,), t.body.dtype))))
            out = [If((-1 - level.first[0],), tuple(before)), *out]
        return out

    def each(self, terms: Sequence[Term], here: Position, make: Callable[[Term, Index, Position], Stmt]) -> list[Stmt]:
        """A statement for each accumulator."""
        out: list[Stmt] = []
        for t in terms:
            out += copied(self.ctx, (*t.used, *self.parts), here, lambda at, t=t: [  # type: ignore[misc]
                make(t, self.slot(t.used, self.parts, at), at)])
        return out

    def step(self, here: Position, whole: bool) -> list[Stmt]:
        """The statements by which one step of a sum adds to the accumulators of all copies that are not open; `whole`:
        to the totals."""
        wave = self.ctx.wave
        if wave is not None:
            copies = [x for x in here.copies if x != wave.each]
            return copied(self.ctx, copies, here, lambda at: [self.unit(wave, at)])
        added = [addends(t.body) for t in self.terms]
        values, before = inner_reductions(self.ctx, [v for each in added for v in each], here)
        found = iter(values)
        known = [[next(found) for _ in each] for each in added]

        def update(here: Position, terms: Sequence[int]) -> list[Stmt]:
            out: list[Stmt] = []
            for k in terms:
                t = self.terms[k]
                at, memory = self.slot(t.used, () if whole else self.parts, here), t.total if whole else t.acc
                for value in known[k]:
                    old = load(memory, (at,), t.body.dtype)
                    out.append(Store(memory, at, accumulate(t.monoid, old, self.read(t, value, here))))
            return out

        out = before
        for used, together in groupby(range(len(self.terms)), lambda k: self.terms[k].used):
            terms = tuple(together)
            left = [x for x in used if x in here.copies]
            out += copied(self.ctx, left, here, lambda at, terms=terms: update(at, terms))  # type: ignore[misc]
        return out

    def unit(self, wave: Wave, here: Position) -> IRCall:
        """The call that adds a block of products to the sums of a wave. Raises PlanError for other sums than of
        products of two copies."""
        term, loops, kernel = self.terms[0], self.ctx.loops, matrix_microkernel(wave.step.kernel)
        at = replace(here, places={**here.places, **dict.fromkeys((wave.row, wave.column, wave.depth, wave.each), 0)})
        sides = [next((x for x in self.ctx.staged if len(x.step.layout) == 2 and loop in loops.inside(x.step.layout[0])
                       and wave.depth in loops.inside(x.step.layout[1])), None) for loop in (wave.row, wave.column)]
        a, b = sides
        if a is None or b is None or kernel is None or len(self.terms) > 1 or term.monoid.name != "sum" or \
                term.body.op != "mul" or {v.attr for v in term.body.args} != {a.memory, b.memory}:
            raise refuse(wave.step, f"one sum of products of two copies, laid out along {wave.row}, {wave.column} and "
                                    f"then {wave.depth}", "another one")
        slot = self.slot(term.used, (), at)
        return IRCall(kernel, ((a.memory, a.box.at(at)), (b.memory, b.box.at(at)), (term.acc, slot)), (),
                      (here.places[wave.lane], a.box.pitches[-2], b.box.pitches[-2]))

    def read(self, t: Term, value: Value, here: Position) -> Value:
        """A value at a place, copies of operands in place of these; neutral outside blocks with the edge guard."""
        needed = self.needed(value)
        conditions = () if t.monoid.name == "sum" and self.is_zero_outside(value) else self.ctx.within(here, needed)
        at = here.at
        if conditions and self.ctx.items is not None and loaded(value) & self.ctx.stored:
            at = {v: emin(place, v.hi) for v, place in at.items()}  # what another group writes is not read and dropped
        value = substitute(value, at)
        names = {v.name for v in walk(value) if v.op == "local"}
        copies = {s.memory: s.read(here) for s in self.ctx.staged if s.memory in names}
        value = Rewriter({}, locals_=copies).value(value) if copies else value
        if conditions and needed is not None and t.monoid.name == "sum" and value.op == "mul":
            zero, made = const(0, value.dtype), {s.memory for s in self.ctx.staged}
            masked = [a for a in value.args if self.last is None or made.isdisjoint(loaded(a))]
            return binary("mul", *[guard(a, zero, conditions) if a in masked else a for a in value.args])
        return guard(value, t.monoid.init(value.dtype), conditions)

    def needed(self, value: Value) -> frozenset[Var] | None:
        """The variables beyond whose blocks a term is not looked at: those of the sum, and those on which what it reads
        depends besides copies with room; None for all."""
        made = {s.memory: s.box.padded or s.step.items and len(s.step.layout) > 1 for s in self.ctx.staged}
        read = [made[v.name] for v in walk(value) if v.op == "local" and v.name in made]
        return free_variables(value) | set(self.over) if read and all(read) else None

    def is_zero_outside(self, value: Value) -> bool:
        """True where a value is a product, or sums of products of bits, of copies that hold 0 outside blocks of the
        sum with the edge guard."""
        if value.op == "local":
            return any(s.memory == value.name and self.guarded <= free_variables(s.factor) for s in self.ctx.staged)
        if value.op in ("and", "shl", "shr"):
            return self.is_zero_outside(value.args[0])
        return value.op in ("mul", "neg", "cast", "add") and all([self.is_zero_outside(a) for a in value.args])

    def join(self, here: Position) -> list[Stmt]:
        """All parts of a copy become the first, by a fixed tree."""
        out: list[Stmt] = []
        count = self.count(self.parts)
        steps = [(c, 1 << k) for k in range(count.bit_length()) for c in range(0, count - (1 << k), 2 << k)]
        for t in self.terms:
            for c, step in steps:
                def joined(at: Position, t: Term = t, x: int = c, y: int = c + step) -> list[Stmt]:
                    first = self.slot(t.used, (), at) * count
                    old, other = (load(t.acc, (first + part,), t.body.dtype) for part in (x, y))
                    return [Store(t.acc, first + x, t.monoid.apply(old, other))]
                out += copied(self.ctx, t.used, here, joined)
        return out

    def across(self, lane: str) -> list[Stmt]:
        """Vectors along the sum, joined across lanes at the end; then what whole vectors leave."""
        ctx, here, parts = self.ctx, self.here, self.count(self.parts)

        def vector(at: Position) -> list[Stmt]:
            out = self.in_order(at)
            for t in self.terms:
                def total(at: Position, t: Term = t) -> list[Stmt]:
                    slot = self.slot(t.used, (), at)
                    value, left = load(t.acc, (slot * parts,), t.body.dtype), tuple[Index, ...]()
                    if self.last is not None:
                        left = (ctx.loops.count(self.last.loop, at) - 1 - at.places[lane],)
                    value = guard(value, t.monoid.init(t.body.dtype), left)
                    return [Store(t.total, slot, across(t.monoid.name, value))]
                out += copied(ctx, t.used, at, total)
            return out

        out: list[Stmt] = [Alloc(t.total, t.body.dtype, self.count(t.used), "register") for t in self.terms]
        out += loop_of(ctx, lane, here, vector)
        split = ctx.loops.made_by.get(lane)
        if split is not None and split.edge == "rest" and not divides(split, ctx.loops.count(split.loop, here)):
            out += self.left_by_vectors(split)
        return out

    def left_by_vectors(self, split: Cut) -> list[Stmt]:
        """The last terms, one by one."""
        ctx, here = self.ctx, self.here
        length, parts = ctx.loops.count(split.loop, here), ctx.loops.inside(split.loop)
        x = Var(split.loop, 0, length - 1)
        return swept(ctx, [o for o in self.around if o not in parts and o not in here.copies], here, lambda at: [
            Loop(x, length // split.size * split.size, length, "serial", tuple(
                self.step(ctx.instead(at, split, x), True)))])
