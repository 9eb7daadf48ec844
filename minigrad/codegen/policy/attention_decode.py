"""Attention of few rows, as in decoding: keys and values are read once, front to back, for all rows that share them.

    for b, i:                                        block b:
      top = max(j: s)                                  for j, i: s[i, j] = sum(e: k * q)    lanes along the depth
      total = sum(j: exp(s - top))              ->     for i, j: s[i, j] = score(s)         lanes along keys
      for f:                                           for i: top[i] = max(j: s)
        t = sum(j: exp(s - top) * v)                   for i, j: s[i, j] = exp(s - top);  for i: total[i] = sum(j: s)
        o = t / total                                  for i, f: t = sum(j: s * v), o = t / total

Where there are many keys, a part of them is one place of the block and leaves its top, total and sums; a second stage
adds them up (`split_keys`). Parts have a fixed size, so that results do not depend on the number of workers.
"""
from __future__ import annotations

import math

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Block, Define, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.patterns.recognise_attention import DOT, Attention, Mix, last_key, recognise, reduced
from minigrad.codegen.policy.attention import EIGHT
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, bounds, emin, product, subs
from minigrad.target import Target
from minigrad.value import Value, binary, const, free_variables, guard, load, local, reduce, substitute, unary

MAX_ROWS = 8
"""Rows that share keys, at most; more of them fill lanes."""

PART = 128
"""Keys of a part: what there is to do for one must be little beside reading them, and there must be several."""

LANES = 16
"""Scores of a row come in multiples of these; those beyond the last get no weight."""


def sharing(found: Attention) -> tuple[Var, ...]:
    """The variables of rows that meet the same keys and values, outermost first."""
    per_key = free_variables(found.k) | (free_variables(found.mix.v) if found.mix else frozenset())
    return (*(v for v in found.batch if v not in per_key), found.row)


def rows_of(found: Attention) -> int:
    return product(extent(v) for v in sharing(found))  # type: ignore[return-value]


def block_of(nest: Nest, target: Target) -> Block | None:
    """Attention of few rows as a block; None where the nest is something else, or has many rows, or keys that
    `split_keys` left together."""
    found = recognise(nest)
    if found is None or found.mix is None or target.is_gpu or target.language != "llvm":
        return None
    if rows_of(found) > MAX_ROWS or extent(found.key) > PART:
        return None
    return _block(found, found.mix)


def _block(found: Attention, mix: Mix) -> Block:
    dtype = found.q.dtype
    shared = sharing(found)
    rows = rows_of(found)
    own = tuple([Var(f"r{n}", 0, extent(v) - 1) for n, v in enumerate(shared)])
    row = offset(own, tuple([v.hi + 1 for v in own]))
    here = dict(zip(shared, own, strict=True))
    batch = tuple([v for v in found.batch if v not in shared])
    stop = last_key(found, {}, 0, extent(found.row)) + 1
    wide = ceil_div(bounds(stop)[1], LANES) * LANES
    eights, one, key, depth = (Var("eights", 0, ceil_div(stop, EIGHT) - 1), Var("one", 0, EIGHT - 1),
                               Var("key", 0, wide - 1), Var("depth", 0, found.depth.hi))
    whole = isinstance(stop, int) and stop % EIGHT == 0
    number = eights * EIGHT + one
    at = Rewriter({**here, found.key: number if whole else emin(number, stop - 1), found.depth: depth})
    dot = reduce("sum", (depth,), binary("mul", at.value(found.k), at.value(found.q)))
    place = row * wide + key
    inside: tuple[Index, ...] = tuple(subs(e, {**here, found.key: key}) for e in found.conditions)
    if not (isinstance(stop, int) and stop % LANES == 0):
        inside = (stop - 1 - key, *inside)
    s = load("s", (place,), dtype)
    score = Rewriter({**here, found.key: key}, locals_={DOT: s}).value(found.score)
    if inside:
        score = guard(score, const(-math.inf, dtype), inside)
    top, total = load("top", (row,), dtype), load("total", (row,), dtype)
    body = [
        Nest((eights, one, *own), (Define("t", dot), Store("s", (row * wide + number,), local("t", dtype)))),
        Nest((*own, key), (Store("s", (place,), score),)),
        Nest(own, (Define("t", reduce("max", (key,), s)), Store("top", (row,), local("t", dtype)))),
        Nest((*own, key), (Store("s", (place,), unary("exp", binary("sub", s, shift_of(top)))),)),
        Nest(own, (Define("t", reduce("sum", (key,), s)), Store("total", (row,), local("t", dtype))))]
    names = {found.top: top, found.total: total}
    if found.stores:
        body.append(Nest(own, Rewriter(here, locals_=names).stores(found.stores)))
    column, met = Var("column", 0, mix.column.hi), Var("met", 0, stop - 1)
    v = Rewriter({**here, found.key: met, mix.column: column}).value(mix.v)
    term = binary("mul", load("s", (row * wide + met,), dtype), v)
    to = Rewriter({**here, mix.column: column}, locals_={**names, mix.name: local("t", dtype)})
    body.append(Nest((*own, column), (Define("t", reduce("sum", (met,), term)), *to.stores([mix.store]))))
    memory = tuple([Param(n, dtype, (z,), "inout") for n, z in (("s", rows * wide), ("top", rows), ("total", rows))])
    return Block(batch, memory, tuple(body))


def split_keys(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """Attention of few rows to many keys as two nests: parts of the keys, then their combination; else the nest itself.

    Before: `t = max(j<n: s)`, `u = sum(j<n: exp(s - t))`, `m = sum(j<n: exp(s - t) * v)`. After: the same for
    `p<ceil(n/PART)` over the keys `p*PART + j`, kept in three buffers, and `t = max(p: t[p])`,
    `u = sum(p: u[p] * exp(t[p] - t))`, `m = sum(p: m[p] * exp(t[p] - t))`. `scratch` grows by the buffers.
    """
    found = recognise(nest)
    if found is None or found.mix is None or target.is_gpu or target.language != "llvm":
        return [nest]
    if rows_of(found) > MAX_ROWS or bounds(found.key.hi)[1] < PART:
        return [nest]
    top, total = (s for s in nest.body[:2] if isinstance(s, Define))
    inner = next(s for s in nest.body if isinstance(s, Nest))
    mixed = inner.body[0]
    if not isinstance(mixed, Define):
        raise InternalError(f"[split] expected a sum over keys, got {type(mixed).__name__}")
    count: Index = (found.key.hi + PART) // PART
    part, dtype = Var("part", 0, count - 1), found.q.dtype
    outputs = product(v.hi + 1 for v in nest.domain)
    place = offset(nest.domain, tuple([v.hi + 1 for v in nest.domain]))
    kept = []
    for size in (1, 1, found.mix.column.hi + 1):
        kept.append(Param(f"w{len(scratch)}", dtype, (count * outputs * size,), "out"))
        scratch.append(kept[-1])
    at = _places(place, outputs, found.mix, part)
    cut = [Define(s.name, in_part(s.value, found.key, part)) for s in (top, total, mixed)]
    stores = [Store(p.name, (e,), local(s.name, dtype)) for p, e, s in zip(kept, at, cut, strict=True)]
    first = Nest((*nest.domain, part), (*cut[:2], *stores[:2], Nest(inner.domain, (cut[2], stores[2]))))
    return [first, _combination(nest, found, [p.name for p in kept], place, outputs, count)]


def _places(place: Index, outputs: Index, mix: Mix, part: Index) -> tuple[Index, Index, Index]:
    """The places where a part keeps its top, its total and its sums."""
    at = part * outputs + place
    return at, at, at * (mix.column.hi + 1) + mix.column


def in_part(value: Value, key: Var, part: Var) -> Value:
    """A reduction over keys, over those of a part."""
    monoid, _, body, conditions = present(reduced(value), "[split] expected a reduction over keys")
    inside = Var(key.name, 0, PART - 1)
    number = part * PART + inside
    length = key.hi + 1
    last = () if isinstance(length, int) and length % PART == 0 else (key.hi - number,)
    conditions = (*(subs(e, {key: number}) for e in conditions), *last)
    body = substitute(body, {key: number})
    return reduce(monoid, (inside,), guard(body, MONOIDS[monoid].init(body.dtype), conditions))


def _combination(nest: Nest, found: Attention, kept: list[str], place: Index, outputs: Index, count: Index) -> Nest:
    """The nest with its reductions over what the parts have kept."""
    mix, dtype = present(found.mix, "[split] expected values to mix"), found.q.dtype
    parts = [Var(f"q{n}", 0, count - 1) for n in range(3)]
    loads = [[load(name, (e,), dtype) for name, e in
              zip(kept, _places(place, outputs, mix, p), strict=True)] for p in parts]

    def scaled(n: int) -> Value:
        """The contribution of part `parts[n]` to the n-th result."""
        return binary("mul", loads[n][n], unary("exp", binary("sub", loads[n][0], shift_of(local(found.top, dtype)))))

    mixed = Define(mix.name, reduce("sum", (parts[2],), scaled(2)))
    return Nest(nest.domain, (Define(found.top, reduce("max", (parts[0],), loads[0][0])),
                              Define(found.total, reduce("sum", (parts[1],), scaled(1))), *found.stores,
                              Nest((mix.column,), (mixed, mix.store))))
