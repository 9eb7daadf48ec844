"""A stand-in for NVIDIA's matrix units: fragments that the work-items of a sub-group exchange by shuffles.

The text of a microkernel (`codegen/microkernels/matrix.py`) loads each work-item's operands into registers and hands
them to one instruction. Here a loop takes that instruction's place, on drivers with sub-groups of 32 and shuffles: it
asks the work-items that hold a row or a column, as PTX says where they lie, and adds up what a work-item's sums need.
So what work-items load, in which register, and which sums are whose, is all executed.
"""
from __future__ import annotations

import re

from minigrad.codegen.microkernels.matrix import UNITS, WAVE

FEATURES = frozenset(unit.feature for unit in UNITS if unit.family == "mma")
"""The features of targets that have the units."""

_HALF = {"f16": "vload_half(0, (const half *)&bits)", "bf16": "as_float((uint)bits << 16)"}


def shuffled(source: str) -> str:
    """A program whose instructions of matrix units are loops, and whose sub-groups have 32 work-items."""
    if "mma.sync" not in source:
        return source
    # Compiled once, and not for each call: 32 lanes wide, that takes seconds.
    text = re.sub(r"^void mma_", "__attribute__((noinline)) void mma_", source, flags=re.MULTILINE)
    text = re.sub(r'asm\("mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.f32\.(\w+)\..*?\);', _loop, text)
    # To nearest with 10 bits of mantissa, halves away from zero; NaN stays.
    text = re.sub(r'asm\("cvt\.rna\.tf32\.f32 .*?" : "=r"\((\w+)\) : "f"\((.*?)\)\);',
                  r"{ const float x = \2; \1 = x == x ? as_uint(x) + 4096u & 0xffffe000u : as_uint(x); }", text)
    return re.sub(r"^(__attribute__\(\(reqd_work_group_size.*)$",
                  rf"__attribute__((intel_reqd_sub_group_size({WAVE})))\n\1", text, flags=re.MULTILINE)


def _loop(found: re.Match[str]) -> str:
    depth, kind = int(found[1]), found[2]
    registers, words = depth // 2, depth // 8
    # Where an element k of a row lies: two registers of words of one or two neighbours, four work-items.
    lines = [f"for (int k = 0; k < {depth}; ++k) {{",
             f"  const uint from = k % {registers} / {words}, row = get_sub_group_local_id() / 4 * 4 + from, "
             "column = get_sub_group_local_id() % 4 * 8 + from;"]
    taken = {"x0": (f"k < {registers} ? a0 : a2", "row"), "x1": (f"k < {registers} ? a1 : a3", "row"),
             "y0": (f"k < {registers} ? b0 : b1", "column"), "y1": (f"k < {registers} ? b0 : b1", "column + 4")}
    for name, (register, at) in taken.items():
        lines.append(f"  const uint w{name} = sub_group_shuffle({register}, {at});")
        value = f"as_float(w{name})"
        if kind != "tf32":
            lines.append(f"  const ushort h{name} = w{name} >> 16 * (k % 2);")
            value = _HALF[kind].replace("bits", f"h{name}")
        lines.append(f"  const float {name} = {value};")
    sums = [f"*c{e} = fma(x{e // 2}, y{e % 2}, *c{e});" for e in range(4)]
    return "\n".join([*lines, "  " + " ".join(sums), "}"])
