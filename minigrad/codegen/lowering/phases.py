"""Phases of a strided gradient: divisibility guards out of the loops.

Before:  for p<9:  y[p] = sum(k<3: (g[(p-k)//2, k] else 0 if p-k >= 0 and ... and -((p-k)%2) >= 0))
After:   for p<5:  y[2*p]   = sum(k<2: (g[p-k, 2*k] else 0 if p-k >= 0 and ...))
         for p<4:  y[2*p+1] = (g[p, 1] else 0 ...)
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as combinations
from math import gcd, lcm, prod

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import rebuilt
from minigrad.codegen.kernel.walk import assignments, bound_variables
from minigrad.codegen.lowering.rename import rename_nest
from minigrad.errors import present
from minigrad.expr import Index, Mod, Var, bounds, subs, variables
from minigrad.value import (
    Value,
    const,
    expressions,
    guard,
    indices_of,
    reduce,
    substitute,
    walk,
)

MAX_PHASES = 64
"""The most phases: more copies of a nest cost more in code than their guards do in time."""


def split_phases(kernel: Kernel) -> Kernel:
    """One nest per residue of the output index, each without divisibility guards; other nests stay as they are.

    A guard `-((a*p - d*k + b) % s) >= 0` over a domain variable p and at most one reduction variable k is resolved by
    `p = period*p1 + r` and by letting k run over its solutions only, where the terms left out are the identity of the
    reduction. A nest in which one such guard would be left stays whole.
    """
    return kernel.with_nests(tuple([phase for nest in kernel.nests for phase in _phases(nest)]))


def _divisibility(condition: Index) -> Mod | None:
    """The `e % s` of a condition that says s divides e."""
    if not isinstance(condition, int) and condition.const == 0 and len(condition.terms) == 1:
        (atoms, c), = condition.terms
        if c < 0 and len(atoms) == 1 and isinstance(atoms[0], Mod) and isinstance(atoms[0].b, int):
            return atoms[0]
    return None


def _divisibilities(nest: Nest) -> Iterator[Mod]:
    for s in assignments((nest,)):
        if any([_divisibility(e) is not None for e in expressions(s.value)]):
            for v in walk(s.value):
                for condition in indices_of(v) if v.op == "guard" else ():
                    m = _divisibility(condition)
                    if m is not None:
                        yield m


def _period(m: Mod, v: Var) -> int | None:
    """The number of steps of `v` after which the remainder repeats; None where v is not linear in it."""
    period = None
    for atoms, c in m.a.terms if not isinstance(m.a, int) else ():
        if atoms == (v,):
            period = int(m.b) // gcd(c, int(m.b))
        elif any(v in variables(a) for a in atoms):
            return None
    return period


def _phases(nest: Nest) -> list[Nest]:
    mods = list(dict.fromkeys(_divisibilities(nest)))
    if not mods:
        return [nest]
    periods: dict[Var, int] = {}
    for m in mods:
        for v in nest.domain:
            if v in variables(m.a):
                periods[v] = lcm(periods.get(v, 1), _period(m, v) or 1)
    split = [v for v, period in periods.items() if period > 1]
    if prod(periods.values()) > MAX_PHASES or any(variables(v.hi) & set(split) for v in bound_variables((nest,))):
        return [nest]
    phases = []
    for residues in combinations(*(range(periods[v]) for v in split)):
        phase = _phase(nest, {v: (periods[v], r) for v, r in zip(split, residues, strict=True)})
        if phase is not None:
            phases.append(phase)
    if any(True for phase in phases for _ in _divisibilities(phase)):
        return [nest]
    return phases


def _phase(nest: Nest, residues: dict[Var, tuple[int, int]]) -> Nest | None:
    """The nest for `v = period*v1 + r` of each split variable; None where it is empty."""
    mapping: dict[Var, Index] = {}
    domain: list[Var] = []
    for v in nest.domain:
        if v not in residues:
            domain.append(v)
            continue
        period, r = residues[v]
        last = (v.hi - r) // period
        if bounds(last)[1] < 0:
            return None
        if isinstance(last, int) and last == 0:
            mapping[v] = r
        else:
            v1 = Var(v.name, 0, last)
            domain.append(v1)
            mapping[v] = period * v1 + r
    body = rename_nest(Nest((), nest.body), mapping).body
    return _restricted(Nest(tuple(domain), body))


def _restricted(nest: Nest) -> Nest:
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.extend(_phases(s))
        else:
            body.append(replace(s, value=restrict(s.value)))
    return Nest(nest.domain, tuple(body))


def restrict(root: Value) -> Value:
    """`root` with each reduction running only where its divisibility guards hold, and the other conditions reduced."""
    return rebuilt(root, lambda v, args: _restrict_reduce(v, args[0]) if v.op == "reduce" else _lowest(v, args))


def _lowest(v: Value, args: tuple[Value, ...]) -> Value | None:
    """A guard with its conditions in lowest terms."""
    return guard(args[0], args[1], tuple(map(_lowest_terms, v.conditions))) if v.op == "guard" else None


def _lowest_terms(condition: Index) -> Index:
    """6*i - 4 >= 0 says i - 1 >= 0."""
    if isinstance(condition, int) or not condition.terms:
        return condition
    common = gcd(*(c for _, c in condition.terms))
    return condition // common if common > 1 and _divisibility(condition) is None else condition


def _restrict_reduce(v: Value, body: Value) -> Value:
    monoid, over = v.monoid, v.over
    identity = MONOIDS[monoid].init(v.dtype)
    kept = list(over)
    while True:
        found = _solvable(body, kept, identity)
        if found is None:
            break
        condition, m, k = found
        solutions = _solutions(m, k)
        if solutions is None:
            body = _where_false(body, condition)
            continue
        start, step, count = solutions
        at = kept.index(k)
        if count == 1:
            del kept[at]
            body = substitute(body, {k: start})
        else:
            kept[at] = Var(k.name, 0, count - 1)
            body = substitute(body, {k: start + step * kept[at]})
    return identity if body is identity else reduce(monoid, tuple(kept), rebuilt(body, _lowest))


def _solvable(body: Value, over: list[Var], identity: Value) -> tuple[Index, Mod, Var] | None:
    """A guard that says s | a*k + b for one reduction variable k, and without which `body` is the identity."""
    for v in walk(body):
        for condition in indices_of(v) if v.op == "guard" else ():
            m = _divisibility(condition)
            if m is not None and len(variables(m.a)) == 1:
                k, = variables(m.a)
                if (k in over and isinstance(k.hi, int) and _period(m, k) is not None
                        and _where_false(body, condition) is identity):
                    return condition, m, k
    return None


def _solutions(m: Mod, k: Var) -> tuple[int, int, int] | None:
    """(start, step, count) of the k in its range with m == 0, None where there are none."""
    step, last = present(_period(m, k), "[lower] expected a condition that repeats"), bounds(k)[1]
    for start in range(min(step, last + 1)):
        if subs(m, {k: start}) == 0:
            return start, step, (last - start) // step + 1
    return None


def _where_false(root: Value, condition: Index) -> Value:
    """The value of `root` where the condition does not hold."""
    def one(v: Value, args: tuple[Value, ...]) -> Value | None:
        if v.op == "guard" and condition in v.conditions:
            return args[1]
        return const(0, v.dtype) if v.op == "cast" and args[0].op == "const" and args[0].number == 0 else None

    return rebuilt(root, one)
