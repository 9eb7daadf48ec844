"""Contraction + PackedPlan -> loop IR. The nest is the one in packed.py."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Call, Function, If, Loop, ScalarParam, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.strategies.build import accumulate
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.value_walk import Rewriter
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emin, product, subs, variables
from minigrad.value import Value, binary, const, guard, indices_of, load, substitute, walk

LINE = 64
"""Bytes of a cache line: rows of packed blocks are an odd number of lines apart, so that columns use all cache sets."""


@dataclass(frozen=True, slots=True)
class Side:
    """The block of one group of variables: their origins, and how many steps of each the block covers."""

    variables: tuple[Var, ...]
    parts: tuple[int, ...]
    origin: dict[Var, Index]
    counts: tuple[Index, ...]

    @property
    def count(self) -> Index:
        return product(self.counts)

    @property
    def most(self) -> int:
        return product(self.parts)  # type: ignore[return-value]

    def inside(self) -> list[tuple[Var, int, Index]]:
        """(variable, part, count) of what the block steps through, outermost first."""
        return [(v, p, c) for v, p, c in zip(self.variables, self.parts, self.counts, strict=True) if p > 1]


@dataclass(frozen=True, slots=True)
class Run:
    """Variables that a sweep steps through as one: `last` counts on over the others, `count` steps of `stride`."""

    last: Var
    count: Index
    stride: int
    others: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Packed memory: rows of `pitch` elements."""

    name: str
    rows: int
    pitch: int


def build_packed(kernel: Kernel, nest: Nest, plan: PackedPlan, name: str) -> Function:
    """The loop nest of a packed contraction."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return PackedBuilder(kernel, nest, found, plan).function(name)


class PackedBuilder:
    def __init__(self, kernel: Kernel, nest: Nest, contraction: Contraction, plan: PackedPlan):
        self.kernel, self.nest, self.contraction, self.plan = kernel, nest, contraction, plan
        self.count = 0

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        self.count += 1
        return Var(f"{stem}_{self.count}", 0, max(bounds(last)[1], 0))

    def function(self, name: str) -> Function:
        c, plan = self.contraction, self.plan
        boxes = ((c.batch, tuple((v, 1) for v in plan.batch)), (c.n, plan.n), (c.m, plan.m))
        tiles = [(v, part, _tiles(v, part)) for vs, box in boxes for v, part in _parts(vs, box)]
        total = product(t for _, _, t in tiles)
        p = Var("p", 0, total - 1)
        at: dict[Var, Index] = {v: 0 for v in self.nest.domain if v.hi == 0}
        after: Index = 1
        for k in reversed(range(len(tiles))):
            v, part, count = tiles[k]
            tile = p // after
            at[v] = (tile % count if k else tile) * part
            after = after * count
        body = self.block(at)
        buffers = tuple(BufferParam(b.name, b.dtype, b.shape[0], b.mode) for b in self.kernel.params)
        scalars = tuple(ScalarParam(s.name, s.dtype) for s in self.kernel.scalars)
        return Function(name, buffers, scalars, self.kernel.dims, (Loop(p, 0, total, "parallel", tuple(body)),))

    def side(self, variables: tuple[Var, ...], box: Box, at: dict[Var, Index]) -> Side:
        """The block of these variables whose origins are in `at`."""
        parts = _parts(variables, box)
        counts = tuple(part if _divides(v, part) else emin(part, v.hi + 1 - at[v]) for v, part in parts)
        return Side(variables, tuple(part for _, part in parts), at, counts)

    def block(self, at: dict[Var, Index]) -> list[Stmt]:
        """One iteration of the parallel loop: a block of the output."""
        c, plan = self.contraction, self.plan
        m, n = self.side(c.m, plan.m, at), self.side(c.n, plan.n, at)
        depth: int = product(part for _, part in plan.k)  # type: ignore[assignment]
        rows = -(-m.most // plan.rows) * plan.rows
        a = self.memory("a", depth, rows, 1) if plan.a_along == "m" else self.memory("a", rows, depth, 1)
        b = self.memory("b", depth, n.most, plan.vectors)
        out = self.memory("c", rows, n.most, plan.vectors)
        loops: list[tuple[Var, Index]] = []
        for v, part in _parts(c.k, plan.k):
            t = self.fresh(v.name, _tiles(v, part) - 1)
            at[v] = t * part if t.hi else 0
            if t.hi:
                loops.append((t, _tiles(v, part)))
        k = self.side(c.k, plan.k, at)
        inner: list[Stmt] = []
        if plan.a_along:
            inner += self.pack(a, c.a, *((k, m) if plan.a_along == "m" else (m, k)), plan.a_lanes)
        inner += self.pack(b, c.b, k, n, plan.b_lanes)
        inner += self.tiles(a, b, out, m, n, k, tuple(-t for t, _ in loops))
        for t, stop in reversed(loops):
            inner = [Loop(t, 0, stop, "serial", tuple(inner))]
        used = (a, b, out) if plan.a_along else (b, out)
        memory: list[Stmt] = [Alloc(x.name, c.a.dtype, x.rows * x.pitch, "scratch") for x in used]
        return [*memory, *inner, *self.write_back(out, m, n)]

    def memory(self, stem: str, rows: int, columns: int, vectors: int) -> Block:
        """A packed block; a vector, or a tile of `vectors`, may reach beyond the last column."""
        width = self.plan.width
        whole = -(-columns // (width * vectors)) * vectors * width
        line = max(width, LINE // self.contraction.a.dtype.itemsize)
        lines = -(-max(whole, columns + width) // line)
        self.count += 1
        return Block(f"{stem}_{self.count}", rows, (lines + 1 - lines % 2) * line)

    # ---- packing and writing back ----

    def pack(self, block: Block, value: Value, rows: Side, columns: Side, lanes: int) -> list[Stmt]:
        """block[row * pitch + column] = value; where it is read across lanes, rows are the innermost loop."""
        expressions = _expressions(value)
        row_runs, column_runs = _runs(rows, expressions), _runs(columns, expressions)
        row, column = _places(row_runs), _places(column_runs)
        at = {**rows.origin, **columns.origin}

        def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
            offset = row(place) * block.pitch + column(place)
            inside = substitute(value, at)
            if inside.op == "guard" and inside.args[1] is const(0, value.dtype):
                inside, conditions = inside.args[0], (*inside.attr, *conditions)
            zero = const(0, value.dtype)
            some = Store(block.name, offset, guard(inside, zero, conditions))
            whole = _in_all_lanes(conditions, lane, lanes)
            if not whole:
                return [some]
            uniform = tuple(e for e in conditions if lane not in variables(e))
            return [If(whole, (Store(block.name, offset, guard(inside, zero, uniform)),), (some,))]

        # The conditions on lanes are computed once per block of lanes if the next outer variable is inside its loop.
        # What a block stores beyond its run is overwritten by blocks to the left: from the right, further runs later.
        lane_run = column_runs[-1] if column_runs else None
        order = [*row_runs, *column_runs]
        if lanes < self.plan.width:
            order = [*column_runs, *row_runs]
        elif len(column_runs) > 1:
            order[-2:] = [column_runs[-1], column_runs[-2]]
        return self.sweep(order, lane_run, lanes, at, body)

    def write_back(self, out: Block, m: Side, n: Side) -> list[Stmt]:
        """The stores of the nest over one block of sums."""
        c = self.contraction
        expressions = [e for s in c.outputs for e in (*s.indices, *_expressions(s.value))]
        row_runs, column_runs = _runs(m, expressions), _runs(n, expressions)
        row, column = _places(row_runs), _places(column_runs)

        def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
            total = load(out.name, (row(place) * out.pitch + column(place),), c.a.dtype)
            here = Rewriter(at, locals_={c.name: total})
            return [Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in c.outputs]

        at = {**m.origin, **n.origin}
        order = [*row_runs, *column_runs]
        return self.sweep(order, column_runs[-1] if column_runs else None, self.plan.width, at, body)

    def sweep(self, order: list[Run], lane_run: Run | None, width: int, at: dict[Var, Index],
              body: Callable[[dict[Var, Index], dict[Var, Index], tuple[Index, ...], Var], list[Stmt]]) -> list[Stmt]:
        """Loops over runs, `lane_run` across lanes, its last block first.

        body(values of variables, places in the runs, conditions, the lane)
        """
        at, place = dict(at), {}
        loops: list[tuple[Var, Index]] = []
        conditions: tuple[Index, ...] = ()
        lane = self.fresh("l", width - 1)
        for run in order:
            if run is lane_run:
                stop: Index = _ceil(run.count, width)
                x = self.fresh(run.last.name, stop - 1)
                block = x if run is order[-1] else stop - 1 - x
                step: Index = block * width + lane
                if not isinstance(run.count, int) or run.count % width:
                    conditions = (run.count - 1 - step,)
            else:
                stop = run.count
                x = self.fresh(run.last.name, stop - 1)
                step = x
            loops.append((x, stop))
            place[run.last] = step
            at[run.last] = at[run.last] + step
        statements = body(at, place, conditions, lane)
        if lane_run is not None:
            statements = [Loop(lane, 0, width, "vector", tuple(statements))]
        for x, stop in reversed(loops):
            statements = [Loop(x, 0, stop, "serial", tuple(statements))]
        return statements

    # ---- the microkernel ----

    def in_place(self, m: Side, k: Side, row: Index, step: Index) -> Value:
        """A where it is, `row` and `step` counted in the block."""
        value = self.contraction.a
        at = {**m.origin, **k.origin}
        if not isinstance(m.count, int) or m.count % self.plan.rows:
            row = emin(row, m.count - 1)
        for side, place in ((m, row), (k, step)):
            runs = _runs(side, _expressions(value))
            if len(runs) > 1:
                raise InternalError(f"[build] expected one run of {side.variables} to read A in place, got {runs}")
            for run in runs:
                at[run.last] = at[run.last] + place
        return substitute(value, at)

    def tiles(self, a: Block, b: Block, out: Block, m: Side, n: Side, k: Side, first: tuple[Index, ...]) -> list[Stmt]:
        """out += a @ b over tiles of registers; where `first` holds, out = a @ b. Edges compute what nobody reads."""
        plan, dtype = self.plan, self.contraction.a.dtype
        columns = plan.vectors * plan.width
        across, down = _ceil(n.count, columns), _ceil(m.count, plan.rows)
        j, i = self.fresh("j", across - 1), self.fresh("i", down - 1)
        if plan.microkernel:
            kernel = find(plan.microkernel)
            if kernel is None:
                raise InternalError(f"[build] expected a known microkernel, got {plan.microkernel}")
            corner = i * plan.rows * (1 if plan.a_along == "m" else a.pitch)
            at = ((a.name, corner), (b.name, j * columns), (out.name, i * plan.rows * out.pitch + j * columns))

            def call(old: int) -> tuple[Stmt, ...]:
                return (Call(kernel, at, (), (k.count, a.pitch, b.pitch, out.pitch, old)),)

            tile = (If(first, call(0), call(1)),) if first else call(0)
            return [Loop(j, 0, across, "serial", (Loop(i, 0, down, "serial", tile),))]
        x = self.fresh("k", k.count - 1)
        lane = self.fresh("l", plan.width - 1)
        u, v = self.fresh("u", plan.rows - 1), self.fresh("v", plan.vectors - 1)
        acc = f"acc_{self.count}"
        slot = u * plan.vectors + v
        row, column = i * plan.rows + u, j * columns + v * plan.width + lane
        place = x * a.pitch + row if plan.a_along == "m" else row * a.pitch + x
        left, right = load(a.name, (place,), dtype), load(b.name, (x * b.pitch + column,), dtype)
        if not plan.a_along:
            left = self.in_place(m, k, row, x)
        old = load(acc, (slot,), dtype)
        term = accumulate(MONOIDS["sum"], old, binary("mul", left, right))
        whole = row * out.pitch + column
        fresh_sum = Store(out.name, whole, old)
        add = Store(out.name, whole, binary("add", load(out.name, (whole,), dtype), old))

        def each(s: Stmt) -> tuple[Stmt, ...]:
            return (Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),)),)

        done: tuple[Stmt, ...] = (If(first, each(fresh_sum), each(add)),) if first else each(fresh_sum)
        tile = (Alloc(acc, dtype, plan.rows * plan.vectors, "register"), *each(Store(acc, slot, const(0, dtype))),
                Loop(x, 0, k.count, "serial", each(Store(acc, slot, term))), *done)
        vector = Loop(lane, 0, plan.width, "vector", tile)
        return [Loop(j, 0, across, "serial", (Loop(i, 0, down, "serial", (vector,)),))]


def _parts(variables: Sequence[Var], box: Box) -> list[tuple[Var, int]]:
    by_name = {v.name: v for v in variables}
    return [(by_name[name], part) for name, part in box]


def _tiles(v: Var, part: int) -> Index:
    return _ceil(v.hi + 1, part)


def _divides(v: Var, part: int) -> bool:
    return part == 1 or (isinstance(v.hi, int) and (v.hi + 1) % part == 0)


def _expressions(value: Value) -> list[Index]:
    return [e for x in walk(value) for e in indices_of(x) if not isinstance(e, int)]


def _runs(side: Side, expressions: list[Index]) -> list[Run]:
    """The variables that a block steps through, outermost first; those that always step together are one run."""
    runs: list[Run] = []
    stride = 1
    for v, part, count in reversed(side.inside()):
        inner = runs[0] if runs else None
        if inner is not None and inner.count == stride // inner.stride and _together(v, inner, expressions):
            runs[0] = Run(inner.last, count * inner.count, inner.stride, (*inner.others, v))
        else:
            runs.insert(0, Run(v, count, stride, ()))
        stride *= part
    return runs


def _together(outer: Var, run: Run, expressions: list[Index]) -> bool:
    for e in expressions:
        a, b = coefficient(e, outer), coefficient(e, run.last)
        if a is None or b is None or a != b * run.count:
            return False
    return True


def _places(runs: list[Run]) -> Callable[[dict[Var, Index]], Index]:
    """The position in a block's rows or columns for a place in each run."""
    def place(at: dict[Var, Index]) -> Index:
        total: Index = 0
        for run in runs:
            total = total + at[run.last] * run.stride
        return total
    return place


def _in_all_lanes(conditions: tuple[Index, ...], lane: Var, width: int) -> tuple[Index, ...]:
    """Conditions, the same in every lane, under which the given ones hold in all of them; empty where none differs."""
    found: list[Index] = []
    for e in conditions:
        step = coefficient(e, lane)
        if not isinstance(step, int):
            return ()
        if step:
            found.append(subs(e, {lane: 0 if step > 0 else width - 1}))
    return tuple(found)


def _ceil(count: Index, part: int) -> Index:
    return (count + (part - 1)) // part
