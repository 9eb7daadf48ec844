"""Memory laid out by loops and sums of them, `[c][y+ky][x+kx]`: where an element lies, and the loops that go over it.

A coordinate that is a sum makes a box: an operand that is read at y + ky alone is there once for each place, and taps
are shifts. Loops that were fused are coordinates too. Copies and results go over such memory in rows of whole vectors.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from minigrad.codegen.ir.launch import places_of
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.microkernels.matrix import WAVE
from minigrad.codegen.plan.coordinates import Laid, above, base_of, inside_box, length, place, room, terms_of
from minigrad.codegen.plan.loops import Loops, refuse
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.steps.call import block_calls
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.errors import PlanError, quantity
from minigrad.expr import Index, Var, bounds, coefficient, subs
from minigrad.value import Value, free_variables, substitute

BANKS, MAX_PADDING = 32, 8
"""Of memory that work-items share: its banks, and elements after each row of a box at most."""

PADDING = 16
"""Bytes after each row of memory that work-items share: columns use all its banks, vectors of four stay aligned."""


@dataclass(frozen=True, slots=True)
class Box:
    """The layout of a step: how far steps of each coordinate are apart, and how many elements there are."""

    loops: Loops
    layout: tuple[str, ...]
    pitches: tuple[Index, ...]
    size: int
    begin: int = 0
    padded: bool = False
    joined: bool = False

    def at(self, here: Position) -> Index:
        """The offset of the element of a place."""
        position: Index = self.begin
        for c, pitch in zip(self.layout, self.pitches, strict=True):
            for factor, x in terms_of(c):
                least = 0 if factor > 0 else -factor * (room(self.loops, x) - 1)
                position = position + (factor * inside_box(self.loops, x, here) + least) * pitch
        return position


def box(loops: Loops, step: Laid, itemsize: int) -> Box:
    """The memory of a step: rows, or boxes, are an odd number of lines apart, so that they use all sets of a cache; not
    where they end in lanes, nor where a microkernel reads them, nor where their length is an argument. Raises PlanError
    where rows are not as long as those that were fused."""
    lengths = [length(loops, c) for c in step.layout]
    beyond = max([room(loops, x) - loops.most(x) for x in loops.fused if x in loops.root], default=0)
    items = isinstance(step, Stage) and step.items
    fixed = step.room if isinstance(step, Stage) else 0
    line = LINE // itemsize
    size: Index = 1
    apart = not items and not block_calls(loops) and not fixed and loops.kind.get(step.layout[-1]) != "vector"
    if items:
        boxes = any([len(terms_of(c)) > 1 for c in step.layout])
        lengths[-1] += _padding(loops, step.layout, lengths) if boxes else PADDING // itemsize
    pitches: list[Index] = []
    steps = True  # of a sum, and none of its rows: a microkernel takes them all evenly apart
    for c, n in zip(reversed(step.layout), reversed(lengths), strict=True):
        steps = steps and bool(loops.space.get(c))
        if (apart and not steps and isinstance(size, int) and size >= line and len(terms_of(c)) == 1
                and c not in loops.members):
            size, apart = (-(-size // line) | 1) * line, False
        pitches.insert(0, size)
        size = size * n
    if not fixed and not isinstance(size, int):
        raise refuse(step, "coordinates whose extents are known", quantity(size, "element"))
    made = Box(loops, step.layout, tuple(pitches), fixed or int(size) + beyond)
    for fused in loops.fused.values():
        if fused.loop in loops.root and fused.pitch and any(fused.loop in above(loops, c) for c in step.layout):
            places = {x: Var(x, 0, 1 << 30) for x in (fused.loop, *(x for c in step.layout for x in above(loops, c)))}
            if coefficient(made.at(Position(places)), places[fused.loop]) is None:
                rows = [n for c, n in zip(step.layout, lengths, strict=True) if base_of(c)[1] == fused.inner]
                raise refuse(step, f"rows as long as those of `fuse {fused.outer} {fused.inner}`, {fused.pitch}",
                             str(*rows))
    return made


def _padding(loops: Loops, layout: tuple[str, ...], lengths: Sequence[Index]) -> int:
    """The elements after each row of a box with which fewest work-items of a wave meet in a bank, where they read it
    at a tap."""
    items = {x: loops.most(x) for x in loops.bound_to("item")}
    count = prod(items.values())
    t = Var("t", 0, count - 1)
    here = Position({**dict.fromkeys(loops.order, 0), **dict(zip(items, places_of(t, [*items.values()]), strict=True))})

    def meetings(padding: int) -> int:
        pitches: list[Index] = [1]
        for n in [lengths[-1] + padding, *lengths[-2:0:-1]][:len(lengths) - 1]:
            pitches.insert(0, pitches[0] * n)
        place = Box(loops, layout, tuple(pitches), 0).at(here)
        places = {subs(place, {t: k}) for k in range(min(WAVE, count))}
        return max(Counter([p % BANKS for p in places]).values())

    return min(range(min(MAX_PADDING, bounds(lengths[-1])[1] // 2) + 1), key=meetings)


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
    here = substitute(value, {v: loops.place(v.name, Position(places)) for v in loops.variables})
    for c in step.layout:
        sign, base, taps = base_of(c)
        for factor, x in taps:
            if own[x] in free_variables(substitute(here, {own[base]: own[base] - sign * factor * own[x]})):
                raise refuse(step, f"an operand that depends on {c} and in no other way on {x}", "another one")


def on_sums_alone(loops: Loops, step: Stage, value: Value) -> bool:
    """True where `depends_on_sums` has nothing to refuse."""
    try:
        depends_on_sums(loops, step, value)
    except PlanError:
        return False
    return True


def check_fused_rows_dense(loops: Loops, body: Value) -> None:
    """Raises PlanError where what a sum adds reads an operand at columns between rows that were fused, of which only
    copies have some."""
    for fused in loops.fused.values():
        if fused.row > fused.most and loops.root.get(fused.loop) in free_variables(body):
            raise refuse(fused.step, "operands that are staged, as rows are longer", "one that is not")
