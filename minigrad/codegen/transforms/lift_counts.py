"""Function -> function and arguments: how many iterations the parallel loop has becomes a dim, so that other numbers of
planes, images or batches share the program.

    for p in 0..1920 parallel:                         for p in 0..d3 parallel:
      y[784*p] = x[784*p] * w[p%240]         ->          y[784*p] = x[784*p] * w[p%d4]

`lift_sizes` does it with all sizes of a kernel, before its loops are made. Here loops are made for the sizes as they
are, and inside an iteration nothing changes: only the lengths of buffers and what iterations are divided by leave the
text. An access whose place depends on nothing else is in bounds because it was before.
"""
from __future__ import annotations

from minigrad.codegen.ir.nodes import BufferParam, Function, Loop
from minigrad.codegen.ir.walk import map_all, names
from minigrad.codegen.value_walk import below
from minigrad.errors import InternalError
from minigrad.expr import Expr, FloorDiv, Index, Max, Min, Mod, Opaque, Var, emax, emin, variables, varying
from minigrad.expr.core import Terms
from minigrad.value import Value, ValueIndex, free_variables, rebuild, value_atoms

MAX_SIZE = (1 << 31) - 1


def lift_counts(function: Function) -> tuple[Function, tuple[int, ...]] | None:
    """The function with dims, and their values here; None for what has symbolic sizes or computed indices."""
    loop = next((s for s in function.body if isinstance(s, Loop) and s.kind == "parallel"), None)
    if function.dims or loop is None or not isinstance(loop.stop, int) or loop.start != 0:
        return None
    lifter = _Lifter(loop.var, loop.stop, names(function))
    buffers = tuple([BufferParam(b.name, b.dtype, lifter.dim(b.name, b.size), b.mode) for b in function.buffers])
    try:
        body = map_all(function.body, lifter.value, lifter.index, lambda _, e: lifter.index(e))
        body = tuple([Loop(lifter.parallel, 0, lifter.stop, s.kind, s.body) if isinstance(s, Loop) and s.var is loop.var
                      else s for s in body])
    except _Computed:
        return None
    values = tuple([value for _, value in lifter.found])
    return Function(function.name, buffers, function.scalars, tuple(lifter.found.values()), body), values


class _Computed(Exception):
    """An index is computed from values."""


class _Lifter:
    """`found`: dims by what they count, the name of a buffer or '' for iterations, and the number. `old` is the
    parallel loop's variable, which ran to `count`, `parallel` the one that runs to `stop`."""

    def __init__(self, old: Var, count: int, used: set[str]):
        self.old, self.count, self.used = old, count, used
        self.found: dict[tuple[str, int], Var] = {}
        self.stop = self.dim("", count)
        self.parallel = Var(old.name, 0, self.stop - 1)
        self.done: dict[Value, Value] = {}
        self.indexed: dict[Expr, Index] = {}
        self.sums: dict[Expr, Index] = {}

    def dim(self, kind: str, number: Index) -> Index:
        """The argument for a number; 0 and 1, which code relies on, stay what they are."""
        if not isinstance(number, int) or not 1 < number <= MAX_SIZE:
            return number
        known = self.found.get((kind, number))
        if known is None:
            name = f"d{len(self.found)}"
            while name in self.used:
                name += "_"
            known = self.found[kind, number] = Var(name, 1, MAX_SIZE)
        return known

    def value(self, root: Value) -> Value:
        if not root.indexed:
            return root
        found = self.done.get(root)
        if found is None:
            if root.gathers:
                raise _Computed
            found = self.changed(root) if self.old in free_variables(root) else root
        return found

    def changed(self, root: Value) -> Value:
        for v in below(root, self.done):
            if self.old not in free_variables(v):
                self.done[v] = v
                continue
            attr: object = v.attr
            if v.op == "load":
                attr = (v.attr[0], self.indices(v.attr[1]))
            elif v.op == "guard":
                attr = self.indices(v.attr)
            elif v.op == "index":
                attr = self.index(v.attr)
            self.done[v] = rebuild(v, tuple([self.done[a] for a in v.args]), attr)
        return self.done[root]

    def indices(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple([self.index(e) for e in indices])

    def index(self, e: Index) -> Index:
        if isinstance(e, int):
            return e
        if self.old not in (e._variables or variables(e)):
            if value_atoms(e):
                raise _Computed
            return e
        known = self.indexed.get(e)
        if known is None:
            known = self.indexed[e] = self.lifted(e)
        return known

    def lifted(self, e: Expr) -> Index:
        """An index that depends on the iteration; many differ by a constant."""
        whole = varying(e)
        known = self.sums.get(whole)
        if known is None:
            known = self.sums[whole] = self.lifted_terms(whole.terms)
        return known + e.const

    def lifted_terms(self, terms: Terms) -> Index:
        total: Index = 0
        over_all = dict(terms).get((self.old,), 0) * self.count
        for monomial, coefficient in terms:
            # A step over all iterations: from image to image, where an iteration has a plane.
            term: Index = coefficient if coefficient != over_all else coefficient // self.count * self.stop
            for a in monomial:
                term = term * self.atom(a)
            total = total + term
        return total

    def atom(self, a: Index) -> Index:
        if isinstance(a, Var):
            return self.parallel if a is self.old else a
        if isinstance(a, ValueIndex | Opaque):
            raise _Computed
        if not isinstance(a, FloorDiv | Mod | Min | Max):
            raise InternalError(f"[lift] expected an index of operations that are known, got {a}")
        if isinstance(a, Min | Max):
            x, y = self.index(a.a), self.index(a.b)
            return emin(x, y) if isinstance(a, Min) else emax(x, y)
        x, y = self.index(a.a), self.dim("", a.b) if self.counts(a.a) else a.b
        return x // y if isinstance(a, FloorDiv) else x % y

    def counts(self, e: Index) -> bool:
        """Whether an expression is a number of iterations: the parallel loop's variable, or that divided."""
        return e is self.old or isinstance(e, FloorDiv | Mod) and self.counts(e.a)
