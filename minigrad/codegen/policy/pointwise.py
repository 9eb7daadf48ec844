"""Elementwise kernels: one domain variable across lanes, a few vectors per iteration, the rest parallel.

Where all accesses follow one variable, that is the one. Where they do not, as in a transpose, the estimate chooses
which one is across lanes, how many, and whether another one, along which an access follows its neighbours, is the
loop around them: then lines are read and written whole.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

from minigrad.codegen.kernel.access import Access, accesses, extent
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import domain_order, operations, parallel_prefix, widths
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import walk

VECTORS = 4
"""Vectors per iteration of a light kernel: enough to hide the loop's own work."""

HEAVY = 40
"""A body with this many operations needs no second vector to be busy."""


def plans(nest: Nest, target: Target) -> Iterator[Plan]:
    """One where all accesses follow a variable; else several."""
    found = accesses(nest)
    order = domain_order(nest, found)
    options = [] if target.is_gpu else widths(nest, target)
    wide = {v: [w for w in options if w <= extent(v)] for v in order}
    for v in order:
        if wide[v] and all([a.step(v) == 1 or (a.kind == "load" and a.step(v) == 0) for a in found]):
            width = min(wide[v], key=partial(operations, v))
            last, count = [*[o for o in order if o is not v], v], vectors(nest, v, width)
            yield of_order(nest, last, v, width, target, count, "rest")
            return
    yield of_order(nest, order, None, 1, target)
    near = [v for v in order if any([follows(a, v) for a in found])]
    for v in [v for v in near if wide[v]] or order:
        rest = [o for o in order if o is not v]
        for width in wide[v][:2]:
            for u in near:
                if u is not v:
                    yield of_order(nest, [*[o for o in rest if o is not u], v, u], v, width, target)
            yield of_order(nest, [*rest, v], v, width, target)


def follows(a: Access, v: Var) -> bool:
    """True where the elements of an access follow each other along a variable."""
    return a.step(v) is not None and coefficient(a.offset, v) in (1, -1)


def vectors(nest: Nest, v: Var, width: int) -> int:
    """Vectors per iteration."""
    size, count = sum(1 for s in nest.body if not isinstance(s, Nest) for _ in walk(s.value)), 1
    while size * count * 2 <= HEAVY and count < VECTORS and extent(v) % (width * count * 2) == 0:
        count *= 2
    return count


def of_order(nest: Nest, order: Sequence[Var], v: Var | None, width: int, target: Target, count: int = 1,
             edge: str = "back") -> Plan:
    """The plan with loops in an order, so many vectors along `v` at once."""
    counts = [ceil(extent(o) / (width * count if o is v else 1)) for o in order]
    lanes = v.name if v is not None else ""
    return general_plan("pointwise", nest, Choice(tuple([o.name for o in order]), parallel_prefix(counts, target),
                                                  {lanes: count}, edge, lanes=lanes, width=width))
