"""Writing LLVM IR line by line: the vectors of 64 bytes that hand-written microkernels use."""
from __future__ import annotations

import struct

F, W, B, H = "<16 x float>", "<16 x i32>", "<64 x i8>", "<16 x half>"


class Writer:
    """Lines of a function; every value has a name of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def put(self, *lines: str) -> None:
        self.lines += [line if line.endswith(":") else f"  {line}" for line in lines]

    def let(self, text: str) -> str:
        self.count += 1
        self.put(f"%t{self.count} = {text}")
        return f"%t{self.count}"

    def at(self, pointer: str, offset: str | int) -> str:
        """A pointer so many bytes on."""
        return pointer if offset == 0 else self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def times(self, a: str, b: int) -> str:
        return self.let(f"mul i64 {a}, {b}")

    def load(self, kind: str, pointer: str, align: int = 4) -> str:
        return self.let(f"load {kind}, ptr {pointer}, align {align}")

    def all(self, kind: str, scalar: str, value: str) -> str:
        """A vector with a value in all lanes."""
        one = self.let(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        return self.let(f"shufflevector {kind} {one}, {kind} poison, <16 x i32> zeroinitializer")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"call {F} @llvm.fma.v16f32({F} {a}, {F} {b}, {F} {c})")


def splat(value: float) -> str:
    return f"splat (float 0x{struct.pack('>d', value).hex()})"


def order(lanes: list[int], kind: str = "i32") -> str:
    """A vector of constants, with its type."""
    return f"<{len(lanes)} x {kind}> <{', '.join(f'{kind} {k}' for k in lanes)}>"


def all_bytes(byte: int) -> int:
    """A word of four equal bytes."""
    return byte * 0x01010101
