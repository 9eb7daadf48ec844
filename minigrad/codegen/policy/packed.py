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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from minigrad.codegen.cost.plans import tile_cycles
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.caches import room
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels import registry
from minigrad.codegen.microkernels.tile import KINDS, Tile
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.microkernel_choice import in_matrix_registers, microkernel_of, shapes
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.words import PAIRS
from minigrad.codegen.policy.blocking import (
    MAX_VECTORS,
    MIN_TILES,
    Blocks,
    Box,
    box,
    is_plain,
    k_block,
    lanes_of_a,
    product,
    size,
    stays_near,
    steps_closely,
)
from minigrad.codegen.policy.narrow import bias_rows, call_cycles, in_words, narrow_kind, step_multiple, whole_steps
from minigrad.codegen.policy.packed_steps import packed_steps
from minigrad.codegen.policy.packed_swapped import SHARES, swapped_windows
from minigrad.codegen.policy.product import CHOICES, Way
from minigrad.codegen.policy.stream import recognise_stream
from minigrad.codegen.policy.window_axes import Axis, axes_of
from minigrad.expr import Var
from minigrad.target import Target

MIN_WORK = 1 << 16
"""Multiply-adds from which programs that copy blocks are worth compiling: those of smaller products serve all sizes."""

LEAST_K = 16
"""Steps of a block of the sum at least, and of a sum whose results go through memory."""

PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many blocks the rows of a product are cut."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A register tile, and into how many parts rows and columns are cut beyond what the second-level cache asks for."""

    rows: int
    vectors: int
    down: int = 1
    across: int = 1


def ways(nest: Nest, target: Target) -> Iterator[Way]:
    """Copies of both operands, B as it is or as a box that has each element once; A in place; words; and operands in
    each other's place. None where a block is none."""
    c = recognise(nest)
    if isinstance(c, str) or refusal(c, nest, target):
        return
    words = narrow_kind(c, target)
    if words:
        yield _way(nest, in_words(c, words), c, words, (), False, target)
        return
    for axes in dict.fromkeys((axes_of(c), ())):
        for in_place in (False, True)[:1 + is_plain(c.a)]:
            yield _way(nest, c, c, "", axes, in_place, target)
    width = min(16, target.lanes(max(c.a.dtype.bits, 32)))
    yield Way("taps as rows", swapped_windows(c, width, target),
              lambda b, _: packed_steps(nest, c, b),
              settle=lambda _, to: swapped_windows(c, width, to) if to.units > 1 else [])


def refusal(c: Contraction, nest: Nest, target: Target) -> str:
    """The reason why blocks of a contraction are not copied; '' where they may be."""
    if target.is_gpu:
        return "not packed: a work-item of a GPU has too little memory of its own"
    if recognise_stream(nest, target) is not None:
        return "not packed: few rows stream the other operand"
    sizes = [size(vs) for vs in (c.m, c.n, c.k)]
    if product(sizes) < MIN_WORK or sizes[2] < LEAST_K:
        return f"not packed: M={sizes[0]} N={sizes[1]} K={sizes[2]} is too small"
    for vs in (c.m, c.n, c.k):
        if any(not isinstance(v.hi, int) for v in vs[1:]):
            return "not packed: an inner extent is known at run time only"
    if not all(c.buffers):
        return "not packed: an operand is read for both sides, or nowhere"
    return ""


def why_unpacked(nest: Nest, target: Target) -> str:
    """The reason why a nest is not packed; empty where it may be."""
    c = recognise(nest)
    return c if isinstance(c, str) else refusal(c, nest, target)


def _way(nest: Nest, c: Contraction, plain: Contraction, words: str, axes: tuple[Axis, ...], in_place: bool,
         target: Target) -> Way:
    """One way of copying, `c` in words or not."""
    bits = max(c.a.dtype.bits, 32)
    width = min(16, target.lanes(bits))
    a_along, a_lanes = lanes_of_a(c, width)
    if in_matrix_registers(words, target) and a_along == "m":
        a_along, a_lanes = "k", min(4, width)  # the form that matrix registers load
    b_lanes = width if steps_closely(c.b, c.n) else min(4, width)
    along, lanes = ("", 1) if in_place else (a_along, a_lanes)
    names = tuple([(a.x.name, a.tap.name) for a in axes if a.tap is not None])

    def made(choice: Choice, target: Target) -> tuple[Nest, Plan]:
        tile = Tile(words or c.a.dtype.short, choice.rows, choice.vectors * width, a_along)
        kernel = "" if in_place or axes else called(tile, target)
        m, n, k = blocks(c, choice, width, axes, in_place, words, target)
        return packed_steps(nest, plain, Blocks(m, n, k, choice.rows, choice.vectors, width, along, lanes, b_lanes,
                                                kernel, names, words=words))

    one = machine(target).plans
    copied = size(c.k) * (size(c.n) + (0 if in_place else size(c.m))) * min(one.copied / width, one.transposed)
    choices = [(cycles + copied, tile) for cycles, tile in best_tiles(c, width, along, words, target)]
    name = f"copies {words}{' box' if axes else ''}{' of B' if in_place else ''}"
    return Way(name, choices, made, settle=spread)


def spread(choice: Choice, target: Target) -> list[tuple[float, Choice]]:
    """The choices for several workers: blocks with fewer columns, or with fewer rows."""
    if target.units == 1:
        return []
    return [(0.0, c) for c in (*[replace(choice, across=n) for n in SHARES], replace(choice, down=choice.down + 1))]


def whole_taps(k: tuple[Var, ...], axes: tuple[Axis, ...], depth: int) -> Box:
    """About `depth` steps of the sum: all taps, and a part of the other variables."""
    taps = {a.tap.name: a.taps for a in axes if a.tap is not None}
    parts = dict(box(tuple([v for v in k if v.name not in taps]), max(1, depth // product(taps.values())), 1))
    return tuple([(v.name, taps.get(v.name) or parts[v.name]) for v in k])


def called(tile: Tile, target: Target) -> str:
    """The microkernel that runs a tile over packed operands: one that was added, or of words; else ''."""
    if tile.kind not in KINDS:
        return ""
    kernel = microkernel_of(tile, target)
    return kernel.name if kernel in registry.added() or (tile.group > 1 and target.language == "llvm") else ""


def blocks(c: Contraction, choice: Choice, width: int, axes: tuple[Axis, ...], in_place: bool, words: str,
           target: Target) -> tuple[Box, Box, Box]:
    """Blocks of M, N and K: of the sum, what the first-level cache holds of a tile's columns; of rows the smallest
    number of parts that leaves room in the second-level cache for the columns of some tiles, or more of them."""
    bits, columns = max(c.a.dtype.bits, 32), choice.vectors * width
    depth = k_block(columns, bits, target)
    while True:
        k = whole_taps(c.k, axes, depth) if axes else box(c.k, depth, step_multiple(words, target))
        if not in_place or depth <= LEAST_K or stays_near(c, k, choice.rows, target):
            break
        depth //= 2
    steps = whole_steps(product(p for _, p in k), words, target)
    below, elements, rows = bias_rows(c, words), room(2, target) * 8 // bits, choice.rows
    share = product(a.stride for a in axes) / product(a.taps for a in axes)
    down = choice.down
    for parts in PARTS:
        height = max(ceil(size(c.m) / parts), rows)
        m = (*((v.name, 1) for v in c.m[:-1]), *box(c.m[-1:], height, rows)) if in_place else \
            box(c.m, height, rows, below)
        mb = ceil((product(p for _, p in m) + below) / rows) * rows
        wide = (elements - mb * steps) // (mb + ceil(steps * share)) - 2 * columns
        if wide >= MIN_TILES * columns or height == rows:
            down -= 1
            if not down:
                break
    return m, box(c.n, max(min(wide, size(c.n)) // choice.across, MIN_TILES * columns), columns), k


@lru_cache(maxsize=64)
def best_tiles(c: Contraction, width: int, along: str, words: str, target: Target) -> list[tuple[float, Choice]]:
    """The most promising register tiles, with the cycles that they take at least. `along`: how A is packed, '' where it
    is read in place."""
    m, n, k = size(c.m), size(c.n), size(c.k)
    bits, below, kind = max(c.a.dtype.bits, 32), bias_rows(c, words), words or c.a.dtype.short
    most = machine(target).declared.side_by_side
    steps, found = whole_steps(k, words, target), []
    for vectors in range(1, MAX_VECTORS + 1):
        depth = k_block(vectors * width, bits, target)
        for rows in [r for r in shapes(kind, along, width, vectors, target) if along or r <= most]:
            cycles = words_cycles(kind, rows, vectors, steps, target) if words else tile_cycles(
                rows * vectors, rows + vectors, min(steps, depth), (rows + vectors * width) * bits // 8, target
            ) * steps / min(steps, depth)
            times = ceil((m + below) / rows) * ceil(n / (vectors * width))
            found.append((round(cycles * times), -rows * vectors, rows, vectors))
    return [(cycles, Choice(rows, vectors)) for cycles, _, rows, vectors in sorted(found)[:CHOICES]]


def words_cycles(kind: str, rows: int, vectors: int, steps: int, target: Target) -> float:
    """Cycles of a tile of words."""
    facts, call = machine(target), call_cycles(kind, target)
    if in_matrix_registers(kind, target):
        return rows * vectors / facts.declared.matrix_side * steps + call
    times = facts.costs.dot_step if kind == PAIRS else 1
    return tile_cycles(rows * vectors, rows + vectors, steps * times, 0, target) + call
