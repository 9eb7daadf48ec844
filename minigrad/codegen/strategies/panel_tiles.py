"""Register tiles of panels: how many rows and vectors take the fewest cycles."""
from __future__ import annotations

from math import ceil

from minigrad.codegen.cost.caches import PAGE, fits
from minigrad.codegen.cost.machine import Machine, machine
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import SPARE_REGISTERS, least_step, row_bytes, step_cycles
from minigrad.codegen.strategies.build_dots import dot_groups, lanes_along_rows
from minigrad.codegen.strategies.panel_units import even
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.target import Target

MAX_VECTORS = 7
USUAL_ROWS, USUAL = 6, 0.98
"""Rows of the register tile that is taken where others gain less than this, so that products of many sizes share its
programs; its vectors are an eighth of the registers. Not where rows of B in place are pages apart."""

SHORTEST_K, WIDE, TALL = 8, (2, 8), (8, 2)
"""Steps of the sum up to which a tile of so many rows and vectors writes longer runs of the output, at one multiply-add
per cycle: 0-13%, 1.1-1.2 times as fast on two threads; nothing for 12 steps. Alone a worker is faster with the second
tile, 0-10%: its sums are the same."""

FEW_REGISTERS = 16
"""With so many a tile has few sums, and what counts is that there are enough of them in flight; with more of them it is
bytes of B in a row. Tiles are narrow then: rows of B that are far apart cost more in place, up to 1.9 times in all.
"""

STREAM_VECTORS, ROW_VECTORS, ROW_K = (4, 2), 8, 8
"""Vectors of a tile that streams B, the first number that registers have room for: 4 rather than 2 gain 3-10% with up
to 6 rows of A, more than 4 nothing. With packed A 2, where they leave a quarter of the registers. One row has 8 under
`Speed.long_streams`, and blocks of K half as long: longer runs of fewer rows gain 5-15% there."""

MAX_DOTS, MAX_K_DOTS = 4, 2048
"""Columns that are left by dot products, and steps of the sum that then are one block."""

PAIR_LEAST, PAIR_WORKERS = 48, 2
"""Two steps of the sum in a vector: least rows, and by how many workers B is packed, a number that is fixed as sums
depend on it."""

PAIR_VECTORS, HALVES = 8, 4
"""Vectors of columns up to which half of one counts more than one program for many sizes; and up to which tiles are of
half vectors where these have twice the rate: 0-5% over pairs of steps, 1.2-1.5 times as fast for short or odd sums; up
to 9% were lost at 104 columns."""

MAX_K, MAX_K_PACKED = 2048, 192
"""Steps of the sum per block, and where A is packed too or not read along K: the first-level cache holds both."""


def stream_tile(m: int, across: int, in_place: bool, target: Target) -> tuple[int, int]:
    """Rows and vectors of the tiles that stream B, `across` vectors wide: as many rows as can be, so that each line of
    B comes once."""
    room = target.registers - SPARE_REGISTERS
    if target.registers <= FEW_REGISTERS:
        tiles = [(even(m, most_rows(v, target)), v) for v in range(1, STREAM_VECTORS[0] + 1)]
        return min(tiles, key=lambda t: ceil(m / t[0]) * tile_step(t[0], t[1], target) / t[1])
    if m == 1 and machine(target).speed.long_streams:
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
    far_b = b_in_place and not streamed and row_bytes(c.b, c.k) > machine(target).costs.far_step
    ahead = far_b and row_bytes(c.b, c.k) >= PAGE  # the next tile's columns are being prefetched
    facts, costs = machine(target), machine(target).costs
    dots = 0 if streamed or not along_rows and not width <= k <= MAX_K_DOTS else MAX_DOTS
    usual = (0, 0) if ahead else (USUAL_ROWS, target.registers // 8)
    if facts.declared.fma_per_cycle == 1 and b_in_place and k <= SHORTEST_K and m > 1 and n % (WIDE[1] * width) == 0:
        return *(TALL if target.units == 1 and m >= TALL[0] else WIDE), 0, 0.0
    found = 1, 1, 0, float("inf")
    for vectors in range(1, min(STREAM_VECTORS[-1] if streamed else MAX_VECTORS, ceil(n / width)) + 1):
        most = most_rows(vectors, target)
        across, left = divmod(n, vectors * width)
        for rows in range(1, min(most, facts.declared.side_by_side if a_in_place else most, m) + 1):
            copies = rows * vectors
            step = tile_step(rows, vectors, target) + (costs.far_row if ahead else 0)
            row = vectors * target.vector_bytes
            beside = row if ahead else facts.declared.side_by_side * c.a.dtype.itemsize if far_b else row // 4
            near = max(across, 1) * row if passed else row
            if not fits(block_k * (near + beside), 1, target) and m > rows:
                fetch = row / (costs.l2_bytes_far if far_b else costs.l2_bytes)
                step = max(step, fetch) + costs.l2_lost * fetch * (fetch / step if passed else 1)
            tile = step * k + (costs.tile + copies) * ceil(k / block_k)
            edge = (0.0, 0) if left == 0 else (tile, 0)
            if across and 0 < left <= dots and not (along_rows and rows not in (width // 2, width)):
                edge = min(edge, (dot_cycles(rows, left, k, width, along_rows, facts), left))
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
    facts = machine(target)
    if target.registers <= FEW_REGISTERS:
        return step_cycles(rows, vectors, facts)
    return least_step(rows, vectors, facts, facts.declared.fma_per_cycle) * (1 + facts.costs.narrow_tile / vectors)


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
    facts, costs = machine(target), machine(target).costs
    packing, rate = PAIR_WORKERS * costs.pack_near * k * n, facts.declared.fma_per_cycle
    for vectors in [v for v in range(1, MAX_VECTORS + 1) if n % (v * half) == 0]:
        row = vectors * target.vector_bytes
        for rows in range(1, min(most_rows(vectors, target), facts.declared.side_by_side, m) + 1):
            copies = rows * vectors
            step = tile_step(rows, vectors, target)
            if target.registers > FEW_REGISTERS and rate > 1:
                step = least_step(rows, vectors, facts, 2)
            if not fits(k // 2 * (row + row // 4), 1, target):
                step = max(step, row / costs.l2_bytes) + costs.l2_lost * row / costs.l2_bytes
            tile = step * k / 2 + costs.tile + copies * (1 + costs.pair_added * target.vector_bytes / (32 * rate))
            cycles = ceil(m / rows) * (n // (vectors * half)) * tile + packing
            if cycles <= found[2]:
                found = rows, vectors, cycles
    return found


def dot_cycles(rows: int, columns: int, k: int, width: int, along_rows: bool, facts: Machine) -> float:
    """Cycles of the dot products of a tile's rows."""
    if along_rows:
        return k * (1 + columns) / 2 + facts.costs.tile
    return sum(ceil(k / width) * max(rows * count / 2, (rows + count) / 2, facts.declared.fma_latency)
               + facts.costs.tile + rows * count * facts.costs.across for count in dot_groups(rows, columns))
