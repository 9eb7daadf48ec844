"""Attention without a table of scores: a block of rows meets the keys block by block (Milakov and Gimelshein, 2018).

    parallel: batch, blocks of rows
      q transposed: [e][row]
      for blocks of keys:
        s[key][row] = k q                       register tiles, lanes along rows
        top' = max(top, max over keys of s);  shrink = exp(top - top')
        s = exp(s - top');  total = total * shrink + sum over keys of s
        o[f][row] = o * shrink + v s            register tiles
      store o / total

Lanes are rows of q throughout, so that nothing is summed across lanes and k and v are read where they are, element by
element. Blocks of keys that a causal guard leaves out whole are never looked at.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.machines.caches import room
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.plan.other_plans import AttentionPlan
from minigrad.codegen.policy.blocking import MAX_VECTORS, SPARE_REGISTERS, least_step
from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.target import Target
from minigrad.value import Value, binary, const, free_variables, local, rebuild, walk

KEYS = 128
"""Keys of a block at most; their scores stay in the first-level cache."""


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
    return None if pair is None else (depth, *pair, _replace(score, products[0], local(DOT, score.dtype)))


def reduced(value: Value) -> tuple[str, Var, Value, tuple[Index, ...]] | None:
    """(monoid, variable, what is reduced, conditions outside which it is the monoid's identity)."""
    if value.op != "reduce" or len(value.over) != 1:
        return None
    monoid, (over,) = value.monoid, value.over
    body = value.args[0]
    if body.op != "guard":
        return monoid, over, body, ()
    inside, outside = body.args
    return (monoid, over, inside, body.conditions) if outside is identity_of(monoid, body.dtype) else None


def identity_of(monoid: str, dtype: DType) -> Value:
    """The value of a sum, or a maximum, of nothing."""
    return const(0 if monoid == "sum" else dtype.min, dtype)


def sides(product: Value, key: Var) -> tuple[Value, Value] | None:
    """(q, k) of their product."""
    if product.op != "mul":
        return None
    a, b = product.args
    uses = [key in free_variables(x) for x in (a, b)]
    return None if uses[0] == uses[1] else (b, a) if uses[0] else (a, b)


def _replace(root: Value, old: Value, new: Value) -> Value:
    done: dict[Value, Value] = {}
    for v in walk(root):
        done[v] = new if v is old else rebuild(v, tuple(done[a] for a in v.args), v.attr)
    return done[root]


def plan(nest: Nest, target: Target) -> AttentionPlan | None:
    """None where the nest is something else, or the target has no room for its blocks."""
    found = recognise(nest)
    if found is None or target.is_gpu or found.q.dtype.bits > 64:
        return None
    width = target.lanes(max(found.q.dtype.bits, 32))
    rows, vectors = register_tile(found, width, target)
    lanes = width * vectors
    memory = room(1, target) // 2 if target.language == "llvm" else (
        target.local_memory - fixed_bytes(found, lanes, rows))
    keys = min(memory // (lanes * found.q.dtype.itemsize), KEYS, ceil(typical(found.key) / rows) * rows) // rows * rows
    if keys < rows:
        return None
    return AttentionPlan("attention", tuple(v.name for v in found.batch), found.row.name, found.key.name, rows, vectors,
                         width, keys)


def has_room(depth: int, columns: int, itemsize: int, target: Target) -> bool:
    """True where `plan` finds room for blocks of keys with these extents, whatever the tile, on a CPU."""
    lanes = MAX_VECTORS * target.lanes(32)
    return target.language == "llvm" or (depth + columns + KEYS) * lanes * itemsize <= target.local_memory


def fixed_bytes(found: Attention, lanes: int, rows: int) -> int:
    """Memory that a block of rows needs besides its scores."""
    columns = ceil(typical(found.mix.column) / rows) * rows if found.mix else 0
    return (typical(found.depth) + columns + 3) * lanes * found.q.dtype.itemsize


def register_tile(found: Attention, width: int, target: Target) -> tuple[int, int]:
    """(keys or columns, vectors of rows) of a tile: fewest cycles per score, what edges waste included."""
    best, facts = (1, 1, float("inf")), machine(target)
    columns = typical(found.mix.column) if found.mix else 0
    for vectors in range(1, MAX_VECTORS + 1):
        waste = ceil(typical(found.row) / (vectors * width)) * vectors * width / typical(found.row)
        for rows in range(1, (target.registers - vectors - SPARE_REGISTERS) // vectors + 1):
            edge = ceil(columns / rows) * rows / columns if columns else 0
            step = facts.costs.loop + least_step(rows, vectors, facts, 2)
            cycles = step / (rows * vectors) * waste * (1 + edge)
            if cycles < best[2] * 0.999:
                best = rows, vectors, cycles
    return best[:2]
