"""Instructions that the items of a launch issue, from its loops.

A value is computed once for loops that it does not depend on, and for equal statements between barriers, as any
compiler does. How often an access is executed, and what it touches, is counted in traffic.py.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import numpy as np

from minigrad.codegen.cost.accesses import WORD, Moved, Shape
from minigrad.codegen.cost.points import GROUP, LANE, Axis, Bound, Clause, Grid, in_waves, used_by
from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, If, Let, Loop, Stmt, Store, extent_of, group_size
from minigrad.codegen.ir.walk import statements, values
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.expr import FloorDiv, Index, Mod, Var, evaluate, variables
from minigrad.program import GROUP as ITEMS
from minigrad.value import Value, free_variables, value_atoms, walk

FREE = frozenset(("load", "const", "index", "local", "guard", "bitcast"))
INSTRUCTIONS = {"div": 8, "idiv": 20, "irem": 20, "rem": 20, "sqrt": 8, "exp": 4, "log": 6, "sin": 20, "cos": 20,
                "tanh": 12, "sigmoid": 8, "erf": 20, "pow": 30, "round": 2}
"""Instructions of an operation, of any other one: as compilers of GPUs write them out."""
DIVISION = 4  # instructions of a division of an index by a number that is no power of two
KEPT = 8  # registers for counters, and what the compiler keeps
MOST_OPERANDS, MOST_ADDRESSES = 48, 20  # registers of which compilers load what is used next
UNROLLED = 4  # steps of a loop whose loads a compiler begins together

Paths = tuple[tuple[Clause, ...], ...]
"""Conditions under one of which a value is used."""
ALWAYS: Paths = ((),)


@dataclass(slots=True)
class Work:
    """Counts of what a launch does.

    Of a work-item: `fma`, multiply-adds of float32, `other` instructions and those for addresses, loads and stores by
    their bytes (`widths`), those among them that copy into local memory (`staged`), loads that each wait for the one
    before (`waits`), barriers, multiply-adds of matrix units (`matrix`). `passes` of 32 banks of a wave, those among
    them of vectors that all lanes read (`broadcasts`); `copies`, passes of a group into local memory, of which it has
    `local` bytes. `local_loads` and `local_stores` are elements, executed in the whole launch. `accumulators`,
    `operands` and `addresses` are words that an item has in registers, `private` bytes are in memory.
    """

    groups: int
    items: int
    buffers: dict[str, Moved]
    fma: float = 0.0
    other: float = 0.0
    address: float = 0.0
    widths: dict[int, float] = field(default_factory=dict)
    staged: float = 0.0
    waits: float = 0.0
    passes: float = 0.0
    broadcasts: float = 0.0
    copies: float = 0.0
    barriers: float = 0.0
    matrix: float = 0.0
    local: int = 0
    local_loads: float = 0.0
    local_stores: float = 0.0
    private: float = 0.0
    accumulators: int = 0
    operands: float = 0.0
    addresses: float = 0.0

    @property
    def loads(self) -> float:
        return sum(self.widths.values())

    @property
    def registers(self) -> float:
        """An estimate of the registers of an item, where no compiler tells."""
        return KEPT + self.accumulators + min(self.operands, MOST_OPERANDS) + min(self.addresses, MOST_ADDRESSES)


@dataclass(slots=True, eq=False)
class Around:
    """A loop around a statement. `volatile`: buffers that are stored to in it, and whether it has barriers."""

    axis: Axis
    var: Var
    unrolled: bool
    volatile: frozenset[str]
    barrier: bool
    trips: float


class Walk(ABC):
    """Goes through the statements of a launch once, and adds up what an item does."""

    def __init__(self, function: Function, dims: Mapping[str, int], wave: int, sector: int):
        self.function = function
        self.dims = {v: dims[v.name] for v in function.dims}
        extent, grouped = evaluate(extent_of(function), dims), group_size(function)
        parallel = any(isinstance(s, Loop) and s.kind in ("parallel", "group") for s in function.body)
        items = grouped or (min(ITEMS, max(extent, 1)) if parallel else 1)
        self.extent, self.groups = extent, extent if grouped else ceil(extent / items)
        self.lanes = Axis(LANE, items)
        self.shape = Shape(self.dims, self.lanes, self.groups, wave, sector)
        self.waves = ceil(items / wave)
        self.found = Work(self.groups, items, {p.name: Moved(p.dtype.itemsize) for p in function.buffers})
        self.sizes = {p.name: evaluate(p.size, dims) for p in function.buffers}
        self.scope = {p.name: "global" for p in function.buffers}
        self.itemsize = {p.name: p.dtype.itemsize for p in function.buffers}
        self.bound: dict[Var, Bound] = {}
        self.path: list[Around] = []
        self.clauses: tuple[Clause, ...] = ()
        self.lets: dict[str, frozenset[Var]] = {}
        self.seen: dict[object, None] = {}
        self.live: dict[int, float] = {}
        self.part = 0
        self.volatile_lets: dict[str, frozenset[str]] = {}
        every = statements(function)
        local = {s.name for s in every if isinstance(s, Alloc) and s.scope == "local"}
        self.sources = {v.buffer for s in every if isinstance(s, Store) and s.buffer in local
                        for v in walk(s.value) if v.op == "load"}
        self.copying = False

    @abstractmethod
    def access(self, buffer: str, offset: Index, clauses: tuple[Clause, ...], wanted: Paths, v: Value | None) -> None:
        """Counts an access where all clauses hold, and those of one of the paths: a load, or a store without `v`."""

    @abstractmethod
    def call(self, s: Call) -> None:
        """Counts what a microkernel does."""

    # ---- statements ----

    def block(self, body: Iterable[Stmt]) -> None:
        for s in body:
            if isinstance(s, Loop):
                self.loop(s)
            elif isinstance(s, Alloc):
                self.alloc(s)
            elif isinstance(s, If):
                self.condition(s.conditions)
                before = self.clauses
                for inside, wanted in ((s.then, True), (s.otherwise, False)):
                    self.clauses = (*before, (s.conditions, wanted))
                    self.block(inside)
                self.clauses = before
            elif isinstance(s, Barrier):
                self.found.barriers += self.times(self.path)
                self.renew()
            elif isinstance(s, Call):
                self.call(s)
            elif isinstance(s, (Let, Store)):
                self.statement(s)

    def alloc(self, s: Alloc) -> None:
        self.scope[s.name], self.itemsize[s.name] = s.scope, s.dtype.itemsize
        size = s.size * s.dtype.itemsize
        if s.scope == "local":
            self.found.local += size
        elif s.scope == "register":
            self.found.accumulators += ceil(size / WORD)
        else:
            self.found.private += size

    def loop(self, s: Loop) -> None:
        outer = dict(self.bound), self.clauses
        if s.kind == "group":
            self.bound[s.var] = Bound((Axis(GROUP, self.groups),))
        elif s.kind == "parallel":
            self.bound[s.var] = Bound((Axis(GROUP, self.groups), self.lanes), self.lanes.size)
            if self.extent % self.lanes.size:
                self.clauses += (((self.extent - 1 - s.var,), True),)
        elif s.kind == "item":
            lanes = Axis(LANE, evaluate(s.stop, self.dims))
            self.bound[s.var] = Bound((lanes,))
            if lanes.size < self.lanes.size:
                self.clauses += (((lanes.size - 1 - s.var,), True),)
        else:
            self.inner(s)
            self.bound, self.clauses = outer
            return
        self.renew()
        self.block(s.body)
        self.bound, self.clauses = outer

    def inner(self, s: Loop) -> None:
        start, size = s.start, s.stop - s.start
        if not isinstance(size, int) and not variables(size) <= self.dims.keys():  # as long as the longest
            start, size = self.least(s.start, False), self.least(s.stop, True) - self.least(s.start, False)
            self.clauses += (((s.var - s.start, s.stop - 1 - s.var), True),)
        size = evaluate(size, {v.name: n for v, n in self.dims.items()})
        if size <= 0:
            return
        axis = Axis(f"{s.var.name}#{len(self.path)}#{id(s)}", size)
        inside = statements(s.body)
        volatile = frozenset([x.buffer for x in inside if isinstance(x, Store)]
                             + [name for x in inside if isinstance(x, Call) for name, _ in x.buffers])
        self.bound[s.var] = Bound((axis,), 0, start)
        self.path.append(Around(axis, s.var, s.kind == "unroll", volatile, any(isinstance(x, Barrier) for x in inside),
                                 axis.size))
        if s.kind != "unroll":
            unrolled = 1 if any(isinstance(x, Barrier | Loop) and getattr(x, "kind", "") != "unroll" for x in s.body) \
                else UNROLLED
            self.found.other += 2 * self.times(self.path) / unrolled  # to count and to branch
            self.renew()
        self.waits(s)
        self.block(s.body)
        self.path.pop()
        if s.kind != "unroll":
            self.renew()

    def least(self, e: Index, most: bool) -> int:
        """A bound of a loop: the least that it starts from, or the most that it stops at."""
        if isinstance(e, int):
            return e
        found = self.grid([e]).value(e)
        return int(np.max(found) if most else np.min(found))

    def waits(self, s: Loop) -> None:
        """A step of a loop waits for what it loads, but for what only the next step uses."""
        if s.kind == "unroll":
            return
        direct = [x for x in _directly(s.body) if isinstance(x, (Let, Store))]
        waiting = [x for x in direct if any(v.op == "load" and self.scope.get(v.buffer) == "global"
                                            for v in walk(*values(x))) and not self.early(x, s)]
        if waiting:
            copies = all(isinstance(x, Store) and self.copies(x, walk(x.value)) for x in waiting)
            together = 1 if any(isinstance(x, Barrier) for x in s.body) else self.path[-1].trips if copies else UNROLLED
            self.found.waits += self.times(self.path) / together

    def early(self, x: Let | Store, s: Loop) -> bool:
        """True for a copy into registers that are read before it in its loop's text."""
        if not isinstance(x, Store) or self.scope.get(x.buffer, "register") != "register":
            return False
        for other in statements(s.body):
            if other is x:
                return False
            if any(v.op == "load" and v.buffer == x.buffer for v in walk(*values(other))):
                return True
        return False

    def statement(self, s: Let | Store) -> None:
        own = (s.offset, *s.conditions) if isinstance(s, Store) else ()
        roots = [s.value, *[a.value for e in own for a in value_atoms(e)]]
        condition: tuple[Clause, ...] = ()
        if isinstance(s, Store) and s.conditions:
            self.condition(s.conditions)
            condition = ((s.conditions, True),)
        order = walk(*roots)
        wanted = _wanted(order, roots)
        self.copying = isinstance(s, Store) and self.copies(s, order)
        for v in order:
            if v.op == "load":
                self.access(v.buffer, v.indices[0], (*self.clauses, *condition), wanted[v], v)
            elif v.op == "guard":
                self.condition(v.conditions)
            elif v.op not in FREE:
                self.operate(v)
        if isinstance(s, Let):
            self.lets[s.name] = frozenset(self.depends(s.value))
            self.volatile_lets[s.name] = self.reads(s.value)
        else:
            self.access(s.buffer, s.offset, (*self.clauses, *condition), ALWAYS, None)

    def copies(self, s: Store, order: Iterable[Value]) -> bool:
        """True for a store that copies into local memory, or into registers that are copied there."""
        loaded = [v.buffer for v in order if v.op == "load"]
        goal = self.scope.get(s.buffer) == "local" or s.buffer in self.sources
        return goal and bool(loaded) and s.buffer not in loaded and all(v.op in FREE or v.op == "cast" for v in order)

    def renew(self) -> None:
        """Forgets what was computed: another loop or what follows a barrier begins."""
        self.seen.clear()
        self.part += 1

    # ---- how often ----

    def times(self, path: Iterable[Around]) -> float:
        return prod([x.trips for x in path])

    def depends(self, v: Value) -> set[Var]:
        found = set(free_variables(v)) | used_by([e for x in walk(v) if x.op in ("load", "index")
                                                  for e in (x.indices if x.op == "load" else (x.index,))])
        for name in locals_of(v):
            found |= self.lets.get(name, frozenset())
        return found

    def reads(self, v: Value) -> frozenset[str]:
        found = frozenset(x.buffer for x in walk(v) if x.op == "load")
        return found.union(*[self.volatile_lets.get(name, frozenset()) for name in locals_of(v)])

    def executed(self, used: set[Var], reads: frozenset[str]) -> list[Around]:
        """The loops in whose iterations something is computed anew."""
        own = [x.var in used or not reads.isdisjoint(x.volatile) or
               (x.barrier and any(self.scope.get(b) == "local" for b in reads)) for x in self.path]
        last = max((k for k, mine in enumerate(own) if mine), default=-1)
        return [x for k, x in enumerate(self.path[:last + 1]) if own[k] or not x.unrolled]

    def once(self, what: object, path: list[Around]) -> bool:
        """True for the first time that something is computed between barriers."""
        key = (what, *[x.axis.name for x in path])
        if key in self.seen:
            return False
        self.seen[key] = None
        return True

    def operate(self, v: Value) -> None:
        reads = self.reads(v)
        path = self.executed(self.depends(v), reads)
        fresh = any(self.scope.get(b) == "register" for b in reads)
        if not fresh and not self.once(v, path):
            return
        share = self.share(self.clauses)
        if v.op == "fma" and v.dtype.itemsize <= 4:
            self.found.fma += self.times(path) * share
        else:
            wide = 2 if v.dtype.itemsize == 8 else 1
            self.found.other += INSTRUCTIONS.get(v.op, 1) * wide * self.times(path) * share

    def condition(self, conditions: Iterable[Index]) -> None:
        for c in conditions:
            path = self.executed(used_by([c]), frozenset())
            if self.once(c, path):
                self.found.other += self.times(path)
            self.address(c)

    def address(self, e: Index) -> None:
        """Divisions in an index; sums of steps are added to by the loops that count."""
        if isinstance(e, int):
            return
        for a in e.atoms():
            if isinstance(a, FloorDiv | Mod):
                path = self.executed(set(variables(a)), frozenset())
                if self.once(a, path):
                    power = isinstance(a.b, int) and a.b & (a.b - 1) == 0
                    self.found.address += (1 if power else DIVISION) * self.times(path)

    def grid(self, indices: Iterable[Index], clauses: Iterable[Clause] = (), **how: Any) -> Grid:
        every = [*indices, *[c for conditions, _ in clauses for c in conditions]]
        return Grid(self.bound, self.dims, self.lanes, used_by(every), **how)

    def share(self, clauses: tuple[Clause, ...]) -> float:
        """The part of a wave's steps in which some lane does something."""
        if not clauses:
            return 1.0
        grid = self.grid((), clauses)
        return float(np.mean(in_waves(grid.holds(clauses), self.shape.wave, False).any(axis=-1)))



def _wanted(order: list[Value], roots: list[Value]) -> dict[Value, Paths]:
    """Under which conditions each value is used: one of several paths of clauses."""
    found: dict[Value, dict[tuple[Clause, ...], None]] = {v: {} for v in order}
    for root in roots:
        found[root][()] = None
    for v in reversed(order):
        for path in found[v]:
            for k, x in enumerate(v.operands):
                inside = path
                if v.op == "guard" and k < 2:
                    inside = (*path, (v.conditions, k == 0))
                found[x][inside] = None
    return {v: ALWAYS if () in paths else tuple(paths) for v, paths in found.items()}


def _directly(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Statements of a loop's body, those in unrolled loops and branches too."""
    for s in body:
        if isinstance(s, Loop):
            if s.kind == "unroll":
                yield from _directly(s.body)
        elif isinstance(s, If):
            yield from _directly((*s.then, *s.otherwise))
        else:
            yield s


