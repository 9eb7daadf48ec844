"""Replacing the variables of expressions."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from minigrad.expr.core import Atom, Binary, Expr, FloorDiv, Index, Max, Min, Mod, Monomial, Opaque, Var, variables
from minigrad.expr.divide import floordiv, mod
from minigrad.expr.interval import emax, emin
from minigrad.expr.sums import build, dim, product


def subs(e: Index, mapping: Mapping[Var, Index]) -> Index:
    """`e` with variables replaced, all at once, and simplified again."""
    if isinstance(e, int) or not mapping:
        return e
    own = e.known_variables or variables(e)
    if own.isdisjoint(mapping):
        return e
    return mapping[e] if type(e) is Var else _subs(e, tuple([mapping.get(v) for v in own]))


@lru_cache(maxsize=1 << 14)
def _subs(e: Expr, instead: tuple[Index | None, ...]) -> Index:
    """`subs` by what replaces each of the variables of `e`, in the order in which their set has them."""
    mapping = {v: to for v, to in zip(variables(e), instead, strict=True) if to is not None}
    if isinstance(e, Atom):
        return _in_atom(e, mapping)
    merged: dict[Monomial, int] = {}
    const = e.const
    for m, c in e.terms:
        if len(m) == 1:
            new = _in_atom(m[0], mapping)
        else:
            atoms = [_in_atom(a, mapping) for a in m]
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


def _in_atom(a: Atom, mapping: Mapping[Var, Index]) -> Index:
    if isinstance(a, Var):
        return mapping.get(a, a)
    if not isinstance(a, (Binary, Opaque)):
        return a.subs(mapping)
    if variables(a).isdisjoint(mapping):
        return a
    return dim(subs(a.inner, mapping)) if isinstance(a, Opaque) else \
        _OPERATIONS[type(a)](subs(a.a, mapping), subs(a.b, mapping))


_OPERATIONS: dict[type[Binary], Callable[[Index, Index], Index]] = {
    FloorDiv: floordiv, Mod: mod, Min: emin, Max: emax}
