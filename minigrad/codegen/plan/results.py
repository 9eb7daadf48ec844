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
from minigrad.codegen.kernel import Define, Store
from minigrad.codegen.plan.box import box
from minigrad.codegen.plan.loops import Here
from minigrad.codegen.plan.steps import Results
from minigrad.codegen.plan.sweep import sweep
from minigrad.expr import Index
from minigrad.value import Value, index, load, walk

if TYPE_CHECKING:
    from minigrad.codegen.plan.build import Builder


class Gathered:
    """The memory of the sums of a nest, `memory` by their names."""

    def __init__(self, b: Builder, step: Results, sums: tuple[Define, ...]):
        self.b, self.step, self.sums = b, step, sums
        self.box = box(b.loops, step, max(s.value.dtype.itemsize for s in sums))
        self.memory = {s.name: b.name(f"{s.name}_kept") for s in sums}

    def allocs(self) -> list[Alloc]:
        return [Alloc(self.memory[s.name], s.value.dtype, self.box.size, "scratch") for s in self.sums]

    def leave(self, here: Here) -> list[Stmt]:
        """What follows the sums, over all of their memory."""
        rest = [s for s in self.b.nest.body if s not in self.sums]
        values: list[Value] = [s.value for s in rest if isinstance(s, Define | Store)]
        values += [index(e, s.value.dtype) for s in rest if isinstance(s, Store) for e in s.indices]
        written = {s.param for s in rest if isinstance(s, Store)}
        again = any(v.op == "load" and v.attr[0] in written for v in walk(*values))  # type: ignore[index]

        def stored(at: Here, own: tuple[Index, ...], there: tuple[Index, ...]) -> list[Stmt]:
            found = {s.name: load(self.memory[s.name], (self.box.at(at),), s.value.dtype) for s in self.sums}
            return self.b.each(rest, replace(at, masked=again), found, (*there, *own) if again else there)

        return sweep(self.b, self.box, values, here, stored, self.step.turned, self.step.square, True)
