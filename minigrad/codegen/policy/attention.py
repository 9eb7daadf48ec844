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

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Block, Define, Nest, Param, Steps, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.lowering.independent import LANE
from minigrad.codegen.patterns.recognise_attention import DOT, Attention, first_key, last_key, recognise
from minigrad.expr import Index, Var, bounds, emax, emin, subs
from minigrad.target import Target
from minigrad.value import Value, binary, const, guard, load, local, make, reduce, unary

KEYS = 128
"""Keys of a block, at most: their scores stay in the first-level cache."""

AT_ONCE = 0.2
"""The cost of a block of rows beside that of its vectors, in vectors: two of them share what is read of keys."""

EIGHT = 8
"""Keys of a register tile, of which a block has whole ones; those that there are not get no weight."""


def has_room(depth: int, columns: int, itemsize: int, target: Target) -> bool:
    """True where a block fits memory with these extents, whatever its rows."""
    rows = 2 * target.lanes(max(8 * itemsize, 32))
    return target.language == "llvm" or (depth + columns + KEYS + 4) * rows * itemsize <= target.local_memory


def block_of(nest: Nest, target: Target) -> Block | None:
    """Attention as a block; None where the nest is something else, or memory has no room for one."""
    found = recognise(nest)
    if found is None or target.is_gpu or found.q.dtype.bits > 64:
        return None
    columns = extent(found.mix.column) if found.mix else 0
    if not has_room(extent(found.depth), columns, found.q.dtype.itemsize, target):
        return None
    lanes = target.lanes(max(found.q.dtype.bits, 32))
    rows = lanes * min((2, 1), key=lambda n: ceil_div(extent(found.row), n * lanes) * (n + AT_ONCE))
    return Rule(found, rows, KEYS).block()


class Rule:
    """The block whose places have so many rows, and at most so many keys at a time. With a `pad` keys and values are
    copied to memory of the block first, keys transposed, each row so much longer; and rows, of a work-item each, meet
    eight of them at a time, so that what there is of a row is little.

    key: of a block of keys, or of those whose scores there are at a time; near: its number in the block
    """

    def __init__(self, found: Attention, rows: int, keys: int, pad: int = 0):
        self.found, self.rows, self.pad, self.dtype = found, rows, pad, found.q.dtype
        self.bi = Var("bi", 0, ceil_div(found.row.hi + 1, rows) - 1)
        self.origin = self.bi * rows
        self.r = Var(LANE if pad else "ir", 0, rows - 1)
        self.row = emin(self.origin + self.r, found.row.hi)
        self.depth = Var("depth", 0, found.depth.hi)
        self.column = Var("column", 0, found.mix.column.hi if found.mix else -1)
        stop = last_key(found, {}, self.origin, rows) + 1
        most = bounds(stop)[1]
        self.keys = min(keys, ceil_div(most, EIGHT) * EIGHT) if isinstance(most, int) else keys
        self.bj = Var("bj", 0, ceil_div(stop, self.keys) - 1)
        self.first = self.bj * self.keys if self.bj.hi != 0 else 0
        eights = emin(ceil_div(stop - self.first, EIGHT), self.keys // EIGHT)
        self.eights, self.one = Var("eights", 0, eights - 1), Var("k", 0, EIGHT - 1)
        self.tile = (self.eights * EIGHT if self.eights.hi != 0 else 0) + self.one
        self.key = self.one if pad else Var("key", 0, eights * EIGHT - 1)
        self.near = self.tile if pad else self.key
        self.even = isinstance(found.key.hi, int) and (found.key.hi + 1) % EIGHT == 0

    def block(self) -> Block:
        rows, depth, columns = self.rows, extent(self.depth), extent(self.column)
        sizes = {"qt": depth * rows, "s": (EIGHT if self.pad else self.keys) * rows, "top": rows, "total": rows,
                 "high": rows, "shrink": rows, "mixed": columns * rows}
        met: tuple[Nest | Steps, ...] = self.met()
        if self.pad:
            sizes |= {"keys": depth * (self.keys + self.pad), "values": self.keys * columns}
            met = (*self.copies(), *steps(self.eights, 0, met))
        met = steps(self.bj, first_key(self.found, {}, self.origin) // self.keys, met)
        memory = tuple([Param(n, self.dtype, (size,), "inout") for n, size in sizes.items() if size])
        return Block((*self.found.batch, self.bi), memory, (*self.started(), *met, *self.finished()))

    def started(self) -> list[Nest]:
        """Queries with their rows side by side, and nothing known of a row."""
        found, r = self.found, self.r
        q = Rewriter({found.row: self.row, found.depth: self.depth}).value(found.q)
        zero, least = const(0, self.dtype), const(-math.inf, self.dtype)
        nests = [Nest((self.depth, r), (Store("qt", (self.depth * self.rows + r,), q),)),
                 Nest((r,), (Store("top", (r,), least), Store("total", (r,), zero)))]
        if found.mix:
            nests.append(Nest((self.column, r), (Store("mixed", (self.column * self.rows + r,), zero),)))
        return nests

    def read(self, key: Var) -> tuple[Value, Value]:
        """A key of the block, and what it takes, where they are; the last one in place of those that there are not."""
        found, mix, number = self.found, self.found.mix, self.first + key
        number = number if self.even and not self.pad else emin(number, found.key.hi)
        k = Rewriter({found.key: number, found.depth: self.depth}).value(found.k)
        return k, Rewriter({found.key: number, mix.column: self.column}).value(mix.v) if mix else k

    def copies(self) -> list[Nest]:
        """A block of keys, transposed, and of values to memory."""
        key = Var("key", 0, self.keys - 1)
        stored = zip(self.read(key), (self.depth, self.column), self.near_places(key), strict=True)
        return [Nest((key, x), (Store(p.buffer, p.indices, value),)) for value, x, p in stored if extent(x)]

    def near_places(self, key: Index) -> tuple[Value, Value]:
        """A key of the block, and what it takes, in its memory."""
        at = self.depth * (self.keys + self.pad) + key, key * extent(self.column) + self.column
        return load("keys", (at[0],), self.dtype), load("values", (at[1],), self.dtype)

    def met(self) -> tuple[Nest, ...]:
        """A block of keys or some of it: their scores, what is known of each row then, and what they add to it."""
        found, dtype, key, r, depth, column = self.found, self.dtype, self.key, self.r, self.depth, self.column
        here = (key * self.rows + r,)
        k, v = self.near_places(self.near) if self.pad else self.read(key)
        dot = reduce("sum", (depth,), binary("mul", k, load("qt", (depth * self.rows + r,), dtype)))
        at = {found.row: self.row, found.key: self.first + self.near}
        score = Rewriter(at, locals_={DOT: local("dot", dtype)}).value(found.score)
        inside = tuple([subs(e, at) for e in found.conditions])
        if not self.even:
            inside = (*inside, found.key.hi - self.first - self.near)
        score = guard(score, const(-math.inf, dtype), inside) if inside else score
        tiled = Rewriter({} if self.pad else {key: self.tile}, locals_={})
        eights = () if self.pad else (self.eights,)
        top, total, shrink, s, high = (load(name, at, dtype) for name, at in (
            ("top", (r,)), ("total", (r,)), ("shrink", (r,)), ("s", here), ("high", (r,))))
        t = local("t", dtype)
        nests = [
            Nest((*eights, self.one, r), (Define("dot", tiled.value(dot)),
                                          Store("s", (tiled.index(here[0]),), tiled.value(score)))),
            Nest((r,), (Define("t", reduce("max", (key,), s)), Store("high", (r,), binary("max", top, t)))),
            Nest((r,), (Store("shrink", (r,), unary("exp", binary("sub", top, shift_of(high)))),
                        Store("top", (r,), high))),
            Nest((key, r), (Store("s", here, unary("exp", binary("sub", s, shift_of(top)))),)),
            Nest((r,), (Define("t", reduce("sum", (key,), s)),
                        Store("total", (r,), make("fma", dtype, (total, shrink, t)))))]
        if found.mix:
            place = (column * self.rows + r,)
            mixed = make("fma", dtype, (load("mixed", place, dtype), shrink, t))
            nests.append(Nest((column, r), (Define("t", reduce("sum", (key,), binary("mul", v, s))),
                                            Store("mixed", place, mixed))))
        return tuple(nests)

    def finished(self) -> list[Nest]:
        """The results of the rows that there are: each place has one at least."""
        found, mix = self.found, self.found.mix
        own = Var(self.r.name, 0, emax(emin(self.rows, found.row.hi + 1 - self.origin), 1) - 1)
        names = {found.top: load("top", (own,), self.dtype), found.total: load("total", (own,), self.dtype)}
        at = {found.row: self.origin + own}
        nests = [Nest((own,), Rewriter(at, locals_=names).stores(found.stores))] if found.stores else []
        if mix:
            names[mix.name] = load("mixed", (self.column * self.rows + own,), self.dtype)
            to = Rewriter({**at, mix.column: self.column}, locals_=names)
            nests.append(Nest((own, self.column), to.stores((mix.store,))))
        return nests


def steps(var: Var, start: Index, body: tuple[Nest | Steps, ...]) -> tuple[Nest | Steps, ...]:
    """A body that runs for each value of a variable; itself where there is one value, in which case it has no such
    variable."""
    return body if var.hi == 0 else (Steps(var, start, body),)
