"""Windows over planes: depthwise convolution, its gradients, pooling. Input rows staged once, taps written out.

    taps    for planes, bands of rows parallel:
              stage the rows of positions that the band reads, padded, each computed once
              for tiles of rows: for vectors of columns: height x vectors accumulators
                for columns of taps, for staged rows: each vector of positions goes into all sums that it meets
              the epilogue, per register or over the tile in memory

    plane   for planes parallel: an accumulator per tap
              for sums around, for bands: stage; for tiles of rows: for columns: A in registers, as above
              each accumulator joined across lanes, the epilogue

Heights, vectors and bands depend on shapes and the target only.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.lowering.arguments import Extents, plain_variables
from minigrad.codegen.machines.caches import room
from minigrad.codegen.machines.machine import Costs, machine
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Window
from minigrad.codegen.plan.other_plans import WindowPlan
from minigrad.codegen.policy import window_groups
from minigrad.codegen.policy.blocking import MAX_VECTORS, SPARE_REGISTERS
from minigrad.codegen.policy.lanes import MIN_PARALLEL
from minigrad.errors import present
from minigrad.target import Target

MAX_TERMS = {"taps": 400, "plane": 100}
"""Multiply-adds of a tile: bounds code size and the time to compile it. Columns of taps are a loop, but in a plane's
gradient they are written out."""

MAX_HEIGHT = 14

CHAINS = 8
"""Sums in flight that hide the latency of a multiply-add."""

REST = 1.15
"""The cost of rows that whole tiles leave: a tile of their own is further code."""

MIN_COLUMNS = 4
"""Columns of an image from which lanes along them pay."""


def plan(nests: Sequence[Nest], target: Target) -> WindowPlan | str:
    """The plan of a window, or why the nest is none; of several nests, as phases of one window."""
    window = recognise_any(nests)
    if isinstance(window, str):
        return window
    if target.is_gpu:
        return "not a window: a work-item of a GPU has too little memory of its own"
    if max(p.columns.length for p in window.phases) < MIN_COLUMNS:
        return "not a window: too few columns"
    return make_plan(window, target)


def why_unstaged(nest: Nest, target: Target) -> str:
    """The reason that `plan` gives for one nest, or that of work-groups where the target has them; empty for a window.
    """
    made = (window_groups.plan if target.has_groups else plan)((nest,), target)
    return made if isinstance(made, str) else ""


def make_plan(window: Window, target: Target) -> WindowPlan:
    """Tile and band for a window."""
    phase = max(window.phases, key=lambda p: len(p.rows.taps) * len(p.columns.taps))
    columns = max(p.columns.length for p in window.phases)
    height = max(p.rows.length for p in window.phases)
    lanes = min(16, target.lanes(max(window.value.dtype.bits, 32)))
    width = min((w for w in (2, 4, 8, 16) if w <= lanes), key=lambda w: (ceil(columns / w), w), default=1)
    vectors = ceil(columns / width)
    kernel = len(phase.rows.taps), len(phase.columns.taps)
    stride = phase.rows.stride
    passes, costs = 1, machine(target).costs
    if window.form == "plane":
        spare = target.registers - SPARE_REGISTERS - 2
        passes = min(kernel[1], ceil(kernel[0] * kernel[1] / spare))
        kernel = kernel[0], ceil(kernel[1] / passes)
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
    image = (phase.rows.image, phase.columns.image)
    return WindowPlan("window", window.form, tuple(v.name for v in window.planes),
                      image[0].name if image[0] is not None else "", image[1].name if image[1] is not None else "",
                      rows, count, width, band, passes, len(window.phases))


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
