"""Parts of both forms of windows: the parallel loop over planes, staging, tiles of rows, stores."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.launch import function_of, spread
from minigrad.codegen.ir.nodes import Function, If, Loop, Stmt, Store
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise_window import Rows, Window
from minigrad.codegen.plan.other_plans import WindowPlan
from minigrad.codegen.strategies.stage_window import LoopNames, Staging
from minigrad.expr import Index, Var, bounds, emax, emin
from minigrad.value import Value, free_variables


class WindowBuilder:
    """The base of both forms: the parallel loop over planes, staging, and tiles of rows."""

    def __init__(self, kernel: Kernel, window: Window, plan: WindowPlan):
        self.kernel, self.window, self.plan = kernel, window, plan
        self.names = LoopNames()
        self.staging = Staging(window, plan, self.names)
        self.dtype = window.value.dtype
        tiles = max(-(-g.phases[0].rows.length // plan.height) for g in window.groups)
        self.bands = -(-tiles // plan.band)

    def function(self, name: str) -> Function:
        used = free_variables(self.window.value)
        own = [v for v in self.window.planes if v in used]
        p, total, places = spread([*(v.hi + 1 for v in own), self.bands])
        at = dict(zip(own, places, strict=False))
        body = self.plane(at, places[-1], [v for v in self.window.planes if v not in used])
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", (*self.staging.allocate(), *body)))

    def plane(self, at: dict[Var, Index], band: Index, again: list[Var]) -> list[Stmt]:
        raise NotImplementedError

    def stage(self, at: dict[Var, Index], band: Index, lane: Var) -> list[Stmt]:
        """The positions that a band of tiles reads."""
        first = band * (self.plan.band * self.plan.height * self.staging.row_stride)
        count = self.staging.rows
        left = self.staging.all_rows - first
        return self.staging.stage(at, first, count if bounds(left)[0] >= count else emin(count, left), lane)

    def tiles(self, length: int, band: Index, body) -> list[Stmt]:  # noqa: ANN001
        """body(first row in the band, rows) for the tiles of a band; the last tile of all may be shorter."""
        height, most = self.plan.height, self.plan.band
        whole, rest = divmod(length, height)
        left = whole - band * most
        made: list[Stmt] = []
        if whole:
            count: Index = most if bounds(left)[0] >= most else emax(emin(most, left), 0)
            made += self.names.serial("t", count, lambda t: body(t * height, height))
        if rest:
            at = whole // most
            conditions = tuple(c for c in (band - at, at - band) if bounds(c)[0] < 0)
            last = body(whole % most * height, rest)
            made += [If(conditions, tuple(last))] if conditions else last
        return made

    def outputs(self, group: Rows, at: dict[Var, Index]) -> tuple[Store, ...]:
        """The nest's stores of a plane."""
        here = Rewriter(at)
        return tuple([Store(s.param, here.index(s.indices[0]), here.value(s.value)) for s in group.outputs])

    def stores(self, outputs: Sequence[Store], name: str, at: dict[Var, Index], total: Value,
               conditions: tuple[Index, ...] = ()) -> list[Stmt]:
        """A plane's stores at one place, the sum `name` being `total`."""
        here = Rewriter(at, locals_={name: total})
        left = tuple([c for c in conditions if bounds(c)[0] < 0])
        return [Store(s.buffer, here.index(s.offset),
                      total if s.value.op == "local" and s.value.name == name else here.value(s.value), left)
                for s in outputs]
