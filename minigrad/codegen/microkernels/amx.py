"""Tiles of int8 products in the matrix registers of AMX: 1 or 2 by 1 or 2 registers of 16 x 16 sums.

    load or clear the registers of c
    for every 16 words of k: load 16 rows of a, 16 rows of b; multiply each with each
    store the registers of c

A matrix register is 16 rows of 64 bytes: of a 16 words per row, of b 16 words per step of k, as the panels have them.
The last steps, fewer than 16, come under a second configuration, whose registers of a and b are smaller; loading it
clears the sums, which are stored before and loaded again.
"""
from __future__ import annotations

from minigrad.codegen.microkernels.tile import Tile

SIDE = 16
"""Rows and 32-bit columns of a matrix register."""

_FIRST_A, _FIRST_B = 4, 6
_WIDTHS, _HEIGHTS = 16, 48
"""Where a configuration says how many bytes (16 bits each) and how many rows (8 bits) each register has."""


def takes(tile: Tile) -> bool:
    """Whether the tile can be one of these."""
    return tile.kind == "i8x4" and tile.a_along == "k" and tile.rows in (16, 32) and tile.columns in (16, 32)


def amx_text(tile: Tile, name: str) -> str:
    """The LLVM IR of a tile."""
    down, across = range(tile.rows // SIDE), range(tile.columns // SIDE)
    lines = [
        "declare void @llvm.x86.ldtilecfg(ptr)", "declare void @llvm.x86.tilerelease()",
        "declare void @llvm.x86.tilezero(i8)", "declare void @llvm.x86.tileloadd64(i8, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8, ptr, i64)", "declare void @llvm.x86.tdpbssd(i8, i8, i8)",
        f"define void @{name}(ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c, i64 %k, i64 %a_pitch, "
        "i64 %b_pitch, i64 %c_pitch, i64 %old) nounwind {", "entry:",
        "  %config = alloca [64 x i8], align 64", "  store [64 x i8] zeroinitializer, ptr %config, align 64",
        "  store i8 1, ptr %config, align 64"]
    lines += [line for register in range(8) for line in _sizes(register, "64", "16")]
    lines += [f"  %{x}p = mul i64 %{x}_pitch, 4" for x in "abc"]
    lines += [f"  %{x}{i}.step = mul i64 %{x}p, {SIDE * i}" for x, group in (("a", down), ("c", down)) for i in group]
    lines += [f"  %a{i} = getelementptr i8, ptr %a, i64 %a{i}.step" for i in down]
    lines += [f"  %b{j} = getelementptr i8, ptr %b, i64 {4 * SIDE * j}" for j in across]
    for i in down:
        lines.append(f"  %c{i}.row = getelementptr i8, ptr %c, i64 %c{i}.step")
        lines += [f"  %c{i}{j} = getelementptr i8, ptr %c{i}.row, i64 {4 * SIDE * j}" for j in across]
    sums = [(2 * i + j, f"%c{i}{j}") for i in down for j in across]
    load = [f"  call void @llvm.x86.tileloadd64(i8 {s}, ptr {p}, i64 %cp)" for s, p in sums]
    store = [f"  call void @llvm.x86.tilestored64(i8 {s}, ptr {p}, i64 %cp)" for s, p in sums]
    lines += ["  call void @llvm.x86.ldtilecfg(ptr %config)", "  %keep = icmp ne i64 %old, 0",
              "  br i1 %keep, label %add, label %clear", "add:", *load, "  br label %ready", "clear:",
              *[f"  call void @llvm.x86.tilezero(i8 {s})" for s, _ in sums], "  br label %ready", "ready:",
              f"  %whole = lshr i64 %k, {SIDE.bit_length() - 1}", f"  %rest = and i64 %k, {SIDE - 1}",
              f"  %b.step = mul i64 %bp, {SIDE}", "  %some = icmp ne i64 %whole, 0",
              "  br i1 %some, label %loop, label %last", "loop:", "  %x = phi i64 [ 0, %ready ], [ %x.next, %loop ]",
              f"  %ax = mul i64 %x, {4 * SIDE}", "  %bx = mul i64 %x, %b.step", *_products(tile, "w"),
              "  %x.next = add nuw nsw i64 %x, 1", "  %more = icmp slt i64 %x.next, %whole",
              "  br i1 %more, label %loop, label %last", "last:", *store, "  %left = icmp ne i64 %rest, 0",
              "  br i1 %left, label %tail, label %done", "tail:", f"  %ax.tail = mul i64 %whole, {4 * SIDE}",
              "  %bx.tail = mul i64 %whole, %b.step", "  %rest.bytes = shl i64 %rest, 2",
              "  %width = trunc i64 %rest.bytes to i16", "  %height = trunc i64 %rest to i8"]
    for i in range(2):
        lines += [*_sizes(_FIRST_A + i, "%width", "16", "t"), *_sizes(_FIRST_B + i, "64", "%height", "t")]
    lines += ["  call void @llvm.x86.ldtilecfg(ptr %config)", *load, *_products(tile, "t", ".tail"), *store,
              "  br label %done", "done:", "  call void @llvm.x86.tilerelease()", "  ret void", "}", ""]
    return "\n".join(lines)


def _sizes(register: int, width: str, height: str, suffix: str = "") -> list[str]:
    """Sets the bytes per row and the rows of a register in the configuration."""
    wide, high = f"%wide{suffix}{register}", f"%high{suffix}{register}"
    return [f"  {wide} = getelementptr i8, ptr %config, i64 {_WIDTHS + 2 * register}",
            f"  store i16 {width}, ptr {wide}, align 2",
            f"  {high} = getelementptr i8, ptr %config, i64 {_HEIGHTS + register}",
            f"  store i8 {height}, ptr {high}, align 1"]


def _products(tile: Tile, prefix: str, suffix: str = "") -> list[str]:
    """Loads a and b at %ax and %bx, and multiplies each with each."""
    down, across = range(tile.rows // SIDE), range(tile.columns // SIDE)
    lines = []
    for x, group, first in (("a", down, _FIRST_A), ("b", across, _FIRST_B)):
        for i in group:
            lines += [f"  %{prefix}{x}{i} = getelementptr i8, ptr %{x}{i}, i64 %{x}x{suffix}",
                      f"  call void @llvm.x86.tileloadd64(i8 {first + i}, ptr %{prefix}{x}{i}, i64 %{x}p)"]
    return lines + [f"  call void @llvm.x86.tdpbssd(i8 {2 * i + j}, i8 {_FIRST_A + i}, i8 {_FIRST_B + j})"
                    for i in down for j in across]
