"""`compute s at r`: what the nest before stores in s is computed in the loop of the sum that reads it.

    for k, l: s[k, l] = f(s[k, l])                          for l: for r:
    for l: t = sum(r: s[r, l] * q[r]); o[l] = t      ->       new = f(s[r, l]);  s[r, l] = new
                                                              acc = acc + new * q[r]
                                                            for l: o[l] = acc

Halide, TVM: compute_at.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations

from minigrad.codegen.ir.nodes import Function, Let, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.ir.walk import fresh, map_blocks, map_function
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import loaded, loads, replace_values
from minigrad.codegen.kernel.walk import assignments, map_nest, statements
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.loops import Loops, divides, refuse
from minigrad.codegen.plan.steps import Compute, Plan, resolve
from minigrad.expr import Index, Var, subs
from minigrad.record import record
from minigrad.value import Value, load, local, substitute


@record
class Computed:
    """The load of a sum's term that reads what the nest before stores, element by element; `store` is that nest's, its
    variables those of the sum and of its nest in `at`."""

    load: Value
    store: Store
    at: Mapping[Var, Index]


def computed(before: Nest, nest: Nest) -> Computed | None:
    """The load of a sum that reads all that the nest before stores, one element for each term and each result, which
    nothing else reads. None where that is not so."""
    store, define = before.body[0], nest.body[0]
    if len(before.body) != 1 or not isinstance(store, Store) or store.value.reduces or store.combine:
        return None
    if not isinstance(define, Define) or define.value.op != "reduce" or define.value.args[0].reduces:
        return None
    ours = (*nest.domain, *define.value.over)
    found = {v for s in assignments((nest,)) for v in loads(s.value) if v.buffer == store.param}
    own = {v.indices for v in loads(store.value) if v.buffer == store.param}
    stored = {s.param for s in statements(nest.body) if isinstance(s, Store)}
    once = len(found) == 1 and found <= set(loads(define.value.args[0]))
    if not once or own - {store.indices} or stored & (loaded(store.value) | {store.param}):
        return None
    read, = found
    if len(ours) != len(before.domain) or any(isinstance(s, Nest) for s in nest.body):
        return None
    for chosen in permutations(ours):
        at = dict(zip(before.domain, chosen, strict=True))
        if all(v.hi == x.hi for v, x in at.items()) and subs(store.indices[0], at) == read.indices[0]:
            return Computed(read, store, at)
    return None


def with_compute(before: Nest, nest: Nest, plan: Plan) -> Plan | None:
    """The plan of a nest by which it computes what the one `before` stores; None where it cannot."""
    found = computed(before, nest)
    if found is None:
        return None
    loops = resolve(nest, plan)
    own = [x for x in loops.order if loops.space[x]]
    step = Compute(found.store.param, own[-1])
    return None if _fault(step, found, loops) else replace(plan, steps=(*plan.steps, step))


def _fault(step: Compute, found: Computed | None, loops: Loops) -> tuple[str, str] | None:
    """(what was expected, what is there) where a nest cannot compute what the one before stores."""
    if found is None or found.store.param != step.buffer:
        return f"a nest before that stores to {step.buffer} what the sum reads and nothing else does", "none"
    own = [x for x in loops.order if loops.space[x]]
    if own[-1:] != [step.at]:
        return f"the innermost loop of the sum, {own[-1]}", step.at
    for s in loops.split.values():
        if s.edge not in ("exact", "rest") and not divides(s, loops.extent(s.loop)):
            return f"each element once, so a size that divides {s.loop} or the edge rest", str(s)
    return None


def build_computed(kernel: Kernel, before: Nest | None, plan: Plan, name: str) -> Function:
    """`build` of a kernel's nest by a plan with such a step, where `before` is the nest before it. Raises PlanError."""
    step = next(s for s in plan.steps if isinstance(s, Compute))
    plan, nest = replace(plan, steps=tuple([s for s in plan.steps if s is not step])), kernel.nests[0]
    found, loops = None if before is None else computed(before, nest), resolve(nest, plan)
    fault = _fault(step, found, loops)
    if fault is not None or found is None:
        raise refuse(step, *(fault or ("", "")))
    marked = load(step.buffer, (*found.load.indices, *found.at.values()), found.load.dtype)
    nest = map_nest(nest, lambda v: replace_values(v, {found.load: marked}), lambda _, at: at)
    made = build(replace(kernel, nests=(nest,)), nest, plan, name)
    return map_function(made, partial(_expanded, found, set()))


def _expanded(found: Computed, used: set[str], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements in which what a sum reads is computed first, and stored: a load that says where it is."""
    out: list[Stmt] = []
    for s in body:
        s = map_blocks(s, partial(_expanded, found, used))
        if isinstance(s, Let | IRStore):
            known: dict[Value, Value] = {}
            for v in loads(s.value):
                if len(v.indices) > 1:
                    known[v] = new = local(fresh("new", used), v.dtype)
                    at = dict(zip(found.at, v.indices[1:], strict=True))
                    out += [Let(new.name, substitute(found.store.value, at)), IRStore(v.buffer, v.indices[0], new)]
            s = replace(s, value=replace_values(s.value, known)) if known else s
        out.append(s)
    return tuple(out)
