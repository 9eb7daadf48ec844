"""The classes of integer expressions, and their variables. What makes sums is in sums.py, the operators in methods.py.

Equal expressions are one object: they are compared and hashed by identity, and what was found out about one is kept
with it (bounds, variables) or in caches by it.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Union

from minigrad.errors import ShapeError
from minigrad.interned import Interned, Table, drop
from minigrad.locks import free_in_children

Monomial = tuple["Atom", ...]
Terms = tuple[tuple[Monomial, int], ...]
Index = Union[int, "Expr"]


class Expr:
    """`sum(c * product(atoms) for atoms, c in terms) + const`. Made by arithmetic, never directly."""

    __slots__ = ("terms", "const", "known_bounds", "known_variables", "known_values", "known_varying", "__weakref__")
    terms: Terms
    const: int
    known_bounds: tuple[int, int] | None
    known_variables: frozenset[Var] | None
    known_values: tuple | None
    """The result of `value.value_atoms`."""
    known_varying: Expr | None

    if TYPE_CHECKING:  # given to it by methods.py
        def __add__(self, other: Index) -> Index: ...
        def __radd__(self, other: Index) -> Index: ...
        def __neg__(self) -> Index: ...
        def __sub__(self, other: Index) -> Index: ...
        def __rsub__(self, other: Index) -> Index: ...
        def __mul__(self, other: Index) -> Index: ...
        def __rmul__(self, other: Index) -> Index: ...
        def __floordiv__(self, other: Index) -> Index: ...
        def __rfloordiv__(self, other: Index) -> Index: ...
        def __mod__(self, other: Index) -> Index: ...
        def __rmod__(self, other: Index) -> Index: ...
        def __int__(self) -> int: ...

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
        self.known_bounds = self.known_variables = self.known_values = self.known_varying = self.key = None
        return self

    def children(self) -> tuple[Index, ...]:
        """The expressions that it is made of."""
        return ()

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, inclusive, of a kind that is defined elsewhere."""
        raise NotImplementedError

    def subs(self, mapping: Mapping[Var, Index]) -> Index:
        """The atom with variables replaced, of a kind that is defined elsewhere."""
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
    """`intern`, for a caller that has looked for the key and not found it."""
    with _interning:
        known = table.get(key)
        found = None if known is None else known()
        if found is None:
            found = new(*args)
            entry = table[key] = Interned(found, drop)
            entry.table, entry.key = table, key
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
        self.known_variables = frozenset((self,))
        return self

    def __reduce__(self) -> tuple:
        return Var, (self.name, self.lo, self.hi, self.value)

    if TYPE_CHECKING:  # given to it by methods.py
        def bind(self, value: int) -> Var: ...

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


class Mod(Binary):
    """a % b. Use `%` to make one."""

    __slots__ = ()


class Min(Binary):
    """The smaller one. Use `emin` to make one."""

    __slots__ = ()


class Max(Binary):
    """The larger one. Use `emax` to make one."""

    __slots__ = ()


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


def variables(e: Index) -> frozenset[Var]:
    """The variables in it (not those in the bounds of others); empty for an int."""
    if isinstance(e, int):
        return _NONE
    found = e.known_variables
    if found is None:
        if isinstance(e, Atom):
            found = e.variables()
        else:
            found = _NONE
            for m, _ in e.terms:
                for a in m:
                    more = a.known_variables or variables(a)
                    found = found | more if found else more
        e.known_variables = found
    return found


_NONE: frozenset[Var] = frozenset()
