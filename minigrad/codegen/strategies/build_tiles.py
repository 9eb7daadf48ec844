"""Contraction + TilePlan -> loop IR. The nest is the one in tiles.py."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.launch import ceil_div, function_of
from minigrad.codegen.strategies.plan import TilePlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.strategies.tiles import PADDING
from minigrad.codegen.value_walk import Rewriter
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, product
from minigrad.value import Value, binary, const, guard, load, substitute

QUAD = 4
"""Neighbouring rows or columns of one work-item: read as a vector from local memory, written as one."""


def build_tiles(kernel: Kernel, nest: Nest, plan: TilePlan, name: str) -> Function:
    """The loop nest of a contraction by work-groups."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return TileBuilder(kernel, nest, found, plan).function(name)


def counted(variables: tuple[Var, ...], place: Index) -> dict[Var, Index]:
    """The value of each variable at a place in row-major order; beyond the last one, the outermost is too large."""
    at: dict[Var, Index] = {}
    for v in reversed(variables[1:]):
        at[v] = place % (v.hi + 1)
        place = place // (v.hi + 1)
    if variables:
        at[variables[0]] = place
    return at


@dataclass(frozen=True, slots=True)
class Operand:
    """A side of the contraction: its value, its variables, the first of `count` places along them, how many are in a
    tile, and along what consecutive work-items read it."""

    name: str
    value: Value
    variables: tuple[Var, ...]
    first: Index
    count: Index
    tile: int
    fast: str

    @property
    def pitch(self) -> int:
        """Elements from one row of its tile in local memory to the next."""
        return self.tile + PADDING

    def offset(self, along: Index, k: Index) -> Index:
        """Where in its tile an element lies: [depth, tile]."""
        return k * self.pitch + along


class TileBuilder:
    def __init__(self, kernel: Kernel, nest: Nest, contraction: Contraction, plan: TilePlan):
        self.kernel, self.nest, self.contraction, self.plan = kernel, nest, contraction, plan
        by_name = {v.name: v for vs in (contraction.batch, contraction.m, contraction.n, contraction.k) for v in vs}
        self.batch, self.m, self.n, self.k = (tuple(by_name[name] for name in names)
                                              for names in (plan.batch, plan.m, plan.n, plan.k))
        self.items = plan.down * plan.across
        self.tile_m, self.tile_n = plan.down * plan.rows, plan.across * plan.columns
        self.item = Var("t", 0, self.items - 1)

    def function(self, name: str) -> Function:
        rows, columns = (product(v.hi + 1 for v in vs) for vs in (self.m, self.n))
        across, down = ceil_div(columns, self.tile_n), ceil_div(rows, self.tile_m)
        total = product(v.hi + 1 for v in self.batch) * down * across
        g = Var("g", 0, total - 1)
        at: dict[Var, Index] = {v: 0 for v in self.nest.domain if v.hi == 0}
        at.update(counted(self.batch, g // across // down))
        first_row, first_column = g // across % down * self.tile_m, g % across * self.tile_n
        if not self.batch:
            first_row = g // across * self.tile_m
        body = self.group(at, first_row, first_column, rows, columns)
        return function_of(self.kernel, name, Loop(g, 0, total, "group", tuple(body)))

    def group(self, at: dict[Var, Index], first_row: Index, first_column: Index, rows: Index, columns: Index
              ) -> list[Stmt]:
        """One tile of the output. The next block of K is on its way to registers while this one is used."""
        c, plan, dtype = self.contraction, self.plan, self.contraction.a.dtype
        sides = (Operand("a", c.a, self.m, first_row, rows, self.tile_m, plan.a_along),
                 Operand("b", c.b, self.n, first_column, columns, self.tile_n, plan.b_along))
        steps = product(v.hi + 1 for v in self.k)
        blocks = ceil_div(steps, plan.depth)
        block, k = Var("kb", 0, blocks - 1), Var("k", 0, plan.depth - 1)
        u, v = Var("u", 0, plan.rows - 1), Var("v", 0, plan.columns - 1)
        row = place_of(u, self.item // plan.across, plan.down, plan.rows)
        column = place_of(v, self.item % plan.across, plan.across, plan.columns)

        def each(s: Stmt) -> Loop:
            return Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.columns, "unroll", (s,)),))

        slot = u * plan.columns + v
        old = load("acc", (slot,), dtype)
        term = binary("mul", load("a_tile", (k * sides[0].pitch + row,), dtype),
                      load("b_tile", (k * sides[1].pitch + column,), dtype))
        inner: list[Stmt] = [self.deposit(o) for o in sides]
        inner.append(Barrier())
        if blocks != 1:
            inner += [self.fetch(o, at, block + 1, steps, (blocks - 2 - block,)) for o in sides]
        inner.append(Loop(k, 0, plan.depth, "serial",
                          (each(Store("acc", slot, accumulate(MONOIDS["sum"], old, term))),)))
        inner.append(Barrier())
        stores = self.write_back(at, first_row + row, first_column + column, rows, columns, old)
        work: tuple[Stmt, ...] = (
            Alloc("acc", dtype, plan.rows * plan.columns, "register"), each(Store("acc", slot, const(0, dtype))),
            *(Alloc(f"{o.name}_next", dtype, self.turns(o), "register") for o in sides),
            *(self.fetch(o, at, 0, steps, ()) for o in sides),
            Loop(block, 0, blocks, "serial", tuple(inner)), *(each(s) for s in stores))
        return [*(Alloc(f"{o.name}_tile", dtype, plan.depth * o.pitch, "local") for o in sides),
                Loop(self.item, 0, self.items, "item", work)]

    def turns(self, o: Operand) -> int:
        """Elements of a block that each work-item copies."""
        return o.tile * self.plan.depth // self.items

    def places(self, o: Operand, turn: Var) -> tuple[Index, Index]:
        """(place along the operand's side, step of the block) of what a work-item copies at its turn."""
        place, depth = turn * self.items + self.item, self.plan.depth
        return (place // depth, place % depth) if o.fast == "k" else (place % o.tile, place // o.tile)

    def fetch(self, o: Operand, at: dict[Var, Index], block: Index, steps: Index, conditions: tuple[Index, ...]
              ) -> Loop:
        """A block of an operand to registers; what lies outside it is 0."""
        turn = Var("c", 0, self.turns(o) - 1)
        along, k = self.places(o, turn)
        i, j = o.first + along, block * self.plan.depth + k
        if not isinstance(o.count, int) or o.count % o.tile:
            conditions += (o.count - 1 - i,)
        if not isinstance(steps, int) or steps % self.plan.depth:
            conditions += (steps - 1 - j,)
        inside = substitute(o.value, {**at, **counted(o.variables, i), **counted(self.k, j)})
        zero = const(0, o.value.dtype)
        if inside.op == "guard" and inside.args[1] is zero:
            inside, conditions = inside.args[0], (*conditions, *inside.attr)  # type: ignore[misc]
        store = Store(f"{o.name}_next", turn, guard(inside, zero, conditions))
        return Loop(turn, 0, self.turns(o), "unroll", (store,))

    def deposit(self, o: Operand) -> Loop:
        """What was fetched to local memory."""
        turn = Var("c", 0, self.turns(o) - 1)
        along, k = self.places(o, turn)
        store = Store(f"{o.name}_tile", o.offset(along, k), load(f"{o.name}_next", (turn,), o.value.dtype))
        return Loop(turn, 0, self.turns(o), "unroll", (store,))

    def write_back(self, at: dict[Var, Index], row: Index, column: Index, rows: Index, columns: Index, total: Value
                   ) -> list[Store]:
        """The stores of the nest for one accumulator."""
        conditions: tuple[Index, ...] = ()
        if not isinstance(rows, int) or rows % self.tile_m:
            conditions += (rows - 1 - row,)
        if not isinstance(columns, int) or columns % self.tile_n:
            conditions += (columns - 1 - column,)
        here = Rewriter({**at, **counted(self.m, row), **counted(self.n, column)},
                        locals_={self.contraction.name: total})
        return [Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions)
                for s in self.contraction.outputs]


def place_of(copy: Var, item: Index, items: int, copies: int) -> Index:
    """Where a work-item's copy lies in a tile: four neighbours each, if it has as many, items beside each other."""
    if copies % QUAD:
        return copy * items + item
    return copy // QUAD * (items * QUAD) + item * QUAD + copy % QUAD
