"""The knowledge that all parts of the builder share of a nest: names, work-items, memory, and where loops stand."""
from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from math import prod

from minigrad.codegen.ir.launch import places_of
from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.ir.walk import fresh
from minigrad.codegen.kernel.nodes import Define, Kernel, Store
from minigrad.codegen.plan.box import box
from minigrad.codegen.plan.loops import Cut, Loops, divides
from minigrad.codegen.plan.matrix_units import Wave
from minigrad.codegen.plan.places import Places
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.spaces import repeats, touched
from minigrad.codegen.plan.stage import staged
from minigrad.codegen.plan.steps import Ahead, Results, Stage
from minigrad.codegen.plan.steps.results import results_of
from minigrad.codegen.plan.tiles import Tiled
from minigrad.expr import Index, Var, bounds, subs
from minigrad.value import Value, index


class Items:
    """The work-items of a group: `var` counts them, `places` says what each loop of theirs is. `size` work-items
    share the loops `shared`, of sums and inner nests, those of the first and those of each other one: the first of
    them is `base`, the others follow `stride` apart, and each is the `member`-th."""

    def __init__(self, loops: Loops, name: str):
        counts = {x: loops.most(x) for x in loops.bound_to("item")}
        self.shared = [x for x in counts if loops.space[x]]
        first = [x for x in self.shared if loops.space[x] == loops.space[self.shared[0]]]
        own = [x for x in counts if x in first or x not in self.shared]
        sizes = [counts[x] for x in own]
        self.count, self.size, self.stride = prod(sizes), 1, 1
        self.var = Var(name, 0, self.count - 1)
        self.places = dict(zip(own, places_of(self.var, sizes), strict=True))
        self.base: Index = 0
        self.member: Index = 0
        for k, x in enumerate(own):
            if x in first:
                self.member = self.member * sizes[k] + self.places[x]
                self.size, self.stride = self.size * sizes[k], prod(sizes[k + 1:])
            else:
                self.base = self.base + self.places[x] * prod(sizes[k + 1:])
        self.places |= {x: self.places[first[k % len(first)]] for k, x in enumerate(self.shared)}

    def once(self, here: Position) -> tuple[Index, ...]:
        """The condition of one of the work-items that share an element, where all of them come to it."""
        return () if not self.shared or any(x in here.places for x in self.shared) else (-self.member,)


class Gathered:
    """The memory of the sums of a nest, `memory` by their names. `rest`: the statements after them; `values`: that are
    stored there, and those of their indices."""

    def __init__(self, ctx: Context, step: Results, sums: tuple[Define, ...]):
        self.step, self.sums = step, sums
        self.rest = [s for s in ctx.nest.body if s not in sums]
        self.values: list[Value] = [s.value for s in self.rest if isinstance(s, Define | Store)]
        self.values += [index(e, s.value.dtype) for s in self.rest if isinstance(s, Store) for e in s.indices]
        self.box = box(ctx.loops, step, max(s.value.dtype.itemsize for s in sums))
        self.memory = {s.name: ctx.name(f"{s.name}_kept") for s in sums}
        self.dtypes = {s.name: s.value.dtype if ctx.tile is None else ctx.tile.tile.sum for s in sums}


class Context(Places):
    """`outer`: loops of the domain around all sums; `copies`: unrolled ones inside them; `middle`: from the outermost
    loop of a sum to the last loop of the domain that is not unrolled, where sums are kept in memory between them.
    `items`: of work-groups; `tile`: what a microkernel computes; `memory`: of the function.
    `of_stores`: variables of the domain and of inner nests; `written_out`: a tile's terms are. `repeats`: a block that
    reaches back stores again what is there; work-items would race."""

    def __init__(self, kernel: Kernel, loops: Loops, wave: Wave | None, tile: Tiled | None):
        super().__init__(loops, wave)
        self.kernel, self.nest, self.tile = kernel, loops.nest, tile
        self.taken = {p.name for p in kernel.params} | {s.name for s in kernel.scalars} | {d.name for d in kernel.dims}
        self.taken |= set(loops.root)
        self.dtypes = {p.name: p.dtype for p in kernel.params}
        self.ahead, results = loops.of(Ahead), results_of(loops)
        order, first, kept = loops.order, loops.first_reduction, loops.accumulated_outside
        if results is not None:
            first = order.index(results.at) + 1
            kept = [x for x in order if not loops.space[x] and loops.kind[x] != "unroll"]
        last = max([first, *(k + 1 for k, x in enumerate(order) if x in kept)])
        if tile is not None:
            last = order.index(tile.step.at) + 1
        self.outer, self.middle = tuple([x for x in order[:first] if not loops.space[x]]), order[first:last]
        self.copies = tuple([x for x in order[last:] if not loops.space[x] and loops.kind[x] != "call"
                             and tile is None])
        self.items = Items(loops, self.name("t")) if "item" in loops.kind.values() else None
        self.staged = tuple([staged(loops, step, wave, tile, self.name(f"{step.operand}_staged"))
                             for step in loops.of(Stage)])
        self.of_stores = frozenset([v for space in loops.spaces if not space.is_sum for v in space.own])
        self.stored, self.repeats = touched(self.nest.body)[1], self.items is None and repeats(kernel, self.nest)
        self.memory: list[Alloc] = [s.alloc() for s in self.staged]
        self.gathered: Gathered | None = None
        self.written_out = False
        if results is not None:
            self.gathered = Gathered(self, results, loops.units[0])  # type: ignore[arg-type]
            self.memory += [Alloc(name, self.gathered.dtypes[of], self.gathered.box.size, "scratch")
                            for of, name in self.gathered.memory.items()]

    def name(self, stem: str) -> str:
        """A name that nothing else in the function has."""
        return fresh(stem, self.taken)

    def instead(self, here: Position, s: Cut, place: Index) -> Position:
        """`here` inside a loop over what a split took apart, without the loops of its blocks."""
        omitted = here.omitted | self.loops.inside(s.outer) | self.loops.inside(s.inner)
        return self.opened(replace(here, omitted=omitted, full_splits=here.full_splits | {s.loop}), s.loop, place)

    # ---- blocks that are not whole ----

    def undecided(self, name: str, here: Position) -> Cut | None:
        """The outermost split around a loop whose last block may run as a loop of its own, if nothing is known yet of
        the present block."""
        found = [s for s in self.loops.makers(name) if s.edge == "rest" and name in self.loops.inside(s.inner)
                 and s.loop not in here.full_splits and not divides(s, self.loops.count(s.loop, here))]
        return found[-1] if found else None

    def begun_by(self, name: str, here: Position) -> list[Cut]:
        """Splits whose blocks a loop is the outermost over, and which may leave some elements; not those across lanes
        that are open."""
        return [s for s in self.loops.makers(name) if s.edge == "rest"
                and name == next(x for x in self.loops.order if x in self.loops.inside(s.outer))
                and not divides(s, self.loops.count(s.loop, here))
                and not any(self.loops.kind[x] == "vector" and x in here.places for x in self.loops.inside(s.inner))]

    def within(self, here: Position, of: Container[Var] | None = None) -> tuple[Index, ...]:
        """The conditions of an element that no block with the edge guard has too much; of some variables."""
        return tuple([self.loops.count(s.loop, here) - 1 - self.loops.inside_block(s.loop, here)
                      for s in self.loops.split.values() if s.edge == "guard" and not self.loops.pads_results(s)
                      and s.loop not in here.places and self.is_open(s.loop, here)
                      and (of is None or self.loops.root[s.loop] in of)
                      and not divides(s, self.loops.count(s.loop, here))])

    def reaching_back(self, here: Position) -> list[Cut]:
        """Splits of the domain whose last block may reach back over the one before it, where that must not store."""
        if self.repeats:
            return []
        all_open = replace(here, places={**here.places, **dict.fromkeys(here.copies, 0)})
        return [s for s in self.loops.split.values() if s.edge == "back" and s.loop not in here.full_splits
                and s.loop not in here.places and self.is_open(s.loop, all_open)
                and not divides(s, self.loops.count(s.loop, here))]

    def where_whole(self, here: Position) -> tuple[Index, ...]:
        """The conditions under which all that a tile covers is its own: those of its last copy and its last lane."""
        within = (*here.copies, *[x for x in here.places if self.loops.kind.get(x) == "vector"])
        last = replace(here, places={**here.places, **{x: self.loops.most(x) - 1 for x in within}})
        first = replace(here, places={**here.places, **dict.fromkeys(within, 0)})
        found = []
        back = self.reaching_back(here)
        for s in back:
            total, step = self.loops.count(self.loops.top(s.loop), here), self.loops.step(s, here)
            known = self.loops.inside_block(s.inner, first) if s.outer in here.copies else 0
            found.append(total - self.loops.base(s, last) - step + known)
        return (*found, *self.before_next(back, last))

    def before_next(self, back: Sequence[Cut], here: Position) -> tuple[Index, ...]:
        """The conditions of an element of a block that is split further, by these splits: parts that do not divide the
        block go on into the next one, whose elements these are."""
        loops = self.loops
        around = [(s.loop, loops.made_by.get(s.loop)) for s in back]
        return tuple([loops.begin(p, here) + loops.count(x, here) - 1 - loops.place(loops.top(x), here)
                      for x, p in around if p is not None and x == p.inner])

    def own(self, here: Position) -> tuple[Index, ...]:
        """The conditions of an element that is its block's own."""
        back = self.reaching_back(here)
        own = [self.loops.place(self.loops.top(s.loop), here) - self.loops.base(s, here) for s in back]
        valid = [subs(e, here.at) for e in self.loops.valid]
        return tuple([e for e in (*own, *self.before_next(back, here), *valid) if bounds(e)[0] < 0])
