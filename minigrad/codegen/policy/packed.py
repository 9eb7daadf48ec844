"""Packed contractions: both operands copied block by block into a worker's memory, a register tile over the copies.

    for batch, blocks of M, blocks of N parallel:
      for blocks of K:
        pack A [m, k] and B [k, n]      reading through the operands' own index maps, with guards, casts and prologue
        for tiles of N: for tiles of M: for k: rows x vectors accumulators      the microkernel, without edges
      write back with the epilogue

A block is a box: of the variables of M (likewise N and K), outermost first, some at one value, then one in part, then
the rest whole. Block sizes depend on shapes and the target only. (Goto and van de Geijn, 2008) Sums go on from one
block of K to the next, from the first term to the last, so that no choice here changes their bits.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as combinations
from math import ceil

from minigrad.codegen.kernel.access import extent, value_accesses
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.caches import PAGE, fits, room
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels import registry
from minigrad.codegen.microkernels.tile import KINDS, Tile
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.microkernel_choice import in_matrix_registers, microkernel_of, shapes
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.words import PAIRS
from minigrad.codegen.policy.blocking import (
    BLOCK_HEIGHTS,
    MAX_K_BLOCK,
    MAX_VECTORS,
    MIN_TILES,
    Blocks,
    Box,
    box,
    is_plain,
    k_block,
    lanes_of_a,
    one_run,
    pack_cycles,
    product,
    row_bytes,
    size,
    stays_near,
    step_cycles,
    steps_closely,
    stored_bytes,
    transposes_in_registers,
)
from minigrad.codegen.policy.narrow import (
    bias_rows,
    call_cycles,
    dot_cycles,
    in_words,
    narrow_kind,
    step_multiple,
    whole_steps,
)
from minigrad.codegen.policy.packed_steps import packed_steps
from minigrad.codegen.policy.packed_swapped import SHARES, swapped_windows
from minigrad.codegen.policy.stream import recognise_stream
from minigrad.codegen.policy.window_axes import Axis, axes_of, axes_of_a, layout
from minigrad.errors import present
from minigrad.expr import Var
from minigrad.target import Target

MIN_WORK = 1 << 18
"""Multiply-adds below which packing costs more than it saves."""

MIN_M, MIN_N, MIN_K = 16, 16, 16
"""Each operand's element is used M or N times per packing, each output K times per write-back."""

LEAST = 4
"""Rows and columns from which packing a window is better than loading from where its positions are."""

MIN_M_TRANSPOSED = 48
"""As much reuse is needed where B is read across its contiguous variable; as many columns, where they are stored in
runs shorter than a vector: programs of general contractions serve all sizes."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The way of packing: whether A is packed, which operands are read across their contiguous variable for it, into
    which words, and which windows B is packed as a box of, each element once."""

    packs_a: bool
    a_transposed: bool
    b_transposed: bool
    words: str = ""
    axes: tuple[Axis, ...] = ()


@lru_cache(maxsize=256)
def plan(nest: Nest, target: Target, small: bool = False) -> tuple[Nest, Plan] | str:
    """The nest as a product of two operands and its packed plan, or why it is not packed; `small`: of a window over few
    rows or columns."""
    found = recognise(nest)
    if isinstance(found, str):
        return found
    if target.is_gpu:
        return "not packed: a work-item of a GPU has too little memory of its own"
    if recognise_stream(nest, target) is not None:
        return "not packed: few rows stream the other operand"
    if small and not axes_of(found) and not axes_of_a(found):
        return "not packed: no operand is a window"
    sizes = [size(vs) for vs in (found.m, found.n, found.k)]
    least = (LEAST, LEAST, MIN_K) if small else (MIN_M, MIN_N, MIN_K)
    if any([s < enough for s, enough in zip(sizes, least, strict=True)]) or product(sizes) < MIN_WORK:
        return f"not packed: M={sizes[0]} N={sizes[1]} K={sizes[2]} is too small"
    words = narrow_kind(found, target)
    pairs = in_words(found, PAIRS) if words == PAIRS else None
    across = sizes[0] < MIN_M_TRANSPOSED and not steps_closely(found.b, found.n) and not small
    if across and not (pairs is not None and transposes_in_registers(pairs.b, pairs.k) and sizes[1] >= 2 * MIN_N):
        return f"not packed: M={sizes[0]} is too small to read B across its contiguous variable"
    short = extent(found.n[-1]) < target.lanes(max(found.a.dtype.bits, 32))
    if short and sizes[1] < MIN_M_TRANSPOSED and target.language == "llvm" and not (
            small or axes_of(found) or axes_of_a(found)):
        return f"not packed: N={sizes[1]} is too small for runs of {extent(found.n[-1])}"
    for vs in (found.m, found.n, found.k):
        if any(not isinstance(v.hi, int) for v in vs[1:]):
            return "not packed: an inner extent is known at run time only"
    if not all(found.buffers):
        return "not packed: an operand is read for both sides, or nowhere"
    if pairs is None and streams(found, target):
        return "not packed: both operands are read in place as fast"
    found_options = [] if across or (words and pairs is None) else [option(found, target)]
    if words:
        found_options.append(option(pairs or in_words(found, words), target, words))
    return packed_steps(nest, found, min(found_options, key=lambda o: o[0])[1])


def streams(c: Contraction, target: Target) -> bool:
    """True where the unpacked tile reads B in whole vectors, few enough rows at a time, without scalar edges."""
    if not (is_plain(c.a) and is_plain(c.b)) or size(c.k) > MAX_K_BLOCK:
        return False
    last = c.n[-1]
    whole = 2 * target.lanes(max(c.a.dtype.bits, 32))
    if size(c.k) > machine(target).declared.side_by_side and row_bytes(c.b, c.k) % PAGE == 0:
        return False
    return value_accesses(c.b, ())[0].step(last) == 1 and isinstance(last.hi, int) and extent(last) % whole == 0


def why_unpacked(nest: Nest, target: Target) -> str:
    """The reason that `plan` gives; empty for a nest that is packed."""
    made = plan(nest, target)
    return made if isinstance(made, str) else ""


def packed(c: Contraction, target: Target, words: str = "") -> Blocks:
    """Blocks and register tile for a contraction, of `words` (see `in_words`) if that is a kind of them."""
    return option(c, target, words)[1]


def option(c: Contraction, target: Target, words: str = "") -> tuple[float, Blocks]:
    """Likewise, with its cycles."""
    return min(options(c, target, words), key=lambda o: o[0])


def options(c: Contraction, target: Target, words: str = "") -> list[tuple[float, Blocks]]:
    """The options: A in place or packed, B as it is or as a box, or both in each other's place."""
    bits = max(c.a.dtype.bits, 32)
    width = min(16, target.lanes(bits))
    a_along, a_lanes = lanes_of_a(c, width)
    if in_matrix_registers(words, target) and a_along == "m":
        a_along, a_lanes = "k", min(4, width)  # the form that matrix registers load
    b_lanes = width if steps_closely(c.b, c.n) else min(4, width)
    costs, made = machine(target).costs, []
    places = (True, False) if is_plain(c.a) else (False,)
    tiles = {in_place: register_tile(c, width, target, "" if in_place else a_along, words) for in_place in places}
    for in_place, axes in combinations(places, dict.fromkeys(((), () if words else axes_of(c)))):
        rows, vectors, cycles = tiles[in_place]
        depth = k_block(vectors * width, bits, target)
        k = whole_taps(c.k, axes, depth) if axes else box(c.k, depth, step_multiple(words, target))
        while in_place and axes and depth > MIN_K and not stays_near(c, k, rows, target):
            depth //= 2
            k = whole_taps(c.k, axes, depth)
        if in_place and not ((axes or one_run(c.a, c.k, k)) and (a_along == "k" or row_bytes(c.a, c.k) < PAGE)
                             and stays_near(c, k, rows, target)):
            continue
        how = Packing(not in_place, a_lanes < width, b_lanes < width, words, axes)
        m, n, packing = blocks(c, k, rows, vectors * width, target, how)
        along, lanes = ("", 1) if in_place else (a_along, a_lanes)
        tile = Tile(words or c.a.dtype.short, rows, vectors * width, a_along)
        kernel = "" if in_place or axes else called(tile, target)
        names = tuple((a.x.name, a.tap.name) for a in axes if a.tap is not None)
        if words == PAIRS:
            packing += costs.unscale * size(c.batch) * size(c.m) * size(c.n)
        made.append((cycles * (1 if axes else costs.rows_apart) + packing, Blocks(
            m, n, k, rows, vectors, width, along, lanes, b_lanes, kernel, names, words=words)))
    swapped = None if words else swapped_windows(c, width, target)
    return [*made, *([swapped] if swapped else [])]


def whole_taps(k: tuple[Var, ...], axes: tuple[Axis, ...], depth: int) -> Box:
    """About `depth` steps of the sum: all taps, and a part of the other variables."""
    taps = {a.tap.name: a.taps for a in axes if a.tap is not None}
    parts = dict(box(tuple([v for v in k if v.name not in taps]), max(1, depth // product(taps.values())), 1))
    return tuple([(v.name, taps.get(v.name) or parts[v.name]) for v in k])


def box_columns(axes: tuple[Axis, ...], n: Box, columns: int) -> tuple[int, float]:
    """Columns of whole tiles in a block, and elements that are packed for each of its own and each tap."""
    own = product(p for _, p in n)
    if not axes:
        return ceil(own / columns) * columns, 1.0
    inside, lay = {a.x.name for a in axes}, layout(axes, n)
    images = product(p for name, p in n if name not in inside)
    return images * ceil(lay.columns / columns) * columns, images * lay.elements / (own * product(a.taps for a in axes))


def called(tile: Tile, target: Target) -> str:
    """The microkernel that runs a tile over packed operands: one that was added, or of words; else ''."""
    if tile.kind not in KINDS:
        return ""
    kernel = microkernel_of(tile, target)
    return kernel.name if kernel in registry.added() or (tile.group > 1 and target.language == "llvm") else ""


def blocks(c: Contraction, k: Box, rows: int, columns: int, target: Target, how: Packing) -> tuple[Box, Box, float]:
    """Blocks of M and N that fit the second-level cache with what they need of A, B and sums, and what they cost."""
    bits = max(c.a.dtype.bits, 32)
    depth = whole_steps(product(p for _, p in k), how.words, target)
    below = bias_rows(c, how.words)
    elements = room(2, target) * 8 // bits
    cycles = block_cycles(c, rows, columns, target, how)
    share = product(a.stride for a in how.axes) / product(a.taps for a in how.axes)
    best: tuple[float, Box, Box] | None = None
    seen: set[tuple[Box, Box]] = set()
    for height in BLOCK_HEIGHTS:
        if how.packs_a:
            m = box(c.m, max(height, rows), rows, below)
        else:
            m = *((v.name, 1) for v in c.m[:-1]), *box(c.m[-1:], max(height, rows), rows)
        mb = ceil((product(p for _, p in m) + below) / rows) * rows
        wide = (elements - mb * depth) // (mb + ceil(depth * share)) - 2 * columns
        if best is not None and wide < MIN_TILES * columns:
            break
        for parts in SHARES if how.axes else (1,):
            n = box(c.n, max(wide // parts, MIN_TILES * columns), columns)
            if (m, n) in seen:
                continue
            seen.add((m, n))
            cost = cycles(m, n)
            if best is None or cost < best[0]:
                best = cost, m, n
    cost, m, n = present(best, "[plan] expected a block of a contraction")
    return m, n, cost


def register_tile(c: Contraction, width: int, target: Target, along: str, words: str) -> tuple[int, int, float]:
    """Rows and vectors of the microkernel with the fewest cycles over the whole output, edges included; those cycles.

    `along`: how A is packed, '' where it is read in place.
    """
    m, n, k = size(c.m), size(c.n), size(c.k)
    below, found, facts = bias_rows(c, words), (1, 1, float("inf")), machine(target)
    kind, most, batch = words or c.a.dtype.short, facts.declared.side_by_side, size(c.batch)
    step = step_of_kind(kind, target)
    steps, call = whole_steps(k, words, target), facts.costs.tile + call_cycles(words, target)
    for vectors in range(1, MAX_VECTORS + 1):
        depth = min(k, k_block(vectors * width, max(c.a.dtype.bits, 32), target))
        across = ceil(n / (vectors * width))
        for rows in [r for r in shapes(kind, along, width, vectors, target) if along or r <= most]:
            cycles = step(rows, vectors) * steps + call * ceil(k / depth)
            cycles *= ceil((m + below) / rows) * across * batch
            if cycles <= found[2]:
                found = rows, vectors, cycles
    return found


def step_of_kind(kind: str, target: Target) -> Callable[[int, int], float]:
    """Cycles of a tile per step of the sum, by rows and vectors, for any kind of panel."""
    facts = machine(target)
    if in_matrix_registers(kind, target):
        slowed = facts.costs.matrix_slowed if kind == PAIRS else 1
        return lambda rows, vectors: rows * vectors / facts.declared.matrix_side * slowed
    if kind == PAIRS:
        return lambda rows, vectors: dot_cycles(rows, vectors, target)
    rate = facts.declared.fma_per_cycle if kind in ("f32", "f64") else 2
    return lambda rows, vectors: step_cycles(rows, vectors, facts, rate)


def block_cycles(c: Contraction, rows: int, columns: int, target: Target, how: Packing) -> Callable[[Box, Box], float]:
    """Cycles of packing and of edges by blocks of M and N, and of workers that wait for the last block: their number
    changes no result."""
    size_m, size_n, batch, facts = size(c.m), size(c.n), size(c.batch), machine(target)
    all_k, below, workers = size(c.k) * batch, bias_rows(c, how.words), target.units
    near_a, near_b = (fits(n * all_k * stored_bytes(x), 2, target) for n, x in ((size_m, c.a), (size_n, c.b)))
    pack_a = pack_cycles(c.a, near_a, how.a_transposed, facts.costs, c.m) if how.packs_a else 0.0
    pack_b = pack_cycles(c.b, near_b, how.b_transposed, facts.costs, c.k)
    work = size_m * size_n * all_k / (target.lanes(max(c.a.dtype.bits, 32)) * facts.declared.fma_per_cycle)

    def cycles(m: Box, n: Box) -> float:
        mb, nb = product(p for _, p in m), product(p for _, p in n)
        m_blocks, n_blocks = ceil(size_m / mb), ceil(size_n / nb)
        whole, share = box_columns(how.axes, n, columns)
        packing = size_m * all_k * n_blocks * pack_a + size_n * all_k * share * m_blocks * pack_b
        edges = ceil((mb + below) / rows) * rows / mb * whole / nb - 1
        units = m_blocks * n_blocks * batch
        waiting = ceil(units / workers) * workers / units - 1
        return packing + work * edges + (work + packing) * waiting
    return cycles
