"""The classes of integer expressions, their variables and what replaces them. Sums and products are in sums.py.

Equal expressions are one object: they are compared and hashed by identity, and what was found out about one is kept
with it (bounds, variables) or in caches by it.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral
from threading import Lock
from typing import Any, Union

from minigrad.errors import ShapeError
from minigrad.interned import Table, keep
from minigrad.locks import free_in_children

Monomial = tuple["Atom", ...]
Terms = tuple[tuple[Monomial, int], ...]
Index = Union[int, "Expr"]


class Expr:
    """`sum(c * product(atoms) for atoms, c in terms) + const`. Made by arithmetic, never directly."""

    __slots__ = ("terms", "const", "_bounds", "_variables", "_values", "_varying", "__weakref__")
    terms: Terms
    const: int
    _bounds: tuple[int, int] | None
    _variables: frozenset[Var] | None
    _values: tuple | None
    """What `value.value_atoms` found out."""
    _varying: Expr | None

    # Operands that are neither expressions nor integers (a Tensor) answer for themselves: NotImplemented.

    def __add__(self, other: Index) -> Index:
        if type(other) is int:
            return shifted(self, other) if other else self
        if isinstance(other, Expr):
            return sum_of(self, other)
        return self + int(other) if isinstance(other, Integral) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index) -> Index:
        if type(other) is int:
            return shifted(self, -other) if other else self
        return self + -other if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rsub__(self, other: Index) -> Index:
        return self * -1 + other if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __mul__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            return product_of(self, other)
        if type(other) is not int:
            if not isinstance(other, Integral):
                return NotImplemented
            other = int(other)
        if other == 0 or other == 1:
            return self if other else 0
        return scaled(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rfloordiv__(self, other: Index) -> Index:
        return floordiv(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __mod__(self, other: Index) -> Index:
        return mod(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __rmod__(self, other: Index) -> Index:
        return mod(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented

    def __reduce__(self) -> tuple:
        return make, (self.terms, self.const)

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
        self._bounds = self._variables = self._values = self._varying = self.key = None
        return self

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


_atoms: Table = {}
_interning = free_in_children(Lock())


def intern(table: Table, key: tuple, new: Callable[..., Any], *args: Any) -> Any:
    """The object of this key, `new(*args)` if nobody holds one."""
    known = table.get(key)
    found = None if known is None else known()
    return enter(table, key, new, *args) if found is None else found


def enter(table: Table, key: tuple, new: Callable[..., Any], *args: Any) -> Any:
    """`intern` for somebody who has not found it."""
    with _interning:
        known = table.get(key)
        found = None if known is None else known()
        if found is None:
            found = new(*args)
            keep(table, key, found)
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
        return intern(_atoms, (name, lo, hi, value), cls._new, name, lo, hi, value)

    @classmethod
    def _new(cls, name: str, lo: Index, hi: Index, value: int | None) -> Var:
        if not isinstance(name, str) or not isinstance(lo, (int, Expr)) or not isinstance(hi, (int, Expr)):
            raise ShapeError(f"[Variable] expected a name and two integers, got {name!r}, {lo!r} and {hi!r}")
        if isinstance(lo, int) and isinstance(hi, int) and hi < lo - 1:
            raise ShapeError(f"[Variable] expected lo <= hi for {name!r}, got lo={lo}, hi={hi}")
        self: Var = super().__new__(cls)
        self.name, self.lo, self.hi, self.value = name, lo, hi, value
        self._variables = frozenset((self,))
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

    def sort_key(self) -> str:
        if self.key is None:
            self.key = f"{self.name}\0{self.lo}\0{self.hi}\0{self.value}"
        return self.key


Variable = Var


class Binary(Atom):
    """An operation on two expressions, `a` and `b`."""

    __slots__ = ("a", "b")
    a: Index
    b: Index

    def __new__(cls, a: Index, b: Index) -> Any:
        return intern(_atoms, (cls, a, b), cls._new, a, b)

    @classmethod
    def _new(cls, a: Index, b: Index) -> Any:
        self = super().__new__(cls)
        self.a, self.b = a, b
        return self

    def __reduce__(self) -> tuple:
        return type(self), (self.a, self.b)

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
        return self if variables(self).isdisjoint(mapping) else floordiv(subs(self.a, mapping), subs(self.b, mapping))


class Mod(Binary):
    """a % b. Use `%` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), top = bounds(self.a), bounds(self.b)[1] - 1
        return 0, max(0, min(hi, top)) if lo >= 0 else top

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return self if variables(self).isdisjoint(mapping) else mod(subs(self.a, mapping), subs(self.b, mapping))


class Min(Binary):
    """The smaller one. Use `emin` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), (lo2, hi2) = bounds(self.a), bounds(self.b)
        return min(lo, lo2), min(hi, hi2)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return self if variables(self).isdisjoint(mapping) else emin(subs(self.a, mapping), subs(self.b, mapping))


class Max(Binary):
    """The larger one. Use `emax` to make one."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        (lo, hi), (lo2, hi2) = bounds(self.a), bounds(self.b)
        return max(lo, lo2), max(hi, hi2)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return self if variables(self).isdisjoint(mapping) else emax(subs(self.a, mapping), subs(self.b, mapping))


class Opaque(Atom):
    """A sum that stays one factor, so that `i * (pos + n) + j` can be divided by it. Use `dim` to make one."""

    __slots__ = ("inner",)
    inner: Expr

    def __new__(cls, inner: Expr) -> Opaque:
        return intern(_atoms, (cls, inner), cls._new, inner)

    @classmethod
    def _new(cls, inner: Expr) -> Opaque:
        self: Opaque = super().__new__(cls)
        self.inner = inner
        return self

    def __reduce__(self) -> tuple:
        return Opaque, (self.inner,)

    def children(self) -> tuple[Index, ...]:
        return (self.inner,)

    def bounds(self) -> tuple[int, int]:
        return bounds(self.inner)

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        return self if variables(self).isdisjoint(mapping) else dim(subs(self.inner, mapping))


def variables(e: Index) -> frozenset[Var]:
    """The variables in it (not those in the bounds of others); empty for an int."""
    if isinstance(e, int):
        return _NONE
    found = e._variables
    if found is None:
        if isinstance(e, Atom):
            found = e.variables()
        else:
            found = _NONE
            for m, _ in e.terms:
                for a in m:
                    more = a._variables or variables(a)
                    found = found | more if found else more
        e._variables = found
    return found


_NONE: frozenset[Var] = frozenset()


def varying(e: Expr) -> Expr:
    """`e` without its constant: what is found out about it holds for all sums that differ in that alone."""
    if not e.const:
        return e
    found = e._varying
    if found is None:
        found = e._varying = make(e.terms, 0)  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def subs(e: Index, mapping: Mapping[Var, Index]) -> Index:
    """`e` with variables replaced, all at once, and simplified again."""
    if isinstance(e, int) or not mapping:
        return e
    own = e._variables or variables(e)
    if own.isdisjoint(mapping):
        return e
    return mapping[e] if type(e) is Var else _subs(e, tuple([mapping.get(v) for v in own]))


@lru_cache(maxsize=1 << 14)
def _subs(e: Expr, instead: tuple[Index | None, ...]) -> Index:
    """`subs` by what replaces each of the variables of `e`, in the order in which their set has them."""
    mapping = {v: to for v, to in zip(variables(e), instead, strict=True) if to is not None}
    if isinstance(e, Atom):
        return e.subs(mapping)
    merged: dict[Monomial, int] = {}
    const = e.const
    for m, c in e.terms:
        if len(m) == 1:
            new = m[0].subs(mapping)
        else:
            atoms = [a.subs(mapping) for a in m]
            if all([x is a for x, a in zip(atoms, m, strict=True)]):
                merged[m] = merged.get(m, 0) + c
                continue
            new = product(atoms)
        if isinstance(new, int):
            const += c * new
            continue
        const += c * new.const
        for t, k in new.terms:
            merged[t] = merged.get(t, 0) + c * k
    return build(merged, const)


# Arithmetic on the classes above needs the modules below, which need the classes: these imports close the circle.
from minigrad.expr.sums import build, dim, make, product, product_of, scaled, shifted, sum_of  # noqa: E402

# isort: split
from minigrad.expr.divide import floordiv, mod  # noqa: E402
from minigrad.expr.interval import bounds, emax, emin  # noqa: E402
from minigrad.expr.text import to_text  # noqa: E402
