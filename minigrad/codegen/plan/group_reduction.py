"""Sums that work-items of a group share: `bind item t`, a loop of the sum.

    acc = ...                                                   the terms of one of them
    part[t] = acc;  barrier
    part[t] = part[t] + part[t + 16] if t < 16;  barrier        halves onto halves, down to one
    ... part[0]

Of several sums, which a tile has, each has a part[]. With `call sub_sum_f32_8 at t` the device joins what each 8
neighbours have: `total = ...; left[t // 8] = total`, which all work-items add up then.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Loop, Stmt, Store
from minigrad.codegen.kernel.monoid import Monoid
from minigrad.codegen.microkernels.sub_group import sub_group_microkernel, sub_group_name, width_of
from minigrad.codegen.plan.context import Context, Items
from minigrad.codegen.plan.steps.call import Call as CallStep
from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.value import Value, load

Joined = Callable[[Index], Value]
"""Gives the k-th of several sums."""


def joined(ctx: Context, items: Items, around: Sequence[str], monoid: Monoid, acc: str, count: int, parts: int,
           dtype: DType, out: list[Stmt]) -> Joined:
    """Appends what joins those that work-items have of so many sums, every `parts`-th of their accumulators; returns
    what gives the k-th of them."""
    def shared(stem: str, size: int) -> str:
        name = ctx.name(stem)
        ctx.memory.append(Alloc(name, dtype, size, "local"))
        return name

    def each(make: Callable[[Index], list[Stmt]]) -> list[Stmt]:
        """Statements for all sums, and a barrier."""
        if count == 1:
            return [*make(0), Barrier()]
        k = Var(ctx.name("k"), 0, count - 1)
        return [Loop(k, 0, count, "unroll", tuple(make(k))), Barrier()]

    var, size = items.var, items.size

    part, own = shared("part", items.count * count), items.count
    out += each(lambda k: [Store(part, k * own + var, load(acc, (k * parts,), dtype))])
    calls = [c.kernel for c in ctx.loops.of(CallStep) if c.at in around]
    name = next((n for n in calls if n == sub_group_name(monoid.name, dtype, width_of(n))), "")
    kernel = sub_group_microkernel(name)
    if kernel is None:
        while size > 1:
            half = (size + 1) // 2

            def halved(k: Index, far: int = half * items.stride, last: int = size // 2 - 1) -> list[Stmt]:
                mine, other = (load(part, (k * own + var + distance,), dtype) for distance in (0, far))
                return [Store(part, k * own + var, monoid.apply(mine, other), (last - items.member,))]

            out += each(halved)
            size = half
        return lambda k: load(part, (k * own + items.base,), dtype)
    width, total = width_of(name), ctx.name("total")
    left, lefts = shared("left", own * count // width), own // width
    out.append(Alloc(total, dtype, 1, "register"))
    out += each(lambda k: [Call(kernel, ((part, k * own + var // width * width), (total, 0))),
                           Store(left, k * lefts + var // width, load(total, (0,), dtype), (-(var % width),))])

    def added(k: Index) -> Value:
        found: list[Value] = [load(left, (k * lefts + items.base // width + n,), dtype) for n in range(size // width)]
        while len(found) > 1:
            odd = found[-1:] if len(found) % 2 else []
            found = [monoid.apply(x, y) for x, y in zip(found[::2], found[1::2], strict=False)] + odd
        return found[0]
    return added
