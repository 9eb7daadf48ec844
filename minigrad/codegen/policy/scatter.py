"""Scatter: parallel over the variables that always hit distinct elements, in index order over the rest.

The result does not depend on the number of threads, and no atomics are needed.
"""
from __future__ import annotations

from minigrad.codegen.kernel.access import accesses
from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.lanes import fewest_operations
from minigrad.expr import variables
from minigrad.target import Target
from minigrad.value import value_atoms


def plan(nest: Nest, target: Target) -> Plan:
    store = next(s for s in nest.body if isinstance(s, Store))
    chosen = frozenset().union(*(variables(a) for a in value_atoms(store.indices[0])))
    found = accesses(nest)
    stores = [a for a in found if a.kind == "store"]
    distinct = [v for v in nest.domain if v not in chosen and any(a.step(v) in (1, 2) for a in stores)]
    serial = [v for v in nest.domain if v not in distinct]
    best = fewest_operations(distinct, found, nest, target)
    lanes, width = (best[0].name, best[1]) if best is not None else ("", 1)
    names = tuple([v.name for v in (*distinct, *serial)])
    return general_plan("scatter", nest, Choice(names, len(distinct), lanes=lanes, width=width))
