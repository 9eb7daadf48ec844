"""Attention of few rows, as in decoding: keys and values are read once, front to back, for all rows that share them.

    parallel: batch of k and v, parts of the keys
      scores[row][key] = q k                        lanes along the depth, then across lanes; some keys and all rows
      top = max over keys; scores = exp(scores - top); total = sum over keys          lanes along keys
      o[row][f] = sum over keys of scores * v                                         lanes along columns

Where there are many keys, a part of them is one step of the parallel loop and leaves its top, total and sums; a second
stage adds them up (`split_keys`). Parts have a fixed size, so that results do not depend on the number of workers.
"""
from __future__ import annotations

from math import gcd

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.lowering.attention import shift_of
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.patterns.recognise_attention import Attention, Mix, identity_of, recognise, reduced
from minigrad.codegen.plan.other_plans import AttentionDecodePlan
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, bounds, product, subs
from minigrad.target import Target
from minigrad.value import Value, binary, free_variables, guard, load, local, reduce, substitute, unary

MAX_ROWS = 8
"""Rows that share keys, at most; more of them fill lanes."""

PART = 128
"""Keys of a part: what there is to do for one must be little beside reading them, and there must be several."""

SUMS = 12
"""Sums in registers at a time; the products of a key wait for each other where there are fewer."""

MAX_KEYS = 8


def sharing(found: Attention) -> tuple[Var, ...]:
    """The variables of rows that meet the same keys and values, outermost first."""
    per_key = free_variables(found.k) | (free_variables(found.mix.v) if found.mix else frozenset())
    return (*(v for v in found.batch if v not in per_key), found.row)


def rows_of(found: Attention) -> int:
    return product(extent(v) for v in sharing(found))  # type: ignore[return-value]


def plan(nest: Nest, target: Target) -> AttentionDecodePlan | None:
    """None where the nest is something else, or has many rows, or keys that `split_keys` left together."""
    found = recognise(nest)
    if found is None or found.mix is None or target.is_gpu or target.language != "llvm":
        return None
    rows, shared = rows_of(found), sharing(found)
    if rows > MAX_ROWS or extent(found.key) > PART:
        return None
    width = target.lanes(max(found.q.dtype.bits, 32))
    depth, columns = gcd(extent(found.depth), width), gcd(extent(found.mix.column), width)
    vectors = max(d for d in range(1, max(SUMS // rows, 1) + 1) if extent(found.mix.column) // columns % d == 0)
    return AttentionDecodePlan(
        "attention_decode", tuple(v.name for v in found.batch if v not in shared), tuple(v.name for v in shared),
        found.key.name, min(max(SUMS // rows, 1), MAX_KEYS), depth, columns, vectors, width)


def split_keys(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """Attention of few rows to many keys as two nests: parts of the keys, then their combination; else the nest itself.

    Before: `t = max(j<n: s)`, `u = sum(j<n: exp(s - t))`, `m = sum(j<n: exp(s - t) * v)`. After: the same for
    `p<ceil(n/PART)` over the keys `p*PART + j`, kept in three buffers, and `t = max(p: t[p])`,
    `u = sum(p: u[p] * exp(t[p] - t))`, `m = sum(p: m[p] * exp(t[p] - t))`. `scratch` grows by the buffers.
    """
    found = recognise(nest)
    if found is None or found.mix is None or target.is_gpu or target.language != "llvm":
        return [nest]
    if rows_of(found) > MAX_ROWS or bounds(found.key.hi)[1] < PART:
        return [nest]
    top, total = (s for s in nest.body[:2] if isinstance(s, Define))
    inner = next(s for s in nest.body if isinstance(s, Nest))
    mixed = inner.body[0]
    if not isinstance(mixed, Define):
        raise InternalError(f"[split] expected a sum over keys, got {type(mixed).__name__}")
    count: Index = (found.key.hi + PART) // PART
    part, dtype = Var("part", 0, count - 1), found.q.dtype
    outputs = product(v.hi + 1 for v in nest.domain)
    place = offset(nest.domain, tuple([v.hi + 1 for v in nest.domain]))
    kept = []
    for size in (1, 1, found.mix.column.hi + 1):
        kept.append(Param(f"w{len(scratch)}", dtype, (count * outputs * size,), "out"))
        scratch.append(kept[-1])
    at = _places(place, outputs, found.mix, part)
    cut = [Define(s.name, in_part(s.value, found.key, part)) for s in (top, total, mixed)]
    stores = [Store(p.name, (e,), local(s.name, dtype)) for p, e, s in zip(kept, at, cut, strict=True)]
    first = Nest((*nest.domain, part), (*cut[:2], *stores[:2], Nest(inner.domain, (cut[2], stores[2]))))
    return [first, _combination(nest, found, [p.name for p in kept], place, outputs, count)]


def _places(place: Index, outputs: Index, mix: Mix, part: Index) -> tuple[Index, Index, Index]:
    """The places where a part keeps its top, its total and its sums."""
    at = part * outputs + place
    return at, at, at * (mix.column.hi + 1) + mix.column


def in_part(value: Value, key: Var, part: Var) -> Value:
    """A reduction over keys, over those of a part."""
    monoid, _, body, conditions = present(reduced(value), "[split] expected a reduction over keys")
    inside = Var(key.name, 0, PART - 1)
    number = part * PART + inside
    length = key.hi + 1
    last = () if isinstance(length, int) and length % PART == 0 else (key.hi - number,)
    conditions = (*(subs(e, {key: number}) for e in conditions), *last)
    body = substitute(body, {key: number})
    return reduce(monoid, (inside,), guard(body, identity_of(monoid, body.dtype), conditions))


def _combination(nest: Nest, found: Attention, kept: list[str], place: Index, outputs: Index, count: Index) -> Nest:
    """The nest with its reductions over what the parts have kept."""
    mix, dtype = present(found.mix, "[split] expected values to mix"), found.q.dtype
    parts = [Var(f"q{n}", 0, count - 1) for n in range(3)]
    loads = [[load(name, (e,), dtype) for name, e in
              zip(kept, _places(place, outputs, mix, p), strict=True)] for p in parts]

    def scaled(n: int) -> Value:
        """The contribution of part `parts[n]` to the n-th result."""
        return binary("mul", loads[n][n], unary("exp", binary("sub", loads[n][0], shift_of(local(found.top, dtype)))))

    mixed = Define(mix.name, reduce("sum", (parts[2],), scaled(2)))
    return Nest(nest.domain, (Define(found.top, reduce("max", (parts[0],), loads[0][0])),
                              Define(found.total, reduce("sum", (parts[1],), scaled(1))), *found.stores,
                              Nest((mix.column,), (mixed, mix.store))))
