"""Windows: two variables that an operand only uses together, as `stride * x + dilation * t`.

A convolution reads each element of its input once per tap. Packed as a box over the positions `stride * x + dilation *
t`, one plane per residue of the stride, every element is copied once, and a tap is a shift within the box:

    B[c, t, x]  =  box[c, residue(t), x + shift(t)]
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.codegen.policy.blocking import Box
from minigrad.expr import Index, Var, coefficient
from minigrad.value import Value, expressions


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
    def taps(self) -> int:
        return 1 if self.tap is None else self.part or extent(self.tap)

    @property
    def reach(self) -> int:
        """The elements that a row of the box has more than its part of x."""
        return abs(self.dilation) * (ceil(self.taps / self.stride) - 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """A box: `columns` from the first to the last, with those between rows, and `elements` of all its planes."""

    axes: tuple[Axis, ...]
    columns: int
    elements: int


def layout(axes: tuple[Axis, ...], n: Box) -> Layout:
    """The box of a block of N."""
    sizes, columns, elements = dict(n), 1, 1
    for a in reversed(axes):
        columns += (sizes[a.x.name] - 1) * elements
        elements *= sizes[a.x.name] + a.reach
    return Layout(axes, columns, elements * prod(a.stride for a in axes))


def swapped(c: Contraction) -> Contraction:
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
    first = next((k for k, a in enumerate(found) if a.tap is not None and (
        isinstance(a.x.hi, int) or k == len(found) - 1)), len(found))  # loops are fused whose extents are known
    return tuple(found[first:])


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


