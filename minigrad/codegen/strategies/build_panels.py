"""Contraction + PanelPlan -> loop IR. The nest is the one in panels.py."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Function, If, Loop, Prefetch, ScalarParam, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest, Param, Scalar
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.build_dots import Dots, is_short, lanes_along_rows, when
from minigrad.codegen.strategies.build_pairs import keep_sums, write_sums
from minigrad.codegen.strategies.build_panel_packs import pack_a, pack_b
from minigrad.codegen.strategies.panel_form import TURNED, Form, Sizes, form_of, generalise, sizes_of
from minigrad.codegen.strategies.panel_units import SHORT_K
from minigrad.codegen.strategies.plan import PanelPlan
from minigrad.codegen.strategies.recognise import Contraction, with_row
from minigrad.codegen.strategies.sides import LINE
from minigrad.codegen.value_walk import Rewriter
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, bounds, emax, emin, product, subs
from minigrad.value import Value, binary, const, guard, load, substitute, value_atoms

ANNOUNCED = 8
"""Prefetches per tile that are written out; more are a loop over rows, except beside short sums: compilers take a tenth
of a program's time for 24 of them."""


def build_panels(kernel: Kernel, nest: Nest, plan: PanelPlan, name: str) -> Function:
    """The loop nest of a contraction in panels, for its sizes as they are."""
    c = contraction_of(nest, plan)
    return PanelBuilder(c, form_of(c, plan), sizes_of(c, plan)).function(name, kernel.params, kernel.scalars,
                                                                         kernel.dims)


def build_shared(kernel: Kernel, nest: Nest, plan: PanelPlan, name: str) -> tuple[Function, tuple[int, ...]] | None:
    """The loop nest with sizes as arguments, and their values; None where sizes are more than that."""
    found = generalise(kernel, contraction_of(nest, plan), plan)
    return None if found is None else (_shared(found.contraction, found.form, found.sizes, found.params, kernel.scalars,
                                               found.dims, name), found.values)


@lru_cache(maxsize=1024)
def _shared(c: Contraction, form: Form, sizes: Sizes, params: tuple[Param, ...], scalars: tuple[Scalar, ...],
            dims: tuple[Var, ...], name: str) -> Function:
    return PanelBuilder(c, form, sizes).function(name, params, scalars, dims)


def contraction_of(nest: Nest, plan: PanelPlan) -> Contraction:
    """What the nest computes. Raises InternalError where the plan cannot be for it."""
    found = with_row(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    if plan.block_k < min(TURNED, extent(found.k[-1])) and "turned" in (plan.a, plan.b):
        raise InternalError(f"[build] expected blocks of K of at least {TURNED} steps, which are turned at a time, "
                            f"got {plan}")
    return found


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


class PanelBuilder:
    """`rows`, `columns`: of a register tile. `at` says what each outer variable is in the present unit of work.
    `repeats`: nothing reads what is stored, so that a tile that reaches back may store what is there already.

    Packed memory starts some steps of K late (`lead` for A, the width for B): a square that reaches back over the one
    before it, where a last block of K is shorter than a square, stores there or in steps that this block has not.
    """

    def __init__(self, contraction: Contraction, form: Form, sizes: Sizes):
        self.contraction, self.form, self.sizes = contraction, form, sizes
        c = contraction
        self.m, self.n, self.k = c.m[-1], c.n[-1], c.k[-1]
        self.rows, self.columns = form.rows, form.columns
        self.lead = form.width + 1
        self.dtype = c.a.dtype
        self.repeats = False
        self.count = 0
        self.at: dict[Var, Index] = {}

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        self.count += 1
        return Var(f"{stem}_{self.count}", 0, max(bounds(last)[1], 0))

    def function(self, name: str, params: tuple[Param, ...], scalars: tuple[Scalar, ...], dims: tuple[Var, ...]
                 ) -> Function:
        c, sizes = self.contraction, self.sizes
        buffers = tuple(BufferParam(b.name, b.dtype, b.shape[0], b.mode) for b in params)
        stored = {s.param for s in c.outputs}
        self.repeats = all(b.mode == "out" for b in buffers if b.name in stored)
        own = {v.name: v for v in (*c.batch, *c.m, *c.n)}
        steps = [*((own[name], 1) for name in self.form.outer), (self.m, sizes.unit_m), (self.n, sizes.unit_n)]
        total = product(sizes.units)
        p = Var("p", 0, total - 1)
        after: Index = 1
        for x, ((v, size), count) in reversed(list(enumerate(zip(steps, sizes.units, strict=True)))):
            here = p // after
            self.at[v] = (here % count if x else here) * size
            after = after * count
        body = self.unit(self.at.pop(self.m), self.at.pop(self.n))
        arguments = tuple(ScalarParam(s.name, s.dtype) for s in scalars)
        return Function(name, buffers, arguments, dims, (Loop(p, 0, total, "parallel", tuple(body)),))

    def unit(self, m0: Index, n0: Index) -> list[Stmt]:
        """One iteration of the parallel loop: a rectangle of the output, origin (m0, n0)."""
        form, sizes = self.form, self.sizes
        m_count, n_count = _part(m0, sizes.unit_m, sizes.m), _part(n0, sizes.unit_n, sizes.n)
        kb, ib = self.fresh("kb", sizes.parts - 1), self.fresh("ib", _ceil(sizes.unit_m, sizes.block_m) - 1)
        k0: Index = kb * sizes.block_k if form.split else 0
        first: Index = ib * sizes.block_m if form.blocks else 0
        height = emin(sizes.block_m, m_count - first) if form.blocks else m_count
        names = ("b_panels", "a_panels", "sums")
        allocs = [Alloc(name, self.dtype, size, "scratch") for name, size in zip(names, form.memory, strict=False)
                  if size]
        dots = Dots(self, m0, m_count) if form.dots else None
        inner = self.tiles(Block(m0, m0 + first, height, n0, n_count, k0, _part(k0, sizes.block_k, sizes.k),
                                 ib if form.blocks else None, kb if form.split else None, dots))
        if form.blocks:
            inner = [Loop(ib, 0, _ceil(m_count, sizes.block_m), "serial", tuple(inner))]
        if form.split:
            inner = [Loop(kb, 0, sizes.parts, "serial", tuple(inner))]
        if dots is None:
            return [*allocs, *inner]
        last = (n0 + n_count - sizes.n,)
        return [*allocs, *dots.memory(), *when(last, [dots.pack()]), *inner, *when(last, [dots.write()])]

    def row(self, place: Index) -> Index:
        """The first row of the tile at row `place`: the last tile reaches back over rows of the one before it."""
        return emin(place, self.sizes.m - self.rows) if self.form.edge_m else place

    def column(self, place: Index) -> Index:
        """Likewise for columns; a tile wider than the output starts at 0 and is masked."""
        if self.form.narrow:
            return 0
        return emin(place, self.sizes.n - self.columns) if self.form.edge_n else place

    def inside(self, column: Index) -> tuple[Index, ...]:
        """The condition under which a column exists, if there may be others."""
        return (self.sizes.n - 1 - column,) if self.form.narrow else ()

    def zero_outside(self, value: Value, column: Index) -> Value:
        return guard(value, const(0, value.dtype), self.inside(column))

    # ---- register tiles ----

    def tiles(self, block: Block) -> list[Stmt]:
        """All tiles of a block of rows, panel by panel of columns."""
        form, sizes = self.form, self.sizes
        across, down = _ceil(block.n_count, self.columns), 1 if form.by_rows else _ceil(block.height, self.rows)
        j, i = self.fresh("j", across - 1), self.fresh("i", down - 1)
        count = block.k_count // (form.steps * form.group)
        x, t, lane = self.fresh("k", count - 1), self.fresh("t", form.steps - 1), self.fresh("l", form.width - 1)
        u, v = self.fresh("u", form.rows - 1), self.fresh("v", form.vectors - 1)
        row, column = block.row0 + i * self.rows, block.n0 + j * self.columns
        panel = j if block.ib is not None else 0
        slot = u * form.vectors + v
        old = load("acc", (slot,), self.dtype)

        def each(s: Stmt) -> tuple[Stmt, ...]:
            return (Loop(u, 0, form.rows, "unroll", (Loop(v, 0, form.vectors, "unroll", (s,)),)),)

        def terms(step: Index, begin: bool = False) -> tuple[Stmt, ...]:
            """What a step of the sum adds to the accumulators, or sets them to."""
            left = self.left(i, self.row(row) + u, u, block.k0, step if form.group == 1 else
                             step * form.group + lane % form.group)
            right = self.right(panel, self.column(column) + v * form.width + lane, v * form.width + lane, block.k0,
                               step)
            term = binary("mul", left, right)
            return (*self.ahead(block, i, row, column, step),
                    *each(Store("acc", slot, term if begin else accumulate(MONOIDS["sum"], old, term))))

        before = self.announce(row, column, u, v)
        if block.kb is not None:
            before, stores = self.continued(block, (i, j), (row, column), (u, v, lane), before)
        else:
            stores = self.finish(row, column, u, v, lane) if form.group == 1 else [keep_sums(self, u, v, lane)]
        begin = (*before, *self.next_rows(row, 0), *terms(0, True)) if form.begun else (
            *each(Store("acc", slot, const(0, self.dtype))), *before)
        tile = (Alloc("acc", self.dtype, form.rows * form.vectors, "register"), *begin,
                Loop(x, int(form.begun), count, "serial", (
                    *self.next_rows(row, x), Loop(t, 0, form.steps, "unroll", terms(x * form.steps + t)))), *stores)
        inner: list[Stmt] = [Loop(lane, 0, form.width, "vector", tile)]
        if form.group > 1:
            memory, write = write_sums(self, row, column)
            inner = [memory, *inner, write]
        if form.a != "place":
            inner.insert(0, If((-j,), (pack_a(self, block, i, row),)))
        if block.dots is not None:
            inner += when((column + self.columns - sizes.n,), list(block.dots.sums(block, i, row)))
        inner = [Loop(i, 0, down, "serial", tuple(inner))]
        if form.b != "place":
            packing: Stmt = pack_b(self, block, panel, column)
            inner.insert(0, packing if block.ib is None else If((-block.ib,), (packing,)))
        return [Loop(j, 0, across, "serial", tuple(inner))]

    def continued(self, block: Block, tile: tuple[Index, Index], at: tuple[Index, Index], variables: tuple[Var, ...],
                  before: list[Stmt]) -> tuple[list[Stmt], list[Stmt]]:
        """What stands before and after a tile's part of a sum: the accumulators come from memory and go there. Of a
        streamed B there are many parts, and the last one's sums are read again by the nest's stores in a loop over
        rows, which are few lines of a program."""
        form, sizes, (i, j), (row, column), (u, v, lane) = self.form, self.sizes, tile, at, variables
        kb = present(block.kb, "[build] expected a loop over blocks of a sum")
        tiles, blocks = _ceil(sizes.block_m, self.rows), _ceil(sizes.unit_m, sizes.block_m) if form.blocks else 1
        number = (j * blocks + (0 if block.ib is None else block.ib)) * tiles + i
        first, last = number * (self.rows * self.columns) + v * form.width + lane, sizes.parts - 1
        place, slot = first + u * (form.vectors * form.width), u * form.vectors + v
        here, old = load("sums", (place,), self.dtype), load("acc", (slot,), self.dtype)
        kept, keep = (_unrolled(u, form.rows, v, form.vectors, (s,))
                      for s in (Store("acc", slot, here), Store("sums", place, old)))
        before = [If((kb - 1,), (kept,)), *([If((kb - last,), tuple(before))] if before else [])]
        if form.b != "place":
            stores = self.finish(row, column, u, v, lane) if form.group == 1 else [keep_sums(self, u, v, lane)]
            return before, [If((kb - last,), tuple(stores), (keep,))]
        t = self.fresh("t", form.rows - 1)
        total = load("sums", (first + t * (form.vectors * form.width),), self.dtype)
        return before, [keep, If((kb - last,), tuple(self.stored(row, column, t, v, lane, total)))]

    def announce(self, row: Index, column: Index, u: Var, v: Var) -> list[Stmt]:
        """Prefetches of what a tile will store, from where it does: its lines arrive while the sums are computed."""
        s, form = self.contraction.outputs[0], self.form
        if value_atoms(s.indices[0]) or not form.announced:
            return []
        apart = max(LINE // (self.dtype.itemsize * form.width), 1)
        kind, lines, k = "unroll", ceil(form.vectors / (form.group * apart)), self.sizes.k
        if form.rows * lines > ANNOUNCED and not (isinstance(k, int) and k <= SHORT_K):
            u = self.fresh("u", form.rows - 1)
            kind = "serial"
        at = {**self.at, self.m: self.row(row) + u, self.n: self.column(column) + v * apart * form.width}
        each = Loop(v, 0, lines, "unroll", (Prefetch(s.param, subs(s.indices[0], at)),))
        return [Loop(u, 0, form.rows, kind, (each,))]

    def ahead(self, block: Block, i: Index, row: Index, column: Index, x: Index) -> list[Stmt]:
        """Prefetches of operands in place that processors do not foresee: the next line of A across its rows where
        steps of the sum are far apart, and the next tile's columns of a far B, a part of them in each tile of rows. Of
        a streamed B it is the rows of the next block."""
        form, c = self.form, self.contraction
        found = []
        if form.a == "place" and lanes_along_rows(c):
            found.append((c.a, {self.m: self.row(row) + LINE // self.dtype.itemsize}))
        found += [(c.b, {self.n: self.column(column) + self.columns + (i * form.ahead + v) % form.vectors * form.width})
                  for v in range(form.ahead)]
        streamed = form.b == "place" and block.kb is not None and form.ahead > 0
        if streamed:  # one row is done with a block before the next one could arrive
            found = [(c.b, {self.n: self.column(column) + (i * form.ahead + v) % form.vectors * form.width,
                            self.k: block.k0 + x + self.sizes.block_k}) for v in range(form.ahead) if form.rows > 1]
        made: list[Stmt] = []
        for operand, where in found:
            name, indices = operand.attr  # type: ignore[misc]
            made.append(Prefetch(name, subs(indices[0], {**self.at, self.k: block.k0 + x, **where}), far=form.far))
        return made

    def next_rows(self, row: Index, x: Index) -> list[Stmt]:
        """Prefetches of the next tile's rows of A where rows lie one after another, a piece for each iteration."""
        form = self.form
        if not form.together:
            return []
        name, indices = self.contraction.a.attr  # type: ignore[misc]
        start = subs(indices[0], {**self.at, self.m: self.row(row) + form.rows, self.k: 0})
        piece = form.rows * form.steps * form.group
        lines = ceil(piece * self.dtype.itemsize / LINE)
        return [Prefetch(name, start + x * piece + piece * line // lines) for line in range(lines)]

    def left(self, tile: Index, row: Index, u: Index, k0: Index, x: Index) -> Value:
        """A at a row of a tile and a step of the sum."""
        if self.form.a == "place":
            return substitute(self.contraction.a, {**self.at, self.m: row, self.k: k0 + x})
        return load("a_panels", ((tile * self.sizes.block_k + x + self.lead) * self.form.pitch + u,), self.dtype)

    def right(self, panel: Index, column: Index, inside: Index, k0: Index, x: Index) -> Value:
        """B at a column and a step of the sum; `inside` counts columns within the panel."""
        if self.form.b == "place":
            value = substitute(self.contraction.b, {**self.at, self.n: column, self.k: k0 + x})
            return self.zero_outside(value, column)
        group = self.form.group
        step = panel * (self.sizes.block_k if group == 1 else self.sizes.block_k // group) + x + self.form.width
        return load("b_panels", (step * (self.columns * group) + inside,), self.dtype)

    def is_long(self) -> bool:
        """Whether the epilogue is too long to be written out for every vector, and runs in a loop over rows."""
        return not is_short(*(s.value for s in self.contraction.outputs))

    def finish(self, row: Index, column: Index, u: Var, v: Var, lane: Var) -> list[Stmt]:
        """The nest's stores for the tile at (row, column), from its accumulators."""
        form, slot = self.form, u * self.form.vectors + v
        total = load("acc", (slot,), self.dtype)
        if not self.is_long():
            return self.stored(row, column, u, v, lane, total, "unroll")
        keep = _unrolled(u, form.rows, v, form.vectors, (Store("tile", slot, total),))
        t = self.fresh("t", form.rows - 1)
        total = load("tile", (t * form.vectors + v,), self.dtype)
        return [Alloc("tile", self.dtype, form.rows * form.vectors, "scratch"), keep,
                *self.stored(row, column, t, v, lane, total)]

    def stored(self, row: Index, column: Index, u: Var, v: Var, lane: Var, total: Value, kind: str = "serial"
               ) -> list[Stmt]:
        """The nest's stores for the tile at (row, column) whose sums are `total` at row u and vector v, in a loop over
        rows of that kind."""
        form, c, sizes = self.form, self.contraction, self.sizes
        back_m, back_n = form.edge_m and not self.repeats, form.edge_n and not (self.repeats or form.narrow)
        first, left = self.row(row), self.column(column)
        whole = (*((sizes.m - self.rows - row,) if back_m else ()),
                 *((sizes.n - self.columns - column,) if back_n else ()))

        def stores(own: bool) -> Loop:
            here_row, here_column = first + u, left + v * form.width + lane
            conditions = self.inside(here_column)
            if not own:
                conditions += (*((first + u - row,) if back_m else ()), *((here_column - column,) if back_n else ()))
            here = Rewriter({**self.at, self.m: here_row, self.n: here_column}, locals_={c.name: total})
            each = tuple(Store(s.param, here.index(s.indices[0]), here.value(s.value), conditions) for s in c.outputs)
            return Loop(u, 0, form.rows, kind, (Loop(v, 0, form.vectors, "unroll", each),))

        return [If(whole, (stores(True),), (stores(False),))] if whole else [stores(True)]


def _unrolled(u: Var, rows: int, v: Var, vectors: int, body: tuple[Stmt, ...]) -> Loop:
    return Loop(u, 0, rows, "unroll", (Loop(v, 0, vectors, "unroll", body),))


def _part(start: Index, size: Index, total: Index) -> Index:
    """How many of `size` from `start` on exist: one at least, which spares loops their tests and signed divisions."""
    if isinstance(size, int) and isinstance(total, int):
        return total if size >= total else size if total % size == 0 else emin(size, total - start)
    return total if size is total else emin(size, emax(total - start, 1))


def _ceil(count: Index, part: Index) -> Index:
    return 1 if count is part else (count + (part - 1)) // part
