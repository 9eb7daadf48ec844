"""Floor division and remainder of expressions by a monomial."""
from __future__ import annotations

from functools import lru_cache
from math import gcd

from minigrad.expr.core import Expr, FloorDiv, Index, Mod, Monomial
from minigrad.expr.interval import bounds, prove_nonneg
from minigrad.expr.sums import build, common_factor, dim, monomial_of, without


def _monomial(divisor: Index) -> tuple[int, Monomial]:
    if not isinstance(divisor, Expr):
        return int(divisor), ()
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
        rest = without(m, atoms) if atoms else m
        q = 0 if rest is None else k // c if k >= 0 else -(-k // c)
        if q and rest is not None:
            high[rest] = high.get(rest, 0) + q
        if k - q * c:
            low[m] = k - q * c
    q, r = (0, e.const) if atoms else divmod(e.const, c)
    q += high.pop((), 0)
    return build(high, q), build(low, r)


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
        options[gcd(k, c), common_factor(m, atoms)] = None
    for g, shared in sorted(options, key=lambda o: (-len(o[1]), -o[0])):
        if (g == 1 and not shared) or (g == c and shared == atoms):
            continue
        high, rest = _separate(low, g, shared)
        whole = monomial_of(g, shared)
        q = None if isinstance(high, int) else _settle(rest, whole)
        if q is not None:
            return whole, high + q, rest - whole * q, monomial_of(c // g, without(atoms, shared) or ())
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
    whole = monomial_of(c, atoms)
    q = _settle(low, whole)
    if q is not None:
        return high + q
    if isinstance(low, int):
        return high + FloorDiv(low, whole)
    parts = _parts(low, c, atoms)
    if parts is not None:
        return high + floordiv(parts[1], parts[3])
    rejoined = _rejoin(low, whole)
    if rejoined is not None:
        return high + rejoined[1] + floordiv(rejoined[0], whole)
    for m, k in low.terms:
        a = m[0]
        if k == 1 and len(m) == 1 and type(a) is FloorDiv:
            return high + floordiv((low - a) * a.b + a.a, whole * a.b)
        if low is a and type(a) is Mod:
            blocks = exact_quotient(a.b, whole)
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
    whole = monomial_of(c, atoms)
    q = _settle(low, whole)
    if q is not None:
        return low - whole * q
    if isinstance(low, int):
        return Mod(low, whole)
    for m, k in low.terms:
        for a in m:
            if type(a) is Mod:
                others = monomial_of(k, without(m, (a,)) or ())
                if exact_quotient(others * a.b, whole) is not None:
                    return mod(low - others * a + others * a.a, divisor)
    rejoined = _rejoin(low, whole)
    if rejoined is not None:
        return mod(rejoined[0], whole)
    parts = _parts(low, c, atoms)
    if parts is not None:
        return parts[0] * mod(parts[1], parts[3]) + parts[2]
    return Mod(low, whole)


def _rejoin(low: Expr, divisor: Index) -> tuple[Index, Index] | None:
    """(numerator, quotient) with low == numerator + quotient*divisor, where k*(e % c) + q*(e // c) became k*e in it."""
    coefficients = dict(low.terms)
    for m, k in low.terms:
        a = m[0]
        if type(a) is Mod and len(m) == 1:
            partner = floordiv(a.a, a.b)
            q = coefficients.get((partner,), 0) if type(partner) is FloorDiv else 0
            if q:
                quotient = exact_quotient(q - a.b * k, divisor)
                if quotient is not None:
                    return low - a * k - partner * q + a.a * k, partner * quotient
    return None


def exact_quotient(e: Index, divisor: Index) -> Index | None:
    """e / divisor where that is exact term by term, else None."""
    c, atoms = _monomial(divisor)
    high, low = _separate(e, c, atoms)
    return high if isinstance(low, int) and low == 0 else None


def divides(divisor: Index, e: Index) -> bool:
    """True where `divisor` divides every term of `e`, which is a proof; False means undecided."""
    return exact_quotient(e, divisor) is not None
