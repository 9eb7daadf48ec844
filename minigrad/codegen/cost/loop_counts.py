"""Iterations of the loops of a plan, and what depends on which of them."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.loops import Cut, Loops, divides
from minigrad.expr import Index, Var, coefficient, evaluate, variables
from minigrad.value import Value, free_variables, value_atoms

AT_ONCE = ("vector", "word")
"""Kinds of loops whose iterations one instruction does."""


class LoopCounts:
    """Loops, by name with their iterations (`trips`), and splits that leave a part of a block."""

    def __init__(self, loops: Loops):
        self.loops, self.kind, self.root = loops, dict(loops.kind), loops.root
        self.trips = {x: self.trip(x) for x in loops.order}
        self.width = self.trips.get(self.lane(loops.order), 1.0)
        self.rests, self.backs = ([(s, n) for s in loops.split.values() if s.edge == edge for n in [self.partial(s)]
                                   if n] for edge in ("rest", "back"))
        self.known: dict[object, frozenset[str]] = {}
        self.often: dict[tuple[frozenset[str], tuple[str, ...]], float] = {}
        self.all: dict[tuple[frozenset[str], tuple[str, ...]], float] = {}

    def trip(self, name: str) -> float:
        """Iterations of a loop; of blocks of which the last is shorter, or done one by one, with its part."""
        count, s = self.loops.extent(name), self.loops.made_by.get(name)
        if s is not None and name == s.outer and s.edge in ("short", "rest"):
            total = self.loops.extent(s.loop)
            if isinstance(total, int) and isinstance(s.size, int) and not s.into:
                return total / s.size
        return count if isinstance(count, int) else typical(self.root[name])

    def lane(self, order: Sequence[str]) -> str:
        """The loop across lanes; '' where there is none."""
        return next((x for x in order if self.kind[x] == "vector"), "")

    def partial(self, s: Cut) -> int:
        """The iterations that a split takes apart, where it leaves a part of a block; else 0."""
        total = self.loops.extent(s.loop)
        return total if isinstance(total, int) and not divides(s, total) else 0

    def of(self, vs: Sequence[Var]) -> tuple[str, ...]:
        """The loops of some variables, in order."""
        return tuple([x for x in self.loops.order if self.root[x] in vs])

    def times(self, names: Sequence[str]) -> float:
        """Iterations of loops, the lanes of a vector and the elements of a word as one."""
        return prod([self.trips[x] for x in names if self.kind[x] not in AT_ONCE])

    def along(self, v: Value | Index) -> frozenset[str]:
        """The loops that a value or an index depends on."""
        found = self.known.get(v)
        if found is None:
            own = free_variables(v) if isinstance(v, Value) else variables(v)
            found = frozenset([x for x in self.loops.order if self.root[x] in own])
            if isinstance(v, Value) and locals_of(v):
                found = found.union(self.of(self.loops.nest.domain))
            self.known[v] = found
        return found

    def executed(self, own: frozenset[str], order: tuple[str, ...]) -> float:
        """The number of times that what depends on some loops is done: not in loops inside the last of them, nor for
        copies alike."""
        found = self.often.get((own, order))
        if found is None:
            last = max([k for k, x in enumerate(order) if x in own], default=-1)
            found = self.times([x for x in order[:last + 1] if x in own or self.kind[x] != "unroll"])
            self.often[own, order] = found
        return found

    def done(self, own: frozenset[str], order: tuple[str, ...]) -> float:
        """`executed`, with what whole blocks leave."""
        found = self.all.get((own, order))
        if found is None:
            found = self.all[own, order] = self.executed(own, order) * self.one_by_one(order, own)
        return found

    def one_by_one(self, order: tuple[str, ...], own: frozenset[str] = frozenset()) -> float:
        """The factor by which loops take longer for what whole blocks leave; `own` are unrolled loops of which each
        iteration counts anyway."""
        factor = 1.0
        for s, total in self.rests:
            if not self.loops.inside(s.loop).isdisjoint(order):
                lanes = prod([self.trips[x] for x in self.loops.inside(s.inner) if self.kind[x] != "serial" and not (
                    self.kind[x] == "unroll" and x in own)])
                left = total % s.size / total
                factor *= 1 - left + left * lanes
        return factor

    def step(self, offset: Index, name: str) -> int | None:
        """The elements from one iteration of a variable to its next; None where that is no number."""
        c = coefficient(offset, self.root[name])
        return c if isinstance(c, int) else None

    def moves(self, offset: Index, name: str) -> int:
        """The elements from one iteration of a variable to its next; where quotients and remainders of it count, the
        most in the first iterations; 0 where what is in memory decides."""
        step = self.step(offset, name)
        if step is None and not value_atoms(offset):
            places = [evaluate(offset, dict.fromkeys(variables(offset), 0) | {self.root[name]: k}) for k in range(4)]
            step = max([abs(b - a) for a, b in pairwise(places)])
        return abs(step or 0)

    def stride(self, name: str) -> float:
        """The iterations of its variable that a loop goes on by in one step."""
        s = self.loops.made_by.get(name)
        if s is None:
            return 1
        block = s.size if not s.into else self.trip(s.inner)
        return self.stride(s.loop) * (block if name == s.outer else 1)

    def distance(self, offset: Index, name: str) -> int:
        """The elements between the places of neighbours; more than there are in a line where that is no number."""
        step = self.step(offset, name)
        return LINE if step is None else abs(step)
