"""The loops over memory that is laid out by coordinates, as few as what is read and stored steps through."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.coordinates import base_of, loop_of, parse_coordinate, place, room
from minigrad.codegen.plan.loops import Loops
from minigrad.codegen.plan.places import Places
from minigrad.codegen.plan.position import Position
from minigrad.expr import Index, Var, bounds, coefficient
from minigrad.value import Value, expressions, substitute


@dataclass(frozen=True, slots=True)
class Run:
    """Loops over memory that are one: each with its length, outermost first, and -1 where it runs from its end.
    `count`: iterations of all."""

    parts: tuple[tuple[str, Index, int], ...]
    count: Index

    def put(self, loops: Loops, at: Index, places: dict[str, Index]) -> None:
        """Its loops at a place."""
        for k, (name, count, sign) in reversed(list(enumerate(self.parts))):
            step = at % count if k else at
            place(loops, name, step if sign > 0 else room(loops, name) - 1 - step, places)
            at = at // count if k else 0

    def has(self, name: str) -> bool:
        return any(name == x for x, _, _ in self.parts)


def runs_of(at: Places, memory: Box, values: Sequence[Value], here: Position, places: dict[str, Index],
            fixed: Mapping[str, int], rows: bool = False) -> list[Run]:
    """The loops over memory, outermost first, those as one that what is read or stored steps through as one, but for
    `rows`; taps of coordinates that are sums are put at one place each."""
    loops, runs = at.loops, list[Run]()
    taps_of = {c: [(factor, x, _taps(loops, x, here, fixed)) for factor, x in base_of(c)[2]] for c in memory.layout}
    for factor, x, count in [tap for c in memory.layout for tap in taps_of[c]]:
        place(loops, x, 0 if factor > 0 else count - 1, places)
    known, here = here, replace(here, places=dict(places))
    for c in memory.layout:
        sign, base, _ = base_of(c)
        if loop_of(base) in fixed or at.is_open(base, known):
            continue
        for name in [base] if taps_of[c] else _parts(loops, base, values):
            count = _count(loops, name, here) + sum([abs(factor) * (taps - 1) for factor, _, taps in taps_of[c]])
            runs.append(Run(((name, count, sign),), count))
    found = dict(places)
    steps = [Var(f"step{k}", 0, max(bounds(r.count)[1] - 1, 0)) for k, r in enumerate(runs)]
    for run, step in zip(runs, steps, strict=True):
        run.put(loops, step, found)
    inside = at.located(replace(here, places=found, copies=()))
    used = [memory.at(inside), *(e for v in values for e in expressions(substitute(v, inside.at)))]
    made: list[Run] = []
    for k, run in enumerate(runs):
        if made and not (rows and run is runs[-1]) and all(_steps(e, steps[k - 1], steps[k], run.count) for e in used):
            made[-1] = Run((*made[-1].parts, *run.parts), made[-1].count * run.count)
        else:
            made.append(run)
    return made


def _steps(e: Index, outer: Var, inner: Var, count: Index) -> bool:
    """True where an expression goes on with the outer loop where the inner one ends."""
    a, b = coefficient(e, outer), coefficient(e, inner)
    return a is not None and b is not None and a == b * count


def _parts(loops: Loops, name: str, values: Sequence[Value]) -> list[str]:
    """The loop, or those that were fused into it where it does not step evenly through what is read or stored."""
    fused = loops.fused.get(name)
    if fused is None:
        return [name]
    v = loops.root.get(name)
    if v is not None and fused.row == fused.most and all(
            coefficient(e, v) is not None for x in values for e in expressions(x)):
        return [name]
    return [p for x in (fused.outer, fused.inner) for p in _parts(loops, x, values)]


def _taps(loops: Loops, name: str, here: Position, fixed: Mapping[str, int]) -> Index:
    """The places of a tap in a coordinate: of `kx//2`, those that one residue has."""
    tap, by, n = parse_coordinate(name)
    return -(-(room(loops, tap) - fixed[tap]) // n) if by else _count(loops, name, here)


def _count(loops: Loops, name: str, here: Position) -> Index:
    return loops.count(name, here) if name in loops.root else room(loops, name)
