"""Tiles of a contraction in panels whose vectors hold two steps of the sum: see `PanelPlan.group`.

    columns             0   0   1   1   2   2   ...         of half a vector each
    b_panels[k // 2]    b00 b10 b01 b11 b02 b12 ...         b[k, column] beside b[k + 1, column]
    a                   a0  a1  a0  a1  a0  a1  ...         a[row, k] and its neighbour, one load for all lanes
    sums                +=  +=  +=  +=  +=  +=  ...         of even and of odd steps, added when the tile is done

So that columns which are half a vector too few, or too many, cost no lanes.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, If, Loop, Stmt, Store
from minigrad.codegen.value_walk import Rewriter
from minigrad.expr import Index, Var
from minigrad.value import binary, load, substitute

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_panels import Block, PanelBuilder


def pack_group(b: PanelBuilder, block: Block, panel: Index, column: Index) -> Stmt:
    """The panel of columns from `column` on, as b_panels[panel][k // group][column][k % group]."""
    form, width, group = b.form, b.form.width, b.form.group
    x, v, lane = b.fresh("k", block.k_count // group - 1), b.fresh("v", form.vectors - 1), b.fresh("l", width - 1)
    at = {b.n: column + v * (width // group) + lane // group, b.k: block.k0 + x * group + lane % group}
    place = (panel * (b.sizes.block_k // group) + x + width) * (form.vectors * width) + v * width + lane
    body: Stmt = Store("b_panels", place, substitute(b.contraction.b, {**b.at, **at}))
    body = Loop(lane, 0, width, "vector", (Loop(v, 0, form.vectors, "unroll", (body,)),))
    return Loop(x, 0, block.k_count // group, "serial", (body,))


def keep_sums(b: PanelBuilder, u: Var, v: Var, lane: Var) -> Stmt:
    """The accumulators of a tile in memory, for `write_sums`."""
    slot = u * b.form.vectors + v
    body = Store("pairs", slot * b.form.width + lane, load("acc", (slot,), b.dtype))
    return Loop(u, 0, b.form.rows, "unroll", (Loop(v, 0, b.form.vectors, "unroll", (body,)),))


def write_sums(b: PanelBuilder, row: Index, column: Index) -> tuple[Alloc, Stmt]:
    """Memory for a tile's sums, and the nest's stores for the tile at (row, column), lanes along columns."""
    form, c, width, group = b.form, b.contraction, b.form.width, b.form.group
    vectors = -(-b.columns // width)
    u, v, lane = b.fresh("u", form.rows - 1), b.fresh("v", vectors - 1), b.fresh("l", width - 1)
    inside, first = v * width + lane, b.row(row)
    place = u * (form.vectors * width) + inside * group
    total = load("pairs", (place,), b.dtype)
    for t in range(1, group):
        total = binary("add", total, load("pairs", (place + t,), b.dtype))
    here = Rewriter({**b.at, b.m: first + u, b.n: column + inside}, locals_={c.name: total})
    some = (b.columns - 1 - inside,) if b.columns % width else ()

    def loop(own: tuple[Index, ...]) -> Loop:
        stores = tuple(Store(s.param, here.index(s.indices[0]), here.value(s.value), (*own, *some)) for s in c.outputs)
        return Loop(u, 0, form.rows, "serial" if b.is_long() else "unroll", (
            Loop(v, 0, vectors, "unroll", stores),))

    stores: Stmt = loop(())
    if form.edge_m and not b.repeats:
        stores = If((b.sizes.m - form.rows - row,), (stores,), (loop((first + u - row,)),))
    # The last vector of a row may read beyond it.
    memory = Alloc("pairs", b.dtype, form.rows * form.vectors * width + width * group, "scratch")
    return memory, Loop(lane, 0, width, "vector", (stores,))
