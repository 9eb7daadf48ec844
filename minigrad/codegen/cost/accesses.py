"""Accesses of a launch in memory: sectors and banks that a wave touches, bytes that groups touch together."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, prod
from typing import Any

import numpy as np

from minigrad.codegen.cost.points import GROUP, LANE, Axis, Bound, Clause, Grid, distinct, in_waves, used_by
from minigrad.expr import Index, Var, bounds, evaluate

BANKS, WORD = 32, 4
LINE = 128  # bytes that the port of a unit's cache serves at once, as those of 32 banks
FOOTPRINT_POINTS, FEW_GROUPS = 1 << 16, 1 << 12


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch: values of dims, the work-items of a group, groups, the items of a wave, the bytes of a sector."""

    dims: Mapping[Var, int]
    lanes: Axis
    groups: int
    wave: int
    sector: int


@dataclass(frozen=True)
class Access:
    """An access to elements at an offset, where all clauses hold. `outer` is the axis of the outermost loop around it
    that is not unrolled, '' for none, which has `trips` iterations."""

    buffer: str
    offset: Index
    clauses: tuple[Clause, ...]
    bound: Mapping[Var, Bound]
    outer: str = ""
    trips: float = 1.0

    @cached_property
    def varying(self) -> Index:
        """The offset without what is the same everywhere."""
        return 0 if isinstance(self.offset, int) else self.offset - self.offset.const

    @cached_property
    def used(self) -> set[Var]:
        return used_by([self.offset, *[c for conditions, _ in self.clauses for c in conditions]])


@dataclass(slots=True)
class Moved:
    """Counts of what a launch does with a buffer that all groups see.

    Executed `loads` and `stores` of elements. `asked`: bytes that waves ask for; `sectors`: bytes of the sectors that
    hold them. `group`: bytes of the sectors that a group touches, and `step` those of one iteration of its outermost
    loop, added up; `all`: bytes that the launch touches; `shared`: by powers of two of groups that follow each other,
    the number of different shares of theirs. `apart`: bytes between neighbouring lanes where a wave touches more than
    twice the sectors that it needs, else 0.
    """

    itemsize: int
    loads: float = 0.0
    stores: float = 0.0
    asked: float = 0.0
    sectors: float = 0.0
    group: float = 0.0
    step: float = 0.0
    all: float = 0.0
    shared: list[float] = field(default_factory=list)
    apart: float = 0.0


# ---- a wave ----


def lanes_of(a: Access, shape: Shape) -> Any:
    """Offsets of the lanes of waves, [waves, lanes]; -1 for those that take no part."""
    grid = Grid(a.bound, shape.dims, shape.lanes, a.used, max(1 << 12, 4 * shape.lanes.size))
    at = np.broadcast_to(np.asarray(grid.value(a.offset)), grid.shape)
    if a.clauses:
        at = np.where(grid.holds(a.clauses), at, -1)
    at = in_waves(np.ascontiguousarray(at), shape.wave, -1).reshape(-1, shape.wave)
    return at[(at >= 0).any(axis=-1)]


def sectors_of(a: Access, size: int, itemsize: int, shape: Shape) -> tuple[float, float]:
    """(sectors, lines) that an access of `size` bytes of a wave touches, in the mean."""
    at = lanes_of(a, shape)
    if not len(at):
        return 0.0, 0.0
    begins = np.where(at < 0, -1, at * itemsize)
    ends = np.where(at < 0, -1, begins + size - 1)
    found = [np.concatenate([begins // unit, ends // unit], axis=-1) for unit in (shape.sector, LINE)]
    sectors, lines = (float(np.mean(distinct(np.where(x < 0, -1, x)))) for x in found)
    return sectors, lines


def banks(a: Access, width: int, itemsize: int, shape: Shape) -> tuple[float, float]:
    """Passes of 32 banks of an access of a wave, in the mean: words of one bank that lanes read at once, and those
    among them of vectors that all lanes read. Of wide ones a part of the wave's lanes is served at once."""
    at = lanes_of(a, shape)
    if not len(at):
        return 0.0, 0.0
    words = max(1, width * itemsize // WORD)
    at = in_waves(np.where(at < 0, -1, at * itemsize // WORD), max(1, BANKS // words), -1)
    at = np.concatenate([np.where(at < 0, -1, at + k) for k in range(words)], axis=-1)[:256]
    at = np.sort(at.reshape(-1, at.shape[-1]), axis=-1)
    new = np.concatenate([at[:, :1] >= 0, (at[:, 1:] != at[:, :-1]) & (at[:, 1:] >= 0)], axis=-1)
    rows = np.broadcast_to(np.arange(len(at))[:, None], at.shape)
    counted = np.zeros((len(at), BANKS))
    np.add.at(counted, (rows[new], at[new] % BANKS), 1)
    most = counted.max(axis=-1)
    shared = (np.count_nonzero(new, axis=-1) <= words) & (words > 1)
    parts = ceil(shape.wave * words / BANKS)
    return parts * float(np.mean(most)), parts * float(np.mean(most * shared))


def step_of(a: Access, itemsize: int, shape: Shape) -> float:
    """Bytes between neighbouring lanes, in the median."""
    at = lanes_of(a, shape)
    there = np.abs(np.diff(at, axis=-1))[(at[:, 1:] >= 0) & (at[:, :-1] >= 0)]
    return float(np.median(there)) * itemsize if there.size else 0.0


# ---- groups ----


def measure_footprints(buffers: Mapping[str, Moved], accesses: list[Access], sizes: Mapping[str, int], shape: Shape
                       ) -> None:
    """Fills in what a group, its steps, its neighbours and all of them touch of buffers of these sizes."""
    for name, moved in buffers.items():
        own = [a for a in accesses if a.buffer == name]
        if not own:
            continue
        size = sizes[name] * moved.itemsize
        most = max(1 << 11, FOOTPRINT_POINTS // len(own))
        parts = [_touched(a, moved, shape, most, (GROUP,)) for a in own]
        whole = max(_together([x for x, _ in parts]), *[len(x) * factor for x, factor in parts])
        moved.group = float(min(whole * shape.sector, size + shape.sector))
        steps: dict[tuple[str, float], list[Any]] = {}
        for a, (sectors, _) in zip(own, parts, strict=True):
            steps.setdefault((a.outer, a.trips), []).append(
                _touched(a, moved, shape, most, (GROUP, a.outer))[0] if a.outer else sectors)
        each = sum(_together(x) * trips for (_, trips), x in steps.items())
        moved.step = max(moved.group, each * shape.sector)
        moved.shared = _shared(own, shape)
        moved.all = float(min(size, moved.group * moved.shared[-1]))


def _touched(a: Access, moved: Moved, shape: Shape, most: int, fixed: tuple[str, ...]) -> tuple[Any, float]:
    """The sectors that an access touches, and a factor for those that were left out."""
    grid = Grid(a.bound, shape.dims, shape.lanes, a.used, most, fixed, partial(_strides, a, shape))
    at = np.broadcast_to(np.asarray(grid.value(a.offset)), grid.shape)
    at = at[grid.holds(a.clauses)] if a.clauses else at
    factor = 1.0 if grid.whole else max(1.0, grid.total / prod(grid.shape))
    return np.unique(at.ravel() * moved.itemsize // shape.sector), factor if at.size else 1.0


def _strides(a: Access, shape: Shape) -> dict[str, int]:
    """The distance that the first step of each axis goes: what is left out of the farthest lies by itself."""
    def place(moved: Var | None) -> int:
        return evaluate(a.offset, {v: int(v is moved) for v in a.used} | dict(shape.dims), lambda x: bounds(x)[0])

    return {b.axes[0].name: abs(place(v) - place(None)) for v, b in a.bound.items() if v in a.used and not b.lanes}


def _shared(own: list[Access], shape: Shape) -> list[float]:
    """By powers of two: the different shares that so many groups have which follow each other."""
    sizes = list(dict.fromkeys(min(1 << k, shape.groups) for k in range(shape.groups.bit_length() + 1)))
    most = np.ones(len(sizes))
    for a in {a.varying: a for a in own}.values():
        together = min(shape.groups, FEW_GROUPS)
        _, first = np.unique(_places(a, shape, together), return_index=True)
        first = np.sort(first)  # the groups whose share nobody before them has
        for k, n in enumerate(sizes):
            if n <= together:
                most[k] = max(most[k], np.searchsorted(first, n))
            else:
                at = _places(a, shape, n)
                different = len(np.unique(at))
                most[k] = max(most[k], n if different == len(at) else different)
    return [float(x) for x in most]


def _places(a: Access, shape: Shape, groups: int) -> Any:
    """The places in a buffer that the first groups access, of many groups a part, all else alike."""
    bound = {v: Bound(tuple([Axis(GROUP, groups) if x.name == GROUP else x for x in b.axes]), b.lanes, b.start)
             for v, b in a.bound.items()}
    loops = [x.name for b in bound.values() for x in b.axes if x.name != GROUP]
    grid = Grid(bound, shape.dims, Axis(LANE, 1), used_by([a.offset]), FEW_GROUPS, loops)
    return np.asarray(grid.value(a.offset)).ravel()


def _together(parts: list[Any]) -> float:
    return float(len(parts[0])) if len(parts) == 1 else float(len(np.unique(np.concatenate(parts))))
