"""The staged input of a window: rows of positions in a worker's memory, each computed once, borders included.

A staged row has a segment per residue of the column stride: position first + stride*t + s is element t of segment s, so
that a register tile reads whole vectors whatever the stride. What lies beyond the last position is zero.
"""
from __future__ import annotations

from collections.abc import Callable

from minigrad.codegen.ir.nodes import Alloc, If, Loop, Prefetch, Stmt, Store
from minigrad.codegen.strategies.blocking import PAGE
from minigrad.codegen.strategies.plan import WindowPlan
from minigrad.codegen.strategies.recognise_window import Window
from minigrad.expr import Index, Var, bounds, subs, variables
from minigrad.value import Value, const, guard, load, substitute, value_atoms, walk

FEW_BLOCKS = 4
"""Vectors of a row that are written out rather than looped over."""


class Names:
    """Fresh names of one function."""

    def __init__(self) -> None:
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        return Var(self.name(stem), 0, max(bounds(last)[1], 0))

    def serial(self, stem: str, count: Index, body: Callable[[Index], list[Stmt]]) -> list[Stmt]:
        """`body` for 0..count."""
        if count == 1:
            return body(0)
        x = self.fresh(stem, count - 1)
        return [Loop(x, 0, count, "serial", tuple(body(x)))]

    def lanes(self, width: int, body: Callable[[Var], list[Stmt]]) -> Loop:
        """A vector loop."""
        lane = self.fresh("l", width - 1)
        return Loop(lane, 0, width, "vector", tuple(body(lane)))


class Staging:
    """Where positions are in memory, and the statements that put them there."""

    def __init__(self, window: Window, plan: WindowPlan, names: Names):
        self.window, self.width, self.names = window, plan.width, names
        phases = [p for g in window.groups for p in g.phases]
        self.row_stride, self.stride = phases[0].rows.stride, phases[0].columns.stride
        self.vectors = max(-(-p.columns.length // plan.width) for p in phases)
        shift = max((max(p.columns.taps) - self.first_column) // self.stride for p in phases)
        self.segment = (self.vectors + -(-shift // plan.width)) * plan.width
        self.pitch = self.segment * self.stride
        self.rows = min(self.row_stride * (plan.height * plan.band - 1) + max(max(p.rows.taps) for p in phases)
                        - self.first_row + 1, self.all_rows)
        self.memory, self.line = names.name("x"), names.name("line")

    @property
    def first_row(self) -> int:
        return bounds(self.window.row)[0]

    @property
    def first_column(self) -> int:
        return bounds(self.window.column)[0]

    @property
    def all_rows(self) -> int:
        lo, hi = bounds(self.window.row)
        return hi - lo + 1

    def allocate(self) -> list[Stmt]:
        dtype = self.window.value.dtype
        made: list[Stmt] = [Alloc(self.memory, dtype, self.rows * self.pitch, "scratch")]
        return [*made, Alloc(self.line, dtype, self.pitch, "scratch")] if self.stride > 1 else made

    def at(self, row: Index, column: Index, vector: Index, lane: Var) -> Value:
        """A vector of positions: `row` of the staged ones; tap offset `column` of a vector of image columns."""
        offset = column - self.first_column
        place = row * self.pitch + offset % self.stride * self.segment + offset // self.stride
        return load(self.memory, (place + vector * self.width + lane,), self.window.value.dtype)

    def stage(self, at: dict[Var, Index], first: Index, count: Index, lane: Var) -> list[Stmt]:
        """Rows of positions `first`, `first + 1`, ... of a plane; inside the vector loop of `lane`."""
        def row(r: Index) -> list[Stmt]:
            value = substitute(self.window.value, {**at, self.window.row: self.first_row + first + r})
            otherwise = const(0, value.dtype)
            conditions: tuple[Index, ...] = ()
            if value.op == "guard":
                (value, otherwise), conditions = value.args, value.attr
            own = tuple(c for c in conditions if self.window.column not in variables(c))
            border = tuple(c for c in conditions if self.window.column in variables(c))
            filled = self.row(r, value, otherwise, border, lane)
            if not own:
                return filled
            blank = [s for k in range(0, self.pitch, self.width) for s in self.put(self.memory, r * self.pitch + k,
                                                                                   otherwise, k, lane)]
            return [If(own, tuple(filled), tuple(blank))]

        return self.names.serial("r", count, row)

    def row(self, r: Index, value: Value, otherwise: Value, border: tuple[Index, ...], lane: Var) -> list[Stmt]:
        """One staged row; with a stride, through a line of consecutive positions."""
        limits = (*border, bounds(self.window.column)[1] - self.window.column)

        def element(place: Index) -> Value:
            here = {self.window.column: self.first_column + place + lane}
            inside, outside = substitute(value, here), substitute(otherwise, here)
            return guard(inside, outside, tuple(subs(c, here) for c in limits))

        def whole(block: int) -> bool:
            span = {self.window.column: self.first_column + block * self.width + lane}
            return all(bounds(subs(c, span))[0] >= 0 for c in limits)

        base = r * self.pitch if self.stride == 1 else 0
        memory = self.memory if self.stride == 1 else self.line
        made = self.blocks(self.pitch // self.width, whole,
                           lambda b: [*self.ahead(value, b * self.width),
                                      Store(memory, base + b * self.width + lane, element(b * self.width))])
        if self.stride > 1:
            for s in range(self.stride):
                for k in range(0, self.segment, self.width):
                    part = load(self.line, (self.stride * (lane + k) + s,), value.dtype)
                    made.append(Store(self.memory, r * self.pitch + s * self.segment + k + lane, part))
        return made

    def ahead(self, value: Value, place: Index) -> list[Stmt]:
        """Prefetches of what is read a page after a place of a row: processors stop at its end."""
        found: list[Stmt] = []
        for v in walk(value):
            if v.op == "load" and not value_atoms(v.attr[1][0]):  # type: ignore[index]
                name, (offset,) = v.attr  # type: ignore[misc]
                here = subs(offset, {self.window.column: self.first_column + place})
                found.append(Prefetch(name, here + PAGE // v.dtype.itemsize))
        return found

    def put(self, memory: str, place: Index, value: Value, column: Index, lane: Var) -> list[Stmt]:
        return [Store(memory, place + lane, substitute(value, {self.window.column: self.first_column + column + lane}))]

    def blocks(self, count: int, whole: Callable[[int], bool], body: Callable[[Index], list[Stmt]]) -> list[Stmt]:
        """`body` per block; a long run of blocks without conditions is a loop."""
        run = [b for b in range(count) if whole(b)]
        made: list[Stmt] = []
        b = 0
        while b < count:
            if len(run) > FEW_BLOCKS and b == run[0]:
                x = Var(self.names.name("b"), run[0], run[-1])
                made.append(Loop(x, run[0], run[-1] + 1, "serial", tuple(body(x))))
                b = run[-1] + 1
                continue
            made += body(b)
            b += 1
        return made

