"""Contractions over three plain axes, matmul and its kind: register tiles over operands in place or over packed panels.

    for the outer variables, units of the output (unit_m x unit_n) parallel:
      for blocks of K: for blocks of M: for panels of N (one tile wide):
        pack the panel of B once per block of K, the tiles of A in the first panel      unless they are read in place
        for tiles of M:
          for k: rows x vectors accumulators                                            the microkernel
          last block of K: the nest's stores, from registers; before it: sums kept in scratch memory, where the
          next block goes on with them: each sum runs from its first term to its last in one accumulator

A tile at an edge reaches back over the one before it instead of needing masks, and stores what is its own. Where only
a few columns are left, as of planes of 7x7 and 14x14, they are dot products with lanes along K instead. A is read
in place wherever it is in memory as it is: a tile needs few rows. B is packed when it is used often and does not fit
the second-level cache, or when its rows are a multiple of a page apart or a power of two and meet in few sets of the
caches, or far apart and too many for the first. A few panels of B then stay in the second-level cache while all rows of
A pass by, each tile of rows once. A large B that few rows use is streamed: blocks of K so short that whole rows of B
are read one after another.
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd

from minigrad.codegen.cost.caches import PAGE, SHARED, fits, room
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.access import extent, value_accesses
from minigrad.codegen.strategies.bfloat16 import takes_bfloat16
from minigrad.codegen.strategies.blocking import least_step
from minigrad.codegen.strategies.build_dots import lanes_along_rows
from minigrad.codegen.strategies.packed import is_plain, product, row_bytes, steps_closely
from minigrad.codegen.strategies.panel_form import LEAST_NEAR, begins_at_once, form_of
from minigrad.codegen.strategies.panel_tiles import (
    FEW_REGISTERS,
    HALVES,
    MAX_K,
    MAX_K_PACKED,
    PAIR_LEAST,
    ROW_K,
    pair_tile,
    register_tile,
    stream_tile,
)
from minigrad.codegen.strategies.panel_units import (
    NEAR_ROWS,
    SHARED_ROWS,
    part,
    tall_units,
    units,
    writes_rows,
)
from minigrad.codegen.strategies.plan import PanelPlan
from minigrad.codegen.strategies.recognise import Contraction, with_row
from minigrad.expr import Var
from minigrad.target import Target

MIN_WORK = 1 << 12
"""Multiply-adds below which a tile costs more than it saves."""

MIN_WORK_ELSEWHERE = 1 << 27
"""Likewise where compilers other than ours take tenths of a second for each program: its text is twice as long as that
of a packed contraction, for 20-40% of the time."""

MIN_K = 4
"""Steps of the sum below which a tile is no more than its stores."""

STREAM_ROWS, STREAM_K, STREAM_K_PACKED, STREAM_COLUMNS = 32, 16, 24, 256
"""With at most so many rows of A a large B is streamed, in blocks of so many of its rows, in runs at least so long:
several of them are on their way at once. As many rows of A as may meet in a set are packed, for 4-10% at 8, and then
blocks are longer: sums come from memory less often, for 2-8%."""

NEAR_VECTORS = 4
"""Not where so many vectors of each row of B stay in the first-level cache."""


@lru_cache(maxsize=256)
def plan(nest: Nest, target: Target) -> PanelPlan | str:
    """The plan, or why the nest is not done in panels."""
    c = with_row(nest)
    if isinstance(c, str):
        return c
    if target.is_gpu:
        return "no panels: a work-item of a GPU has too little memory of its own"
    work = product(extent(v) for v in (*c.batch, *c.m, *c.n, *c.k) if isinstance(v.hi, int))
    if target.language != "llvm" and work < MIN_WORK_ELSEWHERE:
        return f"no panels: a driver would compile twice the text of a packed one for {work} multiply-adds"
    if len(c.k) != 1 or not (c.m and c.n):
        return "no panels: the sum goes over several variables"
    if any(not isinstance(v.hi, int) for v in (*c.batch, *c.m, *c.n, *c.k)):
        return "no panels: an extent is known at run time only"
    if not (is_linear(c, c.m[-1]) and is_linear(c, c.n[-1]) and is_linear(c, c.k[-1])):
        return "no panels: an operand does not step evenly"
    bits = c.a.dtype.bits
    if not c.a.dtype.is_float or any(a.bits != bits for value in (c.a, c.b) for a in value_accesses(value, ())):
        return "no panels: an operand is narrow or an integer"
    if takes_bfloat16(c, target):
        return "no panels: matrix registers multiply packed words"
    width = min(16, target.lanes(bits))
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    if k < MIN_K or n < width or m * n * k < MIN_WORK:
        return f"no panels: M={m} N={n} K={k} is too small"
    if not writes_along(c, c.n[-1]):
        return f"no panels: the output is not contiguous along {c.n[-1]}"
    made = panels(c, width, target)
    if target.language != "llvm" and isinstance(made, PanelPlan):
        memory = sum(form_of(c, made).memory) * max(c.a.dtype.itemsize, 4)
        if memory > target.local_memory:
            return f"no panels: {memory} bytes of {target.local_memory} in {target.name}"
    return made


def is_linear(c: Contraction, v: Var) -> bool:
    """Whether every load of the operands steps evenly with a variable."""
    return all(a.step(v) is not None for value in (c.a, c.b) for a in value_accesses(value, ()))


def writes_along(c: Contraction, v: Var) -> bool:
    """Whether the outputs are contiguous along a variable."""
    return all(coefficient(s.indices[0], v) == 1 for s in c.outputs)


def panels(c: Contraction, width: int, target: Target) -> PanelPlan | str:
    """Where operands are read, the register tile, blocks of K, units of work."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    in_place = is_plain(c.b) and value_accesses(c.b, ())[0].step(c.n[-1]) == 1
    long = not fits(k * NEAR_VECTORS * target.vector_bytes, 1, target)
    b_bytes = k * n * max(c.a.dtype.itemsize, 4)
    few = in_place and is_plain(c.a) and m <= STREAM_ROWS and long and not fits(2 * b_bytes, 2, target)
    if m == 1 and not few:
        return "no panels: a vector times a matrix that stays near"
    a, b, block_k = streamed_operands(c, target) if few else operands(c, width, target, in_place, long)
    far_a = a == "place" and row_bytes(c.a, c.k) > c.a.dtype.itemsize
    streamed = b == "place" and block_k < k
    group = 1
    if a == "place" and not far_a and b != "turned" and block_k == k and fits_halves(c, width, target):
        made = panels(c, width // 2, replace(target, vector_bytes=target.vector_bytes // 2))
        return made if isinstance(made, str) else replace(made, begun=begins_at_once(c, made.block_k, target))
    if few:
        rows, vectors, dots = *stream_tile(m, ceil(n / width), a == "place", target), 0
    else:
        rows, vectors, dots, cycles = register_tile(c, block_k, width, target, a == "place", b == "place",
                                                    a == "place" != b and not far_a)
        if target.language == "llvm" and a == "place" and not far_a and b != "turned" and block_k == k:
            paired = pair_tile(c, width, target)
            if paired[2] < cycles:
                rows, vectors, dots, group, b = *paired[:2], 0, 2, "panels"
    near = a == b == "place" and not (streamed or far_a or dots) and stays_near(c, rows, vectors, target)
    if near:
        block_k = near_steps(c, rows, vectors, target)
    columns, n = vectors * width // group, n - dots
    if dots and not lanes_along_rows(c):
        block_k = k
    waste = ceil(m / rows) * rows * ceil(n / columns) * columns / (m * n)
    if waste > machine(target).costs.max_waste and len(c.m) + len(c.n) > 2:
        return f"no panels: tiles of {rows} x {columns} waste too much of {m} x {n}"
    passed = b != "place" and a == "place" and not far_a
    if streamed:
        wide = max(1, min(target.units, n // STREAM_COLUMNS))
        unit_m, unit_n = ceil(m / rows) * rows, ceil(ceil(n / columns) / wide) * columns
    elif passed and group == 1:
        unit_m, unit_n = tall_units(c, n, rows, columns, block_k, target)
    else:
        unit_m, unit_n = units(c, n, rows, columns, block_k, b == "place", target, group > 1, near)
    by_rows = passed or unit_n >= n > columns and writes_rows(c, unit_n, block_k, b == "place", target)
    outer = tuple(v.name for v in (*c.batch, *c.m[:-1], *c.n[:-1]))
    block_m = rows if by_rows else unit_m
    return PanelPlan("panels", outer, unit_m, unit_n, block_m, block_k, rows, vectors, width, a, b, dots, group,
                     begins_at_once(c, block_k, target))


def streamed_operands(c: Contraction, target: Target) -> tuple[str, str, int]:
    """How A and B are read where few rows of A, plain in memory, use a large B, and the steps of the sum per block."""
    m = extent(c.m[-1])
    facts = machine(target)
    if m >= facts.declared.side_by_side:
        return packed_form(c), "place", STREAM_K_PACKED
    return "place", "place", ROW_K if m == 1 and facts.speed.long_streams else STREAM_K


def operands(c: Contraction, width: int, target: Target, in_place: bool, long: bool) -> tuple[str, str, int]:
    """How A and B are read elsewhere, and the steps of the sum per block. `in_place`: B may be; `long`: a few vectors
    of each of its rows are more than the first-level cache holds."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    a, costs = "place" if is_plain(c.a) else packed_form(c), machine(target).costs
    far_a = a == "place" and row_bytes(c.a, c.k) > c.a.dtype.itemsize
    far_b, narrow = in_place and row_bytes(c.b, c.k) >= costs.far_step, target.registers <= FEW_REGISTERS
    near = in_place and fits_in_place(c, k * n * max(c.a.dtype.itemsize, 4), target)
    if in_place and (m < costs.pack_rows or near and not far_a and not (
            m >= SHARED_ROWS and (far_b if long or far_b and narrow else is_crowded(c, target)))):
        b = "place"
    else:
        b = "panels" if steps_closely(c.b, c.n[-1:]) else "turned"
    if a == b == "place":
        return a, b, k
    return a, b, part(k, MAX_K if a == "place" and not far_a else MAX_K_PACKED, width)


def packed_form(c: Contraction) -> str:
    """How A is packed."""
    return "panels" if steps_closely(c.a, c.m[-1:]) else "turned"


def fits_in_place(c: Contraction, b_bytes: int, target: Target) -> bool:
    """Whether B stays in the second-level cache, its rows whole lines long and spread over the sets of the first."""
    step = row_bytes(c.b, c.k)
    return fits(b_bytes, 2, target) and step % target.vector_bytes == 0 and step % PAGE != 0


def is_crowded(c: Contraction, target: Target) -> bool:
    """Whether rows of a panel of B, in place, meet in few sets of the first-level cache, so that it does not hold them:
    rows of 256 bytes, 512 apart, have half of it."""
    row, n = NEAR_VECTORS * target.vector_bytes, extent(c.n[-1]) * c.b.dtype.itemsize
    return n > row and extent(c.k[-1]) * row > spread_room(c, row, target)


def spread_room(c: Contraction, row: int, target: Target) -> int:
    """Bytes of the first-level cache in the sets that the first `row` bytes of rows of B meet in."""
    return room(1, target) * row // max(row, gcd(row_bytes(c.b, c.k), PAGE))


def stays_near(c: Contraction, rows: int, vectors: int, target: Target) -> bool:
    """Whether tiles that would wait for rows of B in place from the second-level cache meet blocks of K instead, which
    the first one holds while rows of A pass by. Not where these would come from memory, in parts: 5-10% lost at
    1000x112x1000."""
    row, k = vectors * target.vector_bytes, extent(c.k[-1])
    facts = machine(target)
    step = least_step(rows, vectors, facts, facts.declared.fma_per_cycle)
    waits = row / facts.costs.l2_bytes > step and not fits(k * row, 1, target)
    a_bytes = product(extent(v) for v in (*c.batch, *c.m, *c.k)) * c.a.dtype.itemsize
    return waits and extent(c.m[-1]) > NEAR_ROWS and fits(SHARED * a_bytes, 2, target) and k % 2 == 0 and (
        near_steps(c, rows, vectors, target) >= LEAST_NEAR)


def near_steps(c: Contraction, rows: int, vectors: int, target: Target) -> int:
    """Steps of the sum for which a panel of B in place stays in the first-level cache beside two tiles of A: equal
    parts of K, of whole iterations."""
    row = vectors * target.vector_bytes
    most = spread_room(c, row, target) // (row + 2 * rows * c.a.dtype.itemsize)
    return part(extent(c.k[-1]), max(2, most), 2)


def fits_halves(c: Contraction, width: int, target: Target) -> bool:
    """Whether the columns are an odd number of half vectors, which are as fast: no packing, no sums to be added up."""
    m, n = (extent(vs[-1]) for vs in (c.m, c.n))
    odd = n % width == width // 2 and n < HALVES * width
    return machine(target).declared.fma_per_cycle == 1 and m >= PAIR_LEAST and odd
