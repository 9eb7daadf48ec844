"""An implementation of `block_product.py`: x in whole numbers of four limbs, multiplied by VNNI's instruction.

In a block of 32 elements of x each one is so many units of a power of two: a whole number of 30 bits, which is four
signed bytes, its limbs. One instruction multiplies 64 weights, made unsigned, by the bytes of one limb and adds each
four in int32: half the instructions of look-ups and multiply-adds in float32. Sums start from what the weights' offset
takes off; of a block

    sum += scale * unit * ((limb 3 * 2**8 + limb 2) * 2**16 + limb 1 * 2**8 + limb 0)

is rounded three times, and is exact before. What 30 bits do not hold of an element is below 2**-19 of it, unless it is
2**-11 of its block's largest or less: such a rest is multiplied in float32, word by word where there is one, as is x
where a block's largest number is tiny or not finite.

    for chunks of K:
      split x into limbs and rests                in a worker's first-level cache
      for tiles of 3 panels, as many panels apart as there are tiles:
        for blocks:
          the sums of each limb; add them up; add the rests

Panels apart are three streams, each of which goes on with the next panel: what neighbours read begins anew with each
tile, which some processors foresee late. Panels that are left make a last tile with those before them, and store what
is their own.
"""
from __future__ import annotations

from minigrad.codegen.microkernels.block_writer import BlockWriter
from minigrad.codegen.microkernels.writer import B, F, H, W, all_bytes, order, splat

PANELS, BLOCKS, LIMBS = 3, 256, 4
"""Panels at a time; blocks in a chunk; limbs."""

LIMB_BYTES, SUM_BYTES, REST_BYTES = 32 * LIMBS, 32, 128
"""Of a block: its limbs; what its sums start from, its unit, its total and where there is a rest; the rest."""

UNIT, TOTAL, MASK = 4 * LIMBS, 4 * LIMBS + 4, 4 * LIMBS + 8
"""Where these are."""

LOW, HIGH, TOP = 127 - 60, 255, 29
"""The exponents (biased) of a block's largest element that count, the second one no more; and how many bits its units
lie below it."""

SMALL = 1 << 18
"""Units up to which an element's rest counts."""

_DECLARED = f"""\
declare {F} @llvm.fma.v16f32({F}, {F}, {F})
declare {F} @llvm.fabs.v16f32({F})
declare i64 @llvm.smin.i64(i64, i64)
declare i32 @llvm.umax.i32(i32, i32)
declare i32 @llvm.vector.reduce.umax.v16i32({W})
declare float @llvm.vector.reduce.fadd.v16f32(float, {F})
declare {W} @llvm.umax.v16i32({W}, {W})
declare {W} @llvm.x86.avx512.mask.cvtps2dq.512({F}, {W}, i16, i32)
declare {W} @llvm.x86.avx512.vpdpbusd.512({W}, {B}, {B})
declare void @llvm.masked.store.v16f32.p0({F}, ptr, i32, <16 x i1>)
"""


def limbs_text(kind: str, name: str) -> str:
    """The LLVM IR of a kind of `BlockProduct`."""
    return _Text(kind).source(name)


class _Text(BlockWriter):
    """Writes one implementation."""

    def source(self, name: str) -> str:
        parts = self.begin(name)
        for memory, size in (("limbs", LIMB_BYTES), ("sums", SUM_BYTES), ("rests", REST_BYTES)):
            self.put(f"%{memory} = alloca [{BLOCKS * size} x i8], align 64")
        for part in parts:
            self.put(f"%{part}.step = mul i64 %{part}_pitch, {4 if part == 'words' else 2}")
        self.put(f"%third = udiv i64 %panels, {PANELS}", f"%whole = mul i64 %third, {PANELS}",
                 "%odd = icmp slt i64 %whole, %panels", "%odd.tile = zext i1 %odd to i64",
                 "%tiles = add i64 %third, %odd.tile", f"%last.panel = sub i64 %panels, {PANELS}",
                 "br label %chunk", "chunk:", "%first = phi i64 [ 0, %entry ], [ %next, %done ]",
                 "%left = sub i64 %blocks, %first", f"%size = call i64 @llvm.smin.i64(i64 %left, i64 {BLOCKS})",
                 "%new = icmp eq i64 %first, 0", "%x.first = mul i64 %first, 128",
                 "%x.here = getelementptr i8, ptr %x, i64 %x.first")
        for part in parts:
            self.put(f"%{part}.first = mul i64 %first, {self.block_bytes(part)}",
                     f"%{part}.here = getelementptr i8, ptr %{part}, i64 %{part}.first")
        self.put("br label %split")
        self.split()
        self.tiles()
        self.put("done:", f"%next = add i64 %first, {BLOCKS}", "%more.chunks = icmp slt i64 %next, %blocks",
                 "br i1 %more.chunks, label %chunk, label %end", "end:", "ret void")
        return "\n".join([_DECLARED + self.lines[0].strip(), *self.lines[1:], "}", ""])

    # ---- x as limbs ----

    def split(self) -> None:
        """Limbs and rests of each block, and what is the same for all of its elements; then on to `tile`."""
        self.put("split:", "%t = phi i64 [ 0, %chunk ], [ %t.next, %split.next ]")
        block = self.at("%x.here", self.times("%t", 128))
        x = [self.load(F, block), self.load(F, self.at(block, 64))]
        high, usual = self.exponent(x)
        bits_of_scale = self.let(f"shl i32 {self.let(f'sub i32 {2 * 127 + TOP}, {high}')}, 23")
        scale = self.all(F, "float", self.let(f"bitcast i32 {bits_of_scale} to float"))
        bits_of_unit = self.let(f"shl i32 {self.let(f'sub i32 {high}, {TOP}')}, 23")
        unit = self.all(F, "float", self.let(f"bitcast i32 {bits_of_unit} to float"))
        whole, rest, bits = [], [], []
        for v in x:
            number = self.rounded(self.let(f"fmul {F} {v}, {scale}"))
            near = self.floats(number)
            small = self.let(f"fcmp olt {F} {self.let(f'call {F} @llvm.fabs.v16f32({F} {near})')}, "
                             f"{splat(float(SMALL))}")
            below = self.fma(self.let(f"fneg {F} {near}"), unit, v)  # exact, however small v is
            below = self.let(f"select <16 x i1> {small}, {F} {below}, {F} zeroinitializer")
            whole.append(self.let(f"select i1 {usual}, {W} {number}, {W} zeroinitializer"))
            rest.append(self.let(f"select i1 {usual}, {F} {below}, {F} {v}"))
            some = self.let(f"fcmp une {F} {rest[-1]}, zeroinitializer")
            bits.append(self.let(f"zext i16 {self.let(f'bitcast <16 x i1> {some} to i16')} to i32"))
        limbs = self.put_limbs(whole, self.at("%limbs", self.times("%t", LIMB_BYTES)), 32)
        sums = self.at("%sums", self.times("%t", SUM_BYTES))
        self.put(f"store <4 x i32> {self.offsets(limbs)}, ptr {sums}, align 16")
        self.put(f"store i32 {bits_of_unit}, ptr {self.at(sums, UNIT)}, align 4")
        if self.least:
            both = self.let(f"fadd {F} {x[0]}, {x[1]}")
            total = self.let(f"call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {F} {both})")
            self.put(f"store float {total}, ptr {self.at(sums, TOTAL)}, align 4")
        mask = self.let(f"or i32 {bits[0]}, {self.let(f'shl i32 {bits[1]}, 16')}")
        self.put(f"store i32 {mask}, ptr {self.at(sums, MASK)}, align 4", f"%no.rest = icmp eq i32 {mask}, 0",
                 "br i1 %no.rest, label %split.next, label %split.rest", "split.rest:")
        place = self.at("%rests", self.times("%t", REST_BYTES))
        for k, v in enumerate(rest):
            self.put(f"store {F} {v}, ptr {self.at(place, 64 * k)}, align 64")
        self.put("br label %split.next", "split.next:", "%t.next = add i64 %t, 1",
                 "%t.more = icmp slt i64 %t.next, %size", "br i1 %t.more, label %split, label %tile")

    def exponent(self, x: list[str]) -> tuple[str, str]:
        """The exponent (biased) of a block's largest element, at least LOW, and whether it counts."""
        size = [self.let(f"and {W} {self.let(f'bitcast {F} {v} to {W}')}, splat (i32 2147483647)") for v in x]
        most = self.let(f"call {W} @llvm.umax.v16i32({W} {size[0]}, {W} {size[1]})")
        found = self.let(f"lshr i32 {self.let(f'call i32 @llvm.vector.reduce.umax.v16i32({W} {most})')}, 23")
        usual = self.let(f"icmp ult i32 {self.let(f'sub i32 {found}, {LOW}')}, {HIGH - LOW}")
        return self.let(f"call i32 @llvm.umax.i32(i32 {found}, i32 {LOW})"), usual

    def rounded(self, v: str) -> str:
        return self.let(f"call {W} @llvm.x86.avx512.mask.cvtps2dq.512({F} {v}, {W} zeroinitializer, i16 -1, i32 4)")

    def offsets(self, pairs: list[str]) -> str:
        """What the sums of limbs start from: weights are unsigned, more by 128 or 8 than they count."""
        if self.least:
            return "zeroinitializer"
        fours = [self.let(f"call {W} @llvm.x86.avx512.vpdpbusd.512({W} zeroinitializer, {B} splat (i8 1), {B} {v})")
                 for v in pairs]
        parts = [order([8 * limb + 4 * half + lane for limb in range(4) for lane in range(4)]) for half in range(2)]
        low, high = (self.let(f"shufflevector {W} {fours[0]}, {W} {fours[1]}, {p}") for p in parts)
        sums, lanes = self.let(f"add {W} {low}, {high}"), 16
        while lanes > 4:
            parts = [order(list(range(j, lanes, 2))) for j in range(2)]
            low, high = (self.let(f"shufflevector <{lanes} x i32> {sums}, <{lanes} x i32> poison, {p}") for p in parts)
            lanes //= 2
            sums = self.let(f"add <{lanes} x i32> {low}, {high}")
        return self.let(f"mul <4 x i32> {sums}, splat (i32 {-128 if self.bytes else -8})")

    # ---- tiles of panels ----

    def tiles(self) -> None:
        """Three panels at a time, all blocks of the chunk."""
        self.put("tile:", "%p = phi i64 [ 0, %split.next ], [ %p.next, %stored ]", "%inside = icmp slt i64 %p, %third",
                 "%base = select i1 %inside, i64 %p, i64 %last.panel", "%apart = select i1 %inside, i64 %third, i64 1",
                 "%own.from = select i1 %inside, i64 0, i64 %whole")
        old = []
        for i in range(PANELS):
            self.put(f"%p{i} = add i64 %base, {self.times('%apart', i)}", f"%c{i}.place = mul i64 %p{i}, 64",
                     f"%c{i} = getelementptr i8, ptr %c, i64 %c{i}.place")
            for part in ("words", *self.halves):
                place = self.let(f"mul i64 %p{i}, %{part}.step")
                self.put(f"%{part}{i} = getelementptr i8, ptr %{part}.here, i64 {place}")
            old.append(self.let(f"select i1 %new, {F} zeroinitializer, {F} {self.load(F, f'%c{i}')}"))
        self.put("br label %block", "block:", "%b = phi i64 [ 0, %tile ], [ %b.next, %block.next ]")
        for i in range(PANELS):
            self.put(f"%sum{i} = phi {F} [ {old[i]}, %tile ], [ %sum{i}.next, %block.next ]")
        whole, rest = self.block()
        self.put("br label %block.next", "block.next:")
        for i in range(PANELS):
            self.put(f"%sum{i}.next = phi {F} [ {whole[i]}, %block ], [ {rest[i]}, %rest.added ]")
        self.put("%b.next = add i64 %b, 1", "%b.more = icmp slt i64 %b.next, %size",
                 "br i1 %b.more, label %block, label %stored", "stored:")
        for i in range(PANELS):
            own = self.all("<16 x i1>", "i1", self.let(f"icmp sge i64 %p{i}, %own.from"))
            self.put(f"call void @llvm.masked.store.v16f32.p0({F} %sum{i}.next, ptr %c{i}, i32 4, <16 x i1> {own})")
        self.put("%p.next = add i64 %p, 1", "%p.more = icmp slt i64 %p.next, %tiles",
                 "br i1 %p.more, label %tile, label %done")

    def block(self) -> tuple[list[str], list[str]]:
        """The sums with what a block adds to them, where it has no rest and where it has one."""
        limbs, sums = self.at("%limbs", self.times("%b", LIMB_BYTES)), self.at("%sums", self.times("%b", SUM_BYTES))
        start = [self.every(W, "i32", self.at(sums, 4 * k)) for k in range(LIMBS)]
        totals = [list(start) for _ in range(PANELS)]
        self.put(f"%words.place = mul i64 %b, {self.block_bytes('words')}", "%halves.place = mul i64 %b, 32")
        for g in range(self.words):
            rows = [self.bytes_of(self.load(W, self.word(i, "%words.place", g))) for i in range(PANELS)]
            for h in range(len(rows[0])):
                for k in range(LIMBS):
                    x = self.every(W, "i32", self.at(limbs, 32 * k + 4 * (len(rows[0]) * g + h)))
                    x = self.let(f"bitcast {W} {x} to {B}")
                    for i in range(PANELS):
                        totals[i][k] = self.let(f"call {W} @llvm.x86.avx512.vpdpbusd.512({W} {totals[i][k]}, "
                                                f"{B} {rows[i][h]}, {B} {x})")
        unit = self.every(F, "float", self.at(sums, UNIT))
        total = self.every(F, "float", self.at(sums, TOTAL)) if self.least else ""
        numbers, whole = [], []
        for i in range(PANELS):
            high, low = (self.floats(self.joined(totals[i][k + 1], totals[i][k])) for k in (2, 0))
            numbers.append(self.fma(high, splat(2.0 ** 16), low))
            factor = self.let(f"fmul {F} {self.half('scales', i)}, {unit}")
            whole.append(self.with_minimum(i, total, self.fma(factor, numbers[-1], f"%sum{i}")))
        self.put(f"%mask = load i32, ptr {self.at(sums, MASK)}, align 4", "%none = icmp eq i32 %mask, 0",
                 "br i1 %none, label %block.next, label %rest")
        parts = self.rest()
        return whole, [self.with_minimum(i, total, self.fma(
            self.half("scales", i), self.fma(numbers[i], unit, parts[i]), f"%sum{i}")) for i in range(PANELS)]

    def with_minimum(self, i: int, total: str, result: str) -> str:
        return self.fma(self.half("minimums", i), total, result) if self.least else result

    def every(self, kind: str, scalar: str, pointer: str) -> str:
        """A number in memory in all lanes."""
        return self.all(kind, scalar, self.load(scalar, pointer))

    def word(self, i: int, place: str, g: int) -> str:
        return self.at(self.at(f"%words{i}", place), 64 * g)

    def half(self, part: str, i: int) -> str:
        """The scales or minimums of a block in panel i."""
        return self.let(f"fpext {H} {self.load(H, self.at(f'%{part}{i}', '%halves.place'), 2)} to {F}")

    def bytes_of(self, word: str) -> list[str]:
        """A word's numbers as unsigned bytes: all, or those of the low halves and of the high ones."""
        if self.bytes:
            found = [self.let(f"xor {W} {word}, splat (i32 {all_bytes(0x80) - (1 << 32)})")]
        else:
            found = [self.let(f"and {W} {v}, splat (i32 {all_bytes(0x0F)})")
                     for v in (word, self.let(f"lshr {W} {word}, splat (i32 4)"))]
        return [self.let(f"bitcast {W} {v} to {B}") for v in found]

    def joined(self, high: str, low: str) -> str:
        return self.let(f"add {W} {self.let(f'shl {W} {high}, splat (i32 8)')}, {low}")

    # ---- what limbs do not hold ----

    def rest(self) -> list[str]:
        """The sums of the block's rest in float32, words without one left out; ends in `rest.added`."""
        columns = 32 // self.words
        self.put("rest:", "%rest.here = mul i64 %b, 128", "%rest.x = getelementptr i8, ptr %rests, i64 %rest.here",
                 "br label %rest.word", "rest.word:", "%g = phi i64 [ 0, %rest ], [ %g.next, %rest.next ]",
                 "%bits = phi i32 [ %mask, %rest ], [ %bits.next, %rest.next ]")
        for i in range(PANELS):
            self.put(f"%part{i} = phi {F} [ zeroinitializer, %rest ], [ %part{i}.next, %rest.next ]")
        here = self.let(f"icmp eq i32 {self.let(f'and i32 %bits, {(1 << columns) - 1}')}, 0")
        self.put(f"br i1 {here}, label %rest.next, label %rest.some", "rest.some:")
        place = self.let(f"add i64 %words.place, {self.times('%g', 64)}")
        words = [self.load(W, self.word(i, place, 0)) for i in range(PANELS)]
        parts = [f"%part{i}" for i in range(PANELS)]
        x = self.at("%rest.x", self.times("%g", 4 * columns))
        for k in range(columns):
            value = self.every(F, "float", self.at(x, 4 * k))
            parts = [self.fma(value, self.number(words[i], k), parts[i]) for i in range(PANELS)]
        self.put("br label %rest.next", "rest.next:")
        for i in range(PANELS):
            self.put(f"%part{i}.next = phi {F} [ %part{i}, %rest.word ], [ {parts[i]}, %rest.some ]")
        self.put(f"%bits.next = lshr i32 %bits, {columns}", "%g.next = add i64 %g, 1",
                 "%g.more = icmp ne i32 %bits.next, 0", "br i1 %g.more, label %rest.word, label %rest.added",
                 "rest.added:")
        return [f"%part{i}.next" for i in range(PANELS)]
