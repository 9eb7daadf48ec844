"""Packed contractions in blocks: costs of the microkernel and of packing, sizes of blocks."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from minigrad.codegen.kernel.access import extent, steps_near, typical, value_accesses
from minigrad.codegen.kernel.words import with_words
from minigrad.codegen.machines.caches import LINE, PAGE, fits, room
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import Value, value_atoms

Box = tuple[tuple[str, int], ...]

MAX_VECTORS, MAX_K_BLOCK = 4, 256
SPARE_REGISTERS = 2
"""Of a tile, besides accumulators and what is loaded: with fewer, LLVM keeps some on the stack."""

MIN_TILES = 4
"""Columns of a block, in tiles: packing shorter runs of B waits for memory."""

BLOCK_HEIGHTS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The choice for a packed contraction. Names refer to the nest's index variables, each with its part of a
    block, outermost first.

    rows, vectors, width: the register tile holds rows x vectors accumulators of `width` lanes
    a_along: 'k' where A is packed as [m, k], 'm' where it is packed as [k, m], '' where it is read in place
    a_lanes, b_lanes: lanes while packing, fewer than `width` where an operand is read across its contiguous variable
    microkernel: the name of what runs a tile; '' where its loops are written out
    windows: (variable of N, its tap in K) of B where it is packed once per element; a tap is a shift
    swapped: A and B have changed places, as have M and N; windows are then (variable of K, its tap in M) of A
    words: '' or a kind of word that is packed; k counts words
    """

    m: Box
    n: Box
    k: Box
    rows: int
    vectors: int
    width: int
    a_along: str
    a_lanes: int
    b_lanes: int
    microkernel: str = ""
    windows: tuple[tuple[str, str], ...] = ()
    swapped: bool = False
    words: str = ""


def product(values: Iterable[int]) -> int:
    total = 1
    for v in values:
        total *= v
    return total


@lru_cache(maxsize=1 << 10)
def size(vs: tuple[Var, ...]) -> int:
    """Iterations over some variables together, to plan for."""
    return product([typical(v) for v in vs])


def k_block(columns: int, bits: int, target: Target) -> int:
    """Steps of the sum per block: the columns of a tile stay in the first-level cache while rows pass by."""
    return min(MAX_K_BLOCK, room(1, target) * 8 * 2 // 3 // (columns * bits))


@lru_cache(maxsize=1 << 10)
def transposes_in_registers(value: Value, rows: tuple[Var, ...]) -> bool:
    """True where loads are contiguous along the innermost of `rows`, so that a copy is transposed in registers."""
    return bool(rows) and all(a.step(rows[-1]) == 1 for a in value_accesses(with_words(value), ()))


def row_bytes(value: Value, k: tuple[Var, ...]) -> int:
    """The bytes that a load steps with the innermost variable of the sum; 0 where there is neither."""
    accesses = value_accesses(value, ())
    if not k or not accesses:
        return 0
    step = coefficient(accesses[0].offset, k[-1])
    return abs(step) * value.dtype.itemsize if isinstance(step, int) else PAGE


def is_plain(value: Value) -> bool:
    """True where an operand is in memory as it is: one load, at an index that no other load decides."""
    return value.op == "load" and not value_atoms(value.indices[0])


def stays_near(c: Contraction, k: Box, rows: int, target: Target) -> bool:
    """True where that which a tile of `rows` reads of A in place stays in the first-level cache while tiles of B pass
    by. Of rows and steps of the sum that lie apart, as in one tap of weights, it holds whole lines."""
    offset, itemsize = value_accesses(c.a, ())[0].offset, c.a.dtype.itemsize
    inside = [(v, dict(k)[v.name]) for v in c.k] + [(v, min(rows, extent(v))) for v in c.m[-1:]]
    steps = sorted((abs(step) * itemsize, part) for v, part in inside
                   if isinstance(step := coefficient(offset, v), int) and step and part > 1)
    span, lines = itemsize, 1
    for step, part in steps:
        if step < LINE:
            span += step * (part - 1)
            lines = ceil(span / LINE)
        else:
            lines *= part
    return fits(2 * lines * LINE, 1, target)


def steps_closely(value: Value, along: tuple[Var, ...]) -> bool:
    """True where the value's loads read whole vectors along the innermost variable."""
    return all([bool(along) and steps_near(a.offset, along[-1]) for a in value_accesses(value, ())])


def steps_back(value: Value, along: Var) -> bool:
    """True where the value's loads read whole vectors along a variable, from their ends."""
    return all(a.step(along) is not None and coefficient(a.offset, along) == -1 for a in value_accesses(value, ()))


def lanes_of_a(c: Contraction, width: int) -> tuple[str, int]:
    """Which variables of A are in lanes while packing it, and how many."""
    if steps_closely(c.a, c.k):
        return "k", width
    if steps_closely(c.a, c.m):
        return "m", width
    return "m", min(4, width)


def box(vs: tuple[Var, ...], limit: int, multiple: int, beside: int = 0) -> Box:
    """Whole inner variables while they fit `limit`, then equal parts of the next, if possible of a multiple, together
    with what is `beside` each."""
    whole, parts, done = 1, [], False
    for v in reversed(vs):
        n = extent(v)
        if done:
            parts.append((v.name, 1))
        elif isinstance(v.hi, int) and whole * n <= limit:
            parts.append((v.name, n))
            whole *= n
        else:
            parts.append((v.name, part(typical(v), max(limit // whole, 1), whole, multiple, beside)))
            done = True
    return tuple(reversed(parts))


@lru_cache(maxsize=4096)
def part(n: int, most: int, whole: int, multiple: int, beside: int = 0) -> int:
    """The part of an extent `n`, at most `most`, that wastes least when blocks, and what is beside each, are rounded up
    to a multiple."""
    few = ceil(n / most)
    options = [min(ceil(n / few), most), most]
    if whole == 1 and most >= multiple:
        options += [min(ceil(n / few / multiple) * multiple, most // multiple * multiple)]
    options += list(range(max(1, most // 2), most))
    best, least = most, float("inf")
    for p in options:
        if 1 + 0.02 * ceil(n / p) / few >= least:
            continue  # even if it wasted nothing
        blocks, rest = divmod(n, p)
        rounded = blocks * -(-(p * whole + beside) // multiple)
        if rest:
            rounded += -(-(rest * whole + beside) // multiple)
        cost = round(rounded * multiple / (n * whole) + 0.02 * ceil(n / p) / few, 3)
        if cost < least:
            best, least = p, cost
    return best
