"""`results at b as [i][c]`: sums in memory, before what follows them."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.coordinates import TRANSPOSED, Laid, leaves
from minigrad.codegen.plan.loops import NAME, Faults, Loops, Match, divides, refuse


@dataclass(frozen=True, slots=True)
class Results(Laid):
    """`results at b as [i][c]`: in each iteration of b, sums go to memory of the worker's own, laid out as [i][c], all
    loops of the domain inside b; what follows them runs after that, in loops of its own. `transposed i by 16`: outputs
    are contiguous along i, and written in square blocks that are transposed in registers. Halide, TVM: cache_write.

        for b:                                                   for b:
          for i, c: for k: acc = acc + ...             ->          for i, c: for k: acc = acc + ...
            o0[...] = f(acc)                                         t0_kept[i, c] = acc
                                                                   for i, c: o0[...] = f(t0_kept[i, c])
    """

    at: str
    layout: tuple[str, ...]
    transposed: str = ""
    transposed_by: int = 1
    usage = "results at LOOP as [LOOP]..., transposed LOOP by NUMBER"
    pattern = rf"results at ({NAME}) as ((?:\[{NAME}\])+){TRANSPOSED}"

    @classmethod
    def parsed(cls, found: Match) -> Results:
        return cls(found[1], tuple(found[2][1:-1].split("][")), found[3] or "", int(found[4] or 1))

    def __str__(self) -> str:
        return f"results at {self.at} as {self.laid_out}"

    def apply(self, loops: Loops) -> Loops:
        if loops.results_at:
            raise refuse(self, "results by way of one memory", "another one")
        self.refuse_unknown(loops)
        return loops.after(self, results_at=self.at)

    def faults(self, loops: Loops) -> Faults:
        yield from self.coordinate_faults(loops)
        if len(loops.spaces) != 2 or not isinstance(loops.units[0], tuple):
            yield f"{self}: expected a kernel whose sums share their loops, and that has no others"
        if loops.order.index(self.at) >= loops.first_reduction or loops.kind[self.at] not in ("serial", "parallel"):
            yield f"{self}: expected a serial or parallel loop outside all sums, got {self.at}"
        covered, inside = frozenset().union(*[leaves(loops, c) for c in self.layout]), loops.gathered
        if covered != inside:
            yield (f"{self}: expected coordinates that are all loops of the domain inside {self.at}, "
                   f"{' '.join(x for x in loops.order if x in inside)}, got {' '.join(sorted(covered)) or 'none'}")
        for x in loops.order:
            if loops.kind[x] == "vector" and (loops.space[x] or x not in inside):
                yield f"{self}: expected lanes along the domain, inside {self.at}, got {x}"
            if loops.kind[x] == "parallel" and x in inside:
                yield f"{self}: expected coordinates that one worker goes over, got {x}, which is bound parallel"
            if x in loops.parts:
                yield f"{self}: expected sums without parts, got {x}"
        for s in loops.split.values():
            parts = loops.inside(s.outer) | (loops.inside(s.inner) if s.edge == "rest" else frozenset())
            if s.edge in ("back", "rest") and not divides(s, loops.extent(s.loop)) and parts & inside:
                yield f"{s}: expected guard, as results go by way of memory inside {self.at}"
            if s.edge != "guard" or divides(s, loops.extent(s.loop)):
                continue
            for p in loops.upwards(s):
                if p is not s and loops.inside(p.outer) & inside:
                    yield f"{s}: expected a size that divides {p.size}, as results of the next block of {p.loop} follow"
            for c in self.layout:
                if c not in loops.members and c != s.loop and loops.inside(c) < loops.inside(s.loop):
                    yield f"{self}: expected {s.loop} among the coordinates, whose last block is not whole, got {c}"


def results_of(loops: Loops) -> Results | None:
    """The step that has results go by way of memory; None where none does."""
    return next(iter(loops.of(Results)), None)
