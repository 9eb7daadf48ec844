"""`order j i l k u v`: which loops are inside which."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAMES, Faults, Listed, Loops, divides, refuse
from minigrad.expr import bounds


@dataclass(frozen=True, slots=True)
class Order(Listed):
    """`order j i l k u v`: the loops, outermost first. Halide, TVM: reorder."""

    usage = "order LOOP ..."
    pattern = rf"order ({NAMES})"

    def apply(self, loops: Loops) -> Loops:
        again = any([isinstance(s, Order) for s in loops.steps])
        if again or len(set(self.loops)) != len(self.loops):
            raise refuse(self, "each loop once, in one step", "another order" if again else "a loop twice")
        return loops.after(self, order=(*self.loops, *[x for x in loops.order if x not in self.loops]))

    def faults(self, loops: Loops) -> Faults:
        """About loops of the domain inside those of a sum that are not unrolled: its sums are kept in memory."""
        inside = loops.accumulated_outside
        if not inside:
            return
        if len(loops.spaces) > 2 or not isinstance(loops.units[0], tuple):
            yield (f"order: expected {inside[0]} unrolled or outside all sums, as there are several that do not share "
                   "loops")
        for x in loops.order[loops.first_reduction:loops.order.index(inside[-1])]:
            if loops.kind[x] == "unroll" or loops.space[x] and loops.kind[x] != "serial":
                yield f"order: expected {x} inside {inside[-1]}, as it is no serial loop"
            if loops.space[x] and bounds(loops.extent(x))[0] < 1:
                yield f"order: expected {x} inside {inside[-1]}, as it may not run at all"
            for s in loops.makers(x):
                if s.edge == "rest" and not divides(s, loops.extent(s.loop)):
                    yield (f"split {s.loop}, rest: expected back or short, as {inside[-1]} stands inside a loop of the "
                           "sum")
