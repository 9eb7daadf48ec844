"""The steps of a plan. A plan says how the loops of one nest run, never what they compute: that is the
Kernel's. Plans and steps print as the text that makes them (`parse_plan` of `plan/text.py`).

    plan contraction                       o0[i0, i1] = sum(r0: p0[i0, r0] * p1[r0, i1]), 64 x 1000 x 96
      split i0 -> i u by 4, back
      split i1 -> j jj by 32, back
      split jj -> v l by 16, exact
      bind parallel j i
      bind vector l
      bind unroll u v
      order j i l r0 u v

A variable of the nest (of its domain, of its sums, of its inner nests) is a loop; `split` makes two of one. `order`
lists the loops that are left, outermost first. Loops of the domain that stand inside the first loop of a sum are
copies: a sum has an accumulator for each of them. What no step says is serial, in the order of the kernel.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.loops import Loops, Step, loops_of
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.bind import Bind
from minigrad.codegen.plan.steps.call import Call
from minigrad.codegen.plan.steps.compute import Compute
from minigrad.codegen.plan.steps.fuse import Fuse
from minigrad.codegen.plan.steps.order import Order
from minigrad.codegen.plan.steps.parts import Parts
from minigrad.codegen.plan.steps.results import Results
from minigrad.codegen.plan.steps.sizes import Sizes
from minigrad.codegen.plan.steps.split import Split
from minigrad.codegen.plan.steps.stage import Stage

STEPS: tuple[type[Step], ...] = (Split, Sizes, Fuse, Order, Bind, Parts, Stage, Results, Call, Compute,
                                 Ahead)
"""In the order in which their faults are told."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one nest, and the pattern that it was taken for ('' in a plan that a user wrote)."""

    pattern: str
    steps: tuple[Step, ...]

    def split(self, loop: str) -> Split | None:
        """The step that takes a loop apart; None where it is not."""
        return next((s for s in self.steps if isinstance(s, Split) and s.loop == loop), None)

    def bound(self, kind: str) -> tuple[str, ...]:
        """The loops of a kind."""
        return tuple([x for s in self.steps if isinstance(s, Bind) and s.kind == kind for x in s.loops])

    @property
    def sizes(self) -> tuple[str, ...]:
        """The variables, and the loops over blocks, whose extents are arguments."""
        return tuple([x for s in self.steps if isinstance(s, Sizes) for x in s.loops])

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The copies of operands."""
        return tuple([s for s in self.steps if isinstance(s, Stage)])

    @property
    def results(self) -> Results | None:
        """The step that has results go by way of memory; None where none does."""
        return next((s for s in self.steps if isinstance(s, Results)), None)

    @property
    def ahead(self) -> tuple[Ahead, ...]:
        """The prefetches."""
        return tuple([s for s in self.steps if isinstance(s, Ahead)])

    def __str__(self) -> str:
        return "\n".join([f"plan {self.pattern}".rstrip(), *[f"  {s}" for s in self.steps]])


def resolve(nest: Nest, plan: Plan) -> Loops:
    """The loops of a nest under a plan. Raises PlanError naming the step and what was expected."""
    fused = max([k + 1 for k, s in enumerate(plan.steps) if isinstance(s, Fuse)], default=0)
    loops = _fused(nest, plan.steps[:fused]) if fused else loops_of(nest)
    for step in plan.steps[fused:]:
        loops = loops.then(step)
    return loops


@lru_cache(maxsize=1 << 10)
def _fused(nest: Nest, steps: tuple[Step, ...]) -> Loops:
    """The loops after the last step that fuses some. Plans that differ by their register tiles have them in common."""
    loops = loops_of(nest)
    for step, after in zip_longest(steps, steps[1:]):
        together = isinstance(step, Fuse) and isinstance(after, Fuse)  # the last one makes what all of them say
        loops = loops.after(step) if together else loops.then(step)
    return loops
