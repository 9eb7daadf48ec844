"""Rows of copies: what of each is inside the image, and how they lie so that this is whole vectors."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.coordinates import base_of, before_ends, length, loop_of, parse_coordinate, room
from minigrad.codegen.plan.loops import Loops
from minigrad.codegen.plan.places import Places
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.runs import Run, runs_of
from minigrad.errors import PlanError
from minigrad.expr import Index, Var, bounds, coefficient, variables
from minigrad.value import Value, const, guard, substitute

WRITTEN_OUT = 4
"""Vectors of a row up to which they are written out."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a copy with one residue: `x` counts its `count` places, those from `lo` to `hi` are inside; `around`:
    the loops outside it; `at`: where it is, `value`: what is copied there."""

    around: tuple[tuple[Run, Var], ...]
    x: Var
    count: int
    lo: int
    hi: int
    at: Position
    value: Value

    @property
    def conditions(self) -> tuple[Index, ...]:
        return self.value.conditions if self.value.op == "guard" else ()

    @property
    def outside(self) -> Value:
        """The constant around the image: of guards around guards that of the first that is not always true here."""
        return self.value.args[1] if self.value.op == "guard" else const(0, self.value.dtype)

    @property
    def inside(self) -> Value:
        return self.value.args[0] if self.value.op == "guard" else self.value


def rows_of(stand: Places, box: Box, factor: Value, here: Position, name: Callable[[str], str] = str) -> list[Row]:
    """The rows of a box, `name` giving names to the loops around them; none where constants do not tell the border."""
    loops = stand.loops
    made: list[Row] = []
    parts = [parse_coordinate(c) for c in box.layout if "%" in c]
    for residues in product(*(range(n) for _, _, n in parts)):
        fixed = {x: r for (x, _, _), r in zip(parts, residues, strict=True)}
        if any(r >= room(loops, x) for x, r in fixed.items()):
            continue
        places: dict[str, Index] = {**here.places, **fixed}
        found: list[tuple[Run, Var]] = []
        runs = runs_of(stand, box, (factor,), here, places, fixed, rows=True)
        for k, run in enumerate(runs):
            last = max(bounds(run.count)[1] - 1, 0)
            if run is runs[-1]:
                x = Var("x.", 0, last)
            else:
                x = made[0].around[k][1] if made else Var(name(f"{loop_of(run.parts[-1][0])}_c"), 0, last)
            found.append((run, x))
            run.put(loops, x, places)
        if not found or not isinstance(found[-1][0].count, int):
            return []
        at = stand.located(replace(here, places=places, copies=()))
        value, x, count = substitute(factor, at.at), found[-1][1], found[-1][0].count
        ends = before_ends(loops, [c for c in box.layout if "//" not in c], at)  # a read goes on there, beyond blocks
        inside, nothing = value.args if value.op == "guard" else (value, const(0, value.dtype))
        value = guard(inside, nothing, (*(value.conditions if value.op == "guard" else ()), *ends))
        span = _span(value.conditions if value.op == "guard" else (), x, count)
        around = tuple(found[:-1])
        if span is None or made and [r.count for r, _ in around] != [r.count for r, _ in made[0].around]:
            return []
        if value.op == "guard" and value.args[1].op != "const":
            return []
        made.append(Row(around, x, count, *span, at, value))
    return made


def _span(conditions: Sequence[Index], x: Var, count: int) -> tuple[int, int] | None:
    """The first and the last place that conditions leave; None where these are no constants."""
    lo, hi = 0, count - 1
    for c in [c for c in conditions if x in variables(c)]:
        step = coefficient(c, x)
        rest = c - step * x if isinstance(step, int) else None
        if not isinstance(rest, int) or not isinstance(step, int):
            return None
        lo, hi = (max(lo, -(rest // step)), hi) if step > 0 else (lo, min(hi, rest // -step))
    return lo, hi


def aligned(stand: Places, box: Box, factor: Value, at: str, border: bool) -> Box:
    """The box with room for whole vectors in each row, its inside at a whole vector."""
    loops = stand.loops
    if not border or loops.fused:
        return box
    last = loop_of(base_of(box.layout[-1])[1])
    beyond = _covered(loops, last) - loops.most(last) if isinstance(loops.extent(last), int) else 0
    plain = replace(box, size=box.size + beyond)  # lanes beyond the last column read on
    if factor.op == "guard" and factor.args[1].op != "const":
        return plain  # an image read inside alone has no border, but needs room
    width = lanes_of(loops)
    outside = loops.order[:loops.order.index(at) + 1]
    rows = rows_of(stand, box, factor, Position(loops.ones | {x: Var(x, 0, 1 << 20) for x in outside}))
    if not rows:
        lanes = [x for x in loops.order[:loops.order.index(at)] if loops.kind[x] == "vector"]
        if lanes:
            raise PlanError(f"[plan] stage at {at}, border: expected one that is told by constants, in the lanes of "
                            f"{lanes[0]}, got another one")
        return plain
    vectors = [-(-r.count // width) for r in rows]
    apart = sum(-(-(r.hi + 1 - r.lo) // width) + -(-r.lo // width) + (r.hi + 1 < r.count) for r in rows)
    joined = sum(vectors) <= apart and max(vectors) <= WRITTEN_OUT
    begin = 0 if joined else -rows[0].lo % width
    pitch = max(-(-(begin + r.count) // width) for r in rows) * width
    if len(rows) == 1 and not joined:  # the border after the image may be the one before the next row's
        short = -(-(begin + rows[0].hi + 1) // width) * width
        pitch = short if begin + rows[0].count - short <= begin + rows[0].lo else pitch
    pitches, size = [1], pitch
    for c in reversed(box.layout[:-1]):
        pitches.insert(0, size)
        size *= bounds(length(loops, c))[1]
    read = begin + rows[0].count + _covered(loops, base_of(box.layout[-1])[1])  # of the last row
    size += max(read - pitch, 0) + width
    return replace(box, pitches=tuple(pitches), size=size, begin=begin, joined=joined, padded=True)


def _covered(loops: Loops, name: str) -> int:
    """Iterations of a loop, those included that blocks have too much."""
    s = loops.split.get(loop_of(name))
    return loops.most(loop_of(name)) if s is None else _covered(loops, s.outer) * _covered(loops, s.inner)


def lanes_of(loops: Loops) -> int:
    """Elements of a vector."""
    return next((loops.most(x) for x in loops.order if loops.kind[x] == "vector"), 1)
