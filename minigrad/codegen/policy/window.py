"""Windows over planes: depthwise convolution, its gradients, pooling. Rows of positions staged once, taps written out.

    taps      split i1 -> b y by 28, exact      a worker's band of rows
              split y -> t u by 14, exact       rows of a register tile
              split i2 -> j l by 16, exact
              bind parallel i0 b
              bind vector l
              bind unroll u r0
              order i0 b t j l r1 r0 u          a loop over columns of taps; a staged vector goes into all sums it meets
              stage p0 at b as [y+r0][i2+r1], border

    plane     split r1 -> t u by 7, exact       lanes along the sum, an accumulator per tap
              split r2 -> j l by 16, guard
              bind parallel i0
              bind vector l
              bind unroll i2 u i1
              order i0 l r0 t j i2 u i1
              stage p1 at r0 as [r1+i1][r2+i2], border

Of a stride, columns of a row with the same residue lie side by side, `[r1%2][i2+r1//2]`. Heights, vectors and bands
depend on shapes and the target only. Phases of a strided gradient are blocks (phases.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.lowering.arguments import Extents, plain_variables
from minigrad.codegen.machines.caches import PAGE, room
from minigrad.codegen.machines.machine import Costs, machine
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Window
from minigrad.codegen.plan.steps import Ahead, Bind, Order, Plan, Sizes, Split, Stage, Step
from minigrad.codegen.policy import window_groups
from minigrad.codegen.policy.blocking import MAX_VECTORS, SPARE_REGISTERS
from minigrad.codegen.policy.lanes import MIN_PARALLEL
from minigrad.codegen.policy.product import Way
from minigrad.codegen.policy.window_layout import coordinate, operand
from minigrad.errors import present
from minigrad.expr import Index, Var, coefficient
from minigrad.target import Target
from minigrad.value import free_variables, value_atoms

MAX_TERMS = {"taps": 400, "plane": 100}
"""Multiply-adds of a tile: bounds code size and the time to compile it. Columns of taps are a loop, but in a plane's
gradient they are written out."""

MAX_WRITTEN = 200
"""Multiply-adds of a tile of a plane's gradient that is written out, where its height is chosen to divide the rows."""

MAX_HEIGHT = 14

CHAINS = 8
"""Sums in flight that hide the latency of a multiply-add."""

REST = 1.15
"""The cost of rows that whole tiles leave: a tile of their own is further code."""

MIN_COLUMNS = 4
"""Columns of an image from which lanes along them pay."""

FEW_TAPS = 4
"""Taps below which positions are loaded from where they are."""


def plan(nest: Nest, target: Target) -> tuple[Nest, Plan] | str:
    """The nest as a product and the steps of a window, or why it has none."""
    window = recognise_any((nest,))
    if isinstance(window, str):
        return window
    why = _refused(window, target)
    if why:
        return f"not a window: {why}"
    steps = _taps(window, target) if window.form == "taps" else _plane(window, target)
    plain = plain_variables((nest,))
    sizes = tuple([v.name for v in (*window.planes, *window.extra) if v.name in plain])
    return window.nest, Plan("window", (*((Sizes(sizes),) if sizes else ()), *steps))


def way(nest: Nest, target: Target) -> Way | None:
    """The staged rows of a window; None where there is none."""
    found = plan(nest, target)
    if isinstance(found, str):
        return None
    return Way("window", ((0.0, "rows"),), lambda _, to: found if to is target else plan(nest, to))  # type: ignore


def _refused(window: Window, target: Target) -> str:
    """The reason for which a window is not staged; empty where it is."""
    rows, columns = window.phase.rows, window.phase.columns
    if target.is_gpu:
        return "a work-item of a GPU has too little memory of its own"
    if columns.length < MIN_COLUMNS:
        return "too few columns"
    if columns.tap is None or columns.stride == 1 and len(rows.taps) * len(columns.taps) < FEW_TAPS:
        return "rows are read as they are"
    around = window.planes if window.form == "taps" else (*window.planes, *window.extra)
    if rows.image is None and free_variables(window.value).isdisjoint(around):
        return "no planes"
    if any(a.stride > 1 and a.dilation != 1 for a in (rows, columns) if a.tap is not None):
        return "stride and dilation"
    told = window.value.conditions if window.value.op == "guard" else ()
    if window.form == "plane" and not all([_by_constants(c, window.column) for c in told]):
        return "a border that is told by no constants"
    return "" if operand(window) else "no operand is read"


def _by_constants(condition: Index, v: Var) -> bool:
    """True where a condition says nothing of a variable, or up to or from which constant it goes."""
    step = coefficient(condition, v)
    return step == 0 or isinstance(step, int) and isinstance(condition - step * v, int)


def why_unstaged(nest: Nest, target: Target) -> str:
    """The reason that `plan` gives for one nest, or that of work-groups where the target has them; empty for a window.
    """
    made: object = window_groups.plan(nest, target) if target.has_groups else plan(nest, target)
    return made if isinstance(made, str) else ""


def _taps(window: Window, target: Target) -> list[Step]:
    """The steps of a window whose taps are summed."""
    rows, columns = window.phase.rows, window.phase.columns
    tile = tile_of(window, target)
    own = [v.name for v in window.planes if v in free_variables(window.value)]
    again = [v.name for v in window.planes if v.name not in own]
    steps, around, inner, base = list[Step](), list[str](), list[str](), ""
    height = tile.height
    if rows.image is not None:
        base, count = rows.image.name, rows.length
        if height * tile.band < count or not own:
            height, band = _band(count, height, tile.band)
            if band < count or not own:
                steps.append(_split(base, "b", "y", band, count, "guard"))
                base, count, around = "y", band, ["b"]
        if height > 1:
            steps.append(_split(base, "t", "u", height, count, "back"))
        inner = ["t"] if height > 1 else [base]
    tiles = ["u"] if height > 1 and rows.image is not None else []
    column = present(columns.image, "[plan] expected columns of an image").name
    if tile.vectors == 1:
        steps.append(_split(column, "j", "l", tile.width, columns.length, "guard"))
    else:
        steps += [_split(column, "j", "jj", tile.vectors * tile.width, columns.length, "guard"),
                  Split("jj", "v", "l", tile.width)]
        tiles.append("v")
    taps = [[a.tap.name] if a.tap is not None else [] for a in (columns, rows)]
    parallel = [*own, *around]
    order = [*parallel, *again, *inner, "j", "l", *taps[0], *taps[1], *tiles]
    steps += [Bind("parallel", tuple(parallel)), Bind("vector", ("l",)), Bind("unroll", (*tiles, *taps[1])),
              Order(tuple(order)), *_staged(window, parallel[-1], base)]
    output = window.groups[0].outputs[0]
    if not value_atoms(output.indices[0]):
        steps.append(Ahead(output.param, "j", PAGE))
    return steps


def _plane(window: Window, target: Target) -> list[Step]:
    """The steps of a window whose planes are summed, one output per tap. (Passes over a part of the taps' columns,
    where registers hold no sums of all, took up to three times as long with 16 registers as the stack does.)"""
    rows, columns = window.phase.rows, window.phase.columns
    tile, each = tile_of(window, target), len(rows.taps) * len(columns.taps)
    taps = [[a.tap.name] if a.tap is not None else [] for a in (columns, rows)]
    planes, extra = ([v.name for v in vs] for vs in (window.planes, window.extra))
    steps, around, tiles, base, at = list[Step](), list[str](), list[str](), "", [*planes, *extra]
    if rows.image is not None:
        base, count = rows.image.name, rows.length
        band = max([d for d in range(1, count + 1) if count % d == 0 and d <= tile.band * tile.height])
        if tile.height <= band < count or not at:
            steps.append(Split(base, "b", "y", band))
            base, count, around, at = "y", band, ["b"], ["b"]
        height = min([h for h in range(tile.height, 3 * tile.height) if count % h == 0 and h * each <= MAX_WRITTEN],
                     default=tile.height)
        if height > 1:
            steps.append(_split(base, "t", "u", height, count, "rest"))
            tiles = ["u"]
        around.append("t" if height > 1 else base)
    column = present(columns.image, "[plan] expected columns of an image").name
    steps.append(_split(column, "j", "l", tile.width, columns.length, "guard"))
    order = [*planes, "l", *extra, *around, "j", *taps[0], *tiles, *taps[1]]
    return [*steps, *([Bind("parallel", tuple(planes))] if planes else []), Bind("vector", ("l",)),
            Bind("unroll", (*taps[0], *tiles, *taps[1])), Order(tuple(order)),
            *_staged(window, at[-1], base)]


def _split(loop: str, outer: str, inner: str, size: int, count: int, edge: str) -> Split:
    """A split, exact where it can be."""
    return Split(loop, outer, inner, size, "exact" if count % size == 0 else edge)


def _band(rows: int, height: int, band: int) -> tuple[int, int]:
    """(height of a tile, rows of a band) near those that are asked for, so that blocks overlap as little as may be."""
    bands = ceil(rows / (height * band))
    near = [(h, ceil(ceil(rows / m) / h) * h) for h in range(max(1, height - 3), height + 1)
            for m in range(bands, bands + 3)]
    return min(near, key=lambda x: ceil(rows / x[1]) * x[1] / rows * (1 + 0.5 / x[0]))


def _staged(window: Window, at: str, base: str) -> list[Step]:
    """The copy of the positions, rows of them by the loop `base`, and prefetches of what is read a page after them."""
    rows, columns, read = window.phase.rows, window.phase.columns, operand(window)
    column = present(columns.image, "[plan] expected columns of an image").name
    layout = [*(coordinate(rows, base, False) if rows.image is not None else []), *coordinate(columns, column, True)]
    return [Stage(read, at, tuple(layout), border=True), Ahead(read, at, PAGE)]


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile of `height` rows of `vectors` vectors of `width` columns, and how many of them one worker has
    below each other."""

    height: int
    vectors: int
    width: int
    band: int


def tile_of(window: Window, target: Target) -> Tile:
    """The tile of a window with the fewest cycles."""
    phase = window.phase
    columns, height = phase.columns.length, phase.rows.length
    lanes = min(16, target.lanes(max(window.value.dtype.bits, 32)))
    width = min((w for w in (2, 4, 8, 16) if w <= lanes), key=lambda w: (ceil(columns / w), w), default=1)
    vectors = ceil(columns / width)
    kernel = len(phase.rows.taps), len(phase.columns.taps)
    stride = phase.rows.stride
    costs = machine(target).costs
    best: tuple[float, int, int] | None = None
    for count in range(MAX_VECTORS, 0, -1):
        if vectors % count or (window.form == "plane" and count > 1):
            continue
        for rows in range(1, min(height, MAX_HEIGHT) + 1):
            terms = kernel[0] * kernel[1] * rows * count
            fits = terms <= MAX_TERMS[window.form] and registers(window.form, kernel, rows, count) <= target.registers
            if rows > 1 and not fits:
                break
            whole, rest = divmod(height, rows) if window.form == "taps" else (ceil(height / rows), 0)
            cycles = whole * tile_cycles(window.form, kernel, rows, count, stride, costs)
            if rest:
                cycles = (cycles + tile_cycles(window.form, kernel, rest, count, stride, costs)) * REST
            cycles *= vectors / count
            if best is None or cycles < best[0] * 0.99:
                best = cycles, rows, count
    _, rows, count = present(best, "[plan] expected a tile of a window")
    pitch = (vectors + 1) * width * phase.columns.stride * window.value.dtype.itemsize
    band = max(1, (room(1, target) // 2 // pitch - kernel[0]) // (stride * rows))
    tiles = ceil(height / rows)
    if window.form == "taps":
        band = min(band, max(1, tiles * prod([typical(v) for v in window.planes]) // MIN_PARALLEL))
    band = ceil(tiles / ceil(tiles / min(band, tiles)))
    return Tile(rows, count, width, band)


def registers(form: str, kernel: tuple[int, int], rows: int, vectors: int) -> int:
    """Of vectors: sums, one column of weights (or the rows of A), the vectors of positions in use."""
    if form == "plane":
        return kernel[0] * kernel[1] + rows + 1 + SPARE_REGISTERS
    return rows * vectors + kernel[0] + vectors + SPARE_REGISTERS


def tile_cycles(form: str, kernel: tuple[int, int], rows: int, vectors: int, stride: int, costs: Costs) -> float:
    """Cycles of a register tile: two multiply-adds and two loads per cycle, sums waiting for themselves."""
    terms = kernel[0] * kernel[1] * rows * vectors
    positions = kernel[1] * vectors * (stride * (rows - 1) + kernel[0])
    chains = kernel[0] * kernel[1] if form == "plane" else rows * vectors
    loads = costs.crossing * positions + (rows if form == "plane" else kernel[0] * kernel[1])
    beside = costs.plane_tile if form == "plane" else costs.window_tile
    return max(terms / 2 * max(1.0, CHAINS / chains), loads / 2) + beside


def plane_extents(nests: Sequence[Nest]) -> Extents:
    """The extents of a window's planes, and of the sums around them: what is staged of it does not depend on those."""
    window = recognise_any(nests)
    if isinstance(window, str):
        return {}
    plain = plain_variables(tuple(nests))
    return {v.name: block for block, vs in enumerate((window.extra, window.planes)) for v in vs if v.name in plain}
