"""The gradients of one attention in a nest (`lowering/attention.py` has what it looks like)."""
from __future__ import annotations

from dataclasses import dataclass, replace

from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise_attention import reduced, sides, the_dot
from minigrad.expr import Index, Var, subs
from minigrad.value import Value, free_variables


@dataclass(frozen=True, slots=True)
class Result:
    """A gradient: the name of its sum, and what is stored of it."""

    name: str
    store: Store


@dataclass(frozen=True, slots=True)
class Gradient:
    """The parts of a recognised nest, over variables of their own in place of those of its inner nests.

    `score` computes a score from local(DOT), a weight is exp(score - sums), and where `conditions` are negative it is
    left out; `v` and `less` are None if only the gradient of v is wanted.
    """

    batch: tuple[Var, ...]
    row: Var
    key: Var
    depth: Var
    column: Var
    q: Value
    k: Value
    g: Value
    score: Value
    sums: Value
    conditions: tuple[Index, ...]
    v: Value | None
    less: Value | None
    results: tuple[tuple[str, Result], ...]


def recognise(nest: Nest) -> Gradient | None:
    """The gradients of one attention that a flat nest computes; None for anything else."""
    made: list[Gradient] = []
    for s in nest.body:
        one = _one(s, nest.domain) if isinstance(s, Nest) else None
        if one is None:
            return None
        made.append(one)
    whole = next((m for m in made if m.v is not None), made[0] if made else None)
    if whole is None:
        return None
    for m in made:
        same = m if m.v is not None else replace(m, v=whole.v, less=whole.less)
        if replace(same, results=whole.results) != whole:
            return None
    results = tuple(r for m in made for r in m.results)
    return replace(whole, results=results) if len(dict(results)) == len(results) else None


def _one(nest: Nest, batch: tuple[Var, ...]) -> Gradient | None:
    """The parts of one inner nest: a sum of weights, or of what scores get, times an operand."""
    if len(nest.domain) != 2 or len(nest.body) != 2:
        return None
    define, store = nest.body
    if not (isinstance(define, Define) and isinstance(store, Store)) or store.combine:
        return None
    found = reduced(define.value)
    if found is None or found[0] != "sum" or found[2].op != "mul":
        return None
    _, summed, term, conditions = found
    weight, other = term.args if _weight(term.args[0]) is not None else term.args[::-1]
    p = _weight(weight)
    if p is None:
        return None
    change = None if weight.op == "exp" else _change(weight)
    if weight.op != "exp" and change is None:
        return None
    score, sums = p.args[0].args
    row = next((x for x in (*nest.domain, summed) if x in free_variables(sums)), None)
    outer, inner = nest.domain if nest.domain[0] in free_variables(term) - free_variables(other) else nest.domain[::-1]
    if row is None or row not in (outer, summed):
        return None
    key = summed if row is outer else outer
    dot = the_dot(score, key)
    if dot is None:
        return None
    depth, q, k, with_dot = dot
    of = "v" if change is None else "q" if row is outer else "k"
    own = Var("row", 0, row.hi), Var("key", 0, key.hi), Var("depth", 0, depth.hi)
    column, g, v, less = inner, other, None, None
    if change is not None:
        product, less = change
        both = reduced(product)
        if both is None or both[0] != "sum" or both[3] or both[2].op != "mul":
            return None
        pair = sides(both[2], key)
        if pair is None or inner.hi != depth.hi:
            return None
        column, (g, v) = both[1], pair
    last = Var("column", 0, column.hi)
    names = {row: own[0], key: own[1], depth: own[2], column: last, inner: last if of == "v" else own[2]}
    at = Rewriter(names)
    found_parts = Gradient(batch, *own, last, at.value(q), at.value(k), at.value(g), at.value(with_dot), at.value(sums),
                           tuple(subs(e, names) for e in conditions), v and at.value(v), less and at.value(less),
                           ((of, Result(define.name, *at.stores((store,)))),))
    if of != "v" and at.value(other) is not (found_parts.k if of == "q" else found_parts.q):
        return None
    return found_parts


def _weight(value: Value) -> Value | None:
    """exp(score - sums) in `value`: itself, or a factor of it."""
    for v in (value, *(value.args if value.op == "mul" else ())):
        if v.op == "exp" and v.args[0].op == "sub":
            return v
    return None


def _change(value: Value) -> tuple[Value, Value] | None:
    """(a, b) of weight * (a - b)."""
    weight = _weight(value)
    rest = value.args[1] if value.args[0] is weight else value.args[0]
    return rest.args if rest.op == "sub" else None  # type: ignore[return-value]
