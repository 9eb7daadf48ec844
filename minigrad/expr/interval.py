"""The range of values of an expression: intervals, and bounds that depend on other variables."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from minigrad.expr.core import Atom, Binary, Expr, FloorDiv, Index, Max, Min, Mod, Monomial, Opaque, Var, variables
from minigrad.expr.sums import expand, monomial_of, without

Interval = tuple[int, int]


def bounds(e: Index) -> Interval:
    """(smallest, largest) possible value, inclusive; sound, and exact where every variable occurs once."""
    if isinstance(e, int):
        return e, e
    if e.known_bounds is None:
        if isinstance(e, Atom):
            e.known_bounds = _of_atom(e)
        else:
            lo, hi = _interval(e)
            if _correlated(e):
                lo, hi = max(lo, _least(e)), min(hi, -_least(-e))
            e.known_bounds = lo, hi
    return e.known_bounds


def prove_nonneg(e: Index) -> bool:
    """True where e >= 0 for all values of its variables, which is a proof; False means undecided."""
    return e >= 0 if isinstance(e, int) else bounds(e)[0] >= 0


def _of_atom(a: Atom) -> Interval:
    if isinstance(a, Var):
        lo = bounds(a.lo)[0]
        return lo, max(lo, bounds(a.hi)[1])
    if isinstance(a, Binary):
        return _OF_BINARY[type(a)](bounds(a.a), bounds(a.b))
    return bounds(a.inner) if isinstance(a, Opaque) else a.bounds()


def _of_quotient(a: Interval, b: Interval) -> Interval:
    small, large = max(b[0], 1), max(b[1], 1)
    return min(a[0] // small, a[0] // large), max(a[1] // small, a[1] // large)


def _of_remainder(a: Interval, b: Interval) -> Interval:
    top = b[1] - 1
    return 0, max(0, min(a[1], top)) if a[0] >= 0 else top


_OF_BINARY: dict[type[Binary], Callable[[Interval, Interval], Interval]] = {
    FloorDiv: _of_quotient, Mod: _of_remainder,
    Min: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])), Max: lambda a, b: (max(a[0], b[0]), max(a[1], b[1]))}


def _interval(e: Expr) -> Interval:
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
    """True where its terms depend on each other in a way that `_least` sees, which may then give a better bound than
    the interval of the sum."""
    seen: set[Atom] = set()
    for m, k in e.terms:
        for a in m:
            if a in seen:
                return True
            if type(a) is Var:
                if type(a.hi) is not int or type(a.lo) is not int:
                    return True
            elif type(a) is FloorDiv:
                if len(m) == 1 and type(a.b) is int and k % a.b == 0:
                    return True
            elif type(a) is not Mod:
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
    """A smaller or equal expression with one variable fewer, None where no variable is worth replacing, or only some
    that a Min or Max depends on, which may be relaxed first."""
    uses: dict[Var, list[tuple[Monomial, int]]] = {}
    chosen: set[Var] = set()
    for term in e.terms:
        for a in dict.fromkeys(term[0]):
            if type(a) is Var:
                uses.setdefault(a, []).append(term)
            elif type(a) is Min or type(a) is Max:
                chosen |= variables(a)
    for v, terms in uses.items():
        if v in chosen or (len(terms) == 1 and isinstance(v.lo, int) and isinstance(v.hi, int)):
            continue
        if any(v in variables(u.lo) or v in variables(u.hi) for u in uses if u is not v):
            continue
        coefficient: Index = 0
        for m, c in terms:
            coefficient = coefficient + monomial_of(c, without(m, (v,)) or ())
        lo, hi = bounds(coefficient)
        if lo >= 0 or hi <= 0:
            return e - coefficient * v + coefficient * (v.lo if lo >= 0 else v.hi)
    return None


def _relaxed(e: Expr) -> Iterator[Index]:
    """Expressions that are not larger than `e`, without one of its FloorDiv, or of its Min or Max times what is not
    negative."""
    for m, k in e.terms:
        for a in m:
            if type(a) is FloorDiv and len(m) == 1 and isinstance(a.b, int) and k % a.b == 0 \
                    and variables(a) & variables(e - a * k):
                yield e - a * k + (k // a.b) * (a.a if k < 0 else a.a - (a.b - 1))
                return
            if type(a) is Min or type(a) is Max:
                times = monomial_of(k, without(m, (a,)) or ())
                if bounds(times)[1] <= 0 if type(a) is Min else bounds(times)[0] >= 0:
                    yield e - a * times + a.a * times
                    yield e - a * times + a.b * times
                    return


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
