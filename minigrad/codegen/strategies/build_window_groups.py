"""Window + GroupWindowPlan -> loop IR. The nests are those in window_groups.py."""
from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from minigrad.codegen.ir.launch import ceil_div, function_of, places_of
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt, Store
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate, accumulate_product
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise_phases import expected_window
from minigrad.codegen.patterns.recognise_window import Axis, Phase, Rows, Window
from minigrad.codegen.plan.other_plans import GroupWindowPlan
from minigrad.codegen.policy.window_groups import (
    Shares,
    copies_weights,
    figures,
    lengths,
    own_planes,
    padded_tile,
    taps_of,
)
from minigrad.codegen.strategies.loop_names import LoopNames
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds, product
from minigrad.value import Value, binary, const, guard, load, substitute

MAX_TURNS = 8
"""Copies of a work-item to local memory that are written out, so that all of them are on their way at once."""


def build_window_groups(kernel: Kernel, nests: Sequence[Nest], plan: GroupWindowPlan, name: str) -> Function:
    """The loop nest of a window by work-groups, which is one nest or several phases."""
    window = expected_window(nests, plan)
    builder = TapsBuilder if window.form == "taps" else PlaneBuilder
    return builder(kernel, window, plan).function(name)


def counted(variables: Sequence[Var], place: Index) -> dict[Var, Index]:
    """The value of each variable at a place in row-major order; beyond the last one, the outermost is too large."""
    return dict(zip(variables, places_of(place, [v.hi + 1 for v in variables]), strict=True))


class GroupBuilder:
    """The base of both forms: the tile, who has which place of it, staging. `deep`, `down` and `across` are the place
    of the work-item `item`."""

    def __init__(self, kernel: Kernel, window: Window, plan: GroupWindowPlan):
        self.kernel, self.window, self.plan = kernel, window, plan
        self.names = LoopNames()
        self.dtype = window.value.dtype
        shares = Shares(plan.deep, plan.down, plan.across, plan.height)
        self.tile, self.items = padded_tile(figures(window), shares), shares.items
        self.item = Var("t", 0, self.items - 1)
        self.deep: Index = self.item // (plan.down * plan.across)
        self.down: Index = self.item // plan.across % plan.down
        self.across: Index = self.item % plan.across
        rows, columns = lengths(window)
        self.tiles_down, self.tiles_across = ceil(rows / (plan.down * plan.height)), ceil(columns / plan.across)
        self.row_stride, self.stride = window.phase.rows.stride, window.phase.columns.stride

    def function(self, name: str) -> Function:
        raise NotImplementedError

    # ---- local memory ----

    def in_turn(self, stem: str, count: int, body) -> Loop:  # noqa: ANN001
        """`body(place, conditions)` for `count` places, which the work-items take in turn."""
        turns = ceil(count / self.items)
        turn = self.names.fresh(stem, turns - 1)
        place = turn * self.items + self.item
        conditions = (count - 1 - place,) if count % self.items else ()
        return Loop(turn, 0, turns, "unroll" if turns <= MAX_TURNS else "serial", (body(place, conditions),))

    def stage(self, variables: tuple[Var, ...], first: Index, at: dict[Var, Index], row: Index, column: Index) -> Loop:
        """The positions of a tile to local memory: of `deep` places along some variables from `first` on, of rows and
        columns of the image from `row` and `column` on."""
        tile = self.tile

        def copy(place: Index, conditions: tuple[Index, ...]) -> Store:
            c, r, d = place % tile.columns, place // tile.columns % tile.rows, place // (tile.columns * tile.rows)
            to = d * tile.plane + r * tile.pitch + c // self.stride
            if self.stride > 1:
                to = to + c % self.stride * tile.segment
            return Store("x_tile", to, self.position(variables, first + d, at, row * self.row_stride + r,
                                                     column * self.stride + c), conditions)

        return self.in_turn("c", self.plan.deep * tile.rows * tile.columns, copy)

    def position(self, variables: tuple[Var, ...], number: Index, at: dict[Var, Index], row: Index, column: Index
                 ) -> Value:
        """X some positions after the first; beyond the last of anything something that no output is made of."""
        window = self.window
        (first_row, last_row), (first_column, last_column) = bounds(window.row), bounds(window.column)
        here = {**at, **counted(variables, number), window.row: first_row + row, window.column: first_column + column}
        value = substitute(window.value, here)
        limits = (*self.inside(variables, number), last_row - first_row - row, last_column - first_column - column)
        otherwise, conditions = const(0, self.dtype), tuple(c for c in limits if bounds(c)[0] < 0)
        if value.op == "guard":
            (value, otherwise), conditions = value.args, (*value.conditions, *conditions)
        return guard(value, otherwise, conditions)

    def inside(self, variables: tuple[Var, ...], number: Index) -> tuple[Index, ...]:
        """The condition that there is such a place along some variables, if it is not certain."""
        count = product(v.hi + 1 for v in variables)
        whole = isinstance(count, int) and count % self.plan.deep == 0
        return () if whole else (count - 1 - number,)

    def staged(self, phase: Phase, r: Index, u: Index, c: Index) -> Value:
        """The position that tap (u, c) of row `r` of the work-item's column meets."""
        down, across = phase.rows, phase.columns
        row = self.row_stride * (self.down * self.plan.height + r) + tap_of(down, u) - bounds(self.window.row)[0]
        offset = tap_of(across, c) - bounds(self.window.column)[0]
        place = self.deep * self.tile.plane + row * self.tile.pitch + self.across + offset // self.stride
        if self.stride > 1:
            place = place + offset % self.stride * self.tile.segment
        return load("x_tile", (place,), self.dtype)

    def for_taps(self, phase: Phase, body) -> Loop:  # noqa: ANN001
        """`body(u, c, r)` written out for all taps and rows of the work-item."""
        u = self.names.fresh("u", len(phase.rows.taps) - 1)
        c, r = self.names.fresh("v", len(phase.columns.taps) - 1), self.names.fresh("r", self.plan.height - 1)
        inner = Loop(r, 0, self.plan.height, "unroll", (body(u, c, r),))
        inner = Loop(u, 0, len(phase.rows.taps), "unroll", (inner,))
        return Loop(c, 0, len(phase.columns.taps), "unroll", (inner,))

    def beyond(self, phase: Phase, row: Index, column: Index) -> tuple[Index, ...]:
        """The conditions that a place of the image exists, as far as they are not certain."""
        conditions: tuple[Index, ...] = ()
        if phase.rows.length % (self.plan.down * self.plan.height):
            conditions += (phase.rows.length - 1 - row,)
        if phase.columns.length % self.plan.across:
            conditions += (phase.columns.length - 1 - column,)
        return conditions

    def stores(self, group: Rows, at: dict[Var, Index], total: Value, conditions: tuple[Index, ...]) -> list[Store]:
        """The nest's stores at one place, its sum being `total`."""
        here = Rewriter(at, locals_={group.phases[0].name: total})
        return [Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in group.outputs]


def tap_of(axis: Axis, tap: Index) -> Index:
    """The position of a tap at image 0."""
    return axis.dilation * tap + axis.offset


class TapsBuilder(GroupBuilder):
    """Outputs of a group: `deep` planes, down * height rows, `across` columns."""

    def function(self, name: str) -> Function:
        plan, window = self.plan, self.window
        own = own_planes(window)
        again = tuple(v for v in window.planes if v not in own)
        tiles = self.tiles_down * self.tiles_across
        total = ceil_div(product(v.hi + 1 for v in own), plan.deep) * tiles
        g = Var("g", 0, total - 1)
        first = g // tiles * plan.deep
        row, column = g // self.tiles_across % self.tiles_down * (plan.down * plan.height), \
            g % self.tiles_across * plan.across
        shared: list[Stmt] = [Alloc("x_tile", self.dtype, self.tile.elements, "local")]
        body: list[Stmt] = [self.stage(own, first, {}, row, column)]
        copied = copies_weights(window, plan.deep)
        repeats = figures(window).again
        if copied:
            for k, phase in enumerate(window.phases):
                shared.append(Alloc(f"w_{k}", self.dtype, plan.deep * repeats * taps_of(phase), "local"))
                body.append(self.stage_weights(k, phase, own, again, repeats, first))
        body.append(Barrier())
        loop = Var("again", 0, repeats - 1)
        at = {**counted(own, first + self.deep), **counted(again, loop if repeats != 1 else 0)}
        inside = self.inside(own, first + self.deep)
        place = (self.deep * repeats + loop if repeats != 1 else self.deep) if copied else None
        sums = [s for k, group in enumerate(window.groups)
                for s in self.rows(group, k * len(group.phases), at, place, inside, row, column)]
        body += sums if repeats == 1 else [Loop(loop, 0, repeats, "serial", tuple(sums))]
        items = Loop(self.item, 0, self.items, "item", tuple(body))
        return function_of(self.kernel, name, Loop(g, 0, total, "group", (*shared, items)))

    def stage_weights(self, number: int, phase: Phase, own: tuple[Var, ...], again: tuple[Var, ...], repeats: int,
                      first: Index) -> Loop:
        """The taps' weights of the group's planes side by side."""
        other, taps = present(phase.other, "[build] expected weights of a window's taps"), taps_of(phase)

        def copy(place: Index, conditions: tuple[Index, ...]) -> Store:
            plane = first + place // (taps * repeats)
            here = {**counted(own, plane), **counted(again, place // taps % repeats), **at_tap(phase, place % taps)}
            value = guard(substitute(other, here), const(0, self.dtype), self.inside(own, plane))
            return Store(f"w_{number}", place, value, conditions)

        return self.in_turn("d", self.plan.deep * repeats * taps, copy)

    def rows(self, group: Rows, number: int, at: dict[Var, Index], place: Index | None, inside: tuple[Index, ...],
             row: Index, column: Index) -> list[Stmt]:
        """The sums and stores of output rows: of one phase, or of several whose columns interleave."""
        plan, made = self.plan, list[Stmt]()
        monoid = MONOIDS[self.window.monoid]
        many = len(group.phases)
        for k, phase in enumerate(group.phases):
            acc = self.names.name("acc")
            start, r = self.names.fresh("r", plan.height - 1), self.names.fresh("r", plan.height - 1)

            def term(u: Index, c: Index, r: Index) -> Store:
                old, x = load(acc, (r,), self.dtype), self.staged(phase, r, u, c)  # noqa: B023
                if phase.other is None:  # noqa: B023
                    return Store(acc, r, accumulate(monoid, old, x))  # noqa: B023
                tap = u * len(phase.columns.taps) + c  # noqa: B023
                if place is None:
                    weight = substitute(phase.other, {**at, **at_tap(phase, tap, u, c)})  # noqa: B023
                else:
                    weight = load(f"w_{number + k}", (place * taps_of(phase) + tap,), self.dtype)  # noqa: B023
                return Store(acc, r, accumulate_product(monoid, old, x, weight))  # noqa: B023

            across, down = column + self.across, row + self.down * plan.height + r
            here: dict[Var, Index] = {**at, group.column: across * many + k if many > 1 else across}
            if group.row is not None:
                here[group.row] = down
            stores = self.stores(group, here, load(acc, (r,), self.dtype), (*inside, *self.beyond(phase, down, across)))
            made += [Alloc(acc, self.dtype, plan.height, "register"),
                     Loop(start, 0, plan.height, "unroll", (Store(acc, start, monoid.init(self.dtype)),)),
                     self.for_taps(phase, term), Loop(r, 0, plan.height, "unroll", tuple(stores))]
        return made


def at_tap(phase: Phase, tap: Index, u: Index | None = None, c: Index | None = None) -> dict[Var, Index]:
    """The variables of a tap, by its number or by both of its places."""
    columns = len(phase.columns.taps)
    places = ((phase.rows.tap, tap // columns if u is None else u),
              (phase.columns.tap, tap % columns if c is None else c))
    return {v: i for v, i in places if v is not None}


class PlaneBuilder(GroupBuilder):
    """A tap's output in each round of work-items; the planes are summed."""

    def function(self, name: str) -> Function:
        plan, window, phase = self.plan, self.window, self.window.phase
        count = taps_of(phase)
        total = product(v.hi + 1 for v in window.planes)
        g = Var("g", 0, total - 1)
        at = counted(window.planes, g)
        tiles = self.tiles_down * self.tiles_across
        blocks = ceil_div(product(v.hi + 1 for v in window.extra), plan.deep) * tiles
        q, k = Var("q", 0, blocks - 1), Var("k", 0, count - 1)
        size = max(self.tile.elements, self.items + 1)
        body = (Alloc("acc", self.dtype, count, "register"),
                Loop(k, 0, count, "unroll", (Store("acc", k, const(0, self.dtype)),)),
                Loop(q, 0, blocks, "serial", tuple(self.block(q, tiles, at))), *self.join(at, count, size))
        items = Loop(self.item, 0, self.items, "item", body)
        return function_of(self.kernel, name,
                           Loop(g, 0, total, "group", (Alloc("x_tile", self.dtype, size, "local"), items)))

    def block(self, q: Index, tiles: int, at: dict[Var, Index]) -> list[Stmt]:
        """Adds a tile of `deep` places of the sums around the plane to the accumulators."""
        plan, window, phase = self.plan, self.window, self.window.phase
        first = q // tiles * plan.deep
        row = q // self.tiles_across % self.tiles_down * (plan.down * plan.height)
        column = q % self.tiles_across * plan.across
        i = self.names.fresh("r", plan.height - 1)
        other = self.other(at, first, row + self.down * plan.height + i, column + self.across)
        columns = len(phase.columns.taps)

        def term(u: Index, c: Index, r: Index) -> Store:
            old = load("acc", (u * columns + c,), self.dtype)
            outside = self.beyond(phase, row + self.down * plan.height + r, column + self.across)
            # What is outside counts as 0: times A, which is 0 there, it might be no number.
            x = guard(self.staged(phase, r, u, c), const(0, self.dtype), outside)
            return Store("acc", u * columns + c,
                         accumulate_product(MONOIDS["sum"], old, x, load("a", (r,), self.dtype)))

        return [self.stage(window.extra, first, at, row, column), Alloc("a", self.dtype, plan.height, "register"),
                Loop(i, 0, plan.height, "unroll", (Store("a", i, other),)), Barrier(),
                self.for_taps(phase, term), Barrier()]

    def other(self, at: dict[Var, Index], first: Index, row: Index, column: Index) -> Value:
        """A at a place of the image, 0 outside."""
        window, phase = self.window, self.window.phase
        other = present(phase.other, "[build] expected a gradient of a window")
        image = present(phase.columns.image, "[build] expected columns of an image")
        number = first + self.deep
        here = {**at, **counted(window.extra, number), image: column}
        if phase.rows.image is not None:
            here[phase.rows.image] = row
        conditions = (*self.inside(window.extra, number), *self.beyond(phase, row, column))
        return guard(substitute(other, here), const(0, self.dtype), conditions)

    def join(self, at: dict[Var, Index], count: int, size: int) -> list[Stmt]:
        """Adds up what the work-items have of each tap, as many taps at a time as the tile's memory has room for, and
        stores the outputs: parts of a tap's sums by several work-items first, then these."""
        pitch = self.items + 1
        at_once = min(count, size // pitch)
        made: list[Stmt] = []
        for first in range(0, count, at_once):
            taps = min(at_once, count - first)
            made += self.join_taps(at, first, taps, pitch)
            if first + taps < count:
                made.append(Barrier())
        return made

    def join_taps(self, at: dict[Var, Index], first: int, taps: int, pitch: int) -> list[Stmt]:
        sharing = 1 << (self.items // taps).bit_length() - 1  # work-items of a tap
        sharing = min(sharing, 1 << ((self.items - 1).bit_length() // 2))
        rounds = ceil(self.items / sharing)
        zero = const(0, self.dtype)
        k, i = self.names.fresh("k", taps - 1), self.names.fresh("i", rounds - 1)
        part, total = self.names.name("part"), self.names.name("total")
        tap, place = self.item // sharing, i * sharing + self.item % sharing
        outside: tuple[Index, ...] = (taps - 1 - tap,) if taps * sharing < self.items else ()
        if self.items % sharing:
            outside += (self.items - 1 - place,)
        mine = guard(load("x_tile", (tap * pitch + place,), self.dtype), zero, outside)
        j = self.names.fresh("j", sharing - 1)
        last = tuple(c for c in (taps - 1 - self.item,) if bounds(c)[0] < 0)
        of_tap = guard(load("x_tile", (self.item * sharing + j,), self.dtype), zero, last)

        def summed(name: str, loop: Var, count: int, value: Value) -> list[Stmt]:
            old = load(name, (0,), self.dtype)
            return [Alloc(name, self.dtype, 1, "register"), Store(name, 0, zero),
                    Loop(loop, 0, count, "serial", (Store(name, 0, binary("add", old, value)),))]

        here = {**at, **at_tap(self.window.phase, first + self.item)}
        stores = self.stores(self.window.groups[0], here, load(total, (0,), self.dtype), last)
        return [Loop(k, 0, taps, "unroll", (Store("x_tile", k * pitch + self.item,
                                                  load("acc", (first + k,), self.dtype)),)), Barrier(),
                *summed(part, i, rounds, mine), Barrier(),
                Store("x_tile", self.item, load(part, (0,), self.dtype)), Barrier(),
                *summed(total, j, sharing, of_tap), *stores]
