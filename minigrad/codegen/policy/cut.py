"""Products whose last columns fill no vector, as of planes of 7x7 and 14x14: these become dot products.

    before:  for n<49: o[m, n] = sum(k: a[m, k] * b[k, n])          a tile of 4 vectors would compute 64
    after:   for n<48: o[m, n] = ...
             for k: w[k] = b[k, 48]
             o[m, 48] = sum(k: a[m, k] * w[k])                       with lanes along k

Where much is computed of a sum, that is a nest with lanes along m.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.patterns.recognise import recognise
from minigrad.codegen.policy.blocking import size
from minigrad.codegen.policy.choose import cycles
from minigrad.codegen.policy.panels import UNIT_WORK, best_tiles, products, refusal
from minigrad.codegen.policy.thin import is_long, transpose
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import free_variables, load, local, substitute, walk

GAIN = 0.97
"""Part of the time that columns are cut off for."""

MUCH = 6
"""Operations on a sum from which vectors of them are worth a stage of their own: a bias and a ramp are not, a norm is.
Norms and sigmoids of 2,700 sums, one by one, took 10 of 21 us."""

FREE = frozenset(("load", "const", "local", "index"))


def cut_columns(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """The nests, if that is faster; else the nest itself. `scratch` grows by the buffer w."""
    c = recognise(nest)
    if isinstance(c, str) or target.language != "llvm" or not c.n:
        return [nest]
    v, width = c.n[-1], target.lanes(c.a.dtype.bits)
    left = extent(v) % width
    if not left or extent(v) < width or refusal(c, target):
        return [nest]
    p = next(products(c, target), None)
    if p is None or p.m * p.n * p.k < UNIT_WORK or not is_long(p.m, p.k, width):
        return [nest]
    times = size(c.batch) * size(c.m[:-1]) * size(c.n[:-1])
    gained = times * (best_tiles(p, target)[0][0] * GAIN - best_tiles(replace(p, n=p.n - left), target)[0][0])
    if gained <= 0:
        return [nest]
    whole, rest, made = Var(v.name, 0, p.n - left - 1), Var(v.name, 0, left - 1), list(scratch)
    if p.a_is_strided or p.a == "lanes":  # lanes go along rows
        parts = [with_variable(nest, v, rest, p.n - left)]
    else:
        columns = replace(c, b=substitute(c.b, {v: rest + (p.n - left)}))
        rows = (*(d for d in (*c.batch, *c.n[:-1]) if d in free_variables(c.b)), rest)
        copied, row_products = transpose(with_variable(nest, v, rest, p.n - left), columns, rows, made)
        parts = [copied, *apart(row_products, c.m[-1], made)]
    if sum([cycles(part, replace(target, units=1)) for part in parts]) >= gained:
        return [nest]
    scratch += made[len(scratch):]
    return [with_variable(nest, v, whole, 0), *parts]


def apart(nest: Nest, along: Var, scratch: list[Param]) -> list[Nest]:
    """Sums, and what is computed of them if that is much, which has lanes along a variable of the domain; dot products
    leave one element at a time. `scratch` grows by what holds the sums."""
    total, *rest = nest.body
    outputs = [s for s in rest if isinstance(s, Store)]
    operations = sum([v.op not in FREE for s in rest if not isinstance(s, Nest) for v in walk(s.value)])
    if not isinstance(total, Define) or operations < MUCH * len(outputs):
        return [nest]
    inner = (*(d for d in nest.domain if d is not along), along)
    place = offset(inner, tuple([d.hi + 1 for d in inner]))
    w = Param(f"w{len(scratch)}", total.value.dtype, (size(inner),), "out")
    scratch.append(w)
    again = Define(total.name, load(w.name, (place,), w.dtype))
    return [Nest(nest.domain, (total, Store(w.name, (place,), local(total.name, w.dtype)))),
            Nest(nest.domain, (again, *rest))]


def with_variable(nest: Nest, old: Var, new: Var, start: int) -> Nest:
    """A nest without inner ones over a part of one variable of its domain, from `start` on."""
    here = Rewriter({old: new + start})
    body = [replace(s, value=here.value(s.value)) if isinstance(s, Define) else
            replace(s, indices=tuple([here.index(e) for e in s.indices]), value=here.value(s.value))
            for s in nest.body if not isinstance(s, Nest)]
    return Nest(tuple([new if d is old else d for d in nest.domain]), tuple(body))
