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

from collections.abc import Iterable
from math import ceil

from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.microkernels.registry import microkernel_of
from minigrad.codegen.microkernels.tile import Tile
from minigrad.codegen.strategies.access import extent, typical, value_accesses
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.dtype import float32, float64
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value, value_atoms

MIN_WORK = 1 << 18
"""Multiply-adds below which packing costs more than it saves."""

MIN_M, MIN_N, MIN_K = 16, 16, 16
"""Each operand's element is used M or N times per packing, each output K times per write-back."""

MIN_M_TURNED = 48
"""As much reuse is needed where B is read across its contiguous variable."""

MAX_VECTORS = 4
CHAINS, MISSING_CHAIN = 12, 0.18
"""Independent multiply-adds in flight that hide their latency, and cycles lost per step of K for each one missing."""

LOADS = 1.9
"""Loads per cycle; multiply-adds are two."""

TILE_CYCLES = 24.0
"""Cycles that a tile costs besides its multiply-adds: its loop, accumulators in and out."""

MIN_DEPTH_CALLED = 64
"""Steps of K in a block from which on a tile is a call of a microkernel."""

MAX_K_BLOCK = 256
MIN_TILES = 4
"""Columns of a block, in tiles: packing shorter runs of B waits for memory."""

PAGE = 4096
"""Bytes: an operand that is read in steps this long is copied first."""

FEW_ROWS = 16
"""Rows of B that many bytes apart, which still find room in the first-level cache."""

BLOCK_HEIGHTS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SPARE_REGISTERS = 2
"""Besides accumulators and a row of B: with fewer, LLVM keeps some on the stack."""

IN_PLACE_ROWS = 8
"""Rows of A read side by side: a power of two apart they meet in one set of the first-level cache, of so many ways."""

MAX_STRIDE = 4
"""Elements so far apart are still read as whole vectors."""

NEAR, FAR, TURN = 0.25, 0.8, 0.5
"""Cycles to pack an element of an operand in the second-level cache, of one that is not, and what is added where it
is read across its contiguous variable."""


def plan(nest: Nest, target: Target) -> PackedPlan | str:
    """The packed plan, or why the nest is not packed."""
    found = recognise(nest)
    if isinstance(found, str):
        return found
    if target.is_gpu:
        return "not packed: a work-item of a GPU has too little memory of its own"
    sizes = [size(vs) for vs in (found.m, found.n, found.k)]
    if any(s < least for s, least in zip(sizes, (MIN_M, MIN_N, MIN_K), strict=True)) or product(sizes) < MIN_WORK:
        return f"not packed: M={sizes[0]} N={sizes[1]} K={sizes[2]} is too small"
    if sizes[0] < MIN_M_TURNED and not steps_closely(found.b, found.n):
        return f"not packed: M={sizes[0]} is too small to read B across its contiguous variable"
    for vs in (found.m, found.n, found.k):
        if any(not isinstance(v.hi, int) for v in vs[1:]):
            return "not packed: an inner extent is known at run time only"
    if streams(found, target):
        return "not packed: both operands are read in place as fast"
    return packed(found, target)


def streams(c: Contraction, target: Target) -> bool:
    """Whether the unpacked tile reads B in whole vectors, few enough rows at a time, without scalar edges."""
    if not (is_plain(c.a) and is_plain(c.b)) or size(c.k) > MAX_K_BLOCK:
        return False
    last = c.n[-1]
    whole = 2 * target.lanes(max(c.a.dtype.bits, 32))
    if size(c.k) > FEW_ROWS and row_bytes(c.b, c.k) % PAGE == 0:
        return False
    return value_accesses(c.b, ())[0].step(last) == 1 and isinstance(last.hi, int) and extent(last) % whole == 0


def why_unpacked(nest: Nest, target: Target) -> str:
    """The reason that `plan` gives; empty for a nest that is packed."""
    made = plan(nest, target)
    return made if isinstance(made, str) else ""


def product(values: Iterable[int]) -> int:
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
    a_along, a_lanes = lanes_of_a(c, width)
    b_lanes = width if steps_closely(c.b, c.n) else min(4, width)
    made = []
    for in_place in (True, False) if is_plain(c.a) else (False,):
        rows, vectors, cycles = register_tile(c, width, target, in_place)
        k = box(c.k, k_block(vectors * width, bits, target), 1)
        if in_place and not (one_run(c.a, c.k, k) and (a_along == "k" or row_bytes(c.a, c.k) < PAGE)):
            continue
        m, n, packing = blocks(c, k, rows, vectors * width, target, (not in_place, a_lanes < width, b_lanes < width))
        along, lanes = ("", 1) if in_place else (a_along, a_lanes)
        batch = tuple(v.name for v in c.batch)
        kernel = "" if in_place else called(c, rows, vectors * width, a_along, product(p for _, p in k), target)
        made.append((cycles + packing, PackedPlan("packed", batch, m, n, k, rows, vectors, width,
                                                  along, lanes, b_lanes, kernel)))
    return min(made, key=lambda option: option[0])[1]


def called(c: Contraction, rows: int, columns: int, a_along: str, depth: int, target: Target) -> str:
    """The microkernel that a tile over packed operands calls; '' where a call costs more than it saves."""
    if target.language != "llvm" or depth < MIN_DEPTH_CALLED or c.a.dtype not in (float32, float64):
        return ""
    return microkernel_of(Tile(c.a.dtype.short, rows, columns, a_along), target).name


def k_block(columns: int, bits: int, target: Target) -> int:
    """Steps of the sum per block: the columns of a tile stay in the first-level cache while rows pass by."""
    return min(MAX_K_BLOCK, target.l1 * 8 * 2 // 3 // (columns * bits))


def blocks(c: Contraction, k: Box, rows: int, columns: int, target: Target, how: tuple[bool, bool, bool]
           ) -> tuple[Box, Box, float]:
    """Blocks of M and N that fit the second-level cache with what they need of A, B and sums, and what they cost."""
    bits = max(c.a.dtype.bits, 32)
    depth = product(p for _, p in k)
    room = target.l2 * 8 // bits
    best: tuple[float, Box, Box] | None = None
    for height in BLOCK_HEIGHTS:
        if how[0]:
            m = box(c.m, max(height, rows), rows)
        else:
            m = *((v.name, 1) for v in c.m[:-1]), *box(c.m[-1:], max(height, rows), rows)
        mb = ceil(product(p for _, p in m) / rows) * rows
        wide = (room - mb * depth) // (mb + depth) - 2 * columns
        if best is not None and wide < MIN_TILES * columns:
            break
        n = box(c.n, max(wide, MIN_TILES * columns), columns)
        cost = block_cost(c, m, n, rows, columns, target, how)
        if best is None or cost < best[0]:
            best = cost, m, n
    assert best is not None
    return best[1], best[2], best[0]


def row_bytes(value: Value, k: tuple[Var, ...]) -> int:
    """How far a load steps with the innermost variable of the sum."""
    step = coefficient(value_accesses(value, ())[0].offset, k[-1])
    return abs(step) * value.dtype.itemsize if isinstance(step, int) else PAGE


def is_plain(value: Value) -> bool:
    """Whether an operand is in memory as it is: one load, at an index that no other load decides."""
    return value.op == "load" and not value_atoms(value.attr[1][0])  # type: ignore[index]


def one_run(value: Value, vs: tuple[Var, ...], parts: Box) -> bool:
    """Whether a load steps evenly through a block."""
    offset = value_accesses(value, ())[0].offset
    inside = [v for v, (_, part) in zip(vs, parts, strict=True) if part > 1]
    return all(coefficient(offset, o) == coefficient(offset, i) * extent(i)  # type: ignore[operator]
               for o, i in zip(inside, inside[1:], strict=False))


def steps_closely(value: Value, along: tuple[Var, ...]) -> bool:
    """Whether the value's loads read whole vectors along the innermost variable."""
    steps = [coefficient(a.offset, along[-1]) if along and a.step(along[-1]) is not None else None
             for a in value_accesses(value, ())]
    return all(isinstance(s, int) and 0 <= s <= MAX_STRIDE for s in steps)


def lanes_of_a(c: Contraction, width: int) -> tuple[str, int]:
    """Which variables of A are in lanes while packing it, and how many."""
    if steps_closely(c.a, c.k):
        return "k", width
    if steps_closely(c.a, c.m):
        return "m", width
    return "m", min(4, width)


def register_tile(c: Contraction, width: int, target: Target, in_place: bool) -> tuple[int, int, float]:
    """Rows and vectors of the microkernel with the fewest cycles over the whole output, edges included; those cycles.

    `in_place`: A is read where it is.
    """
    m, n, k = size(c.m), size(c.n), size(c.k)
    found = 1, 1, float("inf")
    for vectors in range(1, MAX_VECTORS + 1):
        depth = min(k, k_block(vectors * width, max(c.a.dtype.bits, 32), target))
        most = (target.registers - vectors - SPARE_REGISTERS) // vectors
        for rows in range(1, min(most, IN_PLACE_ROWS if in_place else most) + 1):
            copies = rows * vectors
            step = max(copies / 2, (rows + vectors) / LOADS) + MISSING_CHAIN * max(CHAINS - copies, 0)
            tiles = ceil(m / rows) * ceil(n / (vectors * width))
            cycles = tiles * (step * k + TILE_CYCLES * ceil(k / depth)) * size(c.batch)
            if cycles <= found[2]:
                found = rows, vectors, cycles
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


def block_cost(c: Contraction, m: Box, n: Box, rows: int, columns: int, target: Target, how: tuple[bool, bool, bool]
               ) -> float:
    """Cycles of packing and of edges, and of workers that wait for the last block: their number changes no result."""
    packs_a, a_turned, b_turned = how
    mb, nb = product(p for _, p in m), product(p for _, p in n)
    m_blocks, n_blocks, all_k = ceil(size(c.m) / mb), ceil(size(c.n) / nb), size(c.k) * size(c.batch)
    near_a, near_b = (size(vs) * all_k * c.a.dtype.itemsize <= target.l2 for vs in (c.m, c.n))
    cycles = 0.0
    if packs_a:
        cycles += size(c.m) * all_k * n_blocks * ((NEAR if near_a else FAR) + (TURN if a_turned else 0))
    cycles += size(c.n) * all_k * m_blocks * ((NEAR if near_b else FAR) + (TURN if b_turned else 0))
    work = size(c.m) * size(c.n) * all_k / (target.lanes(max(c.a.dtype.bits, 32)) * 2)
    edges = ceil(mb / rows) * rows / mb * ceil(nb / columns) * columns / nb - 1
    units = m_blocks * n_blocks * size(c.batch)
    waiting = ceil(units / target.units) * target.units / units - 1
    return cycles + work * edges + (work + cycles) * waiting
