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

from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.access import extent, value_accesses
from minigrad.codegen.strategies.bfloat16 import takes_bfloat16
from minigrad.codegen.strategies.build_dots import dot_groups, lanes_along_rows
from minigrad.codegen.strategies.packed import is_plain, product, row_bytes, step_cycles, steps_closely
from minigrad.codegen.strategies.panel_form import LEAST_NEAR, begins_at_once, form_of
from minigrad.codegen.strategies.panel_units import (
    FAR_STEP,
    NEAR_ROWS,
    SHARED_ROWS,
    even,
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

MAX_WASTE = 1.35
"""Tiles may cover so much more than the output: beyond, variables belong together."""

MAX_WASTE_ONE = 1.12
"""Likewise where there is one multiply-add a cycle: packing takes less time beside them."""

MAX_VECTORS = 7
SPARE_REGISTERS = 2
"""Besides accumulators and a row of B: with fewer, LLVM keeps some on the stack."""

IN_PLACE_ROWS = 8
"""Rows of A read side by side: a power of two apart they meet in one set of the first-level cache, of so many ways."""

MIN_CHAINS = 8
"""Independent multiply-adds in flight that hide their latency."""

TILE_CYCLES = 20.0
"""Cycles that a tile costs besides its multiply-adds and stores."""

LOADS = 1.7
"""Loads per cycle, rows of B and broadcast elements of A alike, while two multiply-adds run in each."""

USUAL_ROWS, USUAL = 6, 0.98
"""Rows of the register tile that is taken where others gain less than this, so that products of many sizes share its
programs; its vectors are an eighth of the registers. Not where rows of B in place are pages apart."""

SHORTEST_K, WIDE, TALL = 8, (2, 8), (8, 2)
"""Steps of the sum up to which a tile of so many rows and vectors writes longer runs of the output, at one multiply-add
per cycle: 0-13%, 1.1-1.2 times as fast on two threads; nothing for 12 steps. Alone a worker is faster with the second
tile, 0-10%: its sums are the same."""

FAR_CYCLES = 1.5
"""Cycles added to a step where rows of B in place are pages apart: a page's address is looked up for each."""

FEW_REGISTERS = 16
"""With so many a tile has few sums, and what counts is that there are enough of them in flight; with more of them it is
bytes of B in a row. Tiles are narrow then: rows of B that are far apart cost more in place, up to 1.9 times in all.
"""

NARROW = {2: 0.25, 1: 0.12}
"""Part of a step that a tile of one vector takes longer, one of two half of it, by multiply-adds per cycle: rows of B
come in shorter runs."""

L2_RATE, L2_RATE_FAR, L2_LOST = 40, 22, 0.1
"""Bytes per cycle from the second-level cache, where a panel of B does not stay in the first; likewise where rows of B
in place are far from each other; the part of that time that multiply-adds do not hide, for packed panels where it is
as long as theirs, less where it is shorter."""

A_PART = 3
"""Part of the second-level cache that A takes at most where blocks of B are to stay in the first."""

STREAM_ROWS, STREAM_K, STREAM_K_PACKED, STREAM_COLUMNS = 32, 16, 24, 256
"""With at most so many rows of A a large B is streamed, in blocks of so many of its rows, in runs at least so long:
several of them are on their way at once. As many rows of A as may meet in a set are packed, for 4-10% at 8, and then
blocks are longer: sums come from memory less often, for 2-8%."""

STREAM_VECTORS, ROW_VECTORS, ROW_K = (4, 2), 8, 8
"""Vectors of a tile that streams B, the first number that registers have room for: 4 rather than 2 gain 3-10% with up
to 6 rows of A, more than 4 nothing. With packed A 2, where they leave a quarter of the registers. One row has 8 under
`Target.long_streams`, and blocks of K half as long: longer runs of fewer rows gain 5-15% there."""

NEAR_VECTORS = 4
"""Not where so many vectors of each row of B stay in the first-level cache."""

PACK_ROWS = {2: 48, 1: 512}
"""Rows of A from which packing B pays, by multiply-adds per cycle: at one, rows of B in place arrive in time from the
second-level cache, and packing them first lost 2-20% with 49 to 400 rows."""

MAX_K, MAX_K_PACKED = 2048, 192
"""Steps of the sum per block, and where A is packed too or not read along K: the first-level cache holds both."""

MAX_DOTS, MAX_K_DOTS = 4, 2048
"""Columns that are left by dot products, and steps of the sum that then are one block."""

ACROSS_CYCLES = 6.0
"""Cycles to add up the lanes of a vector."""

PAIR_LEAST, PAIR_ADDED, PAIR_PACKED, PAIR_WORKERS = 48, 1.5, 0.3, 2
"""Two steps of the sum in a vector: least rows, cycles that adding up its 64 bytes takes, cycles to pack an element of
B, and by how many workers, a number that is fixed as sums depend on it."""

PAIR_VECTORS, HALVES = 8, 4
"""Vectors of columns up to which half of one counts more than one program for many sizes; and up to which tiles are of
half vectors where these have twice the rate: 0-5% over pairs of steps, 1.2-1.5 times as fast for short or odd sums; up
to 9% were lost at 104 columns."""

PAGE = 4096


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
    itemsize = max(c.a.dtype.itemsize, 4)
    packed_a = "panels" if steps_closely(c.a, c.m[-1:]) else "turned"
    a = "place" if is_plain(c.a) else packed_a
    b_bytes = k * n * itemsize
    in_place = is_plain(c.b) and value_accesses(c.b, ())[0].step(c.n[-1]) == 1
    far_a = a == "place" and row_bytes(c.a, c.k) > c.a.dtype.itemsize
    block_k = k
    far_b, narrow = in_place and row_bytes(c.b, c.k) >= FAR_STEP, target.registers <= FEW_REGISTERS
    long = k * NEAR_VECTORS * target.vector_bytes > target.l1
    few = in_place and a == "place" and m <= STREAM_ROWS and long and 2 * b_bytes > target.l2
    if m == 1 and not few:
        return "no panels: a vector times a matrix that stays near"
    if few:
        a, b = a if m < IN_PLACE_ROWS else packed_a, "place"
        block_k = STREAM_K if a == "place" else STREAM_K_PACKED
        if m == 1 and target.long_streams:
            block_k = ROW_K
    elif in_place and (m < PACK_ROWS[target.fma_rate] or fits_in_place(c, b_bytes, target) and not far_a and not (
            m >= SHARED_ROWS and (far_b if long or far_b and narrow else is_crowded(c, target)))):
        b = "place"
    else:
        b = "panels" if steps_closely(c.b, c.n[-1:]) else "turned"
    if not few and (a != "place" or b != "place"):
        block_k = part(k, MAX_K if a == "place" and not far_a else MAX_K_PACKED, width)
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
    waste = MAX_WASTE if target.fma_rate > 1 else MAX_WASTE_ONE
    if ceil(m / rows) * rows * ceil(n / columns) * columns > waste * m * n and len(c.m) + len(c.n) > 2:
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


def fits_in_place(c: Contraction, b_bytes: int, target: Target) -> bool:
    """Whether B stays in the second-level cache, its rows whole lines long and spread over the sets of the first."""
    step = row_bytes(c.b, c.k)
    return b_bytes <= target.l2 and step % target.vector_bytes == 0 and step % PAGE != 0


def is_crowded(c: Contraction, target: Target) -> bool:
    """Whether rows of a panel of B, in place, meet in few sets of the first-level cache, so that it does not hold them:
    rows of 256 bytes, 512 apart, have half of it."""
    row, n = NEAR_VECTORS * target.vector_bytes, extent(c.n[-1]) * c.b.dtype.itemsize
    room = target.l1 * row // max(row, gcd(row_bytes(c.b, c.k), PAGE))
    return n > row and extent(c.k[-1]) * row > room


def stream_tile(m: int, across: int, in_place: bool, target: Target) -> tuple[int, int]:
    """Rows and vectors of the tiles that stream B, `across` vectors wide: as many rows as can be, so that each line of
    B comes once."""
    room = target.registers - SPARE_REGISTERS
    if target.registers <= FEW_REGISTERS:
        tiles = [(even(m, most_rows(v, target)), v) for v in range(1, STREAM_VECTORS[0] + 1)]
        return min(tiles, key=lambda t: ceil(m / t[0]) * tile_step(t[0], t[1], target) / t[1])
    if m == 1 and target.long_streams:
        return 1, even(across, ROW_VECTORS)
    vectors = next((v for v in STREAM_VECTORS if (m + 1) * v <= room), STREAM_VECTORS[-1])
    if not in_place:
        vectors = STREAM_VECTORS[-1] if 4 * m * STREAM_VECTORS[-1] <= 3 * target.registers else 1
    return even(m, (room - vectors) // vectors), vectors


def register_tile(c: Contraction, block_k: int, width: int, target: Target, a_in_place: bool, b_in_place: bool,
                  passed: bool) -> tuple[int, int, int, float]:
    """Rows and vectors of the microkernel with the fewest cycles over the whole output, edges included, how many
    columns are dot products instead of an edge, and those cycles.

    `passed`: rows of A pass by several panels of B, all of which the first-level cache would have to hold.
    """
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    along_rows = lanes_along_rows(c)
    streamed = b_in_place and block_k < k
    far_b = b_in_place and not streamed and row_bytes(c.b, c.k) > FAR_STEP
    ahead = far_b and row_bytes(c.b, c.k) >= PAGE  # the next tile's columns are being prefetched
    dots = 0 if streamed or not along_rows and not width <= k <= MAX_K_DOTS else MAX_DOTS
    usual = (0, 0) if ahead else (USUAL_ROWS, target.registers // 8)
    if target.fma_rate == 1 and b_in_place and k <= SHORTEST_K and m > 1 and n % (WIDE[1] * width) == 0:
        return *(TALL if target.units == 1 and m >= TALL[0] else WIDE), 0, 0.0
    found = 1, 1, 0, float("inf")
    for vectors in range(1, min(STREAM_VECTORS[-1] if streamed else MAX_VECTORS, ceil(n / width)) + 1):
        most = most_rows(vectors, target)
        across, left = divmod(n, vectors * width)
        for rows in range(1, min(most, IN_PLACE_ROWS if a_in_place else most, m) + 1):
            copies = rows * vectors
            step = tile_step(rows, vectors, target) + (FAR_CYCLES if ahead else 0)
            row = vectors * target.vector_bytes
            beside = row if ahead else IN_PLACE_ROWS * c.a.dtype.itemsize if far_b else row // 4
            near = max(across, 1) * row if passed else row
            if block_k * (near + beside) > target.l1 and m > rows:
                fetch = row / (L2_RATE_FAR if far_b else L2_RATE)
                step = max(step, fetch) + L2_LOST * fetch * (fetch / step if passed else 1)
            tile = step * k + (TILE_CYCLES + copies) * ceil(k / block_k)
            edge = (0.0, 0) if left == 0 else (tile, 0)
            if across and 0 < left <= dots and not (along_rows and rows not in (width // 2, width)):
                edge = min(edge, (dot_cycles(rows, left, k, width, along_rows), left))
            cycles = ceil(m / rows) * (across * tile + edge[0])
            if (rows, vectors) == usual:
                cycles *= USUAL
            if cycles <= found[3]:
                found = rows, vectors, edge[1], cycles
    return found


def most_rows(vectors: int, target: Target) -> int:
    """Rows of a tile of so many vectors that fit the registers. Of 16 one is enough to spare, for an element of A
    in all lanes: 4 rows of 3 vectors."""
    spare = 1 if target.registers <= FEW_REGISTERS else SPARE_REGISTERS
    return (target.registers - vectors - spare) // vectors


def tile_step(rows: int, vectors: int, target: Target) -> float:
    """Cycles of a register tile per step of the sum."""
    if target.registers <= FEW_REGISTERS:
        return step_cycles(rows, vectors)
    step = max(rows * vectors / target.fma_rate, (rows + vectors) / LOADS, MIN_CHAINS / 2)
    return step * (1 + NARROW[target.fma_rate] / vectors)


def stays_near(c: Contraction, rows: int, vectors: int, target: Target) -> bool:
    """Whether tiles that would wait for rows of B in place from the second-level cache meet blocks of K instead, which
    the first one holds while rows of A pass by. Not where these would come from memory, in parts: 5-10% lost at
    1000x112x1000."""
    row, k = vectors * target.vector_bytes, extent(c.k[-1])
    waits = row / L2_RATE > max(rows * vectors / target.fma_rate, (rows + vectors) / LOADS) and k * row > target.l1
    a_bytes = product(extent(v) for v in (*c.batch, *c.m, *c.k)) * c.a.dtype.itemsize
    return waits and extent(c.m[-1]) > NEAR_ROWS and a_bytes <= target.l2 // A_PART and k % 2 == 0 and (
        near_steps(c, rows, vectors, target) >= LEAST_NEAR)


def near_steps(c: Contraction, rows: int, vectors: int, target: Target) -> int:
    """Steps of the sum for which a panel of B in place stays in the first-level cache beside two tiles of A: equal
    parts of K, of whole iterations."""
    row = vectors * target.vector_bytes
    room = target.l1 * row // max(row, gcd(row_bytes(c.b, c.k), PAGE))
    return part(extent(c.k[-1]), max(2, room // (row + 2 * rows * c.a.dtype.itemsize)), 2)


def fits_halves(c: Contraction, width: int, target: Target) -> bool:
    """Whether the columns are an odd number of half vectors, which are as fast: no packing, no sums to be added up."""
    m, n = (extent(vs[-1]) for vs in (c.m, c.n))
    return target.fma_rate == 1 and m >= PAIR_LEAST and n % width == width // 2 and n < HALVES * width


def pair_tile(c: Contraction, width: int, target: Target) -> tuple[int, int, float]:
    """Rows and vectors of a tile with two steps of the sum in a vector, and its cycles over the whole output, packing
    included; infinitely many where whole vectors of columns fit as well."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    half = width // 2
    found = 1, 1, float("inf")
    few = half <= n <= PAIR_VECTORS * width and k <= MAX_K
    whole = n % width == 0 and n > width and target.registers > FEW_REGISTERS
    if width < 4 or m < PAIR_LEAST or not few or k % 2 or n % half or whole:
        return found
    packing = PAIR_WORKERS * PAIR_PACKED * k * n
    for vectors in [v for v in range(1, MAX_VECTORS + 1) if n % (v * half) == 0]:
        row = vectors * target.vector_bytes
        for rows in range(1, min(most_rows(vectors, target), IN_PLACE_ROWS, m) + 1):
            copies = rows * vectors
            step = tile_step(rows, vectors, target)
            if target.registers > FEW_REGISTERS and target.fma_rate > 1:
                step = max(copies / 2, (rows + vectors) / LOADS, MIN_CHAINS / 2)
            if k // 2 * (row + row // 4) > target.l1:
                step = max(step, row / L2_RATE) + L2_LOST * row / L2_RATE
            tile = step * k / 2 + TILE_CYCLES + copies * (1 + PAIR_ADDED * target.vector_bytes / (32 * target.fma_rate))
            cycles = ceil(m / rows) * (n // (vectors * half)) * tile + packing
            if cycles <= found[2]:
                found = rows, vectors, cycles
    return found


def dot_cycles(rows: int, columns: int, k: int, width: int, along_rows: bool) -> float:
    """Cycles of the dot products of a tile's rows."""
    if along_rows:
        return k * (1 + columns) / 2 + TILE_CYCLES
    return sum(ceil(k / width) * max(rows * count, rows + count, MIN_CHAINS) / 2 + TILE_CYCLES
               + rows * count * ACROSS_CYCLES for count in dot_groups(rows, columns))
