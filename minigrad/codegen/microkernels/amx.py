"""Tiles in the matrix registers of AMX: sums of int8 products, or of bfloat16 products.

    load the registers of c, or leave them cleared
    for every 16 words of k: load 16 rows of a, 16 rows of b; multiply each with each
    store the registers of c

A matrix register is 16 rows of 64 bytes: of a 16 words per row, of b 16 words per step of k, as the panels have them.
Of eight, four are sums, two hold rows of a, two rows of b, in turn if there are more. The last steps, fewer than 16,
come under another configuration, whose registers of a and b are smaller; loading one clears all registers, so that sums
are stored before and loaded again.
"""
from __future__ import annotations

from collections.abc import Iterator

from minigrad.codegen.microkernels.tile import Tile

SIDE = 16
"""Rows and 32-bit columns of a matrix register."""

SHAPES = {"i8x4": ((16, 16), (16, 32), (32, 16), (32, 32)),
          "bf16x2": ((32, 32), (16, 64), (64, 16))}
"""Rows and columns of tiles. A sum takes three products of bfloat16 to be ready for the next."""

_FIRST, _EACH = {"a": 4, "b": 6}, 2
"""Registers of a and of b."""

_WIDTHS, _HEIGHTS = 16, 48
"""The offsets in a configuration of each register's number of bytes (16 bits each) and of rows (8 bits)."""


def takes(tile: Tile) -> bool:
    """True where the tile can be one of these."""
    return tile.a_along == "k" and (tile.rows, tile.columns) in SHAPES.get(tile.kind, ())


def amx_text(tile: Tile, name: str) -> str:
    """The LLVM IR of a tile."""
    sums = [(i * (tile.columns // SIDE) + j, f"%c{i}{j}") for i in range(tile.rows // SIDE)
            for j in range(tile.columns // SIDE)]
    load = [f"  call void @llvm.x86.tileloadd64(i8 {s}, ptr {p}, i64 %cp)" for s, p in sums]
    store = [f"  call void @llvm.x86.tilestored64(i8 {s}, ptr {p}, i64 %cp)" for s, p in sums]
    instruction = "tdpbssd" if tile.kind == "i8x4" else "tdpbf16ps"
    lines = [
        f'@{name}_config = private constant <64 x i8> <{_configuration()}>, align 64',
        f"define void @{name}(ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c, i64 %k, i64 %a_pitch, "
        "i64 %b_pitch, i64 %c_pitch, i64 %old) nounwind {", "entry:", "  %config = alloca <64 x i8>, align 64",
        *_pointers(tile), "  %keep = icmp ne i64 %old, 0", f"  %whole = lshr i64 %k, {SIDE.bit_length() - 1}",
        f"  %rest = and i64 %k, {SIDE - 1}", "  %some = icmp ne i64 %whole, 0", "  %left = icmp ne i64 %rest, 0",
        "  %short = icmp ugt i1 %left, %some", "  br i1 %short, label %tail, label %full", "full:",
        f"  call void @llvm.x86.ldtilecfg(ptr @{name}_config)", "  br i1 %keep, label %add, label %ready",
        "add:", *load, "  br label %ready", "ready:", f"  %b.step = mul i64 %bp, {SIDE}",
        "  br i1 %some, label %loop, label %last", "loop:", "  %x = phi i64 [ 0, %ready ], [ %x.next, %loop ]",
        f"  %ax = mul i64 %x, {4 * SIDE}", "  %bx = mul i64 %x, %b.step", *_products(tile, instruction),
        "  %x.next = add nuw nsw i64 %x, 1", "  %more = icmp slt i64 %x.next, %whole",
        "  br i1 %more, label %loop, label %last", "last:", *store,
        "  br i1 %left, label %tail, label %done", "tail:", "  %stored = phi i1 [ %keep, %entry ], [ true, %last ]",
        f"  %at = and i64 %k, {-SIDE}", "  %ax.tail = mul i64 %at, 4", "  %bx.tail = mul i64 %at, %bp",
        "  %rest.bytes = shl i64 %rest, 2", "  %width = trunc i64 %rest.bytes to i16",
        "  %height = trunc i64 %rest to i8", f"  %usual = load <64 x i8>, ptr @{name}_config, align 64",
        "  store <64 x i8> %usual, ptr %config, align 64"]
    for i in range(_EACH):
        lines += [*_sizes(_FIRST["a"] + i, "%width", str(SIDE)), *_sizes(_FIRST["b"] + i, str(4 * SIDE), "%height")]
    lines += ["  call void @llvm.x86.ldtilecfg(ptr %config)", "  br i1 %stored, label %reload, label %finish",
              "reload:", *load, "  br label %finish", "finish:", *_products(tile, instruction, ".tail"), *store,
              "  br label %done", "done:", "  call void @llvm.x86.tilerelease()", "  ret void", "}", ""]
    return "\n".join(lines)


def _configuration() -> str:
    """All registers whole."""
    config = bytearray(64)
    config[0] = 1
    for register in range(8):
        config[_WIDTHS + 2 * register], config[_HEIGHTS + register] = 4 * SIDE, SIDE
    return ", ".join(f"i8 {byte}" for byte in config)


def _sizes(register: int, width: str, height: str) -> list[str]:
    """Sets the bytes per row and the rows of a register in the configuration."""
    return [f"  %wide{register} = getelementptr i8, ptr %config, i64 {_WIDTHS + 2 * register}",
            f"  store i16 {width}, ptr %wide{register}, align 2",
            f"  %high{register} = getelementptr i8, ptr %config, i64 {_HEIGHTS + register}",
            f"  store i8 {height}, ptr %high{register}, align 1"]


def _pointers(tile: Tile) -> Iterator[str]:
    """Writes the bytes from row to row, and the pointers to the start of each register of a, of b, and of c."""
    down, across = range(tile.rows // SIDE), range(tile.columns // SIDE)
    for x in "abc":
        yield f"  %{x}p = mul i64 %{x}_pitch, 4"
    for j in across:
        yield f"  %b{j} = getelementptr i8, ptr %b, i64 {4 * SIDE * j}"
    for i in down:
        yield f"  %a{i}.step = mul i64 %ap, {SIDE * i}"
        yield f"  %a{i} = getelementptr i8, ptr %a, i64 %a{i}.step"
        yield f"  %c{i}.step = mul i64 %cp, {SIDE * i}"
        yield f"  %c{i}.row = getelementptr i8, ptr %c, i64 %c{i}.step"
        for j in across:
            yield f"  %c{i}{j} = getelementptr i8, ptr %c{i}.row, i64 {4 * SIDE * j}"


def _products(tile: Tile, instruction: str, suffix: str = "") -> Iterator[str]:
    """Loads a and b at %ax and %bx, and multiplies each with each."""
    across, loaded = tile.columns // SIDE, {"a": -1, "b": -1}
    for i in range(tile.rows // SIDE):
        for j in range(across):
            for x, k in (("a", i), ("b", j)):
                if k > loaded[x]:  # in order: whoever needs an earlier one again finds it where there are two
                    loaded[x] = k
                    yield f"  %{x}{k}.from{suffix} = getelementptr i8, ptr %{x}{k}, i64 %{x}x{suffix}"
                    yield (f"  call void @llvm.x86.tileloadd64(i8 {_FIRST[x] + k % _EACH}, ptr %{x}{k}.from{suffix}, "
                           f"i64 %{x}p)")
            yield (f"  call void @llvm.x86.{instruction}(i8 {i * across + j}, i8 {_FIRST['a'] + i % _EACH}, "
                   f"i8 {_FIRST['b'] + j % _EACH})")
