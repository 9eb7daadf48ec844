"""The implementation of `block_product.py`: x in whole numbers of eight limbs, multiplied in AMX's matrix registers.

In a block of 32 elements of x each one is a multiple of the block's quantum, a power of two: a whole number of 60 bits,
which is eight signed bytes, its limbs. Their products with bytes of weights are exact, as are sums of 32 of them in
int32. A matrix register has

    a    16 rows x 64 bytes    8 limbs of a block in its left half, 8 of the next block in its right half, else zeros
    b    16 rows x 64 bytes    rows of 4 weights along k for 16 rows of the matrix: of both blocks
    c    16 rows x 16 sums     of each limb of each block

so that one product takes 1,024 weights. Bytes are b as they lie in memory, nibbles are spread over b at the top of
bytes, as 16 times themselves; the quantum makes up for it. Per block then

    sum += scale * quantum * (((limb 7 * 2**8 + limb 6) * 2**8 + ...)                     smallest first

    for chunks of K:
      split x into limbs                          in a worker's first-level cache
      for every 4 panels:
        for every two blocks, for panels n:       as steps of one sequence, so that nothing waits for anything
          spread the nibbles of step n + 3; store the sums of step n - 2; multiply step n; add up step n - 3

Whatever x is, results are what the limbs are exactly: a chunk of which some element needs more than 60 bits below the
largest of its block (36 powers of two apart), or is not finite, is multiplied in float32 (`slow`). The last 4 panels
reach back over those before them and store what is their own; where the number of blocks is odd, the last two reach
back by one block, whose limbs are zeros then and whose scales are not read.

The cost of a step: 32 lines stored, the nibbles and the sums, while the lines of the weights arrive where these are
stored to; storing the sums keeps other instructions from being decoded; and beside AMX most shifts and floating-point
operations have one port. Therefore a look-up, which has the other one, rather than a shift.
"""
from __future__ import annotations

from minigrad.codegen.microkernels.writer import B, BlockWriter, F, H, W, all_bytes, order, splat

PANELS, PAIRS, LIMBS = 4, 32, 8
"""Panels at a time; the most times two blocks in a chunk, whose limbs take 1 KB for every two; limbs of an element."""

SPREAD, STORED, ADDED = 3, 2, 3
"""Steps from spreading nibbles to multiplying them, from multiplying to storing the sums, and to adding them up."""

AHEAD, AHEAD_SCALES = 1024, 256
"""Bytes from what is used to what is prefetched."""

REGISTER = 1024
"""Bytes of a matrix register."""

LOW, TOP = 127 - 60, 29
"""The least exponent (biased) of a block's largest element that counts, and how many bits its quantum lies below it."""


def limbs_text(kind: str, name: str) -> str:
    """The LLVM IR of a kind of `BlockProduct`."""
    return _Text(kind).source(name)


class _Text(BlockWriter):
    """Writes one implementation."""

    # ---- the function ----

    def source(self, name: str) -> str:
        parts = self.begin(name)
        sizes = {"config": 64, "a": PAIRS * REGISTER, "b": PANELS * REGISTER, "r": PANELS * REGISTER,
                 "unit": 8 * PAIRS, "total": 8 * PAIRS}
        self.put(*[f"%{memory} = alloca [{size} x i8], align 64" for memory, size in sizes.items()])
        self.configure()
        # A low nibble times 16, by a byte's low bits
        lifted = [(place % 16 << 4) ^ self.flipped for place in range(64)]
        self.put(f"%lifted = xor {order(lifted, 'i8')}, zeroinitializer")
        for part in parts:
            self.put(f"%{part}.step = mul i64 %{part}_pitch, {4 if part == 'words' else 2}",
                     f"%{part}.group = mul i64 %{part}.step, {PANELS}")
        self.put(
                 "br label %chunk", "chunk:", "%first = phi i64 [ 0, %entry ], [ %next, %done ]",
                 "%left = sub i64 %blocks, %first", f"%size = call i64 @llvm.smin.i64(i64 %left, i64 {2 * PAIRS})",
                 "%more.pairs = add i64 %size, 1", "%pairs = lshr i64 %more.pairs, 1", "%new = icmp eq i64 %first, 0",
                 "%last.block = sub i64 %size, 1", "%last.pair = sub i64 %size, 2")
        for part in parts:
            self.put(f"%{part}.first = mul i64 %first, {self.block_bytes(part)}",
                     f"%{part}.run = mul i64 %size, {self.block_bytes(part)}",
                     f"%{part}.here = getelementptr i8, ptr %{part}, i64 %{part}.first")
        self.put("%x.first = mul i64 %first, 128", "%x.here = getelementptr i8, ptr %x, i64 %x.first")
        self.start()
        self.split()
        self.groups()
        self.slow()
        self.put("done:", f"%next = add i64 %first, {2 * PAIRS}", "%more.chunks = icmp slt i64 %next, %blocks",
                 "br i1 %more.chunks, label %chunk, label %end", "end:", "call void @llvm.x86.tilerelease()",
                 "ret void")
        return "\n".join([*self.lines, "}", ""])

    def configure(self) -> None:
        """All registers of 16 rows of 64 bytes: c in 0 and 1, a in 2, b in 3."""
        self.put("store [64 x i8] zeroinitializer, ptr %config, align 64", "store i8 1, ptr %config, align 64")
        for register in range(4):
            self.put(f"store i16 64, ptr {self.at('%config', 16 + 2 * register)}, align 2",
                     f"store i8 16, ptr {self.at('%config', 48 + register)}, align 1")
        self.put("call void @llvm.x86.ldtilecfg(ptr %config)")

    # ---- x as limbs ----

    def start(self) -> None:
        """Zeros for the block that an odd number lacks, and what the first panels have first on its way."""
        last = self.at("%a", self.times(self.let("sub i64 %pairs, 1"), REGISTER))
        for k in range(LIMBS):
            self.put(f"store {W} zeroinitializer, ptr {self.at(last, 64 * k)}, align 64")
        for part in ("words", *self.halves):
            panel = f"%{part}.here"
            for _ in range(PANELS):
                for k in range((AHEAD if part == "words" else AHEAD_SCALES) // 64):
                    self.prefetch(self.at(panel, 64 * k))
                panel = self.at(panel, f"%{part}.step")
        self.put("br label %split")

    def split(self) -> None:
        """Writes the limbs of each block, its quantum, and for minimums its sum; then on to `group`, or to `slow`."""
        self.put("split:", "%t = phi i64 [ 0, %chunk ], [ %t.next, %split ]",
                 "%lost = phi <16 x i1> [ zeroinitializer, %chunk ], [ %lost.next, %split ]")
        block = self.at("%x.here", self.times("%t", 128))
        x = [self.load(F, block), self.load(F, self.at(block, 64))]
        bits = [self.let(f"bitcast {F} {v} to {W}") for v in x]
        size = [self.let(f"and {W} {v}, splat (i32 2147483647)") for v in bits]
        most = self.let(f"call {W} @llvm.umax.v16i32({W} {size[0]}, {W} {size[1]})")
        largest = self.let(f"call i32 @llvm.vector.reduce.umax.v16i32({W} {most})")
        high = self.let(f"lshr i32 {largest}, 23")
        high = self.let(f"call i32 @llvm.umax.i32(i32 {high}, i32 {LOW})")
        factor = self.let(f"shl i32 {self.let(f'sub i32 {2 * 127 + TOP}, {high}')}, 23")
        unit = self.let(f"shl i32 {self.let(f'sub i32 {high}, {TOP + 4 * (not self.bytes)}')}, 23")
        scale = self.all(F, "float", self.let(f"bitcast i32 {factor} to float"))
        whole, rest, lost = [], [], "%lost"
        for v in x:
            units = self.let(f"fmul {F} {v}, {scale}")
            whole.append(self.truncated(units))
            below = self.let(f"fsub {F} {units}, {self.floats(whole[-1])}")
            below = self.let(f"fmul {F} {below}, splat (float 0x41D0000000000000)")
            rest.append(self.truncated(below))
            differs = self.let(f"fcmp une {F} {below}, {self.floats(rest[-1])}")
            lost = self.let(f"or <16 x i1> {lost}, {differs}")
        odd = self.let(f"or i1 {self.let('trunc i64 %t to i1')}, {self.let('icmp eq i64 %t, %last.block')}")
        half = self.let(f"zext i1 {odd} to i64")
        pair = self.let("lshr i64 %t, 1")
        to = self.at(self.at("%a", self.times(pair, REGISTER)), self.times(half, 64 * LIMBS + 32))
        beside = self.at(to, self.let(f"sub i64 32, {self.times(half, 64)}"))
        for k in range(LIMBS):
            self.put(f"store <32 x i8> zeroinitializer, ptr {self.at(beside, 64 * k)}, align 32")
        self.put_limbs(rest, to, 64)
        self.put_limbs(whole, self.at(to, 64 * LIMBS // 2), 64)
        place = self.let(f"add i64 {self.times(pair, 8)}, {self.times(half, 4)}")
        self.put(f"store i32 {unit}, ptr {self.at('%unit', place)}, align 4")
        if self.least:
            both = self.let(f"fadd {F} {x[0]}, {x[1]}")
            total = self.let(f"call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {F} {both})")
            self.put(f"store float {total}, ptr {self.at('%total', place)}, align 4")
        self.put(f"%lost.next = or <16 x i1> {lost}, zeroinitializer", "%t.next = add i64 %t, 1",
                 "%t.more = icmp slt i64 %t.next, %size", "br i1 %t.more, label %split, label %ready", "ready:",
                 "%any = call i1 @llvm.vector.reduce.or.v16i1(<16 x i1> %lost.next)",
                 "br i1 %any, label %slow, label %group")

    def truncated(self, v: str) -> str:
        """Floats as whole numbers; what has none gives one that differs."""
        return self.let(f"call {W} @llvm.x86.avx512.mask.cvttps2dq.512({F} {v}, {W} zeroinitializer, i16 -1, i32 4)")

    # ---- four panels ----

    def groups(self) -> None:
        """Writes the loop over every four panels, for all blocks of the chunk."""
        self.put("group:", "%p = phi i64 [ 0, %ready ], [ %p.next, %stored ]",
                 f"%p.last = sub i64 %panels, {PANELS}", "%p.here = call i64 @llvm.smin.i64(i64 %p, i64 %p.last)")
        old = []
        for i in range(PANELS):
            self.put(f"%p{i} = add i64 %p.here, {i}", f"%c{i}.place = mul i64 %p{i}, 64",
                     f"%c{i} = getelementptr i8, ptr %c, i64 %c{i}.place")
            for part in ("words", *self.halves):
                place = self.let(f"mul i64 %p{i}, %{part}.step")
                self.put(f"%{part}{i} = getelementptr i8, ptr %{part}.here, i64 {place}",
                         f"%{part}{i}.next = getelementptr i8, ptr %{part}{i}, i64 %{part}.group")
            before = self.load(F, f"%c{i}")
            old.append(self.let(f"select i1 %new, {F} zeroinitializer, {F} {before}"))
        start = self.let("call i64 @llvm.smin.i64(i64 0, i64 %last.pair)")
        for i in range(SPREAD):
            self.spread(i, start)
        self.put("br label %loop", "loop:")
        sums = self.pairs(old)
        for i in range(PANELS):
            own = self.all("<16 x i1>", "i1", self.let(f"icmp sge i64 %p{i}, %p"))
            self.put(f"call void @llvm.masked.store.v16f32.p0({F} {sums[i]}, ptr %c{i}, i32 4, <16 x i1> {own})")
        self.put(f"%p.next = add i64 %p, {PANELS}", "%p.more = icmp slt i64 %p.next, %panels",
                 "br i1 %p.more, label %group, label %done")

    def pairs(self, old: list[str]) -> list[str]:
        """Writes the loop over every two blocks, for four panels; gives the sums after it. Its first iteration adds
        nothing for steps before it, the last one spreads again what is there."""
        for name, first, then in (("y", "0", "%y.next"), ("y.before", "0", "%y"), ("here.before", "0", "%here")):
            self.put(f"%{name} = phi i64 [ {first}, %group ], [ {then}, %loop ]")
        hole = len(self.lines)
        self.lines += [""] * PANELS
        sums = [f"%sum{i}" for i in range(PANELS)]
        self.put("%y.next = add i64 %y, 1", "%y.more = icmp slt i64 %y.next, %pairs",
                 "%y.after = select i1 %y.more, i64 %y.next, i64 %y", "%y.any = icmp sgt i64 %y, 0",
                 "%two = shl i64 %y, 1", "%here = call i64 @llvm.smin.i64(i64 %two, i64 %last.pair)",
                 "%two.after = shl i64 %y.after, 1",
                 "%after = call i64 @llvm.smin.i64(i64 %two.after, i64 %last.pair)",
                 "%whole = icmp eq i64 %two, %here")
        self.put(f"call void @llvm.x86.tileloadd64(i8 2, ptr {self.at('%a', self.times('%y', REGISTER))}, i64 64)")
        now, before = self.constants("%y", "%whole", "true"), self.constants("%y.before", "%y.any", "%y.any")
        for i in range(PANELS):
            ahead = i + SPREAD
            self.spread(ahead % PANELS, "%here" if ahead < PANELS else "%after")
            self.store_sums((i - STORED) % PANELS)
            self.multiply(i, "%here")
            n = (i - ADDED) % PANELS
            sums[n] = self.add(n, sums[n], *((now, "%here") if i >= ADDED else (before, "%here.before")))
        for i in range(PANELS):
            self.lines[hole + i] = f"  %sum{i} = phi {F} [ {old[i]}, %group ], [ {sums[i]}, %loop ]"
        self.put("br i1 %y.more, label %loop, label %stored", "stored:")
        for i in range(PANELS - STORED, PANELS):
            self.store_sums(i)
        for i in range(PANELS - ADDED, PANELS):
            sums[i] = self.add(i, sums[i], now, "%here")
        return sums

    def spread(self, i: int, block: str) -> None:
        """Announces what follows, and writes the nibbles of two blocks of panel i from `block` on as b."""
        words = self.at(f"%words{i}", self.times(block, self.pair_bytes // 2))
        ahead = self.ahead("words", i, block, AHEAD)
        for k in range(self.pair_bytes // 64):
            self.prefetch(self.at(ahead, 64 * k))
        if self.bytes:
            return
        for k in range(self.pair_bytes // 64):
            word = self.load(W, self.at(words, 64 * k))
            places = self.let(f"bitcast {W} {word} to {B}")
            low = self.let(f"call {B} @llvm.x86.avx512.permvar.qi.512({B} %lifted, {B} {places})")
            high = word if not self.flipped else self.let(f"xor {W} {word}, splat (i32 {all_bytes(self.flipped)})")
            high = self.let(f"and {W} {high}, splat (i32 {all_bytes(0xF0)})")
            for h, (kind, v) in enumerate(((B, low), (W, high))):
                self.put(f"store {kind} {v}, ptr {self.at('%b', REGISTER * i + 64 * (2 * k + h))}, align 64")

    def ahead(self, part: str, i: int, block: str, distance: int) -> str:
        """The pointer to what is used so many bytes after a block of panel i; beyond its end, to the start of that
        panel among the next four."""
        place = self.let(f"add i64 {self.times(block, self.block_bytes(part))}, {distance}")
        beyond = self.let(f"sub i64 {place}, %{part}.run")
        inside = self.let(f"icmp slt i64 {beyond}, 0")
        start = self.let(f"select i1 {inside}, ptr %{part}{i}, ptr %{part}{i}.next")
        return self.at(start, self.let(f"select i1 {inside}, i64 {place}, i64 {beyond}"))

    def multiply(self, i: int, block: str) -> None:
        b = self.at("%b", REGISTER * i)
        if self.bytes:
            b = self.at(f"%words{i}", self.times(block, self.pair_bytes // 2))
        product = "tdpbsud" if self.least else "tdpbssd"
        self.put(f"call void @llvm.x86.tilezero(i8 {i % 2})", f"call void @llvm.x86.tileloadd64(i8 3, ptr {b}, i64 64)",
                 f"call void @llvm.x86.{product}(i8 {i % 2}, i8 2, i8 3)")

    def store_sums(self, i: int) -> None:
        self.put(f"call void @llvm.x86.tilestored64(i8 {i % 2}, ptr {self.at('%r', REGISTER * i)}, i64 64)")

    def constants(self, pair: str, left: str, right: str) -> list[tuple[str, str, str]]:
        """Of each half of two blocks: its quantum and total in all lanes, and the lanes in which it is there."""
        found = []
        for h, there in enumerate((left, right)):
            place = self.let(f"add i64 {self.times(pair, 8)}, {4 * h}")
            values = []
            for memory in ("%unit", "%total")[:1 + self.least]:
                value = self.load("float", self.at(memory, place))
                value = self.let(f"select i1 {there}, float {value}, float 0.0")
                values.append(self.all(F, "float", value))
            found.append((values[0], values[-1], self.all("<16 x i1>", "i1", there)))
        return found

    def add(self, i: int, total: str, constants: list[tuple[str, str, str]], block: str) -> str:
        """`total` plus the sums of two blocks of panel i from `block` on."""
        offset = self.times(block, 32)
        for part in self.halves:
            self.prefetch(self.ahead(part, i, block, AHEAD_SCALES))
        for h, (unit, x, there) in enumerate(constants):
            factors = []
            for part in self.halves:
                place = self.at(self.at(f"%{part}{i}", offset), 32 * h)
                half = self.let(f"call {H} @llvm.masked.load.v16f16.p0(ptr {place}, i32 2, <16 x i1> {there}, "
                                f"{H} zeroinitializer)")
                factors.append(self.let(f"fpext {H} {half} to {F}"))
            number = ""
            for limb in range(LIMBS):
                row = self.floats(self.load(W, self.at("%r", REGISTER * i + 64 * (LIMBS * h + limb)), 64))
                if limb == LIMBS // 2:
                    number = self.fma(number, splat(2.0 ** -30), row)
                else:
                    number = self.fma(row, splat(256.0 ** (limb % 4)), number) if limb else row
            total = self.fma(self.let(f"fmul {F} {factors[0]}, {unit}"), number, total)
            if self.least:
                total = self.fma(factors[1], x, total)
        return total

    # ---- what limbs do not hold ----

    def slow(self) -> None:
        """Writes the chunk in float32: c plus its products, panel by panel."""
        self.put("slow:", "%q = phi i64 [ 0, %ready ], [ %q.next, %slow.panel ]")
        for part in ("words", *self.halves):
            place = self.let(f"mul i64 %q, %{part}.step")
            self.put(f"%slow.{part} = getelementptr i8, ptr %{part}.here, i64 {place}")
        c = self.at("%c", self.times("%q", 64))
        old = self.let(f"select i1 %new, {F} zeroinitializer, {F} {self.load(F, c)}")
        self.put("br label %slow.block", "slow.block:", "%n = phi i64 [ 0, %slow ], [ %n.next, %slow.scale ]",
                 f"%slow.sum = phi {F} [ {old}, %slow ], [ %slow.sum.next, %slow.scale ]", "br label %slow.word",
                 "slow.word:", "%g = phi i64 [ 0, %slow.block ], [ %g.next, %slow.word ]",
                 f"%part = phi {F} [ zeroinitializer, %slow.block ], [ %part.next, %slow.word ]",
                 f"%all = phi {F} [ zeroinitializer, %slow.block ], [ %all.next, %slow.word ]")
        step = self.let(f"add i64 {self.times('%n', self.words)}, %g")
        word = self.load(W, self.at("%slow.words", self.times(step, 64)))
        columns = 32 // self.words
        x = self.at("%x.here", self.times(step, 4 * columns))
        part, total = "%part", "%all"
        for k in range(columns):
            value = self.all(F, "float", self.load("float", self.at(x, 4 * k)))
            part = self.fma(value, self.number(word, k), part)
            total = self.let(f"fadd {F} {total}, {value}")
        self.put(f"%part.next = fadd {F} {part}, splat (float -0.0)",
                 f"%all.next = fadd {F} {total}, splat (float -0.0)", "%g.next = add i64 %g, 1",
                 f"%g.more = icmp slt i64 %g.next, {self.words}", "br i1 %g.more, label %slow.word, label %slow.scale",
                 "slow.scale:")
        total = "%slow.sum"
        for name, value in zip(self.halves, ("%part.next", "%all.next"), strict=False):
            half = self.load(H, self.at(f"%slow.{name}", self.times("%n", 32)), 2)
            total = self.fma(self.let(f"fpext {H} {half} to {F}"), value, total)
        self.put(f"%slow.sum.next = fadd {F} {total}, splat (float -0.0)", "%n.next = add i64 %n, 1",
                 "%n.more = icmp slt i64 %n.next, %size", "br i1 %n.more, label %slow.block, label %slow.panel",
                 "slow.panel:", f"store {F} %slow.sum.next, ptr {c}, align 4", "%q.next = add i64 %q, 1",
                 "%q.more = icmp slt i64 %q.next, %panels", "br i1 %q.more, label %slow, label %done")
