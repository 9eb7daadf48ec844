"""Memory laid out by loops and sums of them, `[c][y+ky][x+kx]`: where an element lies, and the loops that go over it.

A coordinate that is a sum makes a box: an operand that is read at y + ky alone is there once for each place, and taps
are shifts. Loops that were fused are coordinates too. Copies and results go over such memory in rows of whole vectors.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.loops import Here, Loops
from minigrad.codegen.plan.steps import Results, Stage
from minigrad.codegen.plan.text import loop_of, refuse, terms_of
from minigrad.errors import quantity
from minigrad.expr import Index, Var, coefficient
from minigrad.value import Value, free_variables, substitute

PADDING = 16
"""Bytes after each row of memory that work-items share: columns use all its banks, vectors of four stay aligned."""


@dataclass(frozen=True, slots=True)
class Box:
    """The layout of a step: how far steps of each coordinate are apart, and how many elements there are."""

    loops: Loops
    layout: tuple[str, ...]
    pitches: tuple[Index, ...]
    size: int

    def at(self, here: Here) -> Index:
        """The offset of the element of a place."""
        position: Index = 0
        for c, pitch in zip(self.layout, self.pitches, strict=True):
            for factor, x in terms_of(c):
                least = 0 if factor > 0 else -factor * (room(self.loops, x) - 1)
                position = position + (factor * _inside(self.loops, x, here) + least) * pitch
        return position


def box(loops: Loops, step: Stage | Results, itemsize: int) -> Box:
    """The memory of a step: rows, or boxes, are an odd number of lines apart, so that they use all sets of a cache; not
    where they end in lanes, nor where a microkernel reads them, nor where their length is an argument. Raises PlanError
    where rows are not as long as those that were fused."""
    lengths = [length(loops, c) for c in step.layout]
    beyond = max([room(loops, x) - loops.most(x) for x in loops.fused.loops if x in loops.root], default=0)
    items = isinstance(step, Stage) and step.items
    fixed = step.room if isinstance(step, Stage) else 0
    line = LINE // itemsize
    size: Index = 1
    apart = not items and not loops.blocks and not fixed and loops.kind.get(step.layout[-1]) != "vector"
    if items:
        lengths[-1] += PADDING // itemsize
    pitches: list[Index] = []
    steps = True  # of a sum, and none of its rows: a microkernel takes them all evenly apart
    for c, n in zip(reversed(step.layout), reversed(lengths), strict=True):
        steps = steps and bool(loops.space.get(c))
        if (apart and not steps and isinstance(size, int) and size >= line and len(terms_of(c)) == 1
                and not loops.fused.member(c)):
            size, apart = (-(-size // line) | 1) * line, False
        pitches.insert(0, size)
        size = size * n
    if not fixed and not isinstance(size, int):
        raise refuse(step, "coordinates whose extents are known", quantity(size, "element"))
    made = Box(loops, step.layout, tuple(pitches), fixed or int(size) + beyond)
    for fused, _, _ in loops.fused.loops.values():
        if fused.loop in loops.root and fused.pitch and any(fused.loop in above(loops, c) for c in step.layout):
            places = {x: Var(x, 0, 1 << 30) for x in (fused.loop, *(x for c in step.layout for x in above(loops, c)))}
            if coefficient(made.at(Here(places)), places[fused.loop]) is None:
                rows = [n for c, n in zip(step.layout, lengths, strict=True) if base_of(c)[1] == fused.inner]
                raise refuse(step, f"rows as long as those of `fuse {fused.outer} {fused.inner}`, {fused.pitch}",
                             str(*rows))
    return made


def length(loops: Loops, coordinate: str) -> Index:
    """The number of places that a coordinate has."""
    if coordinate in loops.root and loops.fused.member(coordinate) is None:
        s = loops.split.get(coordinate)
        if s is None or not loops.beyond(s):
            return loops.extent(coordinate)
    return 1 + sum([abs(factor) * (room(loops, x) - 1) for factor, x in terms_of(coordinate)])


def base_of(coordinate: str) -> tuple[int, str, list[tuple[int, str]]]:
    """The loop of a coordinate that places are counted by, its factor, 1 or -1, and the other terms."""
    terms = terms_of(coordinate)
    factor, base = next((t for wanted in (1, -1) for t in terms if t[0] == wanted), (0, ""))
    return factor, base, [t for t in terms if t[1] != base]


def above(loops: Loops, coordinate: str) -> list[str]:
    """The loops of a coordinate, or what they were fused into."""
    found = []
    for _, x in terms_of(coordinate):
        x = loop_of(x)
        while (fused := loops.fused.member(x)) is not None:
            x = fused[0].loop
        found.append(x)
    return found


def leaves(loops: Loops, coordinate: str) -> frozenset[str]:
    """The loops in `order` that a coordinate is made of."""
    return frozenset().union(*[loops.inside(x) for x in above(loops, coordinate)])


@lru_cache(maxsize=1024)
def taken(name: str) -> tuple[str, str, int]:
    """The loop that a part of a coordinate is of, and which part: (kx, //, 2) for `kx//2`, (kx, '', 1) for kx."""
    whole, by, n = re.fullmatch(r"(\w+?)(?:(//|%)(\d+))?", name).groups()  # type: ignore[union-attr]
    return whole, by or "", int(n or 1)


def room(loops: Loops, name: str) -> int:
    """Iterations of a loop, with those of a last block that goes on beyond its end."""
    whole, by, n = taken(name)
    if by:
        return -(-room(loops, whole) // n) if by == "//" else min(room(loops, whole), n)
    fused = loops.fused.member(name)
    if fused is not None:
        return fused[1] if name == fused[0].outer else fused[2]
    s, most = loops.split.get(name), loops.most(name)
    return -(-(most + loops.below(name)) // s.size) * s.size if s is not None and loops.beyond(s) else most


def _inside(loops: Loops, name: str, here: Here) -> Index:
    """A loop's variable, counted from the begin of its block; of one that was fused, from the row or in it."""
    x, by, n = taken(name)
    if by:
        return _inside(loops, x, here) // n if by == "//" else _inside(loops, x, here) % n
    fused = loops.fused.member(name)
    if fused is None:
        return loops.inside_block(name, here)
    whole, row = _inside(loops, fused[0].loop, here), fused[0].pitch or fused[2]
    return whole // row if name == fused[0].outer else whole % row


def depends_on_sums(loops: Loops, step: Stage, value: Value) -> None:
    """Raises PlanError where what is copied is not the same for all that have one place in the box."""
    if all(len(terms_of(c)) == 1 for c in step.layout):
        return
    places: dict[str, Index] = {}
    own = {x: Var(x, 0, max(room(loops, x) - 1, 1)) for c in step.layout for _, x in terms_of(c)}
    for x, v in own.items():
        place(loops, x, v, places)
    for x in loops.order:
        if not any(x in loops.inside(y) for y in list(places)):
            places[x] = Var(x, 0, 1 << 30)
    here = substitute(value, {v: loops.place(v.name, Here(places)) for v in loops.variables})
    for c in step.layout:
        sign, base, taps = base_of(c)
        for factor, x in taps:
            if own[x] in free_variables(substitute(here, {own[base]: own[base] - sign * factor * own[x]})):
                raise refuse(step, f"an operand that depends on {c} and in no other way on {x}", "another one")


def place(loops: Loops, name: str, at: Index, places: dict[str, Index]) -> None:
    """Puts a loop, or a part of it, at a place, among those of what it is a part of."""
    x, by, n = taken(name)
    fused = loops.fused.member(name)
    if by:
        place(loops, x, places.get(x, 0) + at * (n if by == "//" else 1), places)
    elif fused is None:
        places[name] = at
    else:
        row = (fused[0].pitch or fused[2]) if name == fused[0].outer else 1
        place(loops, fused[0].loop, places.get(fused[0].loop, 0) + at * row, places)


def refuse_gaps(loops: Loops, body: Value) -> None:
    """Raises PlanError where what a sum adds reads an operand at columns between rows that were fused, of which only
    copies have some."""
    for fused, _, extent in loops.fused.loops.values():
        if fused.pitch > extent and loops.root.get(fused.loop) in free_variables(body):
            raise refuse(fused, "operands that are staged, as rows are longer", "one that is not")
