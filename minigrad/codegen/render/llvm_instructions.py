"""Values that the processor has one instruction for: tables in registers, sums of bytes' products, powers of two."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.render.llvm_dot_products import dot_for, dot_of
from minigrad.codegen.render.llvm_scales import scale_of
from minigrad.codegen.render.llvm_tables import may_be_table, table_of
from minigrad.codegen.render.llvm_text import type_of, typed
from minigrad.codegen.render.refs import Ref
from minigrad.dtype import DType, float32, int32
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter
    from minigrad.codegen.render.steps import Maker


def instruction_for(out: Emitter, v: Value) -> tuple[tuple[Value, ...], Maker] | None:
    """See `Language.instruction_for`."""
    if v.args and out.width == 16 and "avx512f" in out.target.features:
        # Inside a loop over sixteen lanes AVX-512 has instructions for these.
        table = table_of(v) if v.dtype in (float32, int32) and may_be_table(v) else None
        if table is not None:
            return (table[0],), made_by(lambda out, x: look_up(out, table[1], x, v.dtype))
        scale = scale_of(v) if v.dtype is float32 and v.op == "mul" and v.args[0].op == "mul" else None
        if scale is not None:
            return scale, made_by(scaled)
    if v.op == "add" and v.dtype is int32 and out.width > 1:
        for found, before in ((dot_of(v), ()), (dot_of(v.args[1]), v.args[:1])):
            dot = dot_for(out.target.features, out.width, found[0]) if found else None
            if found and dot:
                return (*found, *before), made_by(dot)
    return None


def made_by(instruction: Callable[..., Ref]) -> Maker:
    """Emits values by an instruction in all lanes of the loop; one value where each of its operands is the same in
    all."""
    def make(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        vector = instruction(out, *[out.spread(x, out.width) for x in args])
        if any(x.lanes > 1 for x in args):
            return vector
        one = out.language.extract(vector, 0)
        one.wide = vector
        return one

    return make


def scaled(out: Emitter, p: Ref, n: Ref) -> Ref:
    """p * 2**n in each of sixteen lanes."""
    kind = type_of(p)
    text = f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({typed(p)}, {typed(n)}, {kind} poison, i16 -1, i32 4)"
    return out.pure(text, float32, 16, (p, n))


def look_up(out: Emitter, entries: Sequence[float], x: Ref, dtype: DType) -> Ref:
    """entries[x & 15], float32 or int32, in each of sixteen lanes."""
    table = out.language.gather_lanes([out.constant(e, dtype) for e in entries])
    name, kind = "sf" if dtype is float32 else "si", type_of(table)
    text = f"call {kind} @llvm.x86.avx512.permvar.{name}.512({kind} {table.text}, {typed(x)})"
    return out.pure(text, dtype, 16, (x,))
