"""Loops over memory that is laid out by coordinates: those of a copy, and of results.

Coordinates that what is read or stored steps through as one are one loop, lanes go along the last one, and the whole
runs in square blocks where the other side is contiguous along another.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.codegen.ir.walk import map_all
from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.coordinates import base_of, loop_of, place, room, taken
from minigrad.codegen.plan.here import Here
from minigrad.codegen.plan.loops import Loops
from minigrad.expr import Index, Var, bounds, coefficient, emin, subs
from minigrad.value import Value, expressions, substitute

Make = Callable[[Here, tuple[Index, ...], tuple[Index, ...]], list[Stmt]]
"""Makes the statements of a place, given conditions under which it is no other vector's as well, and under which there
is one."""


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


def sweep(ctx: Context, memory: Box, values: Sequence[Value], here: Here, make: Make, transposed: str = "",
          transposed_by: int = 1, outwards: bool = False) -> list[Stmt]:
    """Loops over memory, lanes along its last coordinate. With `transposed_by`, as many steps along
    `transposed` are written out inside, so that square blocks are transposed in registers; `outwards`, lanes go along
    that, and the last coordinate is written out. Of a coordinate `kx%2` each place has loops of its own."""
    out: list[Stmt] = []
    parts = [taken(c) for c in memory.layout if "%" in c]
    for residues in product(*(range(n) for _, _, n in parts)):
        fixed = {x: r for (x, _, _), r in zip(parts, residues, strict=True)}
        if all(r < room(ctx.loops, x) for x, r in fixed.items()):
            places: dict[str, Index] = {**here.places, **fixed}
            runs = _runs(ctx, memory, values, here, places, fixed)
            out += _loops(ctx, runs, here, places, make, (transposed, transposed_by if transposed else 1), outwards)
    return out


def _loops(ctx: Context, runs: list[Run], here: Here, places: dict[str, Index], make: Make, transposed: tuple[str, int],
           outwards: bool) -> list[Stmt]:
    """The loops over runs. What whole vectors leave is another one that reaches back, or has fewer elements."""
    if not runs:  # all loops are open
        return make(ctx.located(replace(here, places=places, copies=())), (), ())
    along = transposed[0]
    while along in ctx.loops.fused and not any(r.has(along) for r in runs):
        along = ctx.loops.fused[along].inner
    lanes, written = runs[-1], next((r for r in runs[:-1] if r.has(along)), None)
    if written is not None and outwards:
        lanes, written = written, lanes
    width = next((ctx.loops.most(x) for x in ctx.loops.order if ctx.loops.kind[x] == "vector"), 1)
    inner = [r for r in ((written, lanes) if outwards else (lanes, written)) if r is not None]
    opened, blocks = list[tuple[Var, Index, str]](), list[tuple[Var, Index, str]]()
    own, there, exact = list[Index](), list[Index](), dict[Var, Index]()
    for run in [*(r for r in runs if r not in inner), *inner]:
        count, name = run.count, f"{loop_of(run.parts[-1][0])}_{'o' if outwards else 'c'}"
        size = _lanes(count, width) if run is lanes else _written(count, transposed[1]) if run is written else 1
        stop = (count + (size - 1)) // size
        x, at = Var(ctx.name(name), 0, max(bounds(stop)[1] - 1, 0)), Var(f"{name}_at", 0, max(bounds(count)[1] - 1, 0))
        block: Index = x if stop != 1 else 0
        if stop != 1:
            opened.append((x, stop, "serial"))
        exact[at] = block
        if size > 1:
            step = Var(ctx.name("l" if run is lanes else "u"), 0, size - 1)
            blocks.insert(0 if run is lanes else len(blocks), (step, size, "vector" if run is lanes else "unroll"))
            back = bounds(count)[0] >= size and not (isinstance(count, int) and count % size == 0)
            exact[at] = (emin(block * size, count - size) if back else block * size) + step
            own.append(exact[at] - block * size)
            there.append(count - 1 - exact[at])
        run.put(ctx.loops, at, places)
    made = make(ctx.located(replace(here, places=places, copies=())),
                *(tuple([e for e in found if bounds(e)[0] < 0]) for found in (own, there)))
    out = list(map_all(tuple(made), lambda v: substitute(v, exact), lambda e: subs(e, exact),
                       lambda _, e: subs(e, exact)))
    for x, stop, kind in reversed([*opened, *blocks]):
        out = [Loop(x, 0, stop, kind, tuple(out))]
    return out


def _lanes(count: Index, width: int) -> int:
    """Lanes for a row: fewer where half of them cover it."""
    most = bounds(count)[1]
    while width > 1 and width // 2 >= most:
        width //= 2
    return width


def _written(count: Index, most: int) -> int:
    """Elements of a row that are written out."""
    return min(bounds(count)[0], most) if isinstance(count, int) or bounds(count)[0] >= most else 1


def _runs(ctx: Context, memory: Box, values: Sequence[Value], here: Here, places: dict[str, Index],
          fixed: Mapping[str, int]) -> list[Run]:
    """The loops over memory, outermost first, those as one that what is read or stored steps through as one; taps of
    coordinates that are sums are put at one place each."""
    loops, runs = ctx.loops, list[Run]()
    taps_of = {c: [(factor, x, _taps(loops, x, here, fixed)) for factor, x in base_of(c)[2]] for c in memory.layout}
    for factor, x, count in [tap for c in memory.layout for tap in taps_of[c]]:
        place(loops, x, 0 if factor > 0 else count - 1, places)
    known, here = here, replace(here, places=dict(places))
    for c in memory.layout:
        sign, base, _ = base_of(c)
        if loop_of(base) in fixed or ctx.is_open(base, known):
            continue
        for name in [base] if taps_of[c] else _parts(ctx, base, values):
            count = _count(loops, name, here) + sum([abs(factor) * (taps - 1) for factor, _, taps in taps_of[c]])
            runs.append(Run(((name, count, sign),), count))
    found = dict(places)
    steps = [Var(f"step{k}", 0, max(bounds(r.count)[1] - 1, 0)) for k, r in enumerate(runs)]
    for run, step in zip(runs, steps, strict=True):
        run.put(loops, step, found)
    at = ctx.located(replace(here, places=found, copies=()))
    used = [memory.at(at), *(e for v in values for e in expressions(substitute(v, at.at)))]
    made: list[Run] = []
    for k, run in enumerate(runs):
        if made and all(_steps(e, steps[k - 1], steps[k], run.count) for e in used):
            made[-1] = Run((*made[-1].parts, *run.parts), made[-1].count * run.count)
        else:
            made.append(run)
    return made


def _steps(e: Index, outer: Var, inner: Var, count: Index) -> bool:
    """True where an expression goes on with the outer loop where the inner one ends."""
    a, b = coefficient(e, outer), coefficient(e, inner)
    return a is not None and b is not None and a == b * count


def _parts(ctx: Context, name: str, values: Sequence[Value]) -> list[str]:
    """The loop, or those that were fused into it where it does not step evenly through what is read or stored."""
    fused = ctx.loops.fused.get(name)
    if fused is None:
        return [name]
    v = ctx.loops.root.get(name)
    if v is not None and fused.row == fused.most and all(
            coefficient(e, v) is not None for x in values for e in expressions(x)):
        return [name]
    return [p for x in (fused.outer, fused.inner) for p in _parts(ctx, x, values)]


def _taps(loops: Loops, name: str, here: Here, fixed: Mapping[str, int]) -> Index:
    """The places of a tap in a coordinate: of `kx//2`, those that one residue has."""
    tap, by, n = taken(name)
    return -(-(room(loops, tap) - fixed[tap]) // n) if by else _count(loops, name, here)


def _count(loops: Loops, name: str, here: Here) -> Index:
    return loops.count(name, here) if name in loops.root else room(loops, name)
