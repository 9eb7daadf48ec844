"""Contraction + PackedPlan -> loop IR. The nest is the one in packed.py."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product as combinations
from typing import cast

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Loop, Stmt, Store
from minigrad.codegen.kernel import Kernel, Nest
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.tile import KINDS
from minigrad.codegen.monoid import MONOIDS, accumulate
from minigrad.codegen.strategies.build_bfloat16 import over_words, unscaled
from minigrad.codegen.strategies.build_squares import pack_squares
from minigrad.codegen.strategies.build_turned import turned_block
from minigrad.codegen.strategies.launch import ceil_div, function_of
from minigrad.codegen.strategies.narrow import BIAS, bias_rows
from minigrad.codegen.strategies.plan import Box, PackedPlan
from minigrad.codegen.strategies.recognise import Contraction, recognise
from minigrad.codegen.strategies.sides import (
    LINE,
    Block,
    Boxes,
    Run,
    Side,
    boxes,
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
from minigrad.codegen.strategies.windows import axes_of, turned
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import uint32
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emax, emin, product
from minigrad.value import Value, binary, bitcast, const, load, substitute

MAX_UNROLLED = 256
"""Multiply-adds written out per step of the loops over a sum."""


def build_packed(kernel: Kernel, nest: Nest, plan: PackedPlan, name: str) -> Function:
    """The loop nest of a packed contraction."""
    found = recognise(nest)
    if isinstance(found, str):
        raise InternalError(f"[build] expected a contraction for {plan}, got: {found}")
    return PackedBuilder(kernel, nest, turned(found) if plan.turned else found, plan).function(name)


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
        if plan.turned:
            return turned_block(self, m, n, k, loops)
        a = self.memory("a", depth, rows, 1) if plan.a_along == "m" else self.memory("a", rows, depth, 1)
        b: Block | Boxes
        if plan.windows:
            self.count += 1
            b = boxes(f"b_{self.count}", axes_of(c), n, k, plan.vectors * plan.width, c.a.dtype.itemsize)
            n = b.columns
        else:
            b = self.memory("b", depth, n.most, plan.vectors)
        out = self.memory("c", rows, n.most, plan.vectors)
        inner: list[Stmt] = []
        if plan.a_along:
            inner += self.pack(a, c.a, *((k, m) if plan.a_along == "m" else (m, k)), plan.a_lanes)
        if self.below:
            inner += self.bias(a, m, k)
        inner += self.pack(b, c.b, k, n, plan.b_lanes) if isinstance(b, Block) else self.pack_boxes(b, c.b, k)
        inner += self.tiles(a, b, out, m, n, k, tuple(-t for t, _ in loops))
        after = [*unscaled(self, self.elements, out, m, n), *self.write_back(out, m, n)]
        return self.whole((a, b) if plan.a_along else (b,), out, loops, inner, after)

    def whole(self, packed: tuple[Block | Boxes, ...], out: Block, loops: list[tuple[Var, Index]], inner: list[Stmt],
              after: list[Stmt]) -> list[Stmt]:
        """Memory, the loops over blocks of K, and what follows them."""
        for t, stop in reversed(loops):
            inner = [Loop(t, 0, stop, "serial", tuple(inner))]
        memory: list[Stmt] = [Alloc(x.name, self.contraction.a.dtype, x.size, "scratch") for x in packed]
        return [*memory, Alloc(out.name, self.sum, out.size, "scratch"), *inner, *after]

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

    def pack_boxes(self, b: Boxes, value: Value, k: Side) -> list[Stmt]:
        """The boxes of a block, one plane after the other: each element of the operand is read once."""
        found: list[Stmt] = []
        for plane, residues in enumerate(combinations(*(range(a.stride) for a in b.layout.axes))):
            taps = [[t for t in a.taps if a.residue(t) == r] for a, r in zip(b.layout.axes, residues, strict=True)]
            if all(taps):
                found += self.pack_plane(b, value, k, plane, taps)
        return found

    def pack_plane(self, b: Boxes, value: Value, k: Side, plane: int, taps: list[list[int]]) -> list[Stmt]:
        """One plane: what the given taps of each axis reach."""
        axes, expressions = b.layout.axes, expressions_of(value)
        lanes = self.plan.a_lanes if self.plan.turned else self.plan.b_lanes
        at = dict(k.origin)
        at |= {a.tap: at[a.tap] + t[0] for a, t in zip(axes, taps, strict=True) if a.tap is not None}
        image_runs, step_runs = runs_of(b.images, expressions), runs_of(b.steps, expressions)
        image, step = places_of(image_runs), places_of(step_runs)
        places: list[Var] = []
        box_runs: list[Run] = []
        for a, some, count, pitch in zip(axes, taps, b.counts, b.layout.pitches, strict=True):
            low, high = a.shift(some[0]), a.shift(some[-1])
            low, high = min(low, high), max(low, high)  # type: ignore[type-var,assignment]
            q = self.fresh("q", b.layout.lengths[len(places)] - 1)
            at[q] = low
            box_runs.append(Run(q, count + (high - low), pitch, ()))  # type: ignore[operator, arg-type]
            places.append(q)

        def body(at: dict[Var, Index], place: dict[Var, Index], conditions: tuple[Index, ...], lane: Var) -> list[Stmt]:
            inside: Index = plane * b.layout.plane
            here = dict(at)
            for a, some, q, pitch in zip(axes, taps, places, b.layout.pitches, strict=True):
                inside = inside + at[q] * pitch
                here[a.x] = at[a.x] + at[q] - a.shift(some[0])
            offset = image(place) * b.image_size + step(place) + inside
            return fill(b.name, offset, substitute(value, here), conditions, lane, lanes)

        order = [*image_runs, *step_runs, *box_runs]
        if len(box_runs) > 1:
            order[-2:] = [box_runs[-1], box_runs[-2]]
        return self.sweep(order, box_runs[-1], lanes, at, body)

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

    def in_place(self, m: Side, row: Index, steps: Mapping[Var, Index]) -> Value:
        """A where it is, `row` counted in the block, `steps` those of each variable of the sum from its origin."""
        value = self.contraction.a
        at = dict(m.origin)
        if not isinstance(m.count, int) or m.count % self.plan.rows:
            row = emin(row, m.count - 1)
        runs = runs_of(m, expressions_of(value))
        if len(runs) > 1:
            raise InternalError(f"[build] expected one run of {m.variables} to read A in place, got {runs}")
        for run in runs:
            at[run.last] = at[run.last] + row
        for v, step in steps.items():
            at[v] = at[v] + step
        return substitute(value, at)

    def steps(self, k: Side) -> tuple[list[tuple[Var, Index, str]], dict[Var, Index], Index]:
        """The loops over the sum of a block (variable, count, kind), the steps of its variables, and their place."""
        if not self.plan.windows:
            x = self.fresh("k", k.count - 1)
            if self.plan.a_along:
                return [(x, k.count, "serial")], {}, x
            runs = runs_of(k, expressions_of(self.contraction.a))
            if len(runs) > 1:
                raise InternalError(f"[build] expected one run of {k.variables} to read A in place, got {runs}")
            return [(x, k.count, "serial")], {run.last: x for run in runs}, x
        loops: list[tuple[Var, Index, str]] = []
        steps: dict[Var, Index] = {}
        place: Index = 0
        copies = self.plan.rows * self.plan.vectors
        for v, _, count, pitch in reversed(k.inside()):
            x = self.fresh(v.name, count - 1)
            few = isinstance(count, int) and copies * count <= MAX_UNROLLED
            copies = copies * count if few else MAX_UNROLLED  # type: ignore[assignment]
            loops.insert(0, (x, count, "unroll" if few else "serial"))
            steps[v] = x
            place = place + x * pitch
        return loops, steps, place

    def call(self, at: tuple[tuple[str, Index], ...], k: Side, a: Block, b: Block | Boxes, out: Block,
             first: tuple[Index, ...]) -> tuple[Stmt, ...]:
        """A tile as the call of a microkernel on what starts `at`."""
        kernel = find(self.plan.microkernel)
        if kernel is None or not isinstance(b, Block):
            raise InternalError(f"[build] expected a known microkernel and panels, got {self.plan}")
        steps = k.count if bounds(k.count)[0] >= 0 else emax(k.count, 0)  # no block starts beyond the end of K
        new, more = (Call(kernel, at, (), (steps, a.pitch, b.pitch, out.pitch, old)) for old in (0, 1))
        return (If(first, (new,), (more,)),) if first else (new,)

    def tiles(self, a: Block, b: Block | Boxes, out: Block, m: Side, n: Side, k: Side, first: tuple[Index, ...]
              ) -> list[Stmt]:
        """out += a @ b over tiles of registers; where `first` holds, out = a @ b. Edges compute what nobody reads."""
        plan, dtype = self.plan, self.contraction.a.dtype
        images: list[tuple[Var, Index]] = []
        steps, k_at, x = self.steps(k)
        if isinstance(b, Block):
            count, offset, start = n.count, x * b.pitch, cast(Index, 0)
        else:
            image: Index = 0
            for var, _, repeats, pitch in b.images.inside():
                g = self.fresh(var.name, repeats - 1)
                images.append((g, repeats))
                image = image + g * pitch
            count, offset, start = b.count, image * b.image_size + b.place(k_at), image * b.image_columns
        columns = plan.vectors * plan.width
        across, down = ceil_div(count, columns), ceil_div(m.count + self.below, plan.rows)
        j, i = self.fresh("j", across - 1), self.fresh("i", down - 1)
        if plan.microkernel:
            corner = i * plan.rows * (1 if plan.a_along == "m" else a.pitch)
            at = ((a.name, corner), (b.name, j * columns), (out.name, i * plan.rows * out.pitch + j * columns))
            return [Loop(j, 0, across, "serial", (Loop(i, 0, down, "serial", self.call(at, k, a, b, out, first)),))]
        lane = self.fresh("l", plan.width - 1)
        u, v = self.fresh("u", plan.rows - 1), self.fresh("v", plan.vectors - 1)
        row, column = i * plan.rows + u, j * columns + v * plan.width + lane
        place = x * a.pitch + row if plan.a_along == "m" else row * a.pitch + x
        left, right = load(a.name, (place,), dtype), load(b.name, (offset + column,), dtype)
        if not plan.a_along:
            left = self.in_place(m, row, k_at)
        vector = self.microkernel(lane, (u, v), left, right, steps, out, row * out.pitch + start + column, first)
        nest: list[Stmt] = [Loop(j, 0, across, "serial", (Loop(i, 0, down, "serial", (vector,)),))]
        for g, repeats in reversed(images):
            nest = [Loop(g, 0, repeats, "serial", tuple(nest))]
        return nest

    def microkernel(self, lane: Var, tile: tuple[Var, Var], left: Value, right: Value,
                    steps: list[tuple[Var, Index, str]], out: Block, place: Index, first: tuple[Index, ...]) -> Loop:
        """out[place] += the sum of left * right over `steps`, for the rows and vectors of a tile in registers."""
        plan, dtype, (u, v) = self.plan, left.dtype, tile
        acc = f"acc_{self.count}"
        slot = u * plan.vectors + v
        old = load(acc, (slot,), dtype)
        fresh_sum = Store(out.name, place, old)
        add = Store(out.name, place, binary("add", load(out.name, (place,), dtype), old))

        def each(s: Stmt) -> tuple[Stmt, ...]:
            return (Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),)),)

        done: tuple[Stmt, ...] = (If(first, each(fresh_sum), each(add)),) if first else each(fresh_sum)
        total = each(Store(acc, slot, accumulate(MONOIDS["sum"], old, binary("mul", left, right))))
        for var, stop, kind in reversed(steps):
            total = (Loop(var, 0, stop, kind, total),)
        body = (Alloc(acc, dtype, plan.rows * plan.vectors, "register"), *each(Store(acc, slot, const(0, dtype))),
                *total, *done)
        return Loop(lane, 0, plan.width, "vector", body)
