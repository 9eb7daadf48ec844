"""`ahead p0 at k by 1 of i`: prefetches."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.plan.loops import NAME, Faults, Loops, Match, Step
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.expr import Index
from minigrad.value import walk


@dataclass(frozen=True, slots=True)
class Ahead(Step):
    """`ahead p0 at k by 1 of i`: in each iteration of k, what p0 is read at once i has gone on by one is prefetched;
    `by 4096 bytes`: what lies so far after what is read; `far`: to the second-level cache. Of an output, or of what is
    read beside one: `ahead o0 at i by 0 of i`, where i is around the sums, is what i will touch. Halide: prefetch.

    Lines of the operand are prefetched once. Where one iteration of i reads one run of memory, each iteration of k
    prefetches its share of the next run, front to back.
    """

    operand: str
    at: str
    by: int
    of: str = ""
    far: bool = False
    usage = "ahead BUFFER at LOOP by NUMBER of LOOP|bytes, far"
    pattern = rf"ahead ({NAME}) at ({NAME}) by (\d+) (?:of ({NAME})|bytes)(, ?far)?"

    @classmethod
    def parsed(cls, found: Match) -> Ahead:
        return cls(found[1], found[2], int(found[3]), found[4] or "", found[5] is not None)

    def __str__(self) -> str:
        by = f"{self.by} of {self.of}" if self.of else f"{self.by} bytes"
        return f"ahead {self.operand} at {self.at} by {by}" + (", far" if self.far else "")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at, self.of) if self.of else (self.at,)

    def faults(self, loops: Loops) -> Faults:
        stores = any(isinstance(s, Store) and s.param == self.operand for s in loops.nest.body)
        if stores and loops.order.index(self.at) >= loops.first_reduction:
            yield f"{self}: expected a loop around all sums, as {self.operand} is stored after them, got {self.at}"
        copied = any([s.operand == self.operand and s.at == self.at for s in loops.of(Stage)])
        if not copied and not places_after(loops.nest, self.operand) and not loops.sums(self.at):
            yield f"{self}: expected a loop of a sum, got {self.at} of {loops.root[self.at]}"


def places_after(nest: Nest, operand: str) -> list[Index]:
    """The places of a buffer that are stored, or read beside what is stored or by what that is made of, after all
    sums."""
    stores = [s for s in nest.body if isinstance(s, Store)]
    values = [s.value for s in nest.body if not isinstance(s, Nest) and s.value.op != "reduce"]
    return [s.indices[0] for s in stores if s.param == operand] + [
        v.indices[0] for v in walk(*values) if v.op == "load" and v.buffer == operand]
