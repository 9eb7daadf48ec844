"""The loops of a nest under a plan: what each variable is made of, in which order they run and how."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.microkernels.block_product import product_named
from minigrad.codegen.plan.fuse import Fused, check_split, fuse
from minigrad.codegen.plan.spaces import Unit, spaces, units
from minigrad.codegen.plan.steps import (
    KINDS,
    Ahead,
    Bind,
    Call,
    Order,
    Parts,
    Plan,
    Results,
    Sizes,
    Split,
    Stage,
)
from minigrad.codegen.plan.text import loop_of, refuse, terms_of
from minigrad.errors import PlanError
from minigrad.expr import Index, Var, emin, exact_quotient, subs, variables

if TYPE_CHECKING:
    from minigrad.codegen.plan.call import Called
    from minigrad.codegen.plan.matrix_units import Wave


@dataclass(frozen=True, slots=True)
class Here:
    """The place where statements are emitted.

    places: what each open loop is; at: what each variable of the nest is whose loops are all open
    gone: loops that are left out, as what a block that is not whole leaves runs in a loop of its own
    whole: splits whose present block is known to be whole, or to be what is left
    copies: loops of the domain that sums have accumulators for, not open yet
    masked: stores need the conditions of blocks that reach back
    """

    places: Mapping[str, Index] = field(default_factory=dict)
    at: Mapping[Var, Index] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    copies: tuple[str, ...] = ()
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Loops:
    """A resolved plan. Loops are named; those that were split are no longer in `order`.

    nest: with what was fused as one variable; root: the variable of it that each loop is a part of
    space: the number of the loop nest that a loop belongs to, 0 for the domain
    around: per loop nest, variables of those that it is inside of; sums: whether it is a sum's
    made_by: the split that made a loop; split: the one that a loop was taken apart by
    kind: how each runs; wave: of a matrix unit; counts: iterations of loops that no variable is made of
    tile: that a microkernel runs
    units: the nest's statements in the order in which they run
    leaves, fixed, cut: what `inside`, `count` and `cut_short` found out that holds at every place
    """

    nest: Nest
    order: tuple[str, ...]
    root: dict[str, Var]
    space: dict[str, int]
    around: list[tuple[Var, ...]]
    sums: list[bool]
    made_by: dict[str, Split]
    split: dict[str, Split]
    kind: dict[str, str]
    parts: frozenset[str]
    ahead: tuple[Ahead, ...]
    stages: tuple[Stage, ...]
    calls: tuple[Call, ...]
    fused: Fused
    units: tuple[Unit, ...]
    results: Results | None = None
    wave: Wave | None = None
    tile: Called | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    leaves: dict[str, frozenset[str]] = field(default_factory=dict)
    fixed: dict[str, Index] = field(default_factory=dict)
    cut: dict[str, bool] = field(default_factory=dict)

    @property
    def blocks(self) -> list[Call]:
        """The calls of products with quantised blocks."""
        return [c for c in self.calls if product_named(c.kernel) is not None]

    @property
    def first_sum(self) -> int:
        """The place in `order` of the first loop that is not of the domain, nor of work-items; after the last where
        there is none."""
        return next((k for k, x in enumerate(self.order) if self.space[x] and self.kind[x] != "item"), len(self.order))

    @property
    def kept(self) -> list[str]:
        """Loops of the domain inside those of a sum that are not unrolled."""
        return [x for x in self.order[self.first_sum:] if not self.space[x] and self.kind[x] not in ("unroll", "call")]

    @property
    def variables(self) -> list[Var]:
        """The variables of the nest that have loops of their own."""
        return list(dict.fromkeys(self.root.values()))

    def beyond(self, s: Split) -> bool:
        """True where results by way of memory have room for what the last block of a split with the edge guard has too
        much: it is computed, of the last element, and never looked at."""
        if s.edge != "guard" or self.results is None or self.space[s.loop]:
            return False
        return self.inside(s.loop).isdisjoint(self.order[:self.order.index(self.results.at) + 1])

    def inside(self, name: str) -> frozenset[str]:
        """The loops in `order` that a loop was taken apart into, itself if it was not."""
        found = self.leaves.get(name)
        if found is None:
            s = self.split.get(name)
            found = frozenset((name,)) if s is None else self.inside(s.outer) | self.inside(s.inner)
            self.leaves[name] = found
        return found

    def count(self, name: str, here: Here) -> Index:
        """Iterations of a loop. What whole blocks of a sum or an inner nest leave is not among them: it is a loop
        after theirs."""
        found = self.fixed.get(name)
        if found is None:
            found = self._count(name, here)
            hi = 0 if name in self.counts else self.root[name].hi
            if not self.cut_short(name) and (isinstance(hi, int) or variables(hi).isdisjoint(self.root.values())):
                self.fixed[name] = found
        return found

    def _count(self, name: str, here: Here) -> Index:
        s = self.made_by.get(name)
        if s is None:
            if name in self.counts:
                return self.counts[name]
            hi = self.root[name].hi
            return (hi if isinstance(hi, int) else subs(hi, here.at)) + 1
        if name == s.inner and s.edge == "short" and not divides(s, self.count(s.loop, here)):
            if divides(s, self.extent(s.loop)):  # then a run ends early only where the loop on top does
                return emin(s.length, self.count(self.top(s.loop), here) - self.base(s, here))
            return emin(s.length, self.count(s.loop, here) - self.start(s, here))
        if (name == s.inner) != s.into:
            return s.length
        total = self.count(s.loop, here)
        rest = s.edge == "rest" and self.space[name]
        return total // s.length if rest else ceil_div(total + self.below(s.loop), s.length)

    def below(self, name: str) -> int:
        """Rows that copies have below those of a loop."""
        return int(self.tile is not None and self.tile.biased and self.tile.row == name)

    def most(self, name: str) -> int:
        """Iterations of a loop at most, where that is known. Raises PlanError elsewhere."""
        count = self.extent(name)
        if not isinstance(count, int):
            raise PlanError(f"[plan] expected a known extent of {name}, got {count}")
        return count

    def is_short(self, name: str) -> bool:
        """True where the last block of a split may have fewer iterations of a loop."""
        s = self.made_by.get(name)
        return s is not None and name == s.inner and s.edge == "short"

    def extent(self, name: str) -> Index:
        """Iterations of a loop where no block is cut short."""
        s = self.made_by.get(name)
        if s is not None and self.is_short(name):
            return s.length
        if s is not None and (name == s.outer) != s.into and self.cut_short(s.loop):
            return ceil_div(self.extent(s.loop), s.length)
        return self.count(name, Here())

    def cut_short(self, name: str) -> bool:
        """True where the iterations of a loop depend on which block it is in."""
        found = self.cut.get(name)
        if found is None:
            s = self.made_by.get(name)
            if s is None:
                found = False
            elif self.is_short(name):
                found = not divides(s, self.extent(s.loop)) or self.cut_short(s.loop)
            else:
                found = (name == s.inner) == s.into and self.cut_short(s.loop)
            self.cut[name] = found
        return found

    def stride(self, name: str, here: Here) -> Index:
        """The step of a loop's variable of the nest in one iteration."""
        s = self.made_by.get(name)
        if s is None:
            return 1
        return self.stride(s.loop, here) * (self.step(s, here) if name == s.outer else 1)

    def step(self, s: Split, here: Here) -> Index:
        """The distance of blocks of a split from each other."""
        return self.count(s.inner, here) if s.into else s.length

    def start(self, s: Split, here: Here) -> Index:
        """The begin of a block of a split, before it reaches back: counted along the loop that is split."""
        return self.place(s.outer, here) * self.step(s, here)

    def top(self, name: str) -> str:
        """The loop that a loop is a run of consecutive iterations of."""
        s = self.made_by.get(name)
        return self.top(s.loop) if s is not None and name == s.inner else name

    def upwards(self, s: Split) -> Iterator[Split]:
        """A split and those around it that it is a part of the blocks of."""
        yield s
        while (parent := self.made_by.get(s.loop)) is not None:
            if s.loop == parent.inner:
                yield parent
            s = parent

    def base(self, s: Split, here: Here) -> Index:
        """The begin of a block of a split, before it reaches back: counted along the loop on top of it."""
        parent, start = self.made_by.get(s.loop), self.start(s, here)
        return start if parent is None or s.loop != parent.inner else self.begin(parent, here) + start

    def begin(self, s: Split, here: Here) -> Index:
        """The begin of a block of a split, counted likewise."""
        base = self.base(s, here)
        if s.edge != "back" or divides(s, self.count(s.loop, here)):
            return base
        return emin(base, self.count(self.top(s.loop), here) - self.step(s, here))

    def inside_block(self, name: str, here: Here) -> Index:
        """A loop's variable, counted from the begin of the block that it is in."""
        start: Index = 0
        while name not in here.places:
            s = self.split[name]
            start, name = start + self.start(s, here), s.inner
        return start + here.places[name]

    def place(self, name: str, here: Here) -> Index:
        """A loop's variable; of what goes on beyond the end, the last one."""
        start: Index = 0
        last: Index | None = None
        while name not in here.places:
            s = self.split[name]
            start, name = self.begin(s, here), s.inner
            if self.beyond(s) and not divides(s, self.count(s.loop, here)):
                last = self.base(s, here) - self.start(s, here) + self.count(s.loop, here) - 1
        return start + here.places[name] if last is None else emin(start + here.places[name], last)


def divides(s: Split, total: Index) -> bool:
    """True where the size is known to divide the extent."""
    if isinstance(total, int):
        return isinstance(s.length, int) and total % s.length == 0
    return isinstance(s.length, int) and exact_quotient(total, s.length) is not None


def resolve(nest: Nest, plan: Plan) -> Loops:
    """The loops of a nest under a plan. Raises PlanError naming the step and what was expected."""
    root: dict[str, Var] = {}
    space: dict[str, int] = {}
    along: dict[str, str] = {}
    fused = fuse(nest, plan)
    nest = fused.nest
    nests = spaces(nest)
    for number, found in enumerate(nests):
        for v in found.own:
            root[v.name], space[v.name] = v, number
        along |= found.along
    names, made_by, split = list(root), dict[str, Split](), dict[str, Split]()
    kind, parts, order = dict[str, str](), set[str](), tuple[str, ...]()
    ahead, stages, calls, results = list[Ahead](), list[Stage](), list[Call](), list[Results]()
    ordered = False
    blocks = [s.inner for s in fused.steps if isinstance(s, Split) and s.edge == "short"]
    for step in fused.steps:
        for name in step.names:
            if name not in names and not (isinstance(step, Sizes) and name in blocks):
                where = f", whose sum runs in the loops of {along[name]}'s" if name in along else ""
                raise refuse(step, f"a loop among {' '.join(names)}", f"{name}{where}")
        if isinstance(step, Sizes) and (split or ordered):
            raise refuse(step, "sizes before all other steps", "them after some")
        if isinstance(step, Sizes):
            continue
        if isinstance(step, Split):
            if ordered:
                raise refuse(step, "splits before order, bind and parts", "one after them")
            check_split(step, {*root, *fused.names})
            for name in (step.outer, step.inner):
                root[name], space[name], made_by[name] = root[step.loop], space[step.loop], step
            split[step.loop] = step
            at = names.index(step.loop)
            names[at:at + 1] = [step.outer, step.inner]
            continue
        if isinstance(step, Order):
            if order or len(set(step.loops)) != len(step.loops):
                raise refuse(step, "each loop once, in one step", "another order" if order else "a loop twice")
            order = step.loops
        elif isinstance(step, Bind):
            if step.kind not in KINDS:
                raise refuse(step, f"a kind among {', '.join(KINDS)}", step.kind)
            for name in step.loops:
                if name in kind:
                    raise refuse(step, "one kind for each loop", f"{name}, which is bound {kind[name]}")
            kind |= dict.fromkeys(step.loops, step.kind)
        elif isinstance(step, Parts):
            parts |= set(step.loops)
        elif isinstance(step, Ahead):
            ahead.append(step)
        elif isinstance(step, Call):
            calls.append(step)
        elif isinstance(step, Results):
            if results:
                raise refuse(step, "results by way of one memory", "another one")
            unknown = [x for x in step.layout if x not in root and not fused.member(x)]
            if unknown or step.transposed and step.transposed not in step.layout:
                raise refuse(step, f"coordinates among {' '.join(root)}", unknown[0] if unknown else step.transposed)
            results.append(step)
        elif isinstance(step, Stage):
            parts_of = [loop_of(x) for c in step.layout for _, x in terms_of(c)]
            unknown = [x for x in (*parts_of, *([step.transposed] if step.transposed else []))
                       if x not in root and not fused.member(x)]
            if unknown or step.transposed and step.transposed not in step.layout:
                raise refuse(step, f"coordinates among {' '.join(root)}", unknown[0] if unknown else step.transposed)
            stages.append(step)
        ordered = True
    order = (*order, *[name for name in names if name not in order])
    around, sums = [found.around for found in nests], [found.is_sum for found in nests]
    kinds = {name: kind.get(name, "serial") for name in order}
    return Loops(nest, order, root, space, around, sums, made_by, split, kinds, frozenset(parts), tuple(ahead),
                 tuple(stages), tuple(calls), fused, tuple(units(nest.body)), next(iter(results), None))


def adds_in_order(nest: Nest, plan: Plan) -> bool:
    """True where each sum of a nest runs from its first term to its last in one accumulator, lanes along the domain."""
    loops = resolve(nest, plan)
    lanes = [x for x in loops.order if loops.kind[x] == "vector"]
    return not loops.parts and bool(lanes) and not any(loops.space[x] for x in lanes) and len(set(
        loops.space.values())) <= 2
