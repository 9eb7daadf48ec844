"""Packed contractions: both operands copied block by block into a worker's memory, a register tile over the copies.

    for batch, blocks of M, blocks of N parallel:
      for blocks of K:
        pack A [m, k] and B [k, n]      reading through the operands' own index maps, with guards, casts and prologue
        for tiles of N: for tiles of M: for k: rows x vectors accumulators      the microkernel, without edges
      write back with the epilogue

A block is a box: of the variables of M (likewise N and K), outermost first, some at one value, then one in part, then
the rest whole. Block sizes depend on shapes and the target only. (Goto and van de Geijn, 2008)
"""
from __future__ import annotations

from math import ceil

from minigrad.codegen.kernel import Nest
from minigrad.codegen.strategies.access import extent, typical, value_accesses
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value

MIN_WORK = 1 << 19
"""Multiply-adds below which packing costs more than it saves."""

MIN_M, MIN_N, MIN_K = 12, 16, 16
"""Each operand's element is used M or N times per packing, each output K times per write-back."""

MAX_VECTORS = 4
MIN_CHAINS = 8
"""Independent multiply-adds in flight: latency 4, two per cycle."""

TILE_CYCLES = 24.0
"""Cycles that a tile costs besides its multiply-adds: its loop, accumulators in and out."""

MAX_K_BLOCK = 384
L2_SHARE = 0.75
"""Of the second-level cache, for a block of A, of B and of sums together."""

BLOCK_HEIGHTS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PARALLEL = 4
"""Workers that blocks are balanced for; how many there are changes no result."""

COPY, TURN = 0.15, 0.6
"""Cycles to pack an element that is contiguous along lanes, and one that is not."""


def plan(nest: Nest, target: Target) -> PackedPlan | str:
    """The packed plan, or why the nest is not packed."""
    found = recognise(nest)
    if isinstance(found, str):
        return found
    if target.language != "llvm":
        return f"not packed: no memory of a worker's own in {target.language}"
    sizes = [size(vs) for vs in (found.m, found.n, found.k)]
    if any(s < least for s, least in zip(sizes, (MIN_M, MIN_N, MIN_K), strict=True)) or product(sizes) < MIN_WORK:
        return f"not packed: M={sizes[0]} N={sizes[1]} K={sizes[2]} is too small"
    for vs in (found.m, found.n, found.k):
        if any(not isinstance(v.hi, int) for v in vs[1:]):
            return "not packed: an inner extent is known at run time only"
    return packed(found, target)


def why_unpacked(nest: Nest, target: Target) -> str:
    """The reason that `plan` gives; empty for a nest that is packed."""
    made = plan(nest, target)
    return made if isinstance(made, str) else ""


def product(values) -> int:  # noqa: ANN001
    total = 1
    for v in values:
        total *= v
    return total


def size(vs: tuple[Var, ...]) -> int:
    return product(typical(v) for v in vs)


def packed(c: Contraction, target: Target) -> PackedPlan:
    """Blocks and register tile for a contraction."""
    bits = max(c.a.dtype.bits, 32)
    width = min(16, target.lanes(bits))
    itemsize = bits // 8
    a_along, a_lanes = lanes_of_a(c, width)
    b_lanes = width if steps_by_one(c.b, c.n) else min(4, width)
    rows, vectors = register_tile(c, width, target)
    depth = min(MAX_K_BLOCK, target.l1 * 2 // 3 // (vectors * width * itemsize))
    k = box(c.k, depth, 1)
    depth = product(p for _, p in k)
    room = int(target.l2 * L2_SHARE / itemsize)
    best: tuple[float, Box, Box] | None = None
    for height in BLOCK_HEIGHTS:
        m = box(c.m, max(height, rows), rows)
        mb = ceil(product(p for _, p in m) / rows) * rows
        wide = (room - mb * depth) // (mb + depth) - 2 * width
        if best is not None and wide < vectors * width:
            break
        n = box(c.n, max(wide, vectors * width), vectors * width)
        cost = block_cost(c, m, n, rows, vectors, width, (a_lanes < width, b_lanes < width))
        if best is None or cost < best[0]:
            best = cost, m, n
    assert best is not None
    return PackedPlan("packed", tuple(v.name for v in c.batch), best[1], best[2], k, rows, vectors, width,
                      a_along, a_lanes, b_lanes)


def steps_by_one(value: Value, along: tuple[Var, ...]) -> bool:
    """Whether the value's loads read neighbours along the innermost variable."""
    return bool(along) and all(a.step(along[-1]) in (0, 1) for a in value_accesses(value, ()))


def lanes_of_a(c: Contraction, width: int) -> tuple[str, int]:
    """Which variables of A are in lanes while packing it, and how many."""
    if steps_by_one(c.a, c.k):
        return "k", width
    if steps_by_one(c.a, c.m):
        return "m", width
    return "m", min(4, width)


def register_tile(c: Contraction, width: int, target: Target) -> tuple[int, int]:
    """Rows and vectors of the microkernel: the fewest cycles over the whole output, edges included."""
    m, n = size(c.m), size(c.n)
    depth = min(size(c.k), MAX_K_BLOCK)
    best, found = float("inf"), (1, 1)
    for vectors in range(1, MAX_VECTORS + 1):
        for rows in range(1, (target.registers - vectors - 1) // vectors + 1):
            per_k = max(rows * vectors / 2, (rows + vectors) / 2, MIN_CHAINS / 2)
            tiles = ceil(m / rows) * ceil(n / (vectors * width))
            cost = tiles * (per_k * depth + TILE_CYCLES)
            if cost <= best:
                best, found = cost, (rows, vectors)
    return found


def box(vs: tuple[Var, ...], limit: int, multiple: int) -> Box:
    """Whole inner variables while they fit `limit`, then equal parts of the next, if possible of a multiple."""
    whole, parts, done = 1, [], False
    for v in reversed(vs):
        n = extent(v)
        if done:
            parts.append((v.name, 1))
        elif isinstance(v.hi, int) and whole * n <= limit:
            parts.append((v.name, n))
            whole *= n
        else:
            parts.append((v.name, part(typical(v), max(limit // whole, 1), whole, multiple)))
            done = True
    return tuple(reversed(parts))


def part(n: int, most: int, whole: int, multiple: int) -> int:
    """The part of an extent `n`, at most `most`, that wastes least when blocks are rounded up to a multiple."""
    def rounded(length: int) -> int:
        return ceil(length * whole / multiple) * multiple

    def waste(p: int) -> float:
        return (n // p * rounded(p) + rounded(n % p)) / (n * whole)

    few = ceil(n / most)
    options = [min(ceil(n / few), most), most]
    if whole == 1 and most >= multiple:
        options += [min(ceil(n / few / multiple) * multiple, most // multiple * multiple)]
    options += list(range(max(1, most // 2), most))
    return min(options, key=lambda p: round(waste(p) + 0.02 * ceil(n / p) / few, 3))


def block_cost(c: Contraction, m: Box, n: Box, rows: int, vectors: int, width: int, turned: tuple[bool, bool]
               ) -> float:
    """Cycles per multiply-add: tiles, packing, and workers that wait for the last block."""
    mb, nb = product(p for _, p in m), product(p for _, p in n)
    compute = ceil(mb / rows) * rows * ceil(nb / (vectors * width)) * vectors / 2 / (mb * nb)
    packing = (TURN if turned[0] else COPY) / nb + (TURN if turned[1] else COPY) / mb
    blocks = ceil(size(c.m) / mb) * ceil(size(c.n) / nb) * size(c.batch)
    return (compute + packing) * ceil(blocks / PARALLEL) * PARALLEL / blocks
