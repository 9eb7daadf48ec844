"""Writing LLVM IR line by line, for implementations of `block_product.py`: vectors of 64 bytes, the layout of blocks,
numbers of words, and limbs of x."""
from __future__ import annotations

import struct

F, W, B, H = "<16 x float>", "<16 x i32>", "<64 x i8>", "<16 x half>"


class BlockWriter:
    """Writes one implementation, line by line; every value has a name of its own. Of two neighbouring blocks a panel
    has `pair_bytes` bytes of words."""

    def __init__(self, kind: str):
        self.lines: list[str] = []
        self.count = 0
        self.bytes, self.least = kind == "q8", kind == "q4m"
        self.flipped = 0x80 if kind == "q4" else 0
        """The bit to invert in a nibble: a nibble less 8 is the nibble with its highest bit inverted, in two's
        complement."""
        self.words = 8 if self.bytes else 4
        self.pair_bytes = 2 * self.words * 64
        self.halves = ("scales", "minimums") if self.least else ("scales",)

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

    # ---- blocks ----

    def begin(self, name: str) -> tuple[str, ...]:
        """Writes the head of the function; gives the parts of blocks that it has buffers and pitches of."""
        parts = ("words", *self.halves)
        buffers = [f"ptr noalias readonly %{b}" for b in ("x", *parts)]
        dims = [f"i64 %{d}" for d in ("blocks", "panels", *(f"{part}_pitch" for part in parts))]
        self.put(f"define void @{name}({', '.join([*buffers, 'ptr noalias %c', *dims])}) nounwind {{", "entry:")
        return parts

    def block_bytes(self, part: str) -> int:
        """The bytes of one part of a block, in a panel."""
        return 64 * self.words if part == "words" else 32

    def prefetch(self, pointer: str) -> None:
        self.put(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    def floats(self, v: str) -> str:
        return self.let(f"sitofp {W} {v} to {F}")

    def number(self, word: str, k: int) -> str:
        """Column k of a word as floats."""
        if self.bytes:
            top = self.let(f"shl {W} {word}, splat (i32 {24 - 8 * k})")
            return self.floats(self.let(f"ashr {W} {top}, splat (i32 24)"))
        low = self.let(f"lshr {W} {word}, splat (i32 {8 * (k % 4) + 4 * (k // 4)})")
        nibble = self.let(f"and {W} {low}, splat (i32 15)")
        return self.floats(self.let(f"sub {W} {nibble}, splat (i32 8)") if self.flipped else nibble)

    def put_limbs(self, numbers: list[str], to: str, pitch: int) -> list[str]:
        """Writes four signed bytes of each of 32 numbers up to 2**30, in rows `pitch` bytes apart, the lowest first;
        returns them, two rows in each. Adding 128 to a byte carries into the next one where it is to be negative."""
        signed, pairs = [], []
        for v in numbers:
            carried = self.let(f"add {W} {v}, splat (i32 8421504)")
            flipped = self.let(f"xor {W} {carried}, splat (i32 8421504)")
            signed.append(self.let(f"bitcast {W} {flipped} to {B}"))
        for k in (0, 2):
            places = [4 * lane + limb for limb in (k, k + 1) for lane in range(32)]
            two = self.let(f"shufflevector {B} {signed[0]}, {B} {signed[1]}, {order(places)}")
            for h in range(2):
                row = self.let(f"shufflevector {B} {two}, {B} poison, {order(list(range(32 * h, 32 * h + 32)))}")
                self.put(f"store <32 x i8> {row}, ptr {self.at(to, pitch * (k + h))}, align 32")
            pairs.append(two)
        return pairs


def splat(value: float) -> str:
    return f"splat (float 0x{struct.pack('>d', value).hex()})"


def order(lanes: list[int], kind: str = "i32") -> str:
    """A vector of constants, with its type."""
    return f"<{len(lanes)} x {kind}> <{', '.join(f'{kind} {k}' for k in lanes)}>"


def all_bytes(byte: int) -> int:
    """A word of four equal bytes."""
    return byte * 0x01010101
