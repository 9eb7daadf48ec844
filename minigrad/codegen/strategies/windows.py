"""Windows: two variables that an operand only uses together, as `stride * x + dilation * t`.

A convolution reads each element of its input once per tap. Packed as a box over the positions `stride * x + dilation *
t`, one plane per residue of the stride, every element is copied once, and a tap is a shift within the box:

    B[c, t, x]  =  box[c, residue(t), x + shift(t)]
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.plan import Box
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.expr import Index, Var
from minigrad.value import Value, expressions

MAX_PLANES = 9
"""Residues of the strides: each has packing code of its own."""

MAX_LANES = 16
"""Elements of the longest vector that packs."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A variable, and the tap that it steps with: everything depends on stride * x + dilation * tap only.

    An axis without a tap (None) is a plain variable. `part`: how many taps a block has, 0 for all of them.
    """

    x: Var
    tap: Var | None = None
    stride: int = 1
    dilation: int = 1
    part: int = 0

    @property
    def taps(self) -> range:
        return range(1 if self.tap is None else self.part or extent(self.tap))

    def place(self, tap: Index) -> Index:
        """The position of a tap for x = 0; the least is 0."""
        return self.dilation * tap - min(0, self.dilation * (len(self.taps) - 1))

    def shift(self, tap: Index) -> Index:
        return self.place(tap) // self.stride

    def residue(self, tap: Index) -> Index:
        return self.place(tap) % self.stride

    @property
    def reach(self) -> int:
        """How much longer than its part of x a row of the box is."""
        return max(self.shift(t) for t in self.taps)  # type: ignore[type-var,return-value]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where elements of a box lie: rows of `lengths`, whose `pitches` are also those of the packed columns."""

    axes: tuple[Axis, ...]
    parts: tuple[int, ...]
    lengths: tuple[int, ...]
    pitches: tuple[int, ...]

    @property
    def plane(self) -> int:
        """Elements of a plane; planes are packed one after the other, and a vector may reach beyond the last row."""
        return self.pitches[0] * self.lengths[0] + (MAX_LANES if self.planes > 1 else 0)

    @property
    def planes(self) -> int:
        total = 1
        for a in self.axes:
            total *= a.stride
        return total

    @property
    def columns(self) -> int:
        """Columns from the first to the last: between rows there are as many as a row is longer than its part."""
        return 1 + sum((part - 1) * pitch for part, pitch in zip(self.parts, self.pitches, strict=True))

    @property
    def reach(self) -> int:
        """The furthest shift of a tap."""
        return sum(a.reach * pitch for a, pitch in zip(self.axes, self.pitches, strict=True))

    def shift(self, taps: Mapping[Var, Index]) -> Index:
        """What a tap adds to the place of a column."""
        total: Index = 0
        plane: Index = 0
        for a, pitch in zip(self.axes, self.pitches, strict=True):
            tap = taps.get(a.tap, 0) if a.tap is not None else 0
            total = total + a.shift(tap) * pitch
            plane = plane * a.stride + a.residue(tap)
        return total + plane * self.plane


def layout(axes: tuple[Axis, ...], n: Box) -> Layout:
    """The box of a block of N."""
    sizes = dict(n)
    parts = tuple(sizes[a.x.name] for a in axes)
    lengths = tuple(part + a.reach for a, part in zip(axes, parts, strict=True))
    pitches: list[int] = []
    step = 1
    for length in reversed(lengths):
        pitches.insert(0, step)
        step *= length
    return Layout(axes, parts, lengths, tuple(pitches))


def turned(c: Contraction) -> Contraction:
    """The same contraction with the operands in each other's place: lanes go along what was M."""
    return replace(c, m=c.n, n=c.m, a=c.b, b=c.a)


def axes_of(c: Contraction) -> tuple[Axis, ...]:
    """The innermost variables of N from the outermost window on, whose taps are in K; empty where B has no window."""
    return _axes(c.b, c.n, c.k)


def axes_of_a(c: Contraction) -> tuple[Axis, ...]:
    """Likewise the innermost variables of K whose taps are in M, of A."""
    return _axes(c.a, c.k, c.m)


def within(axes: tuple[Axis, ...], parts: Box) -> tuple[Axis, ...]:
    """The axes of a block that has only parts of the taps."""
    sizes = dict(parts)
    return tuple(a if a.tap is None else replace(a, part=sizes[a.tap.name]) for a in axes)


def _axes(value: Value, xs: tuple[Var, ...], taps: tuple[Var, ...]) -> tuple[Axis, ...]:
    found: list[Axis] = []
    taken: set[Var] = set()
    for x in xs:
        axis = next((a for t in taps if t not in taken and isinstance(t.hi, int) and extent(t) > 1
                     for a in [_axis(x, t, expressions(value))] if a is not None), None)
        if axis is None:
            found.append(Axis(x))
        else:
            found.append(axis)
            taken.add(axis.tap)  # type: ignore[arg-type]
    first = next((k for k, a in enumerate(found) if a.tap is not None), len(found))
    planes = 1
    for a in found:
        planes *= a.stride
    return tuple(found[first:]) if planes <= MAX_PLANES else ()


def _axis(x: Var, t: Var, indices: Sequence[Index]) -> Axis | None:
    """The axis of x and t if every expression steps with them in one proportion, and taps read the same elements."""
    ratio: tuple[int, int] | None = None
    for e in indices:
        a, b = coefficient(e, x), coefficient(e, t)
        if not isinstance(a, int) or not isinstance(b, int) or (a == 0) != (b == 0):
            return None
        if a:
            common = gcd(a, b) if a > 0 else -gcd(a, b)
            if ratio not in (None, (a // common, b // common)):
                return None
            ratio = a // common, b // common
    if ratio is None:
        return None
    places = ratio[0] * (extent(x) - 1) + abs(ratio[1]) * (extent(t) - 1) + 1
    return Axis(x, t, *ratio) if places < extent(x) * extent(t) else None


