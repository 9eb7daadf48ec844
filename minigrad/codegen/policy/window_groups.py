"""Windows over planes by work-groups: depthwise convolution, its gradients, pooling. Positions through local memory.

    taps    split i1 -> gb y by 28, exact     the rows of a group
            split y -> ty u by 7, exact       those of a work-item, each with a sum
            split i2 -> gx x by 16, guard
            bind group i0 gb gx
            bind item ty x
            bind unroll u r0 r1
            order i0 gb gx ty x r1 r0 u
            stage p0 at gx as [y+r0][x+r1], by items

    plane   for planes group: an accumulator per tap and work-item
              for sums around and tiles of the plane: copy; barrier; A in registers, taps written out; barrier
              what the work-items have of each tap added up in local memory, the epilogue

A group takes several planes (taps) or images (plane) at a time where one has too few rows and columns for it. How many,
and whether the sums around a plane are split, depends on shapes and the target only. The form 'plane', and phases of a
strided gradient, have a plan of their own.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from minigrad.codegen.kernel.nodes import Nest, Param
from minigrad.codegen.kernel.value_walk import loaded
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.matrix import WAVE
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Phase, Window, recognise_window
from minigrad.codegen.plan.box import BANKS, MAX_PADDING, PADDING
from minigrad.codegen.plan.other_plans import GroupWindowPlan
from minigrad.codegen.plan.steps import Bind, Order, Plan, Split, Stage, Step
from minigrad.codegen.policy.blocking import is_plain, size
from minigrad.codegen.policy.split_k import best_part, in_parts
from minigrad.codegen.policy.window_layout import coordinate, operand
from minigrad.errors import present
from minigrad.expr import Var, bounds
from minigrad.target import Target
from minigrad.value import free_variables

GROUP = 256
MAX_ACROSS, MAX_HEIGHT = 64, 8
MAX_TERMS = 400
"""Multiply-adds of one phase written out in a work-item: bounds code size and the time to compile it."""

MIN_REUSE = 2
"""The number of reads of a position, on average, from which local memory pays."""

ITEMS_PER_UNIT = 1024
"""Sums around a plane are split while that leaves no more work-items per unit: the groups wait at barriers."""

PARTS = 4
"""Into how many equal parts, from the fewest that fit on, rows and columns of an image are cut."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers that a plan is chosen by. `taps`: (rows, columns) of each phase's taps; `rows`, `columns` of the
    image, the most of all phases; `stride`, `reach` down and across: positions from image to image, from the first to
    the last tap; `planes` of X, or in the form 'plane' outputs; `around`: places of the sums around a plane;
    `at_once`: of what a group may take several at a time; `again`: planes that share what is staged; `plain`: whether
    weights are in memory as they are."""

    form: str
    taps: tuple[tuple[int, int], ...]
    rows: int
    columns: int
    stride: tuple[int, int]
    reach: tuple[int, int]
    planes: int
    around: int
    at_once: int
    again: int
    plain: bool
    itemsize: int

    @property
    def kernel(self) -> tuple[int, int]:
        """The taps of the phase that has most."""
        return max(self.taps, key=lambda t: t[0] * t[1])


@dataclass(frozen=True, slots=True)
class Tile:
    """Positions of a group's tile in local memory: `rows` of `columns`, a row in one segment per residue of the stride;
    elements from row to row and from plane to plane; how many there are in all."""

    rows: int
    columns: int
    segment: int
    pitch: int
    plane: int
    elements: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The division of a tile: see GroupWindowPlan."""

    deep: int
    down: int
    across: int
    height: int

    @property
    def items(self) -> int:
        return self.deep * self.down * self.across


@lru_cache(maxsize=1 << 10)
def plan(nest: Nest, target: Target) -> tuple[Nest, Plan | GroupWindowPlan] | str:
    """The nest, as a product where it has steps, and the plan of a window; or why it has none."""
    chosen = _chosen((nest,), target)
    if isinstance(chosen, str):
        return chosen
    window, shares = chosen
    if window.form == "plane":
        return nest, plan_of(window, shares)
    return window.nest, Plan("window_groups", tuple(steps_of(window, shares)))


def phases_plan(nests: tuple[Nest, ...], target: Target) -> GroupWindowPlan | str:
    """The plan of several nests as phases of one window, or why they are none."""
    chosen = _chosen(nests, target)
    return chosen if isinstance(chosen, str) else plan_of(*chosen)


def _chosen(nests: tuple[Nest, ...], target: Target) -> tuple[Window, Shares] | str:
    """The window of a nest, or of several as its phases, and how its work is divided; or why it has no plan."""
    if not target.has_groups:
        return f"no window by groups: no work-groups with local memory on {target.name}"
    window = recognise_any(nests)
    if isinstance(window, str):
        return window
    fixed = [v for v in window.planes if v not in own_planes(window)]
    fixed += window.extra if target.max_iterations else ()
    if any(not isinstance(v.hi, int) for v in fixed):
        return "no window by groups: an inner extent is known at run time only"
    if reuse(window) < MIN_REUSE:
        return "no window by groups: few positions are read twice"
    if window.form == "taps" and len(nests) == 1:
        if any(a.stride > 1 and a.dilation != 1 for a in (window.phase.rows, window.phase.columns)):
            return "no window by groups: stride and dilation"
        if not operand(window):
            return "no window by groups: no operand is read"
    chosen = best(figures(window), target)
    if chosen is None:
        return "no window by groups: too little local memory, or too many iterations for a work-item"
    return window, chosen


def steps_of(window: Window, shares: Shares) -> list[Step]:
    """The steps of a window whose taps are summed."""
    rows, columns = window.phase.rows, window.phase.columns
    steps, groups, items, tiles, layout = list[Step](), list[str](), list[str](), list[str](), list[str]()

    def split(loop: Var, outer: str, inner: str, size: int) -> None:
        exact = isinstance(loop.hi, int) and (loop.hi + 1) % size == 0
        steps.append(Split(loop.name, outer, inner, size, "exact" if exact else "guard"))
        groups.append(outer)

    own, again = own_planes(window), list[str]()
    for v in window.planes:
        if v == _several(window) and shares.deep > 1:
            split(v, "gd", "d", shares.deep)
            items.append("d")
        else:
            (groups if v in own else again).append(v.name)
    layout += items
    if rows.image is not None:
        split(rows.image, "gb", "y", shares.down * shares.height)
        layout += coordinate(rows, "y", False)
        if shares.height > 1:
            steps.append(Split("y", "ty", "u", shares.height))
        items.append("ty" if shares.height > 1 else "y")
        tiles += ["u"] if shares.height > 1 else []
    split(present(columns.image, "[plan] expected columns of an image"), "gx", "x", shares.across)
    items.append("x")
    layout += coordinate(columns, "x", True)
    taps = [a.tap.name for a in (columns, rows) if a.tap is not None]
    return [*steps, Bind("group", tuple(groups)), Bind("item", tuple(items)), Bind("unroll", (*tiles, *taps)),
            Order((*groups, *items, *again, *taps, *tiles)), Stage(operand(window), "gx", tuple(layout), items=True),
            *_weights(window, shares, again)]


def _several(window: Window) -> Var | None:
    """The variable of the planes of which a group may have several: the longest one."""
    known = [v for v in own_planes(window) if isinstance(v.hi, int)]
    return max(known, key=lambda v: (v.hi, v.name), default=None)


def _weights(window: Window, shares: Shares, again: Sequence[str]) -> list[Step]:
    """The copy of the weights of a group: those of one plane, where they lie, are read by all alike."""
    other = window.phase.other
    if other is None or not copies_weights(window, shares.deep):
        return []
    several, used = _several(window), {v.name for v in free_variables(other)}
    names = {a.tap.name: a.tap.name for a in (window.phase.rows, window.phase.columns) if a.tap is not None}
    places = ({several.name: "d"} if several is not None and shares.deep > 1 else {}) | dict.fromkeys(again) | names
    layout = tuple([place or name for name, place in places.items() if name in used])
    buffers = loaded(other) - loaded(window.value)
    return [Stage(min(buffers), "gx", layout, items=True)] if layout and buffers else []


def plan_of(window: Window, shares: Shares) -> GroupWindowPlan:
    phase = max(window.phases, key=taps_of)
    row, column = phase.rows.image, phase.columns.image
    return GroupWindowPlan("window_groups", window.form, tuple(v.name for v in window.planes),
                           row.name if row is not None else "", column.name if column is not None else "",
                           shares.deep, shares.down, shares.across, shares.height, len(window.phases))


def taps_of(phase: Phase) -> int:
    return len(phase.rows.taps) * len(phase.columns.taps)


def lengths(window: Window) -> tuple[int, int]:
    """Rows and columns of the image, the most of all phases."""
    return max(p.rows.length for p in window.phases), max(p.columns.length for p in window.phases)


def reuse(window: Window) -> float:
    """The number of reads of each position."""
    reads = sum(taps_of(p) * p.rows.length * p.columns.length for p in window.phases)
    (first_row, last_row), (first_column, last_column) = bounds(window.row), bounds(window.column)
    return reads / ((last_row - first_row + 1) * (last_column - first_column + 1))


def own_planes(window: Window) -> tuple[Var, ...]:
    """The planes that X differs in; others share what is staged."""
    if window.form == "plane":
        return window.planes
    used = free_variables(window.value)
    return tuple(v for v in window.planes if v in used)


def figures(window: Window) -> Figures:
    """The numbers of a window."""
    phases, own = window.phases, own_planes(window)
    reach = (max(max(p.rows.taps) for p in phases) - bounds(window.row)[0],
             max(max(p.columns.taps) for p in phases) - bounds(window.column)[0])
    several = _several(window)
    at_once = size(window.extra) if window.form == "plane" else size(own) if len(phases) > 1 or several is None else \
        size((several,))
    return Figures(window.form, tuple((len(p.rows.taps), len(p.columns.taps)) for p in phases), *lengths(window),
                   (phases[0].rows.stride, phases[0].columns.stride), reach, size(own), size(window.extra), at_once,
                   size(window.planes) // size(own), all(p.other is None or is_plain(p.other) for p in phases),
                   window.value.dtype.itemsize)


def copies_weights(window: Window, deep: int) -> bool:
    """True where weights go through local memory: those of one plane, where they lie, are read by all alike."""
    return window.form == "taps" and window.phase.other is not None and (deep > 1 or not figures(window).plain)


# ---- where positions lie ----


def tile_of(f: Figures, shares: Shares) -> Tile:
    """The layout of a tile's positions, without padding."""
    rows = f.stride[0] * (shares.down * shares.height - 1) + f.reach[0] + 1
    columns = f.stride[1] * (shares.across - 1) + f.reach[1] + 1
    segment = ceil(columns / f.stride[1])
    pitch = segment * f.stride[1]
    return Tile(rows, columns, segment, pitch, rows * pitch, shares.deep * rows * pitch)


def padded_tile(f: Figures, shares: Shares) -> Tile:
    """The tile with its rows and planes so far apart that few work-items of a wave meet in a bank."""
    tile, step = tile_of(f, shares), shares.height * f.stride[0]

    def meetings(pitch: int, plane: int) -> int:
        """Work-items of a wave that read one bank, at most."""
        banks = [0] * BANKS
        for t in range(min(WAVE, shares.items)):
            row, d = t // shares.across % shares.down, t // (shares.across * shares.down)
            banks[(t % shares.across + row * step * pitch + d * plane) % BANKS] += 1
        return max(banks)

    rows, planes = (MAX_PADDING if n > 1 else 1 for n in (shares.down, shares.deep))
    options = [(meetings(pitch, plane), plane, pitch) for pitch in range(tile.pitch, tile.pitch + rows)
               for plane in range(tile.rows * pitch, tile.rows * pitch + planes)
               if plane * 2 <= tile.plane * 3 or pitch == tile.pitch]
    _, plane, pitch = min(options)
    return replace(tile, pitch=pitch, plane=plane, elements=shares.deep * plane)


# ---- the best plan ----


@lru_cache(maxsize=1 << 10)
def best(f: Figures, target: Target) -> Shares | None:
    """The cheapest way to divide the work; None where nothing fits."""
    return min(candidates(f, target), key=lambda shares: cost(f, shares, target), default=None)


def candidates(f: Figures, target: Target) -> Iterator[Shares]:
    """The shares that fit the device."""
    group, (rows, columns) = min(GROUP, target.max_group), f.kernel
    for across in parts(f.columns, min(group, MAX_ACROSS)):
        for height in range(1, min(f.rows, MAX_HEIGHT) + 1):
            if height > 1 and (rows * columns * height > MAX_TERMS or registers(f, height) > target.registers):
                break
            for down in parts(ceil(f.rows / height), group // across):
                deep = min(max(f.at_once, 1), group // (across * down))
                while deep:
                    shares = Shares(deep, down, across, height)
                    if fits(f, shares, target):
                        yield shares
                    deep //= 2


def parts(n: int, most: int) -> list[int]:
    """Sizes of equal parts of n, the last perhaps smaller, none larger than `most`."""
    fewest = ceil(n / most)
    return list(dict.fromkeys(ceil(n / k) for k in range(fewest, min(fewest + PARTS, n + 1))))


def registers(f: Figures, height: int) -> int:
    """Of sums, positions, and weights or A: compilers read all of them ahead."""
    rows, columns = f.kernel
    return height + rows * columns + columns * (f.stride[0] * (height - 1) + rows)


def fits(f: Figures, shares: Shares, target: Target) -> bool:
    tile, items = tile_of(f, shares), shares.items
    if f.form == "plane" and items < max(f.kernel[0] * f.kernel[1], WAVE):
        return False
    local = max(tile.elements * 3 // 2, items + 1) + (weight_count(f, shares.deep) if f.form == "taps" else 0)
    return local * f.itemsize <= target.local_memory and (
        not target.max_iterations or iterations(f, shares, tile) <= target.max_iterations)


def weight_count(f: Figures, deep: int) -> int:
    """Elements of all weights of a group."""
    return deep * f.again * sum(rows * (columns + PADDING // f.itemsize) for rows, columns in f.taps)


def iterations(f: Figures, shares: Shares, tile: Tile) -> int:
    """At most so many iterations of loops a work-item has."""
    copies = ceil(shares.deep * tile.rows * tile.columns / shares.items)
    if f.form == "taps":
        return copies + weight_count(f, shares.deep) // shares.items + 1 + f.again
    return blocks(f, shares) * (copies + 1) + f.kernel[0] * f.kernel[1] * shares.items


def tiles(f: Figures, shares: Shares) -> int:
    """Of a plane."""
    return ceil(f.rows / (shares.down * shares.height)) * ceil(f.columns / shares.across)


def blocks(f: Figures, shares: Shares) -> int:
    """Tiles that a group of the form 'plane' goes through."""
    return ceil(f.around / shares.deep) * tiles(f, shares)


def groups(f: Figures, shares: Shares) -> int:
    if f.form == "plane":
        return f.planes
    return ceil(f.planes / f.at_once) * ceil(f.at_once / shares.deep) * tiles(f, shares)


def cost(f: Figures, shares: Shares, target: Target) -> float:
    """Instructions of all waves, and of units that wait for the last group or have room for few waves."""
    tile, waves, facts = tile_of(f, shares), ceil(shares.items / WAVE), machine(target)
    begin, copy, store = facts.costs.item, facts.costs.item_copy, facts.costs.item_store
    each = ceil(shares.deep * tile.rows * tile.columns / shares.items) * copy
    for rows, columns in f.taps:
        read = columns * (f.stride[0] * (shares.height - 1) + rows) + rows * columns
        each += (read + shares.height * (rows * columns + store)) * f.again
    if f.form == "plane":
        taps = f.kernel[0] * f.kernel[1]
        whole = not f.rows % (shares.down * shares.height) and not f.columns % shares.across
        each = (each + (0 if whole else shares.height * taps)) * blocks(f, shares) + taps * store
    count = groups(f, shares)
    waiting = ceil(count / target.units) * target.units / count
    crowded = max(1.0, tile.elements * f.itemsize / (waves * facts.declared.local_per_wave))
    return count * waves * (each + begin) * waiting * crowded


def split_planes(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A gradient by weights with too few planes for the device, in parts along its sums around them; else the nest
    itself. See `split_k`."""
    window = recognise_window(nest)
    if isinstance(window, str) or window.form != "plane" or any(
            not isinstance(v.hi, int) for v in (*nest.domain, *window.extra)):
        return [nest]
    shares = best(figures(window), target)
    if shares is None or isinstance(plan(nest, target), str):
        return [nest]
    there = size(window.planes) * shares.items
    count, v = best_part(window.extra, min(ITEMS_PER_UNIT * target.units // there, size(window.extra) // shares.deep))
    return [nest] if v is None else in_parts(nest, scratch, window.phase.name, count, v)
