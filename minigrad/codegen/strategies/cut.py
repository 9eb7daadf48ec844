"""Products whose last columns fill no vector, as of planes of 7x7 and 14x14: these become dot products.

    before:  for n<49: o[m, n] = sum(k: a[m, k] * b[k, n])          a tile of 4 vectors would compute 64
    after:   for n<48: o[m, n] = ...
             for k: w[k] = b[k, 48]
             o[m, 48] = sum(k: a[m, k] * w[k])                       with lanes along k
"""
from __future__ import annotations

from dataclasses import replace
from math import ceil

from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Define, Nest, Param
from minigrad.codegen.strategies.panels import UNIT_WORK, best_tile, product, refusal
from minigrad.codegen.strategies.recognise import recognise
from minigrad.codegen.strategies.thin import is_long, turn
from minigrad.codegen.value_walk import Rewriter
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import free_variables, substitute

GAIN = 0.97
"""Part of the time that columns are cut off for."""


def cut_columns(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """The three nests, if that is faster; else the nest itself. `scratch` grows by the buffer w."""
    c = recognise(nest)
    if isinstance(c, str) or refusal(c, target) or target.language != "llvm":
        return [nest]
    p, v, width = product(c, target), c.n[-1], target.lanes(c.a.dtype.bits)
    left = p.n % width
    if not left or p.n < width or p.a or p.m * p.n * p.k < UNIT_WORK or not is_long(p.m, p.k, width):
        return [nest]
    facts = machine(target)
    dots = p.m * left * (ceil(p.k / width) / facts.declared.fma_per_cycle + facts.costs.across)
    if best_tile(replace(p, n=p.n - left), target)[0] + dots >= best_tile(p, target)[0] * GAIN:
        return [nest]
    whole, rest = Var(v.name, 0, p.n - left - 1), Var(v.name, 0, left - 1)
    if p.far_a:  # lanes go along rows
        return [with_variable(nest, v, whole, 0), with_variable(nest, v, rest, p.n - left)]
    columns = replace(c, b=substitute(c.b, {v: rest + (p.n - left)}))
    rows = (*(d for d in (*c.batch, *c.n[:-1]) if d in free_variables(c.b)), rest)
    return [with_variable(nest, v, whole, 0),
            *turn(with_variable(nest, v, rest, p.n - left), columns, rows, scratch)]


def with_variable(nest: Nest, old: Var, new: Var, start: int) -> Nest:
    """A nest without inner ones over a part of one variable of its domain, from `start` on."""
    here = Rewriter({old: new + start})
    body = [replace(s, value=here.value(s.value)) if isinstance(s, Define) else
            replace(s, indices=tuple([here.index(e) for e in s.indices]), value=here.value(s.value))
            for s in nest.body if not isinstance(s, Nest)]
    return Nest(tuple([new if d is old else d for d in nest.domain]), tuple(body))
