"""Attention without a table of scores: a block of rows meets the keys block by block (Milakov and Gimelshein, 2018).

    for b, i:                                        block b, bi:
      top = max(j: s)                                  for e, r: qt[e, r] = q
      total = sum(j: exp(s - top))                     for r: top[r] = -inf, total[r] = 0;  for f, r: mixed[f, r] = 0
      for f:                                    ->     steps bj:
        t = sum(j: exp(s - top) * v)                     for j, r: s[j, r] = sum(e: k * qt)
        o = t / total                                    for r: m = max(top, max(j: s)), shrink = exp(top - m), top = m
                                                         for j, r: s = exp(s - top)
                                                         for r: total = total * shrink + sum(j: s)
                                                         for f, r: mixed = mixed * shrink + sum(j: v * s)
                                                       for r, f: o = mixed / total

Lanes are rows of q throughout, so that nothing is summed across lanes and k and v are read where they are, element by
element. Blocks of keys that a causal guard leaves out whole are never looked at.
"""
from __future__ import annotations

import math
from collections.abc import Iterable

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Block, Define, Nest, Param, Steps, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.patterns.recognise_attention import DOT, Attention, first_key, last_key, recognise
from minigrad.codegen.plan.other_plans import BlockPlan
from minigrad.codegen.policy.inner import plan_block
from minigrad.expr import Index, Var, bounds, emin, subs
from minigrad.target import Target
from minigrad.value import binary, const, guard, load, local, reduce, unary

KEYS = 128
"""Keys of a block, at most: their scores stay in the first-level cache."""

AT_ONCE = 0.2
"""The cost of a block of rows beside that of its vectors, in vectors: two of them share what is read of keys."""

EIGHT = 8
"""Keys of a register tile, of which a block has whole ones; those that there are not get no weight."""


def plan(nest: Nest, target: Target) -> BlockPlan | None:
    """The plans of the nests of the block; None where the nest is something else, or memory has no room for one."""
    block = block_of(nest, target)
    return None if block is None else plan_block(block, target)


def has_room(depth: int, columns: int, itemsize: int, target: Target) -> bool:
    """True where a block fits memory with these extents, whatever its rows."""
    rows = 2 * target.lanes(max(8 * itemsize, 32))
    return target.language == "llvm" or (depth + columns + KEYS + 4) * rows * itemsize <= target.local_memory


def block_of(nest: Nest, target: Target) -> Block | None:
    """Attention as a block; None where `plan` has none."""
    found = recognise(nest)
    if found is None or target.is_gpu or found.q.dtype.bits > 64:
        return None
    columns = extent(found.mix.column) if found.mix else 0
    if not has_room(extent(found.depth), columns, found.q.dtype.itemsize, target):
        return None
    lanes = target.lanes(max(found.q.dtype.bits, 32))
    return _block(found, lanes * min((2, 1), key=lambda n: ceil_div(extent(found.row), n * lanes) * (n + AT_ONCE)))


def _block(found: Attention, rows: int) -> Block:
    dtype, length = found.q.dtype, found.row.hi + 1
    whole = isinstance(length, int) and length % rows == 0
    bi = Var("bi", 0, ceil_div(length, rows) - 1)
    origin = bi * rows
    r = Var("ir", 0, rows - 1)
    row = origin + r if whole else emin(origin + r, found.row.hi)
    depth = Var("depth", 0, found.depth.hi)
    q = Rewriter({found.row: row, found.depth: depth}).value(found.q)
    zero, least = const(0, dtype), const(-math.inf, dtype)
    body: list[Nest | Steps] = [
        Nest((depth, r), (Store("qt", (depth * rows + r,), q),)),
        Nest((r,), (Store("top", (r,), least), Store("total", (r,), zero)))]
    mix = found.mix
    if mix:
        column = Var("column", 0, mix.column.hi)
        body.append(Nest((column, r), (Store("mixed", (column * rows + r,), zero),)))
    stop = last_key(found, {}, origin, rows) + 1
    most = bounds(stop)[1]
    keys = min(KEYS, ceil_div(most, EIGHT) * EIGHT) if isinstance(most, int) else KEYS
    bj = Var("bj", 0, ceil_div(stop, keys) - 1)
    first = bj * keys if bj.hi != 0 else 0
    count = emin(ceil_div(stop - first, EIGHT), keys // EIGHT) * EIGHT
    key = Var("key", 0, count - 1)
    even = isinstance(found.key.hi, int) and (found.key.hi + 1) % EIGHT == 0
    number = first + key if even else emin(first + key, found.key.hi)
    factor = Rewriter({found.key: number, found.depth: depth}).value(found.k)
    at = {found.row: row, found.key: first + key}
    here = (key * rows + r,)
    dot = reduce("sum", (depth,), binary("mul", factor, load("qt", (depth * rows + r,), dtype)))
    score = Rewriter(at, locals_={DOT: local("dot", dtype)}).value(found.score)
    inside = tuple(subs(e, at) for e in found.conditions)
    if not even:
        inside = (*inside, found.key.hi - first - key)
    score = guard(score, least, inside) if inside else score
    kb, k8 = Var("eights", 0, emin(ceil_div(stop - first, EIGHT), keys // EIGHT) - 1), Var("k", 0, EIGHT - 1)
    tiled = Rewriter({key: kb * EIGHT + k8}, locals_={})
    top, shrink = load("top", (r,), dtype), load("shrink", (r,), dtype)
    s = load("s", here, dtype)
    high = load("high", (r,), dtype)
    steps: list[Nest] = [
        Nest((kb, k8, r), (Define("dot", tiled.value(dot)), Store("s", (tiled.index(here[0]),), tiled.value(score)))),
        Nest((r,), (Define("t", reduce("max", (key,), s)), Store("high", (r,), binary("max", top, local("t", dtype))))),
        Nest((r,), (Store("shrink", (r,), unary("exp", binary("sub", top, shift_of(high)))), Store("top", (r,), high))),
        Nest((key, r), (Store("s", here, unary("exp", binary("sub", s, shift_of(top)))),)),
        Nest((r,), (Define("t", reduce("sum", (key,), s)), Store("total", (r,), binary(
            "add", binary("mul", load("total", (r,), dtype), shrink), local("t", dtype)))))]
    if mix:
        v = Rewriter({found.key: number, mix.column: column}).value(mix.v)
        mixed = (column * rows + r,)
        steps.append(Nest((column, r), (
            Define("t", reduce("sum", (key,), binary("mul", v, s))),
            Store("mixed", mixed, binary("add", binary("mul", load("mixed", mixed, dtype), shrink),
                                         local("t", dtype))))))
    body += steps if bj.hi == 0 else [Steps(bj, first_key(found, {}, origin) // keys, tuple(steps))]
    own = Var("ir", 0, rows - 1 if whole else emin(rows, length - origin) - 1)

    def stored(domain: tuple[Var, ...], stores: Iterable[Store], at: dict[Var, Index]) -> Nest:
        names = {found.top: load("top", (own,), dtype), found.total: load("total", (own,), dtype)}
        if mix:
            names[mix.name] = load("mixed", (column * rows + own,), dtype)
        to = Rewriter({**at, found.row: origin + own}, locals_=names)
        return Nest(domain, to.stores(stores))

    if found.stores:
        body.append(stored((own,), found.stores, {}))
    if mix:
        body.append(stored((own, column), (mix.store,), {mix.column: column}))
    sizes = {"qt": extent(depth) * rows, "s": keys * rows, "top": rows, "total": rows, "high": rows, "shrink": rows}
    if mix:
        sizes["mixed"] = extent(mix.column) * rows
    memory = tuple([Param(n, dtype, (size,), "inout") for n, size in sizes.items()])
    return Block((*found.batch, bi), memory, tuple(body))
