"""Window + WindowPlan -> loop IR. The nests are those in window.py."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Function, If, Let, Loop, ScalarParam, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.build import accumulate
from minigrad.codegen.strategies.plan import WindowPlan
from minigrad.codegen.strategies.recognise_phases import recognise_any
from minigrad.codegen.strategies.recognise_window import Axis, Phase, Rows, Window
from minigrad.codegen.strategies.stage_window import Names, Staging
from minigrad.codegen.value_walk import Rewriter
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emax, emin, product
from minigrad.value import (
    Value,
    across,
    binary,
    const,
    free_variables,
    guard,
    indices_of,
    load,
    local,
    substitute,
    walk,
)

LIGHT = 6
"""Operations of an epilogue that is written out for each register; a longer one loops over the tile in memory."""

MANY_TAPS = 3
"""Columns of taps from which on they are a loop, without a stride: its body is long enough."""


def build_window(kernel: Kernel, nests: Sequence[Nest], plan: WindowPlan, name: str) -> Function:
    """The loop nest of a window, which is one nest or several phases."""
    window = recognise_any(nests)
    if isinstance(window, str):
        raise InternalError(f"[build] expected a window for {plan}, got: {window}")
    builder = TapsBuilder if window.form == "taps" else PlaneBuilder
    return builder(kernel, window, plan).function(name)


def apart(items: list[int], step: int) -> list[int]:
    """Every `step`-th item, then those after them: neighbours add to the same sums, which takes its time."""
    return [i for start in range(step) for i in items[start::step]]


class WindowBuilder:
    """What both forms share: the parallel loop over planes, staging, and tiles of rows."""

    def __init__(self, kernel: Kernel, window: Window, plan: WindowPlan):
        self.kernel, self.window, self.plan = kernel, window, plan
        self.names = Names()
        self.staging = Staging(window, plan, self.names)
        self.dtype = window.value.dtype
        tiles = max(-(-g.phases[0].rows.length // plan.height) for g in window.groups)
        self.bands = -(-tiles // plan.band)

    def function(self, name: str) -> Function:
        used = free_variables(self.window.value) if self.window.form == "taps" else frozenset(self.window.planes)
        own = [v for v in self.window.planes if v in used]
        bands = self.bands if self.window.form == "taps" else 1
        total = product([*(v.hi + 1 for v in own), bands])
        p = Var("p", 0, total - 1)
        at: dict[Var, Index] = {}
        after: Index = bands
        for v in reversed(own):
            tile = p // after
            at[v] = tile % (v.hi + 1) if v is not own[0] and v.hi != -1 else tile
            after = after * (v.hi + 1)
        body = self.plane(at, p % bands, [v for v in self.window.planes if v not in used])
        buffers = tuple(BufferParam(b.name, b.dtype, b.shape[0], b.mode) for b in self.kernel.params)
        scalars = tuple(ScalarParam(s.name, s.dtype) for s in self.kernel.scalars)
        loop = Loop(p, 0, total, "parallel", (*self.staging.allocate(), *body))
        return Function(name, buffers, scalars, self.kernel.dims, (loop,))

    def plane(self, at: dict[Var, Index], band: Index, again: list[Var]) -> list[Stmt]:
        raise NotImplementedError

    def stage(self, at: dict[Var, Index], band: Index, lane: Var) -> list[Stmt]:
        """The positions that a band of tiles reads."""
        first = band * (self.plan.band * self.plan.height * self.staging.row_stride)
        count = self.staging.rows
        left = self.staging.all_rows - first
        return self.staging.stage(at, first, count if bounds(left)[0] >= count else emin(count, left), lane)

    def tiles(self, axis: Axis, band: Index, body) -> list[Stmt]:  # noqa: ANN001
        """body(first row in the band, rows) for the tiles of a band; the last tile of all may be shorter."""
        height, most = self.plan.height, self.plan.band
        whole, rest = divmod(axis.length, height)
        left = whole - band * most
        made: list[Stmt] = []
        if whole:
            count: Index = most if bounds(left)[0] >= most else emax(emin(most, left), 0)
            made += self.names.serial("t", count, lambda t: body(t * height, height))
        if rest:
            at = whole // most
            conditions = tuple(c for c in (band - at, at - band) if bounds(c)[0] < 0)
            last = body(whole % most * height, rest)
            made += [If(conditions, tuple(last))] if conditions else last
        return made

    def stores(self, group: Rows, at: dict[Var, Index], total: Value, conditions: tuple[Index, ...] = ()) -> list[Stmt]:
        """The nest's stores at one place, its sum being `total`."""
        here = Rewriter(at, locals_={group.phases[0].name: total})
        left = tuple(c for c in conditions if bounds(c)[0] < 0)
        return [Store(s.param, here.index(s.indices[0]), here.value(s.value), left) for s in group.outputs]


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
                if phase.other is not None:
                    name = weights[phase] = self.names.name("w")
                    count = len(phase.rows.taps) * len(phase.columns.taps)
                    allocated.append(Alloc(name, self.dtype, -(-count // self.plan.width) * self.plan.width, "scratch"))
                    body += self.weights(name, phase, inside)
        for group in self.window.groups:
            out = self.names.name("out") if self.through_memory(group) else ""
            if out:
                size = self.plan.height * self.staging.vectors * self.plan.width * len(group.phases)
                allocated.append(Alloc(out, self.dtype, size + self.plan.width, "scratch"))
            body += self.tiles(group.phases[0].rows, band,
                               lambda first, rows: self.rows(  # noqa: B023
                                   group, weights, out, inside, band, first, rows))  # noqa: B023
        for v, x in reversed(list(zip(again, loops, strict=True))):
            body = [Loop(x, 0, v.hi + 1, "serial", tuple(body))]
        return [*allocated, staged, *body]

    def through_memory(self, group: Rows) -> bool:
        """Whether sums go through memory before the epilogue."""
        if len(group.phases) > 1:
            return True
        heavy = [v for s in group.outputs for v in walk(s.value) if v.op not in ("const", "local", "load", "index")]
        return len(heavy) > LIGHT

    def weights(self, name: str, phase: Phase, at: dict[Var, Index]) -> list[Stmt]:
        """The taps' weights side by side, in whole vectors where they are so already."""
        rows, columns = phase.rows, phase.columns
        count = len(rows.taps) * len(columns.taps)
        assert phase.other is not None
        value = substitute(phase.other, at)
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
        plan = self.plan
        image = band * (plan.band * plan.height) + first
        made: list[Stmt] = []
        for number, phase in enumerate(group.phases):
            vectors = -(-phase.columns.length // plan.width)

            def tile(j: Index, count: int) -> list[Stmt]:
                def body(lane: Var) -> list[Stmt]:
                    acc = self.names.name("acc")
                    sums = self.sums(acc, phase, weights.get(phase, ""), first, rows, j, count, lane)  # noqa: B023
                    done: list[Stmt] = []
                    for r in range(rows):
                        for v in range(count):
                            total = load(acc, (r * count + v,), self.dtype)
                            column = (j + v) * plan.width + lane
                            if out:
                                place = (number * plan.height + r) * self.staging.vectors * plan.width  # noqa: B023
                                done.append(Store(out, place + column, total))
                                continue
                            here = {**at, group.column: column}
                            if group.row is not None:
                                here[group.row] = image + r
                            done += self.stores(group, here, total, (phase.columns.length - 1 - column,))  # noqa: B023
                    return [*sums, *done]

                return [self.names.lanes(plan.width, body)]

            whole, rest = divmod(vectors, plan.vectors)
            if whole:
                made += self.names.serial("j", whole, lambda j: tile(j * plan.vectors, plan.vectors))  # noqa: B023
            if rest:
                made += tile(whole * plan.vectors, rest)
        return made + self.sweep(group, out, at, image, rows) if out else made

    def sums(self, acc: str, phase: Phase, weights: str, first: Index, rows: int, j: Index, count: int, lane: Var
             ) -> list[Stmt]:
        """The accumulators of a tile: by columns of taps, whose weights stay in registers while staged rows pass."""
        monoid, stride = MONOIDS[self.window.monoid], self.staging.row_stride
        made: list[Stmt] = [Alloc(acc, self.dtype, rows * count, "register")]
        made += [Store(acc, k, monoid.init(self.dtype)) for k in range(rows * count)]
        row_taps = [t - self.staging.first_row for t in phase.rows.taps]

        def column(c: Index) -> list[Stmt]:
            """The sums of one column of taps."""
            made: list[Stmt] = []
            known: dict[int, Value] = {}
            for u in range(len(row_taps)) if weights else ():
                let = self.names.name("w")
                made.append(Let(let, load(weights, (u * taps + c,), self.dtype)))
                known[u] = local(let, self.dtype)
            staged = sorted({stride * r + t for r in range(rows) for t in row_taps})
            for i in apart(staged, -(-len(row_taps) // stride)):
                meets = [(r, u) for u, t in enumerate(row_taps) for r in range(rows) if stride * r + t == i]
                for v in range(count):
                    let = self.names.name("x")
                    position = phase.columns.dilation * c + phase.columns.offset
                    made.append(Let(let, self.staging.at(stride * first + i, position, j + v, lane)))
                    for r, u in meets:
                        slot = r * count + v
                        x = local(let, self.dtype)
                        term = binary("mul", x, known[u]) if weights else x
                        made.append(Store(acc, slot, accumulate(monoid, load(acc, (slot,), self.dtype), term)))
            return made

        taps = len(phase.columns.taps)
        if taps >= MANY_TAPS and self.staging.stride == 1:
            return made + self.names.serial("c", taps, column)
        return made + [s for c in range(taps) for s in column(c)]

    def sweep(self, group: Rows, out: str, at: dict[Var, Index], image: Index, rows: int) -> list[Stmt]:
        """The epilogue over a tile of whole rows in memory, phases interleaved."""
        plan, many = self.plan, len(group.phases)
        length = sum(p.columns.length for p in group.phases)
        pitch = self.staging.vectors * plan.width

        def body(lane: Var) -> list[Stmt]:
            def vector(r: Index, b: Index) -> list[Stmt]:
                column = b * plan.width + lane
                place = r * pitch + column // many + column % many * (plan.height * pitch)
                here = {**at, group.column: column}
                if group.row is not None:
                    here[group.row] = image + r
                return self.stores(group, here, load(out, (place,), self.dtype), (length - 1 - column,))

            def row(r: Index) -> list[Stmt]:
                blocks, tail = divmod(length, plan.width)
                made = self.names.serial("b", blocks, lambda b: vector(r, b)) if blocks else []
                return made + (vector(r, blocks) if tail else [])

            return self.names.serial("r", rows, row)

        return [self.names.lanes(plan.width, body)]


class PlaneBuilder(WindowBuilder):
    """An accumulator per tap, in lanes along columns; joined across lanes at the end."""

    def plane(self, at: dict[Var, Index], band: Index, again: list[Var]) -> list[Stmt]:
        phase = self.window.phase
        self.columns = len(phase.columns.taps)
        count = self.columns * len(phase.rows.taps)
        total = self.names.name("total")

        def body(lane: Var) -> list[Stmt]:
            one = self.plan.passes == 1
            acc = self.names.name("acc")
            made: list[Stmt] = [Alloc(acc, self.dtype, count, "register" if one else "scratch")]
            made += [Store(acc, k, const(0, self.dtype)) for k in range(count)]
            loops = [self.names.fresh(v.name, v.hi) for v in self.window.extra]
            inside = {**at, **dict(zip(self.window.extra, loops, strict=True))}

            def band_body(b: Index) -> list[Stmt]:
                made = self.stage(inside, b, lane)
                for k in range(self.plan.passes):
                    made += self.one_pass(acc, one, self.part(k), inside, b, lane)
                return made

            inner = self.names.serial("band", self.bands, band_body)
            for v, x in reversed(list(zip(self.window.extra, loops, strict=True))):
                inner = [Loop(x, 0, v.hi + 1, "serial", tuple(inner))]
            sums: list[Stmt] = [Store(total, k, across("sum", load(acc, (k,), self.dtype))) for k in range(count)]
            return [*made, *inner, *sums]

        return [Alloc(total, self.dtype, count, "scratch"), self.names.lanes(self.plan.width, body),
                *self.write(total, at)]

    def part(self, k: int) -> range:
        """The columns of taps of a pass."""
        most = -(-self.columns // self.plan.passes)
        return range(k * most, min((k + 1) * most, self.columns))

    def one_pass(self, acc: str, one: bool, columns: range, at: dict[Var, Index], band: Index, lane: Var
                 ) -> list[Stmt]:
        """Adds a band to the accumulators of some columns of taps; those of several passes wait in memory."""
        phase = self.window.phase
        image = phase.columns
        vectors = -(-image.length // self.plan.width)
        slots = [u * self.columns + c for u in range(len(phase.rows.taps)) for c in columns]
        here = acc if one else self.names.name("acc")

        def tile(first: Index, rows: int) -> list[Stmt]:
            return self.names.serial("j", vectors, lambda j: self.tile(here, slots if not one else None, columns, at,
                                                                      band, first, rows, j, lane))

        tiles = self.tiles(phase.rows, band, tile)
        if one:
            return tiles
        begin: list[Stmt] = [Alloc(here, self.dtype, len(slots), "register")]
        begin += [Store(here, k, load(acc, (s,), self.dtype)) for k, s in enumerate(slots)]
        return [*begin, *tiles, *(Store(acc, s, load(here, (k,), self.dtype)) for k, s in enumerate(slots))]

    def tile(self, acc: str, slots: list[int] | None, columns: range, at: dict[Var, Index], band: Index, first: Index,
             rows: int, j: Index, lane: Var) -> list[Stmt]:
        """A vector of columns of `rows` rows: A in registers, each staged vector used for all rows that it meets."""
        phase, stride = self.window.phase, self.staging.row_stride
        column = j * self.plan.width + lane
        inside = tuple(c for c in (phase.columns.length - 1 - column,) if bounds(c)[0] < 0)
        zero = const(0, self.dtype)
        image = band * (self.plan.band * self.plan.height) + first
        made: list[Stmt] = []
        others: list[Value] = []
        assert phase.other is not None and phase.columns.image is not None
        for r in range(rows):
            here = {**at, phase.columns.image: column}
            if phase.rows.image is not None:
                here[phase.rows.image] = image + r
            let = self.names.name("a")
            made.append(Let(let, guard(substitute(phase.other, here), zero, inside)))
            others.append(local(let, self.dtype))
        row_taps = [t - self.staging.first_row for t in phase.rows.taps]
        for c in columns:
            for i in range(min(row_taps), stride * (rows - 1) + max(row_taps) + 1):
                meets = [(r, u) for u, t in enumerate(row_taps) for r in range(rows) if stride * r + t == i]
                if not meets:
                    continue
                let = self.names.name("x")
                x = self.staging.at(stride * first + i, phase.columns.taps[c], j, lane)
                made.append(Let(let, guard(x, zero, inside)))
                for r, u in meets:
                    slot = u * self.columns + c if slots is None else slots.index(u * self.columns + c)
                    old = load(acc, (slot,), self.dtype)
                    term = binary("mul", local(let, self.dtype), others[r])
                    made.append(Store(acc, slot, accumulate(MONOIDS["sum"], old, term)))
        return made

    def write(self, total: str, at: dict[Var, Index]) -> list[Stmt]:
        """The nest's stores, one per tap."""
        phase, group = self.window.phase, self.window.groups[0]
        loops = {v: self.names.fresh(v.name, v.hi) for v in (phase.rows.tap, phase.columns.tap) if v is not None}
        place: Index = 0
        for v, x in loops.items():
            place = place * extent(v) + x
        body = self.stores(group, {**at, **loops}, load(total, (place,), self.dtype))
        for v, x in reversed(list(loops.items())):
            body = [Loop(x, 0, v.hi + 1, "serial", tuple(body))]
        return body
