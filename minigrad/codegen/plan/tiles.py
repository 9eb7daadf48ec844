"""Register tiles that microkernels run: `call tile_f32_6x16_k_avx2 at i` (`call.py`).

The loops inside i are the rows, the columns and the steps of the tile. Both operands are copied, along the sum and then
the columns, or in rows along the sum; results go by way of memory. Copies for a microkernel of words (`words.py`) have
the loop over the elements of one last, `[c][k][t]`.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from minigrad.codegen.kernel.nodes import is_sum
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.tile import Tile
from minigrad.codegen.plan.loops import Loops, refuse
from minigrad.codegen.plan.microkernel_choice import tile_meant
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.call import Call
from minigrad.codegen.plan.steps.results import results_of
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.codegen.plan.words import TAKES, is_biased, narrowed
from minigrad.expr import Var, bounds
from minigrad.value import Value, free_variables


@dataclass(frozen=True, slots=True)
class Tiled:
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


def with_tile(loops: Loops) -> tuple[Loops, Tiled | None]:
    """The loops with the row below a tile that a microkernel runs, and this tile. Raises PlanError where those inside
    the call are others."""
    for step in loops.of(Call):
        kernel = find(step.kernel)
        tile = None if kernel is None else tile_meant(kernel)
        if kernel is not None and tile is not None:
            tiled = _tiled(loops, step, kernel, tile)
            return replace(loops, row_below=tiled.row) if tiled.biased else loops, tiled
    return loops, None


def _tiled(loops: Loops, step: Call, kernel: Microkernel, tile: Tile) -> Tiled:
    results = results_of(loops)
    row, column = ("", "", *(results.layout if results is not None else ()))[-2:]
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
    return Tiled(step, kernel, tile, row, column, tuple([x for x in steps if x != word]), word, a, b, biased)


def _run(loops: Loops, names: Iterable[str]) -> int:
    """The number of neighbours that loops step through together; 0 where they leave some out."""
    run = 1
    for x in sorted(names, key=lambda x: bounds(loops.stride(x, Position()))[0]):
        if loops.stride(x, Position()) != run or loops.cut_short(x):
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
