"""The loops of a nest under a plan: what each variable is made of, in which order they run and how; and what all steps
have in common. Each step makes loops of the loops before it (`steps`)."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self, TypeVar

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.position import NOWHERE, Position
from minigrad.codegen.plan.spaces import Space, Unit, spaces, units
from minigrad.errors import PlanError
from minigrad.expr import Index, Var, emin, exact_quotient, subs, variables

NAME = r"[A-Za-z_]\w*"
NAMES = rf"{NAME}(?: {NAME})*"
Match = re.Match[str]
Faults = Iterator[str]


def refuse(step: object, expected: str, got: str) -> PlanError:
    """The error for a step."""
    return PlanError(f"[plan] {step}: expected {expected}, got {got}")


class Step:
    """One line of a plan: a value that prints as that line.

    usage: how it is written; pattern: of its text, which `parsed` has a match of
    shapes: it makes loops of others, and stands before all steps that speak of these
    """

    __slots__ = ()
    usage: ClassVar[str]
    pattern: ClassVar[str]
    shapes: ClassVar[bool] = False

    @classmethod
    def parsed(cls, found: Match) -> Self:
        return cls(*found.groups())

    @property
    def names(self) -> tuple[str, ...]:
        """The loops that it is about, all of them there before it."""
        return ()

    def apply(self, loops: Loops) -> Loops:
        """The loops with this step, whose `names` there are. Raises PlanError naming the step and what was expected."""
        return loops.after(self)

    def faults(self, loops: Loops) -> Faults:
        """Messages about what is wrong with it among all steps; each says where, what was expected and why."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Listed(Step):
    """A step that says one thing of several loops."""

    loops: tuple[str, ...]

    @classmethod
    def parsed(cls, found: Match) -> Self:
        return cls(tuple(found[1].split()))

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops

    def __str__(self) -> str:
        return f"{self.usage.split()[0]} {' '.join(self.loops)}"


S = TypeVar("S", bound=Step)


@dataclass(frozen=True, slots=True)
class Cut:
    """A loop that is two, loop = size*outer + inner, as `split` makes it of one (`steps/split.py`)."""

    loop: str
    outer: str
    inner: str
    size: int
    edge: str = "exact"
    into: bool = False
    times: Index = 1

    @property
    def length(self) -> Index:
        """The size, where a program takes it as an argument as well."""
        return self.size * self.times


@dataclass(frozen=True, slots=True)
class Fused:
    """Two loops that a step made one of: loop = row*outer + inner, of `rows` and of `most` iterations."""

    step: Step
    loop: str
    outer: str
    inner: str
    pitch: int
    rows: int
    most: int

    @property
    def row(self) -> int:
        """The distance of steps of the outer one."""
        return self.pitch or self.most


@dataclass(frozen=True)
class Loops:
    """The loops that the steps so far make of a nest. They are named; those that were split are no longer in `order`.

    nest: with what was fused as one variable; spaces: its domain, then its sums and inner nests
    root: the variable of it that each loop is a part of; results_at: the loop in which sums go to memory first, or ''
    steps: those so far; given: the loops before any, where the nest has another form since
    bound: how loops run that are not serial by default; parts: loops with an accumulator for each iteration
    fused: what was made one loop, by its name; valid: conditions (>= 0) under which an element is one of the nest's
        own, where a row is longer than its loop or a block reaches back; gone: names that loops had before
    counts: iterations of loops that no variable is made of
    row_below: the loop that copies have one more row below the last of, or ''
    """

    nest: Nest
    spaces: tuple[Space, ...]
    order: tuple[str, ...]
    root: Mapping[str, Var]
    steps: tuple[Step, ...] = ()
    given: Loops | None = None
    bound: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    results_at: str = ""
    fused: Mapping[str, Fused] = field(default_factory=dict)
    valid: tuple[Index, ...] = ()
    gone: frozenset[str] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    row_below: str = ""

    def after(self, step: Step, **changes: object) -> Loops:
        """The loops with one more step, and what it changes."""
        made, known = object.__new__(Loops), self.__dict__
        made.__dict__.update(known if len(known) == len(_FIELDS) else {name: known[name] for name in _FIELDS})
        made.__dict__.update(changes, steps=(*self.steps, step))
        return made

    def then(self, step: Step) -> Loops:
        """The loops after one more step. Raises PlanError naming the step and what was expected."""
        for name in step.names:
            if name not in self.order:
                raise PlanError(f"[plan] {self.unknown(step, name, self.order)}")
        return step.apply(self)

    def unknown(self, step: Step, name: str, names: Sequence[str]) -> str:
        """The message about a name of no loop in a step."""
        along = {x: own for space in self.spaces for x, own in space.along.items()}
        where = f", whose sum runs in the loops of {along[name]}'s" if name in along else ""
        return f"{step}: expected a loop among {' '.join(names)}, got {name}{where}"

    def of(self, kind: type[S]) -> tuple[S, ...]:
        """The steps of a class."""
        return tuple([s for s in self.left if isinstance(s, kind)])

    @cached_property
    def left(self) -> tuple[Step, ...]:
        """The steps but those splits that are a part of `nest`, as what they make was fused."""
        return tuple([s for s in self.steps if not isinstance(s, Cut) or s.outer not in self.gone])

    @cached_property
    def split(self) -> dict[str, Cut]:
        """By loop, how it was taken apart."""
        return {s.loop: s for s in self.left if isinstance(s, Cut)}

    @cached_property
    def made_by(self) -> dict[str, Cut]:
        """By loop, of what and how it was made."""
        return {x: s for s in self.split.values() for x in (s.outer, s.inner)}

    @cached_property
    def space(self) -> dict[str, int]:
        """By loop, the number of the loop nest that it belongs to, 0 for the domain."""
        numbers = {v: k for k, space in enumerate(self.spaces) for v in space.own}
        return {x: numbers.get(v, 0) for x, v in self.root.items()}

    @cached_property
    def kind(self) -> dict[str, str]:
        """By loop, how it runs."""
        return {x: self.bound.get(x, "serial") for x in self.order}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The nest's statements in the order in which they run."""
        return tuple(units(self.nest.body))

    @cached_property
    def first_reduction(self) -> int:
        """The place in `order` of the first loop that is not of the domain, nor of work-items; after the last where
        there is none."""
        return next((k for k, x in enumerate(self.order) if self.space[x] and self.kind[x] != "item"), len(self.order))

    @cached_property
    def accumulated_outside(self) -> list[str]:
        """Loops of the domain inside those of a sum that are not unrolled."""
        inside = self.order[self.first_reduction:]
        return [x for x in inside if not self.space[x] and self.kind[x] not in ("unroll", "call")]

    @cached_property
    def gathered(self) -> frozenset[str]:
        """The loops of the domain whose results go by way of memory."""
        inside = self.order[self.order.index(self.results_at) + 1:] if self.results_at else ()
        return frozenset([x for x in inside if not self.space[x]])

    @cached_property
    def variables(self) -> list[Var]:
        """The variables of the nest that have loops of their own."""
        return list(dict.fromkeys(self.root.values()))

    @cached_property
    def ones(self) -> dict[str, int]:
        """The place of each loop that runs once, as its variable has one value."""
        return {x: 0 for x in self.order if self.root[x].hi == 0 and self.extent(x) == 1}

    @cached_property
    def members(self) -> dict[str, Fused]:
        """By loop, that of which it is a part since it was fused."""
        return {name: f for f in reversed([*self.fused.values()]) for name in (f.outer, f.inner)}

    @cached_property
    def _known(self) -> tuple[dict[str, frozenset[str]], dict[str, Index], dict[str, bool]]:
        """The results of `inside`, `count` and `cut_short` that hold at every place."""
        return {}, {}, {}

    def bound_to(self, *kinds: str) -> list[str]:
        """The loops of some kinds, in order."""
        return [x for x in self.order if self.kind[x] in kinds]

    def sums(self, name: str) -> bool:
        """True where a loop is a sum's."""
        return self.spaces[self.space[name]].is_sum

    def pads_results(self, s: Cut) -> bool:
        """True where results by way of memory have room for what the last block of a split with the edge guard has too
        much: it is computed, of the last element, and never looked at."""
        return s.edge == "guard" and self.inside(s.loop) <= self.gathered

    def inside(self, name: str) -> frozenset[str]:
        """The loops in `order` that a loop was taken apart into, itself if it was not."""
        found = self._known[0].get(name)
        if found is None:
            s = self.split.get(name)
            found = frozenset((name,)) if s is None else self.inside(s.outer) | self.inside(s.inner)
            self._known[0][name] = found
        return found

    def count(self, name: str, here: Position) -> Index:
        """Iterations of a loop. What whole blocks of a sum or an inner nest leave is not among them: it is a loop
        after theirs."""
        found = self._known[1].get(name)
        if found is None:
            found = self._count(name, here)
            hi = 0 if name in self.counts else self.root[name].hi
            if not self.cut_short(name) and (isinstance(hi, int) or variables(hi).isdisjoint(self.root.values())):
                self._known[1][name] = found
        return found

    def _count(self, name: str, here: Position) -> Index:
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
        return total // s.length if rest else ceil_div(total + int(s.loop == self.row_below), s.length)

    def most(self, name: str) -> int:
        """Iterations of a loop at most, where that is known. Raises PlanError elsewhere."""
        count = self.extent(name)
        if not isinstance(count, int):
            raise PlanError(f"[plan] expected a known extent of {name}, got {count}")
        return count

    def is_short(self, name: str) -> bool:
        """True where the last block of a split may have fewer iterations of a loop."""
        return (s := self.made_by.get(name)) is not None and name == s.inner and s.edge == "short"

    def extent(self, name: str) -> Index:
        """Iterations of a loop where no block is cut short."""
        s = self.made_by.get(name)
        if s is not None and self.is_short(name):
            return s.length
        if s is not None and (name == s.outer) != s.into and self.cut_short(s.loop):
            return ceil_div(self.extent(s.loop), s.length)
        return self.count(name, NOWHERE)

    def cut_short(self, name: str) -> bool:
        """True where the iterations of a loop depend on which block it is in."""
        found = self._known[2].get(name)
        if found is None:
            s = self.made_by.get(name)
            if s is not None and self.is_short(name):
                found = not divides(s, self.extent(s.loop)) or self.cut_short(s.loop)
            else:
                found = s is not None and (name == s.inner) == s.into and self.cut_short(s.loop)
            self._known[2][name] = found
        return found

    def is_whole(self, s: Cut) -> bool:
        """True where all blocks of a split are known to be whole."""
        return divides(s, self.extent(s.loop)) and not self.cut_short(s.loop)

    def stride(self, name: str, here: Position) -> Index:
        """The step of a loop's variable of the nest in one iteration."""
        s = self.made_by.get(name)
        if s is None:
            return 1
        return self.stride(s.loop, here) * (self.step(s, here) if name == s.outer else 1)

    def step(self, s: Cut, here: Position) -> Index:
        """The distance of blocks of a split from each other."""
        return self.count(s.inner, here) if s.into else s.length

    def start(self, s: Cut, here: Position) -> Index:
        """The begin of a block of a split, before it reaches back: counted along the loop that is split."""
        return self.place(s.outer, here) * self.step(s, here)

    def top(self, name: str) -> str:
        """The loop that a loop is a run of consecutive iterations of."""
        s = self.made_by.get(name)
        return self.top(s.loop) if s is not None and name == s.inner else name

    def makers(self, name: str) -> list[Cut]:
        """The splits that made a loop, the last one first."""
        s = self.made_by.get(name)
        return [] if s is None else [s, *self.makers(s.loop)]

    def upwards(self, s: Cut) -> list[Cut]:
        """A split and those around it that it is a part of the blocks of."""
        return [s, *[p for inner, p in pairwise([s, *self.makers(s.loop)]) if inner.loop == p.inner]]

    def base(self, s: Cut, here: Position) -> Index:
        """The begin of a block of a split, before it reaches back: counted along the loop on top of it."""
        parent, start = self.made_by.get(s.loop), self.start(s, here)
        return start if parent is None or s.loop != parent.inner else self.begin(parent, here) + start

    def begin(self, s: Cut, here: Position) -> Index:
        """The begin of a block of a split, counted likewise."""
        base = self.base(s, here)
        if s.edge != "back" or divides(s, self.count(s.loop, here)):
            return base
        return emin(base, self.count(self.top(s.loop), here) - self.step(s, here))

    def inside_block(self, name: str, here: Position) -> Index:
        """A loop's variable, counted from the begin of the block that it is in."""
        start: Index = 0
        while name not in here.places:
            s = self.split[name]
            start, name = start + self.start(s, here), s.inner
        return start + here.places[name]

    def place(self, name: str, here: Position) -> Index:
        """A loop's variable; of what goes on beyond the end, the last one."""
        start: Index = 0
        last: Index | None = None
        while name not in here.places:
            s = self.split[name]
            start, name = self.begin(s, here), s.inner
            if self.pads_results(s) and not divides(s, self.count(s.loop, here)):
                last = self.base(s, here) - self.start(s, here) + self.count(s.loop, here) - 1
        return start + here.places[name] if last is None else emin(start + here.places[name], last)


def divides(s: Cut, total: Index) -> bool:
    """True where the size is known to divide the extent."""
    if isinstance(total, int):
        return isinstance(s.length, int) and total % s.length == 0
    return isinstance(s.length, int) and exact_quotient(total, s.length) is not None


def loops_of(nest: Nest) -> Loops:
    """The loops of a nest before any step."""
    found = spaces(nest)
    root = {v.name: v for space in found for v in space.own}
    return Loops(nest, found, tuple(root), root)


_FIELDS = tuple([f.name for f in fields(Loops)])
