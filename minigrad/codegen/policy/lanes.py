"""The vector axis: which index variable goes across lanes, by counting memory operations."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from minigrad.codegen.kernel.access import Access, extent, typical
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.machine import machine
from minigrad.dtype import DType
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import walk

GATHER = 1.5
"""Cost of one lane of a gather or scatter, against 1 for a contiguous vector access or a broadcast."""

MIN_PARALLEL = 32
"""Parallel iterations that are worth having before inner tile loops become serial."""


def widths(nest: Nest, target: Target) -> list[int]:
    """Vector widths to consider, widest first: lanes of the widest type that the nest computes with."""
    bits = max((dtype.bits for dtype in compute_types(nest)), default=32)
    widest = min(16, target.lanes(max(bits, 32)))
    return [w for w in (16, 8, 4) if w <= widest]


def compute_types(nest: Nest) -> set[DType]:
    found: set[DType] = set()
    for s in nest.body:
        if isinstance(s, Nest):
            found |= compute_types(s)
        else:
            found |= {v.dtype.compute for v in walk(s.value) if v is s.value or v.op not in ("const", "index")}
    return found


def with_widest(target: Target, nests: Sequence[Nest]) -> Target:
    """The target, with the widest type of these nests where no vector may be wider than a register: in OpenCL for
    processors, as drivers that take the processor for an older one pass such vectors by two conventions."""
    if target.language != "opencl" or target.is_gpu:
        return target
    types = set[DType]().union(*map(compute_types, nests))
    return replace(target, widest=max([t.bits for t in types], default=1))


def operations(v: Var, width: int, edge: str = "rest") -> float:
    """Vector and scalar steps to cover `v` with vectors of `width`, relative to its extent."""
    n = typical(v)
    if not n:
        return 1.0
    return (n // width + (n % width if edge == "rest" else n % width > 0)) / n


def memory_cost(found: Sequence[Access], v: Var, width: int, per_output: bool, near: int = 1, edge: str = "rest",
                gather: float = GATHER) -> float:
    """Memory operations per element with `v` across lanes. Loads up to `near` elements from each other are vectors;
    `edge` is that of the last vector, `gather` the cost of a lane that is further away.

    `per_output`: v is a variable of the domain, so everything is in lanes; else only accesses inside v's own loop are.
    """
    share = operations(v, width, edge)
    total = 0.0
    for a, count in zip(found, _counts(found), strict=True):
        if not per_output and v not in a.over:
            total += count
            continue
        here = share
        step = a.step(v)
        far = coefficient(a.offset, v) if step == 2 else None
        if isinstance(far, int) and a.kind == "load" and 1 < far <= near:
            here = share * far
        elif step is None or step == 2 or (a.kind == "store" and step != 1):
            here = gather
        total += count * here
    return total


def _counts(found: Sequence[Access]) -> list[float]:
    """The number of times that each access happens per element."""
    by_loops = {over: float(prod([max(typical(o), 1) for o in over])) for over in {a.over for a in found}}
    return [by_loops[a.over] for a in found]


def best_lane(candidates: list[tuple[Var, bool]], found: Sequence[Access], options: list[int], near: int = 1,
              edge: str = "rest", gather: float = GATHER) -> tuple[Var, int, float] | None:
    """(variable, width, cost) of the cheapest lane assignment, None where scalar code is as good. See `memory_cost`."""
    scalar = sum(_counts(found))
    best: tuple[Var, int, float] | None = None
    for v, per_output in candidates:
        for width in options:
            if extent(v) < width:
                continue
            cost = memory_cost(found, v, width, per_output, near, edge, gather)
            if cost < scalar * 0.9 and (best is None or cost < best[2] * 0.999):
                best = (v, width, cost)
    return best


def domain_order(nest: Nest, found: Sequence[Access]) -> list[Var]:
    """Domain variables with the one that stores step through fastest last; independent of everything first."""
    stores = [a for a in found if a.kind == "store"]

    def step(v: Var) -> float:
        for a in stores:
            c = coefficient(a.offset, v)
            if isinstance(c, int) and c:
                return abs(c)
            if c is None or not isinstance(c, int):
                return float(1 << 40)
        return float(1 << 41)

    return sorted(nest.domain, key=lambda v: -step(v))


def parallel_prefix(counts: list[int], target: Target) -> int:
    """The number of leading tile loops that form the parallel loop: the fewest that give enough iterations.

    All of them where a work-item may not run long.
    """
    if target.max_iterations:
        return len(counts)
    enough = target.units * machine(target).declared.items_per_unit if target.is_gpu else MIN_PARALLEL
    total, k = 1, 0
    while k < len(counts) and total < enough:
        total *= counts[k]
        k += 1
    return k
