"""`compute s at r`: a nest in the loop of the sum that reads it."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAME, Loops, Step, refuse


@dataclass(frozen=True, slots=True)
class Compute(Step):
    """`compute s at r`, in a block: what the nest before stores to s is computed and stored in each iteration of r, the
    innermost loop of the sum that reads it (`plan/compute.py`); that nest has the plan `computed`. Halide, TVM:
    compute_at.

        for k, l: s[k, l] = f(s[k, l])                          for l: for r:
        for l: t = sum(r: s[r, l] * q[r])                ->       new = f(s[r, l]);  s[r, l] = new
                                                                  acc = acc + new * q[r]
    """

    buffer: str
    at: str
    usage = "compute BUFFER at LOOP"
    pattern = rf"compute ({NAME}) at ({NAME})"

    def __str__(self) -> str:
        return f"compute {self.buffer} at {self.at}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)

    def apply(self, loops: Loops) -> Loops:
        raise refuse(self, "it in a block, after a nest whose plan is `computed`", "a nest alone")
