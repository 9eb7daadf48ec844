"""Window + WindowPlan -> loop IR. The nests are those in window.py."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.ir.nodes import Alloc, Function, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate, accumulate_product
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.codegen.patterns.recognise_phases import expected_window
from minigrad.codegen.patterns.recognise_window import MAX_TAPS, Phase, Rows
from minigrad.codegen.plan.other_plans import WindowPlan
from minigrad.codegen.policy.blocking import is_plain
from minigrad.codegen.policy.window import CHAINS
from minigrad.codegen.strategies.window_builder import WindowBuilder
from minigrad.errors import present
from minigrad.expr import Index, Var, coefficient, subs
from minigrad.value import (
    Value,
    const,
    guard,
    indices_of,
    load,
    local,
    substitute,
    value_atoms,
    walk,
)

LIGHT = 6
"""Operations of an epilogue that is written out for each register; a longer one loops over the tile in memory."""

MANY_TAPS = 2
"""Columns of taps from which on they are a loop."""


def build_window(kernel: Kernel, nests: Sequence[Nest], plan: WindowPlan, name: str) -> Function:
    """The loop nest of several phases of a window."""
    return TapsBuilder(kernel, expected_window(nests, plan), plan).function(name)


def apart(items: list[int], step: int) -> list[int]:
    """Every `step`-th item, then those after them: neighbours add to the same sums, which takes its time."""
    return [i for start in range(step) for i in items[start::step]]


@dataclass(frozen=True, slots=True)
class Ahead:
    """Prefetches in `count` portions."""

    count: int
    portion: Callable[[Index], list[Stmt]]

    def shared(self, parts: int) -> tuple[list[Stmt], Callable[[Index], list[Stmt]]]:
        """The statements that come first, and those of each of so many parts of a loop: all of it, where that comes out
        about even."""
        share = -(-self.count // parts)
        if parts > 1 and share * parts * 4 <= self.count * 5:
            return [], lambda part: [s for k in range(share) for s in self.portion(part * share + k)]
        return [s for k in range(self.count) for s in self.portion(k)], lambda part: []


NOTHING = Ahead(0, lambda portion: [])


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of phase `number`: rows of them, how many columns and the position of the first, the other factor by row
    and column. Numbers may depend on a loop over phases."""

    number: Index
    rows: tuple[int, ...]
    count: Index
    offset: Index
    dilation: int
    weight: Callable[[int, Index], Value | None] | None


def between(values: Sequence[Index], number: Index) -> Index | None:
    """An expression of values[number]; None where they do not step evenly, by a constant."""
    step = values[1] - values[0]
    if not isinstance(step, int) or any(b - a != step for a, b in zip(values, values[1:], strict=False)):
        return None
    return values[0] + step * number


class TapsBuilder(WindowBuilder):
    """Register tiles of outputs: each staged vector is read once per column of taps and used for all rows it meets."""

    def plane(self, at: dict[Var, Index], band: Index, again: list[Var]) -> list[Stmt]:
        staged = self.names.lanes(self.plan.width, lambda lane: self.stage(at, band, lane))
        loops = [self.names.fresh(v.name, v.hi) for v in again]
        inside = {**at, **dict(zip(again, loops, strict=True))}
        weights: dict[Phase, str] = {}
        allocated: list[Stmt] = []
        body: list[Stmt] = []
        for group in self.window.groups:
            for phase in group.phases:
                if phase.other is not None and not is_plain(phase.other):
                    name = weights[phase] = self.names.name("w")
                    count = len(phase.rows.taps) * len(phase.columns.taps)
                    allocated.append(Alloc(name, self.dtype, -(-count // self.plan.width) * self.plan.width, "scratch"))
                    body += self.weights(name, phase, inside)
        for group in self.window.groups:
            out = self.names.name("out") if self.through_memory(group) else ""
            if out:
                size = self.plan.height * self.staging.vectors * self.plan.width * len(group.phases)
                allocated.append(Alloc(out, self.dtype, size + self.plan.width, "scratch"))
            body += self.tiles(group.phases[0].rows.length, band,
                               lambda first, rows: self.rows(  # noqa: B023
                                   group, weights, out, inside, band, first, rows))  # noqa: B023
        for v, x in reversed(list(zip(again, loops, strict=True))):
            body = [Loop(x, 0, v.hi + 1, "serial", tuple(body))]
        return [*allocated, staged, *body]

    def through_memory(self, group: Rows) -> bool:
        """True where sums go through memory before the epilogue."""
        if len(group.phases) > 1:
            return True
        heavy = [v for s in group.outputs for v in walk(s.value) if v.op not in ("const", "local", "load", "index")]
        return len(heavy) > LIGHT

    def weights(self, name: str, phase: Phase, at: dict[Var, Index]) -> list[Stmt]:
        """The taps' weights side by side, in whole vectors where they are so already."""
        rows, columns = phase.rows, phase.columns
        count = len(rows.taps) * len(columns.taps)
        value = substitute(present(phase.other, "[build] expected weights of a window's taps"), at)
        run = self.run_of(value, rows.tap, columns.tap)
        if run is None:
            made: list[Stmt] = []
            for k in range(count):
                taps = {rows.tap: k // len(columns.taps), columns.tap: k % len(columns.taps)}
                here = substitute(value, {v: i for v, i in taps.items() if v is not None})
                made.append(Store(name, k, here))
            return made
        blocks = -(-count // self.plan.width)

        def body(lane: Var) -> list[Stmt]:
            return [Store(name, b * self.plan.width + lane,
                          guard(run(b * self.plan.width + lane), const(0, self.dtype),
                                (count - 1 - b * self.plan.width - lane,))) for b in range(blocks)]

        return [self.names.lanes(self.plan.width, body)]

    def run_of(self, value: Value, row: Var | None, column: Var | None):  # noqa: ANN202
        """The value by the number of the tap, if it reads memory in that order."""
        last = column if column is not None else row
        if last is None:
            return None
        for e in (e for v in walk(value) for e in indices_of(v)):
            b = coefficient(e, last)
            a = coefficient(e, row) if row is not None else None
            if b != 1 or (row is not None and row is not last and a != extent(last)):
                return None
        zero: dict[Var, Index] = {v: 0 for v in (row, column) if v is not None}
        return lambda place: substitute(value, {**zero, last: place})

    def rows(self, group: Rows, weights: dict[Phase, str], out: str, at: dict[Var, Index], band: Index, first: Index,
             rows: int) -> list[Stmt]:
        """`rows` output rows from `first` of the band on, in tiles of vectors."""
        image = band * (self.plan.band * self.plan.height) + first
        number = Var(self.names.name("phase"), 0, len(group.phases) - 1)
        together, outputs = self.together(group, weights, at, number), self.outputs(group, at)
        if together is not None:
            made = self.tiled(group, together, out, outputs, image, first, rows)
            return [Loop(number, 0, len(group.phases), "serial", tuple(made)),
                    *self.sweep(group, out, outputs, image, rows)]
        made = []
        for k, phase in enumerate(group.phases):
            made += self.tiled(group, self.taps(k, phase, weights.get(phase, ""), at), out, outputs, image, first, rows)
        return made + self.sweep(group, out, outputs, image, rows) if out else made

    def taps(self, number: int, phase: Phase, copied: str, at: dict[Var, Index]) -> Taps:
        """The taps of one phase."""
        columns = phase.columns
        return Taps(number, phase.rows.taps, len(columns.taps), columns.offset, columns.dilation,
                    partial(self.weight, phase, copied, at) if phase.other is not None else None)

    def together(self, group: Rows, weights: dict[Phase, str], at: dict[Var, Index], number: Var) -> Taps | None:
        """The taps of all phases in a loop, where they differ in nothing but how many columns there are and where; not
        where tiles are small or a phase has a single column, which are faster by themselves."""
        phases = [self.taps(k, p, "", at) for k, p in enumerate(group.phases)]
        kinds = {(t.rows, t.dilation, t.weight is None, ceil_div(p.columns.length, self.plan.width))
                 for t, p in zip(phases, group.phases, strict=True)}
        if len(phases) == 1 or len(kinds) > 1 or any(p in weights for p in group.phases) \
                or any(t.count == 1 for t in phases) or self.plan.height * self.plan.vectors < CHAINS:
            return None
        count, offset = (between(e, number) for e in ([t.count for t in phases], [t.offset for t in phases]))
        if count is None or offset is None:
            return None
        made = Taps(number, phases[0].rows, count, offset, phases[0].dilation, None)
        if phases[0].weight is None:
            return made
        column = Var("tap", 0, MAX_TAPS)
        if any(self.weight_of_any(phases, number, u, column) is None for u in range(len(made.rows))):
            return None
        return replace(made, weight=partial(self.weight_of_any, phases, number))

    def weight_of_any(self, phases: list[Taps], number: Var, row: int, column: Index) -> Value | None:
        """The other factor at a tap of phase `number`: one load for all; None where it is not."""
        loads = [v for t in phases if t.weight is not None for v in [t.weight(row, column)] if v is not None]
        place = between([v.indices[0] for v in loads], number)
        if place is None or len({v.buffer for v in loads}) > 1:
            return None
        return load(loads[0].buffer, (place,), self.dtype)

    def tiled(self, group: Rows, taps: Taps, out: str, outputs: tuple[Store, ...], image: Index, first: Index, rows: int
              ) -> list[Stmt]:
        """The tiles of some rows of a phase."""
        plan, length = self.plan, max(p.columns.length for p in group.phases)

        def tile(j: Index, count: int) -> list[Stmt]:
            def body(lane: Var) -> list[Stmt]:
                acc = self.names.name("acc")
                ahead = self.announce(group, outputs[0], image, rows, j, count) if not out else NOTHING
                made = self.sums(acc, taps, first, rows, j, count, lane, ahead)
                for r in range(rows):
                    for v in range(count):
                        total = load(acc, (r * count + v,), self.dtype)
                        column = (j + v) * plan.width + lane
                        if out:
                            place = (taps.number * plan.height + r) * self.staging.vectors * plan.width
                            made.append(Store(out, place + column, total))
                            continue
                        here = self.place(group, image + r, column)
                        made += self.stores(outputs, group.phases[0].name, here, total, (length - 1 - column,))
                return made

            return [self.names.lanes(plan.width, body)]

        made: list[Stmt] = []
        whole, rest = divmod(ceil_div(length, plan.width), plan.vectors)
        if whole:
            made += self.names.serial("j", whole, lambda j: tile(j * plan.vectors, plan.vectors))
        if rest:
            made += tile(whole * plan.vectors, rest)
        return made

    def place(self, group: Rows, row: Index, column: Index) -> dict[Var, Index]:
        """The place of an output of a plane."""
        return {group.column: column} if group.row is None else {group.column: column, group.row: row}

    def announce(self, group: Rows, s: Store, image: Index, rows: int, j: Index, count: int) -> Ahead:
        """Prefetches of what is written a page after a tile: its lines arrive while sums are computed."""
        line = LINE // s.value.dtype.itemsize
        if value_atoms(s.offset):
            return NOTHING
        length, columns = group.phases[0].columns.length, count * self.plan.width

        def place(row: Index, column: Index) -> Stmt:
            here = self.place(group, image + row, column)
            return Prefetch(s.buffer, subs(s.offset, here) + PAGE // s.value.dtype.itemsize)

        pitch = coefficient(s.offset, group.row) if group.row is not None else length
        if pitch == length and columns >= length:
            return Ahead(-(-rows * length // line), lambda k: [place(0, k * line)])
        return Ahead(rows, lambda r: [place(r, j * self.plan.width + k) for k in range(0, columns, line)])

    def weight(self, phase: Phase, copied: str, at: dict[Var, Index], row: int, column: Index) -> Value:
        """The other factor at a tap."""
        if copied:
            return load(copied, (row * len(phase.columns.taps) + column,), self.dtype)
        taps: dict[Var | None, Index] = {phase.rows.tap: row, phase.columns.tap: column}
        other = present(phase.other, "[build] expected weights of a window's taps")
        return substitute(other, {**at, **{v: i for v, i in taps.items() if v is not None}})

    def sums(self, acc: str, taps: Taps, first: Index, rows: int, j: Index, count: int, lane: Var, ahead: Ahead
             ) -> list[Stmt]:
        """The accumulators of a tile: by columns of taps, whose weights stay in registers while staged rows pass."""
        monoid, stride = MONOIDS[self.window.monoid], self.staging.row_stride
        made: list[Stmt] = [Alloc(acc, self.dtype, rows * count, "register")]
        made += [Store(acc, k, monoid.init(self.dtype)) for k in range(rows * count)]
        sums = [load(acc, (k,), self.dtype) for k in range(rows * count)]
        meets: dict[int, list[tuple[int, int]]] = {}
        row_taps = [t - self.staging.first_row for t in taps.rows]
        for u, t in enumerate(row_taps):
            for r in range(rows):
                meets.setdefault(stride * r + t, []).append((r, u))
        staged = apart(sorted(meets), -(-len(row_taps) // stride))

        def column(c: Index) -> list[Stmt]:
            """The sums of one column of taps."""
            made: list[Stmt] = []
            known: list[Value] = []
            for u in range(len(row_taps)):
                weight = taps.weight(u, c) if taps.weight is not None else None
                if weight is not None:
                    let = self.names.name("w")
                    made.append(Let(let, weight))
                    known.append(local(let, self.dtype))
            start = self.staging.place(stride * first, taps.dilation * c + taps.offset, j, lane)
            for i in staged:
                for v in range(count):
                    let = self.names.name("x")
                    x = local(let, self.dtype)
                    made.append(Let(let, self.staging.at(start, i, v)))
                    for r, u in meets[i]:
                        slot = r * count + v
                        total = accumulate_product(monoid, sums[slot], x, known[u]) if known else \
                            accumulate(monoid, sums[slot], x)
                        made.append(Store(acc, slot, total))
            return made

        if not isinstance(taps.count, int):
            return made + self.names.serial("c", taps.count, column)
        large = rows * count >= CHAINS  # smaller ones wait for where columns are, and for short loops
        together = 1 if large and self.staging.shifts_evenly() else self.staging.stride
        whole = taps.count // together if taps.count >= (MANY_TAPS if large else MANY_TAPS + 1) else 0
        before, share = ahead.shared(max(whole, 1))
        made = before + made
        if whole:
            made += self.names.serial("c", whole, lambda c: [
                *share(c), *(s for k in range(together) for s in column(together * c + k))])
        return made + [s for c in range(whole * together, taps.count) for s in column(c)]

    def sweep(self, group: Rows, out: str, outputs: tuple[Store, ...], image: Index, rows: int) -> list[Stmt]:
        """The epilogue over a tile of whole rows in memory, phases interleaved."""
        plan, many = self.plan, len(group.phases)
        length = sum(p.columns.length for p in group.phases)
        pitch = self.staging.vectors * plan.width

        def body(lane: Var) -> list[Stmt]:
            def vector(r: Index, b: Index) -> list[Stmt]:
                column = b * plan.width + lane
                place = r * pitch + column // many + column % many * (plan.height * pitch)
                here, total = self.place(group, image + r, column), load(out, (place,), self.dtype)
                return self.stores(outputs, group.phases[0].name, here, total, (length - 1 - column,))

            def row(r: Index) -> list[Stmt]:
                blocks, tail = divmod(length, plan.width)
                made = self.names.serial("b", blocks, lambda b: vector(r, b)) if blocks else []
                return made + (vector(r, blocks) if tail else [])

            return self.names.serial("r", rows, row)

        return [self.names.lanes(plan.width, body)]
