"""Windows whose outputs are taps, the weight gradients: an accumulator per tap (window.py)."""
from __future__ import annotations

from minigrad.codegen.ir.nodes import Alloc, Let, Loop, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate_product
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.strategies.window_builder import WindowBuilder
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds
from minigrad.value import Value, across, const, guard, load, local, substitute


class PlaneBuilder(WindowBuilder):
    """An accumulator per tap, in lanes along columns; joined across lanes at the end."""

    def plane(self, at: dict[Var, Index], band: Index, again: list[Var]) -> list[Stmt]:
        phase = self.window.phase
        self.columns = len(phase.columns.taps)
        count = self.columns * len(phase.rows.taps)

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
            return [*made, *inner, *self.join(acc, one, count, at, lane)]

        return [self.names.lanes(self.plan.width, body)]

    def join(self, acc: str, registers: bool, count: int, at: dict[Var, Index], lane: Var) -> list[Stmt]:
        """The nest's stores, one per tap: an accumulator's sum across lanes."""
        made: list[Stmt] = []
        if registers:
            kept = self.names.name("kept")
            made.append(Alloc(kept, self.dtype, count, "scratch"))
            made += [Store(kept, k, load(acc, (k,), self.dtype)) for k in range(count)]
            acc = kept
        phase, group = self.window.phase, self.window.groups[0]
        loops = {v: self.names.fresh(v.name, v.hi) for v in (phase.rows.tap, phase.columns.tap) if v is not None}
        place = offset(tuple(loops.values()), tuple([extent(v) for v in loops]))
        value = load(acc, (place,), self.dtype)
        if self.single and phase.columns.length < self.plan.width:
            value = guard(value, const(0, self.dtype), (phase.columns.length - 1 - lane,))
        total = self.names.name("total")
        body = [Let(total, across("sum", value)),
                *self.stores(self.outputs(group, at), phase.name, {**loops}, local(total, self.dtype))]
        for v, x in reversed(list(loops.items())):
            body = [Loop(x, 0, v.hi + 1, "serial", tuple(body))]
        return [*made, *body]

    @property
    def single(self) -> bool:
        """True where a row is one vector: lanes beyond it add up what is left out in the end."""
        return self.window.phase.columns.length <= self.plan.width

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

        tiles = self.tiles(phase.rows.length, band, tile)
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
        across = present(phase.columns.image, "[build] expected columns of an image")
        other = substitute(present(phase.other, "[build] expected weights of a window's taps"), at)
        for r in range(rows):
            here: dict[Var, Index] = {across: column}
            if phase.rows.image is not None:
                here[phase.rows.image] = image + r
            let = self.names.name("a")
            made.append(Let(let, guard(substitute(other, here), zero, inside)))
            others.append(local(let, self.dtype))
        meets: dict[int, list[tuple[int, int]]] = {}
        for u, t in enumerate(phase.rows.taps):
            for r in range(rows):
                meets.setdefault(stride * r + t - self.staging.first_row, []).append((r, u))
        for c in columns:
            start = self.staging.place(stride * first, phase.columns.taps[c], j, lane)
            for i in sorted(meets):
                let = self.names.name("x")
                made.append(Let(let, guard(self.staging.at(start, i), zero, () if self.single else inside)))
                for r, u in meets[i]:
                    slot = u * self.columns + c if slots is None else slots.index(u * self.columns + c)
                    old = load(acc, (slot,), self.dtype)
                    total = accumulate_product(MONOIDS["sum"], old, local(let, self.dtype), others[r])
                    made.append(Store(acc, slot, total))
        return made
