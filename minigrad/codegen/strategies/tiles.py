"""Contractions by work-groups: a tile of the output per group, operands through local memory, registers per work-item.

    for batch, tiles of M, tiles of N group:
      the first block of A and B to registers, with guards and prologue
      for blocks of K:
        all work-items copy A [depth, tile of M] and B [depth, tile of N] from registers to local memory
        barrier
        the next block of A and B to registers
        for k in the block: rows x columns accumulators per work-item
        barrier
      write back with the epilogue

Which tile, and whether K is split, depends on shapes and the target only.
"""
from __future__ import annotations

from math import ceil

from minigrad.codegen.kernel import Nest, Param
from minigrad.codegen.microkernels.matrix import WAVE
from minigrad.codegen.strategies import matrix
from minigrad.codegen.strategies.group_tiles import along, cost, groups
from minigrad.codegen.strategies.packed import size
from minigrad.codegen.strategies.plan import MatrixPlan, TilePlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.strategies.split_k import best_part, in_parts
from minigrad.target import Target

TILES = ((16, 16, 8, 8), (16, 16, 8, 4), (16, 16, 4, 4), (8, 16, 4, 4), (8, 8, 4, 4))
"""Work-items down and across, rows and columns of each."""

DEPTHS = (16, 8)
PADDING = 4
"""Elements added to a row of local memory: columns use all its banks, and vectors of four stay aligned."""

MIN_SIDE, MIN_DEPTH, MIN_WORK = 16, 8, 1 << 16
"""M and N, K, and multiply-adds, from which copies to local memory pay."""

ITEMS_PER_UNIT, MIN_PART = 256, 256
"""K is split into as many parts as still leave no more than so many work-items per compute unit, of so many steps at
least. That is eight waves, whose sums are independent: more of them hide little that these do not, and adding up parts
is a launch."""


def plan(nest: Nest, target: Target) -> TilePlan | MatrixPlan | str:
    """The plan, or why the nest has none."""
    found = recognise(nest)
    if isinstance(found, str):
        return found
    if not target.has_groups:
        return f"not in tiles: no work-groups with local memory on {target.name}"
    m, n, k = (size(vs) for vs in (found.m, found.n, found.k))
    if min(m, n) < MIN_SIDE or k < MIN_DEPTH or m * n * k < MIN_WORK:
        return f"not in tiles: M={m} N={n} K={k} is too small"
    for vs in (found.m, found.n, found.k):
        if any(not isinstance(v.hi, int) for v in vs[1:]):
            return "not in tiles: an inner extent is known at run time only"
    in_units = matrix.plan(found, target)
    if isinstance(in_units, MatrixPlan):
        return in_units
    for depth in DEPTHS:
        if target.max_iterations and ceil(k / depth) * (depth + 1) > target.max_iterations:
            return f"not in tiles: K={k} takes more iterations than a work-item has"
        fitting = [t for t in TILES if fits(t, depth, found, target)]
        if fitting:
            down, across, rows, columns = min(fitting, key=lambda t: cost(*shape(t), found, target))
            batch, ms, ns, ks = (tuple(v.name for v in vs) for vs in (found.batch, found.m, found.n, found.k))
            return TilePlan("tiles", batch, ms, ns, ks, down, across, rows, columns, depth,
                            along(found.a, found.m, found.k, "m"), along(found.b, found.n, found.k, "n"))
    return "not in tiles: too little local memory"


def fits(tile: tuple[int, int, int, int], depth: int, c: Contraction, target: Target) -> bool:
    down, across, rows, columns = tile
    itemsize = max(c.a.dtype.bits, 32) // 8
    local = depth * (down * rows + across * columns + 2 * PADDING) * itemsize
    return local <= target.local_memory and down * across <= target.max_group


def shape(tile: tuple[int, int, int, int]) -> tuple[int, int]:
    """Rows and columns of a group's tile."""
    down, across, rows, columns = tile
    return down * rows, across * columns


def split(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A contraction with too few tiles for the device, in parts along K; else the nest itself. See `split_k`."""
    found, made = recognise(nest), plan(nest, target)
    if isinstance(found, str) or isinstance(made, str) or any(not isinstance(v.hi, int) for v in nest.domain):
        return [nest]
    tile = matrix.shape(made) if isinstance(made, MatrixPlan) else \
        shape((made.down, made.across, made.rows, made.columns))
    there = groups(*tile, found) * made.down * made.across * (WAVE if isinstance(made, MatrixPlan) else 1)
    count, v = best_part(found.k, min(ITEMS_PER_UNIT * target.units // there, size(found.k) // MIN_PART))
    return [nest] if v is None else in_parts(nest, scratch, found.name, count, v)
