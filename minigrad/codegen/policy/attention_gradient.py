"""The gradient of attention without a table of weights: rows meet keys block by block (Dao, 2023).

    for b:                                     block b:
      for i, e: dq = sum(j: t * k)               dk = 0, dv = 0
      for j, e: dk = sum(i: t * q)               steps bi:
      for j, f: dv = sum(i: p * g)                 for e, r: qt[e, r] = q, dq[e, r] = 0;  for f, r: gt[f, r] = g
                                                   for r, e: qr[r, e] = q;  for r, f: gr[r, f] = g
    p = exp(s - sums)                     ->       steps bj:
    t = p * (sum(f: g * v) - d)                      for j, r: p[j, r] = exp(s - sums)      s is made of sum(e: k * qt)
                                                     for j, r: t[j, r] = p * (sum(f: v * gt) - d)
                                                     for j, f: dv += sum(r: p * gr);  for j, e: dk += sum(r: t * qr)
                                                     for e, r: dq += sum(j: k * t)
                                                   for r, e: store dq
                                                 for j, e: store dk;  for j, f: store dv

Lanes are rows of q, or columns, so that nothing is summed across lanes, and k and v are read where they are, element by
element. What k and v of a place get is in memory until its rows are through. A result that is not wanted, and what
only it needs, is left out.

Register tiles are whole: keys, and what dq has of q's columns, are made in multiples of a tile's size, and rows and
columns in whole vectors. Sums have no terms beyond the last row or key, and nothing is stored of what is made there.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Block, Define, Nest, Param, Store, nests_of
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import statements
from minigrad.codegen.patterns.recognise_attention import DOT, first_key, last_key
from minigrad.codegen.patterns.recognise_attention_gradient import Gradient, recognise
from minigrad.codegen.policy.attention import steps
from minigrad.expr import Index, Var, emin, subs
from minigrad.target import Target
from minigrad.value import Value, binary, const, guard, load, local, reduce, unary

BLOCK = 64
"""Rows and keys of a block, about: what belongs to it stays in the second-level cache."""

TILE, TILE_OF_8 = 8, 6
"""Keys of a register tile, and with vectors of 8, as processors with 16 registers have: two vectors of each fit in."""


def rounded(n: int, unit: int) -> int:
    return ceil_div(n, unit) * unit


def part(n: int, unit: int) -> int:
    """Elements of blocks that share n out evenly, in whole units."""
    return rounded(ceil_div(n, ceil_div(n, BLOCK)), unit)


def block_of(nest: Nest, target: Target) -> Block | None:
    """The gradients of an attention as a block; None where the nest is something else. How many rows and keys meet at a
    time depends on their number and on lanes alone."""
    found = recognise(nest)
    if found is None or target.is_gpu or target.language != "llvm":
        return None
    if not all(isinstance(v.hi, int) for v in (found.row, found.key, found.depth, found.column)):
        return None
    return _Rule(found, target.lanes(max(found.q.dtype.bits, 32))).block()


class _Rule:
    """`row` counts a block's rows, `own` those that there are; `tile` and `each` count its keys by tiles, `key` those
    that any row looks at. `pitch` and `size` are those of buffers; gradients in `once` are made by one sum."""

    def __init__(self, found: Gradient, lanes: int):
        self.found, self.results, self.dtype = found, dict(found.results), found.q.dtype
        n, m, depth, columns = map(extent, (found.row, found.key, found.depth, found.column))
        self.unit = unit = TILE_OF_8 if lanes == 8 else TILE
        rows, keys = part(n, lanes), part(m, unit)
        self.bi = Var("bi", 0, ceil_div(n, rows) - 1)
        self.origin = self.bi * rows if self.bi.hi else 0
        self.row, self.own = Var("row", 0, rows - 1), Var("row", 0, emin(rows, n - self.origin) - 1)
        stop = last_key(found, {}, self.origin, rows) + 1
        self.bj = Var("bj", 0, ceil_div(stop, keys) - 1)
        self.start = first_key(found, {}, self.origin) // keys
        self.first = self.bj * keys if self.bj.hi != 0 else 0
        self.tile = Var("tile", 0, emin(ceil_div(stop - self.first, unit), keys // unit) - 1)
        self.each, self.key = Var("each", 0, unit - 1), Var("key", 0, emin(stop - self.first, keys) - 1)
        self.once = {"q"} if self.bj.hi == 0 else set[str]()
        if self.once and self.bi.hi == 0 and stop == m:
            self.once |= {"k", "v"}
        d, c = rounded(depth, lanes), rounded(columns, lanes)
        self.pitch = {"qt": rows, "gt": rows, "qr": d, "gr": c, "p": rows, "t": rows, "dq": rows, "dk": d, "dv": c}
        lines = {"qt": depth, "gt": columns, "qr": rows, "gr": rows, "p": keys, "t": keys,
                 "dq": rounded(depth, unit), "dk": rounded(m, unit), "dv": rounded(m, unit)}
        self.size = {name: lines[name] * pitch for name, pitch in self.pitch.items()}

    def block(self) -> Block:
        """Steps of rows around steps of keys."""
        whole, own = [of for of in self.results if of != "q"], [of for of in self.results if of == "q"]
        pairs = steps(self.bj, self.start, tuple(self.pairs()))
        rows = (*self.copies(), *self.zeros(own), *pairs, *map(self.left, own))
        body = (*self.zeros(whole), *steps(self.bi, 0, rows), *map(self.left, whole))
        stored = {s.param for s in statements([nest for nest, _ in nests_of(body)]) if isinstance(s, Store)}
        memory = tuple([Param(x, self.dtype, (n,), "inout") for x, n in self.size.items() if x in stored])
        return Block(self.found.batch, memory, body)

    def at(self, value: Value, places: Mapping[Var, Index]) -> Value:
        """A value at places of the recognised variables; what is beyond the last of one repeats it."""
        return Rewriter({v: emin(e, v.hi) for v, e in places.items()}).value(value)

    def get(self, name: str, i: Index, j: Index) -> Value:
        return load(name, (i * self.pitch[name] + j,), self.dtype)

    def nest(self, domain: tuple[Var, ...], name: str, i: Index, j: Index, value: Value, total: Value | None = None
             ) -> Nest:
        """The nest that stores a value, perhaps one of a total, which is local(DOT) there."""
        store = Store(name, (i * self.pitch[name] + j,), value)
        return Nest(domain, (store,) if total is None else (Define(DOT, total), store))

    # ---- before and after ----

    def zeros(self, results: list[str]) -> Iterator[Nest]:
        for name in [f"d{of}" for of in results if of not in self.once]:
            x = Var("place", 0, self.size[name] - 1)
            yield Nest((x,), (Store(name, (x,), const(0, self.dtype)),))

    def copies(self) -> Iterator[Nest]:
        """q and g with rows in lanes, for products with keys, and with columns in lanes, for sums over rows."""
        found, row, own = self.found, self.row, self.own
        for of, v, value in (("q", found.depth, found.q), ("g", found.column, found.g)):
            if of == "q" or found.v is not None:
                c = Var(v.name, 0, v.hi)
                yield self.nest((c, row), f"{of}t", c, row, self.at(value, {found.row: self.origin + row, v: c}))
            if {"q": "k", "g": "v"}[of] in self.results:
                c = Var(v.name, 0, self.pitch[f"{of}r"] - 1)
                copied = Rewriter({found.row: self.origin + own, v: c}).value(value)
                copied = copied if c.hi == v.hi else guard(copied, const(0, self.dtype), (v.hi - c,))
                yield self.nest((own, c), f"{of}r", own, c, copied)

    def left(self, of: str) -> Nest:
        """Stores a gradient."""
        found, result = self.found, self.results[of]
        v = found.column if of == "v" else found.depth
        c, x = Var(v.name, 0, v.hi), self.own if of == "q" else Var("key", 0, found.key.hi)
        made, i = (self.get("dq", c, x), self.origin + x) if of == "q" else (self.get(f"d{of}", x, c), x)
        here = Rewriter({found.row if of == "q" else found.key: i, v: c}, locals_={result.name: made})
        return Nest((x, c), here.stores((result.store,)))

    # ---- a block of rows and a block of keys ----

    def pairs(self) -> Iterator[Nest]:
        """Weights, what scores get, and what these add to the gradients."""
        found, row, own, dot = self.found, self.row, self.own, local(DOT, self.dtype)
        place = self.tile * self.unit + self.each
        key = self.first + place
        domain, at = (self.tile, self.each, row), {found.row: self.origin + row, found.key: key}
        conditions = tuple([subs(e, at) for e in found.conditions])

        def nest(name: str, made: Value, value: Value, v: Var, other: str) -> Nest:
            """Of pairs, by the product of an operand of keys and one of rows."""
            c = Var(v.name, 0, v.hi)
            product = binary("mul", self.at(value, {found.key: key, v: c}), self.get(other, c, row))
            made = guard(made, const(0, self.dtype), conditions) if conditions else made
            return self.nest(domain, name, place, row, made, reduce("sum", (c,), product))

        weight = unary("exp", binary("sub", self.at(found.score, at), self.at(found.sums, at)))
        yield nest("p", weight, found.k, found.depth, "qt")
        if found.v is not None and found.less is not None:
            change = binary("mul", self.get("p", place, row), binary("sub", dot, self.at(found.less, at)))
            yield nest("t", change, found.v, found.column, "gt")
        for of, pair, other, v in (("v", "p", "gr", found.column), ("k", "t", "qr", found.depth)):
            if of in self.results:
                c = Var(v.name, 0, self.pitch[other] - 1)
                term = binary("mul", self.get(pair, place, own), self.get(other, own, c))
                yield self.added(of, (self.tile, self.each, c), key, c, reduce("sum", (own,), term))
        if "q" in self.results:
            over, c = Var("over", 0, ceil_div(extent(found.depth), self.unit) - 1), Var("column", 0, self.unit - 1)
            e = over * self.unit + c
            k = self.at(found.k, {found.key: self.first + self.key, found.depth: e})
            term = binary("mul", k, self.get("t", self.key, row))
            yield self.added("q", (over, c, row), e, row, reduce("sum", (self.key,), term))

    def added(self, of: str, domain: tuple[Var, ...], i: Index, j: Index, total: Value) -> Nest:
        """Adds to a gradient, or makes it where that happens once."""
        name, dot = f"d{of}", local(DOT, self.dtype)
        value = dot if of in self.once else binary("add", self.get(name, i, j), dot)
        return self.nest(domain, name, i, j, value, total)
