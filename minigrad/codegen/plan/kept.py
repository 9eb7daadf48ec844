"""Sums that are kept in memory between iterations of outer loops of theirs, in runs: long ones keep their digits
(docs/decisions/0042-long-sums.md).

    for b in 0..1000: for tiles:                              each block adds 100 terms
      acc = 0 if b % 2 == 0 else kept_0                       2 blocks one after another
      for k in 0..100: acc = acc + ...
      if b % 2 == 1:
        if b % 512 >= 2: acc = kept_1 + acc                   256 such runs
        if b % 512 == 511 or b == 999:
          if b >= 512: acc = kept + acc
          if b == 999: ... else: kept = acc
        else: kept_1 = acc
      else: kept_0 = acc
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.position import Position
from minigrad.codegen.transforms.bounded_sums import TERMS
from minigrad.expr import Index, emax, emin, product


@dataclass(frozen=True, slots=True)
class Level:
    """Runs of iterations of the outer loops of sums. What one adds up to is kept in memory until it ends. `first`: what
    holds before there is anything in that memory, one condition if the accumulators do not go on with it; `last`: in
    the last iteration of a run; `suffix`: of the memory's name."""

    first: tuple[Index, ...]
    last: tuple[Index, ...]
    suffix: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Sums that are kept in memory between iterations of outer loops of theirs, in runs and runs of runs. `resumed`:
    the accumulators go on with the first of these; all others are added to them. `place`: of a tile; `lane`, `lanes`:
    within a vector."""

    levels: tuple[Level, ...]
    resumed: bool
    place: Index
    lane: Index
    lanes: int


def runs(ctx: Context, outside: Sequence[str], here: Position) -> tuple[tuple[Level, ...], bool]:
    """The runs of iterations of outer loops of a sum, and whether the accumulators go on with the first of them: so
    many that at most TERMS terms, or runs, are added one after another (docs/decisions/0042-long-sums.md). Loops whose
    ends are not known are one run."""
    loops = ctx.loops
    counts = [loops.count(x, here) for x in outside]
    ends = [here.places[x] + 1 - count for x, count in zip(outside, counts, strict=True)]
    whole = Level(tuple([-here.places[x] for x in outside]), tuple(ends), "")
    if not outside:
        return (whole,), True
    inside = [loops.extent(x) for x in loops.order[loops.order.index(ctx.middle[-1]) + 1:]
              if loops.space[x] and x not in loops.parts and loops.kind[x] != "vector"]
    total, terms = product(counts), product(inside)
    if not isinstance(total, int) or not isinstance(terms, int):
        return (whole,), True
    number: Index = 0
    for x, count in zip(outside, counts, strict=True):
        number = number * count + here.places[x]
    around = max(TERMS // max(terms if terms <= TERMS else ceil_div(terms, TERMS), 1), 1)
    length, found, resumed = 1, list[Level](), around > 1
    while around < total:
        if around > 1:
            last = emax(number % around + 1 - around, reduce(emin, ends))
            found.append(Level((length - 1 - number % around,), (last,), f"_{len(found)}"))
        length, around = around, around * TERMS
    if found or not resumed:
        whole = replace(whole, first=(length - 1 - number,))
    return (*found, whole), resumed
