"""Sums with reuse: matmul, convolution, their gradients, windows with weights. A register tile over two axes.

The lane variable is the one contiguous in the output and in an operand; where no such variable exists (A @ B^T), lanes
go along the sum. The tile is the pair of factors that fits the registers and
takes the fewest cycles by what its loop does.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from minigrad.codegen.cost.plans import tile_cycles
from minigrad.codegen.kernel.access import (
    Access,
    Reduced,
    accesses,
    extent,
    reductions,
    typical,
    value_accesses,
)
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.codegen.machines.caches import fits as stays
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.plan.ahead import moves
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Ahead, Plan
from minigrad.codegen.policy.lanes import domain_order, fewest_operations, parallel_prefix
from minigrad.codegen.policy.product import CHOICES, Way, cheapest, settled
from minigrad.codegen.policy.reduction import CHAINS, chains, small_loops
from minigrad.expr import Var, variables
from minigrad.target import Target
from minigrad.value import walk

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)
MAX_COPIES = 24
"""Accumulators of a tile, chains included: bounds code size too."""

NEAR_REGISTERS = 2
"""Registers for operands, of those that tiles leave, which are known to be free where what is read is near."""

SMALL_WORK = 1 << 19
SMALL_FACTORS = (1, 2, 4)
"""Multiply-adds up to which a few tiles do for all sizes, edges or not: layers of many sizes share programs. A vector
times a matrix is as fast as memory with them, and faster than with wider ones, which read fewer rows at a time."""

FEW_OTHERS = 2
"""Under `Speed.long_streams` a tile reads so many rows of matrices, unless it has more rows of the other operand than
this, whose products then cost more than their stream."""


Factors = tuple[tuple[Var, int], ...]
"""Copies per variable of the domain, where there are several."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Sums in which an operand is used several times along a variable of the domain. `lane`: the variable across
    lanes, None where none is worth it, `width` of them; `on_domain`: it is one of the domain's, not of the sum's;
    `small`: all sums together are little work; `near`: what is read is in a cache, as in a block."""

    nest: Nest
    sums: list[Reduced]
    loads: list[Access]
    lane: Var | None
    width: int
    on_domain: bool
    small: bool
    near: bool = False

    @property
    def row(self) -> Var | None:
        """The variable of the domain across lanes."""
        return self.lane if self.on_domain else None

    @property
    def over(self) -> list[Var]:
        """The variables of all sums."""
        return list({v.name: v for r in self.sums for v in r.over}.values())

    def block(self, v: Var, factors: Mapping[str, int]) -> int:
        """Elements of a variable that a tile has."""
        return factors.get(v.name, 1) * (self.width if v is self.row else 1)


def reuse(nest: Nest, target: Target) -> Reuse | None:
    """The reuse in a nest of sums; None where there is none."""
    sums = reductions(nest)
    loads = [a for r in sums for a in value_accesses(r.body, r.over)]
    if not any(any(a.step(v) == 0 for a in loads) and any(a.step(v) != 0 for a in loads) for v in nest.domain):
        return None
    over = {v.name: v for r in sums for v in r.over}.values()
    best = fewest_operations([*nest.domain, *over], accesses(nest), nest, target)
    if best is None:
        return Reuse(nest, sums, loads, None, 1, False, is_small(nest))
    return Reuse(nest, sums, loads, best[0], best[1], any(best[0] is v for v in nest.domain), is_small(nest))


def is_small(nest: Nest) -> bool:
    """True where all sums of a nest together are little work, and a few programs do for all sizes."""
    every = dict.fromkeys((*nest.domain, *[v for r in reductions(nest) for v in r.over]))
    return prod([typical(v) if isinstance(v.hi, int) else SMALL_WORK for v in every]) <= SMALL_WORK


def way(nest: Nest, target: Target) -> Way | None:
    """The register tiles of operands in place; None where no operand is reused along a domain variable."""
    found = reuse(nest, target)
    if found is None:
        return None
    choices = [(cycles, (tile, False)) for cycles, tile in best_tiles(found, target)]
    return Way("in place", choices, lambda choice, to: (
        nest, with_tile(found, choice[0], choice[1], to)),
        settle=lambda choice, _: [(0.0, (choice[0], True))])


def plan(nest: Nest, target: Target) -> Plan | None:
    """The cheapest plan with operands in place."""
    one = replace(target, units=1)
    own = way(nest, one)
    found = own and cheapest([own], one)
    return settled(found, target).plan if found else None


def with_tile(found: Reuse, tile: Factors, limited: bool, target: Target) -> Plan:
    """The plan with a register tile; where `limited`, of as many streams as the machine reads well, which decides
    nothing but time."""
    lane, sums = found.lane, found.sums
    factors = {v.name: f for v, f in tile}
    copies = prod(factors.values())
    unroll = () if found.small else unrolled(found.over, lane, copies)
    inner: dict[str, tuple[int, int]] = {}
    if lane is not None and not found.on_domain:
        inner = {lane.name: (found.width, chains(typical(lane), found.width) if copies < 4 else 1)}
    elif copies < 4:
        inner = {v.name: (1, chains(extent(v), 1)) for v in (r.over[-1] for r in sums) if v.name not in unroll}
    order = tile_order(domain_order(found.nest, accesses(found.nest)), tile, found.row, found.near)
    counts = [ceil(typical(v) / found.block(v, factors)) for v in order]
    parallel = len(order) if found.small else parallel_prefix(counts, target)
    line, apart, ahead = 0, "", tuple[Ahead, ...]()
    alike = lane is not None and all(len(r.over) == 1 and r.over[0].hi == lane.hi for r in sums)
    if lane is not None and not found.on_domain and tile and alike and inner[lane.name][1] == 1:
        streams, first, speed = streams_past(found.loads, order), order[0].name, machine(target).speed
        if limited and speed.long_streams and streams and factors.get(first, 1) > 1:
            apart = first
            rows = -(-speed.matrix_streams // len(streams)) if copies // factors[first] <= FEW_OTHERS else copies
            factors[first] = min(factors[first], rows)
        else:
            line = line_ahead(streams, order[0], factors, lane, found.width, target)
            ahead = next_tiles(sums, order[0], factors, lane, line) if line else ()
    across = found.row.name if found.row is not None else ""
    return general_plan("contraction", found.nest, Choice(
        tuple([v.name for v in order]), parallel, factors, "back", across, found.width if across else 1, inner,
        frozenset(unroll), line, apart, ahead))


def next_tiles(reduced: list[Reduced], rows: Var, blocks: dict[str, int], lane: Var, line: int
               ) -> tuple[Ahead, ...]:
    """Prefetches of the next tile's rows, once per line, of what moves with rows and with the lanes."""
    names = [v.buffer for r in reduced for v in walk(r.body)
             if v.op == "load" and moves(v.indices[0], rows) and r.over[-1] in variables(v.indices[0])]
    tile = f"{rows.name}b" if blocks.get(rows.name, 1) > 1 else rows.name
    step = f"{lane.name}k" if line > 1 else f"{lane.name}b"
    return tuple([Ahead(name, step, 1, tile) for name in dict.fromkeys(names)])


def streams_past(loads: list[Access], order: list[Var]) -> list[Access]:
    """The accesses that lie along the sum and whose rows, those of the first variable, are read by one tile each."""
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


def unrolled(over: list[Var], lane: Var | None, copies: int) -> tuple[str, ...]:
    """Small windows are written out as long as the code stays small."""
    kept: list[str] = []
    sizes = {v.name: extent(v) for v in over}
    for n in small_loops([v for v in over if v is not lane]):
        copies *= sizes[n]
        if copies > 64:
            break
        kept.append(n)
    return tuple(kept)


def tile_order(order: list[Var], tile: Factors, row: Var | None, near: bool) -> list[Var]:
    """The tiled variable that is not in lanes goes innermost: the panel that the lanes read stays in cache. Where lanes
    go along the sum it is the shorter one: the operand of the longer one is read once. Where all is near, the variable
    with most copies goes first, whose copies share what the others read."""
    if near:
        copies = dict(tile)
        return sorted(order, key=lambda v: (v in copies, -copies.get(v, 1)))
    tiled = [v for v, _ in tile if v is not row]
    if row is None:
        tiled.sort(key=typical)
    return [v for v in order if v not in tiled[:1]] + tiled[:1]


def best_tiles(found: Reuse, target: Target) -> tuple[tuple[float, Factors], ...]:
    """The most promising register tiles, with the cycles that they take at least; of little work the one that is best
    for sizes of any number of whole tiles, so that they share a program."""
    lane, width, domain = found.lane, found.width, found.nest.domain
    reads = [(frozenset([v for v in domain if a.step(v) != 0]),
              width if lane is not None and a.step(lane) not in (0, 1) else 1,
              (width if lane is not None and a.step(lane) else 1) * a.bits / 8) for a in found.loads]
    steps = prod([typical(v) for v in found.over]) / (1 if found.on_domain else width)
    blocks = {v: typical(v) / (width if v is found.row else 1) for v in domain}
    whole = float if found.small else ceil
    every, sums = prod([whole(n) for n in blocks.values()]), len(found.sums)
    made = list[tuple[int, int, float, Factors]]()
    for a, b, pairs in ((None, None, [(1, 1)]), *tiles(found, target)):
        around = every / (whole(blocks[a]) if a else 1) / (whole(blocks[b]) if b else 1)
        own = [(a in names, b in names, lanes, size) for names, lanes, size in reads]
        for fa, fb in pairs:
            copies, loads, nbytes = fa * fb, 0.0, 0.0
            for in_a, in_b, lanes, size in own:
                here = (fa if in_a else 1) * (fb if in_b else 1)
                loads += here * lanes
                nbytes += here * size
            times = around * (whole(blocks[a] / fa) if a else 1) * (whole(blocks[b] / fb) if b else 1)
            chains = CHAINS if copies < 4 else 1
            cycles = times * tile_cycles(copies * sums, loads, steps, nbytes, target, chains=chains)
            made.append((round(cycles), -copies, cycles, tuple([(v, f) for v, f in ((a, fa), (b, fb)) if v and f > 1])))
    made.sort(key=lambda x: x[:2])
    return tuple([(cycles, tile) for _, _, cycles, tile in made[:1 if found.small else CHOICES]])


def tiles(found: Reuse, target: Target) -> Iterator[tuple[Var, Var | None, list[tuple[int, int]]]]:
    """Register tiles over at most two variables of the domain that fit the registers: the variables, None for the
    second where there is one, and their factors. With lanes along the sum a tile has so many copies that they hide its
    latency."""
    small, row, nest = found.small, found.row, found.nest
    matrix = row is not None and all(extent(v) == 1 or v is row for v in nest.domain)
    every = pairs(min(MAX_COPIES, target.registers - 4) // max(len(found.sums), 1), found.near,
                  SMALL_FACTORS if small or matrix else FACTORS, 2 if found.on_domain else CHAINS)
    domain = [v for v in nest.domain if extent(v) > 1 and not (small and v is found.lane)]
    most = [extent(v) // (found.width if v is row else 1) for v in domain]
    for i, a in enumerate(domain):
        for j, b in enumerate(domain[i + 1:], i + 1):
            yield a, b, [(fa, fb) for fa, fb in every if fa <= most[i] and fb <= most[j]]
    if len(domain) == 1:
        yield domain[0], None, [(fa, fb) for fa, fb in every if fa <= most[0] and fb == 1]


@lru_cache(maxsize=64)
def pairs(budget: int, near: bool, factors: tuple[int, ...], least: int) -> tuple[tuple[int, int], ...]:
    """Factors of two variables of so many copies at least, whose accumulators and operands have registers. Where all is
    near, copies of the larger factor go outermost: operands are those of the smaller factor and one more, for which
    NEAR_REGISTERS beside the budget are there."""
    return tuple([(a, b) for a in factors for b in factors if a * b >= least and a * b + (
        min(a, b) - NEAR_REGISTERS if near else max(a, b)) <= budget])
