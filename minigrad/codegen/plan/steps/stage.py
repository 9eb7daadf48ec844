"""`stage p1 at j as [kk][v][l]`: copies of operands."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.coordinates import COORDINATES, TRANSPOSED, Laid, base_of, leaves, terms_of
from minigrad.codegen.plan.loops import NAME, Faults, Loops, Match


@dataclass(frozen=True, slots=True)
class Stage(Laid):
    """`stage p1 at j as [kk][v][l]`: in each iteration of j, what the sum reads of p1 is copied to memory of the
    worker's own, laid out as [kk][v][l], loops inside j: contiguous along the last. Loops between that the copy does
    not depend on read it again. `transposed kk by 4`: it is read along kk, in square blocks that are transposed in
    registers. A coordinate may be a sum, `[c][y+ky][x+kx]`, where the operand depends on the sum alone: each element is
    copied once, borders are looked at in the copy only, and y and x may be fused into rows of that length. `border`:
    rows have room for whole vectors; what is inside the image is copied in such, what is not is filled beside it, in
    lanes of a sum, too, that are open. A row may then be read beyond blocks with the edges guard and back.
    Halide: compute_at and store_in; TVM: cache_read.

    `by items`: all work-items of a group copy it, to memory that they share, in turns: one element after another along
    the last loop of the layout, or along kk where it is `transposed kk`; j may be a loop over groups. `double`: through
    registers, so that the block for the next iteration of j is on its way while this one is used. `room`, which is no
    part of the text: elements of the memory, where extents are arguments.

        for j ...:                            for j ...:
          for k ...: ... p1 ...        ->       p1_staged[...] = p1[...];  barrier
                                                for k ...: ... p1_staged ...;  barrier
    """

    operand: str
    at: str
    layout: tuple[str, ...]
    transposed: str = ""
    transposed_by: int = 1
    items: bool = False
    double: bool = False
    room: int = 0
    border: bool = False
    usage = "stage BUFFER at LOOP as [LOOP+LOOP]..., transposed LOOP by NUMBER, by items, double, border"
    pattern = rf"stage ({NAME}) at ({NAME}) as {COORDINATES}{TRANSPOSED}(?:(, ?by items)(, ?double)?)?(, ?border)?"

    @classmethod
    def parsed(cls, found: Match) -> Stage:
        return cls(found[1], found[2], tuple(found[3][1:-1].split("][")), found[4] or "", int(found[5] or 1),
                   bool(found[6]), bool(found[7]), border=bool(found[8]))

    def __str__(self) -> str:
        options = (", by items" if self.items else "") + (", double" if self.double else "")
        options += ", border" if self.border else ""
        return f"stage {self.operand} at {self.at} as {self.laid_out}{options}"

    def apply(self, loops: Loops) -> Loops:
        self.refuse_unknown(loops)
        return loops.after(self)

    def faults(self, loops: Loops) -> Faults:
        """A copy is of one sum, over loops inside the one that it is made in, of which no rest is left."""
        first = loops.order.index(self.at)
        if loops.bound_to("group", "item"):
            yield from self._faults_of_groups(loops)
        if len(loops.spaces) != 2 or not loops.spaces[1].is_sum:
            yield f"{self}: expected a kernel whose sums share their loops, and that has no others"
        if loops.kind[self.at] not in ("serial", "parallel", *(["group"] if self.items else [])):
            yield f"{self}: expected a serial or parallel loop, got {self.at}, which is bound {loops.kind[self.at]}"
        own = dict.fromkeys(x for c in self.layout for x in leaves(loops, c))
        for k, x in enumerate(loops.order):
            around = k < first or loops.space[x] and loops.space[x] == loops.space[self.at]  # a sum's lanes open first
            if around and loops.kind[x] == "vector" and x not in own:
                yield f"{self}: expected a loop outside lanes, got {self.at} inside {x}"
        for x in own:
            if loops.kind[x] == "vector" and loops.space[x]:
                if not self.border or any([leaves(loops, base_of(c)[1]) == {x} for c in self.layout]):
                    yield f"{self}: expected no lanes of a sum among the coordinates, got {x}"
                continue
            if loops.order.index(x) <= first and not (self.items and loops.kind[x] == "item"):
                yield f"{self}: expected coordinates inside {self.at}, got {x}"
            if loops.kind[x] == "parallel":
                yield f"{self}: expected coordinates that one worker goes over, got {x}, which is bound parallel"
        for s in loops.split.values():
            parts = [loops.inside(s.outer), loops.inside(s.inner)]
            if s.edge == "rest" and not loops.is_whole(s) and any(
                    leaves(loops, c) <= part for c in (self.at, *self.layout) for part in parts):
                yield f"{self}: expected loops without a rest, got some of `{s}`"
        yield from self.coordinate_faults(loops)

    def _faults_of_groups(self, loops: Loops) -> Faults:
        if not self.items:
            yield f"{self}: expected by items, as a copy of each work-item's own has no room"
        if loops.kind[self.at] not in ("serial", *([] if self.double else ["group"])):
            yield f"{self}: expected a serial loop, got {self.at}, which is bound {loops.kind[self.at]}"
        for c in [c for c in self.layout if c in loops.root]:
            if loops.cut_short(c) or not isinstance(loops.extent(c), int):
                yield f"{self}: expected coordinates of known lengths, the same in every block, got {c}"
        for x in [x for c in self.layout if len(terms_of(c)) > 1 for _, x in terms_of(c)]:
            if self.items and x in loops.members:
                yield f"{self}: expected sums of loops that are not fused, got {x}"
