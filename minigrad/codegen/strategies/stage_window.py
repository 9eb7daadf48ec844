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
from minigrad.codegen.strategies.sides import LINE
from minigrad.expr import Index, Var, bounds, subs, variables
from minigrad.value import Value, const, free_variables, guard, load, substitute, value_atoms, walk

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
        phases = window.phases
        self.row_stride, self.stride = phases[0].rows.stride, phases[0].columns.stride
        self.vectors = max(-(-p.columns.length // plan.width) for p in phases)
        longest = max(p.columns.length + (max(p.columns.taps) - self.first_column) // self.stride for p in phases)
        self.segment = -(-longest // plan.width) * plan.width
        self.pitch = self.segment * self.stride
        self.rows = min(self.row_stride * (plan.height * plan.band - 1) + max(max(p.rows.taps) for p in phases)
                        - self.first_row + 1, self.all_rows)
        self.memory = names.name("x")

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
        return [Alloc(self.memory, self.window.value.dtype, self.rows * self.pitch + self.width, "scratch")]

    def place(self, row: Index, column: Index, vector: Index, lane: Var) -> Index:
        """Where a vector of positions lies: `row` of the staged ones; tap offset `column` of a vector of image columns.
        """
        offset = column - self.first_column
        place = row * self.pitch + offset % self.stride * self.segment + offset // self.stride
        return place + vector * self.width + lane

    def at(self, place: Index, rows: int, vectors: int = 0) -> Value:
        """The vector of positions some rows and vectors after a place."""
        return load(self.memory, (place + (rows * self.pitch + vectors * self.width),), self.window.value.dtype)

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
            blank = [Store(self.memory, r * self.pitch + k + lane, substitute(otherwise, self.position(k + lane)))
                     for k in range(0, self.pitch, self.width)]
            return [If(own, tuple(filled), tuple(blank))]

        return self.names.serial("r", count, row)

    def position(self, place: Index, segment: int = 0) -> dict[Var, Index]:
        """The column of an element of a segment."""
        return {self.window.column: self.first_column + self.stride * place + segment}

    def row(self, r: Index, value: Value, otherwise: Value, border: tuple[Index, ...], lane: Var) -> list[Stmt]:
        """One staged row."""
        limits = (*border, bounds(self.window.column)[1] - self.window.column)
        return [s for segment in range(self.stride) for s in self.part(r, segment, value, otherwise, limits, lane)]

    def part(self, r: Index, segment: int, value: Value, otherwise: Value, limits: tuple[Index, ...], lane: Var
             ) -> list[Stmt]:
        """One segment of a staged row; `otherwise` where a limit fails."""
        def conditions(block: Index) -> tuple[Index, ...]:
            here = self.position(block * self.width + lane, segment)
            return tuple(subs(c, here) for c in limits)

        def vector(block: Index) -> list[Stmt]:
            here, place = self.position(block * self.width + lane, segment), block * self.width + lane
            element = guard(substitute(value, here), substitute(otherwise, here), conditions(block))
            ahead = self.ahead(value, block * self.width, limits) if segment == 0 else []
            return [*ahead, Store(self.memory, r * self.pitch + segment * self.segment + place, element)]

        return self.blocks(self.segment // self.width, lambda b: all(bounds(c)[0] >= 0 for c in conditions(b)), vector)

    def ahead(self, value: Value, place: Index, limits: tuple[Index, ...]) -> list[Stmt]:
        """Prefetches of what is read a page after a vector of every segment: processors stop at its end."""
        found: list[Stmt] = []
        for v in walk(value):
            if v.op != "load" or self.window.column not in free_variables(v) or \
                    value_atoms(v.attr[1][0]):  # type: ignore[index]
                continue
            (name, (offset,)), line = v.attr, LINE // v.dtype.itemsize  # type: ignore[misc]
            for k in range(0, self.width * self.stride, line):
                first, last = self.position(place, k), self.position(place, k + line - 1)
                if all(max(bounds(subs(c, first))[1], bounds(subs(c, last))[1]) >= 0 for c in limits):
                    found.append(Prefetch(name, subs(offset, first) + PAGE // v.dtype.itemsize))
        return found

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

