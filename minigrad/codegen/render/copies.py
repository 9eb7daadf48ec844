"""Copies of the bodies of unrolled loops, without copies of their statements.

The variable of an unrolled loop is a number while its body is emitted once more: `copy` has the numbers. An index that
is linear in such variables is split once, into what all copies have in common and a constant; a value that depends on
some of them is remembered by their numbers, so that copies share what differs in others alone.

    for u in 0..4 unroll:                       u = 0: b[16*k], then b[16*k+48], ...: one pointer and four constants
      for v in 0..3 unroll:                     a[k+v]: loaded three times, when u is 0
        acc[3*u+v] = a[k+v] * b[16*k+48*u]
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from minigrad.codegen.ir.nodes import Function, Loop, Stmt
from minigrad.codegen.ir.walk import blocks, statements
from minigrad.codegen.render.place import Placer, Ref
from minigrad.codegen.value_walk import Rewriter, below, operands
from minigrad.errors import InternalError
from minigrad.expr import Expr, Index, Var, bounds, subs, to_text, variables
from minigrad.value import Value, indices_of


class CopyEmitter(Placer):
    """`copy`: the numbers of the variables of unrolled loops around the present statement, and what stands for variables
    of other loops whose bounds depend on them. `by_copy` says on which of them a value depends, if on any."""

    def __init__(self, function: Function):
        super().__init__(function)
        self.copy: dict[Var, Index] = {}
        self.copied: frozenset[Var] = copied_variables(function)
        self.by_copy: dict[Value, tuple[Var, ...]] = {}
        self.spelled: set[Value] = set()
        self.inputs = {b.name for b in function.buffers if b.mode == "in"}
        self.arguments = {s.name for s in function.scalars}
        self.forms: dict[Index, tuple[Index, tuple[tuple[Var, int], ...]] | None] = {}

    def at(self, e: Index) -> Index:
        """An index as it is in this copy."""
        if isinstance(e, int) or not self.copy:
            return e
        if e in self.forms:
            form = self.forms[e]
        else:
            form = self.forms[e] = self.form_of(e)
        if form is None:
            return subs(e, self.copy)
        rest, steps = form
        constant = 0
        for v, step in steps:
            number = self.copy[v]
            if not isinstance(number, int):
                return subs(e, self.copy)
            constant += step * number
        return rest + constant if constant else rest

    def form_of(self, e: Expr) -> tuple[Index, tuple[tuple[Var, int], ...]] | None:
        """(rest, steps) for e = rest + the sum of step * variable over `steps`; None where it is not of that form."""
        rest, steps = e, []
        for monomial, coefficient in e.terms:
            a = monomial[0]
            if len(monomial) == 1 and isinstance(a, Var) and a in self.copied:
                steps.append((a, coefficient))
                rest = rest - a * coefficient
            elif any(not self.copied.isdisjoint(variables(f)) for f in monomial):
                return None
        return rest, tuple(steps)

    def numbers(self, s: Loop) -> range:
        """What the variable of an unrolled loop is, copy by copy."""
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
                for self.copy[s.var] in self.numbers(s):
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
        key = "range", e.terms
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = bounds(e - e.const)
        return found[0] + e.const, found[1] + e.const

    # ---- values ----

    def learn(self, root: Value) -> None:
        """What is to be known of a value before it is emitted: on which copies it depends, and whether it `lasts`."""
        for v in below(root, self.lasting):
            inner = operands(v)
            found = {x for a in inner if a in self.by_copy for x in self.by_copy[a]}
            if self.copied:
                for e in indices_of(v):
                    found |= variables(e) & self.copied
            if found:
                self.by_copy[v] = tuple(found)
                if v.op == "index" or any(a in self.spelled for a in inner):
                    self.spelled.add(v)
            lasts = v.attr in self.arguments if v.op == "local" else v.op != "load" or v.attr[0] in self.inputs
            self.lasting[v] = lasts and all([self.lasting[a] for a in inner])

    def key_of(self, v: Value, mask: Ref | None) -> tuple:
        """Under which a value is remembered."""
        if not v.loads:
            mask = None
        if v in self.by_copy:
            return v, mask, *[self.copy[x] for x in self.by_copy[v]]
        return v, mask

    def spelled_out(self, v: Value) -> Value:
        """The value as it is in this copy, written out where its meaning as a number depends on the copy."""
        if not self.copied:
            return v
        if v not in self.lasting:
            self.learn(v)
        return Rewriter(self.copy).value(v) if v in self.spelled else v


def copied_variables(function: Function) -> frozenset[Var]:
    """The variables of unrolled loops, and of loops whose variables are bounded by such."""
    found: set[Var] = set()
    for s in statements(function):
        if isinstance(s, Loop) and (s.kind == "unroll" or not found.isdisjoint(variables(s.var.lo) | variables(s.var.hi))):
            found.add(s.var)
    return frozenset(found)
