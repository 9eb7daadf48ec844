"""Microkernels in place of a register tile: `call tile_f32_6x16_k_avx2 at i`.

    for j: for i:                                               for j: for i:
      for l vector: for k: for u, v unroll:               ->      call tile_...(p0_staged[...], p1_staged[...],
        acc[u, v] += p0_staged[...] * p1_staged[...]                            t0_kept[...], steps, pitches, old)

The loops inside i are the rows, the columns and the steps of the tile. Both operands are copied, along the sum and then
the columns, or in rows along the sum; results go by way of memory. Copies for a microkernel of words (`words.py`) have
the loop over the elements of one last, `[c][k][t]`.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.ir.nodes import If, Loop, Stmt, Store
from minigrad.codegen.kernel.nodes import is_sum
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.tile import Tile
from minigrad.codegen.plan.here import Here
from minigrad.codegen.plan.loops import Loops, refuse
from minigrad.codegen.plan.microkernel_choice import tile_meant
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.call import Call
from minigrad.codegen.plan.steps.results import results_of
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.codegen.plan.words import BIAS, TAKES, is_biased, narrowed
from minigrad.codegen.transforms.bounded_sums import TERMS
from minigrad.dtype import uint32
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds, emax, emin, product
from minigrad.value import Value, const, free_variables

if TYPE_CHECKING:
    from minigrad.codegen.plan.build import Builder
    from minigrad.codegen.plan.stage import Staged


@dataclass(frozen=True, slots=True)
class Called:
    """A microkernel that runs a tile. `row`, `column`: the coordinates of results that it has some of; `steps`: the
    loops of the sum inside it; `word`: the one over elements of a word, '' where these are none; `a`, `b`: the operands
    with the rows and with the columns; `biased`: there is another row, of 128s, below those of a copy of `a`."""

    step: Call
    kernel: Microkernel
    tile: Tile
    row: str
    column: str
    steps: tuple[str, ...]
    word: str
    a: Value
    b: Value
    biased: bool


def with_tile(loops: Loops) -> tuple[Loops, Called | None]:
    """The loops with the row below a tile that a microkernel runs, and this tile. Raises PlanError where those inside
    the call are others."""
    for step in loops.of(Call):
        kernel = find(step.kernel)
        tile = None if kernel is None else tile_meant(kernel)
        if kernel is not None and tile is not None:
            called = _called(loops, step, kernel, tile)
            return replace(loops, row_below=called.row) if called.biased else loops, called
    return loops, None


def _called(loops: Loops, step: Call, kernel: Microkernel, tile: Tile) -> Called:
    results = results_of(loops)
    row, column = (results.layout if results is not None else ("", ""))[-2:]
    if row not in loops.root or column not in loops.root:
        raise refuse(step, "results by way of memory, as [rows][columns]", "others")
    inside = loops.order[loops.order.index(step.at) + 1:]
    down, across = ([x for x in inside if x in loops.inside(c)] for c in (row, column))
    steps = [x for x in inside if loops.space[x]]
    ours = {*down, *across, *steps} == {*inside} and len(steps) > (tile.group > 1)
    if not ours or (_run(loops, down), _run(loops, across)) != (tile.rows, tile.columns):
        raise refuse(step, f"{tile.rows} neighbours of {row}, {tile.columns} of {column} and loops of the sum inside "
                           f"{step.at}", " ".join(inside) or "none")
    last = {s.layout[-1] for s in loops.of(Stage)} if tile.group > 1 else set()
    word = last.pop() if len(last) == 1 else ""
    if tile.group > 1 and (word not in steps or _run(loops, [word]) != tile.group):
        raise refuse(step, f"copies whose last coordinate are the {tile.group} neighbours of a word", word or "others")
    for ahead in loops.of(Ahead):
        if loops.space[ahead.at]:
            raise refuse(ahead, f"a loop around the sum that {tile.name} runs", ahead.at)
    a, b = _operands(loops, step, loops.root[row], loops.root[column])
    found = [narrowed(x) if word else x for x in (a, b)]
    types = TAKES[tile.kind] if word else ((tile.panel,), (tile.panel,))
    if any([x is None or x.dtype not in fit for x, fit in zip(found, types, strict=True)]):
        expected = [" or ".join([t.name for t in fit]) for fit in types]
        raise refuse(step, f"operands of {expected[0]}, and of {expected[1]}", "others")
    split, biased = loops.split.get(row), is_biased(tile.kind, a)
    if biased and (split is None or split.edge != "guard" or split.size != tile.rows):
        raise refuse(step, f"`split {row}` by {tile.rows}, guard, as there is a row below", "another one")
    return Called(step, kernel, tile, row, column, tuple([x for x in steps if x != word]), word, a, b, biased)


def _run(loops: Loops, names: Iterable[str]) -> int:
    """The number of neighbours that loops step through together; 0 where they leave some out."""
    run = 1
    for x in sorted(names, key=lambda x: bounds(loops.stride(x, Here()))[0]):
        if loops.stride(x, Here()) != run or loops.cut_short(x):
            return 0
        run *= loops.most(x)
    return run


def _operands(loops: Loops, step: Call, row: Var, column: Var) -> tuple[Value, Value]:
    """The operand with the rows of a tile, and that with its columns."""
    sums = [s.value for s in loops.nest.body if is_sum(s)]
    if len(sums) == 1 and sums[0].monoid == "sum" and sums[0].args[0].op == "mul":
        x, y = sums[0].args[0].args
        for a, b in ((x, y), (y, x)):
            if column not in free_variables(a) and row not in free_variables(b):
                return a, b
    raise refuse(step, "one sum, of products of an operand with the rows and one with the columns", "another one")


def call_tile(b: Builder, called: Called, here: Here) -> list[Stmt]:
    """The calls: products of a block added to the sums there are, or, of the first one, in their place. Each adds at
    most TERMS of floats, all about as many (docs/decisions/0042-long-sums.md)."""
    inside = b.loops.order[b.loops.order.index(called.step.at) + 1:]
    corner = replace(here, places={**here.places, **dict.fromkeys(inside, 0)})
    gathered = present(b.gathered, "[plan] expected results by way of memory")
    memory, = gathered.memory.values()
    panels = [_panel(b, called, *side) for side in ((called.a, called.row), (called.b, called.column))]
    count, size = _count(b, called, here), TERMS // called.tile.group
    steps = [1 if called.tile.a_along == "k" else panels[0][1], panels[1][1]]
    old = [-here.places[x] for x in b.middle if b.loops.space[x] and b.loops.count(x, here) != 1]

    def call(first: Index, count: Index, more: int) -> IRCall:
        at = [(s.memory, s.box.at(corner) + first * step) for (s, _), step in zip(panels, steps, strict=True)]
        return IRCall(called.kernel, (*at, (memory, gathered.box.at(corner))), (), (
            count, *[pitch for _, pitch in panels], gathered.box.pitches[-2], more))

    most = bounds(count)[1]
    if not called.tile.sum.is_float or most <= size:
        return [If(tuple(old), (call(0, count, 0),), (call(0, count, 1),))] if old else [call(0, count, 0)]
    size = ceil_div(most, ceil_div(most, size))
    x = Var(b.name("part"), 0, ceil_div(most, size) - 1)
    first, more = call(0, emin(count, size), 0), call(x * size, emin(count - x * size, size), 1)
    later = Loop(x, 0, ceil_div(count, size), "serial", (more,))
    return [If(tuple(old), (first, replace(later, start=1)), (later,))] if old else [first, replace(later, start=1)]


def _count(b: Builder, called: Called, here: Here) -> Index:
    """Steps of a block; no one begins beyond the end of the sum."""
    count = product([b.loops.count(x, here) for x in called.steps])
    return count if bounds(count)[0] >= 0 else emax(count, 0)


def _panel(b: Builder, called: Called, operand: Value, coordinate: str) -> tuple[Staged, Index]:
    """The copy of an operand, and how far its rows are apart. Raises PlanError where it is none for the tile."""
    loops, in_rows = b.loops, operand is called.a and called.tile.a_along == "k"
    for s in [s for s in b.staged if s.part is operand]:
        own = [(c, pitch) for c, pitch in zip(s.box.layout, s.box.pitches, strict=True)
               if c == coordinate or c in called.steps]
        if {c for c, _ in own} != {coordinate, *called.steps}:
            continue
        (row, pitch), steps = (own[0], own[1:]) if in_rows else (own[-1], own[:-1])
        even = [x == y * loops.most(c) and not loops.cut_short(c)
                for (_, x), (c, y) in pairwise(steps)]
        if row == coordinate and own[-1][1] == 1 and all(even):
            return s, pitch if in_rows else steps[-1][1]
    expected = f"[{coordinate}][steps]" if in_rows else f"[steps][{coordinate}]"
    raise refuse(called.step, f"a copy as {expected} of all steps inside {called.step.at}, evenly apart", "none")


def row_below(b: Builder, s: Staged, here: Here) -> list[Stmt]:
    """The row of 128s below those of a copy."""
    called = b.called
    if called is None or not called.biased or s.part is not called.a:
        return []
    places = {**here.places, called.row: b.loops.count(called.row, here)}
    loops = list[tuple[Var, Index]]()
    for c in s.box.layout:
        if c not in places:
            count = b.loops.count(c, here)
            loops.append((Var(b.name(c), 0, bounds(count)[1] - 1), count))
            places[c] = loops[-1][0]
    out: Stmt = Store(s.memory, s.box.at(Here(places)), const(BIAS, uint32))
    for x, count in reversed(loops):
        out = Loop(x, 0, count, "serial", (out,))
    return [out]
