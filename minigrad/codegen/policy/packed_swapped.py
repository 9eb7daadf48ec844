"""Packed plans whose operands change places: rows of a tile are taps of a box, or columns of an image."""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from minigrad.codegen.cost.plans import tile_cycles
from minigrad.codegen.kernel.access import MAX_STRIDE, extent
from minigrad.codegen.machines.caches import room
from minigrad.codegen.microkernels.generate import most_rows
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.codegen.policy.blocking import (
    BLOCK_HEIGHTS,
    MAX_VECTORS,
    Blocks,
    Box,
    box,
    product,
    size,
    steps_back,
    steps_closely,
)
from minigrad.codegen.policy.product import CHOICES
from minigrad.codegen.policy.window_axes import Axis, Layout, axes_of_a, layout, swapped, within
from minigrad.expr import Var, coefficient
from minigrad.target import Target

SHARES, TAP_SHARES = (1, 2, 4), (1, 2, 4, 8, 16)
"""Into how many blocks the columns of a contraction over a box are cut, for as many workers, and its outermost taps."""

COPIED = 0.4
"""Cycles of an element that is copied, by which blocks are put in order."""

USUAL_VECTORS = 2
"""Vectors of a tile for which a block of such a contraction's sum stays in the first-level cache, whatever the tile:
how many workers there are may decide that, and not what is added up to what. Blocks twice as long gained nothing."""


def swapped_windows(c: Contraction, width: int, target: Target) -> list[tuple[float, Blocks]]:
    """The most promising plans where the operand with windows has its taps in the output: lanes go along the other
    operand, rows of a tile are taps, and each of them reads a shift of the same box. A weight gradient; or a
    convolution, whose image has so few or such odd columns that lanes along channels cover it better."""
    t = swapped(c)
    axes = axes_of_a(t)
    taps = [a.tap for a in axes if a.tap is not None]
    others, suffix = t.m[:len(t.m) - len(taps)], t.m[len(t.m) - len(taps):]
    if not taps or set(suffix) != set(taps) or not t.n or any(a.stride > 1 < abs(a.dilation) for a in axes):
        return []  # places of a box are counted by one of the two
    bits = max(t.a.dtype.bits, 32)
    a_lanes = width if steps_closely(t.a, t.k) or steps_back(t.a, t.k[-1]) else min(4, width)
    b_lanes = width if steps_closely(t.b, t.n) else min(4, width)
    names = tuple((a.x.name, a.tap.name) for a in axes if a.tap is not None)
    k = _whole_rows(t, axes, room(1, target) * 8 * 2 // 3 // (USUAL_VECTORS * width * bits))
    found: list[tuple[float, Blocks]] = []
    for parts in _tap_parts([extent(v) for v in suffix]):
        inside = tuple((v.name, part) for v, part in zip(suffix, parts, strict=True))
        lay = layout(within(axes, inside), k)
        for rows, vectors in _tap_tiles(parts, target):
            columns = vectors * width
            for m, n in _swapped_blocks(t, others, inside, lay, k, columns, room(2, target) * 8 // bits):
                mb, nb = (product(part for _, part in b) for b in (m, n))
                times = size(t.m) / rows * ceil(size(t.n) / nb) * ceil(nb / columns)
                copied = size(t.k) * (size(t.m) / product(parts) * lay.elements / product(p for _, p in k)
                                      * ceil(size(t.n) / nb) + size(t.n) * ceil(size(t.m) / mb))
                cycles = times * tile_cycles(rows * vectors, rows + vectors, size(t.k), 0, target) + copied * COPIED
                units = ceil(size(t.m) / mb) * ceil(size(t.n) / nb) * size(t.batch)
                found.append((cycles * ceil(units / target.units) / units, Blocks(
                    m, n, k, rows, vectors, width, "k", a_lanes, b_lanes, windows=names, swapped=True)))
    return sorted(found, key=lambda x: x[0])[:CHOICES]


def _swapped_blocks(t: Contraction, others: tuple[Var, ...], taps: Box, lay: Layout, k: Box, columns: int, memory: int
                   ) -> Iterator[tuple[Box, Box]]:
    """Blocks of M and N that leave room for each other and the outputs in `memory` elements."""
    depth = product(part for _, part in k)
    for some in dict.fromkeys(box(others, height, 1) for height in BLOCK_HEIGHTS):
        m = (*some, *taps)
        mb = product(part for _, part in m)
        boxes = _boxes(some, lay, k)
        room = (memory - boxes) // (2 * mb + depth)
        for n in dict.fromkeys(box(t.n, max(min(room, ceil(size(t.n) / share)), columns), columns) for share in SHARES):
            nb = product(part for _, part in n)
            if boxes + ceil(nb / columns) * columns * (2 * mb + depth) <= memory:
                yield m, n


def _boxes(others: Box, lay: Layout, k: Box) -> int:
    """Elements of the boxes of a block, for its rows beside the taps and its steps of the sum."""
    inside = {a.x.name for a in lay.axes}
    return product(part for _, part in others) * product(
        part for name, part in k if name not in inside) * lay.elements


def along_rows(t: Contraction, row: Var) -> bool:
    """True where outputs follow each other along rows, closely enough for whole vectors."""
    steps = [coefficient(s.indices[0], row) for s in t.outputs]
    return all(isinstance(step, int) and 1 <= step <= MAX_STRIDE for step in steps)


def _tap_parts(taps: list[int]) -> list[list[int]]:
    """Which parts of the taps a block may have: the outermost in equal parts, the others whole."""
    return [[taps[0] // parts, *taps[1:]] for parts in TAP_SHARES if taps[0] % parts == 0]


def _tap_tiles(taps: list[int], target: Target) -> Iterator[tuple[int, int]]:
    """(rows, vectors) of microkernels whose rows are whole innermost taps, and as many of the next as divide them."""
    for vectors in range(1, MAX_VECTORS + 1):
        rows, most = 1, most_rows(vectors, target)
        for count in reversed(taps):
            here = max(d for d in range(1, count + 1) if count % d == 0 and rows * d <= most)
            rows *= here
            if here < count:
                break
        yield rows, vectors


def _whole_rows(t: Contraction, axes: tuple[Axis, ...], depth: int) -> Box:
    """About `depth` steps of K: the innermost axis whole, parts that divide their variable where half of them do: of
    what is whole, square blocks are known to be inside the operand."""
    found = box(t.k, max(depth, extent(axes[-1].x)), 1)
    return tuple((name, max((d for d in range(part // 2 + 1, part) if extent(v) % d == 0), default=part)
                  if extent(v) % part else part) for v, (name, part) in zip(t.k, found, strict=True))
