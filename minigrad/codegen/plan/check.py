"""What a plan may not say of a nest: each message names the loop, what was expected and why."""
from __future__ import annotations

from collections.abc import Iterator

from minigrad.codegen.kernel import Nest, Store
from minigrad.codegen.plan.loops import Here, Loops, divides
from minigrad.codegen.plan.spaces import spaces, units
from minigrad.errors import PlanError
from minigrad.expr import bounds, variables
from minigrad.value import value_atoms

MOST_COPIES = 4096
"""Statements that a plan may write out of one: more than any register file holds, and all that compilers bear."""


def check(nest: Nest, loops: Loops) -> None:
    """Raises PlanError for a plan that does not fit its nest."""
    for message in _faults(nest, loops):
        raise PlanError(f"[plan] {message}")


def _faults(nest: Nest, loops: Loops) -> Iterator[str]:
    yield from _order(loops)
    yield from _edges(loops)
    yield from _kinds(loops)
    yield from _kept(nest, loops)
    yield from _scatter(nest, loops)


def _order(loops: Loops) -> Iterator[str]:
    """Loops of workers are outermost; what a loop's extent depends on is outside it."""
    serial = False
    for x in loops.order:
        if loops.kind[x] != "parallel":
            serial = True
        elif loops.space[x]:
            yield f"bind parallel {x}: expected a loop of the domain, got one of {loops.root[x]}: workers share no sums"
        elif serial:
            yield f"order: expected the parallel loop {x} before all others"
    places = {x: k for k, x in enumerate(loops.order)}
    for x in loops.order:
        hi = loops.root[x].hi
        for v in () if isinstance(hi, int) else variables(hi):
            if v.name in loops.root and any(places[o] > places[x] for o in loops.inside(v.name)):
                yield f"order: expected {x} inside the loops of {v.name}, on which its extent depends"


def _edges(loops: Loops) -> Iterator[str]:
    for s in loops.split.values():
        total, inner = loops.extent(s.loop), f"split {s.loop} by {s.size}"
        whole, cut = loops.count(loops.top(s.loop), Here()), loops.cut_short(s.loop)
        if divides(s, total) and (not cut or divides(s, whole)):
            continue
        if s.edge == "exact":
            yield f"{inner}: expected an edge, back, rest or short, as {s.size} does not divide the extent {whole}"
        if s.edge == "back" and loops.space[s.loop]:
            yield f"{inner}, back: expected rest, as a sum would add some terms twice"
        if s.edge == "back" and bounds(whole)[0] < s.size:
            yield f"{inner}, back: expected an extent of {s.size} at least to reach back over, got {whole}"
        if s.edge == "short" and any(loops.kind[x] != "serial" for x in loops.inside(s.inner) if x == s.inner):
            yield f"{inner}, short: expected {s.inner} to be serial, as its last run is shorter"
        if s.edge == "rest" and cut and not loops.space[s.loop]:
            yield f"{inner}, rest: expected back, as runs of {s.loop} may be shorter"
        if s.edge == "rest" and s.into:
            yield f"{inner}, rest: expected back, as `into` leaves no whole blocks"
        outside, inside = ([loops.order.index(x) for x in loops.inside(name)] for name in (s.outer, s.inner))
        lanes_of_sum = any(loops.kind[x] == "vector" and loops.space[x] for x in loops.inside(s.inner))
        if s.edge == "rest" and max(outside) > min(inside) and not lanes_of_sum:
            yield f"order: expected {s.outer} outside {s.inner}, whose last block is not whole"


def _kinds(loops: Loops) -> Iterator[str]:
    copies = 1
    lanes: dict[int, str] = {}
    for x in loops.order:
        kind, space = loops.kind[x], loops.space[x]
        count = loops.extent(x)
        if kind in ("vector", "unroll") and not isinstance(count, int):
            yield f"bind {kind} {x}: expected a number of iterations that is known, got {count}"
            return
        if kind == "unroll":
            copies *= loops.most(x)
        if kind == "vector":
            if count not in (2, 4, 8, 16):
                yield f"bind vector {x}: expected 2, 4, 8 or 16 lanes, got {count}"
            around = [y for number, y in lanes.items() if number in (0, space) or loops.root[y] in loops.around[space]]
            if around:
                yield f"bind vector {x}: expected one loop across lanes at a time, got {around[0]} around it"
            lanes[space] = x
        if x in loops.parts and (kind != "unroll" or not space):
            yield f"parts {x}: expected an unrolled loop of a sum, got a {kind} one of {loops.root[x]}"
    if copies > MOST_COPIES:
        yield f"bind unroll: expected {MOST_COPIES} copies of a statement at most, got {copies}"


def _kept(nest: Nest, loops: Loops) -> Iterator[str]:
    """Loops of the domain inside those of a sum that are not unrolled: its sums are kept in memory."""
    first = next((k for k, x in enumerate(loops.order) if loops.space[x]), len(loops.order))
    inside = [x for x in loops.order[first:] if not loops.space[x] and loops.kind[x] != "unroll"]
    if not inside:
        return
    body = units(nest.body)
    if len(spaces(nest)) > 2 or not isinstance(body[0], tuple):
        yield f"order: expected {inside[0]} unrolled or outside all sums, as there are several that do not share loops"
    middle = loops.order[first:loops.order.index(inside[-1])]
    for x in middle:
        s = loops.made_by.get(x)
        if loops.kind[x] == "unroll" or loops.space[x] and loops.kind[x] != "serial":
            yield f"order: expected {x} inside {inside[-1]}, as it is no serial loop"
        while s is not None:
            if s.edge == "rest" and not divides(s, loops.extent(s.loop)):
                yield f"split {s.loop}, rest: expected back or short, as {inside[-1]} stands inside a loop of the sum"
            s = loops.made_by.get(s.loop)


def _scatter(nest: Nest, loops: Loops) -> Iterator[str]:
    """Stores that combine with what is there happen in order."""
    for s in nest.body:
        if not isinstance(s, Store) or not s.combine:
            continue
        chosen = frozenset(v for a in value_atoms(s.indices[0]) for v in variables(a))
        own = variables(s.indices[0]) if not isinstance(s.indices[0], int) else frozenset()
        for x in loops.order:
            v = loops.root[x]
            if loops.kind[x] in ("parallel", "vector") and (v in chosen or v not in own):
                yield f"bind {loops.kind[x]} {x}: expected serial, as elements that meet are combined in order"
        for split in loops.split.values():
            if split.edge == "back":
                yield f"split {split.loop}, back: expected rest, as elements would be combined twice"
