"""The places of a loop with a carried state: what of it is independent, and what each place has several elements of.

    steps t:                                                  block h, blocks of v:
      for h, v: t0 = sum(k: s0[h, k, v] * p0[t, h, k])          s0[k] for the lanes v
                for k: s0[h, k, v] = ...                 ->     steps t: ...

Lanes are worth it where most accesses lie along them; else each nest has lanes of its own. Where a device has
work-groups, work-items stand for lanes; where too little is independent for them, those of a group share its state, and
the iterations of each nest:

    steps t:                                                    groups h: items: steps t:
      for h, v: s1[h, v] = sum(k: s0[h, k] * p1[k, v])            s1[v] = ... for some v each; barrier
      for h, v: s0[h, v] = s1[h, v]                        ->     s0[v] = ... for some v each; barrier
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.ir.walk import statements as ir_statements
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import loads
from minigrad.codegen.kernel.walk import statements
from minigrad.codegen.lowering.apart import apart
from minigrad.codegen.lowering.beside import beside
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.lowering.independent import LANE, independent
from minigrad.codegen.lowering.independent_axes import Axis, Carried, carried, independent_axes
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.policy import inner, items
from minigrad.codegen.transforms import budget
from minigrad.errors import present
from minigrad.expr import Index, Var, coefficient
from minigrad.target import Target
from minigrad.value import reductions_in

VECTORS = (4, 2, 1)
"""Vectors across which a lane variable may run at once: what all lanes read is read once for them, and sums over the
state are chains of additions, which wait for each other."""

APART = 1.5
"""The time of an access to elements that lie apart, for each, beside one element alone."""

JOIN = 4
"""The time in which the lanes of a sum become one, beside one access."""

ITEMS, FEW_ITEMS = 64, 8
"""The most work-items of a group, and the fewest with a state of their own: fewer share theirs."""

ROOM = 1.5
"""The first-level caches that the state may take, in which a carry counts twice that is stored in place of the last."""


@dataclass(frozen=True)
class Places:
    """The places of a loop's block: each has `lanes` elements of the axis with number `across` (-1: of none). With
    `items` it is a work-group, whose work-items are the lanes, or share all nests where there are none."""

    across: int
    lanes: int
    items: bool = False


def choose(kernel: Kernel, target: Target) -> Places | None:
    """The places of a loop: lanes along the axis with the fewest accesses of elements that lie apart. None for a device
    whose local memory is too small."""
    steps, axes = carried(kernel), independent_axes(kernel)
    least, across, lanes = _cost(kernel, steps, axes, -1, 1, target), -1, 1
    for number, axis in enumerate(axes):
        width = _lanes(steps, axes, axis, target)
        found = _cost(kernel, steps, axes, number, width, target)
        if width > 1 and found < least:
            least, across, lanes = found, number, width
    if not target.has_groups:
        return Places(across, lanes)
    most = max([_widest(steps.nests[k], {a.variables[k] for a in axes if k in a.variables}) for k in
                range(len(steps.nests))])
    if lanes >= min(most, FEW_ITEMS) and lanes > 1:
        return Places(across, lanes, items=True)
    if _bytes(steps, axes) > room(target):
        return None
    return Places(-1, max(2, 1 << (min(most, target.max_group, ITEMS) - 1).bit_length()), items=True)


def repeated(kernel: Kernel) -> tuple[Nest, ...]:
    """The nests of a loop with a carried state that run in each iteration, and after it."""
    loop = carried(kernel)
    return loop.nests[loop.first:]


def as_block(kernel: Kernel, places: Places, target: Target) -> tuple[Kernel, BlockPlan]:
    """A loop as a block over its places, and the plans of its nests."""
    if not places.items:
        whole = beside(independent(kernel, places.across, places.lanes))
    else:
        lanes = places.lanes if places.across >= 0 else 1
        whole = apart(beside(independent(kernel, places.across, lanes, shared=True), LANE), LANE)
    block = present(whole.block, "[scan] expected a block")
    return whole, items.plan_block(block, places.lanes) if places.items else inner.plan_block(block, target)


def runs(kernel: Kernel, places: Places, target: Target) -> bool:
    """True where a device has the local memory that a loop takes, and lets it run to its end."""
    if not places.items:
        return True
    block, plan = as_block(kernel, places, target)
    function, limit = build_block(block, plan, kernel.name), target.max_iterations
    taken = sum([s.size * s.dtype.compute.itemsize for s in ir_statements(function)
                 if isinstance(s, Alloc) and s.scope == "local"])
    return taken <= room(target) and (
        not limit or budget.iterations(budget.limit_iterations(function, limit).body) <= limit)


def _widest(nest: Nest, own: set[Var]) -> int:
    """The most places of a nest or of one inside it, but for those along independent axes."""
    here = prod([int(v.hi) + 1 for v in nest.domain if v not in own])
    return here * max([_widest(s, own) for s in nest.body if isinstance(s, Nest)], default=1)


def _bytes(steps: Carried, axes: list[Axis]) -> int:
    """The memory of one independent part of the state; what is stored in place of another one counts, too."""
    total = 0
    for p in steps.state:
        gone = {a.axes[p.name] for a in axes if p.name in a.axes}
        total += p.dtype.compute.itemsize * prod([int(n) for d, n in enumerate(p.shape) if d not in gone])
    return total


def room(target: Target) -> int:
    """Local memory for the state; some is the driver's."""
    return target.local_memory * 7 // 8


def _lanes(steps: Carried, axes: list[Axis], axis: Axis, target: Target) -> int:
    """The lanes across which an axis may run: so many that their part of the state is in the first-level cache, or in
    the local memory of a work-group."""
    alone = _bytes(steps, axes)
    if target.has_groups:
        most = min(axis.extent, target.max_group, ITEMS, room(target) // max(alone, 1))
        return 1 << max(most, 1).bit_length() - 1
    lanes = _vector(steps, target)
    several = () if target.language == "opencl" else VECTORS
    most = next((v * lanes for v in several if v * lanes * alone <= target.l1 * ROOM), lanes)
    return 1 << min(most, axis.extent).bit_length() - 1


def _cost(kernel: Kernel, steps: Carried, axes: list[Axis], number: int, width: int, target: Target) -> float:
    """Accesses of a step, for each element, where a place has `width` elements of an axis (-1: of none): each nest has
    lanes along these or along a variable that is no independent axis, and elements that lie apart come one by one.
    Infinite where a nest without the axis stores a result."""
    shapes, vector, total = {p.name: p.shape for p in (*kernel.params, *steps.state)}, _vector(steps, target), 0.0
    results = {p.name for p in kernel.params}
    for k, nest in enumerate(steps.nests):
        lane = axes[number].variables.get(k) if number >= 0 else None
        if number >= 0 and lane is None and any(
                isinstance(s, Store) and s.param in results for s in statements((nest,))):
            return inf
        if not steps.first <= k < steps.last:
            continue
        found: list[tuple[float, Index]] = []
        for work, name, at in _accesses(nest, 1.0):
            gone = {a.axes[name] for a in axes if name in a.axes}
            left = [d for d in range(len(at)) if d not in gone]
            place = offset(tuple([at[d] for d in left]), tuple([shapes[name][d] for d in left]))
            wide = lane is not None and name in axes[number].axes
            found.append((work, place * width + lane if wide and lane is not None else place))
        own, summed = {a.variables[k] for a in axes if k in a.variables}, _summed(nest)
        costs = [sum([work for work, _ in found])]
        for v in {*_domains(nest), *summed} - own if not target.has_groups else ():
            each = [work * _each(coefficient(at, v), min(extent(v), vector), vector) for work, at in found]
            costs.append(sum(each) + (JOIN * prod([extent(d) for d in nest.domain]) if v in summed else 0))
        if lane is not None:
            costs.append(sum([work * _each(coefficient(at, lane), width, vector) for work, at in found]))
        total += min(costs)
    return total


def _accesses(nest: Nest, work: float) -> Iterator[tuple[float, str, tuple[Index, ...]]]:
    """(how often, buffer, indices) of each access of a nest that runs `work` times."""
    work *= prod([extent(v) for v in nest.domain])
    for s in nest.body:
        if isinstance(s, Nest):
            yield from _accesses(s, work)
            continue
        if isinstance(s, Store):
            yield work, s.param, s.indices
        terms = max([prod([extent(v) for v in r.over]) for r in reductions_in(s.value)], default=1)
        for x in loads(s.value):
            yield work * terms, x.buffer, x.indices


def _domains(nest: Nest) -> set[Var]:
    return {v for s in statements((nest,)) if isinstance(s, Nest) for v in s.domain}


def _summed(nest: Nest) -> set[Var]:
    """The variables of the sums of a nest."""
    return {v for s in statements((nest,)) if not isinstance(s, Nest) for r in reductions_in(s.value) for v in r.over}


def _each(step: Index | None, width: int, vector: int) -> float:
    """The cost of an access for each of so many lanes."""
    if width == 1:
        return 1.0
    return 1 / width if step == 0 else 1 / min(width, vector) if step == 1 else APART


def _vector(steps: Carried, target: Target) -> int:
    """The lanes of a vector of the widest type."""
    return 1 if target.is_gpu else target.lanes(max([32, *[p.dtype.compute.bits for p in steps.state]]))
