"""Which nests are contractions, from index variables and guards alone.

    c[b, m, n] = f(sum over k of A(b, m, k) * B(b, k, n), ...)

A and B are products of factors; a factor may load, convert, guard and compute. A variable of the domain that only A
uses is one of M, one that only B uses one of N, one of both belongs to the batch. B is the side of the output's
contiguous variable.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import prod

from minigrad.codegen.kernel.access import extent, value_accesses
from minigrad.codegen.kernel.factors import factors_of, product_of
from minigrad.codegen.kernel.nodes import Define, Nest, Store, is_sum
from minigrad.codegen.kernel.value_walk import Rewriter, loaded
from minigrad.dtype import DType
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds, coefficient, subs, variables
from minigrad.value import Value, const, free_variables, guard, walk


@dataclass(frozen=True, slots=True)
class Contraction:
    """`name` = sum over `k` of a * b. Variables outermost first; those of extent 1 are in none of them (they are 0).

    `total` is the sum's type. `outputs` are the nest's stores with every definition but the sum written out; they read
    the sum as local(name).
    """

    name: str
    batch: tuple[Var, ...]
    m: tuple[Var, ...]
    n: tuple[Var, ...]
    k: tuple[Var, ...]
    a: Value
    b: Value
    outputs: tuple[Store, ...]
    total: DType


    @property
    def buffers(self) -> tuple[str, str]:
        """The buffers that copies of a and b are called after: of those that one reads, one that the other reads only
        together with variables of its own side; '' without one, as where an operand is computed from nothing."""
        return _alone(self.a, self.b, self.n), _alone(self.b, self.a, self.m)


ROW = Var("row", 0, 0)


def _alone(own: Value, other: Value, side: tuple[Var, ...]) -> str:
    shared = loaded(*[v for v in walk(other) if v.op == "load" and free_variables(v).isdisjoint(side)])
    names = [v.buffer for v in walk(own) if v.op == "load" and v.buffer not in shared]
    return next((name for name in names if name not in loaded(other)), names[0] if names else "")


class Refused(Exception):
    """The reason why a nest is not a contraction."""


@lru_cache(maxsize=256)
def recognise(nest: Nest) -> Contraction | str:
    """The contraction that a flat nest computes, or 'not a contraction: ' and the reason."""
    try:
        return _recognise(nest)
    except Refused as reason:
        return f"not a contraction: {reason}"


@lru_cache(maxsize=256)
def matrix_or_vector_product(nest: Nest) -> Contraction | str:
    """Likewise; a vector times a matrix is a contraction too, whose M is one variable that is always 0."""
    found = recognise(nest)
    if not isinstance(found, str):
        return found
    try:
        return replace(_recognise(nest, alone=True), m=(ROW,))
    except Refused:
        return found


def _recognise(nest: Nest, alone: bool = False) -> Contraction:
    """`alone`: all variables of the domain are B's."""
    sums = [s for s in nest.body if is_sum(s)]
    if len(sums) != 1:
        raise Refused(f"{len(sums)} reductions")
    monoid, over = sums[0].value.monoid, sums[0].value.over
    if monoid != "sum":
        raise Refused(f"the reduction is {monoid}")
    single: dict[Var, Index] = {v: 0 for v in (*nest.domain, *over) if v.hi == 0}
    domain = tuple(v for v in nest.domain if v not in single)
    k = tuple(v for v in over if v not in single)
    body, outputs = written_out(nest, sums[0], single)
    conditions: list[Index] = []
    factors = factors_of(body, conditions)
    sides, batch = _two_sides(factors, domain, k) if not alone else (_one_side(factors, domain), ())
    fastest = min(domain, key=lambda v: output_step(v, outputs), default=None)
    if fastest in batch:
        raise Refused(f"the output's contiguous variable {fastest} is used by both operands")
    if fastest in _used(sides[0]):
        sides = sides[1], sides[0]
    b_vars = _used(sides[1])
    m = tuple(v for v in domain if v not in batch and v not in b_vars)
    n = tuple(v for v in domain if v not in batch and v in b_vars)
    a, b = map(product_of, sides)
    a, b = _guarded(a, b, conditions, frozenset(m), frozenset(n))
    by_output = lambda vs: tuple(sorted(vs, key=lambda v: -output_step(v, outputs)))  # noqa: E731
    return Contraction(sums[0].name, by_output(batch), by_output(m), by_output(n), _sum_order(k, a, b), a, b, outputs,
                       body.dtype)


def written_out(nest: Nest, total: Define, single: dict[Var, Index]) -> tuple[Value, tuple[Store, ...]]:
    """The body of `total` and the stores, without other definitions and without variables of extent 1.

    A store into a buffer comes after those whose values read what was there: definitions, which did before any store,
    are gone.
    """
    names: dict[str, Value] = {}
    body, outputs = None, []
    for s in nest.body:
        if isinstance(s, Nest):
            raise Refused("an inner domain")
        if s is total:
            body = Rewriter(single, locals_=names).value(s.value.args[0] if s.value.op == "reduce" else s.value)
            continue
        value = Rewriter(single, locals_=names).value(s.value)
        if value.reduces:
            raise Refused("a reduction inside an expression")
        if isinstance(s, Define):
            names[s.name] = value
        elif s.combine:
            raise Refused("a scatter")
        else:
            outputs.append(Store(s.param, tuple(subs(e, single) for e in s.indices), value))
    body = present(body, f"[plan] expected the sum {total.name} in its nest")
    if body.reduces:
        raise Refused("a reduction inside the sum")
    return body, _reads_first(outputs)


def _reads_first(stores: list[Store]) -> tuple[Store, ...]:
    left = [(s, loaded(s.value)) for s in stores]
    ordered: list[Store] = []
    while left:
        k = next((k for k, (s, _) in enumerate(left)
                  if not any(s.param in read for other, read in left if other is not s)), None)
        if k is None:
            raise Refused("outputs that read each other's old values")
        ordered.append(left.pop(k)[0])
    return tuple(ordered)


def _used(factors: list[Value]) -> frozenset[Var]:
    """The variables of some factors."""
    return frozenset[Var]().union(*map(free_variables, factors))


def _two_sides(factors: list[Value], domain: tuple[Var, ...], k: tuple[Var, ...]
               ) -> tuple[tuple[list[Value], list[Value]], tuple[Var, ...]]:
    """The factors as two groups that share only the variables of a batch, as few of those as it takes."""
    used = _used(factors)
    for v in (*domain, *k):
        if v not in used:
            raise Refused(f"no operand uses {v}")
    for count in range(len(domain) + 1):
        for batch in combinations(domain, count):
            free = frozenset(domain) - frozenset(batch)
            groups = list(_connected(factors, free))
            if len(groups) < 2:
                continue
            groups.sort(key=lambda g: -prod([extent(v) for v in _used(g) & free]))
            first, second = groups[0], groups[1]
            # What uses no variable of its own goes to the operand that is the smaller one to pack.
            for rest in (*groups[2:], [f for f in factors if not free_variables(f) & free]):
                second = second + rest
            return (first, second), batch
    raise Refused(f"all of {', '.join(map(str, domain)) or 'its factors'} belong together")


def _one_side(factors: list[Value], domain: tuple[Var, ...]) -> tuple[list[Value], list[Value]]:
    """The factors that use no variable of the domain, and those that do, as many as there are variables or one."""
    rest, side = ([f for f in factors if free_variables(f).isdisjoint(domain) is none] for none in (True, False))
    if not rest or not side:
        raise Refused("no operand is a vector")
    return rest, side


def _connected(factors: list[Value], free: frozenset[Var]) -> Iterator[list[Value]]:
    """Factors joined through the variables in `free`; those that use none of them are left out."""
    left = [f for f in factors if free_variables(f) & free]
    while left:
        group = [left.pop(0)]
        while more := [f for f in left if free_variables(f) & free & _used(group)]:
            group += more
            left = [f for f in left if f not in more]
        yield group


def _guarded(a: Value, b: Value, conditions: list[Index], m: frozenset[Var], n: frozenset[Var]
             ) -> tuple[Value, Value]:
    """Conditions of the whole product as zeros in the operand whose variables they use: the border is 0 * w."""
    ours: list[Index] = []
    theirs: list[Index] = []
    for c in conditions:
        used = variables(c)
        if used & m and used & n:
            raise Refused(f"the guard {c} >= 0 uses variables of both operands")
        # Where only variables of both decide, what either operand reads may not be there if the condition fails.
        if not used & n and (used & m or used & free_variables(a)):
            ours.append(c)
        if not used & m and (used & n or used & free_variables(b) or not used & free_variables(a)):
            theirs.append(c)
    return guard(a, const(0, a.dtype), tuple(ours)), guard(b, const(0, b.dtype), tuple(theirs))


def output_step(v: Var, outputs: tuple[Store, ...]) -> int:
    """The step of the first output with a variable; not at all counts as very far."""
    c = coefficient(outputs[0].indices[0], v)
    if c is None:
        raise Refused(f"an index is not linear in {v}")
    return max(map(abs, bounds(c))) or 1 << 60


def _sum_order(k: tuple[Var, ...], a: Value, b: Value) -> tuple[Var, ...]:
    """The sum's variables as an operand steps through them, the longest run innermost: packing reads it in vectors."""
    orders = []
    for operand in (a, b):
        for x in value_accesses(operand, ()):
            steps = {v: coefficient(x.offset, v) for v in k}
            known = {v: c for v, c in steps.items() if isinstance(c, int) and c}
            if known:
                order = sorted(k, key=lambda v: -abs(known.get(v, 1 << 60)))
                orders.append((abs(known.get(order[-1], 1 << 60)), order))
    return tuple(min(orders, key=lambda o: o[0])[1]) if orders else k
