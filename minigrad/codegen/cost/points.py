"""Points of a launch: the values that index variables take over its groups, work-items and loops.

A variable takes the values of an axis, a loop's iterations, or of two, where iterations of a parallel loop are the
items of groups. An expression is looked at over the axes of its own variables, at all points where these are few, else
at a spread sample; the lane's axis is the last one, and always whole.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from minigrad.codegen.kernel.value_eval import index_value
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index, Var, to_text, variables
from minigrad.value import ValueIndex, value_atoms, walk

Array = Any
MOST_POINTS = 1 << 15
GROUP, LANE = "group", "lane"
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Axis:
    """The iterations of a loop, or groups, or work-items."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The source of a variable's values: an axis, from `start` on, or groups of `lanes` work-items each."""

    axes: tuple[Axis, ...]
    lanes: int = 0
    start: Index = 0


Clause = tuple[tuple[Index, ...], bool]
"""Conditions that hold together, and whether they do; else at least one does not."""


class Grid:
    """Points over the axes of variables: all, else `whole` is false. Of axes that are left out in part those come first
    that have the larger number in what `first` gives. Of `fixed` ones the middle is looked at."""

    def __init__(self, bound: Mapping[Var, Bound], dims: Mapping[Var, int], lanes: Axis, used: Iterable[Var],
                 most: int = 0, fixed: Sequence[str] = (),
                 first: Callable[[], Mapping[str, int]] | None = None):
        self.bound, self.dims = bound, dims
        most = most or MOST_POINTS
        axes = {a.name: a for v in _closed(used, bound) for a in bound[v].axes if a.name != LANE}
        sizes = {name: 1 if name in fixed else a.size for name, a in axes.items()}
        order = first() if first is not None and prod(sizes.values()) * lanes.size > most else {}
        while prod(sizes.values()) * lanes.size > most and max(sizes.values(), default=1) > 1:
            largest = max(sizes, key=lambda name: (sizes[name] > 1 and order.get(name, 0), sizes[name]))
            sizes[largest] = max(1, min(sizes[largest] // 2, most))
        self.whole = all(sizes[name] == a.size for name, a in axes.items())
        self.total = prod(a.size for name, a in axes.items() if name not in fixed) * lanes.size
        points = [np.full(1, a.size // 2) if name in fixed else spread(a.size, sizes[name]) for name, a in axes.items()]
        self.shape = (*[len(x) for x in points], lanes.size)
        self.at: dict[str, Array] = {}
        for k, (a, x) in enumerate(zip(axes.values(), points, strict=True)):
            self.at[a.name] = x.reshape([-1 if j == k else 1 for j in range(len(self.shape))])
        self.at[LANE] = np.arange(lanes.size)
        self.gathers = False

    def value(self, e: Index) -> Array:
        """The values of an index, in a shape that fits `shape`. Indices that are loaded are not known: they are
        scattered over their bounds, alike where the same element is loaded."""
        return index_value(e, self.leaf)

    def leaf(self, a: Atom) -> Array:
        if isinstance(a, ValueIndex):
            return self.scattered(a)
        if not isinstance(a, Var):
            raise InternalError(f"[cost] expected a variable or a loaded index, got {to_text(a)}")
        found = self.bound.get(a)
        if found is None:
            return self.dims[a]
        if found.lanes:
            return self.at[GROUP] * found.lanes + self.at[LANE]
        return self.at[found.axes[0].name] + (self.value(found.start) if found.start != 0 else 0)

    def scattered(self, a: ValueIndex) -> Array:
        self.gathers = True
        total: Array = 0
        for k, v in enumerate(walk(a.value)):
            if v.op == "load":
                total = total * 31 + self.value(v.indices[0]) + k
            elif v.op == "index":
                total = total * 31 + self.value(v.index) + k
        mixed = (np.asarray(total, np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
        return a.lo + (mixed % np.uint64(max(1, a.hi - a.lo + 1))).astype(np.int64)

    def holds(self, clauses: Iterable[Clause]) -> Array:
        """A mask of the points where all clauses hold, in the whole shape."""
        mask = np.ones(self.shape, bool)
        for conditions, wanted in clauses:
            inside: Array = True
            for c in conditions:
                inside = inside & (np.asarray(self.value(c)) >= 0)
            mask &= np.asarray(inside) == wanted
        return mask

    def count(self, mask: Array) -> float:
        """The points of the axes where a mask holds: exact where they are whole."""
        return float(np.count_nonzero(mask) * self.total / mask.size)


def _closed(used: Iterable[Var], bound: Mapping[Var, Bound]) -> dict[Var, None]:
    """Variables that are bound, with those that their loops begin at."""
    found: dict[Var, None] = {}
    waiting = sorted((v for v in used if v in bound), key=lambda v: v.name)
    while waiting:
        v = waiting.pop(0)
        if v not in found:
            found[v] = None
            waiting += [x for x in used_by([bound[v].start]) if x in bound]
    return found


def spread(size: int, count: int) -> Array:
    """`count` of the numbers below `size`, none twice: all of them, or such that no period is met."""
    if count >= size:
        return np.arange(size)
    return np.unique((np.arange(count) * GOLDEN % 1 * size).astype(np.int64))


def used_by(indices: Iterable[Index]) -> set[Var]:
    """The variables of indices, of values inside them too."""
    found: set[Var] = set()
    for e in indices:
        if not isinstance(e, int):
            found |= variables(e)
            for a in value_atoms(e):
                found |= {x for v in walk(a.value) for i in _indices(v) for x in variables(i)}
    return found


def _indices(v: Any) -> tuple[Index, ...]:
    return tuple(i for i in (v.indices if v.op == "load" else (v.index,) if v.op == "index" else ())
                 if not isinstance(i, int))


def in_waves(x: Array, wave: int, fill: Any) -> Array:
    """An array with lanes last as [..., waves, lanes of a wave], filled up."""
    lanes = x.shape[-1]
    waves = ceil(lanes / wave)
    if waves * wave != lanes:
        x = np.concatenate([x, np.full((*x.shape[:-1], waves * wave - lanes), fill, x.dtype)], axis=-1)
    return x.reshape(*x.shape[:-1], waves, wave)


def distinct(x: Array) -> Array:
    """The number of different values that are not negative, along the last axis."""
    x = np.sort(x, axis=-1)
    first = x[..., :1] >= 0
    return np.count_nonzero(first, axis=-1) + np.count_nonzero((x[..., 1:] != x[..., :-1]) & (x[..., 1:] >= 0), axis=-1)
