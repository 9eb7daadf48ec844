"""Copies of the bodies of unrolled loops, without copies of their statements.

The variable of an unrolled loop is a number while its body is emitted once more: `copy` has the numbers. An index that
is linear in such variables is split once, into a part that all copies have in common and a constant; a value that
depends on some of them is remembered by their numbers, so that copies share values that depend on others alone.

    for u in 0..4 unroll:                       u = 0: b[16*k], then b[16*k+48], ...: one pointer and four constants
      for v in 0..3 unroll:                     a[k+v]: loaded three times, when u is 0
        acc[3*u+v] = a[k+v] * b[16*k+48*u]
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from minigrad.codegen.ir.nodes import Function, Loop, Stmt
from minigrad.codegen.ir.walk import blocks, statements
from minigrad.codegen.render.place import Placer, Ref
from minigrad.errors import InternalError
from minigrad.expr import Expr, Index, Var, bounds, split, subs, to_text, variables, varying
from minigrad.value import Value, indices_of

Maker = Callable[[Value, "Ref | None", "list[Ref]"], Ref]


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


class Form:
    """An index as `rest` + the sum of step * variable over `steps`; `rest` depends on the variables `others` of copies,
    and `known` has it by their numbers."""

    __slots__ = ("rest", "steps", "others", "known")

    def __init__(self, rest: Index, steps: tuple[tuple[Var, int], ...], others: tuple[Var, ...]):
        self.rest, self.steps, self.others = rest, steps, others
        self.known: dict[tuple[Index | None, ...], Index] = {}


class CopyEmitter(Placer):
    """`copy` has the numbers of the variables of unrolled loops around the present statement, and the variables that
    stand for those of other loops whose bounds depend on them.

    `copied` has all such variables of the function; `steps` the facts known of Values, in loops over as many lanes.
    """

    def __init__(self, function: Function):
        super().__init__(function)
        self.copy: dict[Var, Index] = {}
        self.makers: dict[str, Maker] = {}
        self.copied: frozenset[Var] = copied_variables(function)
        self.steps: dict[Value, Step] = {}
        self.learned = {(1, 1): self.steps}
        self.inputs = {b.name for b in function.buffers if b.mode == "in"}
        self.arguments = {s.name for s in function.scalars}
        self.forms: dict[Index, Form] = {}

    def at(self, e: Index) -> Index:
        """An index as it is in this copy."""
        copy = self.copy
        if not copy or isinstance(e, int):
            return e
        form = self.forms.get(e)
        if form is None:
            form = self.forms[e] = self.form_of(e)
        constant = 0
        for v, step in form.steps:
            number = copy[v]
            if type(number) is not int:
                return subs(e, copy)
            constant += step * number
        rest = form.rest
        if form.others:
            key = tuple([copy.get(v) for v in form.others])
            found = form.known.get(key)
            if found is None:
                found = form.known[key] = subs(rest, copy)
            rest = found
        return rest + constant if constant else rest

    def form_of(self, e: Expr) -> Form:
        """The index as a part that copies share and steps by the variables of copies."""
        rest, steps = split(e, self.copied)
        return Form(rest, steps, tuple(variables(rest) & self.copied))

    def numbers(self, s: Loop) -> range:
        """The numbers that the variable of an unrolled loop takes, copy by copy."""
        start, stop = self.at(s.start), self.at(s.stop)
        if not (isinstance(start, int) and isinstance(stop, int)):
            raise InternalError(f"[render] {self.function.name}: expected constant bounds of {s.var.name}, "
                                f"got {to_text(start)}..{to_text(stop)}")
        return range(start, stop)

    def placed(self, s: Loop) -> Loop:
        """A loop that is not unrolled, as it is in this copy."""
        var = s.var
        if var in self.copied:
            self.copy[var] = var = Var(var.name, self.at(var.lo), self.at(var.hi))
        return Loop(var, self.at(s.start), self.at(s.stop), s.kind, s.body) if self.copy else s

    def straight(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        """The statements that stand in a block once loops are unrolled, each one as often as it does."""
        for s in body:
            if isinstance(s, Loop) and s.kind == "unroll":
                for number in self.numbers(s):
                    self.copy[s.var] = number
                    yield from self.straight(s.body)
                self.copy.pop(s.var, None)
            else:
                yield s

    def everywhere(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        """Every statement in a block and in blocks inside it, in each of its copies."""
        for s in self.straight(body):
            yield s
            if isinstance(s, Loop):
                s = self.placed(s)
            for block in blocks(s):
                yield from self.everywhere(block)

    def left(self, conditions: Sequence[Index]) -> tuple[Index, ...] | None:
        """The conditions that are not proven true in this copy; None when one is proven false."""
        left: list[Index] = []
        for c in conditions:
            c = self.at(c)
            lo, hi = self.range_of(c)
            if hi < 0:
                return None
            if lo < 0 and c not in left:
                left.append(c)
        return tuple(left)

    def range_of(self, e: Index) -> tuple[int, int]:
        """The bounds of an index."""
        if isinstance(e, int):
            return e, e
        lo, hi = bounds(varying(e))
        return lo + e.const, hi + e.const

    # ---- values ----

    def set_width(self, width: int, real_width: int) -> None:
        """Sets the number of lanes for what follows (see `Placer`), on which Steps may depend."""
        self.width, self.real_width = width, real_width
        self.steps = self.learned.setdefault((width, real_width), {})

    @abstractmethod
    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        """The operands of a value, and a function that emits it, given those."""

    def learn(self, root: Value) -> Step:
        """The Step of a value."""
        steps = self.steps
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
                        leaf.lasts = a.op == "const" or a.attr in self.arguments
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
            step.lasts = v.attr in self.arguments
        elif op == "load":
            step.lasts = v.attr[0] in self.inputs
        elif op == "guard":
            step.inside = step.parts[1]
        if self.copied and v.indexed and (op == "load" or op == "index" or op == "guard"):
            on = {x for e in indices_of(v) for x in variables(e) if x in self.copied}
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

    def kept(self, step: Step, mask: Ref | None) -> tuple[dict[Any, Any], Any]:
        """The table that a value is remembered in, and its key there: values that differ in every copy are forgotten
        with their statement."""
        on, copy = step.by_copy, self.copy
        table = self.memo if step.lasts else self.brief
        if on:
            if len(on) >= len(copy):
                table = self.brief
            else:
                return table, (step, mask if step.loads else None, *[copy[x] for x in on])
        return table, step if mask is None or not step.loads else (step, mask)


def copied_variables(function: Function) -> frozenset[Var]:
    """The variables of unrolled loops, and of loops whose variables are bounded by such."""
    found: set[Var] = set()
    for s in statements(function):
        if isinstance(s, Loop) and (s.kind == "unroll" or
                                    not found.isdisjoint(variables(s.var.lo) | variables(s.var.hi))):
            found.add(s.var)
    return frozenset(found)
