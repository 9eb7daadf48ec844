"""Integer expressions: the one language of shapes, index maps, conditions and loop bounds.

    Index  := int | Expr
    Expr   := sum of  coefficient * atom * atom ...  + constant          canonical: sorted, like terms merged
    Atom   := Var | FloorDiv(num, div) | Mod(num, div) | Min(a, b) | Max(a, b) | Opaque(sum) | a subclass elsewhere

Every Atom is itself an Expr (one times itself), and every operation returns the simplest form: a plain int when the
result is constant, the Atom itself when it is one. Atoms are interned, so `is` compares Variables; sums compare by
structure. Everything is immutable. Division and remainder floor, like Python's; divisors are positive wherever they are
defined. A condition is an Index e that means e >= 0; divisibility by s is -(e % s) >= 0.

A divisor is a monomial, `c * atom * ...`: a sum such as `pos + n` becomes the atom Opaque(pos + n), which divides only
its own multiples. What `//` and `%` simplify is listed at `floordiv`.
"""
from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from threading import Lock
from typing import Any, Union
from weakref import WeakValueDictionary

from minigrad.errors import FormatError, InternalError, ShapeError

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

    def __add__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            return _sum(self, other)
        return _make(self.terms, self.const + operator.index(other)) if other else self

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index) -> Index:
        return self + (-other)

    def __rsub__(self, other: Index) -> Index:
        return self * -1 + other

    def __mul__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            return _times(self, other)
        other = operator.index(other)
        if other == 0 or other == 1:
            return self if other else 0
        return _make(tuple([(m, c * other) for m, c in self.terms]), self.const * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Index) -> Index:
        return floordiv(other, self)

    def __mod__(self, other: Index) -> Index:
        return mod(self, other)

    def __rmod__(self, other: Index) -> Index:
        return mod(other, self)

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


_interned: WeakValueDictionary[tuple, Any] = WeakValueDictionary()
_interning = Lock()


def _intern(key: tuple, make: Callable[[], Any]) -> Any:
    found = _interned.get(key)
    if found is None:
        with _interning:
            found = _interned.get(key)
            if found is None:
                found = _interned[key] = make()
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
        value = operator.index(value)
        lo, hi = bounds(self)
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


# ---- sums and products ----


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


def _mono(c: int, atoms: Monomial) -> Index:
    """c * product(atoms), for c != 0."""
    return _make(((atoms, c),), 0) if atoms else c


def _order(term: tuple[Monomial, int]) -> list[str]:
    return [a.key or a.sort_key() for a in term[0]]


def _build(merged: dict[Monomial, int], const: int) -> Index:
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
    return _build(merged, x.const + y.const)


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
    return _build(merged, const)


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """monomial / factor, or None where factor's atoms are not all in it."""
    rest = list(monomial)
    for a in factor:
        if a not in rest:
            return None
        rest.remove(a)
    return tuple(rest)


def _recombine(merged: dict[Monomial, int], const: int, monomial: Monomial, m: Mod) -> Index | None:
    """k*(e % c) + k*c*(e // c) -> k*e, and k*(e % c) + k*c*((e // c) % d) -> k*(e % (c*d)), for the Mod `m`."""
    k, rest = merged[monomial], _without(monomial, (m,))
    scale = _mono(k, rest or ())
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
    return _build(left, const) + replaced


def product(items: Iterable[Index]) -> Index:
    """The product, 1 when there are none."""
    result: Index = 1
    for e in items:
        result = result * e
    return result


def dim(e: Index) -> Index:
    """`e` as a shape's dim: a sum of several terms becomes (its common factor times) one Opaque atom."""
    e = expand(e)
    if isinstance(e, int) or (len(e.terms) == 1 and not e.const):
        return e
    common = gcd(e.const, *(c for _, c in e.terms))
    factor = e.terms[0][0] if not e.const else ()
    for m, _ in e.terms[1:]:
        factor = _common(factor, m)
    terms = tuple([(_without(m, factor) or (), c // common) for m, c in e.terms])
    merged = {m: c for m, c in terms if m}
    inner = _build(merged, e.const // common + sum(c for m, c in terms if not m))
    return product(factor) * common * Opaque(inner)  # type: ignore[arg-type]


def expand(e: Index) -> Index:
    """`e` with the Opaque sums among its factors multiplied out."""
    if isinstance(e, int) or not any(type(a) is Opaque for m, _ in e.terms for a in m):
        return e
    total: Index = e.const
    for m, c in e.terms:
        total = total + product(expand(a.inner) if type(a) is Opaque else a for a in m) * c
    return total


def _common(a: Monomial, b: Monomial) -> Monomial:
    rest, shared = list(b), []
    for x in a:
        if x in rest:
            rest.remove(x)
            shared.append(x)
    return tuple(shared)


# ---- floor division and remainder ----


def _monomial(divisor: Index) -> tuple[int, Monomial]:
    divisor = dim(divisor)
    if isinstance(divisor, int):
        return divisor, ()
    return divisor.terms[0][1], divisor.terms[0][0]


def _separate(e: Index, c: int, atoms: Monomial) -> tuple[Index, Index]:
    """(high, low) with e == high * divisor + low: what the divisor c*product(atoms) divides, and the rest."""
    if isinstance(e, int):
        return (e // c, e % c) if not atoms else (0, e)
    high: dict[Monomial, int] = {}
    low: dict[Monomial, int] = {}
    for m, k in e.terms:
        rest = _without(m, atoms) if atoms else m
        q = 0 if rest is None else k // c if k >= 0 else -(-k // c)
        if q and rest is not None:
            high[rest] = high.get(rest, 0) + q
        if k - q * c:
            low[m] = k - q * c
    q, r = (0, e.const) if atoms else divmod(e.const, c)
    q += high.pop((), 0)
    return _build(high, q), _build(low, r)


def _settle(low: Index, divisor: Index) -> int | None:
    """q with q*divisor <= low < (q+1)*divisor for all values, if that is known."""
    lo, hi = bounds(low)
    if isinstance(divisor, int):
        if lo // divisor == hi // divisor:
            return lo // divisor
        if hi - lo < divisor and isinstance(low, int):
            return None
    if prove_nonneg(low) and prove_nonneg(divisor - 1 - low):
        return 0
    return -1 if lo < 0 and prove_nonneg(low + divisor) and prove_nonneg(-1 - low) else None


def _parts(low: Expr, c: int, atoms: Monomial) -> tuple[Index, Index, Index, Index] | None:
    """(g, high, rest, divisor / g) with low == g*high + rest and 0 <= rest < g, for the largest g that divides."""
    options: dict[tuple[int, Monomial], None] = {}
    for m, k in low.terms:
        options[gcd(k, c), _common(m, atoms)] = None
    for g, shared in sorted(options, key=lambda o: (-len(o[1]), -o[0])):
        if (g == 1 and not shared) or (g == c and shared == atoms):
            continue
        high, rest = _separate(low, g, shared)
        whole = _mono(g, shared)
        q = None if isinstance(high, int) else _settle(rest, whole)
        if q is not None:
            return whole, high + q, rest - whole * q, _mono(c // g, _without(atoms, shared) or ())
    return None


@lru_cache(maxsize=1 << 15)
def floordiv(e: Index, divisor: Index) -> Index:
    """e // divisor. What it simplifies (`mod` does the same):

    - terms that the divisor divides come out, and what is left is compared with its bounds, which may be symbolic:
      (n*i + j) // n -> i for j < n
    - common factors: (8*i + j) // 32 -> i // 4 for j < 8, and (8*i + j) % 32 -> 8*(i % 4) + j
    - (e // a) // b -> e // (a*b);  (e % (a*b)) // b -> (e // b) % a;  (e % (a*b)) % b -> e % b
    - sums join again: c*(e // c) + e % c -> e
    """
    if isinstance(e, int) and isinstance(divisor, int):
        return e // divisor
    c, atoms = _monomial(divisor)
    if c < 0:
        return floordiv(-e, -divisor)
    if c == 0:
        raise ZeroDivisionError(f"{e} // 0")
    high, low = _separate(e, c, atoms)
    whole = _mono(c, atoms)
    q = _settle(low, whole)
    if q is not None:
        return high + q
    if isinstance(low, int):
        return high + FloorDiv(low, whole)
    parts = _parts(low, c, atoms)
    if parts is not None:
        return high + floordiv(parts[1], parts[3])
    for m, k in low.terms:
        a = m[0]
        if k == 1 and len(m) == 1 and type(a) is FloorDiv:
            return high + floordiv((low - a) * a.b + a.a, whole * a.b)
        if low is a and type(a) is Mod:
            blocks = _exact(a.b, whole)
            if blocks is not None:
                return high + mod(floordiv(a.a, whole), blocks)
    return high + FloorDiv(low, whole)


@lru_cache(maxsize=1 << 15)
def mod(e: Index, divisor: Index) -> Index:
    """e % divisor, simplified as `floordiv` says."""
    if isinstance(e, int) and isinstance(divisor, int):
        return e % divisor
    c, atoms = _monomial(divisor)
    if c < 0:
        return -mod(-e, -divisor)
    if c == 0:
        raise ZeroDivisionError(f"{e} % 0")
    _, low = _separate(e, c, atoms)
    whole = _mono(c, atoms)
    q = _settle(low, whole)
    if q is not None:
        return low - whole * q
    if isinstance(low, int):
        return Mod(low, whole)
    for m, k in low.terms:
        for a in m:
            if type(a) is Mod:
                others = _mono(k, _without(m, (a,)) or ())
                if _exact(others * a.b, whole) is not None:
                    return mod(low - others * a + others * a.a, divisor)
    parts = _parts(low, c, atoms)
    if parts is not None:
        return parts[0] * mod(parts[1], parts[3]) + parts[2]
    return Mod(low, whole)


def _exact(e: Index, divisor: Index) -> Index | None:
    """e / divisor where that is exact term by term, else None."""
    c, atoms = _monomial(divisor)
    high, low = _separate(e, c, atoms)
    return high if isinstance(low, int) and low == 0 else None


def divides(divisor: Index, e: Index) -> bool:
    """Whether `divisor` divides every term of `e`: True is a proof, False means undecided."""
    return _exact(e, divisor) is not None


def emin(a: Index, b: Index) -> Index:
    """The smaller of two, decided where the bounds decide it."""
    if prove_nonneg(b - a):
        return a
    if prove_nonneg(a - b):
        return b
    return Min(*sorted((a, b), key=str))


def emax(a: Index, b: Index) -> Index:
    """The larger of two, decided where the bounds decide it."""
    if prove_nonneg(a - b):
        return a
    if prove_nonneg(b - a):
        return b
    return Max(*sorted((a, b), key=str))


# ---- bounds ----


def bounds(e: Index) -> tuple[int, int]:
    """(smallest, largest) possible value, inclusive; sound, and exact where every variable occurs once."""
    if isinstance(e, int):
        return e, e
    if e._bounds is None:
        if isinstance(e, Atom):
            e._bounds = e.bounds()
        else:
            lo, hi = _interval(e)
            if _correlated(e):
                lo, hi = max(lo, _least(e)), min(hi, -_least(-e))
            e._bounds = lo, hi
    return e._bounds


def prove_nonneg(e: Index) -> bool:
    """Whether e >= 0 for all values of its variables: True is a proof, False means undecided."""
    return e >= 0 if isinstance(e, int) else bounds(e)[0] >= 0


def _interval(e: Expr) -> tuple[int, int]:
    lo = hi = e.const
    for m, c in e.terms:
        small, large = bounds(m[0])
        for a in m[1:]:
            x, y = bounds(a)
            ends = small * x, small * y, large * x, large * y
            small, large = min(ends), max(ends)
        lo += c * (small if c > 0 else large)
        hi += c * (large if c > 0 else small)
    return lo, hi


def _correlated(e: Expr) -> bool:
    """Whether its terms depend on each other, so that the interval of the sum is not exact."""
    seen: set[Atom] = set()
    for m, _ in e.terms:
        for a in m:
            if a in seen or type(a) is not Var or not isinstance(a.hi, int) or not isinstance(a.lo, int):
                return True
        seen.update(m)
    return False


def _least(e: Index, depth: int = 0) -> int:
    """A lower bound of `e`: variables replaced by the end of their range that makes it small, innermost first."""
    best: int | None = None
    while True:
        e = expand(e)
        if isinstance(e, int):
            return e if best is None else max(best, e)
        least = _interval(e)[0]
        best = least if best is None else max(best, least)
        smaller = _without_variable(e)
        if smaller is None:
            break
        e = smaller
    if depth < 4:
        for choice in _relaxed(e):
            best = max(best, _least(choice, depth + 1))
    return best


def _without_variable(e: Expr) -> Index | None:
    """A smaller or equal expression with one variable fewer, None where no variable is worth replacing."""
    uses: dict[Var, list[tuple[Monomial, int]]] = {}
    for term in e.terms:
        for a in dict.fromkeys(term[0]):
            if type(a) is Var:
                uses.setdefault(a, []).append(term)
    for v, terms in uses.items():
        if len(terms) == 1 and isinstance(v.lo, int) and isinstance(v.hi, int):
            continue
        if any(v in variables(u.lo) or v in variables(u.hi) for u in uses if u is not v):
            continue
        coefficient: Index = 0
        for m, c in terms:
            coefficient = coefficient + _mono(c, _without(m, (v,)) or ())
        lo, hi = bounds(coefficient)
        if lo >= 0 or hi <= 0:
            return e - coefficient * v + coefficient * (v.lo if lo >= 0 else v.hi)
    return None


def _relaxed(e: Expr) -> Iterator[Index]:
    """Expressions that are not larger than `e`, without one of its FloorDiv, Min or Max terms."""
    for m, k in e.terms:
        a = m[0]
        if len(m) > 1:
            continue
        if type(a) is FloorDiv and isinstance(a.b, int) and k % a.b == 0 and variables(a) & variables(e - a * k):
            yield e - a * k + (k // a.b) * (a.a if k < 0 else a.a - (a.b - 1))
            return
        if (type(a) is Min and k < 0) or (type(a) is Max and k > 0):
            yield e - a * k + a.a * k
            yield e - a * k + a.b * k
            return


# ---- use ----


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
    total: Index = e.const
    for m, c in e.terms:
        total = total + product(a.subs(mapping) for a in m) * c
    return total


def evaluate(e: Index, values: Mapping[Any, int], atom: Callable[[Atom], int] | None = None) -> int:
    """The value of `e`. `values` maps variables or their names; bound variables need no entry.

    `atom` gives the value of atoms defined elsewhere. Raises ShapeError for a variable without a value.
    """
    if isinstance(e, int):
        return e
    if not isinstance(e, Atom):
        total = e.const
        for m, c in e.terms:
            for a in m:
                c *= evaluate(a, values, atom)
            total += c
        return total
    if isinstance(e, Var):
        value = values.get(e, values.get(e.name, e.value))
        if value is None:
            raise ShapeError(f"[Variable] expected a value for {e.name!r}; bind one with .bind(value)")
        return value
    if isinstance(e, Opaque):
        return evaluate(e.inner, values, atom)
    if isinstance(e, Binary):
        a, b = evaluate(e.a, values, atom), evaluate(e.b, values, atom)
        return _EVALUATE[type(e)](a, b)
    if atom is None:
        raise InternalError(f"[evaluate] no value for {e}")
    return atom(e)


_EVALUATE: dict[type, Callable[[int, int], int]] = {FloorDiv: operator.floordiv, Mod: operator.mod, Min: min, Max: max}


def unbind(e: Index) -> tuple[Index, dict[Var, int]]:
    """`e` without run-time values, and the values by (unbound) variable. Raises ShapeError if one has two values."""
    values: dict[Var, int] = {}
    return _unbind(e, values), values


def _unbind(e: Index, values: dict[Var, int]) -> Index:
    mapping: dict[Var, Index] = {}
    for v in variables(e):
        plain = v
        if v.value is not None or not (isinstance(v.lo, int) and isinstance(v.hi, int)):
            plain = Var(v.name, _unbind(v.lo, values), _unbind(v.hi, values))
        if v.value is not None and values.setdefault(plain, v.value) != v.value:
            raise ShapeError(f"[Variable] expected one value of {v.name!r}, got {values[plain]} and {v.value}")
        if plain is not v:
            mapping[v] = plain
    return subs(e, mapping)


def same(a: Index, b: Index) -> bool:
    """Whether two expressions are equal for all values (True is a proof), with Opaque sums multiplied out."""
    if a is b or a == b:
        return True
    difference = expand(a - b)
    return isinstance(difference, int) and difference == 0


# ---- text ----

Show = Callable[["Atom"], "str | None"]
_OPERATORS = {FloorDiv: "//", Mod: "%"}


def to_text(e: Index, show: Show | None = None) -> str:
    """`e` as text that `parse` reads back. `show` gives the text of atoms defined elsewhere (None: their `str`)."""
    if isinstance(e, int):
        return str(e)
    text = ""
    for m, c in e.terms:
        inside = len(m) > 1 or abs(c) != 1 or c < 0
        factors = "*".join([str(abs(c))] * (abs(c) != 1) + [_atom_text(a, show, inside) for a in m])
        text += ("-" if c < 0 else "+" if text else "") + factors
    return text + (f"{e.const:+d}" if e.const else "")


def _atom_text(a: Atom, show: Show | None, inside: bool) -> str:
    if isinstance(a, Var):
        return a.name
    if isinstance(a, (FloorDiv, Mod)):
        left, right = (to_text(x, show) if isinstance(x, (int, Var, Opaque)) else f"({to_text(x, show)})"
                       for x in (a.a, a.b))
        text = f"{left}{_OPERATORS[type(a)]}{right}"
        return f"({text})" if inside else text
    if isinstance(a, (Min, Max)):
        return f"{type(a).__name__.lower()}({to_text(a.a, show)}, {to_text(a.b, show)})"
    if isinstance(a, Opaque):
        return f"dim({to_text(a.inner, show)})"
    return (show(a) if show else None) or str(a)


_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|//|[-+*%(),])")
_CALLS: dict[str, Callable[[list[Index]], Index]] = {
    "min": lambda args: emin(*args), "max": lambda args: emax(*args), "dim": lambda args: dim(*args)}


def parse(text: str, names: Mapping[str, Index], atom: Callable[[str], Index] | None = None) -> Index:
    """Reads what `to_text` writes: + - * // % ( ) min(a, b) max(a, b) dim(sum), ints and the variables in `names`.

    `atom` reads a bracketed text `[...]` (brackets included) that stands for an atom defined elsewhere.
    Raises FormatError that quotes the text.
    """
    reader = _Reader(text, names, atom)
    e = reader.sum()
    if reader.peek():
        raise reader.error("an operator or the end")
    return e


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, text: str, names: Mapping[str, Index], atom: Callable[[str], Index] | None):
        self.text, self.names, self.atom, self.at = text, names, atom, 0

    def error(self, expected: str) -> FormatError:
        return FormatError(f"[expr] expected {expected} at column {self.at + 1} of {self.text!r}")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else self.text[self.at:].lstrip()[:1]

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise self.error(repr(expected) if expected else "an expression")
        self.at = self.text.index(token, self.at) + len(token)
        return token

    def sum(self) -> Index:
        total = self.term()
        while self.peek() in ("+", "-"):
            total = total + self.term() if self.take() == "+" else total - self.term()
        return total

    def term(self) -> Index:
        e = self.factor()
        while self.peek() in ("*", "//", "%"):
            sign, right = self.take(), self.factor()
            if sign != "*" and right == 0:
                raise self.error("a divisor that is not 0")
            e = e * right if sign == "*" else e // right if sign == "//" else e % right
        return e

    def factor(self) -> Index:
        token = self.peek()
        if token == "-":
            self.take()
            return -self.factor()
        if token == "(":
            self.take()
            e = self.sum()
            self.take(")")
            return e
        if token == "[" and self.atom is not None:
            return self.atom(self.bracket())
        if token.isdigit():
            return int(self.take())
        if token in _CALLS and token not in self.names:
            self.take()
            return self.call(token)
        if token in self.names:
            self.take()
            return self.names[token]
        raise self.error(f"a number or one of {', '.join(self.names) or 'no variables'}")

    def call(self, name: str) -> Index:
        self.take("(")
        args = [self.sum()]
        while self.peek() == ",":
            self.take()
            args.append(self.sum())
        if len(args) != (1 if name == "dim" else 2):
            raise self.error(f"the arguments of {name}")
        self.take(")")
        return _CALLS[name](args)

    def bracket(self) -> str:
        start, depth = self.text.index("[", self.at), 0
        for self.at in range(start, len(self.text)):
            depth += {"[": 1, "]": -1}.get(self.text[self.at], 0)
            if depth == 0:
                self.at += 1
                return self.text[start:self.at]
        raise self.error("']'")
