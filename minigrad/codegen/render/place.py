"""The placing of instructions: `Placer` numbers values and puts each into the outermost scope that it can live in.

Every instruction passes through `Placer.pure`, which knows the scope (function, loop, branch) of each operand. It puts
the instruction at the end of the deepest of those scopes, so that whatever does not depend on a loop leaves it, and
returns the earlier result when the same text was emitted before. The methods that a renderer has to supply are abstract
here.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.codegen.ir.nodes import Alloc, Call, Function, Loop
from minigrad.dtype import DType, int64
from minigrad.expr import Index, Var
from minigrad.value import Value

# The type of index arithmetic: 64 bits unless a renderer knows that less is enough.
INDEX = DType("index", "i", 64, int64.np)


class Ref:
    """An emitted value: its text, element type, lanes (1: a scalar), and the scope level that defines it (0: function).

    `zero_outside` is the mask outside which it is known to be zero (a masked load); `literal` a constant's number;
    `wide` the same value in every lane, from the first time that it is needed on.
    """

    zero_outside: Ref | None = None
    literal: int | float | bool | None = None
    wide: Ref | None = None

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
        self.known: dict[tuple, Ref] = {}
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


class Placer(ABC):
    """Walks one Function. `scopes[0]` is the function; `lane`, `width` describe the enclosing vector loop, if any.

    A renderer may do such a loop in parts: lanes from `first_lane` on, `real_width` of the `width` lanes of its types.

    `memo` has results that need not be computed again in this scope, or in one inside it: values by (Step, mask), and
    facts about sums of terms by (name of the fact, terms, ...), which copies of an address that differ in a constant
    share. `brief` has values that last for a statement only: those that read memory that may be written, or locals, or
    differ in every copy.
    """

    def __init__(self, function: Function):
        self.function = function
        self.scopes = [Scope(crossable=False)]
        self.counter = 0
        self.lane: Var | None = None
        self.width = self.real_width = 1
        self.first_lane = 0
        self.locals: dict[str, Ref] = {}
        self.variables: dict[Var, Ref] = {}
        self.memory: dict[str, Memory] = {}
        self.memo: dict[Any, Any] = {}
        self.brief: dict[tuple, Ref] = {}
        self.under: Ref | None = None
        self.literals: dict[tuple, Ref] = {}
        self.epoch = 0

    # ---- texts that a renderer supplies ----

    @abstractmethod
    def define(self, text: str, dtype: DType, lanes: int, level: int, hint: str) -> Ref:
        """A new value, defined as `text` at the end of the scope of that level."""

    @abstractmethod
    def value(self, root: Value, mask: Ref | None = None) -> Ref:
        """Emits a value whose loads happen only where `mask` is true."""

    @abstractmethod
    def literal(self, value: int | float | bool, dtype: DType) -> str:
        """A scalar literal."""

    @abstractmethod
    def splat(self, x: Ref, lanes: int) -> Ref:
        """A scalar in every lane."""

    @abstractmethod
    def gather_lanes(self, parts: Sequence[Ref]) -> Ref:
        """A vector of scalars."""

    @abstractmethod
    def extract(self, x: Ref, lane: int) -> Ref:
        """One lane of a vector."""

    @abstractmethod
    def integer(self, op: str, x: Ref, y: Ref, small: bool = False) -> Ref:
        """Index arithmetic on scalars: add, mul, min, max, div and mod of non-negative numbers (`small`: of 32 bits),
        fdiv and fmod that floor."""

    @abstractmethod
    def at_least(self, x: Ref, limit: int) -> Ref:
        """x >= limit for a scalar index."""

    @abstractmethod
    def lanes_at_least(self, x: Ref, limits: Sequence[int], small: bool) -> Ref:
        """x >= limits[lane] in each lane, for a scalar index; `small`: all of it fits 32 bits."""

    @abstractmethod
    def operation(self, op: str, args: Sequence[Ref], dtype: DType) -> Ref:
        """A unary, binary, fma or where Value op; all operands have equal lanes, but a condition may be scalar."""

    @abstractmethod
    def convert(self, x: Ref, dtype: DType) -> Ref:
        """The cast of `value.py`; also to and from INDEX."""

    @abstractmethod
    def reinterpret(self, x: Ref, dtype: DType) -> Ref:
        """The bitcast of `value.py`."""

    @abstractmethod
    def across(self, combine: str, x: Ref) -> Ref:
        """All lanes combined in a fixed tree; a scalar."""

    @abstractmethod
    def any_lane(self, mask: Ref) -> Ref:
        """True if a lane of a mask is."""

    @abstractmethod
    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        """One element, in memory only read where the scalar mask is true; not placed outside scope level `floor`."""

    @abstractmethod
    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        """`width` elements at start + lane * stride, or None if there is no better way than one by one."""

    def load_steps(self, memory: Memory, start: Index, steps: Sequence[int], floor: int) -> Ref | None:
        """The elements at start + steps[lane], or None if there is no better way than one by one."""
        return None

    def load_square(self, memory: Memory, start: Index, stride: Index, mask: Ref | None, floor: int) -> Ref | None:
        """A column of a square whose rows are `stride` apart, or None if there is no better way than one by one."""
        return None

    @abstractmethod
    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        """One element, where the scalar mask is true."""

    @abstractmethod
    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        """`width` elements at consecutive offsets, where the mask (scalar or vector) is true."""

    def store_strided(self, memory: Memory, start: Index, stride: int, value: Ref, mask: Ref | None) -> bool:
        """`width` elements at start + lane * stride where the mask is true, or False if there is no better way than one
        by one: nothing is stored then."""
        return False

    @abstractmethod
    def read_slot(self, memory: Memory, slot: int) -> Ref:
        """The present value of an element of a register buffer."""

    @abstractmethod
    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        """Sets an element of a register buffer."""

    @abstractmethod
    def allocate(self, s: Alloc) -> Memory:
        """Declares a register or scratch buffer."""

    @abstractmethod
    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        """Emits the bounds and enters the loop's scope; the Ref is its variable."""

    @abstractmethod
    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        """Appends the finished loop to the current scope."""

    @abstractmethod
    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        """Appends a branch on a scalar condition to the current scope."""

    @abstractmethod
    def call_microkernel(self, s: Call) -> None:
        """Calls the implementation of a microkernel."""

    @abstractmethod
    def barrier(self) -> None:
        """Joins the work-items of one work-group."""

    @abstractmethod
    def prefetch(self, memory: Memory, offset: Index, far: bool) -> None:
        """A hint that memory will be read; may do nothing."""

    @abstractmethod
    def comment(self, text: str) -> None:
        """A remark in the source."""

    # ---- placing instructions ----

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def name(self, hint: str) -> str:
        self.counter += 1
        return f"{hint}{self.counter}"

    def constant(self, value: int | float | bool, dtype: DType) -> Ref:
        # The number itself is no key: 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        key = (value, dtype) if type(value) is int else (repr(value), dtype)
        ref = self.literals.get(key)
        if ref is None:
            ref = self.literals[key] = Ref(self.literal(value, dtype), dtype)
            ref.literal = value
        return ref

    def spread(self, x: Ref, lanes: int) -> Ref:
        if x.lanes == lanes:
            return x
        if x.wide is None or x.wide.lanes != lanes:
            x.wide = self.splat(x, lanes)
        return x.wide

    def every(self, value: int | float, dtype: DType, lanes: int) -> Ref:
        """A constant in every lane."""
        return self.spread(self.constant(value, dtype), lanes)

    def pure(self, text: str, dtype: DType, lanes: int, operands: Sequence[Ref], hint: str = "v",
             floor: int = 0) -> Ref:
        """The value `text`, defined in the outermost scope where its operands exist, not outside level `floor`."""
        level = 0
        for o in operands:
            if o.level > level:
                level = o.level
        key = (text, dtype, lanes)
        while True:
            scope = self.scopes[level]
            found = scope.known.get(key)
            if found is not None:
                return found
            if level >= floor:
                break
            level += 1
        ref = scope.known[key] = self.define(text, dtype, lanes, level, hint)
        return ref

    def here(self, text: str, dtype: DType, lanes: int, memory: Memory, hint: str = "v") -> Ref:
        """A value read from `memory` at this very place; shared until something may have been stored there."""
        key = (text, dtype, lanes, memory.text, memory.version, self.epoch)
        known = self.scopes[-1].known
        ref = known.get(key)
        if ref is None:
            ref = known[key] = self.define(text, dtype, lanes, len(self.scopes) - 1, hint)
        return ref

    def load_floor(self, memory: Memory, proven: bool) -> int:
        """The outermost level that a load may move to: past loops that run, past anything if it is always in bounds."""
        top = len(self.scopes) - 1
        if memory.place != "in":
            return top
        return 0 if proven else self.safe_floor()

    def safe_floor(self) -> int:
        """The outermost level for what may trap: it stays inside branches and loops that may not run."""
        top = len(self.scopes) - 1
        while top > 0 and self.scopes[top].crossable:
            top -= 1
        return top


def folded(op: str, x: Ref, y: Ref) -> Ref | int | None:
    """x + y or x * y of indices, where it is a constant or one of them."""
    a, b = x.literal, y.literal
    if a is not None and b is not None:
        return int(a + b if op == "add" else a * b)
    if op == "mul" and 0 in (a, b):
        return 0
    nothing = 0 if op == "add" else 1
    return y if a == nothing and a is not None else x if b == nothing and b is not None else None
