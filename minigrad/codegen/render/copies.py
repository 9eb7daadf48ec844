"""Copies of the bodies of unrolled loops, without copies of their statements.

The variable of an unrolled loop is a number while its body is emitted once more: `copy` has the numbers. An index that
is linear in such variables is split once, into a part that all copies have in common and a constant; a value that
depends on some of them is remembered by their numbers, so that copies share values that depend on others alone.

    for u in 0..4 unroll:                       u = 0: b[16*k], then b[16*k+48], ...: one pointer and four constants
      for v in 0..3 unroll:                     a[k+v]: loaded three times, when u is 0
        acc[3*u+v] = a[k+v] * b[16*k+48*u]
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from minigrad.codegen.ir.nodes import Function, Loop, Stmt
from minigrad.codegen.ir.walk import blocks, statements
from minigrad.errors import InternalError
from minigrad.expr import Expr, Index, Var, bounds, split, subs, to_text, variables, varying
from minigrad.expr.sums import shifted


class Form:
    """An index as `rest` + the sum of step * variable over `steps`; `rest` depends on the variables `others` of copies,
    and `known` has it by their numbers."""

    __slots__ = ("rest", "steps", "others", "known")

    def __init__(self, rest: Index, steps: tuple[tuple[Var, int], ...], others: tuple[Var, ...]):
        self.rest, self.steps, self.others = rest, steps, others
        self.known: dict[tuple[Index | None, ...], Index] = {}


class Copies:
    """`copy` has the numbers of the variables of unrolled loops around the present statement, and the variables that
    stand for those of other loops whose bounds depend on them; `copied` has all such variables of the function."""

    def __init__(self, function: Function):
        self.function = function
        self.copy: dict[Var, Index] = {}
        self.copied: frozenset[Var] = copied_variables(function)
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
        return shifted(rest, constant) if constant and type(rest) is not int else rest + constant

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


def copied_variables(function: Function) -> frozenset[Var]:
    """The variables of unrolled loops, and of loops whose variables are bounded by such."""
    found: set[Var] = set()
    for s in statements(function):
        if isinstance(s, Loop) and (s.kind == "unroll" or
                                    not found.isdisjoint(variables(s.var.lo) | variables(s.var.hi))):
            found.add(s.var)
    return frozenset(found)
