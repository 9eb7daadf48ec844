"""Kernel -> Kernel with as few index variables as possible, over flat buffers.

Index variables that always step together become one: `x[n, c, h, w]` of a contiguous tensor is `x[i]`, so that
pointwise kernels of all shapes share one program, and inner loops are long.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.kernel.walk import expressions_of
from minigrad.expr import Index, Var, coefficient, subs
from minigrad.value import Value, expressions, map_indices, reductions_in


def collapse(kernel: Kernel) -> Kernel:
    """Merges index variables of one domain, or of one reduction, that every access steps through as one, and names them
    by position in their nest: domains i0, i1, ..., reductions r0, r1, ... Equal kernels of different origin become
    equal."""
    return kernel.with_nests(tuple([_Collapsed(nest).nest(nest, {}) for nest in kernel.nests]))


def merged(scope: tuple[Var, ...], expressions: Sequence[Index]) -> tuple[tuple[Var, ...], dict[Var, Index]]:
    """The variables of one domain or reduction, with those that all expressions step through as one merged, and the
    indices that stand for the merged ones: the outer of two is 0 then, the inner one runs over the iterations of
    both."""
    steps = {v: [coefficient(e, v) for e in expressions] for v in scope}
    extents: dict[Var, Index] = {v: v.hi + 1 for v in scope}
    mapping: dict[Var, Index] = {}
    while (pair := _pair(extents, steps)) is not None:
        outer, inner = pair
        extents[inner] = extents.pop(outer) * extents[inner]
        mapping |= {outer: 0, inner: inner}
    for v, to in mapping.items():
        if to is v:
            mapping[v] = Var(v.name, 0, extents[v] - 1)
    left = [mapping.get(v, v) for v in scope if v in extents]
    return tuple([v for v in left if isinstance(v, Var)]), mapping


def _pair(extents: dict[Var, Index], steps: dict[Var, list[Index | None]]) -> tuple[Var, Var] | None:
    """(outer, inner) variables with a step of the outer one as long as the inner one's run, in every expression."""
    for inner in reversed(extents):
        extent, fine = extents[inner], steps[inner]
        for outer in extents:
            if outer is not inner and all([a is not None and b is not None and a == b * extent
                                           for a, b in zip(steps[outer], fine, strict=True)]):
                return outer, inner
    return None


class _Collapsed:
    """The nests inside `root` without merged variables. Nests beside each other may have variables in common: each
    gives them names of its own."""

    def __init__(self, root: Nest):
        self.expressions = expressions_of((root,))
        self.names = 0
        self.reduced: dict[Var, Var] = {}

    def nest(self, nest: Nest, around: Mapping[Var, Index]) -> Nest:
        """A nest, given the indices that stand for the variables around it."""
        domain, mapping = merged(nest.domain, self.expressions)
        places, named = dict(around), dict[Var, Var]()
        for v in domain:
            named[v] = Var(f"i{self.names}", 0, subs(v.hi, places))
            places[v] = named[v]
            self.names += 1
        places |= {v: named[to] if isinstance(to, Var) else to for v, to in mapping.items()}
        body: list[Define | Store | Nest] = []
        for s in nest.body:
            if isinstance(s, Nest):
                body.append(self.nest(s, places))
                continue
            value = _replaced(s.value, {**places, **self.reductions(s, places)} if s.value.reduces else places)
            if isinstance(s, Define):
                body.append(Define(s.name, value))
            else:
                body.append(Store(s.param, tuple([subs(e, places) for e in s.indices]), value, s.combine))
        return Nest(tuple(named.values()), tuple(body))

    def reductions(self, s: Define | Store, places: Mapping[Var, Index]) -> dict[Var, Index]:
        """The indices that stand for the variables of a statement's reductions: of a reduction that is the whole
        statement, variables are merged."""
        own: dict[Var, Index] = {}
        for r in reductions_in(s.value):
            over = r.over
            mapping: dict[Var, Index] = {}
            if r is s.value and isinstance(s, Define):
                over, mapping = merged(over, expressions(r.args[0]))
            for v in over:
                if v not in self.reduced:
                    self.reduced[v] = Var(f"r{len(self.reduced)}", 0, subs(v.hi, places))
                own[v] = self.reduced[v]
            own |= {v: self.reduced[to] if isinstance(to, Var) else to for v, to in mapping.items()}
        return own


def _replaced(value: Value, places: Mapping[Var, Index]) -> Value:
    """A value at these places. A reduction runs over the indices that stand for its variables, where these are
    variables."""
    return map_indices(value, lambda e: subs(e, places),
                       lambda over: tuple([v for v in map(places.get, over) if isinstance(v, Var)]))
