"""`split x -> o i by 4, back`: one loop as two."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.plan.loops import NAME, Cut, Faults, Loops, Match, Step, divides, refuse
from minigrad.expr import bounds

EDGES = ("exact", "back", "guard", "rest", "short")


@dataclass(frozen=True, slots=True)
class Split(Cut, Step):
    """`split x -> o i by 4, back`: one loop becomes two, x = 4*o + i. With `into 4`: o runs 4 times, i the rest.

        for x in 0..10:                for o in 0..3:
          ...                 ->         for i in 0..4:
                                           ...                                at x = 4*o + i

    Where the size does not divide the extent, the edge says what becomes of the last block:
      exact   an error: it divides
      back    it reaches back over the one before, x = min(4*o, 10 - 4) + i, and stores again what is there already;
              only what is its own where the nest reads what it stores, or work-items would race
      guard   it is as long as the others: what lies outside is stored nowhere, and adds nothing to a sum
              (where `results` have room for that, it costs no conditions)
      rest    it is a serial loop of its own, over x
      short   it has fewer iterations: i runs min(4, 10 - 4*o) times
    `times`, which is no part of the text: an argument that a block is so many times as long (see Sizes).
    Halide: split and TailStrategy; TVM: split; Exo: divide_loop.
    """

    usage = "split LOOP -> OUTER INNER by SIZE, exact|back|guard|rest|short"
    pattern = rf"split ({NAME}) -> ({NAME}) ({NAME}) (by|into) (\d+)(?:, ?(\w+))?"
    shapes = True

    @classmethod
    def parsed(cls, found: Match) -> Split:
        return cls(found[1], found[2], found[3], int(found[5]), found[6] or "exact", found[4] == "into")

    def __str__(self) -> str:
        by = "into" if self.into else "by"
        return f"split {self.loop} -> {self.outer} {self.inner} {by} {self.size}, {self.edge}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.loop,)

    def apply(self, loops: Loops) -> Loops:
        if not all([s.shapes for s in loops.steps]):
            raise refuse(self, "splits before order, bind and parts", "one after them")
        if self.edge not in EDGES:
            raise refuse(self, f"an edge among {', '.join(EDGES)}", self.edge)
        if self.edge == "short" and self.into:
            raise refuse(self, "by, as blocks `into` are equally long but for the edge back", "into")
        for name in (self.outer, self.inner):
            if name in loops.root or name in loops.gone or self.outer == self.inner:
                raise refuse(self, "names that no loop has or had", name)
        order, at, v = loops.order, loops.order.index(self.loop), loops.root[self.loop]
        return loops.after(self, order=(*order[:at], self.outer, self.inner, *order[at + 1:]),
                           root={**loops.root, self.outer: v, self.inner: v})

    def faults(self, loops: Loops) -> Faults:
        edge, inner = self.edge, f"split {self.loop} {'into' if self.into else 'by'} {self.size}"
        total = loops.extent(self.loop)
        whole, cut, domain = loops.extent(loops.top(self.loop)), loops.cut_short(self.loop), not loops.space[self.loop]
        if self.into and total == 0:
            yield f"{inner}: expected by, as there is nothing to make {self.size} blocks of"
        if divides(self, total) and (not cut or loops.top(self.loop) != self.loop and divides(self, whole) and all(
                [divides(self, p.length) for p in loops.upwards(loops.made_by[self.loop])])):
            return
        if loops.cut_short(loops.top(self.loop)) and edge in ("exact", "back"):
            yield f"{inner}, {edge}: expected rest or short, as runs of {self.loop} may be shorter"
        if edge == "exact":
            yield (f"{inner}: expected an edge, back, guard, rest or short, as {self.size} does not divide the extent "
                   f"{whole}")
        if edge == "back" and not domain:
            yield f"{inner}, back: expected guard or rest, as a sum would add some terms twice"
        if edge == "back" and bounds(whole)[0] < self.size:
            yield f"{inner}, back: expected an extent of {self.size} at least to reach back over, got {whole}"
        for t in loops.upwards(self) if edge == "back" else ():
            if t.edge == "guard" and not divides(t, loops.extent(t.loop)):
                yield f"{inner}, back: expected guard, as the last block of {t.loop} is not whole"
        if edge == "short" and any(loops.kind[x] != "serial" for x in loops.inside(self.inner) if x == self.inner):
            yield f"{inner}, short: expected {self.inner} to be serial, as its last run is shorter"
        if edge == "rest" and cut and domain:
            yield f"{inner}, rest: expected back, as runs of {self.loop} may be shorter"
        if edge == "guard" and any([s.edge == "short" and s.outer == self.loop for s in loops.split.values()]):
            yield f"{inner}, guard: expected rest or short, as blocks beyond the end have no length"
        if edge == "rest" and self.into:
            yield f"{inner}, rest: expected back, as `into` leaves no whole blocks"
        outside, inside = ([loops.order.index(x) for x in loops.inside(name)] for name in (self.outer, self.inner))
        for p in loops.upwards(self) if edge == "short" else ():
            if max([loops.order.index(x) for x in loops.inside(p.outer)]) > min(inside):
                yield f"order: expected {p.outer} outside {self.inner}, whose last run is shorter"
            for x in loops.inside(p.outer):
                if loops.kind[x] == "vector":
                    yield f"bind vector {x}: expected another loop, as the last run of {self.inner} is shorter"
        lanes = [x for x in loops.inside(self.loop) if loops.kind[x] == "vector" and loops.sums(x)]
        if edge == "rest" and max(outside) > min(inside) and not lanes:
            yield f"order: expected {self.outer} outside {self.inner}, whose last block is not whole"
        for x in lanes:
            if loops.made_by[x] is not self:
                yield f"bind vector {x}: expected lanes that `{self}` makes itself, as they add what it leaves"
        if edge == "rest" and domain and any(loops.space[x] for x in loops.order[:max(outside)]):
            yield f"order: expected {self.outer} outside all sums, as its last block is not whole, or the edge back"
        for x in loops.accumulated_outside if edge == "rest" and domain else ():
            if x in loops.inside(self.inner):
                yield f"order: expected {x} outside all sums, as the last block is not whole, or the edge back"
        for x in loops.inside(self.outer):
            if edge == "rest" and domain and loops.kind[x] == "vector":
                yield (f"bind vector {x}: expected lanes inside {self.inner}, as the last block of {self.outer} is not "
                       "whole")
