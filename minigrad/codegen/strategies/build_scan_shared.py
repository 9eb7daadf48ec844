"""The loops of a kernel with steps whose state the work-items of a group share (strategies/scan.py)."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.launch import ceil_div, places_of
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.flatten import map_accesses, offset
from minigrad.codegen.plan.other_plans import ScanPlan
from minigrad.codegen.policy.scan import room
from minigrad.codegen.strategies.build_scan import ScanBuilder, build_scan
from minigrad.codegen.transforms import budget
from minigrad.expr import Index, Var, emin, product
from minigrad.target import Target
from minigrad.value import Value, load


def build_loop(kernel: Kernel, plan: ScanPlan, name: str) -> Function:
    """The loops of a kernel with steps."""
    return (build_shared if plan.groups and plan.across < 0 else build_scan)(kernel, plan, name)


def runs(kernel: Kernel, plan: ScanPlan, target: Target) -> bool:
    """True where a device has the local memory that a kernel with steps takes, and lets its loops run to their end."""
    if not plan.groups:
        return True
    function, limit = build_loop(kernel, plan, kernel.name), target.max_iterations
    taken = sum([s.size * s.dtype.compute.itemsize for s in statements(function)
                 if isinstance(s, Alloc) and s.scope == "local"])
    return taken <= room(target) and (
        not limit or budget.iterations(budget.limit_iterations(function, limit).body) <= limit)


def build_shared(kernel: Kernel, plan: ScanPlan, name: str) -> Function:
    """The loops of a kernel with steps, a work-group for each independent part of the state."""
    return _SharedBuilder(kernel, plan).function(name)


class _SharedBuilder(ScanBuilder):
    def __init__(self, kernel: Kernel, plan: ScanPlan):
        super().__init__(kernel, plan)
        self.dropped, self.renamed = set(), {}  # while one item stores a new carry, another may read the old one
        self.kept: dict[str, str] = {}
        self.arrays: list[Alloc] = []
        """The values that nests name before inner ones, in local memory, by name."""

    def size(self, q: Param) -> int:
        return int(product(self.own(q)))

    def place(self, name: str, at: tuple[Index, ...]) -> tuple[Index, ...]:
        q = self.state.get(name)
        if q is None:
            return super().place(name, at)
        gone = {a.axes[name] for a in self.axes if name in a.axes}
        return (offset(tuple([e for d, e in enumerate(at) if d not in gone]), self.own(q)),)

    def memory(self) -> list[Alloc]:
        return [*super().memory(), *self.arrays]

    def body(self, places: Sequence[Index]) -> list[Stmt]:
        """All nests, and after each a barrier."""
        parts: tuple[list[Stmt], ...] = [], [], []
        steps = self.steps
        for k, nest in enumerate(map_accesses(self.kernel.nests, self.place)):
            at = {a.variables[k]: place for a, place in zip(self.axes, places, strict=True) if k in a.variables}
            parts[(k >= steps.first) + (k >= steps.last)].extend(self.shared(nest, at, {}))
        before, inside, after = parts
        return [*before, Loop(steps.var, 0, steps.var.hi + 1, "serial", tuple(inside)), *after]

    def shared(self, nest: Nest, at: dict[Var, Index], names: dict[str, Value]) -> list[Stmt]:
        """The nest with the variables in `at` known. Inner nests are shared out too: what is named between them is
        in local memory, an element for each place of the outer one.

            for i:                                items: n[i] = f(i) for some i each; barrier
              n = f(i)                     ->
              for j: y[i, j] = g(n, j)            y[i, j] = g(n[i], j) for some i, j each; barrier
        """
        over = [v for v in nest.domain if v not in at]
        flat = offset(tuple(over), tuple([v.hi + 1 for v in over]))
        out: list[Stmt] = []
        names, run = dict(names), list[Define | Store | Nest]()
        for s in nest.body:
            if not isinstance(s, Nest):
                run.append(s)
                continue
            out += self.some(over, at, names, run, keep=True)
            for d in run:
                if isinstance(d, Define):
                    names[d.name] = load(self.kept[d.name], (flat,), d.value.dtype)
            out += self.shared(Nest((*nest.domain, *s.domain), s.body), at, names)
            run = []
        return [*out, *self.some(over, at, names, run, keep=False)]

    def some(self, over: Sequence[Var], at: dict[Var, Index], names: dict[str, Value],
             body: Sequence[Define | Store | Nest], keep: bool) -> list[Stmt]:
        """Statements for all places, some for each item, and a barrier. Items beyond the last one compute that again
        and store nothing. `keep`: what is named is kept for other items."""
        if not body:
            return []
        items, total = self.plan.lanes, int(product([v.hi + 1 for v in over]))
        turns = ceil_div(total, items)
        c = self.names.counted("c", turns)
        place: Index = self.lane if turns == 1 else c * items + self.lane
        whole = total % items == 0
        places = places_of(place if whole else emin(place, total - 1), [v.hi + 1 for v in over])
        there = {**at, **dict(zip(over, places, strict=True))}
        here = Rewriter(there)
        self.conditions = () if whole else (total - 1 - place,)
        out: list[Stmt] = []
        known = self.statements(body, there, {k: here.value(v) for k, v in names.items()}, out)
        for s in body:
            if isinstance(s, Define) and keep:
                name = self.kept[s.name] = self.names.name("kept")
                self.arrays.append(Alloc(name, s.value.dtype, total, "local"))
                out.append(IRStore(name, place, known[s.name], self.conditions))
        self.conditions = ()
        return [*(out if turns == 1 else [Loop(c, 0, turns, "serial", tuple(out))]), Barrier()]
