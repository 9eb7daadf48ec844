"""Kernel -> Kernel: replace index variables everywhere; strip the values of bound symbolic dims."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.expr import Index, Var, subs, variables
from minigrad.value import Value, free_variables, map_indices, reductions_in, substitute


def statements(nests: Sequence[Nest | Define | Store]) -> Iterator[Nest | Define | Store]:
    """Every nest and statement, outer before inner."""
    stack: list[Nest | Define | Store] = list(reversed(nests))
    while stack:
        s = stack.pop()
        yield s
        if isinstance(s, Nest):
            stack.extend(reversed(s.body))


def rename_value(value: Value, mapping: Mapping[Var, Index]) -> Value:
    """`substitute` that also renames the extents of reduction variables."""
    over = {v for r in reductions_in(value) for v in r.over}
    renamed = {v: Var(v.name, 0, subs(v.hi, mapping)) for v in over
               if type(v.hi) is not int and variables(v.hi) & mapping.keys()}
    if not renamed:
        return substitute(value, mapping)
    whole = {**mapping, **renamed}
    return map_indices(value, lambda e: subs(e, whole), lambda over: tuple([renamed.get(v, v) for v in over]))


def rename_nest(nest: Nest, mapping: Mapping[Var, Index]) -> Nest:
    """The nest with free index variables replaced, its own variables' extents included."""
    own = {v: Var(v.name, 0, subs(v.hi, mapping)) for v in nest.domain
           if type(v.hi) is not int and variables(v.hi) & mapping.keys()}
    inner = {**mapping, **own}
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(rename_nest(s, inner))
        elif isinstance(s, Define):
            body.append(Define(s.name, rename_value(s.value, inner)))
        else:
            at = tuple(subs(e, inner) for e in s.indices)
            body.append(Store(s.param, at, rename_value(s.value, inner), s.combine))
    return Nest(tuple(own.get(v, v) for v in nest.domain), tuple(body))


def map_nest(nest: Nest, value: Callable[[Value], Value],
             at: Callable[[str, tuple[Index, ...]], tuple[Index, ...]]) -> Nest:
    """The nest, and those inside it, with every value replaced, and the indices `at(parameter, indices)` of stores."""
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(map_nest(s, value, at))
        elif isinstance(s, Define):
            body.append(Define(s.name, value(s.value)))
        else:
            body.append(Store(s.param, at(s.param, s.indices), value(s.value), s.combine))
    return Nest(nest.domain, tuple(body))


def kernel_dims(kernel: Kernel) -> tuple[Var, ...]:
    """Symbolic dims that the kernel depends on: index variables that no nest or reduction binds, by name."""
    bound: set[Var] = set()
    used: set[Var] = set()
    for p in kernel.params:
        used.update(*map(variables, p.shape))
    for s in statements(kernel.nests):
        if isinstance(s, Nest):
            bound.update(s.domain)
            used.update(*(variables(v.hi) for v in s.domain))
            continue
        used |= free_variables(s.value)
        for r in reductions_in(s.value):
            bound.update(r.over)
            used.update(*(variables(v.hi) for v in r.over))
        if isinstance(s, Store):
            used.update(*map(variables, s.indices))
    return tuple(sorted(used - bound, key=lambda v: v.name))


def strip_bindings(kernel: Kernel) -> tuple[Kernel, tuple[Var, ...]]:
    """The kernel over symbolic dims d0, d1, ..., and the (unbound) variable that each of them stands for.

    A bound value is an argument and never part of a key; names that users chose do not matter either.
    """
    dims = kernel_dims(kernel)
    if not dims:
        return kernel, ()
    originals = tuple(dict.fromkeys(Var(v.name, v.lo, v.hi) for v in dims))
    named = {o: Var(f"d{k}", o.lo, o.hi) for k, o in enumerate(originals)}
    mapping: dict[Var, Index] = {v: named[Var(v.name, v.lo, v.hi)] for v in dims}
    params = tuple(replace(p, shape=tuple(subs(e, mapping) for e in p.shape)) for p in kernel.params)
    nests = tuple(rename_nest(n, mapping) for n in kernel.nests)
    return replace(kernel, params=params, nests=nests, dims=tuple(named.values())), originals
