"""The loops of a kernel with steps (strategies/scan.py): the state in memory of its worker, lanes around all else."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.launch import Names, ceil_div, function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Function, Let, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter, replace_values
from minigrad.codegen.lowering.flatten import map_accesses, offset
from minigrad.codegen.lowering.rename import statements
from minigrad.codegen.plan.other_plans import ScanPlan
from minigrad.codegen.plan.sums import outermost_reductions
from minigrad.codegen.policy.scan import independent, reads
from minigrad.codegen.policy.scan_in_place import in_place
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, emin, product
from minigrad.value import Value, load, local, substitute


def build_scan(kernel: Kernel, plan: ScanPlan, name: str) -> Function:
    """The loops of a kernel with steps."""
    return ScanBuilder(kernel, plan).function(name)


@dataclass(frozen=True)
class _Run:
    """A nest, and the places of its independent variables."""

    nest: Nest
    at: dict[Var, Index]


class ScanBuilder:
    def __init__(self, kernel: Kernel, plan: ScanPlan):
        self.kernel, self.plan, self.names = kernel, plan, Names()
        self.steps = present(kernel.steps, "[scan] expected a kernel with steps")
        self.axes = independent(kernel)
        self.dropped, self.renamed = in_place(kernel, self.axes)
        self.lane = Var("lane", 0, plan.lanes - 1)
        self.state = {p.name: p for p in self.steps.state}
        self.conditions: tuple[Index, ...] = ()
        """The conditions of stores."""

    def function(self, name: str) -> Function:
        counts: list[Index] = [ceil_div(a.extent, self.plan.lanes) if k == self.plan.across else a.extent
                               for k, a in enumerate(self.axes)]
        p, total, places = spread(counts, "p")
        if self.plan.across >= 0:
            k, lanes = self.plan.across, self.plan.lanes
            places[k] = emin(places[k] * lanes, self.axes[k].extent - lanes) + self.lane
        body = self.body(places)
        if self.plan.lanes > 1 or self.plan.groups:
            kind = "item" if self.plan.groups else "vector"
            body = [Loop(self.lane, 0, self.plan.lanes, kind, tuple(body))]
        flat = [Param(q.name, q.dtype, (product(q.shape),), q.mode) for q in self.kernel.params]
        whole = Kernel(self.kernel.name, tuple(flat), self.kernel.scalars, self.kernel.dims, ())
        kind = "group" if self.plan.groups else "parallel"
        return function_of(whole, name, Loop(p, 0, total, kind, (*self.memory(), *body)))

    # ---- memory ----

    def own(self, q: Param) -> tuple[Index, ...]:
        """The shape of a worker's part of a buffer of the state."""
        gone = {a.axes[q.name] for a in self.axes if q.name in a.axes}
        return tuple([n for d, n in enumerate(q.shape) if d not in gone])

    def memory(self) -> list[Alloc]:
        """The memory of a worker's part of the state."""
        scope = "local" if self.plan.groups else "scratch"
        return [Alloc(q.name, q.dtype, self.size(q), scope) for q in self.steps.state if q.name not in self.renamed]

    def size(self, q: Param) -> int:
        return int(product(self.own(q))) * self.plan.lanes

    def place(self, name: str, at: tuple[Index, ...]) -> tuple[Index, ...]:
        """The flat place of an element of a buffer."""
        q = self.state.get(name)
        if q is None:
            return (offset(at, next(p for p in self.kernel.params if p.name == name).shape),)
        gone = {a.axes[name] for a in self.axes if name in a.axes}
        inner = tuple([e for d, e in enumerate(at) if d not in gone])
        flat = offset(inner, self.own(q)) * self.plan.lanes
        return (flat + self.lane if self.plan.lanes > 1 else flat,)

    # ---- loops ----

    def body(self, places: Sequence[Index]) -> list[Stmt]:
        """All nests; where a sum of what one stores is the first thing that the next one does, in one loop."""
        before: list[Stmt] = []
        inside: list[Stmt] = []
        after: list[Stmt] = []
        runs = []
        for k, nest in enumerate(map_accesses(self.kernel.nests, self.place)):
            if k not in self.dropped:
                at = {a.variables[k]: place for a, place in zip(self.axes, places, strict=True) if k in a.variables}
                runs.append((k, _Run(nest, at)))
        while runs:
            k, run = runs.pop(0)
            into = before if k < self.steps.first else inside if k < self.steps.last else after
            joined = self.steps.first <= k and runs and runs[0][0] < self.steps.last and _follows(run, runs[0][1])
            if joined:
                into += self.together(run, runs.pop(0)[1])
            else:
                into += self.nest(run.nest, run.at, {})
        t = self.steps.var
        return [*before, Loop(t, 0, t.hi + 1, "serial", tuple(inside)), *after]

    def together(self, first: _Run, second: _Run) -> list[Stmt]:
        """The first nest, and the second one, whose sum is added up in the last loop of the first."""
        out: list[Stmt] = []
        found, define = _last_loop(first), second.nest.body[0]
        if found is None or not isinstance(define, Define):
            raise InternalError("[scan] expected a loop and a sum")
        earlier, v, store = found
        names = self.statements(earlier, first.at, {}, out)
        reduction = substitute(define.value, second.at)
        blocks = self.blocks(v, first.at)
        total = _Sum(self, reduction, max(b[2] for b in blocks))
        out += total.begin()
        for start, stop, copies in blocks:
            def inner(x: Index, u: int) -> list[Stmt]:
                made: list[Stmt] = []
                at = {**first.at, v: x}
                value = self.value(Rewriter(at, locals_=names).value(store.value), made)
                name, place = self.names.name("new"), Rewriter(at, locals_=names).index(store.indices[0])
                kept = local(name, value.dtype)
                made += [Let(name, value), IRStore(self.renamed.get(store.param, store.param), place, kept)]
                stored = {load(store.param, (place,), kept.dtype): kept}
                return [*made, *total.added({reduction.over[0]: x}, u, stored)]

            out += self.block(v, start, stop, copies, inner)
        result = total.end(out)
        self.statements(second.nest.body[1:], second.at, {define.name: result}, out)
        return out

    def nest(self, nest: Nest, at: dict[Var, Index], names: dict[str, Value]) -> list[Stmt]:
        """The loops of a nest whose variables in `at` are known."""
        loops = [v for v in nest.domain if v not in at]

        def inside(here: dict[Var, Index]) -> list[Stmt]:
            out: list[Stmt] = []
            self.statements(nest.body, here, names, out)
            return out

        return self.loops(loops, at, inside, not any(isinstance(s, Nest) or s.value.reduces for s in nest.body))

    def loops(self, over: Sequence[Var], at: dict[Var, Index], inner: Callable[[dict[Var, Index]], list[Stmt]],
              innermost: bool) -> list[Stmt]:
        """Loops inside each other; iterations of the last one are written out where it is the `innermost` of all."""
        if not over:
            return inner(at)
        v, rest = over[0], over[1:]
        if rest or not innermost:
            x = self.names.counted(v.name, Rewriter(at).index(v.hi + 1))
            stop = Rewriter(at).index(v.hi + 1)
            return [Loop(x, 0, stop, "serial", tuple(self.loops(rest, {**at, v: x}, inner, innermost)))]
        return [s for start, stop, copies in self.blocks(v, at)
                for s in self.block(v, start, stop, copies, lambda x, u: inner({**at, v: x}))]

    def blocks(self, v: Var, at: dict[Var, Index]) -> list[tuple[Index, Index, int]]:
        """(start, stop, iterations written out) of the loops that a variable's loop is."""
        extent, count = Rewriter(at).index(v.hi + 1), self.plan.sums
        if not isinstance(extent, int) or extent < count:
            return [(0, extent, 1)]
        whole = extent // count * count
        return [(0, whole, count), *([(whole, extent, 1)] if whole < extent else [])]

    def block(self, v: Var, start: Index, stop: Index, copies: int, inner: Callable[[Index, int], list[Stmt]],
              ) -> list[Stmt]:
        """A loop of which `copies` iterations are written out; `inner(index, copy)`."""
        x = self.names.counted(v.name, stop if copies == 1 else (stop - start) // copies)
        if copies == 1:
            return [Loop(x, start, stop, "serial", tuple(inner(x, 0)))]
        body = [s for u in range(copies) for s in inner(x * copies + u + start, u)]
        return [Loop(x, 0, (stop - start) // copies, "serial", tuple(body))]

    def statements(self, body: Sequence[Define | Store | Nest], at: dict[Var, Index], names: dict[str, Value],
                   out: list[Stmt]) -> dict[str, Value]:
        """Adds statements to `out`; gives the names that are known then."""
        names = dict(names)
        for s in body:
            if isinstance(s, Nest):
                out += self.nest(s, at, names)
                continue
            value = self.value(Rewriter(at, locals_=names).value(s.value), out)
            if isinstance(s, Define):
                name = self.names.name(s.name)
                out.append(Let(name, value))
                names[s.name] = local(name, value.dtype)
            else:
                place = Rewriter(at, locals_=names).index(s.indices[0])
                out.append(IRStore(self.renamed.get(s.param, s.param), self.index(place), value, self.conditions))
        return names

    # ---- values ----

    def index(self, e: Index) -> Index:
        return Rewriter({}, self.renamed).index(e) if self.renamed else e

    def value(self, value: Value, out: list[Stmt], known: dict[Value, Value] | None = None) -> Value:
        """The value once `out` has run, which computes the reductions inside it, but for what is `known`."""
        found = {**(known or {}), **{r: self.reduction(r, out) for r in outermost_reductions([value])}}
        value = replace_values(value, found) if found else value
        return Rewriter({}, self.renamed).value(value) if self.renamed else value

    def reduction(self, r: Value, out: list[Stmt]) -> Value:
        """The result of a reduction that `out` computes, by accumulators for each iteration that is written out."""
        over = r.over
        blocks = [(0, over[-1].hi + 1, 1)] if r.args[0].reduces else self.blocks(over[-1], {})
        total = _Sum(self, r, max(b[2] for b in blocks))
        out += total.begin()

        def loops(k: int, at: dict[Var, Index]) -> list[Stmt]:
            if k == len(over) - 1:
                return [s for start, stop, copies in blocks for s in self.block(
                    over[k], start, stop, copies, lambda x, u: total.added({**at, over[k]: x}, u))]
            x = self.names.counted(over[k].name, over[k].hi + 1)
            return [Loop(x, 0, over[k].hi + 1, "serial", tuple(loops(k + 1, {**at, over[k]: x})))]

        out += loops(0, {})
        return total.end(out)


class _Sum:
    """The accumulators of a reduction, `copies` of them."""

    def __init__(self, builder: ScanBuilder, reduction: Value, copies: int):
        self.builder, self.copies, self.name = builder, copies, builder.names.name("sum")
        self.monoid, self.term, self.dtype = MONOIDS[reduction.monoid], reduction.args[0], reduction.dtype

    def begin(self) -> list[Stmt]:
        nothing = self.monoid.init(self.dtype)
        return [Alloc(self.name, self.dtype, self.copies, "register"),
                *[IRStore(self.name, u, nothing) for u in range(self.copies)]]

    def added(self, at: dict[Var, Index], u: int, known: dict[Value, Value] | None = None) -> list[Stmt]:
        """Adds the term at a place to accumulator `u`."""
        out: list[Stmt] = []
        value = self.builder.value(substitute(self.term, at), out, known)
        return [*out, IRStore(self.name, u, accumulate(self.monoid, load(self.name, (u,), self.dtype), value))]

    def end(self, out: list[Stmt]) -> Value:
        """All accumulators together, which `out` computes."""
        parts = [load(self.name, (u,), self.dtype) for u in range(self.copies)]
        while len(parts) > 1:
            parts = [self.monoid.apply(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + (
                [parts[-1]] if len(parts) % 2 else [])
        name = self.builder.names.name("total")
        out.append(Let(name, parts[0]))
        return local(name, self.dtype)


def _last_loop(run: _Run) -> tuple[tuple[Define | Store | Nest, ...], Var, Store] | None:
    """(the statements before it, its variable, its store) of the one loop that a nest ends with, if it only stores."""
    earlier: tuple[Define | Store | Nest, ...] = ()
    loop: Define | Store | Nest = run.nest
    if all(v in run.at for v in run.nest.domain):
        earlier, loop = run.nest.body[:-1], run.nest.body[-1]
    left = [v for v in loop.domain if v not in run.at] if isinstance(loop, Nest) else []
    if not isinstance(loop, Nest) or len(left) != 1 or len(loop.body) != 1 or not isinstance(loop.body[0], Store):
        return None
    return earlier, left[0], loop.body[0]


def _follows(first: _Run, second: _Run) -> bool:
    """True where the last loop of the first nest stores what the second one adds up first, each element at its turn,
    and nothing else that this reads."""
    found, define = _last_loop(first), second.nest.body[0]
    if found is None or not isinstance(define, Define) or define.value.op != "reduce":
        return False
    over, term = define.value.over, define.value.args[0]
    _, v, store = found
    stores = [s for s in statements(first.nest.body) if isinstance(s, Store)]
    if any(x not in second.at for x in second.nest.domain) or len(over) != 1 or term.reduces or \
            len(stores) != 1 or store.value.reduces or v.hi != over[0].hi:
        return False
    x = Var("x", 0, v.hi)
    place = Rewriter({**first.at, v: x}).index(store.indices[0])
    read = [Rewriter({**second.at, over[0]: x}).index(at[0]) for at in reads(term, store.param)]
    return bool(read) and all(e == place for e in read)
