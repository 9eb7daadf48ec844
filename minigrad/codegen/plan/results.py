"""Results by way of memory: `results at b as [i][c]`.

    for b:
      for tiles of i, c: for k: acc = acc + ...
        t0_kept[i, c] = acc
      for i: for c across lanes: o0[...] = f(t0_kept[i, c])

What a tile computes beyond the last element stays in that memory.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, Stmt
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.plan.box import box
from minigrad.codegen.plan.here import Here
from minigrad.codegen.plan.steps.results import Results
from minigrad.codegen.plan.sweep import Make, sweep
from minigrad.codegen.plan.unscale import unscaled
from minigrad.codegen.plan.words import PAIRS
from minigrad.expr import Index
from minigrad.value import Value, binary, bitcast, index, load, walk

if TYPE_CHECKING:
    from minigrad.codegen.plan.build import Builder


class Gathered:
    """The memory of the sums of a nest, `memory` by their names."""

    def __init__(self, b: Builder, step: Results, sums: tuple[Define, ...]):
        self.b, self.step, self.sums = b, step, sums
        self.box = box(b.loops, step, max(s.value.dtype.itemsize for s in sums))
        self.memory = {s.name: b.name(f"{s.name}_kept") for s in sums}
        self.dtypes = {s.name: s.value.dtype if b.called is None else b.called.tile.sum for s in sums}

    def allocs(self) -> list[Alloc]:
        return [Alloc(self.memory[s.name], self.dtypes[s.name], self.box.size, "scratch") for s in self.sums]

    @property
    def rest(self) -> list[Define | Store | Nest]:
        """The statements after the sums."""
        return [s for s in self.b.nest.body if s not in self.sums]

    def values(self) -> list[Value]:
        """Values that are stored, and those of their indices."""
        values: list[Value] = [s.value for s in self.rest if isinstance(s, Define | Store)]
        return values + [index(e, s.value.dtype) for s in self.rest if isinstance(s, Store) for e in s.indices]

    def leave(self, here: Here) -> list[Stmt]:
        """The statements after the sums, over all of their memory."""
        rest, values, tile = self.rest, self.values(), self.b.called
        written = {s.param for s in rest if isinstance(s, Store)}
        again = any(v.op == "load" and v.buffer in written for v in walk(*values))

        def stored(at: Here, own: tuple[Index, ...], there: tuple[Index, ...]) -> list[Stmt]:
            found = {s.name: bitcast(self.sum(s.name, at), s.value.dtype) for s in self.sums}
            return self.b.each(rest, replace(at, masked=again), found, (*there, *own) if again else there)

        before = unscaled(self.b, self, here) if tile is not None and tile.tile.kind == PAIRS else []
        return [*before, *self.swept(here, stored)]

    def swept(self, here: Here, make: Make) -> list[Stmt]:
        """The loops over that memory."""
        step = self.step
        return sweep(self.b, self.box, self.values(), here, make, step.transposed, step.transposed_by, outwards=True)

    def sum(self, name: str, here: Here) -> Value:
        """The part of a sum that there is at a place, without what a bias added to it."""
        tile = self.b.called
        total = load(self.memory[name], (self.box.at(here),), self.dtypes[name])
        if tile is None or not tile.biased:
            return total
        below = replace(here, places={**here.places, tile.row: self.b.loops.count(tile.row, here)})
        return binary("sub", total, load(self.memory[name], (self.box.at(below),), self.dtypes[name]))
