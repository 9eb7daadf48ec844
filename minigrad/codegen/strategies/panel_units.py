"""Units of work of a contraction in panels: rectangles of whole tiles of the output, and the order of tiles in them.

Their number changes no result. Units follow each other along the rows of the output, so that what one worker writes
lies together: cores that write parts of the same rows take lines from each other, and prefetch those of the other.
"""
from __future__ import annotations

from itertools import product as product_of
from math import ceil

from minigrad.codegen.cost.caches import SHARED, fits, room
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import product, row_bytes
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.target import Target

SHORT_K = 64
"""Steps of the sum up to which a product waits for its output more than for B in the second-level cache."""

UNIT_ROWS = 512
"""Rows of a unit of work: with a block of K they stay in the second-level cache."""

UNIT_WORK = 1 << 19
"""Multiply-adds of a unit of parallel work worth having."""

PAIR_ROWS = 200
"""Rows of a unit that is worth packing B in pairs of steps for; one worker does it once."""

UNITS = 4
"""Units per worker, so that none waits long for the last."""

MANY_UNITS, WORTH_CUTTING = 16, 0.98
"""Units per worker beyond which the last one matters little, and the share of the time below which others are better.
Not where B is packed for each unit."""

SHARED_ROWS = 96
"""Rows of a unit from which on it is worth packing B for it alone, or because its rows are far apart and many."""

NEAR_ROWS = 32
"""Rows of a unit for which a block of B in place is worth keeping in the first-level cache."""


def writes_rows(c: Contraction, columns: int, block_k: int, in_place: bool, target: Target) -> bool:
    """Whether panels of so many columns of B all stay in the first-level cache, or in the second where sums are short
    and the output is large: a unit goes through them tile by tile of rows then, and writes its output front to back."""
    itemsize = max(c.a.dtype.itemsize, 4)
    b_bytes = block_k * columns * itemsize
    large = 2 * extent(c.m[-1]) * columns * itemsize >= room(2, target)
    far_b = in_place and row_bytes(c.b, c.k) > machine(target).costs.far_step
    second = block_k <= SHORT_K and large and not far_b and fits(SHARED * b_bytes, 2, target)
    return block_k == extent(c.k[-1]) and (fits(2 * b_bytes, 1, target) or second)


def units(c: Contraction, n: int, rows: int, columns: int, block_k: int, in_place: bool, target: Target,
          paired: bool = False, near: bool = False) -> tuple[int, int]:
    """Rows and columns of a unit of work, whole tiles. Their number changes no result.

    Columns are cut first: a panel of B is used, or packed, for as many rows as there are. Not where all of B stays in
    the first-level cache. `near`: a block of it does, while the rows of a unit pass by.
    """
    k = extent(c.k[-1])
    down, across = ceil(extent(c.m[-1]) / rows), ceil(n / columns)
    others, wanted = other_units(c, n, target)
    tall = min(down, ceil(UNIT_ROWS / rows))
    wide = across
    if block_k < k:
        elements = room(2, target) // max(c.a.dtype.itemsize, 4)
        for_sums = max(elements // SHARED, elements - (tall * rows + columns) * block_k)
        wide = min(across, max(1, for_sums // (tall * rows * columns)))
    if writes_rows(c, across * columns, block_k, in_place, target):
        tall = max(1, min(tall, down // wanted))
    else:
        wide = max(1, min(wide, across * ceil(down / tall) // wanted))
    least = 1 if in_place else ceil(SHARED_ROWS / rows) if target.units > 1 else tall
    if near:
        least = ceil(NEAR_ROWS / rows)
    if paired:
        least = min(ceil(PAIR_ROWS / rows), ceil(down / target.units)) if target.units > 1 else down
        tall = max(tall, least)
    tall = min(tall, max(least, down * ceil(across / wide) // wanted))
    tall, wide = even(down, tall), even(across, wide)
    if in_place or paired:
        tall, wide = shared_evenly(down, across, others, tall, wide, target.units)
    return tall * rows, wide * columns


def tall_units(c: Contraction, n: int, rows: int, columns: int, block_k: int, target: Target) -> tuple[int, int]:
    """Likewise where B is packed and A passes by in place: a few panels of B, packed once for as many rows as there
    are, stay in the second-level cache, and each tile of rows meets all of them."""
    itemsize = max(c.a.dtype.itemsize, 4)
    down, across = ceil(extent(c.m[-1]) / rows), ceil(n / columns)
    _, wanted = other_units(c, n, target)
    wide = max(1, min(room(2, target) // SHARED // (block_k * columns * itemsize), across // wanted))
    tall = down
    if block_k < extent(c.k[-1]):
        tall = max(1, min(tall, room(2, target) // (rows * wide * columns * itemsize)))
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


def part(k: int, most: int, multiple: int) -> int:
    """Steps of the sum per block: all of them, or equal parts of a multiple."""
    if k <= most:
        return k
    return ceil(ceil(k / ceil(k / most)) / multiple) * multiple
