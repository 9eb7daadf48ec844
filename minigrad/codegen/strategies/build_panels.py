"""Contraction + PanelPlan -> loop IR. The nest is the one in panels.py."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Function, If, Loop, Prefetch, ScalarParam, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import PAGE, is_plain, row_bytes
from minigrad.codegen.strategies.build import accumulate
from minigrad.codegen.strategies.build_dots import Dots, lanes_along_rows, when
from minigrad.codegen.strategies.plan import PanelPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.strategies.sides import LINE
from minigrad.codegen.value_walk import Rewriter
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emin, product, subs
from minigrad.value import Value, binary, const, guard, load, substitute, value_atoms, walk

LIGHT = 8
"""Operations of an epilogue that are written out for every vector of a tile; longer ones run in a loop over rows."""


def build_panels(kernel: Kernel, nest: Nest, plan: PanelPlan, name: str) -> Function:
    """The loop nest of a contraction in panels."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return PanelBuilder(kernel, nest, found, plan).function(name)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows row0 .. row0 + height of a unit that starts at m0, its columns, and a part of K.

    `ib` and `kb` count blocks of rows and parts of K, None where there is one. `dots` are columns besides.
    """

    m0: Index
    row0: Index
    height: Index
    n0: Index
    n_count: Index
    k0: Index
    k_count: Index
    ib: Var | None
    kb: Var | None
    dots: Dots | None


@dataclass(frozen=True, slots=True)
class Pack:
    """Where a panel goes, and what of the operand: panels[start + k * pitch] = value, `along` at `place` in lanes."""

    panels: str
    start: Index
    pitch: int
    along: Var
    place: Index
    inside: tuple[Index, ...]
    lane: Var


class PanelBuilder:
    """`rows`, `columns`: of a register tile. `at` says what each outer variable is in the present unit of work.

    Packed memory starts some steps of K late (`lead` for A, the width for B): a square that reaches back over the one
    before it, where a last block of K is shorter than a square, stores there or in steps that this block has not.
    """

    def __init__(self, kernel: Kernel, nest: Nest, contraction: Contraction, plan: PanelPlan):
        self.kernel, self.nest, self.contraction, self.plan = kernel, nest, contraction, plan
        c = contraction
        self.m, self.n, self.k = c.m[-1], c.n[-1], c.k[-1]
        self.sizes = extent(self.m), extent(self.n) - plan.dots, extent(self.k)
        self.rows, self.columns = plan.rows, plan.vectors * plan.width
        self.pitch = -(-plan.rows // plan.width) * plan.width
        self.lead = plan.width + 1
        self.dtype = c.a.dtype
        self.count = 0
        self.at: dict[Var, Index] = {}

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        self.count += 1
        return Var(f"{stem}_{self.count}", 0, max(bounds(last)[1], 0))

    def function(self, name: str) -> Function:
        plan = self.plan
        m, n, _ = self.sizes
        outer = {v.name: v for v in self.nest.domain}
        units = [(outer[v], 1, extent(outer[v])) for v in plan.outer]
        units += [(self.n, plan.unit_n, -(-n // plan.unit_n)), (self.m, plan.unit_m, -(-m // plan.unit_m))]
        total = product(count for _, _, count in units)
        p = Var("p", 0, total - 1)
        self.at = {v: 0 for v in self.nest.domain if v.hi == 0}
        after: Index = 1
        for x, (v, size, count) in reversed(list(enumerate(units))):
            here = p // after
            self.at[v] = (here % count if x else here) * size
            after = after * count
        body = self.unit(self.at.pop(self.m), self.at.pop(self.n))
        buffers = tuple(BufferParam(b.name, b.dtype, b.shape[0], b.mode) for b in self.kernel.params)
        scalars = tuple(ScalarParam(s.name, s.dtype) for s in self.kernel.scalars)
        return Function(name, buffers, scalars, self.kernel.dims, (Loop(p, 0, total, "parallel", tuple(body)),))

    def unit(self, m0: Index, n0: Index) -> list[Stmt]:
        """One iteration of the parallel loop: a rectangle of the output, origin (m0, n0)."""
        plan, (m, n, k) = self.plan, self.sizes
        m_count, n_count = _part(m0, plan.unit_m, m), _part(n0, plan.unit_n, n)
        parts, blocks = -(-k // plan.block_k), -(-plan.unit_m // plan.block_m)
        panels, tiles = -(-plan.unit_n // self.columns), -(-plan.block_m // self.rows)
        kb, ib = self.fresh("kb", parts - 1), self.fresh("ib", blocks - 1)
        k0: Index = kb * plan.block_k if parts > 1 else 0
        k_count = _part(k0, plan.block_k, k)
        first: Index = ib * plan.block_m if blocks > 1 else 0
        height = emin(plan.block_m, m_count - first) if blocks > 1 else m_count
        allocs: list[Stmt] = []
        inner: list[Stmt] = []
        if plan.b != "place":
            kept = panels if blocks > 1 else 1
            allocs.append(Alloc("b_panels", self.dtype, (kept * plan.block_k + plan.width) * self.columns, "scratch"))
        if plan.a != "place":
            allocs.append(Alloc("a_panels", self.dtype, (tiles * plan.block_k + self.lead) * self.pitch, "scratch"))
        if parts > 1:
            size = panels * blocks * tiles * self.rows * self.columns
            allocs.append(Alloc("sums", self.dtype, size, "scratch"))
        dots = Dots(self, m0, m_count) if plan.dots else None
        inner += self.tiles(Block(m0, m0 + first, height, n0, n_count, k0, k_count, ib if blocks > 1 else None,
                                  kb if parts > 1 else None, dots))
        if blocks > 1:
            inner = [Loop(ib, 0, -(-m_count // plan.block_m) if isinstance(m_count, int) else
                          (m_count + (plan.block_m - 1)) // plan.block_m, "serial", tuple(inner))]
        if parts > 1:
            inner = [Loop(kb, 0, parts, "serial", tuple(inner))]
        if dots is None:
            return [*allocs, *inner]
        last = (n0 + n_count - n,)
        return [*allocs, *dots.memory(), *when(last, [dots.pack()]), *inner, *when(last, [dots.write()])]

    def row(self, place: Index) -> Index:
        """The first row of the tile at row `place`: the last tile reaches back over rows of the one before it."""
        m = self.sizes[0]
        return place if m % self.rows == 0 else emin(place, m - self.rows)

    def column(self, place: Index) -> Index:
        """Likewise for columns; a tile wider than the output starts at 0 and is masked."""
        n = self.sizes[1]
        return place if n % self.columns == 0 else emin(place, n - self.columns) if n > self.columns else 0

    def inside(self, column: Index) -> tuple[Index, ...]:
        """The condition under which a column exists, if there may be others."""
        n = self.sizes[1]
        return (n - 1 - column,) if n < self.columns else ()

    # ---- packing ----

    def pack_b(self, block: Block, j: Index, column: Index) -> Stmt:
        """The panel of columns from `column` on, as b_panels[j][k][column]."""
        plan, c, width = self.plan, self.contraction, self.plan.width
        v, lane = self.fresh("v", plan.vectors - 1), self.fresh("l", width - 1)
        place = self.column(column) + v * width + lane
        start = (j * plan.block_k + width) * self.columns + v * width + lane
        pack = Pack("b_panels", start, self.columns, self.n, place, self.inside(place), lane)
        return self.pack(pack, c.b, v, plan.vectors, block.k0, block.k_count, plan.b == "turned")

    def pack_a(self, block: Block, i: Index, row: Index) -> Stmt:
        """The rows of a tile as a_panels[i][k][row], `pitch` apart. Lanes without a row store where nobody reads."""
        plan, c, m, width = self.plan, self.contraction, self.sizes[0], self.plan.width
        v, lane = self.fresh("v", self.pitch // width - 1), self.fresh("l", width - 1)
        row = self.row(row) + v * width
        first = emin(row, max(m - width, 0))
        start = (i * plan.block_k + self.lead) * self.pitch + v * width + first - row + lane
        inside = (m - 1 - first - lane,) if m < width else ()
        pack = Pack("a_panels", start, self.pitch, self.m, first + lane, inside, lane)
        return self.pack(pack, c.a, v, self.pitch // width, block.k0, block.k_count, plan.a == "turned")

    def pack(self, to: Pack, value: Value, v: Var, vectors: int, k0: Index, k_count: Index, turned: bool) -> Stmt:
        """One panel of an operand. `turned`: in squares, read along K and transposed in registers."""
        k, width = self.sizes[2], self.plan.width
        if not turned:
            x = self.fresh("k", k_count - 1)
            here = substitute(value, {**self.at, to.along: to.place, self.k: k0 + x})
            body: Stmt = Store(to.panels, to.start + x * to.pitch, guard(here, const(0, here.dtype), to.inside))
            body = Loop(to.lane, 0, width, "vector", (Loop(v, 0, vectors, "unroll", (body,)),))
            return Loop(x, 0, k_count, "serial", (body,))
        steps = _ceil(k_count, width)
        x, u = self.fresh("k", steps - 1), self.fresh("u", width - 1)
        first = emin(k0 + x * width, max(k - width, 0))
        here = substitute(value, {**self.at, to.along: to.place, self.k: first + u})
        body = Store(to.panels, to.start + (first - k0 + u) * to.pitch, guard(here, const(0, here.dtype), to.inside))
        square = Loop(to.lane, 0, width, "vector", (Loop(u, 0, min(width, k), "unroll", (body,)),))
        return Loop(v, 0, vectors, "serial", (Loop(x, 0, steps, "serial", (square,)),))

    def zero_outside(self, value: Value, column: Index) -> Value:
        return guard(value, const(0, value.dtype), self.inside(column))

    # ---- register tiles ----

    def tiles(self, block: Block) -> list[Stmt]:
        """All tiles of a block of rows, panel by panel of columns."""
        plan = self.plan
        across, down = _ceil(block.n_count, self.columns), _ceil(block.height, self.rows)
        j, i = self.fresh("j", across - 1), self.fresh("i", down - 1)
        x, lane = self.fresh("k", block.k_count - 1), self.fresh("l", plan.width - 1)
        u, v = self.fresh("u", plan.rows - 1), self.fresh("v", plan.vectors - 1)
        row, column = block.row0 + i * self.rows, block.n0 + j * self.columns
        panel = j if block.ib is not None else 0
        left = self.left(i, self.row(row) + u, u, block.k0, x)
        right = self.right(panel, self.column(column) + v * plan.width + lane, v * plan.width + lane, block.k0, x)
        slot = u * plan.vectors + v
        old = load("acc", (slot,), self.dtype)
        term = accumulate(MONOIDS["sum"], old, binary("mul", left, right))

        def each(s: Stmt) -> tuple[Stmt, ...]:
            return (Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),)),)

        stores = self.finish(row, column, u, v, lane)
        before = self.announce(row, column, u, v)
        if block.kb is not None:
            tiles = -(-plan.block_m // self.rows)
            number = j * (-(-plan.unit_m // plan.block_m) * tiles) + (0 if block.ib is None else block.ib * tiles) + i
            place = number * (self.rows * self.columns) + slot * plan.width + lane
            kept = each(Store("acc", slot, load("sums", (place,), self.dtype)))
            keep = each(Store("sums", place, old))
            last = -(-self.sizes[2] // plan.block_k) - 1
            stores = [If((block.kb - last,), tuple(stores), keep)]
            before = [If((block.kb - 1,), kept), *([If((block.kb - last,), tuple(before))] if before else [])]
        tile = (Alloc("acc", self.dtype, plan.rows * plan.vectors, "register"),
                *each(Store("acc", slot, const(0, self.dtype))),
                *before, Loop(x, 0, block.k_count, "serial", (*self.ahead(block, i, row, column, x),
                                                              *each(Store("acc", slot, term)))), *stores)
        inner: list[Stmt] = [Loop(lane, 0, plan.width, "vector", tile)]
        if plan.a != "place":
            inner.insert(0, If((-j,), (self.pack_a(block, i, row),)))
        if block.dots is not None:
            inner += when((column + self.columns - self.sizes[1],), list(block.dots.sums(block, i, row)))
        inner = [Loop(i, 0, down, "serial", tuple(inner))]
        if plan.b != "place":
            packing: Stmt = self.pack_b(block, panel, column)
            inner.insert(0, packing if block.ib is None else If((-block.ib,), (packing,)))
        return [Loop(j, 0, across, "serial", tuple(inner))]

    def announce(self, row: Index, column: Index, u: Var, v: Var) -> list[Stmt]:
        """Prefetches of what a tile will store: its lines arrive while the sums are computed."""
        s, plan = self.contraction.outputs[0], self.plan
        if value_atoms(s.indices[0]) or plan.block_m == plan.rows:
            return []
        at = {**self.at, self.m: row + u, self.n: column + v * plan.width}
        return [_unrolled(u, plan.rows, v, plan.vectors, (Prefetch(s.param, subs(s.indices[0], at)),))]

    def ahead(self, block: Block, i: Index, row: Index, column: Index, x: Index) -> list[Stmt]:
        """Prefetches of operands in place that processors do not foresee: the next line of A across its rows where
        steps of the sum are far apart, the next tile's rows where they lie one after another, and the next tile's
        columns of a far B, a part of them in each tile of rows. Of a streamed B it is the rows of the next block."""
        plan, c = self.plan, self.contraction
        found = []
        if plan.a == "place" and lanes_along_rows(c):
            found.append((c.a, {self.m: row + LINE // self.dtype.itemsize}))
        if plan.b == "place" and block.kb is block.ib is None and row_bytes(c.b, c.k) >= PAGE:
            share = -(-plan.vectors // -(-plan.block_m // self.rows))
            found += [(c.b, {self.n: column + self.columns + (i * share + v) % plan.vectors * plan.width})
                      for v in range(share)]
        streamed = plan.b == "place" and block.kb is not None and is_plain(c.b)
        if streamed:
            found = [(c.b, {self.n: column + v * plan.width, self.k: block.k0 + x + plan.block_k})
                     for v in range(plan.vectors)]
        made: list[Stmt] = []
        for operand, where in found:
            name, indices = operand.attr  # type: ignore[misc]
            made.append(Prefetch(name, subs(indices[0], {**self.at, self.k: block.k0 + x, **where}), far=streamed))
        if plan.a == "place" and block.kb is None and rows_together(c):
            name, indices = c.a.attr  # type: ignore[misc]
            start = subs(indices[0], {**self.at, self.m: row + plan.rows, self.k: 0})
            made.append(Prefetch(name, start + x * plan.rows))
        return made

    def left(self, tile: Index, row: Index, u: Index, k0: Index, x: Index) -> Value:
        """A at a row of a tile and a step of the sum."""
        if self.plan.a == "place":
            return substitute(self.contraction.a, {**self.at, self.m: row, self.k: k0 + x})
        return load("a_panels", ((tile * self.plan.block_k + x + self.lead) * self.pitch + u,), self.dtype)

    def right(self, panel: Index, column: Index, inside: Index, k0: Index, x: Index) -> Value:
        """B at a column and a step of the sum; `inside` counts columns within the panel."""
        if self.plan.b == "place":
            value = substitute(self.contraction.b, {**self.at, self.n: column, self.k: k0 + x})
            return self.zero_outside(value, column)
        step = panel * self.plan.block_k + x + self.plan.width
        return load("b_panels", (step * self.columns + inside,), self.dtype)

    def finish(self, row: Index, column: Index, u: Var, v: Var, lane: Var) -> list[Stmt]:
        """The nest's stores for the tile at (row, column), from its accumulators."""
        plan, c, (m, n, _) = self.plan, self.contraction, self.sizes
        whole: list[Index] = []
        if m % self.rows:
            whole.append(m - self.rows - row)
        if n % self.columns:
            whole.append(n - self.columns - column)
        first, left = self.row(row), self.column(column)

        def stores(own: bool, u: Index, total: Value) -> tuple[Stmt, ...]:
            here_row, here_column = first + u, left + v * plan.width + lane
            conditions = () if own else (*((first + u - row,) if m % self.rows else ()), *self.inside(here_column),
                                         *((here_column - column,) if n % self.columns and n > self.columns else ()))
            here = Rewriter({**self.at, self.m: here_row, self.n: here_column}, locals_={c.name: total})
            return tuple(Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in c.outputs)

        operations = sum(x.op not in ("const", "local", "index") for s in c.outputs for x in walk(s.value))
        slot = u * plan.vectors + v
        if operations <= LIGHT:
            total = load("acc", (slot,), self.dtype)
            return _choose(whole, [_unrolled(u, plan.rows, v, plan.vectors, stores(own, u, total))
                                   for own in (True, False)])
        keep = _unrolled(u, plan.rows, v, plan.vectors, (Store("tile", slot, load("acc", (slot,), self.dtype)),))
        t = self.fresh("t", plan.rows - 1)
        total = load("tile", (t * plan.vectors + v,), self.dtype)
        loops = [Loop(t, 0, plan.rows, "serial", (Loop(v, 0, plan.vectors, "unroll", stores(own, t, total)),))
                 for own in (True, False)]
        return [Alloc("tile", self.dtype, plan.rows * plan.vectors, "scratch"), keep, *_choose(whole, loops)]


def _choose(whole: Sequence[Index], ways: list[Loop]) -> list[Stmt]:
    """The first way for whole tiles, the second for those at an edge."""
    return [If(tuple(whole), (ways[0],), (ways[1],))] if whole else [ways[0]]


def rows_together(c: Contraction) -> bool:
    """Whether the rows of A lie one after another in memory, without gaps."""
    steps = [coefficient(c.a.attr[1][0], v) for v in (c.m[-1], c.k[-1])]  # type: ignore[index]
    return steps == [extent(c.k[-1]), 1]


def _unrolled(u: Var, rows: int, v: Var, vectors: int, body: tuple[Stmt, ...]) -> Loop:
    return Loop(u, 0, rows, "unroll", (Loop(v, 0, vectors, "unroll", body),))


def _part(start: Index, size: int, total: int) -> Index:
    """How many of `size` from `start` on exist."""
    if size >= total:
        return total
    return size if total % size == 0 else emin(size, total - start)


def _ceil(count: Index, part: int) -> Index:
    return (count + (part - 1)) // part
