"""Nests that are phases of one strided gradient: windows over one X whose outputs interleave, as one Window.

    y[.., 2*i, 2*j] = f(sum over its taps of X * W)      y[.., 2*i, 2*j+1] = ...      y[.., 2*i+1, 2*j] = ...

Together they stage X once and write whole rows.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from minigrad.codegen.kernel.access import value_accesses
from minigrad.codegen.kernel.factors import product_of
from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise import Refused
from minigrad.codegen.patterns.recognise_window import (
    Axis,
    Parts,
    Phase,
    Rows,
    Window,
    recognise_window,
    recognised,
    taken_apart,
    window_of,
    without_loaded,
)
from minigrad.errors import present
from minigrad.expr import Index, Var, bounds, coefficient, subs, variables
from minigrad.value import Value, const, free_variables, guard, local, map_indices, substitute

ROW, COLUMN = Var("row.", -1 << 20, 1 << 20), Var("column.", -1 << 20, 1 << 20)
"""Positions counted alike by all phases; so wide that no condition is proven from them."""

MAX_SHIFT = 8
"""The distance that positions of two phases may have."""


def recognise_any(nests: Sequence[Nest]) -> Window | str:
    """The window of one nest, or of the phases that several are."""
    return _recognised(tuple(nests))


@lru_cache(maxsize=256)
def _recognised(nests: tuple[Nest, ...]) -> Window | str:
    return recognise_window(nests[0]) if len(nests) == 1 else recognise_phases(nests)


def recognise_phases(nests: Sequence[Nest]) -> Window | str:
    """The window of several nests, or 'not phases: ' and the reason."""
    try:
        return _recognise([taken_apart(nest, phase=True) for nest in nests])
    except Refused as reason:
        return f"not phases: {reason}"


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A phase with its positions counted as in all others: X in terms of ROW and COLUMN, and where it is read."""

    phase: Phase
    outputs: tuple[Store, ...]
    x: Value
    conditions: tuple[Index, ...]


def _recognise(parts: list[Parts]) -> Window:
    whole = [recognised(p) if p.over else None for p in parts]
    like = max((w for w in whole if w is not None), key=_taps, default=None)
    if like is None or like.form != "taps" or like.monoid != "sum" or like.phase.rows.image is None:
        raise Refused("no window with taps and rows among them")
    windows = [_one(p, like, parts[whole.index(like)], w) for p, w in zip(parts, whole, strict=True)]
    phases = [_shifted(w, like) for w in windows]
    row = Var("row.", min(p.phase.rows.first for p in phases), max(p.phase.rows.last for p in phases))
    column = Var("column.", min(p.phase.columns.first for p in phases), max(p.phase.columns.last for p in phases))
    return replace(like, row=row, column=column, value=_together(phases, row, column), groups=_groups(phases))


def _taps(window: Window) -> int:
    return len(window.phase.rows.taps) * len(window.phase.columns.taps)


def _one(parts: Parts, like: Window, its: Parts, window: Window | None) -> Window:
    """The window of one phase; one with too few taps to show its axes has those of `like`."""
    if window is not None and window.phase.rows.image is None:
        raise Refused("a phase without rows")
    if window is None:
        if len(parts.domain) != len(its.domain):
            raise Refused("phases of different shape")
        place = {v: parts.domain[k] for k, v in enumerate(its.domain)}
        images = (like.phase.rows, like.phase.columns)
        rows, columns = (Axis(place[a.image], None) for a in images)  # type: ignore[index]
        own = {rows.image, columns.image}
        inside = [f for f in parts.factors if free_variables(f) & own]
        others = [f for f in parts.factors if not free_variables(f) & own]
        if not inside:
            raise Refused("a phase without X")
        value = guard(product_of(inside), const(0, inside[0].dtype), parts.conditions)
        window = window_of("taps", parts, rows, columns, value, product_of(others) if others else None, ())
    strides = [(w.phase.rows.stride, w.phase.columns.stride) for w in (window, like)]
    if window.planes != like.planes or window.form != "taps" or window.monoid != "sum" or strides[0] != strides[1]:
        raise Refused("phases of different shape")
    return window


def _parts_of(value: Value) -> tuple[Value, tuple[Index, ...]]:
    """X without its guard, and the conditions of the guard."""
    if value.op == "guard" and value.args[1] is const(0, value.dtype):
        return value.args[0], value.conditions
    return value, ()


def _shifted(window: Window, like: Window) -> _Shifted:
    """The phase of a window with positions counted as in `like`."""
    ours, conditions = _parts_of(window.value)
    theirs, _ = _parts_of(like.value)
    down, across, start = _steps(ours, window)
    if (down, across) != _steps(theirs, like)[:2]:
        raise Refused("phases with different steps")
    shift = start - _steps(theirs, like)[2]
    options = [(abs(c), (shift - across * c) // down, c) for c in range(-MAX_SHIFT, MAX_SHIFT + 1)
               if (shift - across * c) % down == 0 and abs((shift - across * c) // down) <= MAX_SHIFT]
    if not options:
        raise Refused("phases too far apart")
    _, rows, columns = min(options)
    moved: dict[Var, Index] = {window.row: ROW - rows, window.column: COLUMN - columns}
    x = substitute(ours, moved)
    if x is not substitute(theirs, {like.row: ROW, like.column: COLUMN}):
        raise Refused("phases of different operands")
    old = window.phase
    phase = replace(old, rows=replace(old.rows, offset=rows), columns=replace(old.columns, offset=columns))
    return _Shifted(phase, window.groups[0].outputs, x, tuple(subs(c, moved) for c in conditions))


def _steps(x: Value, window: Window) -> tuple[int, int, int]:
    """(step of a row, step of a column, constant) of the first load that moves along both."""
    for read in value_accesses(x, ()):
        down, across = coefficient(read.offset, window.row), coefficient(read.offset, window.column)
        if isinstance(down, int) and isinstance(across, int) and down and across:
            return down, across, _constant(read.offset)
    raise Refused("an operand that does not move along both axes")


def _together(phases: list[_Shifted], row: Var, column: Var) -> Value:
    """X with the conditions of all phases; what one of them lacks must hold wherever it reads."""
    union = tuple(dict.fromkeys(c for p in phases for c in p.conditions))
    for p in phases:
        span: dict[Var, Index] = {ROW: Var("r.", p.phase.rows.first, p.phase.rows.last),
                                  COLUMN: Var("c.", p.phase.columns.first, p.phase.columns.last)}
        for c in union:
            if c not in p.conditions and bounds(subs(c, span))[0] < 0:
                raise Refused(f"only some phases have the condition {c} >= 0")
    here: dict[Var, Index] = {ROW: row, COLUMN: column}
    x = substitute(phases[0].x, here)
    return guard(x, const(0, x.dtype), tuple(subs(c, here) for c in union))


def _groups(phases: list[_Shifted]) -> tuple[Rows, ...]:
    """Phases whose stores are neighbours, as rows of outputs."""
    steps = {coefficient(p.outputs[0].indices[0], _image(p)) for p in phases}
    many = steps.pop()
    if steps or not isinstance(many, int) or many < 1:
        raise Refused("outputs with different steps")
    ordered = sorted(phases, key=lambda p: _constant(p.outputs[0].indices[0]))
    made = []
    for k in range(0, len(ordered), many):
        group = ordered[k:k + many]
        lengths = [p.phase.columns.length for p in group]
        total = sum(lengths)
        even = lengths == [-(-(total - b) // many) for b in range(many)]
        if not even or len({p.phase.rows.length for p in group}) > 1:
            raise Refused("phases that do not interleave")
        wide = Var("wide.", 0, total - 1)
        outputs = [tuple(_widened(s, p, b, many, wide, group[0].phase.name) for s in p.outputs)
                   for b, p in enumerate(group)]
        if any(o != outputs[0] for o in outputs):
            raise Refused("phases with outputs apart or different epilogues")
        made.append(Rows(tuple(p.phase for p in group), group[0].phase.rows.image, wide, outputs[0]))
    return tuple(made)


def _image(phase: _Shifted) -> Var:
    return present(phase.phase.columns.image, "[plan] expected columns of an image")


def _constant(e: Index) -> int:
    return e if isinstance(e, int) else e.const


def _widened(store: Store, phase: _Shifted, number: int, many: int, wide: Var, name: str) -> Store:
    """A store of phase `number` in terms of the column among all phases."""
    x = _image(phase)

    def index(e: Index) -> Index:
        if isinstance(e, int) or x not in variables(e):
            return e
        c = coefficient(e, x)
        if not isinstance(c, int) or c % many:
            raise Refused("an epilogue that does not step with the output")
        return subs(e, {x: 0}) + c // many * (wide - number)

    value = map_indices(without_loaded(store.value), index)
    if phase.phase.name != name:
        value = Rewriter({}, locals_={phase.phase.name: local(name, phase.x.dtype)}).value(value)
    return Store(store.param, tuple(index(e) for e in store.indices), value)
