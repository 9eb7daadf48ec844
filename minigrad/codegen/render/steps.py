"""The facts of Values that are known before they are emitted: a `Step` for each, kept by `Steps`."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minigrad.codegen.render.refs import Ref
from minigrad.codegen.transforms.math import FUNCTIONS, expanded
from minigrad.errors import InternalError
from minigrad.expr import Var, variables
from minigrad.value import Value, indices_of

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

Maker = Callable[["Emitter", Value, Ref | None, list[Ref]], Ref]
"""Emits a value where a mask is true, given its operands."""


class Step:
    """The facts of a Value that are known before it is emitted.

    `parts`: the Steps of its operands, the last one first; `make` emits it, given them; `inside`: the guarded one among
    them; `loads`: True where masks matter; `by_copy`: the variables of unrolled loops that it depends on; `spelled`:
    True where one of them is an operand; `lasts`: it reads nothing that may be written, and no locals; `ref`: a
    constant, once it is emitted.
    """

    __slots__ = ("value", "op", "parts", "make", "inside", "loads", "by_copy", "spelled", "lasts", "ref")

    def __init__(self, value: Value, parts: tuple[Step, ...], make: Maker):
        self.value, self.op, self.parts, self.make, self.loads = value, value.op, parts, make, value.loads
        self.inside: Step | None = None
        self.ref: Ref | None = None
        self.by_copy: tuple[Var, ...] = ()
        self.spelled, self.lasts = False, True


class Steps:
    """`table` has the Steps of Values in loops over the present number of lanes, `learned` those tables by the numbers
    of lanes, `makers` what emits a value by its operation."""

    def __init__(self, out: Emitter, makers: Mapping[str, Maker]):
        self.out, self.makers = out, makers
        self.table: dict[Value, Step] = {}
        self.learned = {(1, 1): self.table}
        self.inputs = {b.name for b in out.function.buffers if b.mode == "in"}
        self.arguments = {s.name for s in out.function.scalars}
        self.formulas: dict[Value, Value] = {}

    def set_width(self, width: int, real_width: int) -> None:
        """Turns to the Steps of loops over so many lanes."""
        self.table = self.learned.setdefault((width, real_width), {})

    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        """The operands of a value, and a function that emits it, given those; functions are their formulas."""
        found = self.out.language.instruction_for(v)
        if found is not None:
            return found
        make = self.makers.get(v.op)
        if make is not None:
            return v.args, make
        if v.op not in FUNCTIONS:
            raise InternalError(f"[render] {self.out.function.name}: cannot render value {v.op}")
        formula = self.formulas.get(v)
        if formula is None:
            formula = self.formulas[v] = expanded(v.op, v.args)
        return (formula,), same

    def learn(self, root: Value) -> Step:
        """The Step of a value."""
        steps = self.table
        stack = [(root, *self.parts_of(root))]
        while stack:
            v, parts, make = stack[-1]
            inner = v.inner
            if parts is not v.args:
                inner += v.args
            missing = [a for a in (parts + inner if inner else parts) if a not in steps]
            if missing:
                for a in missing:
                    if a.op == "const" or a.op == "local":
                        leaf = steps[a] = Step(a, (), self.makers[a.op])
                        leaf.lasts = a.op == "const" or a.name in self.arguments
                    else:
                        stack.append((a, *self.parts_of(a)))
            if not missing or stack[-1][0] is v:
                stack.pop()
                step = steps[v] = Step(v, tuple([steps[a] for a in parts[::-1]]) if parts else (), make)
                self.complete(step, [steps[a] for a in inner] if inner else ())
        return steps[root]

    def complete(self, step: Step, inner: Sequence[Step]) -> None:
        """Fills in the facts of a Step that follow from its parts, from operands that are none, and from the values
        inside its indices."""
        v, op = step.value, step.op
        on: Collection[Var] = ()
        if op == "local":
            step.lasts = v.name in self.arguments
        elif op == "load":
            step.lasts = v.buffer in self.inputs
        elif op == "guard":
            step.inside = step.parts[1]
        copied = self.out.copies.copied
        if copied and v.indexed and (op == "load" or op == "index" or op == "guard"):
            on = {x for e in indices_of(v) for x in variables(e) if x in copied}
            step.spelled = op == "index" and bool(on)
        for x in (*step.parts, *inner) if inner else step.parts:
            if not x.lasts:
                step.lasts = False
            if x.by_copy:
                step.spelled = step.spelled or x.spelled
                if x.by_copy is not on:
                    on = {*on, *x.by_copy} if on else x.by_copy
        if on:
            step.by_copy = tuple(on)

    def kept(self, step: Step, mask: Ref | None) -> tuple[dict[Any, Ref], Any]:
        """The table that a value is remembered in, and its key there: values that differ in every copy are forgotten
        with their statement."""
        out, on = self.out, step.by_copy
        table = out.memo if step.lasts else out.brief
        if on:
            copy = out.copies.copy
            if len(on) >= len(copy):
                table = out.brief
            else:
                return table, (step, mask if step.loads else None, *[copy[x] for x in on])
        return table, step if mask is None or not step.loads else (step, mask)


def same(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    return args[0]
