"""The classes of integer expressions, and sums and products of them."""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from math import gcd
from numbers import Integral
from threading import Lock
from typing import Any, Union

from minigrad.errors import ShapeError
from minigrad.interned import Table, keep

Monomial = tuple["Atom", ...]
Terms = tuple[tuple[Monomial, int], ...]
Index = Union[int, "Expr"]


class Expr:
    """`sum(c * product(atoms) for atoms, c in terms) + const`. Made by arithmetic, never directly."""

    __slots__ = ("terms", "const", "_hash", "_bounds", "_variables", "__weakref__")
    terms: Terms
    const: int
    _hash: int | None
    _bounds: tuple[int, int] | None
    _variables: frozenset[Var] | None

    # Operands that are neither expressions nor integers (a Tensor) answer for themselves: NotImplemented.

    def __add__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            return _sum(self, other)
        if type(other) is not int and not isinstance(other, Integral):
            return NotImplemented
        return _make(self.terms, self.const + int(other)) if other else self

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index) -> Index:
        return self + -other if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rsub__(self, other: Index) -> Index:
        return self * -1 + other if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __mul__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            return _times(self, other)
        if type(other) is not int and not isinstance(other, Integral):
            return NotImplemented
        other = int(other)
        if other == 0 or other == 1:
            return self if other else 0
        return _make(tuple([(m, c * other) for m, c in self.terms]), self.const * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rfloordiv__(self, other: Index) -> Index:
        return floordiv(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __mod__(self, other: Index) -> Index:
        return mod(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rmod__(self, other: Index) -> Index:
        return mod(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is Expr and self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.terms, self.const))
        return self._hash

    def __str__(self) -> str:
        return to_text(self)

    def __repr__(self) -> str:
        return to_text(self)

    def atoms(self) -> list[Atom]:
        """Every atom once, at any depth, outer ones first."""
        found: dict[Atom, None] = {}
        stack: list[Index] = [self]
        while stack:
            e = stack.pop()
            if not isinstance(e, int):
                for monomial, _ in e.terms:
                    for a in monomial:
                        if a not in found:
                            found[a] = None
                            stack.extend(a.children())
        return list(found)


class Atom(Expr):
    """A factor that arithmetic does not look into. Subclasses say what it is bounded by and made of."""

    __slots__ = ("key",)
    key: str | None

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = object.__new__(cls)
        self.terms, self.const = (((self,), 1),), 0
        self._hash = self._bounds = self._variables = self.key = None
        return self

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def children(self) -> tuple[Index, ...]:
        """The expressions that it is made of."""
        return ()

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, inclusive."""
        raise NotImplementedError

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        """The atom with variables replaced."""
        raise NotImplementedError

    def variables(self) -> frozenset[Var]:
        """The variables that it depends on."""
        return frozenset[Var]().union(*map(variables, self.children()))

    def sort_key(self) -> str:
        if self.key is None:
            self.key = "~" + str(self)
        return self.key


_interned: Table = {}
_interning = Lock()


def _intern(key: tuple, make: Callable[[], Any]) -> Any:
    known = _interned.get(key)
    found = None if known is None else known()
    if found is None:
        with _interning:
            known = _interned.get(key)
            found = None if known is None else known()
            if found is None:
                found = make()
                keep(_interned, key, found)
    return found


class Var(Atom):
    """An integer variable, `lo <= name <= hi`; the bounds may depend on other variables (`j < n`).

    As `Variable(name, lo, hi)` it is a symbolic dim: `.bind(value)` gives it a run-time value, which is not part of any
    plan. Equal arguments give the same object.
    """

    __slots__ = ("name", "lo", "hi", "value")
    name: str
    lo: Index
    hi: Index
    value: int | None

    def __new__(cls, name: str, lo: Index, hi: Index, value: int | None = None) -> Var:
        return _intern((name, lo, hi, value), lambda: cls._new(name, lo, hi, value))

    @classmethod
    def _new(cls, name: str, lo: Index, hi: Index, value: int | None) -> Var:
        if not isinstance(name, str) or not isinstance(lo, int | Expr) or not isinstance(hi, int | Expr):
            raise ShapeError(f"[Variable] expected a name and two integers, got {name!r}, {lo!r} and {hi!r}")
        if isinstance(lo, int) and isinstance(hi, int) and hi < lo - 1:
            raise ShapeError(f"[Variable] expected lo <= hi for {name!r}, got lo={lo}, hi={hi}")
        self: Var = super().__new__(cls)
        self.name, self.lo, self.hi, self.value = name, lo, hi, value
        self.key = f"{name}\0{lo}\0{hi}\0{value}"
        return self

    def __reduce__(self) -> tuple:
        return Var, (self.name, self.lo, self.hi, self.value)

    def bind(self, value: int) -> Var:
        """The same variable with a run-time value. Raises ShapeError when it is out of range."""
        lo, hi = bounds(self)
        try:
            value = operator.index(value)
        except TypeError:
            text = f"[Variable.bind] expected a value of {self.name!r} in {lo}..{hi}, got {value!r}"
            raise ShapeError(text) from None
        if not lo <= value <= hi:
            raise ShapeError(f"[Variable.bind] expected a value of {self.name!r} in {lo}..{hi}, got {value}")
        return Var(self.name, self.lo, self.hi, value)

    def bounds(self) -> tuple[int, int]:
        lo = bounds(self.lo)[0]
        return lo, max(lo, bounds(self.hi)[1])

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return mapping.get(self, self)

    def variables(self) -> frozenset[Var]:
        return frozenset((self,))


Variable = Var


class Binary(Atom):
    """An operation on two expressions, `a` and `b`."""

    __slots__ = ("a", "b")
    a: Index
    b: Index

    def __new__(cls, a: Index, b: Index) -> Any:
        return _intern((cls, a, b), lambda: cls._new(a, b))

    @classmethod
    def _new(cls, a: Index, b: Index) -> Any:
        self = super().__new__(cls)
        self.a, self.b = a, b
        return self

    def children(self) -> tuple[Index, ...]:
        return self.a, self.b


class FloorDiv(Binary):
    """a // b. Use `//` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), (small, large) = bounds(self.a), bounds(self.b)
        small = max(small, 1)
        return min(lo // small, lo // large), max(hi // small, hi // large)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return floordiv(subs(self.a, mapping), subs(self.b, mapping))


class Mod(Binary):
    """a % b. Use `%` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), top = bounds(self.a), bounds(self.b)[1] - 1
        return 0, max(0, min(hi, top)) if lo >= 0 else top

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return mod(subs(self.a, mapping), subs(self.b, mapping))


class Min(Binary):
    """The smaller one. Use `emin` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), (lo2, hi2) = bounds(self.a), bounds(self.b)
        return min(lo, lo2), min(hi, hi2)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return emin(subs(self.a, mapping), subs(self.b, mapping))


class Max(Binary):
    """The larger one. Use `emax` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), (lo2, hi2) = bounds(self.a), bounds(self.b)
        return max(lo, lo2), max(hi, hi2)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return emax(subs(self.a, mapping), subs(self.b, mapping))


class Opaque(Atom):
    """A sum that stays one factor, so that `i * (pos + n) + j` can be divided by it. Use `dim` to make one."""

    __slots__ = ("inner",)
    inner: Expr

    def __new__(cls, inner: Expr) -> Opaque:
        return _intern((cls, inner), lambda: cls._new(inner))

    @classmethod
    def _new(cls, inner: Expr) -> Opaque:
        self: Opaque = super().__new__(cls)
        self.inner = inner
        return self

    def children(self) -> tuple[Index, ...]:
        return (self.inner,)

    def bounds(self) -> tuple[int, int]:
        return bounds(self.inner)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return dim(subs(self.inner, mapping))


def _make(terms: Terms, const: int) -> Index:
    """The canonical object for sorted, merged, non-zero terms."""
    if not terms:
        return const
    if const == 0 and len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return terms[0][0][0]
    e = Expr.__new__(Expr)
    e.terms, e.const = terms, const
    e._hash = e._bounds = e._variables = None
    return e


def monomial_of(c: int, atoms: Monomial) -> Index:
    """c * product(atoms), for c != 0."""
    return _make(((atoms, c),), 0) if atoms else c


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
    return _make(tuple(items), const)


def _sum(x: Expr, y: Expr) -> Index:
    merged = dict(x.terms)
    for m, c in y.terms:
        merged[m] = merged.get(m, 0) + c
    return build(merged, x.const + y.const)


def _join(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=lambda x: x.key or x.sort_key()))


def _times(x: Expr, y: Expr) -> Index:
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
    quotient = floordiv(m.a, m.b)
    partner = quotient * m.b * scale
    replaced: Index | None = None
    if not isinstance(partner, int):
        if all(merged.get(t) == c for t, c in partner.terms):
            replaced = scale * m.a - partner.const
        else:
            for other, coefficient in merged.items():
                for a in other:
                    if type(a) is Mod and a is not m and mod(quotient, a.b) is a:
                        partner = m.b * scale * a
                        if not isinstance(partner, int) and partner.terms == ((other, coefficient),):
                            replaced = scale * mod(m.a, m.b * a.b)
                            break
                if replaced is not None:
                    break
    if replaced is None or isinstance(partner, int):
        return None
    left = {t: c for t, c in merged.items() if t != monomial}
    for t, _ in partner.terms:
        left.pop(t, None)
    return build(left, const) + replaced


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
    inner = build(merged, e.const // common + sum(c for m, c in terms if not m))
    return product(factor) * common * Opaque(inner)  # type: ignore[arg-type]


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


def variables(e: Index) -> frozenset[Var]:
    """The variables in it (not those in the bounds of others); empty for an int."""
    if isinstance(e, int):
        return frozenset()
    if e._variables is None:
        if isinstance(e, Atom):
            e._variables = e.variables()
        else:
            e._variables = frozenset[Var]().union(*(variables(a) for m, _ in e.terms for a in m))
    return e._variables


def subs(e: Index, mapping: Mapping[Var, Index]) -> Index:
    """`e` with variables replaced, all at once, and simplified again."""
    if isinstance(e, int) or not mapping or variables(e).isdisjoint(mapping):
        return e
    if isinstance(e, Atom):
        return e.subs(mapping)
    merged: dict[Monomial, int] = {}
    const = e.const
    for m, c in e.terms:
        new = m[0].subs(mapping) if len(m) == 1 else product([a.subs(mapping) for a in m])
        if isinstance(new, int):
            const += c * new
            continue
        const += c * new.const
        for t, k in new.terms:
            merged[t] = merged.get(t, 0) + c * k
    return build(merged, const)


# Arithmetic on the classes above needs the modules below, which need the classes: these imports close the circle.
from minigrad.expr.divide import floordiv, mod  # noqa: E402
from minigrad.expr.interval import bounds, emax, emin  # noqa: E402
from minigrad.expr.text import to_text  # noqa: E402
