"""The memory of packed contractions: sides of a block, and where their elements lie."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import If, Stmt, Store
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.launch import ceil_div
from minigrad.codegen.strategies.plan import Box
from minigrad.codegen.words import with_words
from minigrad.expr import Index, Var, bounds, product, subs, variables
from minigrad.value import Value, const, guard, indices_of, walk


@dataclass(frozen=True, slots=True)
class Side:
    """The block of one group of variables: their origins, how many steps of each it covers, and how far apart in the
    packed block steps of each are."""

    variables: tuple[Var, ...]
    parts: tuple[int, ...]
    origin: dict[Var, Index]
    counts: tuple[Index, ...]
    pitches: tuple[int, ...]

    @property
    def count(self) -> Index:
        return product(self.counts)

    @property
    def most(self) -> int:
        return 1 + sum((part - 1) * pitch for part, pitch in zip(self.parts, self.pitches, strict=True))

    def inside(self) -> list[tuple[Var, int, Index, int]]:
        """(variable, part, count, pitch) of what the block steps through, outermost first."""
        found = zip(self.variables, self.parts, self.counts, self.pitches, strict=True)
        return [x for x in found if x[1] > 1]


@dataclass(frozen=True, slots=True)
class Run:
    """Variables that a sweep steps through as one: `last` counts on over the others, `count` steps of `stride`."""

    last: Var
    count: Index
    stride: int
    others: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Packed memory: rows of `pitch` elements."""

    name: str
    rows: int
    pitch: int

    @property
    def size(self) -> int:
        return self.rows * self.pitch


def parts_of(variables: Sequence[Var], box: Box) -> list[tuple[Var, int]]:
    by_name = {v.name: v for v in variables}
    return [(by_name[name], part) for name, part in box]


def tiles_of(v: Var, part: int) -> Index:
    return ceil_div(v.hi + 1, part)


def divides(v: Var, part: int) -> bool:
    return part == 1 or (isinstance(v.hi, int) and (v.hi + 1) % part == 0)


def expressions_of(value: Value) -> list[Index]:
    return [e for x in walk(value) for e in indices_of(x) if not isinstance(e, int)]


def runs_of(side: Side, expressions: list[Index]) -> list[Run]:
    """The variables that a block steps through, outermost first; those that always step together are one run."""
    runs: list[Run] = []
    for v, _, count, pitch in reversed(side.inside()):
        inner = runs[0] if runs else None
        if inner is not None and inner.count * inner.stride == pitch and _together(v, inner, expressions):
            runs[0] = Run(inner.last, count * inner.count, inner.stride, (*inner.others, v))
        else:
            runs.insert(0, Run(v, count, pitch, ()))
    return runs


def dense(parts: Iterable[int]) -> tuple[int, ...]:
    """How far apart steps of each variable are where they lie close together."""
    pitches: list[int] = []
    step = 1
    for part in reversed(tuple(parts)):
        pitches.insert(0, step)
        step *= part
    return tuple(pitches)


def _together(outer: Var, run: Run, expressions: list[Index]) -> bool:
    for e in expressions:
        a, b = coefficient(e, outer), coefficient(e, run.last)
        if a is None or b is None or a != b * run.count:
            return False
    return True


def runs_in_squares(value: Value, rows: list[Run], columns: list[Run], width: int) -> list[Run]:
    """The innermost runs of rows that squares are read along, lanes going along the innermost run of columns: a
    contiguous one, at least `width` long, or some whose steps are all inside so many elements. Empty where loads do not
    go like that."""
    offsets = [v.attr[1][0] for v in walk(with_words(value)) if v.op == "load"]  # type: ignore[index]
    across = _step(offsets, columns[-1]) if columns else 0
    if not rows or not across or across <= 0:
        return []
    if bounds(rows[-1].count)[0] >= width:
        return rows[-1:] if _step(offsets, rows[-1]) == 1 and across > width else []
    found: list[Run] = []
    span = 1
    for run in reversed(rows):
        step = _step(offsets, run)
        if not isinstance(run.count, int) or not step or span + abs(step) * (run.count - 1) > min(width, across):
            break
        span += abs(step) * (run.count - 1)
        found.insert(0, run)
    return found


def further(value: Value, rows: list[Run], columns: list[Run]) -> bool:
    """Whether loads step further along the innermost run of rows than along that of columns."""
    offsets = [v.attr[1][0] for v in walk(value) if v.op == "load"]  # type: ignore[index]
    row, column = (_step(offsets, runs[-1]) if runs else None for runs in (rows, columns))
    return row is not None and column is not None and abs(row) > abs(column)


def _step(offsets: list[Index], run: Run) -> int | None:
    """How far loads step along a run, if it is the same for all of them."""
    steps = {coefficient(e, run.last) for e in offsets}
    step = steps.pop() if len(steps) == 1 else None
    return step if isinstance(step, int) else None


def places_of(runs: list[Run]) -> Callable[[dict[Var, Index]], Index]:
    """The position in a block's rows or columns for a place in each run."""
    def place(at: dict[Var, Index]) -> Index:
        total: Index = 0
        for run in runs:
            total = total + at[run.last] * run.stride
        return total
    return place


def fill(name: str, offset: Index, value: Value, conditions: tuple[Index, ...], lane: Var, lanes: int) -> list[Stmt]:
    """name[offset] = value, 0 where a condition fails; without a mask where all lanes are inside."""
    zero = const(0, value.dtype)
    if value.op == "guard" and value.args[1] is zero:
        value, conditions = value.args[0], (*value.attr, *conditions)  # type: ignore[misc]
    some = Store(name, offset, guard(value, zero, conditions))
    whole = _in_all_lanes(conditions, lane, lanes)
    if not whole:
        return [some]
    uniform = tuple(e for e in conditions if lane not in variables(e))
    return [If(whole, (Store(name, offset, guard(value, zero, uniform)),), (some,))]


def _in_all_lanes(conditions: tuple[Index, ...], lane: Var, width: int) -> tuple[Index, ...]:
    """Conditions, the same in every lane, under which the given ones hold in all of them; empty where none differs."""
    found: list[Index] = []
    for e in conditions:
        step = coefficient(e, lane)
        if not isinstance(step, int):
            return ()
        if step:
            found.append(subs(e, {lane: 0 if step > 0 else width - 1}))
    return tuple(found)
