"""Messages about what a plan may not say of a nest: each names the loop, what was expected and why."""
from __future__ import annotations

from collections.abc import Iterator

from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.plan.ahead import places_after
from minigrad.codegen.plan.box import leaves
from minigrad.codegen.plan.call_blocks import block_faults
from minigrad.codegen.plan.check_groups import group_faults
from minigrad.codegen.plan.check_memory import memory_faults
from minigrad.codegen.plan.loops import Loops, divides
from minigrad.codegen.plan.text import terms_of
from minigrad.errors import PlanError
from minigrad.expr import bounds, coefficient, variables

MOST_COPIES = 4096
"""Statements that a plan may write out of one: more than any register file holds, and all that compilers bear."""


def check(kernel: Kernel, loops: Loops) -> None:
    """Raises PlanError for a plan that does not fit its nest of the kernel."""
    for message in _faults(kernel, loops.nest, loops):
        raise PlanError(f"[plan] {message}")


def _faults(kernel: Kernel, nest: Nest, loops: Loops) -> Iterator[str]:
    arguments = {p.name for p in kernel.params} | {s.name for s in kernel.scalars} | {d.name for d in kernel.dims}
    for name in loops.root:
        if name in arguments:
            step = str(loops.made_by[name]) if name in loops.made_by else f"fuse -> {name}"
            yield f"{step}: expected names that no argument of the kernel has, got {name}"
    yield from _order(loops)
    yield from group_faults(loops)
    yield from _edges(loops)
    yield from _kinds(loops)
    yield from _kept(loops)
    yield from _stages(loops)
    yield from memory_faults(loops)
    yield from block_faults(nest, loops)
    yield from _scatter(nest, loops)
    for a in loops.ahead:
        if a.operand not in {p.name for p in kernel.params}:
            yield f"{a}: expected a buffer of the kernel, got {a.operand}"
        stores = any(isinstance(s, Store) and s.param == a.operand for s in nest.body)
        if stores and loops.order.index(a.at) >= loops.first_sum:
            yield f"{a}: expected a loop around all sums, as {a.operand} is stored after them, got {a.at}"
        if not places_after(nest, a.operand) and not loops.sums[loops.space[a.at]]:
            yield f"{a}: expected a loop of a sum, got {a.at} of {loops.root[a.at]}"


def _order(loops: Loops) -> Iterator[str]:
    """Loops of workers are outermost; what a loop's extent depends on is outside it."""
    serial = False
    for x in loops.order:
        kind = loops.kind[x]
        if kind not in ("parallel", "group"):
            serial = True
        elif loops.space[x]:
            yield f"bind {kind} {x}: expected a loop of the domain, got one of {loops.root[x]}: workers share no sums"
        elif loops.cut_short(x):
            yield f"bind {kind} {x}: expected a loop that runs equally often in every block"
        elif serial:
            yield f"order: expected the {kind} loop {x} before all others"
    places = {x: k for k, x in enumerate(loops.order)}
    for x in loops.order:
        hi = loops.root[x].hi
        for v in () if isinstance(hi, int) else variables(hi):
            if v.name in loops.root and any(places[o] > places[x] for o in loops.inside(v.name)):
                yield f"order: expected {x} inside the loops of {v.name}, on which its extent depends"


def _edges(loops: Loops) -> Iterator[str]:
    for s in loops.split.values():
        total, inner = loops.extent(s.loop), f"split {s.loop} {'into' if s.into else 'by'} {s.size}"
        whole, cut = loops.extent(loops.top(s.loop)), loops.cut_short(s.loop)
        if s.edge == "short" and s.into:
            yield f"{inner}, short: expected by, as blocks `into` are equally long but for the edge back"
        if s.into and total == 0:
            yield f"{inner}: expected by, as there is nothing to make {s.size} blocks of"
        if divides(s, total) and (not cut or loops.top(s.loop) != s.loop and divides(s, whole)):
            continue
        if loops.cut_short(loops.top(s.loop)) and s.edge in ("exact", "back"):
            yield f"{inner}, {s.edge}: expected rest or short, as runs of {s.loop} may be shorter"
        if s.edge == "exact":
            yield (f"{inner}: expected an edge, back, guard, rest or short, as {s.size} does not divide the extent "
                   f"{whole}")
        if s.edge == "back" and loops.space[s.loop]:
            yield f"{inner}, back: expected guard or rest, as a sum would add some terms twice"
        if s.edge == "back" and bounds(whole)[0] < s.size:
            yield f"{inner}, back: expected an extent of {s.size} at least to reach back over, got {whole}"
        for t in loops.upwards(s) if s.edge == "back" else ():
            if t.edge == "guard" and not divides(t, loops.extent(t.loop)):
                yield f"{inner}, back: expected guard, as the last block of {t.loop} is not whole"
        if s.edge == "short" and any(loops.kind[x] != "serial" for x in loops.inside(s.inner) if x == s.inner):
            yield f"{inner}, short: expected {s.inner} to be serial, as its last run is shorter"
        if s.edge == "rest" and cut and not loops.space[s.loop]:
            yield f"{inner}, rest: expected back, as runs of {s.loop} may be shorter"
        if s.edge == "rest" and s.into:
            yield f"{inner}, rest: expected back, as `into` leaves no whole blocks"
        outside, inside = ([loops.order.index(x) for x in loops.inside(name)] for name in (s.outer, s.inner))
        for p in loops.upwards(s) if s.edge == "short" else ():
            if max([loops.order.index(x) for x in loops.inside(p.outer)]) > min(inside):
                yield f"order: expected {p.outer} outside {s.inner}, whose last run is shorter"
            for x in loops.inside(p.outer):
                if loops.kind[x] == "vector":
                    yield f"bind vector {x}: expected another loop, as the last run of {s.inner} is shorter"
        lanes = [x for x in loops.inside(s.loop) if loops.kind[x] == "vector" and loops.sums[loops.space[x]]]
        if s.edge == "rest" and max(outside) > min(inside) and not lanes:
            yield f"order: expected {s.outer} outside {s.inner}, whose last block is not whole"
        for x in lanes:
            if loops.made_by[x] is not s:
                yield f"bind vector {x}: expected lanes that `{s}` makes itself, as they add what it leaves"
        if s.edge == "rest" and not loops.space[s.loop] and any(loops.space[x] for x in loops.order[:max(outside)]):
            yield f"order: expected {s.outer} outside all sums, as its last block is not whole, or the edge back"
        for x in loops.inside(s.outer):
            if s.edge == "rest" and loops.kind[x] == "vector" and not loops.space[x]:
                yield f"bind vector {x}: expected lanes inside {s.inner}, as the last block of {s.outer} is not whole"


def _kinds(loops: Loops) -> Iterator[str]:
    copies = [1] * len(loops.sums)  # of statements in each loop nest, those beside it not counted
    lanes = [x for x in loops.order if loops.kind[x] == "vector"]
    for x in loops.order:
        kind, space = loops.kind[x], loops.space[x]
        count = loops.extent(x)
        if kind in ("vector", "unroll") and loops.cut_short(x):
            yield f"bind {kind} {x}: expected a loop that runs equally often in every block"
        if kind in ("vector", "unroll") and not isinstance(count, int):
            yield f"bind {kind} {x}: expected a number of iterations that is known, got {count}"
            return
        if kind == "unroll":
            for s, outside in enumerate(loops.around):
                if space in (0, s) or loops.root.get(x) in outside:
                    copies[s] *= loops.most(x)
        if kind == "vector":
            if count not in (2, 4, 8, 16):
                yield f"bind vector {x}: expected 2, 4, 8 or 16 lanes, got {count}"
            around = [y for y in lanes if y != x and (loops.space[y] in (0, space)
                                                      or loops.root[y] in loops.around[space])]
            if around:
                yield f"bind vector {x}: expected one loop across lanes at a time, got {around[0]} around it"
        if x in loops.parts and (kind != "unroll" or not space):
            yield f"parts {x}: expected an unrolled loop of a sum, got a {kind} one of {loops.root[x]}"
    if max(copies) > MOST_COPIES:
        yield f"bind unroll: expected {MOST_COPIES} copies of a statement at most, got {max(copies)}"


def _kept(loops: Loops) -> Iterator[str]:
    """Loops of the domain inside those of a sum that are not unrolled: its sums are kept in memory."""
    inside = loops.kept
    if not inside:
        return
    if len(loops.sums) > 2 or not isinstance(loops.units[0], tuple):
        yield f"order: expected {inside[0]} unrolled or outside all sums, as there are several that do not share loops"
    middle = loops.order[loops.first_sum:loops.order.index(inside[-1])]
    for x in middle:
        s = loops.made_by.get(x)
        if loops.kind[x] == "unroll" or loops.space[x] and loops.kind[x] != "serial":
            yield f"order: expected {x} inside {inside[-1]}, as it is no serial loop"
        if loops.space[x] and bounds(loops.extent(x))[0] < 1:
            yield f"order: expected {x} inside {inside[-1]}, as it may not run at all"
        while s is not None:
            if s.edge == "rest" and not divides(s, loops.extent(s.loop)):
                yield f"split {s.loop}, rest: expected back or short, as {inside[-1]} stands inside a loop of the sum"
            s = loops.made_by.get(s.loop)


def _stages(loops: Loops) -> Iterator[str]:
    """Copies of operands are of one sum, over loops inside the one that they are made in, of which no rest is left."""
    for stage in loops.stages:
        step, first = str(stage), loops.order.index(stage.at)
        if len(loops.sums) != 2 or not loops.sums[1]:
            yield f"{step}: expected a kernel whose sums share their loops, and that has no others"
        if loops.kind[stage.at] not in ("serial", "parallel"):
            yield f"{step}: expected a serial or parallel loop, got {stage.at}, which is bound {loops.kind[stage.at]}"
        for x in loops.order[:first]:
            if loops.kind[x] == "vector":
                yield f"{step}: expected a loop outside lanes, got {stage.at} inside {x}"
        for x in dict.fromkeys(x for c in stage.layout for x in leaves(loops, c)):
            if loops.kind[x] == "vector" and loops.space[x]:
                yield f"{step}: expected no lanes of a sum among the coordinates, got {x}"
            if loops.order.index(x) <= first and not (stage.items and loops.kind[x] == "item"):
                yield f"{step}: expected coordinates inside {stage.at}, got {x}"
        for k, c in enumerate(stage.layout):
            later = {x for d in stage.layout[k + 1:] for x in leaves(loops, d)}
            short = [x for _, x in terms_of(c) if x in loops.root and not loops.fused.member(x) and loops.cut_short(x)]
            for p in [p for x in short for p in loops.upwards(loops.made_by[x])]:
                if later & loops.inside(p.outer):
                    yield f"{step}: expected {c} after {p.outer}, on whose block its extent depends"
        for s in loops.split.values():
            parts = [loops.inside(s.outer), loops.inside(s.inner)]
            if s.edge == "rest" and not divides(s, loops.extent(s.loop)) and any(
                    leaves(loops, c) <= part for c in (stage.at, *stage.layout) for part in parts):
                yield f"{step}: expected loops without a rest, got some of `{s}`"


def _scatter(nest: Nest, loops: Loops) -> Iterator[str]:
    """Stores that combine with what is there happen in order."""
    for s in nest.body:
        if not isinstance(s, Store) or not s.combine:
            continue
        for x in loops.order:
            if loops.kind[x] not in ("serial", "unroll") and coefficient(s.indices[0], loops.root[x]) in (None, 0):
                yield f"bind {loops.kind[x]} {x}: expected serial, as elements that meet are combined in order"
        for split in loops.split.values():
            if split.edge in ("back", "guard"):
                yield (f"split {split.loop}, {split.edge}: expected rest, as elements outside would be looked up, or "
                       "combined twice")
