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
    waits: False where it is prefetched
    run, count, apart: bytes of a run of elements that follow each other, the number of runs, the bytes between them
    """

    __slots__ = ("apart", "bytes", "count", "inside", "own", "run", "steps", "waits")

    def __init__(self, nbytes: int, own: frozenset[str], steps: Mapping[str, int],
                 inside: tuple[tuple[int, float], ...] = (), waits: bool = True):
        self.bytes, self.own, self.steps, self.inside, self.waits = nbytes, own, steps, inside, waits
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
        return Footprint(self.bytes, self.own, self.steps, (*self.inside, (self.steps.get(name, 0), trips)),
                         self.waits)

    @property
    def held(self) -> float:
        """Bytes of the lines that hold it."""
        return max(self.run, LINE) * self.count

    def room(self, way: int) -> float:
        """Bytes of a cache that it takes, where addresses `way` bytes apart share a place: runs that lie apart by a
        multiple of a large power of two take as much as if they filled the gaps."""
        return max(self.run, LINE, gcd(self.apart, way) if self.apart else 0) * self.count

    def again(self, loops: Trips) -> float:
        """The times that it is read where it comes anew in each iteration of some loops, but for the last where that
        does not matter to it."""
        return prod([n for k, (x, n) in enumerate(loops) if x in self.own or k < len(loops) - 1])


def misses(found: Sequence[Footprint], loops: Trips, target: Target) -> list[tuple[float, float]]:
    """(bytes, runs of them) from beyond the first cache and from beyond the second, of reads and stores in some loops.
    The runs are as many as would wait for a page of their own: those nearer to each other come ahead, by a part."""
    levels = [list(found)]
    for x in reversed(loops):
        levels.append([f.around(*x) for f in levels[-1]])
    held = [sum([f.held for f in level]) for level in levels]
    made = []
    for size, way in ((target.l1 / FULL, PAGE), (target.l2 / FULL, target.l2 // WAYS)):
        nbytes = runs = 0.0
        for k in range(len(found)):
            stays = [held[n] - level[k].held + level[k].room(way) <= size for n, level in enumerate(levels)]
            n = stays.index(False, 1) - 1 if False in stays[1:] else len(loops)
            more, again = _missed(levels[n][k], loops[:len(loops) - n], stays[n])
            nbytes, runs = nbytes + more, runs + again
        made.append((nbytes, runs))
    return made


def _missed(f: Footprint, loops: Trips, kept: bool) -> tuple[float, float]:
    """(bytes, runs of them) where a footprint comes anew in each iteration of loops. The rest of a line that the next
    iteration reads is there still where what one touches is `kept`; what is read in loops further out is not."""
    times, step = f.again(loops), f.steps.get(loops[-1][0], 0) if loops else 0
    nbytes = (f.run if kept and (step <= LINE or not f.steps) else max(f.run, LINE)) * f.count * times
    if kept and (not loops or 0 < step <= max(f.run, LINE)):
        f, times = (f.around(*loops[-1]), f.again(loops[:-1])) if loops else (f, 1.0)
        step = f.apart
    return nbytes, f.count * times * min(1.0, (f.apart or step or PAGE) / PAGE) if f.waits else 0.0
