"""Loop IR -> loop IR: no accumulator takes more than TERMS terms one after another (docs/decisions/0042-long-sums.md).

    acc[0] = 0.0                                    acc[0] = 0.0
    for k in 0..100000 serial:                      for k_o in 0..391 serial:
      acc[0] = acc[0] + x[k]              ->          alloc acc_part: f32[1] register
                                                      acc_part[0] = 0.0
                                                      for k in 256*k_o..256*k_o+min(-256*k_o+100000, 256) serial:
                                                        acc_part[0] = acc_part[0] + x[k]
                                                      acc[0] = acc[0] + acc_part[0]

Blocks of blocks become one in the same way, so that the terms of a sum of any length are joined as in a tree.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Loop, Stmt, Store, group_size
from minigrad.codegen.ir.walk import (
    Body,
    all_values,
    blocks,
    fresh,
    map_all,
    map_blocks,
    map_function,
    names,
    statements,
)
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.expr import Index, Var, bounds, emin, subs, variables
from minigrad.value import Value, binary, const, load, walk

TERMS = 256
"""Of equal terms each addition may round in the same direction: n of them are off by up to n/4 roundings. For 2^8 that
is 64, 8 for each doubling, and blocks of blocks add as much for 2^8 times as many terms."""

TERMS_OF_ITEMS = 1024
"""Work-items have so many accumulators that another one for each takes registers from other work-groups."""


def bounded_sums(function: Function, values: Mapping[Var, Index]) -> Function:
    """The function with long sums in blocks, where its dims have these values or are bounded by theirs."""
    allocated = {s.name: s for s in statements(function)
                 if type(s) is Alloc and s.scope == "register" and s.dtype.is_float}
    if not allocated:
        return function
    limit = TERMS_OF_ITEMS if group_size(function) else TERMS
    blocked = _Blocks(allocated, limit, values, names(function))
    if blocked.are_short(function.body):
        return function
    made = map_function(function, blocked.body)
    return made if blocked.changed else function


@dataclass(frozen=True, slots=True)
class _Sums:
    """The most terms that statements add to one element of an accumulator, and the elements that they add to."""

    terms: int
    elements: frozenset[int]


class _Blocks:
    """`limit`: the most terms of an accumulator."""

    def __init__(self, allocated: Mapping[str, Alloc], limit: int, values: Mapping[Var, Index], used: set[str]):
        self.allocated, self.limit, self.values, self.used = dict(allocated), limit, values, used
        self.changed = False

    def body(self, body: Body) -> Body:
        """Statements, with the sums in them in blocks."""
        made: list[Stmt] = []
        for s in body:
            inner = map_blocks(s, self.body)
            made += self.loop(inner) if type(inner) is Loop and inner.kind == "serial" else [inner]
        return tuple(made) if self.changed else body

    def are_short(self, body: Body) -> bool:
        """True where no accumulator takes many terms: told by one walk, as most functions need no more."""
        begin, terms = dict[str, int](), dict[str, int]()

        def look(body: Body, around: tuple[Loop, ...]) -> None:
            for s in body:
                if type(s) is Alloc:
                    begin[s.name] = len(around)
                elif type(s) is Store and s.buffer in self.allocated:
                    times = 1
                    for loop in around[begin[s.buffer]:]:
                        if loop.kind != "unroll" or loop.var not in variables(s.offset):
                            times *= max(self.trips(loop), 1) if loop.kind != "vector" else 1
                    terms[s.buffer] = terms.get(s.buffer, 0) + times
                elif type(s) is Loop:
                    look(s.body, (*around, s))
                else:
                    for inner in blocks(s):
                        look(inner, around)

        look(body, ())
        return max(terms.values(), default=0) <= self.limit

    def iterations(self, s: Loop) -> int:
        """The iterations of a loop, with those of the loops inside it."""
        inner = [self.iterations(x) for x in s.body if type(x) is Loop]
        inner += [self.iterations(x) for branch in s.body if type(branch) is If
                  for x in (*branch.then, *branch.otherwise) if type(x) is Loop]
        return self.trips(s) * max(inner, default=1)

    def trips(self, s: Loop) -> int:
        length = s.stop - s.start
        return max(length if isinstance(length, int) else bounds(subs(length, self.values))[1], 0)

    def added_by(self, body: Sequence[Stmt], among: Iterable[str] | None = None) -> dict[str, _Sums]:
        """The accumulators that statements add to and do nothing else with, of those allocated outside of them."""
        found: dict[str, tuple[int, set[int]]] = {}
        refused = {s.name for s in statements(body) if type(s) is Alloc}
        if among is not None:
            refused |= self.allocated.keys() - set(among)
        self._added(body, {}, 1, found, refused)
        return {a: _Sums(terms, frozenset(at)) for a, (terms, at) in found.items() if a not in refused}

    def _added(self, body: Sequence[Stmt], unrolled: Mapping[Var, range], times: int,
               found: dict[str, tuple[int, set[int]]], refused: set[str]) -> None:
        for s in body:
            if type(s) is Call:
                refused |= {name for name, _ in s.buffers}
            read = {v.buffer for v in all_values(s) if v.op == "load"}
            if type(s) is Store and s.buffer in self.allocated:
                added = _addend(s)
                if added is None:
                    refused.add(s.buffer)
                else:
                    read = {v.buffer for a in added for v in walk(a) if v.op == "load"}
                    at, repeats = self.elements(s.offset, unrolled)
                    terms, known = found.get(s.buffer, (0, set()))
                    found[s.buffer] = terms + times * repeats, known | at
            refused |= read
            if type(s) is Loop:
                trips = self.trips(s)
                if s.kind == "unroll" and isinstance(s.start, int) and isinstance(s.stop, int):
                    self._added(s.body, {**unrolled, s.var: range(s.start, s.stop)}, times, found, refused)
                else:
                    self._added(s.body, unrolled, times * (trips if s.kind != "vector" else 1), found, refused)
            else:
                for inner in blocks(s):
                    self._added(inner, unrolled, times, found, refused)

    def elements(self, offset: Index, unrolled: Mapping[Var, range]) -> tuple[set[int], int]:
        """The elements at an offset for all copies of unrolled loops, and how many copies share one at most."""
        places: list[Index] = [offset]
        repeats = 1
        used = variables(offset)
        for v, over in unrolled.items():
            if v in used:
                places = [subs(p, {v: x}) for p in places for x in over]
            else:
                repeats *= len(over)
        return {bounds(p)[1] for p in places}, repeats

    def loop(self, s: Loop) -> list[Stmt]:
        """A loop, inside of which this is done, in blocks that add few terms to each accumulator."""
        if self.iterations(s) <= self.limit:
            return [s]
        sums = self.added_by((s,))
        if max([own.terms for own in sums.values()], default=0) <= self.limit:
            return [s]
        terms = max([own.terms for own in self.added_by(s.body, sums).values()])
        if terms > self.limit // 2:
            return self.loop(Loop(s.var, s.start, s.stop, s.kind, tuple(self.apart(s.body, sums))))
        size, count = self.limit // terms, s.stop - s.start
        o = Var(fresh(f"{s.var.name}_o", self.used), 0, -(-max(bounds(count)[1], 1) // size) - 1)
        start = s.start + size * o
        whole = isinstance(count, int) and count % size == 0
        length = size if whole else emin(s.stop - start, size)
        block = Loop(s.var, start, start + length, s.kind, s.body)
        return self.loop(Loop(o, 0, (count + size - 1) // size, s.kind, tuple(self.apart((block,), sums))))

    def apart(self, body: Sequence[Stmt], sums: Mapping[str, _Sums]) -> list[Stmt]:
        """Statements that add to accumulators of their own, whose totals are then added to those there were."""
        self.changed = True
        before, after, parts = list[Stmt](), list[Stmt](), dict[str, str]()
        for name, own in sums.items():
            old = self.allocated[name]
            new = Alloc(fresh(f"{name}_part", self.used), old.dtype, old.size, "register")
            self.allocated[new.name], parts[name] = new, new.name
            q = Var(fresh("q", self.used), 0, old.size - 1) if len(own.elements) == old.size > 1 else None
            places: list[Index] = [*sorted(own.elements)] if q is None else [q + 0]
            starts = [Store(new.name, at, const(0, old.dtype)) for at in places]
            totals = [Store(name, at, binary("add", load(name, (at,), old.dtype), load(new.name, (at,), old.dtype)))
                      for at in places]
            before += [new, *_copied(q, starts)]
            after += _copied(q, totals)
        renamed = Rewriter({}, parts)
        inside = map_all(tuple(body), renamed.value, renamed.index, lambda _, e: renamed.index(e))
        return [*before, *_renamed(inside, parts), *after]


def _addend(s: Store) -> tuple[Value, ...] | None:
    """Returns what a store adds to the element that it stores to; None where it does something else."""
    value, old = s.value, load(s.buffer, (s.offset,), s.value.dtype)
    if value.op == "fma" and value.args[2] is old:
        return value.args[:2]
    if value.op == "add" and old in value.args:
        x, y = value.args
        return (y,) if x is old else (x,)
    return None


def _copied(q: Var | None, stores: Sequence[Stmt]) -> Sequence[Stmt]:
    """Stores for all values of a variable, if there is one."""
    return stores if q is None else [Loop(q, 0, q.hi + 1, "unroll", tuple(stores))]


def _renamed(body: Body, parts: Mapping[str, str]) -> list[Stmt]:
    """Statements that store to other buffers."""
    made: list[Stmt] = []
    for s in body:
        if type(s) is Store and s.buffer in parts:
            s = Store(parts[s.buffer], s.offset, s.value, s.conditions)
        made.append(map_blocks(s, lambda inner: tuple(_renamed(inner, parts))))
    return made
