"""The vector axis: which index variables may go across lanes, and how wide."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from minigrad.codegen.kernel.access import Access, extent, steps_near, typical
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.machine import machine
from minigrad.dtype import DType
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import walk

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


def operations(v: Var, width: int) -> float:
    """Vector and scalar steps to cover `v` with vectors of `width`, relative to its extent."""
    n = typical(v)
    if not n:
        return 1.0
    return (n // width + n % width) / n


def lanes_along(candidates: Sequence[Var], found: Sequence[Access], nest: Nest, target: Target
                ) -> Iterator[tuple[Var, int]]:
    """(variable, width) for the variables along which elements of an access are read or stored as vectors, in the two
    largest widths."""
    options = [] if target.is_gpu else widths(nest, target)
    for v in candidates:
        if any([a.step(v) == 1 or a.kind == "load" and a.step(v) and steps_near(a.offset, v) for a in found]):
            yield from [(v, width) for width in options if width <= extent(v)][:2]


def fewest_operations(candidates: Sequence[Var], found: Sequence[Access], nest: Nest, target: Target
                      ) -> tuple[Var, int] | None:
    """(variable, width) of the lanes with the fewest loads and stores; None where scalar code has no more of them. A
    variable of a sum has the accesses inside its own loop in lanes."""
    one, options = machine(target).plans, [] if target.is_gpu else widths(nest, target)
    by_loops = {over: float(prod([max(typical(o), 1) for o in over])) for over in {a.over for a in found}}
    best, fewest = None, sum([by_loops[a.over] for a in found])
    for v in candidates:
        size, once, vectors, lanes = extent(v), 0.0, 0.0, 0.0
        for a in found:
            step, count = a.step(v), by_loops[a.over]
            if v not in nest.domain and v not in a.over:
                once += count
            elif step == 1 or step == 0 and a.kind == "load":
                vectors += count
            else:
                lanes += count
        for width in [w for w in options if w <= size]:
            cost = once + vectors * operations(v, width) + lanes * one.gathers / one.loads
            if cost < fewest:
                best, fewest = (v, width), cost
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
