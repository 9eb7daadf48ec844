"""Sums and products of expressions: the canonical form, in which equal ones are one object."""
from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from math import gcd
from typing import Any

from minigrad.expr.core import Expr, Index, Mod, Monomial, Opaque, Terms, Var, enter
from minigrad.interned import Table

_sums: Table = {}


def make(terms: Terms, const: int) -> Index:
    """The one object for sorted, merged, non-zero terms."""
    if not terms:
        return const
    if const == 0 and len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return terms[0][0][0]
    key = terms, const
    known = _sums.get(key)
    found = None if known is None else known()
    return enter(_sums, key, _new, terms, const) if found is None else found


def _new(terms: Terms, const: int) -> Expr:
    e = Expr.__new__(Expr)
    e.terms, e.const = terms, const
    e.known_bounds = e.known_variables = e.known_values = e.known_varying = None
    return e


def monomial_of(c: int, atoms: Monomial) -> Index:
    """c * product(atoms), for c != 0."""
    return make(((atoms, c),), 0) if atoms else c


def _order(term: tuple[Monomial, int]) -> list[str]:
    monomial = term[0]
    if len(monomial) == 1:
        a, = monomial
        return [a.key or a.sort_key()]
    return [a.key or a.sort_key() for a in monomial]


def build(merged: dict[Monomial, int], const: int) -> Index:
    """The canonical object for terms in any order."""
    items = [t for t in merged.items() if t[1]]
    if len(items) > 1:
        for monomial, _ in items:
            for a in monomial:
                if type(a) is Mod:
                    joined = _recombine(dict(items), const, monomial, a)
                    if joined is not None:
                        return joined
        items.sort(key=_order)
    return make(tuple(items), const)


def varying(e: Expr) -> Expr:
    """`e` without its constant: what is found out about it holds for all sums that differ in that alone."""
    if not e.const:
        return e
    found: Any = e.known_varying
    if found is None:
        found = make(e.terms, 0)
        e.known_varying = found
    return found


@lru_cache(maxsize=1 << 14)
def shifted(e: Expr, by: int) -> Index:
    """e + by."""
    found = make(e.terms, e.const + by)
    if type(found) is Expr and found.known_varying is None:
        found.known_variables, found.known_values, found.known_varying = e.known_variables, e.known_values, varying(e)
    return found


@lru_cache(maxsize=1 << 14)
def scaled(e: Expr, by: int) -> Index:
    """e * by, which is not 0."""
    return make(tuple([(m, c * by) for m, c in e.terms]), e.const * by)


@lru_cache(maxsize=1 << 14)
def sum_of(x: Expr, y: Expr) -> Index:
    """x + y."""
    merged = dict(x.terms)
    for m, c in y.terms:
        merged[m] = merged.get(m, 0) + c
    return build(merged, x.const + y.const)


def _join(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=lambda x: x.key or x.sort_key()))


@lru_cache(maxsize=1 << 14)
def product_of(x: Expr, y: Expr) -> Index:
    """x * y."""
    merged: dict[Monomial, int] = {}
    left = [*x.terms, *([((), x.const)] if x.const else [])]
    right = [*y.terms, *([((), y.const)] if y.const else [])]
    for m1, c1 in left:
        for m2, c2 in right:
            m = _join(m1, m2)
            merged[m] = merged.get(m, 0) + c1 * c2
    const = merged.pop((), 0)
    return build(merged, const)


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """monomial / factor, or None where factor's atoms are not all in it."""
    rest = list(monomial)
    for a in factor:
        if a not in rest:
            return None
        rest.remove(a)
    return tuple(rest)


def _recombine(merged: dict[Monomial, int], const: int, monomial: Monomial, m: Mod) -> Index | None:
    """k*(e % c) + k*c*(e // c) -> k*e, and k*(e % c) + k*c*((e // c) % d) -> k*(e % (c*d)), for the Mod `m`."""
    k, rest = merged[monomial], without(monomial, (m,))
    scale = monomial_of(k, rest or ())
    quotient = m.a // m.b
    partner = quotient * m.b * scale
    replaced: Index | None = None
    if not isinstance(partner, int):
        if all(merged.get(t) == c for t, c in partner.terms):
            replaced = scale * m.a - partner.const
        else:
            for other, coefficient in merged.items():
                for a in other:
                    if type(a) is Mod and a is not m and quotient % a.b is a:
                        partner = m.b * scale * a
                        if not isinstance(partner, int) and partner.terms == ((other, coefficient),):
                            replaced = scale * (m.a % (m.b * a.b))
                            break
                if replaced is not None:
                    break
    if replaced is None or isinstance(partner, int):
        return None
    left = {t: c for t, c in merged.items() if t != monomial}
    for t, _ in partner.terms:
        left.pop(t, None)
    return build(left, const) + replaced


def split(e: Expr, chosen: Collection[Var]) -> tuple[Index, tuple[tuple[Var, int], ...]]:
    """(rest, steps): e = rest + the sum of step * variable over `steps`, for those chosen that are terms themselves."""
    steps = tuple([(m[0], c) for m, c in e.terms if len(m) == 1 and type(m[0]) is Var and m[0] in chosen])
    if not steps:
        return e, ()
    rest = [t for t in e.terms if len(t[0]) > 1 or type(t[0][0]) is not Var or t[0][0] not in chosen]
    return make(tuple(rest), e.const), steps


def product(items: Iterable[Index]) -> Index:
    """The product, 1 when there are none."""
    result: Index = 1
    for e in items:
        result = e if type(result) is int and result == 1 else result * e
    return result


def dim(e: Index) -> Index:
    """`e` as a shape's dim: a sum of several terms becomes (its common factor times) one Opaque atom."""
    e = expand(e)
    if isinstance(e, int) or (len(e.terms) == 1 and not e.const):
        return e
    common = gcd(e.const, *(c for _, c in e.terms))
    factor = e.terms[0][0] if not e.const else ()
    for m, _ in e.terms[1:]:
        factor = common_factor(factor, m)
    terms = tuple([(without(m, factor) or (), c // common) for m, c in e.terms])
    merged = {m: c for m, c in terms if m}
    inner: Any = build(merged, e.const // common + sum(c for m, c in terms if not m))
    return product(factor) * common * Opaque(inner)


def expand(e: Index) -> Index:
    """`e` with the Opaque sums among its factors multiplied out."""
    if isinstance(e, int) or not any(type(a) is Opaque for m, _ in e.terms for a in m):
        return e
    total: Index = e.const
    for m, c in e.terms:
        total = total + product(expand(a.inner) if type(a) is Opaque else a for a in m) * c
    return total


def common_factor(a: Monomial, b: Monomial) -> Monomial:
    rest, shared = list(b), []
    for x in a:
        if x in rest:
            rest.remove(x)
            shared.append(x)
    return tuple(shared)
