"""Phases of a strided gradient, which store every m-th element of a row: as a block that reads X once and stores whole
rows.

    for i0, i1, i2: o[2*i2] = f(sum(X * W0))       block i0, ib:
    for i0, i1, i2: o[2*i2 + 1] = f(sum(X * W1))     for py, px: x[py, px] = X, 0 outside
                                              ->     for ir<R, ic: row[0, ir, ic] = sum(x * W0)
                                                     for ir<R, ic: row[1, ir, ic] = sum(x * W1)
                                                     for ir<R, ic: o[ic] = f(row[ic%2, ir, ic//2])

How many rows a place has depends on their number alone. There is room for whole vectors in each row: what lanes beyond
it read is the next one's, and nobody looks at what they make. On a GPU a place is a work-group, whose rows need none.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.launch import ceil_div
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Block, Define, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.machines.caches import PAGE
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Axis, Window
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Ahead, Bind, Order, Plan, Split
from minigrad.codegen.policy import items
from minigrad.codegen.policy.group_reduction import GROUP
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emin
from minigrad.target import Target
from minigrad.value import binary, const, guard, load, local, reduce, substitute, walk

LANES = 16
"""Elements that rows of a place are a multiple of, whatever the vectors of a machine."""

MOST_ROWS, LEAST_ROWS, USUAL_ROWS = 14, 4, 8
"""Rows of each phase at a place: a divisor of their number between the first two, else the last."""

MIN_COLUMNS = 4
"""Columns of a phase from which lanes along them pay."""

WRITTEN_OUT = 4
"""Vectors of a row up to which they are written out."""


def plan(nests: Sequence[Nest], target: Target) -> BlockPlan | str:
    """The plans of the nests of the block that several nests become, or why they are no phases of one window."""
    window = recognise_any(nests)
    if isinstance(window, str):
        return window
    columns = max(p.columns.length for p in window.phases)
    if columns < MIN_COLUMNS:
        return "not a window: too few columns"
    if target.lanes(32) == 1 and not target.has_groups:
        return "not a window: no vectors"
    block = _block(window, target)
    inside = [n for n in block.body if isinstance(n, Nest)]
    if not target.has_groups:
        return BlockPlan(tuple([_plan(n, target) for n in inside]))
    most, rows = min(GROUP, target.max_group) // columns, _rows(window)
    if not most or sum([int(q.shape[0]) * q.dtype.itemsize for q in block.local]) > target.local_memory:
        return "not a window: rows longer than a work-group, or its memory"
    down = max([n for n in range(1, most + 1) if rows % n == 0])
    return BlockPlan(tuple([_plan_of_items(n, down, columns) for n in inside]))


def block_of(nests: Sequence[Nest], target: Target) -> Block | None:
    """Nests that are phases of one window as a block; None where they are not."""
    window = recognise_any(nests)
    return None if isinstance(window, str) else _block(window, target)


def _rows(w: Window) -> int:
    """The rows of each phase at a place."""
    longest = max(p.rows.length for p in w.phases)
    rows = max([d for d in range(1, MOST_ROWS + 1) if longest % d == 0])
    return rows if rows >= LEAST_ROWS else min(USUAL_ROWS, longest)


def _block(w: Window, target: Target) -> Block:
    dtype, phases, rows = w.value.dtype, w.phases, _rows(w)
    longest, stride = max(p.rows.length for p in phases), phases[0].rows.stride
    lanes = 1 if target.has_groups else LANES
    (first_row, last_row), (first_column, last_column) = bounds(w.row), bounds(w.column)
    many = stride * (rows - 1) + max(max(p.rows.taps) for p in phases) - first_row + 1
    wide = ceil_div(max(p.columns.length for p in phases), lanes) * lanes
    pitch = ceil_div(last_column - first_column + 1, lanes) * lanes
    ib, y, x = Var("ib", 0, ceil_div(longest, rows) - 1), Var("py", 0, many - 1), Var("px", 0, pitch - 1)
    most = max(len(g.phases) for g in w.groups)
    origin = ib * rows
    inside = (last_column - first_column - x, last_row - first_row - stride * origin - y)
    value = substitute(w.value, {w.row: first_row + stride * origin + y, w.column: first_column + x})
    zero = const(0, dtype)
    if value.op == "guard" and value.args[1] is zero:
        value = guard(value.args[0], zero, (*value.conditions, *inside))
    else:
        value = guard(value, zero, inside)
    body = [Nest((y, x), (Store("x_", (y * pitch + x,), value),))]

    def position(axis: Axis, image: Index, first: int) -> Index:
        tap: Index = axis.tap if axis.tap is not None else 0
        return axis.stride * image + axis.dilation * tap + axis.offset - first

    for g in w.groups:
        length = g.phases[0].rows.length
        r = Var("ir", 0, rows - 1 if length == longest and longest % rows == 0 else emin(rows, length - origin) - 1)
        for number, p in enumerate(g.phases):
            c = Var("ic", 0, wide - 1)
            over = tuple([t for t in (p.rows.tap, p.columns.tap) if t is not None])
            term = load("x_", (position(p.rows, r, first_row) * pitch + position(p.columns, c, first_column),), dtype)
            if p.other is not None:
                term = binary("mul", term, p.other)
            made = Define("t", reduce(w.monoid, over, term) if over else term)
            body.append(Nest((r, c), (made, Store("row", ((number * rows + r) * wide + c,), local("t", dtype)))))
        m, c = len(g.phases), Var("ic", 0, sum(p.columns.length for p in g.phases) - 1)
        found = load("row", ((c % m * rows + r) * wide + c // m,), dtype)
        row: dict[Var, Index] = {g.row: origin + r} if g.row is not None else {}
        here = Rewriter({g.column: c, **row}, locals_={g.phases[0].name: found})
        body.append(Nest((r, c), here.stores(g.outputs)))
    memory = (Param("x_", dtype, (many * pitch + 2 * lanes,), "inout"),
              Param("row", dtype, (most * rows * wide + lanes,), "inout"))
    return Block((*w.planes, ib), memory, tuple(body))


def _plan_of_items(nest: Nest, down: int, columns: int) -> Plan:
    """The plan of one nest for `down` work-items of each column: each sums rows below each other, all others are done
    in turns."""
    r, c = nest.domain
    if not any(isinstance(s, Store) and s.param == "row" for s in nest.body):
        return items.plan(nest, down * columns)
    taps = _taps(nest)
    known = isinstance(r.hi, int) and extent(r) % down == 0
    unroll = (*taps, *(["u"] if known else []))
    return Plan("phases", (
        Split(r.name, "y", "u", down, "exact" if known else "guard", into=True), Bind("item", ("y", c.name)),
        *([Bind("unroll", unroll)] if unroll else []),
        Order(("y", c.name, *taps, "u") if known else ("y", c.name, "u", *taps))))


def _taps(nest: Nest) -> list[str]:
    """The loops of a nest's sum."""
    return [v.name for s in nest.body if isinstance(s, Define) and s.value.op == "reduce" for v in s.value.over]


def _plan(nest: Nest, target: Target) -> Plan:
    """The plan of one nest: lanes along columns, and for the sums a register tile."""
    r, c = nest.domain
    store = nest.body[-1]
    if not isinstance(store, Store):
        raise InternalError("[plan] expected a store at the end of a nest")
    width = min(LANES, target.lanes(max(store.value.dtype.bits, 32)))
    vectors = ceil_div(extent(c), width)
    if store.param == "row":
        taps = _taps(nest)
        tile = target.registers // 2
        v = next(n for n in (3, 2, 1) if vectors % n == 0)
        u = next((n for n in range(tile // v, 3, -1) if extent(r) % n == 0), min(4, extent(r)))
        loop = taps[-1:] if len(taps) == 2 and vectors > 1 else []
        written = [t for t in taps if t not in loop]
        return Plan("phases", (
            Split(r.name, "t", "u", u, "exact" if isinstance(r.hi, int) and extent(r) % u == 0 else "guard"),
            Split(c.name, "j", "jj", width * v), Split("jj", "v", "l", width), Bind("vector", ("l",)),
            Bind("unroll", ("u", "v", *written)), Order(("t", "j", "l", *loop, *written, "u", "v"))))
    few = vectors <= WRITTEN_OUT
    unroll, order = ((Bind("unroll", ("j",)),), (r.name, "l", "j")) if few else ((), (r.name, "j", "l"))
    read = next((v.buffer for v in walk(store.value) if v.op == "load"), "")
    ahead = (Ahead(read, r.name if few else "j", PAGE),) if store.param == "x_" and read else ()
    edge = "exact" if extent(c) % width == 0 else "guard"
    return Plan("phases", (Split(c.name, "j", "l", width, edge), Bind("vector", ("l",)), *unroll, Order(order), *ahead))
