"""Contractions in the matrix units of a GPU: as `tiles`, with waves in place of work-items.

    for batch, tiles of M, tiles of N group:
      for blocks of K:
        all work-items copy A [tile of M, depth] and B [tile of N, depth] to local memory, half values as their bits
        for steps of the unit in the block: rows x columns calls per wave, each adding to the sums of its work-items
      write back with the epilogue

Both operands must be half values as they are: what is computed in float32 on the way would have to be rounded. Units
that round float32 themselves take any operands; a target has those where the user allows it.
"""
from __future__ import annotations

from minigrad.codegen.microkernels.matrix import ALIGNED, WAVE, MatrixUnit, unit_named, unit_of
from minigrad.codegen.strategies.group_tiles import along, cost
from minigrad.codegen.strategies.packed import size
from minigrad.codegen.strategies.plan import MatrixPlan
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.dtype import DType, bfloat16, float16, float32, uint16
from minigrad.target import Target
from minigrad.value import Value, bitcast, const, guard

TILES = ((128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (32, 32, 2, 1))
"""Rows and columns of a group's tile, waves down and across."""

DEPTH_BYTES = 64
"""Of a row of local memory: steps of K at a time."""

PADDING_BYTES = ALIGNED
"""Added to a row of local memory: eight rows from one column on use all its banks."""


def plan(found: Contraction, target: Target) -> MatrixPlan | str:
    """The plan, or why the contraction has none. K and sides are known to be worth tiles."""
    unit = unit_for(found, target)
    if unit is None or found.total is not float32:
        return f"no matrix unit of {target.name} multiplies such operands"
    if size(found.k) < unit.depth:
        return f"K={size(found.k)} is shorter than the {unit.depth} steps of {unit.name}"
    fitting = [t for t in TILES if fits(t, unit, target)]
    if not fitting:
        return "too little local memory"
    m, n, down, across = min(fitting, key=lambda t: cost(t[0], t[1], found, target))
    batch, ms, ns, ks = (tuple(v.name for v in vs) for vs in (found.batch, found.m, found.n, found.k))
    return MatrixPlan("matrix", batch, ms, ns, ks, down, across, m // (down * unit.rows), n // (across * unit.columns),
                      DEPTH_BYTES // unit.stored.itemsize, along(found.a, found.m, found.k, "m"),
                      along(found.b, found.n, found.k, "n"), f"{unit.name}_{target.language}")


def unit_for(c: Contraction, target: Target) -> MatrixUnit | None:
    """The target's unit for the operands of a contraction."""
    halves = {half_type(c.a), half_type(c.b)}
    dtype = halves.pop()
    unit = unit_of(dtype, target) if dtype is not None and not halves else None
    return unit or (unit_of(float32, target) if c.a.dtype is c.b.dtype is float32 else None)


def fits(tile: tuple[int, int, int, int], unit: MatrixUnit, target: Target) -> bool:
    m, n, down, across = tile
    local = (m + n) * (DEPTH_BYTES + PADDING_BYTES)
    whole = m % (down * unit.rows) == 0 and n % (across * unit.columns) == 0
    return whole and local <= target.local_memory and down * across * WAVE <= target.max_group


def shape(made: MatrixPlan) -> tuple[int, int]:
    """Rows and columns of a group's tile."""
    unit = unit_named(made.unit)
    return made.down * made.rows * unit.rows, made.across * made.columns * unit.columns


# ---- operands ----


def half_type(v: Value) -> DType | None:
    """The half type that an operand is widened from, under its guards; None for one that is computed in float32."""
    while v.op == "guard" and v.args[1].op == "const" and repr(v.args[1].attr) == "0.0":
        v = v.args[0]
    if v.op == "cast" and v.dtype is float32 and v.args[0].dtype in (float16, bfloat16):
        return v.args[0].dtype
    return None


def bits_of(v: Value) -> Value:
    """The bits, uint16, of what such an operand is widened from."""
    if v.op == "guard":
        return guard(bits_of(v.args[0]), const(0, uint16), v.attr)  # type: ignore[arg-type]
    return bitcast(v.args[0], uint16)
