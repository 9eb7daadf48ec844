"""The staged input of a window: rows of positions in a worker's memory, each computed once, borders included.

A staged row has a segment per residue of the column stride, so that a register tile reads whole vectors whatever the
stride. What is inside the image begins at a whole vector of its segment, so that it is computed in whole vectors
without conditions, in a loop; the border before and after it is filled with what it consists of:

    image 112 wide, border 1, stride 1, 16 lanes:     [ border .. 15 | 16 .. image .. 127 ][ border of the next row ...

Short rows of little work are staged border and all, each vector under its conditions, where that takes as few:

    image 14 wide, border 1, 16 lanes:                [ border | 1 .. image .. 14 | border ]
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minigrad.codegen.ir.launch import Names, ceil_div
from minigrad.codegen.ir.nodes import Alloc, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.kernel.value_walk import replace_values
from minigrad.codegen.machines.caches import LINE, PAGE
from minigrad.codegen.patterns.recognise_window import Window
from minigrad.codegen.plan.other_plans import WindowPlan
from minigrad.codegen.transforms.roll import HEAVY
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, coefficient, emin, subs, variables
from minigrad.value import Value, const, free_variables, guard, load, local, substitute, value_atoms, walk

WRITTEN_OUT, STORED = 16, 3
"""Operations of the vectors of a row up to which they are written out rather than looped over; what storing counts."""


class LoopNames(Names):
    """Fresh names of one function, and loops that have them."""

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


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions `first + stride * t` for t in 0..count, t = 0 at element `begin` of the segment; they are `before`
    steps after the first position of all. Whatever is read of it lies before element `end`."""

    first: int
    count: int
    before: int
    begin: int
    end: int

    @property
    def shift(self) -> int:
        """At which element the first position lies."""
        return self.begin - self.before

    def vectors(self, width: int) -> int:
        return ceil_div(self.count, width)

    def blanks(self, width: int, whole: bool) -> tuple[int, ...]:
        """Elements where vectors of the border before and after begin; `whole`: the last vector of the image is."""
        after = self.begin + (self.vectors(width) * width if whole else self.count)
        return *range(0, self.begin, width), *range(after, self.end, width)


@dataclass(frozen=True, slots=True)
class Positions:
    """The staged part of a row: `value` at its positions, `otherwise` where a condition of `border` fails; `row` is the
    row's number."""

    row: dict[Var, Index]
    value: Value
    otherwise: Value
    border: tuple[Index, ...]
    lane: Var


class Staging:
    """The places of positions in memory, and the statements that put them there.

    `even`: what is staged between blanks is inside the image; else all positions are, under their conditions.
    """

    def __init__(self, window: Window, plan: WindowPlan, names: LoopNames):
        self.window, self.width, self.names = window, plan.width, names
        phases = window.phases
        self.row_stride, self.stride = phases[0].rows.stride, phases[0].columns.stride
        self.vectors = max(ceil_div(p.columns.length, plan.width) for p in phases)
        self.first_row, self.image_rows = extent_of(window.row)
        self.first_column, columns = extent_of(window.column)
        self.work = sum(HEAVY.get(v.op, 1) for v in walk(window.value) if v.op not in ("const", "local", "guard"))
        self.segments, self.even = self.chosen(inside(window), columns)
        self.segment = self.length()
        self.pitch = self.segment * self.stride
        reach = max(max(p.rows.taps) for p in phases) - self.first_row + 1
        self.all_rows = self.image_rows
        self.rows = min(self.row_stride * (plan.height * plan.band - 1) + reach, self.all_rows)
        self.memory = names.name("x")

    def chosen(self, image: tuple[int, int] | None, columns: int) -> tuple[list[Segment], bool]:
        """The segments: all positions, where those of the image and blanks around it would take as much."""
        low, high = self.first_column, self.first_column + columns - 1
        everything = self.segments_of(low, high)
        if image is None:
            return everything, False
        low, high = max(low, image[0]), min(high, image[1])
        even = self.segments_of(low, high)

        def cost(segments: list[Segment]) -> int:
            """Of a row's vectors, those that are all border blank."""
            total = 0
            for s in segments:
                full = sum(s.first + self.stride * t <= high and s.first + self.stride * (t + self.width - 1) >= low
                           for t in range(0, s.count, self.width))
                total += full * self.work + (s.vectors(self.width) + len(s.blanks(self.width, True))) * STORED
            return total

        short = all(self.is_written_out(s.count) for s in everything) and (
            self.work <= WRITTEN_OUT or steps_of(everything) is not None)
        return (everything, False) if short and cost(everything) <= cost(even) else (even, True)

    def segments_of(self, low: int, high: int) -> list[Segment]:
        """The segments of positions that are staged from `low` to `high`."""
        made: list[Segment] = []
        longest = max(p.columns.length + (max(p.columns.taps) - self.first_column) // self.stride
                      for p in self.window.phases)
        for k in range(self.stride):
            before = max(0, ceil_div(low - self.first_column - k, self.stride))
            first = self.first_column + self.stride * before + k
            begin = ceil_div(before, self.width) * self.width
            count = max(0, (high - first) // self.stride + 1)
            made.append(Segment(first, count, before, begin, longest + begin - before))
        return made

    def is_written_out(self, count: int) -> bool:
        """True where vectors of `count` positions are written out rather than looped over."""
        return count <= self.width or ceil_div(count, self.width) * (self.work + STORED) <= WRITTEN_OUT

    def shifts_evenly(self) -> bool:
        """True where `place` takes any offset of a column, also one that a loop counts."""
        return self.stride <= 2

    def length(self) -> int:
        """Elements from segment to segment. The border after the image may lie in the one before the next image."""
        length, before = 0, min([s.begin for s in self.segments])
        for s in self.segments:
            end = s.begin + s.vectors(self.width) * self.width
            length = max(length, end if s.end - end <= before else s.end)
        return ceil_div(length, self.width) * self.width

    def allocate(self) -> list[Stmt]:
        return [Alloc(self.memory, self.window.value.dtype, self.rows * self.pitch + 2 * self.width, "scratch")]

    def place(self, row: Index, column: Index, vector: Index, lane: Var) -> Index:
        """The place of a vector of positions: `row` of the staged ones; tap offset `column` of a vector of image
        columns.
        """
        offset = column - self.first_column
        residue = offset % self.stride
        if isinstance(residue, int):
            start: Index = residue * self.segment + self.segments[residue].shift
        else:
            if not self.shifts_evenly():
                raise InternalError(f"[build] expected segments that shift evenly under a tap of {offset}")
            zero, one = (s.shift for s in self.segments)
            start = residue * (self.segment + one - zero) + zero
        return row * self.pitch + start + offset // self.stride + vector * self.width + lane

    def at(self, place: Index, rows: int, vectors: int = 0) -> Value:
        """The vector of positions some rows and vectors after a place."""
        return load(self.memory, (place + (rows * self.pitch + vectors * self.width),), self.window.value.dtype)

    def stage(self, at: dict[Var, Index], first: Index, count: Index, lane: Var) -> list[Stmt]:
        """Rows of positions `first`, `first + 1`, ... of a plane; inside the vector loop of `lane`."""
        before, value = self.constants(substitute(self.window.value, at))
        otherwise = const(0, value.dtype)
        conditions: tuple[Index, ...] = ()
        if value.op == "guard":
            (value, otherwise), conditions = value.args, value.conditions
        border = tuple([c for c in conditions if self.window.column in variables(c)])
        around = [c for c in conditions if c not in border]
        empty = otherwise if otherwise.op == "const" else const(0, value.dtype)
        length = max(self.pitch, self.pitch - self.segment + self.segments[-1].end)

        def row(r: Index) -> list[Stmt]:
            here: dict[Var, Index] = {self.window.row: self.first_row + first + r}
            own = tuple([c for c in [subs(c, here) for c in around] if bounds(c)[0] < 0])
            left = self.image_rows - 1 - first - r
            beyond = () if any(bounds(left - c)[0] >= 0 for c in (0, *own)) else (left,)
            filled = self.row(r, Positions(here, value, otherwise, () if self.even else border, lane))
            if otherwise.op != "const" and own:
                filled = [If(own, tuple(filled), tuple(self.row(r, Positions(here, otherwise, otherwise, (), lane))))]
                own = ()
            if not own and not beyond:
                return filled
            blank = [Store(self.memory, r * self.pitch + k + lane, empty) for k in range(0, length, self.width)]
            return [If((*own, *beyond), tuple(filled), tuple(blank))]

        return [*before, *self.names.serial("r", count, row)]

    def constants(self, root: Value) -> tuple[list[Stmt], Value]:
        """The statements for what is the same for all positions of a plane, and the value with that in its place.

        Not where the border depends on the plane, or inside a further guard: what is read there may not exist.
        """
        position = {self.window.row, self.window.column}
        value = root
        if root.op == "guard":
            value = root.args[0]
            if any(not variables(c) <= position for c in root.conditions):
                return [], root
        made: list[Stmt] = []
        done: dict[Value, Value] = {}
        todo = [value] if not position.isdisjoint(free_variables(value)) else []
        seen = set(todo)
        for v in todo:
            for a in v.args if v.op not in ("guard", "load") else ():
                if not position.isdisjoint(free_variables(a)):
                    if a not in seen:
                        seen.add(a)
                        todo.append(a)
                elif a.op not in ("const", "local") and a not in done:
                    name = self.names.name("c")
                    made.append(Let(name, a))
                    done[a] = local(name, a.dtype)
        return made, replace_values(root, done)

    def row(self, r: Index, of: Positions) -> list[Stmt]:
        """One staged row."""
        blank = of.otherwise if of.otherwise.op == "const" else const(0, of.value.dtype)
        made: list[Stmt] = []
        for k, s in enumerate(self.segments):
            for place in s.blanks(self.width, self.is_written_out(s.count)):
                made.append(Store(self.memory, r * self.pitch + k * self.segment + place + of.lane, blank))
        s, steps = self.segments[0], steps_of(self.segments)
        if steps is not None:
            first, begin = steps
            return made + self.names.serial("s", self.stride, lambda k: self.image(
                s.first + first * k, s.count, r * self.pitch + s.begin + (self.segment + begin) * k, k * self.width,
                self.width, of))
        for k, s in enumerate(self.segments):
            made += self.image(s.first, s.count, r * self.pitch + s.begin + self.segment * k, 0,
                               self.width * self.stride if k == 0 else 0, of)
        return made

    def image(self, first: Index, count: int, start: Index, near: Index, lines: int, of: Positions) -> list[Stmt]:
        """The `count` positions of a segment from `first` on, at `start`; what is read a page after `near` elements on
        is prefetched, `lines` elements for each vector."""
        def vector(t: Index) -> list[Stmt]:
            here = {**of.row, self.window.column: first + self.stride * (t + of.lane)}
            limits = tuple([subs(c, here) for c in of.border])
            if isinstance(t, int) and count < t + self.width:
                limits = (*limits, count - 1 - t - of.lane)
            element = guard(substitute(of.value, here), substitute(of.otherwise, here), limits)
            known = any(bounds(c)[1] < 0 for c in limits)
            return [*(self.ahead(of, first + self.stride * t + near, lines) if not known else ()),
                    Store(self.memory, start + t + of.lane, element)]

        width, blocks = self.width, ceil_div(count, self.width)
        if self.is_written_out(count):
            return [s for b in range(blocks) for s in vector(b * width)]
        x = self.names.fresh("b", blocks - 1)
        at = emin(x * width, count - width) if count % width else x * width  # the last as far back as makes it whole
        return [Loop(x, 0, blocks, "serial", tuple(vector(at)))]

    def ahead(self, of: Positions, column: Index, count: int) -> list[Stmt]:
        """Prefetches of what is read a page after a vector's positions: processors stop at the end of a page."""
        found: list[Stmt] = []
        for v in walk(of.value):
            if v.op != "load" or value_atoms(v.indices[0]):
                continue
            name, (offset,), line = v.buffer, v.indices, LINE // v.dtype.itemsize
            if self.window.column in variables(offset):
                found += [Prefetch(name, subs(offset, {**of.row, self.window.column: column + k}) + PAGE //
                                   v.dtype.itemsize) for k in range(0, count, line)]
        return found


def steps_of(segments: list[Segment]) -> tuple[int, int] | None:
    """By how much `first` and `begin` differ from segment to segment; None where that is not even or counts differ."""
    zero, *others = segments
    first, begin = (others[0].first - zero.first, others[0].begin - zero.begin) if others else (0, 0)
    even = all(s.count == zero.count and s.first == zero.first + k * first and s.begin == zero.begin + k * begin
               for k, s in enumerate(segments))
    return (first, begin) if even else None


def inside(window: Window) -> tuple[int, int] | None:
    """The first and the last column that are no border; None where conditions say more than that, or the border is more
    than a constant."""
    low, high = bounds(window.column)
    if window.value.op != "guard":
        return low, high
    if window.value.args[1].op != "const":
        return None
    for c in window.value.conditions:
        if window.column in variables(c):
            step = coefficient(c, window.column)
            rest = c - step * window.column if step in (1, -1) else c
            if not isinstance(rest, int):
                return None
            low, high = (max(low, -rest), high) if step == 1 else (low, min(high, rest))
    return low, high


def extent_of(v: Var) -> tuple[int, int]:
    """The first value of a variable, and how many there are."""
    low, high = bounds(v)
    return low, high - low + 1
