"""Our own implementations of tiles, as LLVM IR: one phi per accumulator, nothing in memory.

    loop over k:
      load the row of b, `vectors` vectors
      for each row u: broadcast a[u, x], multiply and add to its `vectors` accumulators
    c = accumulators, or c + accumulators

A `Form` is a family of instructions. What differs between forms is one step: (sum, a in all lanes, b) -> sum.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minigrad.codegen.microkernels.amx import amx_text, takes
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.tile import Tile, tile_of
from minigrad.target import Target

ROWS_PER_POINTER = 3
"""Rows of a reached from one pointer: at 0, 1 and 2 times the pitch, which x86 scales in an address."""

FENCE = 2
"""Rows between empty instructions that keep loads behind them, where LLVM would load all of a column first and lack
registers for it."""

SPARE, SPARE_ARM = 2, 5
"""Registers besides sums and a row of b: with fewer, LLVM keeps some on the stack."""

MOST_ROWS_ARM = 16
"""The most rows on ARM, whatever the registers."""

_TYPES = {"f32": "float", "f64": "double"}
_MANGLED = {"f32": "f32", "f64": "f64"}


@dataclass(frozen=True, slots=True)
class Form:
    """Vectors of so many bytes with the features `requires`, for tiles of `kinds`."""

    name: str
    requires: frozenset[str]
    vector_bytes: int
    kinds: frozenset[str]

    def fits(self, tile: Tile) -> bool:
        if self.name.startswith("amx"):
            return tile.kind in self.kinds and takes(tile)
        return tile.kind in self.kinds and tile.columns * tile.panel.itemsize % self.vector_bytes == 0


def _form(name: str, requires: str, vector_bytes: int, kinds: str) -> Form:
    return Form(name, frozenset(requires.split()), vector_bytes, frozenset(kinds.split()))


_ALL = "f32 f64 i16x2 i8x4 u8x4"
FORMS = (
    _form("amx", "amx-tile amx-int8", 64, "i8x4"),
    _form("amxbf16", "amx-tile amx-bf16", 64, "bf16x2"),
    _form("avx512bf16", "avx512f avx512bf16", 64, "bf16x2"),
    _form("avx512vnni", "avx512f avx512bw avx512vnni", 64, "i16x2 u8x4"),
    _form("avx512", "avx512f avx512bw", 64, "f32 f64 i16x2"),
    _form("avxvnni", "avx2 avxvnni", 32, "i16x2 u8x4"),
    _form("avx2", "avx2 fma", 32, "f32 f64 i16x2"),
    _form("neondot", "neon dotprod", 16, "i8x4"), _form("neoni8mm", "neon i8mm", 16, "u8x4"),
    _form("neon", "neon", 16, "f32 f64"),
    _form("v64", "", 64, _ALL), _form("v32", "", 32, _ALL), _form("v16", "", 16, _ALL),
)
"""Best first. The last ones are vectors without any instruction of their own."""


def forms_of(tile: Tile, target: Target) -> Iterable[Form]:
    """The forms that compute a tile on a target, best first."""
    return (f for f in FORMS
            if f.fits(tile) and f.requires <= target.features and f.vector_bytes <= target.vector_bytes)


def most_rows(vectors: int, target: Target) -> int:
    """The most rows of `vectors` vectors that a tile can have with all its sums in registers."""
    arm = "neon" in target.features
    rows = (target.registers - vectors - (SPARE_ARM if arm else SPARE)) // vectors
    return min(rows, MOST_ROWS_ARM) if arm else rows


def generated(tile: Tile, form: Form) -> Microkernel:
    """The microkernel of a tile in a form."""
    name = f"{tile.name}_{form.name}"
    text = amx_text(tile, name) if form.name.startswith("amx") else _Text(tile, form).source(name)
    return Microkernel(name, tile.meaning(name), form.requires, text)


def generated_by_name(name: str) -> Microkernel | None:
    """The microkernel that `generated` gives this name."""
    stem, _, last = name.rpartition("_")
    tile, form = tile_of(stem), next((f for f in FORMS if f.name == last), None)
    return generated(tile, form) if tile is not None and form is not None and form.fits(tile) else None


class _Text:
    """Writes one implementation. `lanes` elements of a panel fill a vector; there are `vectors` of them in a row."""

    def __init__(self, tile: Tile, form: Form):
        self.tile, self.form = tile, form
        self.size = tile.panel.itemsize
        self.lanes = form.vector_bytes // self.size
        self.vectors = tile.columns // self.lanes
        self.scalar = _TYPES.get(tile.kind, "i32")
        self.vector = f"<{self.lanes} x {self.scalar}>"
        self.sums = f"<{self.lanes} x {_TYPES.get(tile.sum.short, 'i32')}>"
        self.lines: list[str] = []
        self.count = 0

    def let(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %t{self.count} = {text}")
        return f"%t{self.count}"

    def call(self, kind: str, name: str, *args: tuple[str, str]) -> str:
        return self.let(f"call {kind} @{name}({', '.join(f'{k} {v}' for k, v in args)})")

    def source(self, name: str) -> str:
        lines, tile = self.lines, self.tile
        sums = [f"%s{u}.{v}" for u in range(tile.rows) for v in range(self.vectors)]
        lines += ["entry:", f"  %ap = mul i64 %a_pitch, {self.size}", f"  %bp = mul i64 %b_pitch, {self.size}",
                  f"  %cp = mul i64 %c_pitch, {self.size}"]
        starts = self.row_pointers()
        lines += ["  %some = icmp sgt i64 %k, 0", "  br i1 %some, label %loop, label %done", "loop:",
                  "  %x = phi i64 [ 0, %entry ], [ %x.next, %loop ]",
                  "  %b.x = phi ptr [ %b, %entry ], [ %b.next, %loop ]"]
        lines += [f"  %a{i}.x = phi ptr [ {p}, %entry ], [ %a{i}.next, %loop ]" for i, p in enumerate(starts)]
        lines += [f"  {s} = phi {self.sums} [ zeroinitializer, %entry ], [ {s}.next, %loop ]" for s in sums]
        self.step(sums)
        down = str(self.size) if tile.a_along == "k" else "%ap"
        lines += [f"  %a{i}.next = getelementptr i8, ptr %a{i}.x, i64 {down}" for i in range(len(starts))]
        lines += ["  %b.next = getelementptr i8, ptr %b.x, i64 %bp", "  %x.next = add nuw nsw i64 %x, 1",
                  "  %more = icmp slt i64 %x.next, %k", "  br i1 %more, label %loop, label %done", "done:"]
        lines += [f"  {s}.sum = phi {self.sums} [ zeroinitializer, %entry ], [ {s}.next, %loop ]" for s in sums]
        self.finish(sums)
        params = ", ".join([f"ptr noalias {p}" for p in ("readonly %a", "readonly %b", "%c")]
                           + [f"i64 %{p}" for p in ("k", "a_pitch", "b_pitch", "c_pitch", "old")])
        return "\n".join([f"define void @{name}({params}) nounwind {{", *lines, "}", ""])

    def row_pointers(self) -> list[str]:
        """Writes pointers to the starts of rows of a, one for several of them."""
        if self.tile.a_along == "m":
            return ["%a"]
        self.lines.append("  %ap2 = mul i64 %ap, 2")
        starts = ["%a"]
        for u in range(ROWS_PER_POINTER, self.tile.rows, ROWS_PER_POINTER):
            offset = self.let(f"mul i64 %ap, {u}")
            starts.append(self.let(f"getelementptr i8, ptr %a, i64 {offset}"))
        return starts

    def element(self, u: int) -> str:
        """The pointer to a[u, x]."""
        if self.tile.a_along == "m":
            return self.let(f"getelementptr i8, ptr %a0.x, i64 {u * self.size}") if u else "%a0.x"
        start, row = f"%a{u // ROWS_PER_POINTER}.x", u % ROWS_PER_POINTER
        return self.let(f"getelementptr i8, ptr {start}, i64 %ap{'' if row == 1 else row}") if row else start

    def step(self, sums: list[str]) -> None:
        """Writes one step of k."""
        row = []
        for v in range(self.vectors):
            p = self.let(f"getelementptr i8, ptr %b.x, i64 {v * self.form.vector_bytes}") if v else "%b.x"
            row.append(self.let(f"load {self.vector}, ptr {p}, align {self.size}"))
        for u in range(self.tile.rows):
            if self.form.name.startswith("neon") and u and u % FENCE == 0:
                self.lines.append('  call void asm sideeffect "", "~{memory}"()')
            one = self.let(f"load {self.scalar}, ptr {self.element(u)}, align {self.size}")
            first = self.let(f"insertelement {self.vector} poison, {self.scalar} {one}, i64 0")
            every = self.let(f"shufflevector {self.vector} {first}, {self.vector} poison, "
                             f"<{self.lanes} x i32> zeroinitializer")
            for v in range(self.vectors):
                s = sums[u * self.vectors + v]
                self.lines.append(f"  {s}.next = bitcast {self.sums} {self.multiply_add(s, every, row[v])} "
                                  f"to {self.sums}")

    def finish(self, sums: list[str]) -> None:
        """Writes c = sums, or c + sums where %old is 1."""
        add = "fadd" if self.tile.sum.is_float else "add"
        total = [f"{s}.sum" for s in sums]
        places = []
        for u in range(self.tile.rows):
            offset = self.let(f"mul i64 %cp, {u}")
            for v in range(self.vectors):
                p = self.let(f"getelementptr i8, ptr %c, i64 {offset}") if u else "%c"
                places.append(self.let(f"getelementptr i8, ptr {p}, i64 {v * self.form.vector_bytes}") if v else p)
        self.lines += ["  %keep = icmp ne i64 %old, 0", "  br i1 %keep, label %add, label %put", "add:"]
        for p, t in zip(places, total, strict=True):
            before = self.let(f"load {self.sums}, ptr {p}, align {self.size}")
            after = self.let(f"{add} {self.sums} {before}, {t}")
            self.lines.append(f"  store {self.sums} {after}, ptr {p}, align {self.size}")
        self.lines += ["  ret void", "put:"]
        self.lines += [f"  store {self.sums} {t}, ptr {p}, align {self.size}"
                       for p, t in zip(places, total, strict=True)]
        self.lines.append("  ret void")

    # ---- steps ----

    def multiply_add(self, total: str, a: str, b: str) -> str:
        """total + a * b in the form's instructions; a is the same in all lanes."""
        if self.tile.kind in _TYPES:
            return self.fused(total, a, b)
        if self.form.requires:
            return self.dot(total, a, b)
        return self.dot_in_lanes(total, a, b)

    def fused(self, total: str, a: str, b: str) -> str:
        name = "fma" if self.form.requires else "fmuladd"
        args = [(self.vector, x) for x in (a, b, total)]
        return self.call(self.vector, f"llvm.{name}.v{self.lanes}{_MANGLED[self.tile.kind]}", *args)

    def dot(self, total: str, a: str, b: str) -> str:
        """total + the sum of the products of neighbours in each lane, by instructions for that."""
        bits = self.form.vector_bytes * 8
        if "neon" in self.form.requires:
            name = "usdot" if self.tile.kind == "u8x4" else "sdot"
            return self.call(self.vector, f"llvm.aarch64.neon.{name}.v4i32.v16i8", (self.vector, total),
                             *(("<16 x i8>", self.cast(x, "<16 x i8>")) for x in (a, b)))
        if self.tile.kind == "bf16x2":
            return self.call(self.sums, "llvm.x86.avx512bf16.dpbf16ps.512", (self.sums, total),
                             *(("<32 x bfloat>", self.cast(x, "<32 x bfloat>")) for x in (a, b)))
        if "vnni" in self.form.name and self.tile.kind == "i16x2":
            # As text: LLVM takes the intrinsic apart again, into a multiplication and an addition.
            text, where = ("vpdpwssd", "v") if bits == 512 else ("{vex} vpdpwssd", "x")
            return self.let(f'call {self.vector} asm "{text} $2, $1, $0", "={where},{where},{where},0"'
                            f"({self.vector} {a}, {self.vector} {b}, {self.vector} {total})")
        if "vnni" in self.form.name:
            kind = f"<{bits // 8} x i8>"
            return self.call(self.vector, f"llvm.x86.avx512.vpdpbusd.{bits}", (self.vector, total),
                             *((kind, self.cast(x, kind)) for x in (a, b)))
        kind = f"<{bits // 16} x i16>"
        name = "llvm.x86.avx512.pmaddw.d.512" if bits == 512 else "llvm.x86.avx2.pmadd.wd"
        pairs = self.call(self.vector, name, *((kind, self.cast(x, kind)) for x in (a, b)))
        return self.let(f"add {self.vector} {total}, {pairs}")

    def dot_in_lanes(self, total: str, a: str, b: str) -> str:
        """The same in plain vector arithmetic, element after element."""
        bits = 32 // self.tile.group
        for t in range(self.tile.group):
            left = self.part(a, t, bits, "lshr" if self.tile.kind == "u8x4" else "ashr")
            product = self.let(f"mul {self.vector} {left}, {self.part(b, t, bits, 'ashr')}")
            total = self.let(f"add {self.vector} {total}, {product}")
        return total

    def part(self, x: str, t: int, bits: int, shift: str) -> str:
        """Element `t` of each lane, widened."""
        if t + 1 < self.tile.group:
            x = self.let(f"shl {self.vector} {x}, splat (i32 {32 - bits * (t + 1)})")
        return self.let(f"{shift} {self.vector} {x}, splat (i32 {32 - bits})")

    def cast(self, x: str, kind: str) -> str:
        return self.let(f"bitcast {self.vector} {x} to {kind}")
