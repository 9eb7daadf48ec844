"""Matrix units of GPUs: `call mma_f16_opencl at v`.

    for kb: for ks: for u, v unroll:                    for kb: for ks: for u, v unroll:
      for i<16, j<8, kk<16:                       ->      call mma_f16_opencl(p0_staged[...], p1_staged[...], acc[...])
        acc[u, v, i, j] += p0_staged[...] * p1_staged[...]

The loops inside v are what the unit computes. Its sums lie in the registers of a wave: loops over the wave's work-items
and over the sums that each of them has take the place of i and j. Half values are copied as their bits.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from minigrad.codegen.microkernels.matrix import WAVE, MatrixUnit, matrix_microkernel, unit_named
from minigrad.codegen.plan.loops import Loops, refuse
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.steps.call import Call
from minigrad.dtype import DType, bfloat16, float16, float32, uint16
from minigrad.errors import quantity
from minigrad.expr import Index, Var
from minigrad.value import Value, bitcast, const, guard


@dataclass(frozen=True, slots=True)
class Wave:
    """The loops of a unit: `row`, `column` and `depth` inside it, in place of the first two `lane`, over a wave's
    work-items, and `each`, over the sums that one of them has."""

    step: Call
    unit: MatrixUnit
    row: str
    column: str
    depth: str
    lane: str
    each: str

    def places(self, places: dict[str, Index]) -> dict[str, Index]:
        """The row and column of a sum of a work-item, by loops."""
        row, column = self.unit.place(places[self.lane], places[self.each])
        return {self.row: row, self.column: column}


def with_wave(loops: Loops) -> tuple[Loops, Wave | None]:
    """The loops with those of a wave, and these. Raises PlanError where the ones inside a call are not a unit's."""
    step = next((s for s in loops.of(Call) if matrix_microkernel(s.kernel) is not None), None)
    if step is None:
        return loops, None
    unit, order = unit_named(step.kernel), loops.order
    inside = order[order.index(step.at) + 1:]
    shape = (unit.rows, unit.columns, unit.depth)
    if [loops.extent(x) for x in inside] != list(shape) or [bool(loops.space[x]) for x in inside] != [0, 0, 1] or any(
            loops.kind[x] != "serial" or loops.stride(x, Position()) != 1 for x in inside):
        raise refuse(step, f"serial loops of {quantity(shape[0], 'row')}, {shape[1]} columns and {shape[2]} steps of "
                           f"the sum, neighbours all, inside {step.at}", " ".join(inside) or "none")
    lane, each = (next(n for n in (f"{stem}{k or ''}" for k in range(len(order) + 2)) if n not in loops.root)
                  for stem in ("lane", "e"))
    items = max([0, *(k + 1 for k, x in enumerate(order) if loops.kind[x] in ("group", "item"))])
    row, column, depth = inside
    wave = Wave(step, unit, row, column, depth, lane, each)
    made = {lane: Var(lane, 0, WAVE - 1), each: loops.root[wave.row]}
    return replace(loops, order=(*order[:items], lane, *order[items:-3], each, *inside),
                   root={**loops.root, **made}, counts={each: unit.each},
                   bound={**loops.bound, lane: "item", each: "unroll", **dict.fromkeys(inside, "call")}), wave


def half_type(v: Value) -> DType | None:
    """The half type that an operand is widened from, under its guards; None for one that is computed in float32."""
    while v.op == "guard" and v.args[1].op == "const" and repr(v.args[1].number) == "0.0":
        v = v.args[0]
    if v.op == "cast" and v.dtype is float32 and v.args[0].dtype in (float16, bfloat16):
        return v.args[0].dtype
    return None


def bits_of(v: Value) -> Value:
    """The bits, uint16, of what such an operand is widened from."""
    if v.op == "guard":
        return guard(bits_of(v.args[0]), const(0, uint16), v.conditions)
    return bitcast(v.args[0], uint16)


def for_unit(v: Value, wave: Wave) -> Value:
    """An operand as the unit reads it. Raises PlanError for another type."""
    kind, dtype = half_type(v) or v.dtype, wave.unit.dtype
    if dtype not in (kind, v.dtype):
        raise refuse(wave.step, f"operands of {dtype.name}", kind.name)
    return v if v.dtype is dtype else bits_of(v)
