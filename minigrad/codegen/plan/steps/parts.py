"""`parts c`: several accumulators for a sum."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAMES, Faults, Listed, Loops


@dataclass(frozen=True, slots=True)
class Parts(Listed):
    """`parts c`: each iteration of an unrolled loop of a sum has an accumulator of its own; they are joined by a tree.
    So are the lanes of a vector along a sum. Results are rounded differently. Halide: rfactor.

        for k: for c in 0..4 unroll:          for k: for c in 0..4 unroll:
          acc = acc + x[4*k + c]       ->       acc[c] = acc[c] + x[4*k + c]
                                              acc[0] = (acc[0] + acc[1]) + (acc[2] + acc[3])
    """

    usage = "parts LOOP ..."
    pattern = rf"parts ({NAMES})"

    def apply(self, loops: Loops) -> Loops:
        return loops.after(self, parts=loops.parts.union(self.loops))

    def faults(self, loops: Loops) -> Faults:
        for x in self.loops:
            if loops.kind[x] != "unroll" or not loops.space[x]:
                yield f"parts {x}: expected an unrolled loop of a sum, got a {loops.kind[x]} one of {loops.root[x]}"
