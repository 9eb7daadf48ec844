"""Bytes that caches do not hold: that which the innermost loops that fit a cache touch comes in each iteration of those
around."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.target import Target

FULL, WAYS = 1.3, 16
"""Times that what stays in a cache may be taken, as other lines come between; lines of the second-level cache at one
place."""

Trips = Sequence[tuple[str, float]]
"""Loops, outermost first, with their iterations."""


class Footprint:
    """The part of a buffer that some loops touch: elements of so many bytes, read in the loops `own`.

    steps: by loop the bytes that it steps, 0 where that is no number; empty for a copy, which is one run
    inside: those loops so far, as (bytes, iterations)
    run, count, apart: bytes of a run of elements that follow each other, the number of runs, the bytes between them
    """

    __slots__ = ("apart", "bytes", "count", "inside", "own", "run", "steps")

    def __init__(self, nbytes: int, own: frozenset[str], steps: Mapping[str, int],
                 inside: tuple[tuple[int, float], ...] = ()):
        self.bytes, self.own, self.steps, self.inside = nbytes, own, steps, inside
        run, count, apart = float(nbytes), 1.0, 0
        if not steps:
            run *= prod([trips for _, trips in inside])
        for step, trips in sorted(inside) if steps else ():
            if step and step <= max(run, LINE) and count == 1:
                run += step * (trips - 1)
            else:
                count, apart = count * trips, apart or step
        least = min([s for s in steps.values() if s], default=0)
        self.run = max(run, min(LINE, least))  # the rest of a line is read in other iterations
        self.count, self.apart = count, apart

    def around(self, name: str, trips: float) -> Footprint:
        """The footprint with one more loop."""
        if name not in self.own:
            return self
        return Footprint(self.bytes, self.own, self.steps, (*self.inside, (self.steps.get(name, 0), trips)))

    def room(self, way: int) -> float:
        """Bytes of a cache that it takes, where addresses `way` bytes apart share a place: runs that lie apart by a
        multiple of a large power of two take as much as if they filled the gaps."""
        return max(self.run, gcd(self.apart, way) if self.apart else 0) * self.count

    def read(self, loops: Trips, least: float) -> float:
        """Bytes read where it comes anew in each iteration of some loops, but for the last where that does not matter
        to it; of each run so many at least."""
        again = prod([n for k, (x, n) in enumerate(loops) if x in self.own or k < len(loops) - 1])
        return max(self.run, least) * self.count * again


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
            kept = sum([f.room(way) for f in found]) * FULL <= size  # else lines are gone before their rest is read
            missed.append(sum([f.read(loops[:level], 0.0 if kept else LINE) for f in found]))
        if len(missed) == len(caches):
            break
        found = wider
    return missed[0], missed[1]
