"""Contraction + PackedPlan -> loop IR: tiles of packed operands by calls of microkernels. The nest is in packed.py."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.codegen.cost.caches import LINE
from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Loop, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.tile import KINDS
from minigrad.codegen.strategies.build_bfloat16 import over_words, unscaled
from minigrad.codegen.strategies.build_squares import pack_squares
from minigrad.codegen.strategies.launch import ceil_div, function_of
from minigrad.codegen.strategies.narrow import BIAS, bias_rows
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.strategies.sides import (
    Block,
    Run,
    Side,
    dense,
    divides,
    expressions_of,
    fill,
    further,
    parts_of,
    places_of,
    runs_in_squares,
    runs_of,
    tiles_of,
)
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import uint32
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, bounds, emax, emin, product
from minigrad.value import Value, binary, bitcast, const, load, substitute


def build_packed(kernel: Kernel, nest: Nest, plan: PackedPlan, name: str) -> Function:
    """The loop nest of a packed contraction."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return PackedBuilder(kernel, nest, found, plan).function(name)


class PackedBuilder:
    """`contraction` is over what is packed, words of several `elements` perhaps."""

    def __init__(self, kernel: Kernel, nest: Nest, contraction: Contraction, plan: PackedPlan):
        self.kernel, self.nest, self.plan = kernel, nest, plan
        self.elements, self.contraction = contraction, over_words(contraction, plan.words)
        self.sum = KINDS[plan.words][1] if plan.words else contraction.total
        self.below = bias_rows(self.contraction, plan.words)
        """Rows of a block of A beyond its own: one of 128s, whose sums are subtracted from those of the others."""
        self.count = 0

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        self.count += 1
        return Var(f"{stem}_{self.count}", 0, max(bounds(last)[1], 0))

    def function(self, name: str) -> Function:
        c, plan = self.contraction, self.plan
        groups = ((c.batch, tuple((v, 1) for v in plan.batch)), (c.n, plan.n), (c.m, plan.m))
        tiles = [(v, part, tiles_of(v, part)) for vs, box in groups for v, part in parts_of(vs, box)]
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
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", tuple(body)))

    def side(self, variables: tuple[Var, ...], box: Box, at: dict[Var, Index]) -> Side:
        """The block of these variables whose origins are in `at`."""
        parts = parts_of(variables, box)
        counts = tuple(part if divides(v, part) else emin(part, v.hi + 1 - at[v]) for v, part in parts)
        return Side(variables, tuple(part for _, part in parts), at, counts, dense(part for _, part in parts))

    def block(self, at: dict[Var, Index]) -> list[Stmt]:
        """One iteration of the parallel loop: a block of the output."""
        c, plan = self.contraction, self.plan
        m, n = self.side(c.m, plan.m, at), self.side(c.n, plan.n, at)
        depth: int = product(part for _, part in plan.k)  # type: ignore[assignment]
        rows = -(-(m.most + self.below) // plan.rows) * plan.rows
        loops: list[tuple[Var, Index]] = []
        for v, part in parts_of(c.k, plan.k):
            t = self.fresh(v.name, tiles_of(v, part) - 1)
            at[v] = t * part if t.hi else 0
            if t.hi:
                loops.append((t, tiles_of(v, part)))
        k = self.side(c.k, plan.k, at)
        a = self.memory("a", depth, rows, 1) if plan.a_along == "m" else self.memory("a", rows, depth, 1)
        b = self.memory("b", depth, n.most, plan.vectors)
        out = self.memory("c", rows, n.most, plan.vectors)
        inner = self.pack(a, c.a, *((k, m) if plan.a_along == "m" else (m, k)), plan.a_lanes)
        if self.below:
            inner += self.bias(a, m, k)
        inner += [*self.pack(b, c.b, k, n, plan.b_lanes), *self.tiles(a, b, out, m, n, k, tuple(-t for t, _ in loops))]
        for t, stop in reversed(loops):
            inner = [Loop(t, 0, stop, "serial", tuple(inner))]
        memory = [Alloc(x.name, dtype, x.size, "scratch") for x, dtype in (
            (a, c.a.dtype), (b, c.a.dtype), (out, self.sum))]
        return [*memory, *inner, *unscaled(self, self.elements, out, m, n), *self.write_back(out, m, n)]

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
        expressions, width = expressions_of(value), self.plan.width
        row_runs, column_runs = runs_of(rows, expressions), runs_of(columns, expressions)
        squares = runs_in_squares(value, row_runs, column_runs, width) if lanes < width else []
        if squares:
            return pack_squares(self, block, value, (row_runs, column_runs, squares), {**rows.origin, **columns.origin})
        row, column = places_of(row_runs), places_of(column_runs)
        at = {**rows.origin, **columns.origin}

        def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
            offset = row(place) * block.pitch + column(place)
            return fill(block.name, offset, substitute(value, at), conditions, lane, lanes)

        # The conditions on lanes are computed once per block of lanes if the next outer variable is inside its loop.
        # What a block stores beyond its run is overwritten by blocks to the left: from the right, further runs later.
        lane_run = column_runs[-1] if column_runs else None
        # Rows that lie further apart than columns are no inner loop: each step would be a page.
        order = [*row_runs, *column_runs]
        if lanes < width and not further(value, row_runs, column_runs):
            order = [*column_runs, *row_runs]
        elif len(column_runs) > 1:
            order[-2:] = [column_runs[-1], column_runs[-2]]
        return self.sweep(order, lane_run, lanes, at, body)

    def bias(self, a: Block, m: Side, k: Side) -> list[Stmt]:
        """The row of A below the others."""
        word = const(BIAS, uint32)
        if self.plan.a_along == "m":
            x = self.fresh("x", k.count - 1)
            return [Loop(x, 0, k.count, "serial", (Store(a.name, x * a.pitch + m.count, word),))]
        width = self.plan.width
        x, lane = self.fresh("x", ceil_div(k.count, width) - 1), self.fresh("l", width - 1)
        fill = Loop(lane, 0, width, "vector", (Store(a.name, m.count * a.pitch + x * width + lane, word),))
        return [Loop(x, 0, ceil_div(k.count, width), "serial", (fill,))]

    def write_back(self, out: Block, m: Side, n: Side) -> list[Stmt]:
        """The stores of the nest over one block of sums."""
        c = self.contraction
        expressions = [e for s in c.outputs for e in (*s.indices, *expressions_of(s.value))]
        row_runs, column_runs = runs_of(m, expressions), runs_of(n, expressions)
        row, column = places_of(row_runs), places_of(column_runs)

        def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
            total = load(out.name, (row(place) * out.pitch + column(place),), self.sum)
            if self.below:
                total = binary("sub", total, load(out.name, (m.count * out.pitch + column(place),), self.sum))
            here = Rewriter(at, locals_={c.name: bitcast(total, c.total)})
            return [Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in c.outputs]

        at = {**m.origin, **n.origin}
        order = [*row_runs, *column_runs]
        return self.sweep(order, column_runs[-1] if column_runs else None, self.plan.width, at, body)

    def sweep(self, order: list[Run], lane_run: Run | None, width: int, at: dict[Var, Index],
              body: Callable[[dict[Var, Index], dict[Var, Index], tuple[Index, ...], Var], list[Stmt]],
              own_lanes: bool = False) -> list[Stmt]:
        """Loops over runs, `lane_run` across lanes, its last block first.

        body(values of variables, places in the runs, conditions, the lane); `own_lanes`: it makes the vector loops
        """
        at, place = dict(at), {}
        loops: list[tuple[Var, Index]] = []
        conditions: tuple[Index, ...] = ()
        lane = self.fresh("l", width - 1)
        for run in order:
            if run is lane_run:
                stop: Index = ceil_div(run.count, width)
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
        if lane_run is not None and not own_lanes:
            statements = [Loop(lane, 0, width, "vector", tuple(statements))]
        for x, stop in reversed(loops):
            statements = [Loop(x, 0, stop, "serial", tuple(statements))]
        return statements

    # ---- the microkernel ----

    def tiles(self, a: Block, b: Block, out: Block, m: Side, n: Side, k: Side, first: tuple[Index, ...]) -> list[Stmt]:
        """out += a @ b by calls of the microkernel; where `first` holds, out = a @ b. Edges compute what nobody
        reads."""
        plan = self.plan
        kernel = present(find(plan.microkernel), f"[build] expected a known microkernel, got {plan}")
        columns = plan.vectors * plan.width
        across, down = ceil_div(n.count, columns), ceil_div(m.count + self.below, plan.rows)
        j, i = self.fresh("j", across - 1), self.fresh("i", down - 1)
        corner = i * plan.rows * (1 if plan.a_along == "m" else a.pitch)
        at = ((a.name, corner), (b.name, j * columns), (out.name, i * plan.rows * out.pitch + j * columns))
        steps = k.count if bounds(k.count)[0] >= 0 else emax(k.count, 0)  # no block starts beyond the end of K
        new, more = (Call(kernel, at, (), (steps, a.pitch, b.pitch, out.pitch, old)) for old in (0, 1))
        call = (If(first, (new,), (more,)),) if first else (new,)
        return [Loop(j, 0, across, "serial", (Loop(i, 0, down, "serial", call),))]
