"""An implementation of `block_product.py`: x in whole numbers of four limbs, multiplied by VNNI's instruction.

In a block of 32 elements of x each one is a multiple of the block's quantum, a power of two: a whole number of 31 bits,
which is four signed bytes, its limbs. One instruction multiplies 64 weights, made unsigned, by the bytes of one limb
and adds each four in int32: half the instructions of look-ups and multiply-adds in float32. Sums start from the
correction for the weights' offset; of a block

    sum += scale * quantum * ((limb 3 * 2**8 + limb 2) * 2**16 + limb 1 * 2**8 + limb 0)

is rounded three times, and is exact before.

A byte of nibbles, low + 16 * high, needs seven products rather than eight: the lowest limb t of the element a that
meets the low nibble serves b, which meets the high one, too, since t * (low + 16 * high) gives a t more quanta and b 16
* t more. The lower four bits of t come from b and the others from a, so that both are met within 8 quanta:

    a = 256 * (limbs 3 to 1 of a) + t        b = 256 * (limbs 3 to 1 of b) + 16 * t

A small a has all of t, and is exact; a tiny b, which may be all that counts beside weights that are zeros, has zeros.
Then the other one is met within 128 quanta.

The part of an element that limbs do not hold is its rest. Where that is more than 2**-19 of the element (which then is
2**-12 or less of its block's largest one, in nibbles 2**-8), and where a block's largest number is tiny or not finite,
rests are multiplied in float32, one by one, after their block: later, loads that go back would disturb what processors
foresee.

    for chunks of K:
      split x into limbs and rests                in a worker's first-level cache
      for tiles of 3 panels, as many panels apart as there are tiles:
        for blocks:
          the sums of each limb; add them up; add the block's rests

Panels apart are three streams, each of which goes on with the next panel: what neighbours read begins anew with each
tile, which some processors foresee late. Panels that are left make a last tile with those before them, and store what
is their own.
"""
from __future__ import annotations

from minigrad.codegen.microkernels.writer import B, BlockWriter, F, H, W, all_bytes, order, splat

PANELS, BLOCKS, LIMBS = 3, 256, 4
"""Panels at a time; blocks in a chunk; limbs."""

LIMB_BYTES, SUM_BYTES = 32 * LIMBS, 32
"""Bytes per block: of its limbs; of what its sums start from, its quantum and its total."""

UNIT, TOTAL = 4 * LIMBS, 4 * LIMBS + 4
"""The offsets of the quantum and of the total there."""

LOW, HIGH, TOP = 127 - 60, 255, 30
"""The exponents (biased) of a block's largest element that count, the second one no more; and how many bits its quantum
lies below it."""

MARGIN = 1 << 17
"""A largest element so near the next power of two (in its bits) counts as that: bytes from -128 to 127 do not hold the
last 0x808080 of 31 bits, and sharing limbs adds some."""

END = (1 << 31) - 1
"""The place of a rest after the last one."""

SMALL, TINY, KEPT = 1 << 22, 16, 2.0 ** -19
"""Quanta below which a has the shared limb for itself, and below which b leaves it zero; the part of an element from
which on a rest counts."""


def limbs_text(kind: str, name: str) -> str:
    """The LLVM IR of a kind of `BlockProduct`."""
    return _Text(kind).source(name)


class _Text(BlockWriter):
    """Writes one implementation."""

    def source(self, name: str) -> str:
        parts = self.begin(name)
        for memory, size in (("limbs", LIMB_BYTES), ("sums", SUM_BYTES), ("rests", 128), ("places", 128)):
            self.put(f"%{memory} = alloca [{BLOCKS * size + 64} x i8], align 64")
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
        return "\n".join([*self.lines, "}", ""])

    # ---- x as limbs ----

    def split(self) -> None:
        """Writes limbs and rests of each block, and what is the same for all of its elements; then on to `tile`."""
        self.put("split:", "%t = phi i64 [ 0, %chunk ], [ %t.next, %split.next ]",
                 "%count = phi i64 [ 0, %chunk ], [ %count.next, %split.next ]")
        block = self.at("%x.here", self.times("%t", 128))
        x = [self.load(F, block), self.load(F, self.at(block, 64))]
        high, usual = self.exponent(x)
        bits_of_scale = self.let(f"shl i32 {self.let(f'sub i32 {2 * 127 + TOP}, {high}')}, 23")
        scale = self.all(F, "float", self.let(f"bitcast i32 {bits_of_scale} to float"))
        bits_of_unit = self.let(f"shl i32 {self.let(f'sub i32 {high}, {TOP}')}, 23")
        unit = self.all(F, "float", self.let(f"bitcast i32 {bits_of_unit} to float"))
        sums = self.at("%sums", self.times("%t", SUM_BYTES))
        self.put(f"store i32 {bits_of_unit}, ptr {self.at(sums, UNIT)}, align 4")
        if self.least:
            both = self.let(f"fadd {F} {x[0]}, {x[1]}")
            total = self.let(f"call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {F} {both})")
            self.put(f"store float {total}, ptr {self.at(sums, TOTAL)}, align 4")
        if not self.bytes:  # what meets the low nibbles, and the high ones
            x = [self.let(f"shufflevector {F} {x[0]}, {F} {x[1]}, {order(low_columns(4 * h))}") for h in range(2)]
        whole = [self.let(f"select i1 {usual}, {W} {self.rounded(self.let(f'fmul {F} {v}, {scale}'))}, "
                          f"{W} zeroinitializer") for v in x]
        limbed, near = (whole, whole) if self.bytes else self.shared(*whole)
        limbs = self.put_limbs(limbed, self.at("%limbs", self.times("%t", LIMB_BYTES)), 32)
        self.put(f"store <4 x i32> {self.offsets(limbs)}, ptr {sums}, align 16")
        self.put_rests(x, near, unit, usual)
        self.put("%t.next = add i64 %t, 1", "%t.more = icmp slt i64 %t.next, %size",
                 "br i1 %t.more, label %split, label %ready", "ready:",
                 f"store i32 {END}, ptr {self.at('%places', self.times('%count.next', 4))}, align 4", "br label %tile")

    def shared(self, a: str, b: str) -> tuple[list[str], list[str]]:
        """The numbers whose limbs are multiplied (the lowest one of b is zeros), and those that a and b are then."""
        def each(op: str, v: str, w: str | int) -> str:
            return self.let(f"{op} {W} {v}, {f'splat (i32 {w})' if isinstance(w, int) else w}")

        low = each("and", each("ashr", each("add", b, 8), 4), 15)
        t = each("add", each("and", each("add", each("sub", a, low), 8), -16), low)
        for v, limit, instead in ((a, SMALL, a), (b, TINY, "zeroinitializer")):
            size = self.let(f"call {W} @llvm.abs.v16i32({W} {v}, i1 false)")
            below = self.let(f"icmp ult {W} {size}, splat (i32 {limit})")
            t = self.let(f"select <16 x i1> {below}, {W} {instead}, {W} {t}")
        t = each("ashr", each("shl", t, 24), 24)
        more = each("shl", t, 4)
        first, second = (each("and", each("add", each("sub", v, lowest), 128), -256)
                         for v, lowest in ((a, t), (b, more)))
        first = each("add", first, t)
        return [first, second], [first, each("add", second, more)]

    def put_rests(self, x: list[str], near: list[str], unit: str, usual: str) -> None:
        """Writes what the numbers `near` do not hold of x, where that counts: rests, and where their weights lie."""
        some = []
        unusual = self.all("<16 x i1>", "i1", self.let(f"xor i1 {usual}, true"))
        for v, number in zip(x, near, strict=True):
            less = self.let(f"fneg {F} {self.floats(number)}")
            rest = self.let(f"select i1 {usual}, {F} {self.fma(less, unit, v)}, {F} {v}")  # exact where it counts
            part, size = (self.let(f"call {F} @llvm.fabs.v16f32({F} {w})") for w in (rest, v))
            much = self.let(f"fcmp ogt {F} {part}, {self.let(f'fmul {F} {size}, {splat(KEPT)}')}")
            kept = self.let(f"or <16 x i1> {much}, {unusual}")
            kept = self.let(f"and <16 x i1> {kept}, {self.let(f'fcmp une {F} {v}, zeroinitializer')}")
            some.append((rest, kept, self.let(f"zext i16 {self.let(f'bitcast <16 x i1> {kept} to i16')} to i32")))
        any_bits = self.let(f"or i32 {some[0][2]}, {some[1][2]}")
        self.put(f"%all.held = icmp eq i32 {any_bits}, 0", "br i1 %all.held, label %split.next, label %split.rest",
                 "split.rest:", f"%words.before = mul i64 %t, {64 * self.words}",
                 "%words.before.32 = trunc i64 %words.before to i32")
        before, count = self.all(W, "i32", "%words.before.32"), "%count"
        for h, (rest, kept, bits) in enumerate(some):
            place = self.let(f"add {order(self.places(h))}, {before}")
            for memory, kind, suffix, v in (("rests", F, "f32", rest), ("places", W, "i32", place)):
                packed = self.let(f"call {kind} @llvm.x86.avx512.mask.compress.v16{suffix}({kind} {v}, "
                                  f"{kind} zeroinitializer, <16 x i1> {kept})")
                self.put(f"store {kind} {packed}, ptr {self.at(f'%{memory}', self.times(count, 4))}, align 4")
            more = self.let(f"zext i32 {self.let(f'call i32 @llvm.ctpop.i32(i32 {bits})')} to i64")
            count = self.let(f"add i64 {count}, {more}")
        self.put("br label %split.next", "split.next:",
                 f"%count.next = phi i64 [ %count, %split ], [ {count}, %split.rest ]")

    def places(self, h: int) -> list[int]:
        """The places in a block of the weights of vector h of x: 64 bytes for each four, and the bits below them in a
        word."""
        lanes = range(16)
        if self.bytes:
            return [64 * (4 * h + k // 4) + 8 * (k % 4) for k in lanes]
        return [64 * (k // 4) + 8 * (k % 4) + 4 * h for k in lanes]

    def exponent(self, x: list[str]) -> tuple[str, str]:
        """The exponent (biased) of a block's largest element, at least LOW, and a bool (i1) that is true where it
        counts."""
        size = [self.let(f"and {W} {self.let(f'bitcast {F} {v} to {W}')}, splat (i32 2147483647)") for v in x]
        most = self.let(f"call {W} @llvm.umax.v16i32({W} {size[0]}, {W} {size[1]})")
        most = self.let(f"call i32 @llvm.vector.reduce.umax.v16i32({W} {most})")
        found = self.let(f"lshr i32 {self.let(f'add i32 {most}, {MARGIN}')}, 23")
        usual = self.let(f"icmp ult i32 {self.let(f'sub i32 {found}, {LOW}')}, {HIGH - LOW}")
        return self.let(f"call i32 @llvm.umax.i32(i32 {found}, i32 {LOW})"), usual

    def rounded(self, v: str) -> str:
        return self.let(f"call {W} @llvm.x86.avx512.mask.cvtps2dq.512({F} {v}, {W} zeroinitializer, i16 -1, i32 4)")

    def offsets(self, pairs: list[str]) -> str:
        """The start of the sums of limbs: a correction, as weights are unsigned, more by 128 or 8 than they count."""
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
        off = [-128] * 4 if self.bytes else [-8 * 17, -8, -8, -8]
        return self.let(f"mul {order(off)}, {sums}")

    # ---- tiles of panels ----

    def tiles(self) -> None:
        """Writes the loop over tiles of three panels, for all blocks of the chunk."""
        self.put("tile:", "%p = phi i64 [ 0, %ready ], [ %p.next, %stored ]", "%inside = icmp slt i64 %p, %third",
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
        self.put("br label %block", "block:", "%b = phi i64 [ 0, %tile ], [ %b.next, %block.next ]",
                 "%first.rest = phi i64 [ 0, %tile ], [ %other.rest, %block.next ]")
        for i in range(PANELS):
            self.put(f"%sum{i} = phi {F} [ {old[i]}, %tile ], [ %sum{i}.next, %block.next ]")
        sums = self.block()
        self.put(f"%block.end = add i64 %words.place, {self.block_bytes('words')}",
                 "%block.end.32 = trunc i64 %block.end to i32")
        self.put(f"br i1 {self.rest_here('%first.rest')}, label %rest, label %block.next")
        added = [self.fma(self.half("scales", i), part, sums[i]) for i, part in enumerate(self.rest())]
        self.put("br label %block.next", "block.next:",
                 "%other.rest = phi i64 [ %first.rest, %block ], [ %next.rest, %rest.added ]")
        for i in range(PANELS):
            self.put(f"%sum{i}.next = phi {F} [ {sums[i]}, %block ], [ {added[i]}, %rest.added ]")
        self.put("%b.next = add i64 %b, 1", "%b.more = icmp slt i64 %b.next, %size",
                 "br i1 %b.more, label %block, label %stored", "stored:")
        for i in range(PANELS):
            own = self.all("<16 x i1>", "i1", self.let(f"icmp sge i64 %p{i}, %own.from"))
            self.put(f"call void @llvm.masked.store.v16f32.p0({F} %sum{i}.next, ptr %c{i}, i32 4, <16 x i1> {own})")
        self.put("%p.next = add i64 %p, 1", "%p.more = icmp slt i64 %p.next, %tiles",
                 "br i1 %p.more, label %tile, label %done")

    def block(self) -> list[str]:
        """The sums with what a block adds to them but for its rests."""
        limbs, sums = self.at("%limbs", self.times("%b", LIMB_BYTES)), self.at("%sums", self.times("%b", SUM_BYTES))
        start = [self.every(W, "i32", self.at(sums, 4 * k)) for k in range(LIMBS)]
        totals = [list(start) for _ in range(PANELS)]
        self.put(f"%words.place = mul i64 %b, {self.block_bytes('words')}", "%halves.place = mul i64 %b, 32")
        for g in range(self.words):
            rows = [self.bytes_of(self.load(W, self.word(i, "%words.place", g))) for i in range(PANELS)]
            for h, k, place in self.products(g):
                x = self.every(W, "i32", self.at(limbs, 32 * k + place))
                x = self.let(f"bitcast {W} {x} to {B}")
                for i in range(PANELS):
                    totals[i][k] = self.let(f"call {W} @llvm.x86.avx512.vpdpbusd.512({W} {totals[i][k]}, "
                                            f"{B} {rows[i][h]}, {B} {x})")
        unit = self.every(F, "float", self.at(sums, UNIT))
        total = self.every(F, "float", self.at(sums, TOTAL)) if self.least else ""
        found = []
        for i in range(PANELS):
            high, low = (self.floats(self.joined(totals[i][k + 1], totals[i][k])) for k in (2, 0))
            number = self.fma(high, splat(2.0 ** 16), low)
            factor = self.let(f"fmul {F} {self.half('scales', i)}, {unit}")
            found.append(self.with_minimum(i, total, self.fma(factor, number, f"%sum{i}")))
        return found

    def products(self, g: int) -> list[tuple[int, int, int]]:
        """For word g, (its bytes as `bytes_of` numbers them, the limb that they meet, the number of the four of that
        limb)."""
        if self.bytes:
            return [(0, k, 4 * g) for k in range(LIMBS)]
        return [(2, 0, 4 * g), *((h, k, 16 * h + 4 * g) for h in range(2) for k in range(1, LIMBS))]

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
        """A word's numbers as unsigned bytes: all, or those of the low halves, of the high ones, and both."""
        if self.bytes:
            found = [self.let(f"xor {W} {word}, splat (i32 {all_bytes(0x80) - (1 << 32)})")]
        else:
            found = [self.let(f"and {W} {v}, splat (i32 {all_bytes(0x0F)})")
                     for v in (word, self.let(f"lshr {W} {word}, splat (i32 4)"))]
            found.append(word)
        return [self.let(f"bitcast {W} {v} to {B}") for v in found]

    def joined(self, high: str, low: str) -> str:
        return self.let(f"add {W} {self.let(f'shl {W} {high}, splat (i32 8)')}, {low}")

    # ---- what limbs do not hold ----

    def rest_here(self, r: str) -> str:
        """True (i1) where rest r is one of this block."""
        return self.let(f"icmp slt i32 {self.load('i32', self.at('%places', self.times(r, 4)))}, %block.end.32")

    def rest(self) -> list[str]:
        """The sums of the products of the block's rests, one after the other; ends in `rest.added`."""
        self.put("rest:", "%rest.now = phi i64 [ %first.rest, %block ], [ %next.rest, %rest ]")
        hole = len(self.lines)
        self.lines += [""] * PANELS
        here = self.times("%rest.now", 4)
        value = self.every(F, "float", self.at("%rests", here))
        code = self.load("i32", self.at("%places", here))
        shift = self.all(W, "i32", self.let(f"and i32 {code}, 31"))
        words = self.let(f"zext i32 {self.let(f'and i32 {code}, -64')} to i64")
        parts = []
        for i in range(PANELS):
            number = self.let(f"lshr {W} {self.load(W, self.word(i, words, 0))}, {shift}")
            if self.bytes:
                number = self.let(f"ashr {W} {self.let(f'shl {W} {number}, splat (i32 24)')}, splat (i32 24)")
            else:
                number = self.let(f"and {W} {number}, splat (i32 15)")
                number = self.let(f"sub {W} {number}, splat (i32 8)") if self.flipped else number
            parts.append(self.fma(value, self.floats(number), f"%part{i}"))
            self.lines[hole + i] = f"  %part{i} = phi {F} [ zeroinitializer, %block ], [ {parts[i]}, %rest ]"
        self.put("%next.rest = add i64 %rest.now, 1")
        self.put(f"br i1 {self.rest_here('%next.rest')}, label %rest, label %rest.added", "rest.added:")
        return parts


def low_columns(more: int) -> list[int]:
    """The columns of a block that low nibbles are of, or high ones: `more` further."""
    return [8 * (lane // 4) + lane % 4 + more for lane in range(16)]
