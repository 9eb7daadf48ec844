"""Tiles of float products in the matrix registers of AMX, which multiply bfloat16: see `parts.py` for the panels.

    clear the registers of sums
    for every 16 words of k: the products of parts, the smallest first, of each register of a with each of b
    c = sums / scale^2, or c + sums / scale^2; where a sum of the tile is no finite number, none of them is used
    c = c + a * b in float32, for steps that do not fill a register, and for all where the sums are not used

A register of a has 16 rows by 32 steps of k, one of b 32 steps by 16 columns, neighbours in k side by side. Of eight
registers four are sums, as one takes three products to be ready for the next; the others hold parts of a and b, each
loaded again where it was overwritten.
"""
from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from minigrad.codegen.microkernels.amx import SIDE
from minigrad.codegen.microkernels.parts import PARTS, Parts
from minigrad.codegen.microkernels.tile import Tile

SHAPES = (32, 32), (16, 64), (64, 16)
"""Rows and columns of tiles: four registers of sums."""

_FIRST, _REGISTERS = 4, 4
"""Registers for parts of a and b."""

_WIDTHS, _HEIGHTS = 16, 48
"""Where a configuration says how many bytes (16 bits each) and how many rows (8 bits) each register has."""

_CHAINS = 4
"""Vectors of sums looked at side by side."""

_INFINITY = "0x7FF0000000000000"
_VECTOR = f"<{SIDE} x float>"
_WORDS = f"<{SIDE} x i32>"
_BUFFERS = "ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c"
_PITCHES = "i64 %a_pitch, i64 %b_pitch, i64 %c_pitch"
_DECLARED = [
    *[f"declare void @llvm.x86.{x}" for x in (
        "ldtilecfg(ptr)", "tilerelease()", "tilezero(i8)", "tileloadd64(i8, ptr, i64)", "tilestored64(i8, ptr, i64)",
        "tdpbf16ps(i8, i8, i8)")],
    f"declare {_VECTOR} @llvm.fma.v16f32({_VECTOR}, {_VECTOR}, {_VECTOR})",
    f"declare {_VECTOR} @llvm.fabs.v16f32({_VECTOR})", "declare float @llvm.fabs.f32(float)",
]


def takes_parts(tile: Tile) -> bool:
    """Whether the tile can be one of these."""
    return tile.kind in PARTS and tile.a_along == "k" and (tile.rows, tile.columns) in SHAPES


def amx_bf16_text(tile: Tile, name: str) -> str:
    """The LLVM IR of a tile."""
    config = bytearray(64)
    config[0] = 1
    for register in range(8):
        config[_WIDTHS + 2 * register], config[_HEIGHTS + register] = 4 * SIDE, SIDE
    constant = "".join(f"\\{byte:02x}" for byte in config)
    return "\n".join([
        *_DECLARED, f'@{name}_config = private constant [64 x i8] c"{constant}", align 64',
        f"define void @{name}({_BUFFERS}, i64 %k, {_PITCHES}, i64 %old) nounwind {{", *_tile(tile, name), "}",
        f"define internal void @{name}_plain({_BUFFERS}, i64 %from, i64 %to, {_PITCHES}) noinline nounwind {{",
        *_plain(tile), "}", ""])


class _Text:
    """Lines of a function. Values have numbers, but for what is carried around a loop."""

    def __init__(self) -> None:
        self.block = "entry"
        self.lines = ["entry:"]
        self.count = 0

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        self.count += 1
        self.do(f"%t{self.count} = {text}")
        return f"%t{self.count}"

    def label(self, name: str) -> None:
        self.block = name
        self.lines.append(f"{name}:")

    def sum(self, *terms: str | tuple[str, str | int]) -> str:
        """The sum of terms, some of them products."""
        total = ""
        for term in terms:
            value = term if isinstance(term, str) else self.let(f"mul i64 {term[0]}, {term[1]}")
            total = self.let(f"add i64 {total}, {value}") if total else value
        return total

    def at(self, pointer: str, kind: str, *terms: str | tuple[str, str | int]) -> str:
        """The pointer so many of a kind further on."""
        return self.let(f"getelementptr {kind}, ptr {pointer}, i64 {self.sum(*terms)}")

    @contextmanager
    def loop(self, name: str, first: str, stop: str, step: int = 1, carried: list[str] | None = None) -> Iterator[None]:
        """%name from `first` below `stop`. Vectors that are carried are zero at first, then %x.next; afterwards %x."""
        before = self.block
        self.do(f"br label %{name}.loop")
        self.label(f"{name}.loop")
        self.do(f"%{name} = phi i64 [ {first}, %{before} ], [ %{name}.next, %{name}.again ]")
        for x in carried or ():
            self.do(f"{x} = phi {_VECTOR} [ zeroinitializer, %{before} ], [ {x}.next, %{name}.again ]")
        self.do(f"%{name}.more = icmp slt i64 %{name}, {stop}")
        self.do(f"br i1 %{name}.more, label %{name}.body, label %{name}.done")
        self.label(f"{name}.body")
        yield
        self.do(f"br label %{name}.again")
        self.label(f"{name}.again")
        self.do(f"%{name}.next = add nsw i64 %{name}, {step}")
        self.do(f"br label %{name}.loop")
        self.label(f"{name}.done")


def _tile(tile: Tile, name: str) -> list[str]:
    """The body of the whole."""
    t, parts = _Text(), PARTS[tile.kind]
    down, across = tile.rows // SIDE, tile.columns // SIDE
    sums = t.let(f"alloca [{tile.rows * tile.columns} x float], align 64")
    whole = t.let(f"and i64 %k, {-SIDE}")
    t.do(f"call void @llvm.x86.ldtilecfg(ptr @{name}_config)")
    for register in range(down * across):
        t.do(f"call void @llvm.x86.tilezero(i8 {register})")
    starts = {("a", i, p): t.at("%a", "i32", ("%a_pitch", parts.planes * SIDE * i + p))
              for i in range(down) for p in range(parts.planes)}
    starts |= {("b", j, p): t.at("%b", "i32", ("%b_pitch", p), str(SIDE * j))
               for j in range(across) for p in range(parts.planes)}
    strides = {x: t.sum((f"%{x}_pitch", 4 * parts.planes)) for x in "ab"}
    with t.loop("x", "0", whole, SIDE):
        steps = {"a": "%x", "b": t.sum(("%b_pitch", t.let(f"mul i64 %x, {parts.planes}")))}
        _multiply(t, parts, down, across, starts, steps, strides)
    for i in range(down):
        for j in range(across):
            place = t.at(sums, "float", str(SIDE * (i * tile.columns + j)))
            t.do(f"call void @llvm.x86.tilestored64(i8 {i * across + j}, ptr {place}, i64 {4 * tile.columns})")
    t.do("call void @llvm.x86.tilerelease()")
    fine = _finite(t, sums, tile.rows * tile.columns)
    _write(t, tile, sums, fine)
    rest = t.let(f"select i1 {fine}, i64 {whole}, i64 0")
    t.do(f"call void @{name}_plain(ptr %a, ptr %b, ptr %c, i64 {rest}, i64 %k, {_PITCHES})")
    t.do("ret void")
    return t.lines


def _multiply(t: _Text, parts: Parts, down: int, across: int, starts: dict[tuple[str, int, int], str],
              steps: dict[str, str], strides: dict[str, str]) -> None:
    """Sixteen words of k: each part of a register of a or b is loaded into the one that was not used for longest."""
    held: dict[tuple[str, int, int], int] = {}  # least recently used first
    tiles = [(i, j) for i in range(down) for j in range(across)]
    for p, q in parts.products:
        for i, j in tiles:
            for key in (("a", i, p), ("b", j, q)):
                register = held.pop(key, None)
                if register is None:
                    register = _FIRST + len(held) if len(held) < _REGISTERS else held.pop(next(iter(held)))
                    place = t.at(starts[key], "i32", steps[key[0]])
                    t.do(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {place}, i64 {strides[key[0]]})")
                held[key] = register
            t.do(f"call void @llvm.x86.tdpbf16ps(i8 {i * across + j}, i8 {held['a', i, p]}, i8 {held['b', j, q]})")
        tiles.reverse()


def _finite(t: _Text, sums: str, count: int) -> str:
    """Whether no sum is infinite or NaN, which times 0 is NaN."""
    seen = [f"%seen{i}" for i in range(_CHAINS)]
    with t.loop("y", "0", str(count), _CHAINS * SIDE, seen):
        for i, x in enumerate(seen):
            value = t.let(f"load {_VECTOR}, ptr {t.at(sums, 'float', '%y', str(i * SIDE))}, align 64")
            t.do(f"{x}.next = {_fma(value, 'zeroinitializer', x)}")
    total = seen[0]
    for x in seen[1:]:
        total = t.let(f"fadd {_VECTOR} {total}, {x}")
    odd = t.let(f"fcmp uno {_VECTOR} {total}, zeroinitializer")
    return t.let(f"icmp eq i{SIDE} {t.let(f'bitcast <{SIDE} x i1> {odd} to i{SIDE}')}, 0")


def _write(t: _Text, tile: Tile, sums: str, fine: str) -> None:
    """c = sums / scale^2, where these are fine, else 0; or c + that."""
    factor = f"splat (float {_hex(PARTS[tile.kind].scale ** -2)})"
    keep = t.let("icmp ne i64 %old, 0")
    with t.loop("r", "0", str(tile.rows)):
        for j in range(0, tile.columns, SIDE):
            value = t.let(f"load {_VECTOR}, ptr {t.at(sums, 'float', ('%r', tile.columns), str(j))}, align 64")
            value = t.let(f"fmul {_VECTOR} {value}, {factor}")
            value = t.let(f"select i1 {fine}, {_VECTOR} {value}, {_VECTOR} zeroinitializer")
            place = t.at("%c", "float", ("%r", "%c_pitch"), str(j))
            old = t.let(f"load {_VECTOR}, ptr {place}, align 4")
            old = t.let(f"select i1 {keep}, {_VECTOR} {old}, {_VECTOR} zeroinitializer")
            t.do(f"store {_VECTOR} {t.let(f'fadd {_VECTOR} {old}, {value}')}, ptr {place}, align 4")


def _plain(tile: Tile) -> list[str]:
    """c += a * b in float32, for steps `from` to `to`: no faster than it needs to be."""
    t, planes, columns = _Text(), PARTS[tile.kind].planes, range(0, tile.columns, SIDE)
    with t.loop("x", "%from", "%to"):
        steps = [t.sum((t.sum(("%x", planes), str(p)), "%b_pitch")) for p in range(planes)]
        rows = [_decoded(t, tile.kind, [
            t.let(f"load {_WORDS}, ptr {t.at('%b', 'i32', step, str(j))}, align 4") for step in steps], _WORDS, _VECTOR)
            for j in columns]
        with t.loop("u", "0", str(tile.rows)):
            places = [t.at("%a", "i32", (t.sum(("%u", planes), str(p)), "%a_pitch"), "%x") for p in range(planes)]
            one = _decoded(t, tile.kind, [t.let(f"load i32, ptr {p}, align 4") for p in places], "i32", "float")
            left = [_in_all_lanes(t, x) for x in one]
            for j, right in zip(columns, rows, strict=True):
                place = t.at("%c", "float", ("%u", "%c_pitch"), str(j))
                total = t.let(f"load {_VECTOR}, ptr {place}, align 4")
                for x, y in zip(left, right, strict=True):
                    total = t.let(_fma(x, y, total))
                t.do(f"store {_VECTOR} {total}, ptr {place}, align 4")
    t.do("ret void")
    return t.lines


def _decoded(t: _Text, kind: str, words: list[str], integer: str, number: str) -> list[str]:
    """The two float32 that the words of all planes stand for: exactly what `parts.py` made them of."""
    def every(value: str) -> str:
        return value if number == "float" else f"splat ({'float' if value.startswith('0x') else 'i32'} {value})"

    found = []
    size = "f32" if number == "float" else f"v{SIDE}f32"
    for upper in (False, True):
        bits = [t.let(f"and {integer} {w}, {every('-65536')}" if upper else f"shl {integer} {w}, {every('16')}")
                for w in words]
        parts = [t.let(f"bitcast {integer} {b} to {number}") for b in bits]
        exact, raw = parts[0], parts[1]
        if kind == "bf16x3":
            exact = t.let(f"fadd {number} {t.let(f'fadd {number} {parts[0]}, {parts[1]}')}, {parts[2]}")
            low = t.let(f"lshr {integer} {words[2]}, {every('16')}" if upper else
                        f"and {integer} {words[2]}, {every('65535')}")
            raw = t.let(f"bitcast {integer} {t.let(f'or {integer} {bits[1]}, {low}')} to {number}")
        exact = t.let(f"fmul {number} {exact}, {every(_hex(1 / PARTS[kind].scale))}")
        large = t.let(f"call {number} @llvm.fabs.{size}({number} {parts[0]})")
        finite = t.let(f"fcmp olt {number} {large}, {every(_INFINITY)}")
        flag = "i1" if number == "float" else f"<{SIDE} x i1>"
        found.append(t.let(f"select {flag} {finite}, {number} {exact}, {number} {raw}"))
    return found


def _in_all_lanes(t: _Text, x: str) -> str:
    first = t.let(f"insertelement {_VECTOR} poison, float {x}, i64 0")
    return t.let(f"shufflevector {_VECTOR} {first}, {_VECTOR} poison, <{SIDE} x i32> zeroinitializer")


def _fma(a: str, b: str, c: str) -> str:
    return f"call {_VECTOR} @llvm.fma.v16f32({_VECTOR} {a}, {_VECTOR} {b}, {_VECTOR} {c})"


def _hex(x: float) -> str:
    """A float as LLVM IR writes it exactly."""
    return f"0x{struct.pack('>d', x).hex().upper()}"
