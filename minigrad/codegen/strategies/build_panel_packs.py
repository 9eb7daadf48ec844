"""Operands of a contraction in panels, packed: rows of A by tiles, columns of B by panels, K outermost."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Stmt, Store
from minigrad.codegen.strategies.build_pairs import pack_group
from minigrad.codegen.strategies.panel_form import TURNED
from minigrad.expr import Index, Var, emin
from minigrad.value import Value, const, guard, substitute

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_panels import Block, PanelBuilder


@dataclass(frozen=True, slots=True)
class Pack:
    """Where a panel goes, and what of the operand: panels[start + k * pitch] = value, `along` at `place` in lanes."""

    panels: str
    start: Index
    pitch: int
    along: Var
    place: Index
    inside: tuple[Index, ...]
    lane: Var


def pack_b(b: PanelBuilder, block: Block, j: Index, column: Index) -> Stmt:
    """The panel of columns from `column` on, as b_panels[j][k][column]."""
    form, c, width = b.form, b.contraction, b.form.width
    if form.group > 1:
        return pack_group(b, block, j, column)
    v, lane = b.fresh("v", form.vectors - 1), b.fresh("l", width - 1)
    place = b.column(column) + v * width + lane
    start = (j * b.sizes.block_k + width) * b.columns + v * width + lane
    to = Pack("b_panels", start, b.columns, b.n, place, b.inside(place), lane)
    return _pack(b, to, c.b, v, form.vectors, block.k0, block.k_count, form.b == "turned")


def pack_a(b: PanelBuilder, block: Block, i: Index, row: Index) -> Stmt:
    """The rows of a tile as a_panels[i][k][row], `pitch` apart. Lanes without a row store where nobody reads."""
    form, c, m, width = b.form, b.contraction, b.sizes.m, b.form.lanes
    v, lane = b.fresh("v", form.pitch // width - 1), b.fresh("l", width - 1)
    row = b.row(row) + v * width
    first = emin(row, 0 if form.low else m - width)
    start = (i * b.sizes.block_k + b.lead) * form.pitch + v * width + first - row + lane
    inside = (m - 1 - first - lane,) if form.low else ()
    to = Pack("a_panels", start, form.pitch, b.m, first + lane, inside, lane)
    return _pack(b, to, c.a, v, form.pitch // width, block.k0, block.k_count, form.a == "turned")


def _pack(b: PanelBuilder, to: Pack, value: Value, v: Var, vectors: int, k0: Index, k_count: Index, turned: bool
          ) -> Stmt:
    """One panel of an operand. `turned`: in squares, read along K and transposed in registers."""
    k, width, short = b.sizes.k, to.lane.hi + 1, b.form.short
    if not turned:
        x = b.fresh("k", k_count - 1)
        here = substitute(value, {**b.at, to.along: to.place, b.k: k0 + x})
        body: Stmt = Store(to.panels, to.start + x * to.pitch, guard(here, const(0, here.dtype), to.inside))
        body = Loop(to.lane, 0, width, "vector", (Loop(v, 0, vectors, "unroll", (body,)),))
        return Loop(x, 0, k_count, "serial", (body,))
    steps = (k_count + (TURNED - 1)) // TURNED
    x, u = b.fresh("k", steps - 1), b.fresh("u", TURNED - 1)
    first = emin(k0 + x * TURNED, 0 if short else k - TURNED)
    here = substitute(value, {**b.at, to.along: to.place, b.k: first + u})
    body = Store(to.panels, to.start + (first - k0 + u) * to.pitch, guard(here, const(0, here.dtype), to.inside))
    square = Loop(to.lane, 0, width, "vector", (Loop(u, 0, k if short else TURNED, "unroll", (body,)),))
    return Loop(v, 0, vectors, "serial", (Loop(x, 0, steps, "serial", (square,)),))
