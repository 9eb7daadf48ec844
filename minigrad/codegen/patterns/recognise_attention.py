"""Attention, or the sums of its weights, in a nest (`lowering/attention.py` has what it looks like)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.kernel.value_walk import replace_values
from minigrad.codegen.lowering.attention import shift_of
from minigrad.expr import Index, Var, coefficient, emax, emin, subs
from minigrad.value import Value, binary, free_variables, local, walk


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of a recognised nest. `row`, `key` and `depth` are the variables of q k and their product; `score`
    computes a score from local(DOT); the terms of `conditions` that are negative are left out. `top` and `total` name
    what is known of a row, and `stores` are made of them.
    """

    batch: tuple[Var, ...]
    row: Var  # of one row, if there is but one
    key: Var
    depth: Var
    q: Value
    k: Value
    score: Value
    conditions: tuple[Index, ...]
    top: str
    total: str
    stores: tuple[Store, ...]
    mix: Mix | None


@dataclass(frozen=True, slots=True)
class Mix:
    """The result for each `column`: `name` names the sum of the weights times v."""

    column: Var
    v: Value
    name: str
    store: Store


DOT = "dot"


class Bounded(Protocol):
    """A pattern with rows and keys, and conditions that leave keys of a row out."""

    @property
    def row(self) -> Var: ...

    @property
    def key(self) -> Var: ...

    @property
    def conditions(self) -> tuple[Index, ...]: ...


def recognise(nest: Nest) -> Attention | None:
    """The attention, or the sums of its weights, that a flat nest computes; None for anything else."""
    if len(nest.body) < 3:
        return None
    top, total, *rest = nest.body
    if not (isinstance(top, Define) and isinstance(total, Define)):
        return None
    inner = [s for s in rest if isinstance(s, Nest)]
    stores = tuple(s for s in rest if isinstance(s, Store) and not s.combine)
    if len(inner) > 1 or len(inner) + len(stores) < len(rest):
        return None
    found = [reduced(s.value) for s in (top, total)]
    if [f[0] if f else None for f in found] != ["max", "sum"]:
        return None
    (_, key, score, conditions), (_, key1, weight, others) = found  # type: ignore[misc]
    if not (key == key1 and conditions == others):
        return None
    if weight.op != "exp" or weight.args[0] is not binary("sub", score, shift_of(local(top.name, score.dtype))):
        return None
    dot = the_dot(score, key)
    mix = _mix(inner[0], weight, key, conditions) if inner else None
    if dot is None or (inner and mix is None):
        return None
    depth, q, k, with_dot = dot
    by_keys = free_variables(k) | (free_variables(mix.v) if mix else frozenset())
    apart = [x for x in nest.domain if x not in by_keys]  # any of them may be the row: one that q has, if there is one
    rows = [x for x in apart if x in free_variables(q)] or apart
    if mix and (depth in free_variables(mix.v) or mix.column in free_variables(score)):
        return None
    row = rows[-1] if rows else Var("row", 0, 0)
    batch = tuple(x for x in nest.domain if x is not row)
    return Attention(batch, row, key, depth, q, k, with_dot, conditions, top.name, total.name, stores, mix)


def _mix(inner: Nest, weight: Value, key: Var, conditions: tuple[Index, ...]) -> Mix | None:
    """The use of the weights: their sum over v for each column."""
    if len(inner.domain) != 1 or len(inner.body) != 2:
        return None
    mixed, store = inner.body
    if not (isinstance(mixed, Define) and isinstance(store, Store)) or store.combine:
        return None
    found = reduced(mixed.value)
    if found is None or found[:2] != ("sum", key) or found[3] != conditions:
        return None
    term = found[2]
    if term.op != "mul" or weight not in term.args:
        return None
    v = term.args[1] if term.args[0] is weight else term.args[0]
    return Mix(inner.domain[0], v, mixed.name, store)


def the_dot(score: Value, key: Var) -> tuple[Var, Value, Value, Value] | None:
    """The only sum in a score: its variable, its operands, that of the keys second, and the score of local(DOT)."""
    products = [x for x in walk(score) if x.op == "reduce"]
    if len(products) != 1 or products[0].monoid != "sum" or len(products[0].over) != 1:
        return None
    depth, body = products[0].over[0], products[0].args[0]
    pair = sides(body, key)
    return None if pair is None else (depth, *pair, replace_values(score, {products[0]: local(DOT, score.dtype)}))


def reduced(value: Value) -> tuple[str, Var, Value, tuple[Index, ...]] | None:
    """(monoid, variable, what is reduced, conditions outside which it is the monoid's identity)."""
    if value.op != "reduce" or len(value.over) != 1:
        return None
    monoid, (over,) = value.monoid, value.over
    body = value.args[0]
    if body.op != "guard":
        return monoid, over, body, ()
    inside, outside = body.args
    return (monoid, over, inside, body.conditions) if outside is MONOIDS[monoid].init(body.dtype) else None


def sides(product: Value, key: Var) -> tuple[Value, Value] | None:
    """(q, k) of their product."""
    if product.op != "mul":
        return None
    a, b = product.args
    uses = [key in free_variables(x) for x in (a, b)]
    return None if uses[0] == uses[1] else (b, a) if uses[0] else (a, b)


def last_key(found: Bounded, at: dict[Var, Index], origin: Index, rows: int) -> Index:
    """The last key that any of the block's rows looks at."""
    last = found.key.hi
    final = emin(origin + rows - 1, found.row.hi)
    for e in found.conditions:
        row, key = coefficient(e, found.row), coefficient(e, found.key)
        if key == -1 and isinstance(row, int) and row >= 0:
            last = emin(last, emax(subs(e, {found.key: 0, found.row: final, **at}), 0))
    return last


def first_key(found: Bounded, at: dict[Var, Index], origin: Index) -> Index:
    """The first key that any row from `origin` on looks at."""
    first: Index = 0
    for e in found.conditions:
        row, key = coefficient(e, found.row), coefficient(e, found.key)
        if key == 1 and isinstance(row, int) and row <= 0:
            first = emax(first, -subs(e, {found.key: 0, found.row: origin, **at}))
    return emin(first, found.key.hi)
