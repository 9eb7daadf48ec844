"""Kernel -> Kernel: replace index variables everywhere; strip the values of bound symbolic dims."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.walk import bound_variables, expressions_of, map_nest
from minigrad.expr import Index, Var, subs, variables
from minigrad.value import Value, map_indices, substitute


def rename_nest(nest: Nest, mapping: Mapping[Var, Index]) -> Nest:
    """The nest with free index variables replaced, the extents of its own and of reductions' included."""
    places, own = dict(mapping), dict[Var, Var]()
    for v in bound_variables((nest,)):
        if type(v.hi) is not int and variables(v.hi) & places.keys():
            places[v] = own[v] = Var(v.name, 0, subs(v.hi, places))

    def scope(over: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple([own.get(v, v) for v in over])

    def value(root: Value) -> Value:
        return map_indices(root, lambda e: subs(e, places), scope) if own else substitute(root, places)

    return map_nest(nest, value, lambda _, at: tuple([subs(e, places) for e in at]), scope)


def kernel_dims(kernel: Kernel) -> tuple[Var, ...]:
    """Symbolic dims that the kernel depends on: index variables that no nest or reduction binds, by name."""
    bound = bound_variables(kernel.nests)
    used = [*[e for p in kernel.params for e in p.shape], *[v.hi for v in bound], *expressions_of(kernel.nests)]
    return tuple(sorted(set[Var]().union(*map(variables, used)).difference(bound), key=lambda v: v.name))


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
