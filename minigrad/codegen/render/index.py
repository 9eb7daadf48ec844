"""Index arithmetic, for renderers.

Address polynomials are summed by loop level, outer terms first, so that an inner loop only adds what it changes.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.render.refs import INDEX, Ref
from minigrad.errors import InternalError
from minigrad.expr import (
    Atom,
    Expr,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Var,
    bounds,
    split,
    subs,
    to_text,
    variables,
    varying,
)
from minigrad.expr.linear import coefficient as step_of
from minigrad.value import ValueIndex, value_atoms

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter


def sums(out: Emitter, e: Index, lane: int | None = None) -> tuple[list[Ref], int]:
    """`e` as one partial sum per loop level, outermost first, and its constant; `lane` is the lane's number."""
    if isinstance(e, int):
        return [], e
    whole: Index = e.known_varying or varying(e)
    key = "sums", whole, lane
    found = out.memo.get(key)
    if found is None:
        plain = not value_atoms(e)
        if lane is not None and out.lane is not None and plain:
            split = by_lane(out, whole)
            if split is None:
                whole = subs(whole, {out.lane: out.first_lane + lane})
            else:
                whole = split[0] + split[1] * (lane if split[1] else 0)
            found = sums(out, whole)
        else:
            found = ([], whole) if isinstance(whole, int) else (by_level(out, whole, lane), 0)
        if plain:
            out.memo[key] = found
    return found[0], found[1] + e.const


def by_level(out: Emitter, e: Expr, lane: int | None) -> list[Ref]:
    """The terms of `e` as one sum per loop level, outermost first."""
    levels: dict[int, Ref] = {}
    for monomial, coefficient in e.terms:
        key = "term", monomial, coefficient, lane
        product = out.memo.get(key)
        if product is None:
            product = term(out, monomial, coefficient, lane)
            if not any([type(a) is not Var and value_atoms(a) for a in monomial]):
                out.memo[key] = product
        known = levels.get(product.level)
        levels[product.level] = product if known is None else out.language.integer("add", known, product)
    return [levels[level] for level in sorted(levels)]


def term(out: Emitter, monomial: tuple[Atom, ...], coefficient: int, lane: int | None) -> Ref:
    """A product, of what is defined outside first."""
    factors = [atom(out, a, lane) for a in monomial]
    if len(factors) > 1:
        factors.sort(key=lambda r: r.level)
    if coefficient != 1:
        factors.insert(0, out.constant(coefficient, INDEX))
    product = factors[0]
    for f in factors[1:]:
        product = out.language.integer("mul", product, f)
    return product


def total(out: Emitter, parts: list[Ref], constant: int) -> Ref:
    """The sum of what `sums` returns."""
    result: Ref | None = None
    for p in parts:
        result = p if result is None else out.language.integer("add", result, p)
    if result is None:
        return out.constant(constant, INDEX)
    return out.language.integer("add", result, out.constant(constant, INDEX)) if constant else result


def index(out: Emitter, e: Index, lane: int | None = None) -> Ref:
    """A scalar index."""
    return total(out, *sums(out, e, lane))


def atom(out: Emitter, a: Atom, lane: int | None) -> Ref:
    if isinstance(a, Var):
        if a is out.lane:
            if lane is None:
                raise InternalError(f"[render] {out.function.name}: lane {a.name} used where a scalar is needed")
            return out.constant(out.first_lane + lane, INDEX)
        if a not in out.variables:
            raise InternalError(f"[render] {out.function.name}: unbound index variable {a.name}")
        return out.variables[a]
    if isinstance(a, ValueIndex):
        x = out.values.emit(a.value, out.under)
        if x.lanes > 1:
            if lane is None:
                raise InternalError(f"[render] {out.function.name}: an index that differs by lane needs a lane")
            x = out.language.extract(x, lane)
        return out.language.convert(x, INDEX)
    if isinstance(a, Opaque):
        return index(out, a.inner, lane)
    if isinstance(a, (Min, Max)):
        op = "min" if isinstance(a, Min) else "max"
        return out.language.integer(op, index(out, a.a, lane), index(out, a.b, lane))
    if isinstance(a, (FloorDiv, Mod)):
        return division(out, a, lane)
    raise InternalError(f"[render] {out.function.name}: cannot render index {to_text(a)}")


def division(out: Emitter, a: FloorDiv | Mod, lane: int | None) -> Ref:
    """Floor division of a possibly negative number by a constant is shifted to be one of a non-negative number."""
    (lo, hi), op = bounds(a.a), "div" if isinstance(a, FloorDiv) else "mod"
    x, y = index(out, a.a, lane), index(out, a.b, lane)
    least, most = bounds(a.b)
    if lo >= 0:
        return out.language.integer(op, x, y, hi < 2**31 and most < 2**31, least < 1)
    if not isinstance(a.b, int) or lo < -2**62:
        return out.language.integer("f" + op, x, y, traps=least < 1)
    shift = -(lo // a.b)
    x = out.language.integer("add", x, out.constant(shift * a.b, INDEX))
    q = out.language.integer(op, x, y, small=hi + shift * a.b < 2**31)
    return out.language.integer("add", q, out.constant(-shift, INDEX)) if op == "div" else q


def varies(out: Emitter, a: Atom) -> bool:
    """True where an atom differs from lane to lane."""
    if out.lane is None or not value_atoms(a):
        return out.lane in variables(a)
    if isinstance(a, ValueIndex):
        return out.values.emit(a.value, out.under).lanes > 1
    return any(varies(out, f) for e in a.children() if not isinstance(e, int) for m, _ in e.terms for f in m)


def by_lane(out: Emitter, e: Index) -> tuple[Index, int] | None:
    """(rest, stride) with e = rest + stride * lane and nothing else that varies, or None."""
    if isinstance(e, int) or out.lane is None:
        return e, 0
    whole = e.known_varying or varying(e)
    key = "by_lane", whole
    if key in out.memo:
        found = out.memo[key]
    else:
        found = split_lane(out, whole)
        if not value_atoms(whole):
            out.memo[key] = found
    if found is None or not found[1]:
        return None if found is None else (e, 0)
    return found[0] + e.const, found[1]


def split_lane(out: Emitter, e: Index) -> tuple[Index, int] | None:
    if isinstance(e, int) or out.lane is None or (out.lane not in variables(e) and not value_atoms(e)):
        return e, 0
    rest, steps = split(e, (out.lane,))
    if not isinstance(rest, int):
        for monomial, _ in rest.terms:
            for a in monomial:
                if (type(a) is not Var or a is out.lane) and varies(out, a):
                    return None
    stride = steps[0][1] if steps else 0
    return rest + stride * out.first_lane, stride


def far_step(out: Emitter, e: Index) -> tuple[Index, Index] | None:
    """(rest, stride) with e = rest + stride * lane for a stride that is a constant above 4 or an argument."""
    if out.lane is None or isinstance(e, int) or value_atoms(e):
        return None
    stride = step_of(e, out.lane)
    if stride is None or (isinstance(stride, int) and stride <= 4):
        return None
    return e - stride * out.lane + stride * out.first_lane, stride


def lane_steps(out: Emitter, e: Index) -> tuple[Index, list[int]] | None:
    """(rest, steps) with e = rest + steps[lane] for constant steps, such as those of lane // 2; or None."""
    if out.lane is None or isinstance(e, int) or value_atoms(e):
        return None
    rest, steps = subs(e, {out.lane: out.first_lane}), list[int]()
    for i in range(out.real_width):
        step = subs(e, {out.lane: out.first_lane + i}) - rest
        if not isinstance(step, int):
            return None
        steps.append(step)
    return rest, steps
