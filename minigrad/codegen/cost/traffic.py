"""Counts of what one launch on a GPU does, from its loops: accesses, bytes, sectors, banks, instructions.

What is executed is counted as the interpreter would execute it. What is issued is less (issue.py); besides, loads of
neighbours that a loop unrolls are one wide load. Of a launch that has too many points for all of them to be looked at
it is a sample.
"""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minigrad.codegen.cost.accesses import BANKS, LINE, WORD, Access, banks, measure_footprints, sectors_of, step_of
from minigrad.codegen.cost.issue import Around, Paths, Walk, Work
from minigrad.codegen.cost.points import Clause, in_waves, used_by
from minigrad.codegen.ir.nodes import Call, Function
from minigrad.codegen.ir.text import meaning_of
from minigrad.expr import Index, coefficient
from minigrad.value import Value

WIDEST = 16  # bytes of a load


def work_of(function: Function, dims: Mapping[str, int], wave: int, sector: int) -> Work:
    """The counts of a launch with these values of dims, in waves of `wave` items and sectors of `sector` bytes."""
    return _Traffic(function, dims, wave, sector).work()


class _Traffic(Walk):
    def __init__(self, function: Function, dims: Mapping[str, int], wave: int, sector: int):
        super().__init__(function, dims, wave, sector)
        self.accesses: list[Access] = []
        self.known: dict[object, tuple[float, float]] = {}

    def work(self) -> Work:
        self.block(self.function.body)
        measure_footprints(self.found.buffers, self.accesses, self.sizes, self.shape)
        self.found.operands = max(self.live.values(), default=0.0)
        return self.found

    def access(self, buffer: str, offset: Index, clauses: tuple[Clause, ...], wanted: Paths, v: Value | None) -> None:
        if self.scope.get(buffer, "register") == "register":
            return
        for path in wanted:
            for conditions, _ in path:
                self.condition(conditions)
        total, share = self.points(clauses, wanted)
        self.execute(buffer, total, v is not None)
        self.address(offset)
        loops = self.path
        if v is not None:
            used = used_by([offset, *[c for path in wanted for conditions, _ in path for c in conditions]])
            loops = self.executed(used, frozenset((buffer,)))
            if not self.once(v, loops):
                return
        itemsize = self.itemsize[buffer]
        width = self.width(offset, loops, itemsize)
        count, size = self.times(loops) / width * share, width * itemsize
        self.found.widths[size] = self.found.widths.get(size, 0.0) + count
        self.found.staged += count if self.copying else 0.0
        if v is not None:
            words = max(1.0, size / WORD) * self.times([x for x in loops if x.unrolled]) / width
            self.live[self.part] = self.live.get(self.part, 0.0) + words
        outer = next((x for x in self.path if not x.unrolled), None)
        name, trips = (outer.axis.name, outer.axis.size) if outer is not None else ("", 1)
        every = (*clauses, *wanted[0]) if len(wanted) == 1 else clauses
        access = Access(buffer, offset, every, dict(self.bound), name, trips)
        if buffer not in self.found.buffers:
            passes, shared = self.banks(access, width)
            if v is None:
                self.found.copies += count * passes * self.waves
            else:
                self.found.passes += count * passes
                self.found.broadcasts += count * shared
        else:
            self.found.addresses += 2 * self.times([x for x in loops if x.unrolled]) / width
            self.move(access, count, size, total / max(self.times(self.path), 1) * self.times(loops))

    def banks(self, a: Access, width: int) -> tuple[float, float]:
        """Passes of banks, the same for accesses that lie a multiple of all banks apart."""
        size = BANKS * WORD // self.itemsize[a.buffer]
        axes = tuple(sorted((v.name, self.bound[v]) for v in a.used if v in self.bound))
        place = (a.offset if isinstance(a.offset, int) else a.offset.const) % size
        key = a.buffer, a.varying, place, a.clauses, width, axes
        if key not in self.known:
            self.known[key] = banks(a, width, self.itemsize[a.buffer], self.shape)
        return self.known[key]

    def execute(self, buffer: str, total: float, is_load: bool) -> None:
        moved = self.found.buffers.get(buffer)
        if moved is not None:
            moved.loads += total if is_load else 0.0
            moved.stores += 0.0 if is_load else total
        elif is_load:
            self.found.local_loads += total
        else:
            self.found.local_stores += total

    def move(self, access: Access, count: float, size: int, elements: float) -> None:
        """Counts an access to memory: `count` of an item, each of `size` bytes, of `elements` in the launch."""
        moved = self.found.buffers[access.buffer]
        sectors, lines = sectors_of(access, size, moved.itemsize, self.shape)
        given = min(self.shape.wave, self.lanes.size) * size / LINE  # each lane its words, shared ones too
        self.found.passes += count * max(lines, given)
        moved.sectors += count * self.waves * self.groups * sectors * self.shape.sector
        moved.asked += elements * moved.itemsize
        if sectors > 2 * max(min(self.shape.wave, self.lanes.size) * size / self.shape.sector, 1):
            moved.apart = max(moved.apart, step_of(access, moved.itemsize, self.shape))
        self.accesses.append(access)

    def points(self, clauses: tuple[Clause, ...], wanted: Paths) -> tuple[float, float]:
        """(executions in the launch, the part of a wave's steps in which some lane takes part)."""
        everywhere = self.groups * self.lanes.size * self.times(self.path)
        paths = [p for p in wanted if p]
        if not clauses and (len(paths) < len(wanted) or not paths):
            return everywhere, 1.0
        grid = self.grid((), (*clauses, *[c for p in paths for c in p]))
        mask = grid.holds(clauses)
        if len(paths) == len(wanted):
            mask &= np.logical_or.reduce([grid.holds(p) for p in paths])
        share = np.mean(in_waves(mask, self.shape.wave, False).any(axis=-1))
        return grid.count(mask) * (everywhere / grid.total), float(share)

    def width(self, offset: Index, loops: list[Around], itemsize: int) -> int:
        """Neighbours that one access takes: those that an unrolled loop steps through, where they lie aligned."""
        for x in reversed(loops):
            if x.unrolled and coefficient(offset, x.var) == 1:
                width = 4 if x.axis.size % 4 == 0 else 2 if x.axis.size % 2 == 0 else 1
                width = min(width, WIDEST // itemsize)
                rest = offset - x.var
                at = np.asarray(self.grid([rest], most=1 << 10).value(rest))
                while width > 1 and (at % width).any():
                    width //= 2
                return width
        return 1

    def call(self, s: Call) -> None:
        """Multiply-adds of matrix units, and what they read of local memory."""
        meaning, times = meaning_of(s.kernel), self.times(self.path)
        dims = {d.name: e if isinstance(e, int) else 0 for d, e in zip(meaning.dims, s.dims, strict=True)}
        alone = work_of(meaning, dims, 1, self.shape.sector)
        self.found.matrix += alone.fma * times
        self.found.other += times
        for p, (name, _) in zip(meaning.buffers, s.buffers, strict=True):
            if self.scope.get(name) == "local":  # fragments, of which each value is read for eight items in the mean
                size = alone.buffers[p.name].loads * p.dtype.itemsize * self.shape.wave / 8
                self.found.passes += times * size / LINE
