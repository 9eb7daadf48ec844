"""`bind vector l`: how loops run."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAMES, Faults, Loops, Match, Step, refuse

KINDS = ("parallel", "group", "item", "vector", "unroll", "serial")


@dataclass(frozen=True, slots=True)
class Bind(Step):
    """`bind vector l`: how loops run. parallel: iterations for workers, all of them as one loop, which is outermost;
    group, in their place: for work-groups, and item: the work-items of one, which share memory; vector: the lanes of a
    vector; unroll: written out; serial. Halide: parallel, gpu_blocks, gpu_threads, vectorize, unroll; TVM: bind."""

    kind: str
    loops: tuple[str, ...]
    usage = "bind parallel|group|item|vector|unroll|serial LOOP ..."
    pattern = rf"bind (\w+) ({NAMES})"

    @classmethod
    def parsed(cls, found: Match) -> Bind:
        return cls(found[1], tuple(found[2].split()))

    def __str__(self) -> str:
        return f"bind {self.kind} {' '.join(self.loops)}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops

    def apply(self, loops: Loops) -> Loops:
        if self.kind not in KINDS:
            raise refuse(self, f"a kind among {', '.join(KINDS)}", self.kind)
        for name in self.loops:
            if name in loops.bound:
                raise refuse(self, "one kind for each loop", f"{name}, which is bound {loops.bound[name]}")
        return loops.after(self, bound={**loops.bound, **dict.fromkeys(self.loops, self.kind)})

    def faults(self, loops: Loops) -> Faults:
        kind = self.kind
        for x in self.loops if kind in ("vector", "unroll") else ():
            count = loops.extent(x)
            if loops.cut_short(x):
                yield f"bind {kind} {x}: expected a loop that runs equally often in every block"
            if not isinstance(count, int):
                yield f"bind {kind} {x}: expected a number of iterations that is known, got {count}"
            if kind == "vector" and count not in (2, 4, 8, 16):
                yield f"bind vector {x}: expected 2, 4, 8 or 16 lanes, got {count}"
