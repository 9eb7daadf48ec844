"""Packed plans for windows: each element of B is packed once, and taps of the sum shift what is read (windows.py)."""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from minigrad.codegen.cost.caches import PAGE, fits, room
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.microkernels.generate import most_rows
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import (
    BLOCK_HEIGHTS,
    MAX_STRIDE,
    MAX_VECTORS,
    box,
    is_plain,
    lanes_of_a,
    pack_cycles,
    product,
    row_bytes,
    size,
    stays_near,
    step_cycles,
    steps_back,
    steps_closely,
)
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.codegen.strategies.windows import Axis, Layout, axes_of, axes_of_a, layout, turned, within
from minigrad.expr import Var
from minigrad.target import Target

SHARES, TAP_SHARES = (1, 2, 4), (1, 2, 4, 8, 16)
"""Into how many blocks the columns of a turned window are cut, for as many workers, and its outermost taps."""

USUAL_VECTORS = 2
"""Vectors of a tile for which a block of a turned window's sum stays in the first-level cache, whatever the tile: how
many workers there are may decide that, and not what is added up to what. Blocks twice as long gained nothing."""

COLUMNS = tuple(base << shift for shift in range(9) for base in (32, 48))
"""Limits of columns in a block that are tried."""


def windowed(c: Contraction, width: int, target: Target) -> tuple[float, PackedPlan] | None:
    """The best such plan and its cycles, None where B has no windows or nothing fits the caches."""
    axes = axes_of(c)
    taps = {a.tap.name: len(a.taps) for a in axes if a.tap is not None}
    if not taps:
        return None
    a_along, a_lanes = lanes_of_a(c, width)
    b_lanes = width if steps_closely(c.b, c.n) else min(4, width)
    names = tuple((a.x.name, a.tap.name) for a in axes if a.tap is not None)
    best: tuple[float, PackedPlan] | None = None
    for in_place in (True, False) if is_plain(c.a) and row_bytes(c.a, c.k) < PAGE else (False,):
        along, lanes = ("", 1) if in_place else (a_along, a_lanes)
        for cost, m, n, k, rows, vectors in _options(c, axes, taps, width, target, in_place):
            if (best is None or cost < best[0]) and not (in_place and not stays_near(c, k, rows, target)):
                best = cost, PackedPlan("packed", tuple(v.name for v in c.batch), m, n, k, rows, vectors, width,
                                        along, lanes, b_lanes, windows=names)
    return best


def _options(c: Contraction, axes: tuple[Axis, ...], taps: dict[str, int], width: int, target: Target, in_place: bool
             ) -> Iterator[tuple[float, Box, Box, Box, int, int]]:
    """(cycles, M, N, K, rows, vectors) of blocks that fit the second-level cache."""
    bits, costs = max(c.a.dtype.bits, 32), machine(target).costs
    inside = {a.x.name for a in axes}
    for n in dict.fromkeys(box(c.n, limit, 1) for limit in COLUMNS):
        lay = layout(axes, n)
        images = product(part for name, part in n if name not in inside)
        if any(part > 1 for name, part in n if name not in inside) and any(
                part < extent(a.x) for a, part in zip(axes, lay.parts, strict=True)):
            continue
        blocks = product(ceil(extent(v) / part) for v, (_, part) in zip(c.n, n, strict=True)) * size(c.batch)
        rows, vectors, cycles = _tile(c, lay.columns, width, target, in_place)
        columns = ceil(lay.columns / (vectors * width)) * vectors * width
        k = _sum_block(c, taps, lay, vectors * width, target)
        depth = product(part for _, part in k)
        boxes = images * depth // product(taps.values()) * lay.plane * lay.planes
        for height in BLOCK_HEIGHTS:
            m = (box(c.m, max(height, rows), rows) if not in_place else
                 (*((v.name, 1) for v in c.m[:-1]), *box(c.m[-1:], max(height, rows), rows)))
            mb = product(part for _, part in m)
            if boxes + mb * (columns * images + depth) > room(2, target) * 8 // bits // 2:
                break  # outputs pass through it as well
            units = blocks * ceil(size(c.m) / mb)
            tiles = ceil(columns / (vectors * width)) * ceil(size(c.k) / depth)
            work = images * ceil(mb / rows) * (cycles * size(c.k) + tiles * costs.tile)
            work += _packing(c, images * lay.plane * lay.planes * (size(c.k) // product(taps.values())), mb,
                             in_place, width, target)
            yield work * ceil(units / target.units) * target.units, m, n, k, rows, vectors


def _tile(c: Contraction, columns: int, width: int, target: Target, in_place: bool) -> tuple[int, int, float]:
    """Rows and vectors of the microkernel, and its cycles per step of K for `rows` rows and all columns."""
    found, facts = (1, 1, float("inf"), float("inf")), machine(target)
    for vectors in range(1, MAX_VECTORS + 1):
        tiles = ceil(columns / (vectors * width))
        most = most_rows(vectors, target)
        for rows in range(1, min(most, facts.declared.side_by_side if in_place else most) + 1):
            cycles = tiles * step_cycles(rows, vectors, facts, facts.declared.fma_per_cycle)
            total = ceil(size(c.m) / rows) * cycles
            if total <= found[3]:
                found = rows, vectors, cycles, total
    return found[:3]


def _sum_block(c: Contraction, taps: dict[str, int], lay: Layout, columns: int, target: Target) -> Box:
    """All taps, and as many steps of the other variables as a tile's columns stay in the first-level cache."""
    bits = max(c.a.dtype.bits, 32)
    rows = product(len(a.taps) for a in lay.axes[:-1])
    last = lay.axes[-1]
    reads = rows * last.stride * (columns + last.reach + target.lanes(bits))
    most = max(1, room(1, target) * 8 * 2 // 3 // (reads * bits))
    parts = dict(box(tuple(v for v in c.k if v.name not in taps), most, 1))
    return tuple((v.name, taps.get(v.name) or parts[v.name]) for v in c.k)


def _packing(c: Contraction, elements: int, rows: int, in_place: bool, width: int, target: Target) -> float:
    """Cycles to pack both operands for a block of the output, over all of K."""
    costs = machine(target).costs
    near_a, near_b = (fits(size(vs) * size(c.k) * c.a.dtype.itemsize, 2, target) for vs in (c.m, c.n))
    cycles = elements * pack_cycles(c.b, near_b, not steps_closely(c.b, c.n), costs)
    if in_place:
        cycles += 0.0 if near_a else rows * size(c.k) * costs.read_far
    else:
        _, lanes = lanes_of_a(c, width)
        cycles += rows * size(c.k) * pack_cycles(c.a, near_a, lanes < width, costs)
    return cycles


def windowed_turned(c: Contraction, width: int, target: Target) -> tuple[float, PackedPlan] | None:
    """The best plan where the operand with windows has its taps in the output: lanes go along the other operand, rows
    of a tile are taps, and each of them reads a shift of the same box. A weight gradient; or a convolution, whose image
    has so few or such odd columns that lanes along channels cover it better."""
    t = turned(c)
    axes = axes_of_a(t)
    taps = [a.tap for a in axes if a.tap is not None]
    others, suffix = t.m[:len(t.m) - len(taps)], t.m[len(t.m) - len(taps):]
    if not taps or set(suffix) != set(taps) or not t.n:
        return None
    bits = max(t.a.dtype.bits, 32)
    a_lanes = width if steps_closely(t.a, t.k) or steps_back(t.a, t.k[-1]) else min(4, width)
    b_lanes = width if steps_closely(t.b, t.n) else min(4, width)
    names = tuple((a.x.name, a.tap.name) for a in axes if a.tap is not None)
    k = _whole_rows(t, axes, room(1, target) * 8 * 2 // 3 // (USUAL_VECTORS * width * bits))
    best: tuple[float, PackedPlan] | None = None
    for parts in _tap_parts([extent(v) for v in suffix]):
        inside = tuple((v.name, part) for v, part in zip(suffix, parts, strict=True))
        lay = layout(within(axes, inside), k)
        for rows, vectors in _tap_tiles(parts, target):
            for m, n in _turned_blocks(t, others, inside, lay, k, vectors * width, room(2, target) * 8 // bits):
                cost = _turned_cycles(t, m, n, k, lay, rows, vectors, b_lanes < width, width, target)
                if best is None or cost < best[0]:
                    best = cost, PackedPlan("packed", tuple(v.name for v in t.batch), m, n, k, rows, vectors, width,
                                            "k", a_lanes, b_lanes, windows=names, turned=True)
    return best


def _turned_blocks(t: Contraction, others: tuple[Var, ...], taps: Box, lay: Layout, k: Box, columns: int, memory: int
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
        part for name, part in k if name not in inside) * lay.plane * lay.planes


def _turned_cycles(t: Contraction, m: Box, n: Box, k: Box, lay: Layout, rows: int, vectors: int, across: bool,
                   width: int, target: Target) -> float:
    """Cycles of such a plan."""
    facts, costs = machine(target), machine(target).costs
    mb, nb, depth = (product(part for _, part in b) for b in (m, n, k))
    m_blocks, n_blocks = ceil(size(t.m) / mb), ceil(size(t.n) / nb)
    units, blocks = m_blocks * n_blocks * size(t.batch), ceil(size(t.k) / depth)
    work = ceil(size(t.n) / (vectors * width)) / n_blocks * mb / rows * (
        step_cycles(rows, vectors, facts, facts.declared.fma_per_cycle) * size(t.k) + costs.tile * blocks)
    taps = {a.tap.name for a in lay.axes if a.tap is not None}
    boxes = _boxes(tuple((name, part) for name, part in m if name not in taps), lay, k)
    work += boxes * blocks * pack_cycles(t.a, True, False, costs)
    work += nb * size(t.k) * pack_cycles(t.b, True, across, costs)
    work += mb * nb * (costs.squares if along_rows(t, t.m[-1]) else costs.scatter)
    return work * ceil(units / target.units) * target.units


def along_rows(t: Contraction, row: Var) -> bool:
    """Whether outputs follow each other along rows, closely enough for whole vectors."""
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
    what is whole, squares are known to be inside the operand."""
    found = box(t.k, max(depth, extent(axes[-1].x)), 1)
    return tuple((name, max((d for d in range(part // 2 + 1, part) if extent(v) % d == 0), default=part)
                  if extent(v) % part else part) for v, (name, part) in zip(t.k, found, strict=True))
