"""Kernel -> Kernel with as few index variables as possible, over flat buffers.

Index variables that always step together become one: `x[n, c, h, w]` of a contiguous tensor is `x[i]`, so that
pointwise kernels of all shapes share one program, and inner loops are long.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from minigrad.codegen.kernel import Define, Kernel, Nest, Store
from minigrad.codegen.lowering.rename import rename_nest, statements
from minigrad.expr import Expr, Index, Var, variables
from minigrad.value import Value, reduce, substitute
from minigrad.value import expressions as index_expressions

MAX_LENGTH = (1 << 31) - 1


def coefficient(e: Index, v: Var) -> Index | None:
    """What `v` is multiplied with in `e`: 0 where absent, None where it is not linear."""
    return 0 if isinstance(e, int) or v not in (e._variables or variables(e)) else _coefficient(e, v)


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
        elif any(v in variables(a) for a in monomial):
            return None
    return total


def collapse(kernel: Kernel) -> Kernel:
    """Merges index variables of one domain, or of one reduction, that every access steps through as one."""
    return replace(kernel, nests=tuple(_collapse_nest(n) for n in kernel.nests))


def _expressions(nest: Nest) -> list[Index]:
    """Every index expression of a nest."""
    found: dict[Index, None] = {}
    for s in statements((nest,)):
        if isinstance(s, Nest):
            for v in s.domain:
                found[v.hi] = None
            continue
        if isinstance(s, Store):
            for e in s.indices:
                found[e] = None
        found.update(dict.fromkeys(index_expressions(s.value)))
    return [e for e in found if not isinstance(e, int)]


def merged(scope: tuple[Var, ...], expressions: Sequence[Index]) -> tuple[tuple[Var, ...], dict[Var, Index]]:
    """The variables of one domain or reduction, those that all expressions step through as one merged, and what the
    merged ones stand for: the outer of two is 0 then, the inner one runs over the iterations of both."""
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
    return tuple([mapping.get(v, v) for v in scope if v in extents]), mapping  # type: ignore[misc]


def _pair(extents: dict[Var, Index], steps: dict[Var, list[Index | None]]) -> tuple[Var, Var] | None:
    """(outer, inner) variables with a step of the outer one as long as the inner one's run, in every expression."""
    for inner in reversed(extents):
        extent, fine = extents[inner], steps[inner]
        for outer in extents:
            if outer is not inner and all([a is not None and b is not None and a == b * extent
                                           for a, b in zip(steps[outer], fine, strict=True)]):
                return outer, inner
    return None


def _collapse_nest(nest: Nest) -> Nest:
    return _collapse_reductions(_collapse_domains(nest))


def _collapse_reductions(nest: Nest) -> Nest:
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            s = _collapse_reductions(s)
        elif isinstance(s, Define) and s.value.op == "reduce":
            s = Define(s.name, _collapse_reduce(s.value))
        body.append(s)
    return Nest(nest.domain, tuple(body))


def _collapse_domains(root: Nest) -> Nest:
    """`root` with the domains of all its nests collapsed."""
    done: set[tuple[Var, ...]] = set()
    while True:
        expressions = _expressions(root)
        for s in statements((root,)):
            if isinstance(s, Nest) and s.domain not in done:
                domain, mapping = merged(s.domain, expressions)
                done.add(domain)
                if mapping:
                    root = _merge_in(root, s, domain, mapping)
                    break
        else:
            return root


def _merge_in(root: Nest, target: Nest, domain: tuple[Var, ...], mapping: dict[Var, Index]) -> Nest:
    if root is target:
        return Nest(domain, rename_nest(Nest((), root.body), mapping).body)
    return Nest(root.domain, tuple(_merge_in(s, target, domain, mapping) if isinstance(s, Nest) else s
                                   for s in root.body))


def _collapse_reduce(value: Value) -> Value:
    monoid, over = value.attr  # type: ignore[misc]
    body = value.args[0]
    over, mapping = merged(over, index_expressions(body))
    return reduce(monoid, over, substitute(body, mapping)) if mapping else value


def lift_length(kernel: Kernel) -> tuple[Kernel, Index | None]:
    """A one-dimensional pointwise kernel with its length as the dim `n`: one program for all lengths.

    Gives the kernel and what `n` is; the kernel unchanged and None where it does not apply.
    """
    if len(kernel.nests) != 1 or len(kernel.nests[0].domain) != 1 or kernel.dims:
        return kernel, None
    nest = kernel.nests[0]
    v = nest.domain[0]
    if any(isinstance(s, Nest) or isinstance(s, Store) and s.combine is not None
           or s.value.reduces for s in nest.body):
        return kernel, None
    if any(e != v for e in _expressions(nest)) or not isinstance(v.hi, int) or v.hi < 1:
        return kernel, None
    n = Var("n", 1, MAX_LENGTH)
    long = Var(v.name, 0, n - 1)
    lifted = Nest((long,), rename_nest(Nest((), nest.body), {v: long}).body)
    length = v.hi + 1
    params = tuple(replace(p, shape=(n,)) if p.shape == (length,) else p for p in kernel.params)
    return replace(kernel, params=params, nests=(lifted,), dims=(n,)), length
