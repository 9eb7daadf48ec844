"""The step of an expression with one of its variables."""
from __future__ import annotations

from functools import lru_cache

from minigrad.expr.core import Expr, Index, Var, variables


def coefficient(e: Index, v: Var) -> Index | None:
    """The factor of `v` in `e`: 0 where absent, None where it is not linear."""
    return 0 if isinstance(e, int) or v not in (e.known_variables or variables(e)) else _coefficient(e, v)


@lru_cache(maxsize=1 << 14)
def _coefficient(e: Expr, v: Var) -> Index | None:
    total: Index = 0
    for monomial, k in e.terms:
        if v in monomial:
            rest = list(monomial)
            rest.remove(v)
            factor: Index = k
            for a in rest:
                if v in variables(a):
                    return None
                factor = a * factor
            total = total + factor
        elif any([type(a) is not Var and v in variables(a) for a in monomial]):
            return None
    return total
