"""Which parts of a loop with a carried state are independent of each other, and what runs across lanes.

    steps t:                                                  parallel h, blocks of v:
      for h, v: t0 = sum(k: s0[h, k, v] * p0[t, h, k])          s0[k] for the lanes v
                for k: s0[h, k, v] = ...                 ->     steps t: ...

An axis of the state is independent where every access to a state's buffer has one and the same variable of its nest
there, in all nests. A buffer without such an axis is computed again by everybody. Each worker has the part of the state
that is its own in its own memory. Where a device has work-groups, work-items stand for lanes; where too little is
independent for them, those of a group share its state, and the iterations of each nest:

    steps t:                                                    groups h: items: steps t:
      for h, v: s1[h, v] = sum(k: s0[h, k] * p1[k, v])            s1[v] = ... for some v each; barrier
      for h, v: s0[h, v] = s1[h, v]                        ->     s0[v] = ... for some v each; barrier
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from minigrad.codegen.kernel.access import iterations
from minigrad.codegen.kernel.nodes import Kernel, Nest, Steps, Store
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.lowering.rename import statements
from minigrad.codegen.plan.other_plans import ScanPlan
from minigrad.errors import present
from minigrad.expr import Index, Var, coefficient
from minigrad.target import Target
from minigrad.value import Value, walk

VECTORS = (4, 2, 1)
"""Vectors across which a lane variable may run at once: what all lanes read is read once for them, and sums over the
state are chains of additions, which wait for each other."""

APART = 1.5
"""The time of an access to elements that lie apart, for each, beside one element alone."""

ITEMS, FEW_ITEMS = 64, 8
"""The most work-items of a group, and the fewest with a state of their own: fewer share theirs."""

ROOM = 1.5
"""The first-level caches that the state may take, in which a carry counts twice that is stored in place of the last."""


@dataclass(frozen=True)
class Axis:
    """An independent axis of `extent` places: the variable of each nest, by number, and the axis of each buffer."""

    extent: int
    variables: dict[int, Var]
    axes: dict[str, int]


Member = tuple[object, object]
"""(the number of a nest, a variable of it) or (the name of a buffer of the state, an axis of it)."""


def accesses_of(nest: Nest) -> Iterator[tuple[str, tuple[Index, ...]]]:
    """(buffer, indices) of every load and store of a nest."""
    for s in statements((nest,)):
        if isinstance(s, Nest):
            continue
        if isinstance(s, Store):
            yield s.param, s.indices
        for v in walk(s.value):
            for inner in (v, *v.inner):
                for x in walk(inner):
                    if x.op == "load":
                        yield x.buffer, x.indices


def independent(kernel: Kernel) -> list[Axis]:
    """The axes along which the iterations of a kernel with steps do not touch each other's state, longest first."""
    steps = present(kernel.steps, "[scan] expected a kernel with steps")
    shapes = {p.name: p.shape for p in steps.state}
    parent: dict[Member, Member] = {}

    def find(x: Member) -> Member:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    spoiled: set[Member] = set()
    for k, nest in enumerate(kernel.nests):
        own = {v for s in statements((nest,)) if isinstance(s, Nest) for v in s.domain}
        for name, at in accesses_of(nest):
            for d, e in enumerate(at if name in shapes else ()):
                if shapes[name][d] == 1:
                    continue
                if isinstance(e, Var) and e in own:
                    parent[find((name, d))] = find((k, e))
                else:
                    spoiled.add((name, d))
    groups: dict[Member, list[Member]] = {}
    for x in list(parent):
        groups.setdefault(find(x), []).append(x)
    bad = {find(x) for x in spoiled}
    found = [made for root, members in groups.items() if root not in bad
             if (made := _axis(kernel, shapes, members)) is not None]
    return sorted(found, key=lambda a: (-a.extent, sorted(a.axes.items())))


def _axis(kernel: Kernel, shapes: dict[str, tuple[Index, ...]], members: list[Member]) -> Axis | None:
    """The axis that these (nest, variable) and (buffer, axis) are, if each nest and each buffer has it once."""
    own: dict[int, Var] = {}
    axes: dict[str, int] = {}
    for a, b in members:
        if isinstance(a, int):
            if a in own or not isinstance(b, Var):
                return None
            own[a] = b
        elif isinstance(a, str) and isinstance(b, int):
            if a in axes:
                return None
            axes[a] = b
    extents = {shapes[name][d] for name, d in axes.items()} | {v.hi + 1 for v in own.values()}
    extent = next(iter(extents))
    if len(extents) != 1 or not isinstance(extent, int):
        return None
    for k, nest in enumerate(kernel.nests):
        outer = {v for s in statements((nest,)) if isinstance(s, Nest) and s is not nest for v in s.domain}
        if k in own and own[k] in outer and any(isinstance(s, Store) or not isinstance(s, Nest) for s in nest.body):
            return None  # what stands before the inner loops would be computed by each, and may be stored by all
    return Axis(extent, own, axes)


def choose(kernel: Kernel, target: Target) -> ScanPlan | None:
    """The plan of a kernel with steps: lanes along the axis with the fewest accesses of elements that lie apart.
    None for a device whose local memory is too small."""
    best, across, lanes = 0.0, -1, 1
    steps = present(kernel.steps, "[scan] expected a kernel with steps")
    axes = independent(kernel)
    for number, axis in enumerate(axes):
        width = _lanes(steps, axes, axis, target)
        found = _score(kernel, steps, axis, width)
        if width > 1 and found > best:
            best, across, lanes = found, number, width
    if not target.has_groups:
        return ScanPlan(across, lanes)
    most = max([_widest(kernel.nests[k], {a.variables[k] for a in axes if k in a.variables}) for k in
                range(len(kernel.nests))])
    if lanes >= min(most, FEW_ITEMS):
        return ScanPlan(across, lanes, groups=True)
    if _bytes(steps, axes) > room(target):
        return None
    return ScanPlan(-1, 1 << (min(most, target.max_group, ITEMS) - 1).bit_length(), groups=True)


def _widest(nest: Nest, own: set[Var]) -> int:
    """The most places of a nest or of one inside it, but for those along independent axes."""
    here = prod([int(v.hi) + 1 for v in nest.domain if v not in own])
    return here * max([_widest(s, own) for s in nest.body if isinstance(s, Nest)], default=1)


def _bytes(steps: Steps, axes: list[Axis]) -> int:
    """The memory of one independent part of the state; what is stored in place of another one counts, too."""
    total = 0
    for p in steps.state:
        gone = {a.axes[p.name] for a in axes if p.name in a.axes}
        total += p.dtype.compute.itemsize * prod([int(n) for d, n in enumerate(p.shape) if d not in gone])
    return total


def room(target: Target) -> int:
    """Local memory for the state; some is the driver's."""
    return target.local_memory * 7 // 8


def _lanes(steps: Steps, axes: list[Axis], axis: Axis, target: Target) -> int:
    """The lanes across which an axis may run: so many that their part of the state is in the first-level cache, or in
    the local memory of a work-group."""
    alone = _bytes(steps, axes)
    if target.has_groups:
        most = min(axis.extent, target.max_group, ITEMS, room(target) // max(alone, 1))
        return 1 << max(most, 1).bit_length() - 1
    lanes = 1 if target.is_gpu else target.lanes(max([32, *[p.dtype.compute.bits for p in steps.state]]))
    several = () if target.language == "opencl" else VECTORS
    most = next((v * lanes for v in several if v * lanes * alone <= target.l1 * ROOM), lanes)
    return 1 << min(most, axis.extent).bit_length() - 1


def _score(kernel: Kernel, steps: Steps, axis: Axis, width: int) -> float:
    """The gain of a step from lanes along an axis: elements that lie apart come one by one. 0 where a nest
    without the axis stores a result."""
    shapes = {p.name: p.shape for p in kernel.params}
    together = alone = 0.0
    for k, nest in enumerate(kernel.nests):
        v, work = axis.variables.get(k), iterations(nest)
        if v is None and any(isinstance(s, Store) and s.param in shapes for s in statements((nest,))):
            return 0.0
        if not steps.first <= k < steps.last:
            continue
        for name, at in accesses_of(nest):
            step = 1 if v is None or name not in shapes else coefficient(offset(at, shapes[name]), v)
            alone += work
            together += work * (width if v is None else 1.0 if step in (0, 1) else width * APART) / width
    return alone / together if together else 0.0


def reads(value: Value, name: str) -> list[tuple[Index, ...]]:
    """The places at which a value reads a buffer."""
    return [x.indices for v in walk(value) for inner in (v, *v.inner) for x in walk(inner)
            if x.op == "load" and x.buffer == name]
