"""Sums that work-items of a group share: `bind item t`, a loop of the sum.

    acc = ...                                                   the terms of one of them
    part[t] = acc;  barrier
    part[t] = part[t] + part[t + 16] if t < 16;  barrier        halves onto halves, down to one
    ... part[0]

With `call sub_sum_f32_8 at t` the device joins what each 8 neighbours have: `total = ...; left[t // 8] = total`, which
all work-items add up then.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Stmt, Store
from minigrad.codegen.kernel.monoid import Monoid
from minigrad.codegen.microkernels.sub_group import sub_group_microkernel, sub_group_name, width_of
from minigrad.codegen.plan.context import Context, Items
from minigrad.codegen.plan.steps.call import Call as CallStep
from minigrad.dtype import DType
from minigrad.value import Value, load


def joined(ctx: Context, items: Items, around: Sequence[str], monoid: Monoid, acc: str, dtype: DType, out: list[Stmt]
           ) -> Value:
    """Appends what joins the parts that work-items have of a sum; returns the sum."""
    def shared(stem: str, size: int) -> str:
        name = ctx.name(stem)
        ctx.memory.append(Alloc(name, dtype, size, "local"))
        return name

    var, size = items.var, items.size
    part = shared("part", items.count)
    out += [Store(part, var, load(acc, (0,), dtype)), Barrier()]
    calls = [c.kernel for c in ctx.loops.of(CallStep) if c.at in around]
    name = next((n for n in calls if n == sub_group_name(monoid.name, dtype, width_of(n))), "")
    kernel = sub_group_microkernel(name)
    if kernel is None:
        while size > 1:
            half = (size + 1) // 2
            mine, other = (load(part, (var + k,), dtype) for k in (0, half * items.stride))
            out += [Store(part, var, monoid.apply(mine, other), (size - half - 1 - items.member,)), Barrier()]
            size = half
        return load(part, (items.base,), dtype)
    width, total = width_of(name), ctx.name("total")
    left = shared("left", items.count // width)
    out += [Alloc(total, dtype, 1, "register"), Call(kernel, ((part, var // width * width), (total, 0))),
            Store(left, var // width, load(total, (0,), dtype), (-(var % width),)), Barrier()]
    found: list[Value] = [load(left, (items.base // width + k,), dtype) for k in range(size // width)]
    while len(found) > 1:
        odd = found[-1:] if len(found) % 2 else []
        found = [monoid.apply(x, y) for x, y in zip(found[::2], found[1::2], strict=False)] + odd
    return found[0]
