"""Which parts of a loop with a carried state are independent of each other.

    steps t:                                                  parallel h, v:
     for h, v: t0 = sum(k: s0[h, k, v] * p0[t, h, k])          s0[k] of its own
               for k: s0[h, k, v] = ...                 ->     steps t: ...

An axis of the state is independent where every access to a state's buffer has one and the same variable of its nest
there, in all nests. A buffer without such an axis is computed again by everybody.
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.kernel.nodes import Kernel, Nest, Param, Steps, Store
from minigrad.codegen.kernel.walk import accesses_of, statements
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var


@dataclass(frozen=True)
class Carried:
    """The parts of a block that is a loop with a carried state: its nests in order, of which those from `first` to
    `last` - 1 are in steps of `var`."""

    nests: tuple[Nest, ...]
    first: int
    last: int
    var: Var
    state: tuple[Param, ...]


def carried(kernel: Kernel) -> Carried:
    """The loop with a carried state that a kernel is."""
    block = present(kernel.block, "[scan] expected a block")
    at, steps = next((k, s) for k, s in enumerate(block.body) if isinstance(s, Steps))
    nests = tuple([s for s in (*block.body[:at], *steps.body, *block.body[at + 1:]) if isinstance(s, Nest)])
    if len(nests) != len(block.body) - 1 + len(steps.body):
        raise InternalError("[scan] expected nests in one loop")
    return Carried(nests, at, at + len(steps.body), steps.var, block.local)


@dataclass(frozen=True)
class Axis:
    """An independent axis of `extent` places: the variable of each nest, by number, and the axis of each buffer."""

    extent: int
    variables: dict[int, Var]
    axes: dict[str, int]


Member = tuple[object, object]
"""(the number of a nest, a variable of it) or (the name of a buffer of the state, an axis of it)."""


def independent_axes(kernel: Kernel) -> list[Axis]:
    """The axes along which the iterations of a loop do not touch each other's state, longest first."""
    loop = carried(kernel)
    shapes = {p.name: p.shape for p in loop.state}
    parent: dict[Member, Member] = {}

    def find(x: Member) -> Member:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    spoiled: set[Member] = set()
    for k, nest in enumerate(loop.nests):
        own = {v for s in statements((nest,)) if isinstance(s, Nest) for v in s.domain}
        for name, at in accesses_of((nest,)):
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
             if (made := _axis(loop, shapes, members)) is not None]
    return sorted(found, key=lambda a: (-a.extent, sorted(a.axes.items())))


def _axis(loop: Carried, shapes: dict[str, tuple[Index, ...]], members: list[Member]) -> Axis | None:
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
    for k, nest in enumerate(loop.nests):
        outer = {v for s in statements((nest,)) if isinstance(s, Nest) and s is not nest for v in s.domain}
        if k in own and own[k] in outer and any(isinstance(s, Store) or not isinstance(s, Nest) for s in nest.body):
            return None  # what stands before the inner loops would be computed by each, and may be stored by all
    return Axis(extent, own, axes)
