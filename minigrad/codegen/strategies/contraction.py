"""Sums with reuse: matmul, convolution, their gradients, windows with weights. A register tile over two axes.

The lane variable is the one contiguous in the output and in an operand; where no such variable exists (A @ B^T), lanes
go along the sum. The tile is the pair of factors with the fewest loads per multiply-add that fits the registers.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from minigrad.codegen.cost.caches import LINE, PAGE
from minigrad.codegen.cost.caches import fits as stays
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Nest
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Ahead, Plan
from minigrad.codegen.strategies.access import (
    Access,
    Reduced,
    accesses,
    extent,
    reductions,
    typical,
    value_accesses,
)
from minigrad.codegen.strategies.lanes import best_lane, domain_order, parallel_prefix, widths
from minigrad.codegen.strategies.reduction import chains, small_loops
from minigrad.expr import Var, variables
from minigrad.target import Target
from minigrad.value import walk

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)
MAX_COPIES = 24
"""Accumulators of a tile, chains included: bounds code size too."""

SMALL_WORK = 1 << 19
SMALL_FACTORS = (1, 2, 4)
"""Multiply-adds up to which a few tiles do for all sizes, edges or not: layers of many sizes share programs. A vector
times a matrix is as fast as memory with them, and faster than with wider ones, which read fewer rows at a time."""

FEW_OTHERS = 2
"""Under `Speed.long_streams` a tile reads so many rows of matrices, unless it has more rows of the other operand than
this, whose products then cost more than their stream."""


@dataclass(frozen=True, slots=True)
class Tile:
    cost: float
    tile: tuple[tuple[str, int], ...]


def plan(nest: Nest, target: Target) -> Plan | None:
    """None where no operand is reused along a domain variable."""
    reduced = reductions(nest)
    loads = [a for r in reduced for a in value_accesses(r.body, r.over)]
    free = [v for v in nest.domain if any(a.step(v) == 0 for a in loads) and any(a.step(v) != 0 for a in loads)]
    if not free:
        return None
    found = accesses(nest)
    over = list({v.name: v for r in reduced for v in r.over}.values())
    candidates = [(v, True) for v in nest.domain] + [(v, False) for v in over]
    best = best_lane(candidates, found, widths(nest, target)) if not target.is_gpu else None
    lane = best[0] if best is not None else None
    width = best[1] if best is not None else 1
    on_domain = lane is not None and any(lane is v for v in nest.domain)
    tile = best_tile(nest, loads, lane, width, on_domain, len(reduced), target)
    small = is_small(nest, loads)
    unroll = () if small else unrolled(over, lane, tile)
    inner: list[tuple[str, int, int]] = []
    copies = 1
    for _, f in tile:
        copies *= f
    if lane is not None and not on_domain:
        inner = [(lane.name, width, chains(typical(lane), width) if copies < 4 else 1)]
    elif copies < 4:
        inner = [(r.over[-1].name, 1, chains(extent(r.over[-1]), 1)) for r in reduced if r.over[-1].name not in unroll]
    order = tile_order(domain_order(nest, found), tile, lane if on_domain else None)
    blocks = dict(tile)
    counts = []
    for v in order:
        block = blocks.get(v.name, 1) * (width if on_domain and v is lane else 1)
        counts.append(ceil(typical(v) / block))
    parallel = len(order) if small else parallel_prefix(counts, target)
    line, apart = 0, ""
    alike = lane is not None and all(len(r.over) == 1 and r.over[0].hi == lane.hi for r in reduced)
    if lane is not None and not on_domain and tile and alike and inner[0][2] == 1:
        streams = streams_past(loads, order)
        speed = machine(target).speed
        if speed.long_streams and streams and blocks.get(order[0].name, 1) > 1:
            apart = order[0].name
            others = copies // blocks[apart]
            rows = -(-speed.matrix_streams // len(streams)) if others <= FEW_OTHERS else blocks[apart]
            tile = tuple((n, min(f, rows) if n == apart else f) for n, f in tile)
        else:
            line = line_ahead(streams, order[0], blocks, lane, width, target)
    across = lane.name if lane is not None else ""
    return general_plan("contraction", nest, Choice(
        tuple([v.name for v in order]), parallel, dict(tile), "back", across if on_domain else "",
        width if on_domain else 1, {name: (lanes, chains) for name, lanes, chains in inner}, frozenset(unroll),
        line, apart, next_tiles(reduced, order[0], blocks, lane, line) if lane is not None and line else ()))


def next_tiles(reduced: list[Reduced], rows: Var, blocks: dict[str, int], lane: Var, line: int
               ) -> tuple[Ahead, ...]:
    """Prefetches of the next tile's rows, once per line, of what moves with rows and with the lanes."""
    names = [v.attr[0] for r in reduced for v in walk(r.body)  # type: ignore[index]
             if v.op == "load" and {rows, r.over[-1]} <= set(variables(v.attr[1][0]))]  # type: ignore[index]
    tile = f"{rows.name}b" if blocks.get(rows.name, 1) > 1 else rows.name
    step = f"{lane.name}k" if line > 1 else f"{lane.name}b"
    return tuple([Ahead(name, step, 1, tile) for name in dict.fromkeys(names)])


def streams_past(loads: list[Access], order: list[Var]) -> list[Access]:
    """What lies along the sum and whose rows, those of the first variable, are read by one tile each."""
    return [a for a in dict.fromkeys(loads) if a.step(a.over[-1]) == 1 and a.step(order[0]) == 2
            and all(a.step(v) == 0 for v in order[1:])]


def line_ahead(streams: list[Access], rows: Var, blocks: dict[str, int], lane: Var, width: int, target: Target) -> int:
    """Vectors of a line of what streams past, while the same line of the next tile is prefetched: operands whose rows
    make tiles, in a narrow type or in short rows; 0 where nothing is.

    Processors foresee lines of a row up to the end of a page, and compute the less far ahead the more instructions a
    line takes: 1.6 times as fast for rows of 1 KB of float16 and for int8, 1.1 for those of a page. float32 is a load
    and a multiply-add: 1.05 for rows of a page or less unless the matrix is in a cache, nothing for longer ones.
    """
    if len({a.bits for a in streams}) != 1 or extent(rows) <= blocks.get(rows.name, 1):
        return 0
    bits = streams[0].bits
    row_bytes = typical(lane) * bits // 8
    if bits >= 32 and (row_bytes > PAGE or stays(typical(rows) * row_bytes * len(streams), 2, target)):
        return 0
    return max(LINE * 8 // (bits * width), 1)


def is_small(nest: Nest, loads: list[Access]) -> bool:
    """Whether all sums together are little work."""
    terms = 1
    for v in dict.fromkeys((*nest.domain, *(v for a in loads for v in a.over))):
        terms *= typical(v) if isinstance(v.hi, int) else SMALL_WORK
    return terms <= SMALL_WORK


def unrolled(over: list[Var], lane: Var | None, tile: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Small windows are written out as long as the code stays small."""
    names = [n for n in small_loops([v for v in over if v is not lane])]
    copies = 1
    for _, f in tile:
        copies *= f
    kept: list[str] = []
    sizes = {v.name: extent(v) for v in over}
    for n in names:
        copies *= sizes[n]
        if copies > 64:
            break
        kept.append(n)
    return tuple(kept)


def tile_order(order: list[Var], tile: tuple[tuple[str, int], ...], lane: Var | None) -> list[Var]:
    """The tiled variable that is not in lanes goes innermost: the panel that the lanes read stays in cache. Where lanes
    go along the sum it is the shorter one: the operand of the longer one is read once."""
    names = [n for n, _ in tile if lane is None or n != lane.name]
    if lane is None:
        sizes = {v.name: typical(v) for v in order}
        names.sort(key=lambda n: sizes[n])
    inner = [v for v in order if v.name in names[:1]]
    rest = [v for v in order if v not in inner]
    return rest + inner


def best_tile(nest: Nest, loads: list[Access], lane: Var | None, width: int, on_domain: bool, accumulators: int,
              target: Target) -> tuple[tuple[str, int], ...]:
    """The register tile over at most two domain variables with the fewest loads per multiply-add."""
    budget = min(MAX_COPIES, target.registers - 4) // max(accumulators, 1)
    small = is_small(nest, loads)
    matrix = lane is not None and on_domain and all(extent(v) == 1 or v is lane for v in nest.domain)
    factors = SMALL_FACTORS if small or matrix else FACTORS
    best = Tile(tile_cost(loads, (), lane, width, on_domain, small), ())
    domain = [v for v in nest.domain if extent(v) > 1 and not (small and v is lane)]
    for i, a in enumerate(domain):
        for fa in factors:
            for b in domain[i + 1:] or [None]:  # type: ignore[list-item]
                for fb in factors if b is not None else (1,):
                    tile = tuple((v, f) for v, f in ((a, fa), (b, fb)) if v is not None and f > 1)
                    if not tile or not fits(tile, lane if on_domain else None, width, budget):
                        continue
                    cost = tile_cost(loads, tile, lane, width, on_domain, small)
                    if cost < best.cost * 0.97:
                        best = Tile(cost, tuple((v.name, f) for v, f in tile))
    return best.tile


def fits(tile: tuple[tuple[Var, int], ...], lane: Var | None, width: int, budget: int) -> bool:
    copies = 1
    for v, f in tile:
        copies *= f
        if f * (width if v is lane else 1) > extent(v):
            return False
    return copies + max(f for _, f in tile) <= budget


def tile_cost(loads: list[Access], tile: tuple[tuple[Var, int], ...], lane: Var | None, width: int,
              on_domain: bool, small: bool) -> float:
    """Instructions per multiply-add of one element: loads that each copy needs anew, plus the edges left over unless
    they are `small`."""
    copies = 1
    waste = 1.0
    for v, f in tile:
        copies *= f
        block = f * (width if on_domain and v is lane else 1)
        n = typical(v)
        tail = n % block if isinstance(v.hi, int) else block / 2
        waste *= 1.0 + (tail / n) * (width if on_domain and v is lane else f) * 0.5
    total = float(copies)
    for a in loads:
        needed = 1
        for v, f in tile:
            if a.step(v) != 0:
                needed *= f
        step = a.step(lane) if lane is not None else 0
        total += needed * (width if step is None or step == 2 else 1)
    return total / copies * (1.0 if small else waste)
