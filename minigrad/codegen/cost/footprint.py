"""Bytes that caches do not hold: that which the innermost loops that fit a cache touch comes in each iteration of those
around."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.target import Target

FULL, WAYS = 1.3, 16
"""Times that what stays in a cache may be taken, as other lines come between; lines of the second-level cache at one
place."""

Trips = Sequence[tuple[str, float]]
"""Loops, outermost first, with their iterations."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The part of a buffer that some loops touch: elements of so many bytes, read in the loops `own`.

    steps: by loop the bytes that it steps, 0 where that is no number; empty for a copy, which is one run
    inside: those loops so far, as (bytes, iterations)
    """

    bytes: int
    own: frozenset[str]
    steps: Mapping[str, int]
    inside: tuple[tuple[int, float], ...] = ()

    def around(self, name: str, trips: float) -> Footprint:
        """The footprint with one more loop."""
        if name not in self.own:
            return self
        return Footprint(self.bytes, self.own, self.steps, (*self.inside, (self.steps.get(name, 0), trips)))

    def runs(self) -> tuple[float, float, int]:
        """(bytes of a run of elements that follow each other, the number of runs, the bytes between them)."""
        run, count, apart = float(self.bytes), 1.0, 0
        if not self.steps:
            return run * prod([trips for _, trips in self.inside]), count, apart
        for step, trips in sorted(self.inside):
            if step and step <= max(run, LINE) and count == 1:
                run += step * (trips - 1)
            else:
                count, apart = count * trips, apart or step
        line = min([LINE, *[s for s in self.steps.values() if s]])  # the rest of a line is read in other iterations
        return max(run, line), count, apart

    def room(self, way: int) -> float:
        """Bytes of a cache that it takes, where addresses `way` bytes apart share a place: runs that lie apart by a
        multiple of a large power of two take as much as if they filled the gaps."""
        run, count, apart = self.runs()
        return max(run, gcd(apart, way) if apart else 0) * count

    def read(self, loops: Trips) -> float:
        """Bytes read where it comes anew in each iteration of some loops, but for the last where that does not matter
        to it."""
        run, count, _ = self.runs()
        return run * count * prod([n for k, (x, n) in enumerate(loops) if x in self.own or k < len(loops) - 1])


def misses(found: Sequence[Footprint], loops: Trips, target: Target) -> tuple[float, float]:
    """(bytes from beyond the first cache, bytes from beyond the second) of reads in some loops."""
    missed = list[float]()
    caches = [(target.l1, PAGE), (target.l2, target.l2 // WAYS)]
    for level in range(len(loops), -1, -1):
        wider = [f.around(*loops[level - 1]) for f in found] if level else found
        while len(missed) < len(caches):
            size, way = caches[len(missed)]
            if level and sum([f.room(way) for f in wider]) * FULL <= size:
                break
            missed.append(sum([f.read(loops[:level]) for f in found]))
        if len(missed) == len(caches):
            break
        found = wider
    return missed[0], missed[1]
