"""Values that the processor has one instruction for: tables in registers, sums of bytes' products, powers of two."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from minigrad.codegen.render.copies import Maker
from minigrad.codegen.render.llvm_dots import dot_of
from minigrad.codegen.render.llvm_scales import scale_of
from minigrad.codegen.render.llvm_tables import may_be_table, table_of
from minigrad.codegen.render.llvm_text import type_of, typed
from minigrad.codegen.render.llvm_values import LlvmValues
from minigrad.codegen.render.place import Ref
from minigrad.dtype import float32, int32
from minigrad.value import Value


class LlvmInstructions(LlvmValues):
    """Finds such values before they are rendered by their operations."""

    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        if v.dtype is float32:
            if v.args and self.is_wide:
                table = table_of(v) if may_be_table(v) else None
                if table is not None:
                    return (table[0],), lambda v, mask, args: self.in_lanes(lambda x: self.look_up(table[1], x), args)
                scale = scale_of(v) if v.op == "mul" and v.args[0].op == "mul" else None
                if scale is not None:
                    return scale, lambda v, mask, args: self.in_lanes(self.scaled, args)
        elif (v.op == "add" and v.dtype is int32
              and {16: "avx512vnni", 8: "avxvnni"}.get(self.width) in self.target.features):
            dot = dot_of(v)
            if dot is not None:
                return dot, lambda v, mask, args: self.in_lanes(self.dot, args)
            dot = dot_of(v.args[1])
            if dot is not None:
                return (*dot, v.args[0]), lambda v, mask, args: self.in_lanes(self.dot, args)
        return super().parts_of(v)

    @property
    def is_wide(self) -> bool:
        """True inside a loop over sixteen lanes that AVX-512 has instructions for."""
        return self.width == 16 and "avx512f" in self.target.features

    def in_lanes(self, instruction: Callable[..., Ref], args: Sequence[Ref]) -> Ref:
        """The result of an instruction in all lanes of the loop; one value where each of `args` is the same in all."""
        vector = instruction(*[self.spread(x, self.width) for x in args])
        if any(x.lanes > 1 for x in args):
            return vector
        one = self.extract(vector, 0)
        one.wide = vector
        return one

    def scaled(self, p: Ref, n: Ref) -> Ref:
        """p * 2**n in each of sixteen lanes."""
        kind = type_of(p)
        text = f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({typed(p)}, {typed(n)}, {kind} poison, i16 -1, i32 4)"
        return self.pure(text, float32, 16, (p, n))

    def look_up(self, entries: Sequence[float], x: Ref) -> Ref:
        """entries[x & 15] in each of sixteen lanes."""
        table = self.gather_lanes([self.constant(e, float32) for e in entries])
        text = f"call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> {table.text}, {typed(x)})"
        return self.pure(text, float32, 16, (x,))

    def dot(self, w: Ref, x: Ref, before: Ref | None = None) -> Ref:
        """In each lane the sum of the products of the unsigned bytes of `w` and the signed bytes of `x`, plus `before`
        if there is one."""
        sums, kind = type_of(w), f"<{4 * w.lanes} x i8>"
        words = [self.pure(f"bitcast {typed(r)} to {kind}", r.dtype, r.lanes, (r,), "bytes") for r in (w, x)]
        before = before or self.every(0, int32, w.lanes)
        text = (f"call {sums} @llvm.x86.avx512.vpdpbusd.{32 * w.lanes}({sums} {before.text}, {kind} {words[0].text}, "
                f"{kind} {words[1].text})")
        return self.pure(text, int32, w.lanes, (w, x, before, *words), "dot")
