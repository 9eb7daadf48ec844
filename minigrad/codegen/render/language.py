"""The four parts that a language supplies to the emitter, each abstract here and a class of its own in a renderer.

`Language` has the texts of instructions on values, `Access` those of loads and stores, `Storage` the memory of the
program's own, `Control` loops, branches and calls. Each is made for one emitter, which it writes to.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, Call, Loop, Stmt
from minigrad.codegen.render.refs import Memory, OpenLoop, Ref, Scope
from minigrad.dtype import DType
from minigrad.expr import Index
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter
    from minigrad.codegen.render.steps import Maker


class Language(ABC):
    """Values as instructions. `pure`, `constant` and `every` are the emitter's."""

    def __init__(self, out: Emitter):
        self.out, self.target = out, out.target
        self.pure, self.constant, self.every = out.pure, out.constant, out.every

    @abstractmethod
    def name(self, hint: str) -> str:
        """A new name."""

    @abstractmethod
    def define(self, text: str, dtype: DType, lanes: int, level: int, hint: str) -> Ref:
        """A new value, defined as `text` at the end of the scope of that level."""

    @abstractmethod
    def comment(self, text: str) -> None:
        """A remark in the source."""

    @abstractmethod
    def instruction_for(self, v: Value) -> tuple[tuple[Value, ...], Maker] | None:
        """The operands and the maker of a value that there is one instruction for; None where it is made of the usual
        operations."""

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
    def integer(self, op: str, x: Ref, y: Ref, small: bool = False, traps: bool = False) -> Ref:
        """Index arithmetic on scalars: add, mul, min, max, div and mod of non-negative numbers (`small`: of 32 bits),
        fdiv and fmod that floor. `traps`: y may be 0, so that a division has to stay
        in its branch or loop."""

    def index_value(self, x: Ref) -> Ref:
        """An index that was computed as a value, as further values may use it."""
        return x

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
        """The cast of `value/core.py`; also to and from INDEX."""

    @abstractmethod
    def reinterpret(self, x: Ref, dtype: DType) -> Ref:
        """The bitcast of `value/core.py`."""

    @abstractmethod
    def across(self, combine: str, xs: Sequence[Ref]) -> list[Ref]:
        """All lanes of each vector combined in a fixed tree, which is the same whatever the other vectors are; scalars.
        All have as many lanes."""

    @abstractmethod
    def any_lane(self, mask: Ref) -> Ref:
        """True if a lane of a mask is."""

    def pairwise(self, combine: str, parts: list[Ref]) -> Ref:
        """All of them combined, neighbours first."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[-1:] if len(parts) % 2 else []
            parts = [self.operation(combine, pair, pair[0].dtype) for pair in pairs] + last
        return parts[0]


class Access(ABC):
    """Loads and stores as instructions."""

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
    def prefetch(self, memory: Memory, offset: Index, far: bool) -> None:
        """A hint that memory will be read; may do nothing."""


class Storage(ABC):
    """Memory of the program's own: register buffers and scratch."""

    @abstractmethod
    def allocate(self, s: Alloc) -> Memory:
        """Declares a buffer."""

    @abstractmethod
    def read_slot(self, memory: Memory, slot: int) -> Ref:
        """The present value of an element of a register buffer."""

    @abstractmethod
    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        """Sets an element of a register buffer."""


class Control(ABC):
    """Loops, branches, calls."""

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
    def vector_body(self, s: Loop) -> None:
        """The statements of a vector loop for all its lanes."""

    @abstractmethod
    def region(self, body: Sequence[Stmt]) -> None:
        """A block of which all statements run if one does: the body of a loop, a side of a branch."""

    @abstractmethod
    def call_microkernel(self, s: Call) -> None:
        """Calls the implementation of a microkernel."""

    @abstractmethod
    def barrier(self) -> None:
        """Joins the work-items of one work-group."""
