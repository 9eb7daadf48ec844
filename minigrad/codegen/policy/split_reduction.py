"""Long sums with few outputs as two nests: partial results of fixed parts, then all of them."""
from __future__ import annotations

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store, is_sum
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.policy import rows
from minigrad.codegen.policy.parts import part_variable
from minigrad.expr import Var, product, subs
from minigrad.target import Target
from minigrad.value import cast, load, local, reduce, substitute, walk

FEW_OUTPUTS = 16
LONG_SUM, LONG_SUM_FOR_GROUPS = 1 << 17, 1 << 15
"""Operations of a sum, its additions included, from which it is worth partial sums: for the cores of a processor, to
which a shorter one is not handed out, and for work-groups."""

PARTS = 64


def split_reduction(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """The two nests where there are few outputs and all sums are long; else the nest itself. How many parts depends on
    shapes only. `scratch` grows by a buffer for each sum.

    Before: `t = sum(k<K: e)`. After: `for p<P: w[p] = sum(k1<K/P: e[k := p*K/P + k1])`, then `t = sum(p<P: w[p])`.
    Halide calls it rfactor.
    """
    outputs, long = product(v.hi + 1 for v in nest.domain), LONG_SUM_FOR_GROUPS if target.has_groups else LONG_SUM
    sums = [s for s in nest.body if is_sum(s)]
    if not sums or not isinstance(outputs, int) or outputs > FEW_OUTPUTS or rows.is_row_kernel(nest):
        return [nest]
    operations = sum(v.op not in ("load", "const", "index") for s in sums for v in walk(s.value))
    totals = [product(v.hi + 1 for v in s.value.over) for s in sums]
    if any([not isinstance(n, int) or n * operations < long for n in totals]):
        return [nest]
    along = {s.name: max(s.value.over, key=lambda v: (part_count(extent(v)), extent(v))) for s in sums}
    count, *others = {part_count(extent(v)) for v in along.values()}
    if others or count < 2:
        return [nest]
    p = part_variable(nest, count)
    place = offset(nest.domain, tuple([v.hi + 1 for v in nest.domain])) * count + p
    partials: list[Define] = []
    kept: list[Store] = []
    second: list[Define | Store | Nest] = []
    for s in nest.body:
        v = along.get(s.name) if isinstance(s, Define) else None
        if v is None or not isinstance(s, Define):
            second.append(s)
            continue
        inner = Var(v.name, 0, extent(v) // count - 1)
        body = substitute(s.value.args[0], {v: p * (extent(v) // count) + inner})
        param = Param(f"w{len(scratch)}", body.dtype, (outputs * count,), "out")
        scratch.append(param)
        over = tuple([inner if o is v else o for o in s.value.over])
        partials.append(Define(s.name, reduce(s.value.monoid, over, body)))
        kept.append(Store(param.name, (place,), local(s.name, body.dtype)))
        q = Var(f"q{len(scratch)}", 0, count - 1)
        joined = load(param.name, (subs(place, {p: q}),), body.dtype)
        second.append(Define(s.name, cast(reduce(s.value.monoid, (q,), joined), body.dtype)))
    return [Nest((*nest.domain, p), (*partials, *kept)), Nest(nest.domain, tuple(second))]


def part_count(n: int) -> int:
    """The largest number of equal parts, at most PARTS."""
    return next((d for d in range(min(PARTS, n), 1, -1) if n % d == 0), 1)
