"""Conversions of float16 and bfloat16 in integer arithmetic, for devices (and LLVM targets) without instructions."""
from __future__ import annotations

from minigrad.codegen.render.index import IndexEmitter
from minigrad.codegen.render.place import Ref
from minigrad.dtype import bool_, float32, uint16, uint32


class HalfEmitter(IndexEmitter):
    """Each works on scalars and vectors alike; half types come and go as their bits, uint16."""

    def bits_to_half(self, x: Ref) -> Ref:
        """float16 bits (uint16) -> float32, exact, without subnormal float32 on the way."""
        def op(name: str, a: Ref, b: int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes)), uint32)

        wide = self.convert(x, uint32)
        size = op("and", wide, 0x7FFF)
        shifted = op("shl", size, 13)
        tiny = self.operation("mul", (self.convert(size, float32), self.every(2.0**-24, float32, x.lanes)), float32)
        small = self.operation("lt", (size, self.every(0x400, uint32, x.lanes)), bool_)
        usual = self.operation("lt", (size, self.every(0x7C00, uint32, x.lanes)), bool_)
        bits = self.operation("where", (usual, op("add", shifted, 0x38000000), op("add", shifted, 0x70000000)), uint32)
        bits = self.operation("where", (small, self.reinterpret(tiny, uint32), bits), uint32)
        sign = op("shl", op("and", wide, 0x8000), 16)
        return self.reinterpret(self.operation("or", (bits, sign), uint32), float32)

    def half_to_bits(self, x: Ref) -> Ref:
        """float32 -> float16 bits (uint16), to nearest even."""
        def op(name: str, a: Ref, b: Ref | int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes) if isinstance(b, int) else b), uint32)

        def below(limit: int, yes: Ref, no: Ref) -> Ref:
            test = self.operation("lt", (size, self.every(limit, uint32, x.lanes)), bool_)
            return self.operation("where", (test, yes, no), uint32)

        wide = self.reinterpret(x, uint32)
        size = op("and", wide, 0x7FFFFFFF)
        odd = op("and", op("shr", size, 13), 1)
        usual = op("shr", op("add", op("add", op("sub", size, 0x38000000), 0xFFF), odd), 13)
        # Adding 0.5 rounds to multiples of 2**-24, the spacing of subnormal halves.
        half = self.every(0.5, float32, x.lanes)
        shifted = self.operation("add", (self.reinterpret(size, float32), half), float32)
        tiny = op("sub", self.reinterpret(shifted, uint32), 0x3F000000)
        special = below(0x7F800001, self.every(0x7C00, uint32, x.lanes), self.every(0x7E00, uint32, x.lanes))
        bits = below(0x38800000, tiny, below(0x477FF000, usual, special))
        return self.convert(op("or", bits, op("shr", op("and", wide, 0x80000000), 16)), uint16)

    def bits_to_bfloat(self, x: Ref) -> Ref:
        """bfloat16 bits (uint16) -> float32, exact."""
        wide = self.operation("shl", (self.convert(x, uint32), self.every(16, uint32, x.lanes)), uint32)
        return self.reinterpret(wide, float32)

    def bfloat_to_bits(self, x: Ref) -> Ref:
        """float32 -> bfloat16 bits (uint16), to nearest even; NaN stays a quiet NaN."""
        def op(name: str, a: Ref, b: Ref | int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes) if isinstance(b, int) else b), uint32)

        bits = self.reinterpret(x, uint32)
        high = op("shr", bits, 16)
        rounded = op("shr", op("add", op("add", bits, 0x7FFF), op("and", high, 1)), 16)
        nan = self.operation("ne", (x, x), bool_)
        return self.convert(self.operation("where", (nan, op("or", high, 0x40), rounded), uint32), uint16)
