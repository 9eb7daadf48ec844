"""Contraction + MatrixPlan -> loop IR. The nest is the one in matrix.py."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, Loop, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.microkernels.matrix import WAVE, unit_named
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.strategies.build_tiles import Operand, TileBuilder
from minigrad.codegen.strategies.launch import ceil_div
from minigrad.codegen.strategies.matrix import PADDING_BYTES, bits_of, shape
from minigrad.codegen.strategies.plan import MatrixPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.dtype import float32, uint16
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, product
from minigrad.value import const, load


def build_matrix(kernel: Kernel, nest: Nest, plan: MatrixPlan, name: str) -> Function:
    """The loop nest of a contraction in matrix units."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return MatrixBuilder(kernel, nest, found, plan).function(name)


@dataclass(frozen=True, slots=True)
class Lines(Operand):
    """An operand whose tile lies along the sum: [tile, depth] with room after each line."""

    depth: int

    @property
    def pitch(self) -> int:
        return self.depth + PADDING_BYTES // self.value.dtype.itemsize

    def offset(self, along: Index, k: Index) -> Index:
        return along * self.pitch + k

    @property
    def elements(self) -> int:
        return self.tile * self.pitch


class MatrixBuilder(TileBuilder):
    """The loops of tiles, but for the inner one and where the sums are."""

    plan: MatrixPlan

    def __init__(self, kernel: Kernel, nest: Nest, contraction: Contraction, plan: MatrixPlan):
        super().__init__(kernel, nest, contraction, plan)
        self.unit = unit_named(plan.unit)
        microkernel = find(plan.unit)
        if microkernel is None:
            raise InternalError(f"[build] expected a known microkernel in {plan}")
        self.microkernel = microkernel
        self.items = plan.down * plan.across * WAVE
        self.tile_m, self.tile_n = shape(plan)
        self.item = Var("t", 0, self.items - 1)

    def group(self, at: dict[Var, Index], first_row: Index, first_column: Index, rows: Index, columns: Index
              ) -> list[Stmt]:
        """One tile of the output. The next block of K is on its way to registers while this one is used."""
        c, plan, unit = self.contraction, self.plan, self.unit
        stored = unit.stored
        a, b = (bits_of(v) if stored is uint16 else v for v in (c.a, c.b))
        sides = (Lines("a", a, self.m, first_row, rows, self.tile_m, plan.a_along, plan.depth),
                 Lines("b", b, self.n, first_column, columns, self.tile_n, plan.b_along, plan.depth))
        steps = product(v.hi + 1 for v in self.k)
        blocks = ceil_div(steps, plan.depth)
        block, step = Var("kb", 0, blocks - 1), Var("ks", 0, plan.depth // unit.depth - 1)
        u, v, e = Var("u", 0, plan.rows - 1), Var("v", 0, plan.columns - 1), Var("e", 0, unit.each - 1)
        wave, lane = self.item // WAVE, self.item % WAVE
        row = (wave // plan.across * plan.rows + u) * unit.rows
        column = (wave % plan.across * plan.columns + v) * unit.columns
        first = (u * plan.columns + v) * unit.each

        def each(make: Callable[[], Stmt]) -> Loop:
            return Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.columns, "unroll", (make(),)),))

        def for_sums(s: Stmt) -> Loop:
            return each(lambda: Loop(e, 0, unit.each, "unroll", (s,)))

        call = Call(self.microkernel, (("a_tile", sides[0].offset(row, step * unit.depth)),
                                       ("b_tile", sides[1].offset(column, step * unit.depth)), ("acc", first)),
                    (), (lane, sides[0].pitch, sides[1].pitch))
        inner: list[Stmt] = [*(self.deposit(o) for o in sides), Barrier()]
        if blocks != 1:
            inner += [self.fetch(o, at, block + 1, steps, (blocks - 2 - block,)) for o in sides]
        inner += [Loop(step, 0, plan.depth // unit.depth, "serial", (each(lambda: call),)), Barrier()]
        down, right = unit.place(lane, e)
        stores = self.write_back(at, first_row + row + down, first_column + column + right, rows, columns,
                                 load("acc", (first + e,), float32))
        work: tuple[Stmt, ...] = (
            Alloc("acc", float32, plan.rows * plan.columns * unit.each, "register"),
            for_sums(Store("acc", first + e, const(0, float32))),
            *(Alloc(f"{o.name}_next", stored, self.turns(o), "register") for o in sides),
            *(self.fetch(o, at, 0, steps, ()) for o in sides),
            Loop(block, 0, blocks, "serial", tuple(inner)), *(for_sums(s) for s in stores))
        return [*(Alloc(f"{o.name}_tile", stored, o.elements, "local") for o in sides),
                Loop(self.item, 0, self.items, "item", work)]
