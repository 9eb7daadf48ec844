"""A loop with a carried state as a block: what is independent is around it, each place with its own part of the state.

    block:                                            block a0<H, a1<V/L:
      local s0: f32[H, K, V], s1: f32[H, V]             local s0: f32[K*L], s1: f32[L]
      steps t in 0..T:                                  steps t in 0..T:
        for h<H, v<V: s1[h, v] = sum(k: s0[h, k, v])      for lane<L: s1[lane] = sum(k: s0[..])
        for h<H, k<K, v<V: s0[h, k, v] = ..     ->        for k<K, lane<L: s0[L*k+lane] = ..
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.nodes import Block, Kernel, Nest, Param, Steps, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import map_nest
from minigrad.codegen.lowering.carried_in_place import in_place
from minigrad.codegen.lowering.flatten import map_accesses, offset
from minigrad.codegen.lowering.independent_axes import carried, independent_axes
from minigrad.expr import Index, Var, emin, product

LANE = "lane"
"""The variable of the axis of which a place has several elements."""


def independent(kernel: Kernel, across: int = -1, lanes: int = 1, shared: bool = False) -> Kernel:
    """A kernel that is a loop as a block over its independent axes and flat buffers. Each place has one element of an
    axis, but `lanes` of that with the number `across` (-1: of none), the last place those before the end. `shared`: by
    several work-items, so that a carry is stored over the last one only where each lane has its own."""
    loop, axes = carried(kernel), independent_axes(kernel)
    dropped, renamed = in_place(kernel, axes)
    state = {p.name: p for p in loop.state}
    gone = {p.name: {a.axes[p.name] for a in axes if p.name in a.axes} for p in loop.state}
    wide = {p.name for p in loop.state if across >= 0 and p.name in axes[across].axes}
    if shared:
        dropped = {k for k in dropped if any(isinstance(s, Store) and s.param in wide for s in loop.nests[k].body)}
        renamed = {new: old for new, old in renamed.items() if old in wide}
    shapes = {p.name: p.shape for p in kernel.params}
    lane = Var(LANE, 0, lanes - 1)
    domain, places = list[Var](), list[Index]()
    for k, a in enumerate(axes):
        count = ceil_div(a.extent, lanes) if k == across else a.extent
        x: Index = 0
        if count != 1:
            x = Var(f"a{k}", 0, count - 1)
            domain.append(x)
        places.append(emin(x * lanes, a.extent - lanes) + lane if k == across else x)

    def own(name: str, of: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple([e for d, e in enumerate(of) if d not in gone[name]])

    def place(name: str, at: tuple[Index, ...]) -> tuple[Index, ...]:
        if name in shapes:
            return (offset(at, shapes[name]),)
        flat = offset(own(name, at), own(name, state[name].shape))
        return (flat * lanes + lane if name in wide else flat,)

    one = (Var("one", 0, 0),) if shared else ()
    parts: tuple[list[Nest], ...] = [], [], []
    for k, nest in enumerate(map_accesses(loop.nests, place)):
        if k not in dropped:
            at = {a.variables[k]: x for a, x in zip(axes, places, strict=True) if k in a.variables}
            own_lane = axes[across].variables.get(k) if across >= 0 else None
            made = _moved(nest, at, {own_lane: lane}, renamed)
            parts[(k >= loop.first) + (k >= loop.last)].append(replace(made, domain=made.domain or one))
    before, inside, after = parts
    local = tuple([Param(p.name, p.dtype, (product(own(p.name, p.shape)) * (lanes if p.name in wide else 1),), "inout")
                   for p in loop.state if p.name not in renamed])
    params = tuple([replace(p, shape=(product(p.shape),)) for p in kernel.params])
    steps = Steps(loop.var, 0, tuple(inside))
    return replace(kernel, params=params, block=Block(tuple(domain), local, (*before, steps, *after)))


def _moved(nest: Nest, at: Mapping[Var, Index], instead: Mapping[Var | None, Var], renamed: Mapping[str, str]) -> Nest:
    """The nest with the variables in `at` replaced, without their loops but for those that others stand `instead` of,
    and with buffers renamed."""
    here = Rewriter(at, renamed)
    return map_nest(nest, here.value, lambda _, place: tuple(map(here.index, place)), lambda over: tuple(
        [instead.get(v, v) for v in over if v not in at or v in instead]), here.name)
