"""Contractions with few outputs and a long sum as two nests: products over parts of K, then their sum."""
from __future__ import annotations

from math import ceil

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.patterns.recognise import recognise
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.packed import MIN_WORK, plan, size
from minigrad.codegen.policy.panels import plan as panel_plan
from minigrad.expr import Var, product
from minigrad.target import Target
from minigrad.value import load, local, reduce, substitute

BLOCKS = 8
"""Blocks of work worth having: enough for several workers, whatever their number."""

SIDE = 64
"""Rows and columns of the output in one of them."""

ENOUGH = 24 * 8 * 48
"""Outputs of panels that are enough without it: register tiles of 8 x 48 are small units of work."""

MIN_PART = 512
"""Steps of K in a part, so that adding up the parts is little beside them."""


def split_k(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A packed contraction in parts along K, if it has too few blocks otherwise; else the nest itself.

    Before: `t = sum(k<K: a * b)`. After: `for p<P: w[p] = sum(k1<K/P: a * b at k := p*K/P + k1)`, then
    `t = sum(p<P: w[p])`. P depends on shapes only. `scratch` grows by the buffer w.
    """
    outputs = product(v.hi + 1 for v in nest.domain)
    found = recognise(nest)
    if not isinstance(outputs, int) or isinstance(found, str):
        return [nest]
    m, n, k = size(found.m), size(found.n), size(found.k)
    tiled = isinstance(panel_plan(nest, target), Plan)
    if (tiled and m * n >= ENOUGH) or (not tiled and isinstance(plan(nest, target), str)):
        return [nest]
    blocks = ceil(m / SIDE) * ceil(n / SIDE) * size(found.batch)
    count, v = best_part(found.k, min(BLOCKS // blocks, k // MIN_PART, m * n * k // MIN_WORK))
    return [nest] if v is None else in_parts(nest, scratch, found.name, count, v)


def in_parts(nest: Nest, scratch: list[Param], name: str, count: int, v: Var) -> list[Nest]:
    """The nest with the sum `name` in `count` parts along `v`, then all of them, as `split_k` says."""
    outputs = product(d.hi + 1 for d in nest.domain)
    total = next(s for s in nest.body if isinstance(s, Define) and s.name == name)
    over = total.value.over
    p, inner = part_variable(nest, count), Var(v.name, 0, extent(v) // count - 1)
    body = substitute(total.value.args[0], {v: p * (extent(v) // count) + inner})
    param = Param(f"w{len(scratch)}", body.dtype, (outputs * count,), "out")
    scratch.append(param)
    place = offset(nest.domain, tuple([d.hi + 1 for d in nest.domain]))
    first = (Define(name, reduce("sum", tuple(inner if o is v else o for o in over), body)),
             Store(param.name, (place + p * outputs,), local(name, body.dtype)))
    q = Var(f"q{len(scratch)}", 0, count - 1)
    joined = Define(name, reduce("sum", (q,), load(param.name, (place + q * outputs,), body.dtype)))
    return [Nest((*nest.domain, p), first), Nest(nest.domain, tuple(joined if s is total else s for s in nest.body))]


def part_variable(nest: Nest, count: int) -> Var:
    """The variable of so many parts of a sum; a nest that is one of several parts itself has one already."""
    before = sum([v.name.startswith("part") for v in nest.domain])
    return Var(f"part{before or ''}", 0, count - 1)


def best_part(k: tuple[Var, ...], most: int) -> tuple[int, Var | None]:
    """The largest count of equal parts, at least 2, that a variable can be cut into; the outermost such variable."""
    found: tuple[int, Var | None] = 1, None
    for v in k:
        if isinstance(v.hi, int):
            count = max((d for d in range(1, most + 1) if extent(v) % d == 0), default=1)
            if count > found[0]:
                found = count, v
    return found
