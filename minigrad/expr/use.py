"""Values of expressions: evaluation, run-time values of symbolic dims, equality."""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from minigrad.errors import InternalError, ShapeError
from minigrad.expr.core import Atom, Binary, FloorDiv, Index, Max, Min, Mod, Opaque, Var, variables
from minigrad.expr.subs import subs
from minigrad.expr.sums import expand


def evaluate(e: Index, values: Mapping[Any, int], atom: Callable[[Atom], int] | None = None) -> int:
    """The value of `e`. `values` maps variables or their names; bound variables need no entry.

    `atom` gives the value of atoms defined elsewhere. Raises ShapeError for a variable without a value.
    """
    if isinstance(e, int):
        return e
    if not isinstance(e, Atom):
        total = e.const
        for m, c in e.terms:
            for factor in m:
                c *= evaluate(factor, values, atom)
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
    """True where two expressions are equal for all values, with Opaque sums multiplied out, which is a proof; False
    means undecided."""
    if a is b or a == b:
        return True
    difference = expand(a - b)
    return isinstance(difference, int) and difference == 0
