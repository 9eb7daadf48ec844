"""Contractions over three plain axes, matmul and its kind: register tiles over operands in place or over packed panels.

    for the outer variables, units of the output (unit_m x unit_n) parallel:
      for blocks of K: for blocks of M: for panels of N (one tile wide):
        pack the panel of B once per block of K, the tiles of A in the first panel      unless they are read in place
        for tiles of M:
          for k: rows x vectors accumulators                                            the microkernel
          last block of K: the nest's stores, from registers; before it: sums kept in scratch memory, where the
          next block goes on with them: each sum runs from its first term to its last in one accumulator

Units of work follow each other along the rows of the output, so that what one worker writes lies together: cores that
write parts of the same rows take lines from each other, and prefetch those of the other.

A tile at an edge reaches back over the one before it instead of needing masks, and stores what is its own. Where only
a few columns are left, as of planes of 7x7 and 14x14, they are dot products with lanes along K instead. A is read
in place wherever it is in memory as it is: a tile needs few rows. B is packed when it is used often and does not fit
the second-level cache, or when its rows are a multiple of a page apart or a power of two and meet in few sets of the
caches, or far apart and too many for the first. A few panels of B then stay in the second-level cache while all rows of
A pass by, each tile of rows once. A large B that few rows use is streamed: blocks of K so short that whole rows of B
are read one after another.
"""
from __future__ import annotations

from functools import lru_cache
from itertools import product as product_of
from math import ceil, gcd

from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.access import extent, value_accesses
from minigrad.codegen.strategies.build_dots import dot_groups, lanes_along_rows
from minigrad.codegen.strategies.packed import is_plain, product, row_bytes, steps_closely
from minigrad.codegen.strategies.panel_form import form_of
from minigrad.codegen.strategies.plan import PanelPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
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

FAR_CYCLES = 1.5
"""Cycles added to a step where rows of B in place are pages apart: a page's address is looked up for each."""

NARROW = 0.25
"""Part of a step that a tile of one vector takes longer, one of two half of it: rows of B come in shorter runs."""

L2_RATE, L2_RATE_FAR, FAR_STEP, L2_LOST = 40, 22, 2048, 0.1
"""Bytes per cycle from the second-level cache, where a panel of B does not stay in the first; likewise where rows of B
in place are so many bytes apart; the part of that time that multiply-adds do not hide."""

STREAM_ROWS, STREAM_K, STREAM_COLUMNS, STREAM_VECTORS = 32, 16, 1024, 2
"""With at most so many rows of A a large B is streamed, in blocks of so many of its rows, in runs at least so long, by
tiles at most so wide: several of them are on their way at once. More rows of A than are read in place are packed."""

NEAR_VECTORS = 4
"""Not where so many vectors of each row of B stay in the first-level cache."""

PACK_ROWS = 48
"""Rows of A from which packing B pays."""

MAX_K, MAX_K_PACKED = 2048, 192
"""Steps of the sum per block, and where A is packed too or not read along K: the first-level cache holds both."""

MAX_DOTS, MAX_K_DOTS = 4, 2048
"""Columns that are left by dot products, and steps of the sum that then are one block."""

ACROSS_CYCLES = 6.0
"""Cycles to add up the lanes of a vector."""

SHORT_K = 64
"""Steps of the sum up to which a product waits for its output more than for B in the second-level cache."""

UNIT_ROWS = 512
"""Rows of a unit of work: with a block of K they stay in the second-level cache."""

PASSED_PART = 4
"""Part of the second-level cache for panels of B that rows of A pass by: 5-10% at 1024 and 2048, over a second packing
of B and over sums kept from block to block of K."""

SUMS_PART = 3
"""Part of the second-level cache that the sums of a unit may take at least, where they are kept from block to block of
K and A is packed or not read along K."""

UNIT_WORK = 1 << 19
"""Multiply-adds of a unit of parallel work worth having."""

SHARED_ROWS = 96
"""Rows of a unit from which on it is worth packing B for it alone, or because its rows are far apart and many."""

UNITS = 4
"""Units per worker, so that none waits long for the last."""

MANY_UNITS, WORTH_CUTTING = 8, 0.98
"""Units per worker beyond which the last one matters little, and the share of the time below which others are better.
Not where B is packed for each unit."""

PAGE = 4096


@lru_cache(maxsize=256)
def plan(nest: Nest, target: Target) -> PanelPlan | str:
    """The plan, or why the nest is not done in panels."""
    c = recognise(nest)
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
    long = k * NEAR_VECTORS * target.vector_bytes > target.l1
    few = in_place and a == "place" and m <= STREAM_ROWS and long and 2 * b_bytes > target.l2
    if few:
        a, b, block_k = a if m <= IN_PLACE_ROWS else packed_a, "place", STREAM_K
    elif in_place and (m < PACK_ROWS or fits_in_place(c, b_bytes, target) and not far_a and not (
            m >= SHARED_ROWS and (row_bytes(c.b, c.k) >= FAR_STEP if long else is_crowded(c, target)))):
        b = "place"
    else:
        b = "panels" if steps_closely(c.b, c.n[-1:]) else "turned"
    if not few and (a != "place" or b != "place"):
        block_k = part(k, MAX_K if a == "place" and not far_a else MAX_K_PACKED, width)
    streamed = b == "place" and block_k < k
    if few:
        rows, vectors, dots = *stream_tile(m, a == "place", target), 0
    else:
        rows, vectors, dots = register_tile(c, block_k, width, target, a == "place", b == "place")
    columns, n = vectors * width, n - dots
    if dots and not lanes_along_rows(c):
        block_k = k
    if ceil(m / rows) * rows * ceil(n / columns) * columns > MAX_WASTE * m * n and len(c.m) + len(c.n) > 2:
        return f"no panels: tiles of {rows} x {columns} waste too much of {m} x {n}"
    passed = b != "place" and a == "place" and not far_a
    if streamed:
        wide = max(1, min(target.units, n // STREAM_COLUMNS))
        unit_m, unit_n = ceil(m / rows) * rows, ceil(ceil(n / columns) / wide) * columns
    elif passed:
        unit_m, unit_n = tall_units(c, n, rows, columns, block_k, target)
    else:
        unit_m, unit_n = units(c, n, rows, columns, block_k, b == "place", target)
    by_rows = passed or unit_n >= n and writes_rows(c, unit_n, block_k, b == "place", target)
    outer = tuple(v.name for v in (*c.batch, *c.m[:-1], *c.n[:-1]))
    block_m = rows if by_rows else unit_m
    return PanelPlan("panels", outer, unit_m, unit_n, block_m, block_k, rows, vectors, width, a, b, dots)


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


def stream_tile(m: int, in_place: bool, target: Target) -> tuple[int, int]:
    """Rows and vectors of the tiles that stream B: as many rows as can be, so that each line of B comes once."""
    vectors = STREAM_VECTORS if in_place else 1
    return even(m, (target.registers - vectors - SPARE_REGISTERS) // vectors), vectors


def part(k: int, most: int, multiple: int) -> int:
    """Steps of the sum per block: all of them, or equal parts of a multiple."""
    if k <= most:
        return k
    return ceil(ceil(k / ceil(k / most)) / multiple) * multiple


def register_tile(c: Contraction, block_k: int, width: int, target: Target, a_in_place: bool, b_in_place: bool
                  ) -> tuple[int, int, int]:
    """Rows and vectors of the microkernel with the fewest cycles over the whole output, edges included, and how many
    columns are dot products instead of an edge."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    along_rows = lanes_along_rows(c)
    streamed = b_in_place and block_k < k
    far_b = b_in_place and not streamed and row_bytes(c.b, c.k) > FAR_STEP
    ahead = far_b and row_bytes(c.b, c.k) >= PAGE  # the next tile's columns are being prefetched
    dots = 0 if streamed or not along_rows and not width <= k <= MAX_K_DOTS else MAX_DOTS
    usual = (0, 0) if ahead else (USUAL_ROWS, target.registers // 8)
    found = 1, 1, 0, float("inf")
    for vectors in range(1, min(STREAM_VECTORS if streamed else MAX_VECTORS, ceil(n / width)) + 1):
        most = (target.registers - vectors - SPARE_REGISTERS) // vectors
        across, left = divmod(n, vectors * width)
        for rows in range(1, min(most, IN_PLACE_ROWS if a_in_place else most, m) + 1):
            copies = rows * vectors
            step = max(copies / 2, (rows + vectors) / LOADS, MIN_CHAINS / 2) * (1 + NARROW / vectors)
            step += FAR_CYCLES if ahead else 0
            row = vectors * target.vector_bytes
            beside = row if ahead else IN_PLACE_ROWS * c.a.dtype.itemsize if far_b else row // 4
            if block_k * (row + beside) > target.l1 and m > rows:
                fetch = row / (L2_RATE_FAR if far_b else L2_RATE)
                step = max(step, fetch) + L2_LOST * fetch
            tile = step * k + (TILE_CYCLES + copies) * ceil(k / block_k)
            edge = (0.0, 0) if left == 0 else (tile, 0)
            if across and 0 < left <= dots and not (along_rows and rows not in (width // 2, width)):
                edge = min(edge, (dot_cycles(rows, left, k, width, along_rows), left))
            cycles = ceil(m / rows) * (across * tile + edge[0])
            if (rows, vectors) == usual:
                cycles *= USUAL
            if cycles <= found[3]:
                found = rows, vectors, edge[1], cycles
    return found[:3]


def dot_cycles(rows: int, columns: int, k: int, width: int, along_rows: bool) -> float:
    """Cycles of the dot products of a tile's rows."""
    if along_rows:
        return k * (1 + columns) / 2 + TILE_CYCLES
    return sum(ceil(k / width) * max(rows * count, rows + count, MIN_CHAINS) / 2 + TILE_CYCLES
               + rows * count * ACROSS_CYCLES for count in dot_groups(rows, columns))


def writes_rows(c: Contraction, columns: int, block_k: int, in_place: bool, target: Target) -> bool:
    """Whether panels of so many columns of B all stay in the first-level cache, or in the second where sums are short
    and the output is large: a unit goes through them tile by tile of rows then, and writes its output front to back."""
    itemsize = max(c.a.dtype.itemsize, 4)
    b_bytes = block_k * columns * itemsize
    large = 2 * extent(c.m[-1]) * columns * itemsize >= target.l2
    far_b = in_place and row_bytes(c.b, c.k) > FAR_STEP
    second = block_k <= SHORT_K and large and not far_b and 4 * b_bytes <= target.l2
    return block_k == extent(c.k[-1]) and (2 * b_bytes <= target.l1 or second)


def units(c: Contraction, n: int, rows: int, columns: int, block_k: int, in_place: bool, target: Target
          ) -> tuple[int, int]:
    """Rows and columns of a unit of work, whole tiles. Their number changes no result.

    Columns are cut first: a panel of B is used, or packed, for as many rows as there are. Not where all of B stays in
    the first-level cache.
    """
    k = extent(c.k[-1])
    down, across = ceil(extent(c.m[-1]) / rows), ceil(n / columns)
    others, wanted = other_units(c, n, target)
    tall = min(down, ceil(UNIT_ROWS / rows))
    wide = across
    if block_k < k:
        elements = target.l2 // max(c.a.dtype.itemsize, 4)
        room = max(elements // SUMS_PART, elements - (tall * rows + columns) * block_k)
        wide = min(across, max(1, room // (tall * rows * columns)))
    if writes_rows(c, across * columns, block_k, in_place, target):
        tall = max(1, min(tall, down // wanted))
    else:
        wide = max(1, min(wide, across * ceil(down / tall) // wanted))
    least = 1 if in_place else ceil(SHARED_ROWS / rows) if target.units > 1 else tall
    tall = min(tall, max(least, down * ceil(across / wide) // wanted))
    tall, wide = even(down, tall), even(across, wide)
    if in_place:
        tall, wide = shared_evenly(down, across, others, tall, wide, target.units)
    return tall * rows, wide * columns


def tall_units(c: Contraction, n: int, rows: int, columns: int, block_k: int, target: Target) -> tuple[int, int]:
    """Likewise where B is packed and A passes by in place: a few panels of B, packed once for as many rows as there
    are, stay in the second-level cache, and each tile of rows meets all of them."""
    itemsize = max(c.a.dtype.itemsize, 4)
    down, across = ceil(extent(c.m[-1]) / rows), ceil(n / columns)
    _, wanted = other_units(c, n, target)
    wide = max(1, min(target.l2 // PASSED_PART // (block_k * columns * itemsize), across // wanted))
    tall = down
    if block_k < extent(c.k[-1]):
        tall = max(1, min(tall, target.l2 // (rows * wide * columns * itemsize)))
    if target.units > 1:
        tall = min(tall, max(ceil(SHARED_ROWS / rows), down * ceil(across / wide) // wanted))
    return even(down, tall) * rows, even(across, wide) * columns


def other_units(c: Contraction, n: int, target: Target) -> tuple[int, int]:
    """How many products of two matrices there are, and into how many units each is to be cut at least."""
    others = product(extent(v) for v in (*c.batch, *c.m[:-1], *c.n[:-1]))
    work = extent(c.m[-1]) * n * extent(c.k[-1]) * others
    return others, max(1, min(UNITS * target.units, work // UNIT_WORK) // others)


def shared_evenly(down: int, across: int, others: int, tall: int, wide: int, workers: int) -> tuple[int, int]:
    """Units of `tall` x `wide` of `others` times `down` x `across` tiles, or somewhat smaller ones that so many workers
    are done with sooner: of 7 units for two workers the last one is waited for."""
    parts, strips = ceil(down / tall), ceil(across / wide)
    if workers == 1 or not 1 < parts * strips * others <= MANY_UNITS * workers:
        return tall, wide
    talls = {ceil(down / p) for p in range(parts, parts + (parts > 1) * (1 + parts // 2) + 1)}
    wides = {ceil(across / p) for p in range(strips, strips + (strips > 1) * (1 + strips // 2) + 1)}
    found, least = (tall, wide), WORTH_CUTTING * time_shared(down, across, others, tall, wide, workers)
    for option in sorted(product_of(talls, wides), reverse=True):
        time = time_shared(down, across, others, *option, workers)
        if time < least:
            found, least = option, time
    return found


def time_shared(down: int, across: int, others: int, tall: int, wide: int, workers: int) -> int:
    """Tiles that the busiest worker goes through, where each takes the next unit when it is done with one."""
    done = [0] * workers
    for height, width in list(product_of(cut(down, tall), cut(across, wide))) * others:
        done[done.index(min(done))] += height * width
    return max(done)


def cut(count: int, most: int) -> list[int]:
    """`count` in parts of `most` and what is left."""
    return [min(most, count - begin) for begin in range(0, count, most)]


def even(count: int, most: int) -> int:
    """`count` in equal parts of at most `most`."""
    return ceil(count / ceil(count / most))
