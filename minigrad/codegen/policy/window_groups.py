"""Windows over planes by work-groups: depthwise convolution, its gradients, pooling. Positions through local memory.

    taps    split i1 -> gb y by 28, exact     the rows of a group
            split y -> ty u by 7, exact       those of a work-item, each with a sum
            split i2 -> gx x by 16, guard
            bind group i0 gb gx
            bind item ty x
            bind unroll u r0 r1
            order i0 gb gx ty x r1 r0 u
            stage p0 at gx as [y+r0][x+r1], by items

    plane   split r1 -> gb y by 28, exact     those of a tile, of which work-items share the sum
            split y -> ty u by 7, exact
            split r2 -> gx x by 16, guard
            bind group i0
            bind item ty x
            bind unroll u i2 i1               a sum for each tap
            order i0 ty x r0 gb gx i2 i1 u
            stage p1 at gx as [y+i1][x+i2], by items

A group takes several planes (taps) or images (plane) at a time where one has too few rows and columns for it. How many,
and whether the sums around a plane are split, depends on shapes and the target only.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from minigrad.codegen.kernel.nodes import Nest, Param
from minigrad.codegen.kernel.value_walk import loaded
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.matrix import WAVE
from minigrad.codegen.patterns.recognise_window import Window, recognise_window
from minigrad.codegen.plan.box import PADDING
from minigrad.codegen.plan.steps import Bind, Order, Plan, Split, Stage, Step
from minigrad.codegen.policy.blocking import is_plain, size
from minigrad.codegen.policy.group_reduction import GROUP
from minigrad.codegen.policy.parts import best_part, in_parts
from minigrad.codegen.policy.window_layout import coordinate, operand
from minigrad.errors import present
from minigrad.expr import Var, bounds
from minigrad.target import Target
from minigrad.value import free_variables

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
    """The numbers that a plan is chosen by. `taps`: rows and columns of them; `rows`, `columns` of the image; `stride`,
    `reach` down and across: positions from image to image, from the first to the last tap; `planes` of X, or in the
    form 'plane' outputs; `around`: places of the sums around a plane; `at_once`: of what a group may take several at a
    time; `again`: planes that share what is staged; `plain`: whether weights are in memory as they are."""

    form: str
    taps: tuple[int, int]
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


@dataclass(frozen=True, slots=True)
class Shares:
    """The division of a tile among work-items: `deep` planes, or in the form 'plane' places of the sums around one,
    `down` x `across` of them, each with `height` rows of a column."""

    deep: int
    down: int
    across: int
    height: int

    @property
    def items(self) -> int:
        return self.deep * self.down * self.across


@lru_cache(maxsize=1 << 10)
def plan(nest: Nest, target: Target) -> tuple[Nest, Plan] | str:
    """The nest, as a product, and the plan of a window; or why it has none."""
    if not target.has_groups:
        return f"no window by groups: no work-groups with local memory on {target.name}"
    window = recognise_window(nest)
    if isinstance(window, str):
        return window
    if any(a.stride > 1 and a.dilation != 1 for a in (window.phase.rows, window.phase.columns)):
        return "no window by groups: stride and dilation"
    if not operand(window):
        return "no window by groups: no operand is read"
    fixed = [v for v in window.planes if v not in own_planes(window)]
    fixed += window.extra if target.max_iterations else ()
    if any(not isinstance(v.hi, int) for v in fixed):
        return "no window by groups: an inner extent is known at run time only"
    f, positions = figures(window), prod([hi - lo + 1 for lo, hi in map(bounds, (window.row, window.column))])
    if f.rows * f.columns * prod(f.taps) < MIN_REUSE * positions:
        return "no window by groups: few positions are read twice"
    shares = best(f, target)
    if shares is None:
        return "no window by groups: too little local memory, or too many iterations for a work-item"
    return window.nest, Plan("window_groups", tuple(steps_of(window, shares)))


def steps_of(window: Window, shares: Shares) -> list[Step]:
    """The steps of a window: where its taps are summed groups go over tiles, else each goes through those of its
    planes."""
    rows, columns, sums = window.phase.rows, window.phase.columns, window.form == "plane"
    steps, tiles, items, each, layout = list[Step](), list[str](), list[str](), list[str](), list[str]()

    def split(loop: Var, outer: str, inner: str, size: int) -> None:
        exact = isinstance(loop.hi, int) and (loop.hi + 1) % size == 0
        steps.append(Split(loop.name, outer, inner, size, "exact" if exact else "guard"))
        tiles.append(outer)

    own, again, longest = own_planes(window), list[str](), several(window)
    for v in window.extra if sums else window.planes:
        if v == longest and shares.deep > 1:
            split(v, "gd", "d", shares.deep)
            items.append("d")
        else:
            (tiles if sums or v in own else again).append(v.name)
    layout += items
    if rows.image is not None:
        split(rows.image, "gb", "y", shares.down * shares.height)
        layout += coordinate(rows, "y", False)
        if shares.height > 1:
            steps.append(Split("y", "ty", "u", shares.height))
        items.append("ty" if shares.height > 1 else "y")
        each += ["u"] if shares.height > 1 else []
    split(present(columns.image, "[plan] expected columns of an image"), "gx", "x", shares.across)
    items.append("x")
    layout += coordinate(columns, "x", True)
    taps = [a.tap.name for a in (columns, rows) if a.tap is not None]
    groups, inside = ([v.name for v in window.planes], tiles) if sums else (tiles, again)
    return [*steps, *([Bind("group", tuple(groups))] if groups else []), Bind("item", tuple(items)),
            Bind("unroll", (*each, *taps)), Order((*groups, *items, *inside, *taps, *each)),
            Stage(operand(window), "gx", tuple(layout), items=True), *_weights(window, shares, again)]


def several(window: Window) -> Var | None:
    """The variable of the planes, or of the sums around them, of which a group may have several: the longest one."""
    known = [v for v in (window.extra or own_planes(window)) if isinstance(v.hi, int)]
    return max(known, key=lambda v: (v.hi, v.name), default=None)


def _weights(window: Window, shares: Shares, again: Sequence[str]) -> list[Step]:
    """The copy of the weights of a group: those of one plane, where they lie, are read by all alike."""
    other = window.phase.other
    if other is None or not copies_weights(window, shares.deep):
        return []
    longest, used = several(window), {v.name for v in free_variables(other)}
    names = {a.tap.name: a.tap.name for a in (window.phase.rows, window.phase.columns) if a.tap is not None}
    places = ({longest.name: "d"} if longest is not None and shares.deep > 1 else {}) | dict.fromkeys(again) | names
    layout = tuple([place or name for name, place in places.items() if name in used])
    buffers = loaded(other) - loaded(window.value)
    return [Stage(min(buffers), "gx", layout, items=True)] if layout and buffers else []


def own_planes(window: Window) -> tuple[Var, ...]:
    """The planes that X differs in; others share what is staged."""
    if window.form == "plane":
        return window.planes
    used = free_variables(window.value)
    return tuple(v for v in window.planes if v in used)


def figures(window: Window) -> Figures:
    """The numbers of a window."""
    phase, own, longest = window.phase, own_planes(window), several(window)
    rows, columns = phase.rows, phase.columns
    return Figures(
        window.form, (len(rows.taps), len(columns.taps)), rows.length, columns.length, (rows.stride, columns.stride),
        (max(rows.taps) - rows.first, max(columns.taps) - columns.first), size(own), size(window.extra),
        1 if longest is None else size((longest,)), size(window.planes) // size(own),
        phase.other is None or is_plain(phase.other), window.value.dtype.itemsize)


def copies_weights(window: Window, deep: int) -> bool:
    """True where weights go through local memory: those of one plane, where they lie, are read by all alike."""
    return window.form == "taps" and window.phase.other is not None and (deep > 1 or not figures(window).plain)


@lru_cache(maxsize=1 << 10)
def best(f: Figures, target: Target) -> Shares | None:
    """The cheapest way to divide the work; None where nothing fits."""
    return min(candidates(f, target), key=lambda shares: cost(f, shares, target), default=None)


def candidates(f: Figures, target: Target) -> Iterator[Shares]:
    """The shares that fit the device."""
    group, taps = min(GROUP, target.max_group), prod(f.taps)
    for across in parts(f.columns, min(group, MAX_ACROSS)):
        for height in range(1, min(f.rows, MAX_HEIGHT) + 1):
            if height > 1 and (taps * height > MAX_TERMS or registers(f, height) > target.registers):
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
    rows, columns = f.taps
    return height + rows * columns + columns * (f.stride[0] * (height - 1) + rows)


def fits(f: Figures, shares: Shares, target: Target) -> bool:
    if f.form == "plane":
        beside, iterations = shares.items * prod(f.taps), blocks(f, shares) * (copies(f, shares) + 1)
    else:
        beside = weight_count(f, shares.deep)
        iterations = copies(f, shares) + beside // shares.items + 1 + f.again
    return (f.form == "taps" or shares.items >= WAVE) and (
        (tile_size(f, shares) * 3 // 2 + beside) * f.itemsize <= target.local_memory) and (
        not target.max_iterations or iterations <= target.max_iterations)


def weight_count(f: Figures, deep: int) -> int:
    """Elements of all weights of a group."""
    return deep * f.again * f.taps[0] * (f.taps[1] + PADDING // f.itemsize)


def tile_size(f: Figures, shares: Shares) -> int:
    """Positions of a tile; a row has as many of each residue of the stride."""
    rows = f.stride[0] * (shares.down * shares.height - 1) + f.reach[0] + 1
    return shares.deep * rows * f.stride[1] * (shares.across + f.reach[1] // f.stride[1])


def copies(f: Figures, shares: Shares) -> int:
    """Positions that a work-item copies of a tile."""
    return ceil(tile_size(f, shares) / shares.items)


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
    waves, facts, (rows, columns), taps = ceil(shares.items / WAVE), machine(target), f.taps, prod(f.taps)
    begin, copy, store = facts.costs.item, facts.costs.item_copy, facts.costs.item_store
    read = columns * (f.stride[0] * (shares.height - 1) + rows) + taps
    each = copies(f, shares) * copy + (read + shares.height * (taps + store)) * f.again
    if f.form == "plane":
        whole = not f.rows % (shares.down * shares.height) and not f.columns % shares.across
        each = (each + (0 if whole else shares.height * taps)) * blocks(f, shares) + taps * store
    count = groups(f, shares)
    waiting = ceil(count / target.units) * target.units / count
    crowded = max(1.0, tile_size(f, shares) * f.itemsize / (waves * facts.declared.local_per_wave))
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
