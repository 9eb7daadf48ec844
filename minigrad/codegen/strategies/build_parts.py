"""Packed contractions whose words have parts in planes (`float_parts.py`): what is packed, and zeros around it.

Matrix registers take whole tiles: steps, rows and columns beyond a block's are zeros, as a NaN among them would be one
in sums that count.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Stmt, Store
from minigrad.codegen.microkernels.parts import PARTS
from minigrad.codegen.strategies import float_parts
from minigrad.codegen.strategies.build import ceil_div
from minigrad.codegen.strategies.float_parts import STEPS
from minigrad.codegen.strategies.narrow import in_words
from minigrad.codegen.strategies.plan import PackedPlan
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.codegen.strategies.sides import Block, Side
from minigrad.dtype import uint32
from minigrad.expr import Index
from minigrad.value import Value, const

if TYPE_CHECKING:
    from minigrad.codegen.strategies.build_packed import PackedBuilder


def operands_of(c: Contraction, plan: PackedPlan) -> tuple[Contraction, tuple[Value, ...], tuple[Value, ...]]:
    """The contraction over what the plan packs, and of each operand a value for every plane."""
    if plan.words in PARTS:
        return float_parts.in_parts(c, plan.words), *float_parts.planes(c, plan.words)
    c = in_words(c, plan.words) if plan.words else c
    return c, (c.a,), (c.b,)


def whole_steps(steps: Index, plan: PackedPlan) -> Index:
    """Steps of a block of K, with those that fill it up."""
    return ceil_div(steps, STEPS) * STEPS if plan.words in PARTS else steps


def cleared(builder: PackedBuilder, a: Block, b: Block, m: Side, n: Side, k: Side) -> list[Stmt]:
    """Zeros wherever packing leaves something in the last registers along M, N and K, and some that it overwrites."""
    plan = builder.plan
    if plan.words not in PARTS:
        return []
    steps, columns = whole_steps(k.count, plan), plan.vectors * plan.width
    rows = ceil_div(m.count, plan.rows) * plan.rows
    across = ceil_div(n.count, columns) * plan.vectors
    found: list[Stmt] = []
    if not _divides(STEPS, k.count):
        found += _zeros(builder, a, 0, rows, (steps - STEPS) // plan.width, 1)
        found += _zeros(builder, b, k.count, steps - k.count, 0, across)
    if not _divides(plan.rows, m.count):
        found += _zeros(builder, a, m.count, rows - m.count, 0, steps // plan.width)
    if not _divides(columns, n.count):
        found += _zeros(builder, b, 0, steps, across - plan.vectors, plan.vectors)
    return found


def _divides(multiple: int, count: Index) -> bool:
    return isinstance(count, int) and count % multiple == 0


def _zeros(builder: PackedBuilder, block: Block, row: Index, rows: Index, vector: Index, vectors: Index) -> list[Stmt]:
    """Zeros in all planes of some rows, from one vector of `width` on so many."""
    width = builder.plan.width
    x, y = builder.fresh("x", rows * block.planes - 1), builder.fresh("y", vectors - 1)
    lane = builder.fresh("l", width - 1)
    place = (row * block.planes + x) * block.pitch + (vector + y) * width + lane
    store = Loop(lane, 0, width, "vector", (Store(block.name, place, const(0, uint32)),))
    return [Loop(x, 0, rows * block.planes, "serial", (Loop(y, 0, vectors, "serial", (store,)),))]
