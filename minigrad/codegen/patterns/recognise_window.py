"""Which nests are windows over planes, from index variables and guards alone.

    taps:   y[p, i, j] = f(combine over u, v of X(p, s*i + d*u, t*j + e*v) * W(p, u, v), ...)     convolution, pooling
    plane:  w[p, u, v] = f(sum over n, i, j of X(p, n, s*i + d*u, t*j + e*v) * A(p, n, i, j), ...)   weight gradient

X is a function of positions: it uses i and u, likewise j and v, only in those sums. There may be no rows, or no tap
along an axis. Phases of a strided gradient, which interleave their outputs, are windows over one X.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.factors import factors_of, product_of
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.patterns.recognise import Refused, output_step, written_out
from minigrad.expr import Index, Var, coefficient, subs, variables
from minigrad.value import Value, binary, const, expressions, free_variables, guard, map_indices, reduce, walk

MAX_STEP = 4
"""Stride or dilation beyond which most of a staged row is never read."""

MAX_TAPS, MAX_PLANE_TAPS = 64, 256
"""Taps are written out: at each position of a row, and for each output of a plane."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Positions `stride * image + dilation * tap + offset` along one direction; None: always 0."""

    image: Var | None
    tap: Var | None
    stride: int = 1
    dilation: int = 1
    offset: int = 0

    @property
    def length(self) -> int:
        return extent(self.image) if self.image is not None else 1

    @property
    def taps(self) -> tuple[int, ...]:
        """The position of each tap at image 0."""
        return tuple([self.dilation * t + self.offset for t in range(extent(self.tap) if self.tap is not None else 1)])

    @property
    def first(self) -> int:
        return min(self.taps)

    @property
    def last(self) -> int:
        return self.stride * (self.length - 1) + max(self.taps)


@dataclass(frozen=True, slots=True)
class Phase:
    """One window over X: `name` = monoid over the taps of X * other. `other` is W or A; None where there is none."""

    name: str
    rows: Axis
    columns: Axis
    other: Value | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Output rows. With several phases, output column c is column c // phases of phase c % phases."""

    phases: tuple[Phase, ...]
    row: Var | None
    column: Var
    outputs: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """`value` is X over `planes`, `extra` (sums around a plane) and the positions `row` and `column`. `nest`: with the
    sum as the product of X and what it is multiplied by, each guarded by itself; of one window."""

    form: str
    monoid: str
    planes: tuple[Var, ...]
    extra: tuple[Var, ...]
    row: Var
    column: Var
    value: Value
    groups: tuple[Rows, ...]
    nest: Nest

    @property
    def phase(self) -> Phase:
        return self.groups[0].phases[0]

    @property
    def phases(self) -> tuple[Phase, ...]:
        return tuple(p for g in self.groups for p in g.phases)


def recognise_window(nest: Nest) -> Window | str:
    """The window that a flat nest computes, or 'not a window: ' and the reason."""
    try:
        return recognised(taken_apart(nest))
    except Refused as reason:
        return f"not a window: {reason}"


@dataclass(frozen=True, slots=True)
class Parts:
    """A nest taken apart: factors of the reduction's body, its variables, the stores."""

    name: str
    monoid: str
    domain: tuple[Var, ...]
    over: tuple[Var, ...]
    factors: tuple[Value, ...]
    conditions: tuple[Index, ...]
    outputs: tuple[Store, ...]


def taken_apart(nest: Nest, phase: bool = False) -> Parts:
    """`phase`: where nothing is reduced, the first definition is a window of one tap."""
    defined = [s for s in nest.body if isinstance(s, Define)]
    reduced = [s for s in defined if s.value.op == "reduce"]
    if not reduced and phase:
        reduced = defined[:1]
    if len(reduced) != 1:
        raise Refused(f"{len(reduced)} reductions")
    total = reduced[0].value
    monoid, over = (total.monoid, total.over) if total.op == "reduce" else ("sum", ())
    if any(not isinstance(v.hi, int) for v in over):
        raise Refused("taps are known at run time only")
    single: dict[Var, Index] = {v: 0 for v in (*nest.domain, *over) if v.hi == 0}
    body, outputs = written_out(nest, reduced[0], single)
    factors: tuple[Value, ...] = (body,)
    conditions: list[Index] = []
    if monoid == "sum":
        factors = tuple(factors_of(body, conditions))
    return Parts(reduced[0].name, monoid, tuple(v for v in nest.domain if v not in single),
                  tuple(v for v in over if v not in single), factors, tuple(conditions), outputs)


def recognised(parts: Parts) -> Window:
    """The window of these parts. Raises Refused."""
    if not parts.over or not parts.domain:
        raise Refused("nothing is summed")
    taps = prod([extent(v) for v in parts.over])
    if taps > MAX_TAPS:
        return _plane_form(parts)
    window = _taps_form(parts)
    if window.phase.rows.length * window.phase.columns.length >= taps:
        return window
    try:
        return _plane_form(parts)
    except Refused:  # a plane smaller than its window, and no gradient by taps
        return window


def _taps_form(parts: Parts) -> Window:
    by_step = sorted(parts.domain, key=lambda v: output_step(v, parts.outputs))
    column = by_step[0]
    inside = [f for f in parts.factors if column in free_variables(f)]
    weights = [f for f in parts.factors if column not in free_variables(f)]
    if not inside:
        raise Refused(f"no operand uses {column}")
    value = guard(product_of(inside), const(0, inside[0].dtype), parts.conditions)
    used = frozenset().union(*(free_variables(w) for w in weights))
    pairs = [_partner(value, r, [v for v in by_step if v not in used]) for r in parts.over]
    free = [v for v in by_step[1:] if v not in used and v in free_variables(value)]
    rows, columns = _two_axes(pairs, column, free[0] if free else None)
    if weights and rows.image is None and len(columns.taps) <= columns.stride:
        raise Refused("no position is read twice")
    other = None
    if weights:
        ours = tuple(c for c in parts.conditions if variables(c) <= used)
        other = guard(product_of(weights), const(0, weights[0].dtype), ours)
    return window_of("taps", parts, rows, columns, value, other, ())


def _plane_form(parts: Parts) -> Window:
    """X: the factors whose positions move with variables of the domain; what is left has no taps."""
    if parts.monoid != "sum" or len(parts.factors) < 2:
        raise Refused("a reduction of one operand over a plane")
    domain = frozenset(parts.domain)
    everywhere = domain.intersection(*(free_variables(f) for f in parts.factors))
    moving = [f for f in parts.factors if free_variables(f) & domain - everywhere]
    rest = [f for f in parts.factors if f not in moving]
    used = frozenset().union(*(free_variables(f) for f in rest))
    taps = [v for v in parts.domain if v not in everywhere]
    if prod([extent(v) for v in taps]) > MAX_PLANE_TAPS:
        raise Refused(f"more than {MAX_PLANE_TAPS} taps")
    images = [r for r in parts.over if r in used]
    if not moving or not images:
        raise Refused("no operand is read at positions that move with the outputs")
    value = guard(product_of(moving), const(0, moving[0].dtype), parts.conditions)
    # What is read where a condition fails may not be there: each factor has those that it can have.
    ours = tuple(c for c in parts.conditions if not variables(c) & set(taps))
    a = guard(product_of(rest), const(0, rest[0].dtype), ours)
    images.sort(key=lambda r: _value_step(a, r))
    pairs = [_partner(value, t, images) for t in taps]
    rows, columns = _two_axes(pairs, images[0], None)
    extra = tuple(r for r in parts.over if r not in (rows.image, columns.image))
    return window_of("plane", parts, rows, columns, value, a, extra)


def window_of(form: str, parts: Parts, rows: Axis, columns: Axis, x: Value, other: Value | None,
            extra: tuple[Var, ...]) -> Window:
    taken = {v for a in (rows, columns) for v in (a.image, a.tap)}
    for v in taken:
        if v is not None and not isinstance(v.hi, int):
            raise Refused(f"the extent of {v} is known at run time only")
    if other is not None and other.dtype is not x.dtype:
        raise Refused(f"operands of {x.dtype.name} and {other.dtype.name}")
    if x.dtype.compute is not x.dtype or x.dtype.kind == "b":
        raise Refused(f"computed in {x.dtype.name}")
    row = Var("row.", rows.first, max(rows.last, rows.first))
    column = Var("column.", columns.first, max(columns.last, columns.first))
    value = in_positions(x, ((rows, row), (columns, column)))
    if free_variables(value) & {v for v in taken if v is not None}:
        raise Refused("an index is not a function of positions")
    planes = tuple(v for v in sorted(parts.domain, key=lambda v: -output_step(v, parts.outputs)) if v not in taken)
    phase = Phase(parts.name, rows, columns, other)
    image = (rows.image, columns.image) if form == "taps" else (rows.tap, columns.tap)
    group = Rows((phase,), image[0], image[1] or Var("one.", 0, 0), parts.outputs)
    total = reduce(parts.monoid, parts.over, x if other is None else binary("mul", x, other)) if parts.over else x
    nest = Nest(parts.domain, (Define(parts.name, total), *parts.outputs))
    return Window(form, parts.monoid, planes, extra, row, column, value, (group,), nest)


def _two_axes(pairs: list[Axis], column: Var, row: Var | None) -> tuple[Axis, Axis]:
    """The axes of the rows and of the columns, which a tap may move along; without one, that of a variable alone."""
    columns = next((a for a in pairs if a.image is column), Axis(column, None))
    others = [a for a in pairs if a is not columns]
    if len(others) > 1 or any(a.image is column for a in others):
        raise Refused(f"taps along {len(pairs)} axes")
    return (others[0] if others else Axis(row, None)), columns


def _partner(value: Value, tap: Var, images: list[Var]) -> Axis:
    """The image variable that `tap` moves along, with the smallest steps."""
    found: list[Axis] = []
    for v in images:
        axis = _axis(value, v, tap)
        if axis is not None:
            found.append(axis)
    if not found:
        raise Refused(f"{tap} moves along no variable")
    return min(found, key=lambda a: max(a.stride, abs(a.dilation)))


def _axis(value: Value, image: Var, tap: Var) -> Axis | None:
    """The axis of which every index in `value` is a function, as far as it uses these two."""
    axis: Axis | None = None
    for e in expressions(value):
        a, b = coefficient(e, image), coefficient(e, tap)
        if not isinstance(a, int) or not isinstance(b, int):
            return None
        if a == b == 0:
            continue
        if a == 0 or b == 0:
            return None
        common = gcd(a, b) if a > 0 else -gcd(a, b)
        here = Axis(image, tap, a // common, b // common)
        if axis is not None and axis != here:
            return None
        axis = here
    if axis is None or max(axis.stride, abs(axis.dilation)) > MAX_STEP:
        return None
    return axis


def in_positions(value: Value, axes: tuple[tuple[Axis, Var], ...]) -> Value:
    """`value` with the axes' variables replaced by the positions that they stand for."""
    def index(e: Index) -> Index:
        if isinstance(e, int):
            return e
        total: Index = 0
        zeros: dict[Var, Index] = {}
        used = variables(e)
        for axis, position in axes:
            place: Index = 0
            for v, step in ((axis.image, axis.stride), (axis.tap, axis.dilation)):
                if v in used:
                    c = coefficient(e, v)
                    if not isinstance(c, int) or c % step:
                        raise Refused(f"an index is not linear in {v}")
                    place, zeros[v] = c // step * position, 0
            total = total + place
        return subs(e, zeros) + total if zeros else e

    return map_indices(without_loaded(value), index)


def without_loaded(value: Value) -> Value:
    """The value. Raises Refused where an index of it is loaded."""
    if value.gathers:
        raise Refused("an index is loaded")
    return value


def _value_step(value: Value, v: Var) -> int:
    steps = [coefficient(e, v) for x in walk(value) if x.op == "load" for e in x.indices]
    return min((abs(c) for c in steps if isinstance(c, int) and c), default=1 << 60)
