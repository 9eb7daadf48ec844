"""`sizes i0 r0`: extents as arguments."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAMES, Faults, Listed, Loops, refuse


@dataclass(frozen=True, slots=True)
class Sizes(Listed):
    """`sizes i0 r0`: how far these variables of the nest run is an argument, and so is how far accesses step: one
    program serves all sizes. It stands before the splits. What a split with the edge exact takes apart is a multiple of
    its size in all of them. `sizes nn` of a block with the edge short: so is how long that is, whole blocks of the
    splits inside it. Halide, TVM: symbolic extents.

        for i0 in 0..240: for r0 in 0..784:          for i0 in 0..e0: for r0 in 0..e1:
          acc = acc + p0[784*i0 + r0]          ->      acc = acc + p0[e1*i0 + r0]
    """

    usage = "sizes VARIABLE ..."
    pattern = rf"sizes ({NAMES})"
    shapes = True

    @property
    def names(self) -> tuple[str, ...]:
        return ()  # blocks are among them, which there are not yet

    def apply(self, loops: Loops) -> Loops:
        if loops.split or not all([s.shapes for s in loops.steps]):
            raise refuse(self, "sizes before all other steps", "them after some")
        return loops.after(self)

    def faults(self, loops: Loops) -> Faults:
        names = [v.name for space in loops.spaces for v in space.own]
        blocks = [s.inner for s in loops.split.values() if s.edge == "short"]
        for name in self.loops:
            if name not in names and name not in blocks:
                yield loops.unknown(self, name, names)
