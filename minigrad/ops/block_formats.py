"""The formats of quantised weights: one record each.

A number is `scale * code`, or `scale * code + minimum`. Codes of a block of 32 columns are words of 32 bits, as many as
a code has bits: planes of 8, 4, 2 and 1 bits one after the other, that of the lowest bits first. The 32 codes are eight
groups of four columns, which are the four bytes of a word; a plane of b bits has 8/b groups in each word, the first one
in the lowest bits of each byte.

    plane of 8    group g in word g
    plane of 4    group g in word g // 2, shifted by 4 * (g % 2)
    plane of 2    group g in word g // 4, shifted by 2 * (g % 4)
    plane of 1    group g in word 0, shifted by g

This is our order of a file's bits (`state/gguf_quants.py`), and has as many of them.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigrad.dtype import DType, float16, int8, int32, uint8, uint32

BLOCK = 32
"""Columns whose codes lie together."""

SUPER = 8
"""Blocks with one scale of their scales."""

GROUPS = 8
"""Groups of four columns in a block."""

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format. A file keeps `block` columns in `block_bytes` bytes; `bits` are those of a code.

    What a code is multiplied as: a signed byte for 8 bits, else `table[code]` or `code - zero`.
    A scale (and a minimum, where there is `least`) is for `columns` columns, 32 or 16, and is
      half     a float16
      nested   a signed byte, times a float16 of 256 columns
      paired   as nested; a scale is the low half of an unsigned byte, and its minimum the high half
      power    2**(e - 128) for an unsigned byte e
    """

    name: str
    block: int
    block_bytes: int
    bits: int
    zero: int = 0
    table: tuple[int, ...] = ()
    columns: int = BLOCK
    scale: str = "half"
    least: bool = False

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits of each plane, the lowest first; together `bits`."""
        return tuple([b for b in (8, 4, 2, 1) if self.bits & b])

    @property
    def nested(self) -> bool:
        return self.scale in ("nested", "paired")

    @property
    def parts(self) -> tuple[tuple[str, DType, int], ...]:
        """Names, types, and how many of them 256 columns have, of what a row is made of."""
        kind = {"half": float16, "nested": int8, "paired": uint8, "power": uint8}[self.scale]
        many = SUPER * BLOCK // self.columns
        parts = [("words", int32 if self.bits == 8 else uint32, SUPER * self.bits), ("scales", kind, many)]
        parts += [("minimums", kind, many)] if self.least and self.scale != "paired" else []
        parts += [("super_scales", float16, 1)] if self.nested else []
        return (*parts, *([("super_minimums", float16, 1)] if self.nested and self.least else []))

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """Numbers that codes (uint8) are multiplied as, int8."""
        if self.bits == 8:
            return codes.view(np.int8)
        return np.array(self.table, np.int8)[codes] if self.table else codes.astype(np.int8) - np.int8(self.zero)

    @property
    def offset(self) -> int:
        """By how much a number, made an unsigned byte, is more than it counts."""
        return 128 if self.bits == 8 else -min(self.table) if self.table else self.zero


FORMATS = {f.name: f for f in (
    BlockFormat("Q8_0", 32, 34, 8),
    BlockFormat("Q4_0", 32, 18, 4, zero=8),
    BlockFormat("Q4_1", 32, 20, 4, least=True),
    BlockFormat("Q5_0", 32, 22, 5, zero=16),
    BlockFormat("Q5_1", 32, 24, 5, least=True),
    BlockFormat("Q2_K", 256, 84, 2, columns=16, scale="paired", least=True),
    BlockFormat("Q3_K", 256, 110, 3, zero=4, columns=16, scale="nested"),
    BlockFormat("Q4_K", 256, 144, 4, scale="nested", least=True),
    BlockFormat("Q5_K", 256, 176, 5, scale="nested", least=True),
    BlockFormat("Q6_K", 256, 210, 6, zero=32, columns=16, scale="nested"),
    BlockFormat("IQ4_NL", 32, 18, 4, table=IQ4),
    BlockFormat("IQ4_XS", 256, 136, 4, table=IQ4, scale="nested"),
    BlockFormat("MXFP4", 32, 17, 4, table=E2M1, scale="power"),
)}
