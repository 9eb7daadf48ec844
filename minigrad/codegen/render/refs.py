"""The records that parts of a renderer pass around: emitted values, scopes with their lines, open loops, buffers."""
from __future__ import annotations

from dataclasses import dataclass, field

from minigrad.codegen.ir.nodes import Function
from minigrad.dtype import DType, int64
from minigrad.expr import Index

# The type of index arithmetic: 64 bits unless a renderer knows that less is enough.
INDEX = DType("index", "i", 64, int64.np)

INDENT = ["  " * level for level in range(100)]
"""The start of a line, by the number of scopes around it."""


class Ref:
    """An emitted value: its text, element type, lanes (1: a scalar), and the scope level that defines it (0: function).

    `literal` is a constant's number; `wide` the same value in every lane, from the first time that it is needed on;
    `true` the lanes in which a mask is true, where it is a constant.
    """

    literal: int | float | bool | None = None
    wide: Ref | None = None
    true: frozenset[int] | None = None

    def __init__(self, text: str, dtype: DType, lanes: int = 1, level: int = 0):
        self.text, self.dtype, self.lanes, self.level = text, dtype, lanes, level


class Scope:
    """The lines of one block and the values defined in it. Loads may leave it for the enclosing one if `crossable`.

    `entry` and `label` name its first and its present basic block, `held` has the values of the slots of register
    buffers at its end, for a renderer that has such.
    """

    __slots__ = ("lines", "known", "crossable", "entry", "label", "held")

    def __init__(self, crossable: bool, label: str = "entry", held: dict[str, Ref] | None = None):
        self.lines: list[str] = []
        self.known: dict[tuple[object, ...], Ref] = {}
        self.crossable = crossable
        self.entry = self.label = label
        self.held = {} if held is None else dict(held)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """A loop whose body is being emitted: its name, its bounds, and the test that it runs at all, if it may not.

    `carried`: the slots of register buffers that it stores to, and the value of each when an iteration begins;
    `strides`: sums that go along with it, and the number that each iteration adds.
    """

    name: str
    start: Ref
    stop: Ref
    some: Ref | None = None
    carried: tuple[tuple[str, Ref], ...] = ()
    strides: dict[Ref, Ref] = field(default_factory=dict)


class Memory:
    """A buffer of the function. `place`: 'in', 'out', 'inout', 'scratch' or 'register'; `text` is its pointer.

    `lanes` > 1: one copy per lane (allocated inside a vector loop); `slots` are the variables of a register buffer.
    """

    __slots__ = ("name", "dtype", "size", "place", "text", "lanes", "slots", "version")

    def __init__(self, name: str, dtype: DType, size: Index, place: str, text: str, lanes: int = 1):
        self.name, self.dtype, self.size, self.place, self.text, self.lanes = name, dtype, size, place, text, lanes
        self.slots: tuple[str, ...] = ()
        self.version = 0  # counts its stores: a load of what may be stored to is shared within one version


def argument_kinds(function: Function) -> tuple[str, ...]:
    """The kinds for `Program.arguments`: 'buffer:<bytes per element>', a scalar's type, 'i64' for a dim."""
    return (*(f"buffer:{b.dtype.itemsize}" for b in function.buffers), *(s.dtype.short for s in function.scalars),
            *("i64" for _ in function.dims))


def folded(op: str, x: Ref, y: Ref) -> Ref | int | None:
    """x + y or x * y of indices, where it is a constant or one of them."""
    a, b = x.literal, y.literal
    if a is not None and b is not None:
        return int(a + b if op == "add" else a * b)
    if op == "mul" and 0 in (a, b):
        return 0
    nothing = 0 if op == "add" else 1
    return y if a == nothing and a is not None else x if b == nothing and b is not None else None
