"""The accesses that policies look at: every load and store of a flat nest, and how it steps with each index
variable."""
from __future__ import annotations

from functools import lru_cache
from math import prod

from minigrad.codegen.kernel.nodes import Nest, Store, is_sum
from minigrad.expr import Index, Var, bounds, coefficient, variables
from minigrad.record import record
from minigrad.value import Value, value_atoms, walk

MAX_STRIDE = 4
"""Elements so far apart are still read as whole vectors."""


@record
class Access:
    """One load or store at a flat `offset`; `over` are the reduction and row variables around it."""

    kind: str
    offset: Index
    over: tuple[Var, ...]
    bits: int

    def step(self, v: Var) -> int | None:
        """0: independent of v; 1: contiguous; 2: any other linear step; None: data-dependent or not linear."""
        return step_of(self.offset, v)


@lru_cache(maxsize=1 << 14)
def step_of(offset: Index, v: Var) -> int | None:
    """`Access.step` of an offset; cached, as the search for a tile asks again and again."""
    c = coefficient(offset, v)
    if c is None or any(v in variables(a) for a in value_atoms(offset)):
        return None
    return c if isinstance(c, int) and c in (0, 1) else 2


def steps_near(offset: Index, v: Var) -> bool:
    """True where whole vectors are read along a variable: each element is at most `MAX_STRIDE` after the last one."""
    step = coefficient(offset, v) if step_of(offset, v) is not None else None
    return isinstance(step, int) and 0 <= step <= MAX_STRIDE


@record
class Reduced:
    """One reduction of a nest: the definition's name, its monoid, variables and body."""

    name: str
    monoid: str
    over: tuple[Var, ...]
    body: Value


@lru_cache(maxsize=1 << 13)
def extent(v: Var) -> int:
    """The largest number of iterations of an index variable."""
    return v.hi + 1 if type(v.hi) is int else max(bounds(v.hi)[1] + 1, 0)


@lru_cache(maxsize=1 << 13)
def typical(v: Var) -> int:
    """Iterations to plan for: the extent, or a guess where it is only known at run time."""
    return extent(v) if isinstance(v.hi, int) else min(extent(v), 256)


def reductions(nest: Nest) -> list[Reduced]:
    """Definitions of the nest (not of inner ones) that are reductions."""
    found = []
    for s in nest.body:
        if is_sum(s):
            found.append(Reduced(s.name, s.value.monoid, s.value.over, s.value.args[0]))
    return found


def iterations(nest: Nest) -> float:
    """The number of times that the statements of a nest are evaluated, terms of sums included."""
    inside = 1.0 + sum(iterations(s) for s in nest.body if isinstance(s, Nest))
    inside += sum(prod([typical(v) for v in r.over]) for r in reductions(nest))
    return prod([typical(v) for v in nest.domain]) * inside


def accesses(nest: Nest, over: tuple[Var, ...] = ()) -> list[Access]:
    """Loads and stores of a nest, of its reductions and of its inner nests."""
    found: list[Access] = []
    for s in nest.body:
        if isinstance(s, Nest):
            found += accesses(s, over + s.domain)
            continue
        found += value_accesses(s.value, over)
        if isinstance(s, Store):
            found.append(Access("store", s.indices[0], over, s.value.dtype.bits))
            for a in value_atoms(s.indices[0]):
                found += value_accesses(a.value, over)
    return found


@lru_cache(maxsize=1 << 12)
def value_accesses(value: Value, over: tuple[Var, ...]) -> tuple[Access, ...]:
    """Loads of a value; those below a reduction carry its variables."""
    bound: dict[Value, tuple[Var, ...]] = {}
    order = walk(value)
    for v in reversed(order):
        inside = bound.setdefault(v, over)
        if v.op == "reduce":
            inside = inside + v.over
        for a in v.args:
            bound[a] = inside
    return tuple([Access("load", v.indices[0], bound.get(v, over), v.dtype.bits) for v in order if v.op == "load"])
