"""Conditions on indices and masks, for renderers. None as a mask is true everywhere."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.render.index import by_lane, sums, total
from minigrad.codegen.render.refs import Ref
from minigrad.dtype import bool_
from minigrad.expr import Expr, Index, bounds
from minigrad.value import value_atoms

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter


def mask_of(out: Emitter, conditions: Sequence[Index], lane: int | None = None) -> Ref | None:
    """The mask of all of them (scalar if none differs by lane), None if there are none to check."""
    uniform: Ref | None = None
    varying: Ref | None = None
    for e in conditions:
        if isinstance(e, int):
            if e < 0:
                return out.constant(False, bool_)
            continue
        mask = condition(out, e, lane)
        if mask.lanes > 1:
            varying = conjunction(out, varying, mask)
        else:
            uniform = conjunction(out, uniform, mask)
    return conjunction(out, uniform, varying)


def condition(out: Emitter, e: Expr, lane: int | None) -> Ref:
    key = "condition", e, lane
    found = out.memo.get(key)
    if found is None:
        found = compared(out, e, lane)
        if not value_atoms(e):
            out.memo[key] = found
    return found


def compared(out: Emitter, e: Expr, lane: int | None) -> Ref:
    split = (e, 0) if lane is not None else by_lane(out, e)
    if split is None:
        return out.language.gather_lanes([condition(out, e, i) for i in range(out.width)])
    rest, stride = split
    parts, constant = sums(out, rest, lane)
    whole = total(out, parts, 0)
    if not stride:
        return out.language.at_least(whole, -constant)
    limits = [-constant - stride * i for i in range(out.width)]
    lo, hi = bounds(rest)
    small = -2**31 < min(lo - constant, *limits) and max(hi - constant, *limits) < 2**31
    return out.language.lanes_at_least(whole, limits, small)


def conjunction(out: Emitter, x: Ref | None, y: Ref | None) -> Ref | None:
    """Both masks; None is always true."""
    if x is None or y is None or x is y:
        return x if y is None else y
    lanes = max(x.lanes, y.lanes)
    both = out.language.operation("and", [out.spread(x, lanes), out.spread(y, lanes)], bool_)
    if x.true is not None and y.true is not None:
        both.true = x.true & y.true
    return both
