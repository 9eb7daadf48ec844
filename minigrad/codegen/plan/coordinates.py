"""Coordinates of memory, `[c][y+ky][x+kx]`: sums of loops, of parts of them and of what was fused; and what steps that
lay memory out by them have in common."""
from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from minigrad.codegen.plan.loops import NAME, Faults, Loops, Step, divides, refuse
from minigrad.codegen.plan.position import Position
from minigrad.expr import Index, bounds

TERM = rf"(?:\d+\*)?{NAME}(?:(?://|%)\d+)?"
COORDINATES = rf"((?:\[{TERM}(?:[+-]{TERM})*\])+)"
TRANSPOSED = rf"(?:, ?transposed ({NAME})(?: by (\d+))?)?"


class Laid(Step):
    """A step that has memory laid out by coordinates, and transposed in square blocks; made in each iteration of `at`.
    """

    __slots__ = ()
    at: str
    layout: tuple[str, ...]
    transposed: str
    transposed_by: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)

    @property
    def laid_out(self) -> str:
        """The text of that."""
        by = f" by {self.transposed_by}" if self.transposed_by > 1 else ""
        along = f", transposed {self.transposed}" if self.transposed else ""
        return "".join([f"[{x}]" for x in self.layout]) + along + by

    def refuse_unknown(self, loops: Loops) -> None:
        """Raises PlanError for coordinates of no loops."""
        names = [loop_of(x) for c in self.layout for _, x in terms_of(c)] + [self.transposed] * bool(self.transposed)
        unknown = [x for x in names if x not in loops.root and x not in loops.members]
        if unknown or self.transposed and self.transposed not in self.layout:
            raise refuse(self, f"coordinates among {' '.join(loops.root)}", unknown[0] if unknown else self.transposed)

    def coordinate_faults(self, loops: Loops) -> Faults:
        """About loops that are not in one coordinate, and parts of what was fused, or is cut by // and %, without the
        other."""
        names = [x for c in self.layout for _, x in terms_of(c)]
        for c in self.layout:
            if not base_of(c)[1]:
                yield f"{self}: expected a loop without a factor in each coordinate, got {c}"
        for k, x in enumerate(names):
            whole, by, n = parse_coordinate(x)
            fused = loops.members.get(x)
            others = [f"{whole}{'%' if by == '//' else '//'}{n}"] if by else []
            if fused is not None:
                others = [fused.inner if x == fused.outer else fused.outer]
            for other in others:
                if other not in names and not any(y in _parts(loops, other) for y in names):
                    yield f"{self}: expected {other} among the coordinates, as {x} is"
            if any([_overlap(loops, x, y) for y in names[:k]]):
                yield f"{self}: expected each loop once among the coordinates, got {x} again"
        own = {y for c in self.layout for y in leaves(loops, c)}
        for x in [x for x in names if x in loops.root and x not in loops.members and loops.cut_short(x)]:
            for s in loops.upwards(loops.made_by[x]):
                if s.outer != x and not own.isdisjoint(loops.inside(s.outer)):
                    yield f"{self}: expected {s.loop} among the coordinates, as the extent of {x} depends on {s.outer}"


def _parts(loops: Loops, name: str) -> list[str]:
    """The loops that were fused into one, and those into them."""
    fused = loops.fused.get(name)
    return [] if fused is None else [y for x in (fused.outer, fused.inner) for y in (x, *_parts(loops, x))]


def _overlap(loops: Loops, one: str, other: str) -> bool:
    """True where two parts of coordinates have a loop in common: all but a row and a column that were fused, and k//2
    and k%2."""
    (x, by, n), (y, other_by, other_n) = parse_coordinate(one), parse_coordinate(other)
    if x == y:
        return {by, other_by} != {"//", "%"} or n != other_n
    if x in loops.members and y in loops.members:
        return x in _parts(loops, y) or y in _parts(loops, x)
    return not leaves(loops, one).isdisjoint(leaves(loops, other))


@lru_cache(maxsize=1024)
def terms_of(coordinate: str) -> tuple[tuple[int, str], ...]:
    """The loops of a coordinate with their factors: those of `y-2*ky` are (1, y) and (-2, ky)."""
    found = re.findall(rf"([+-]?)(?:(\d+)\*)?({NAME}(?:(?://|%)\d+)?)", coordinate)
    return tuple([((-1 if sign == "-" else 1) * int(factor or 1), name) for sign, factor, name in found])


def loop_of(name: str) -> str:
    """The loop that a part of a coordinate is about: kx for `kx//2` and `kx%2`."""
    return name.split("%")[0].split("//")[0]


def length(loops: Loops, coordinate: str) -> Index:
    """The number of places that a coordinate has."""
    if coordinate in loops.root and coordinate not in loops.members:
        s = loops.split.get(coordinate)
        if s is None or not loops.pads_results(s):
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
        while x in loops.members:
            x = loops.members[x].loop
        found.append(x)
    return found


def leaves(loops: Loops, coordinate: str) -> frozenset[str]:
    """The loops in `order` that a coordinate is made of."""
    return frozenset().union(*[loops.inside(x) for x in above(loops, coordinate)])


@lru_cache(maxsize=1024)
def parse_coordinate(name: str) -> tuple[str, str, int]:
    """The loop that a part of a coordinate is of, and which part: (kx, //, 2) for `kx//2`, (kx, '', 1) for kx."""
    whole, by, n = re.fullmatch(r"(\w+?)(?:(//|%)(\d+))?", name).groups()  # type: ignore[union-attr]
    return whole, by or "", int(n or 1)


def room(loops: Loops, name: str) -> int:
    """Iterations of a loop, with those of a last block that goes on beyond its end."""
    whole, by, n = parse_coordinate(name)
    if by:
        return -(-room(loops, whole) // n) if by == "//" else min(room(loops, whole), n)
    fused = loops.members.get(name)
    if fused is not None:
        return fused.rows if name == fused.outer else fused.most
    s, most = loops.split.get(name), loops.most(name)
    if s is None or not loops.pads_results(s):
        return most
    return -(-(most + (name == loops.row_below)) // s.size) * s.size


def inside_box(loops: Loops, name: str, here: Position) -> Index:
    """A loop's variable, counted from the begin of its block; of one that was fused, from the row or in it."""
    x, by, n = parse_coordinate(name)
    if by:
        return inside_box(loops, x, here) // n if by == "//" else inside_box(loops, x, here) % n
    fused = loops.members.get(name)
    if fused is None:
        back = name not in loops.made_by and any(s.edge == "back" and loops.top(s.loop) == name
                                                 for s in loops.split.values())
        return loops.place(name, here) if back else loops.inside_block(name, here)
    whole = inside_box(loops, fused.loop, here)
    return whole // fused.row if name == fused.outer else whole % fused.row


def place(loops: Loops, name: str, at: Index, places: dict[str, Index]) -> None:
    """Puts a loop, or a part of it, at a place, among those of what it is a part of."""
    x, by, n = parse_coordinate(name)
    fused = loops.members.get(name)
    if by:
        place(loops, x, places.get(x, 0) + at * (n if by == "//" else 1), places)
    elif fused is None:
        places[name] = at
    else:
        row = fused.row if name == fused.outer else 1
        place(loops, fused.loop, places.get(fused.loop, 0) + at * row, places)


def before_ends(loops: Loops, coordinates: Iterable[str], here: Position) -> tuple[Index, ...]:
    """The conditions that places along coordinates are none beyond the last one, to which blocks with the edge guard,
    or residues, may go on."""
    found = list[Index]()
    ends = {loops.root[s.loop] for s in loops.split.values()
            if s.edge == "guard" and not divides(s, loops.extent(s.loop))}
    for c in [c for c in coordinates if "%" not in c]:
        terms = [(factor, *parse_coordinate(x)) for factor, x in terms_of(c)]
        times = max([n for *_, n in terms])
        if times == 1 and ends.isdisjoint([loops.root[x] for _, x, *_ in terms]):
            continue
        left: Index = 0
        for factor, x, by, _ in terms:
            v = loops.root[x]
            left = left + factor * (1 if by else times) * ((v.hi if factor > 0 else 0) - here.at[v])
        found.append(left)
    return tuple([e for e in found if bounds(e)[0] < 0])
