"""The emitter: the state of rendering one Function, and the placing of instructions.

Every instruction passes through `Emitter.pure`, which knows the scope (function, loop, branch) of each operand. It puts
the instruction at the end of the deepest of those scopes, so that whatever does not depend on a loop leaves it, and
returns the earlier result when the same text was emitted before.

The rest of a renderer are parts, none of which inherits from another's: functions that take the emitter (`statements`,
`accesses`, `conditions`, `index`), objects that keep something (`copies`, `values`), and what a language supplies
(`language.py`): its `language`, `access`, `storage` and `control`.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.render.copies import Copies
from minigrad.codegen.render.language import Access, Control, Language, Storage
from minigrad.codegen.render.refs import INDENT, Memory, Ref, Scope
from minigrad.codegen.render.values import Values
from minigrad.dtype import DType
from minigrad.expr import Var
from minigrad.target import Target


class Emitter:
    """Renders one Function. `scopes[0]` is the function; `lane`, `width` describe the enclosing vector loop, if any.

    A renderer may do such a loop in parts: lanes from `first_lane` on, `real_width` of the `width` lanes of its types.

    `memo` has results that need not be computed again in this scope, or in one inside it: values by (Step, mask), and
    facts about sums of terms by (name of the fact, terms, ...), which copies of an address that differ in a constant
    share. `brief` has values that last for a statement only: those that read memory that may be written, or locals, or
    differ in every copy. `under` is the mask of what is being emitted; `least_level` the outermost that loads may move
    to; `epoch` counts what ends the sharing of values read from memory.
    """

    language: Language
    access: Access
    storage: Storage
    control: Control

    def __init__(self, function: Function, target: Target):
        self.function, self.target = function, target
        self.scopes = [Scope(crossable=False)]
        self.lane: Var | None = None
        self.width = self.real_width = 1
        self.first_lane = 0
        self.locals: dict[str, Ref] = {}
        self.variables: dict[Var, Ref] = {}
        self.memory: dict[str, Memory] = {}
        self.memo: dict[Any, Any] = {}
        self.brief: dict[Any, Ref] = {}
        self.under: Ref | None = None
        self.literals: dict[tuple[Any, ...], Ref] = {}
        self.counter = self.epoch = self.least_level = 0
        self.copies = Copies(function)
        self.values = Values(self)

    def speak(self, language: Language, access: Access, storage: Storage, control: Control) -> None:
        """Takes the parts that a language supplies, each made for this emitter."""
        self.language, self.access, self.storage, self.control = language, access, storage, control

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def line(self, text: str) -> None:
        """Adds a line to the current scope."""
        self.scopes[-1].lines.append(INDENT[len(self.scopes)] + text)

    def set_width(self, width: int, real_width: int) -> None:
        """Sets the number of lanes for what follows, on which Steps may depend."""
        self.width, self.real_width = width, real_width
        self.values.steps.set_width(width, real_width)

    def constant(self, value: int | float | bool, dtype: DType) -> Ref:
        # The number itself is no key: 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        key = (value, dtype) if type(value) is int else (repr(value), dtype)
        ref = self.literals.get(key)
        if ref is None:
            ref = self.literals[key] = Ref(self.language.literal(value, dtype), dtype)
            ref.literal = value
        return ref

    def spread(self, x: Ref, lanes: int) -> Ref:
        if x.lanes == lanes:
            return x
        if x.wide is None or x.wide.lanes != lanes:
            x.wide = self.language.splat(x, lanes)
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
        ref = scope.known[key] = self.language.define(text, dtype, lanes, level, hint)
        return ref

    def here(self, text: str, dtype: DType, lanes: int, memory: Memory, hint: str = "v") -> Ref:
        """A value read from `memory` at this very place; shared until something may have been stored there."""
        key = (text, dtype, lanes, memory.text, memory.version, self.epoch)
        known = self.scopes[-1].known
        ref = known.get(key)
        if ref is None:
            ref = known[key] = self.language.define(text, dtype, lanes, len(self.scopes) - 1, hint)
        return ref

    def load_floor(self, memory: Memory, proven: bool) -> int:
        """The outermost level that a load may move to: past loops that run, past anything if it is always in bounds."""
        top = len(self.scopes) - 1
        if memory.place != "in":
            return top
        return self.least_level if proven else max(self.safe_floor(), self.least_level)

    def safe_floor(self) -> int:
        """The outermost level for what may trap: it stays inside branches and loops that may not run."""
        top = len(self.scopes) - 1
        while top > 0 and self.scopes[top].crossable:
            top -= 1
        return top
