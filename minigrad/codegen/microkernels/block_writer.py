"""The common parts of implementations of `block_product.py`: the layout of blocks, numbers of words, and limbs of x."""
from __future__ import annotations

from minigrad.codegen.microkernels.writer import B, F, W, Writer, order


class BlockWriter(Writer):
    """Writes one implementation. Of two neighbouring blocks a panel has `pair_bytes` bytes of words."""

    def __init__(self, kind: str):
        super().__init__()
        self.bytes, self.least = kind == "q8", kind == "q4m"
        self.turned = 0x80 if kind == "q4" else 0
        """The bit to invert in a nibble: a nibble less 8 is the nibble with its highest bit inverted, in two's
        complement."""
        self.words = 8 if self.bytes else 4
        self.pair_bytes = 2 * self.words * 64
        self.halves = ("scales", "minimums") if self.least else ("scales",)

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
        return self.floats(self.let(f"sub {W} {nibble}, splat (i32 8)") if self.turned else nibble)

    def put_limbs(self, numbers: list[str], to: str, pitch: int) -> list[str]:
        """Writes four signed bytes of each of 32 numbers up to 2**30, in rows `pitch` bytes apart, the lowest first;
        returns them, two rows in each. Adding 128 to a byte carries into the next one where it is to be negative."""
        signed, pairs = [], []
        for v in numbers:
            carried = self.let(f"add {W} {v}, splat (i32 8421504)")
            turned = self.let(f"xor {W} {carried}, splat (i32 8421504)")
            signed.append(self.let(f"bitcast {W} {turned} to {B}"))
        for k in (0, 2):
            places = [4 * lane + limb for limb in (k, k + 1) for lane in range(32)]
            two = self.let(f"shufflevector {B} {signed[0]}, {B} {signed[1]}, {order(places)}")
            for h in range(2):
                row = self.let(f"shufflevector {B} {two}, {B} poison, {order(list(range(32 * h, 32 * h + 32)))}")
                self.put(f"store <32 x i8> {row}, ptr {self.at(to, pitch * (k + h))}, align 32")
            pairs.append(two)
        return pairs
