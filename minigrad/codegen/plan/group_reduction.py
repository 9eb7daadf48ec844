"""Sums that work-items of a group share: `bind item t`, a loop of the sum.

    acc = ...                                                   the terms of one of them
    part[t] = acc;  barrier
    part[t] = part[t] + part[t + 16] if t < 16;  barrier        halves onto halves, down to one
    ... part[0]

With `call sub_sum_f32_8 at t` the device joins what each 8 neighbours have: `total = ...; left[t // 8] = total`, which
all work-items add up then.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Stmt, Store
from minigrad.codegen.microkernels.sub_group import sub_group_microkernel, sub_group_name, width_of
from minigrad.codegen.plan.groups import Items
from minigrad.codegen.plan.steps.call import Call as CallStep
from minigrad.value import Value, load

if TYPE_CHECKING:
    from minigrad.codegen.plan.sums import Sum, Term


def joined(s: Sum, t: Term, items: Items, out: list[Stmt]) -> Value:
    """Appends what joins the parts that work-items have of a sum; returns the sum."""
    def shared(stem: str, size: int) -> str:
        name = s.b.name(stem)
        s.b.memory.append(Alloc(name, dtype, size, "local"))
        return name

    dtype, var, size = t.body.dtype, items.var, items.size
    part = shared("part", items.count)
    out += [Store(part, var, load(t.acc, (0,), dtype)), Barrier()]
    calls = [c.kernel for c in s.b.loops.of(CallStep) if c.at in s.around]
    name = next((n for n in calls if n == sub_group_name(t.monoid.name, dtype, width_of(n))), "")
    kernel = sub_group_microkernel(name)
    if kernel is None:
        while size > 1:
            half = (size + 1) // 2
            mine, other = (load(part, (var + k,), dtype) for k in (0, half * items.stride))
            out += [Store(part, var, t.monoid.apply(mine, other), (size - half - 1 - items.member,)), Barrier()]
            size = half
        return load(part, (items.base,), dtype)
    width, total = width_of(name), s.b.name("total")
    left = shared("left", items.count // width)
    out += [Alloc(total, dtype, 1, "register"), Call(kernel, ((part, var // width * width), (total, 0))),
            Store(left, var // width, load(total, (0,), dtype), (-(var % width),)), Barrier()]
    found: list[Value] = [load(left, (items.base // width + k,), dtype) for k in range(size // width)]
    while len(found) > 1:
        odd = found[-1:] if len(found) % 2 else []
        found = [t.monoid.apply(x, y) for x, y in zip(found[::2], found[1::2], strict=False)] + odd
    return found[0]
