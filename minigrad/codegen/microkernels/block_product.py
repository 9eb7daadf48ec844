"""`BlockProduct`: a vector times rows of quantised blocks, as a family of meanings.

    c[16p + l] = sum over blocks b of scale[p, b, l] * sum(k < 32: x[32b + k] * q[p, b, k, l])         l < 16
                 (+ minimum[p, b, l] * sum(k < 32: x[32b + k]))

Panels p of 16 rows lie `pitch` elements apart. Of a block a panel has 16 words in a vector for each 4 columns ('q8':
signed bytes, the lowest first) or 8 columns ('q4', 'q4m': the low halves of the four bytes, then the high halves), and
16 float16 scales. q is the byte; for 'q4' the nibble less 8; for 'q4m' the nibble itself, with the minimum beside.

Implementations may add up in another order and more exactly; see `limbs.py` for ours by AMX, `limbs_vnni.py` for those
by VNNI, whose names end in '_vnni'.
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.microkernels import limbs, limbs_vnni
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.dtype import DType, float32, int32, uint32
from minigrad.value import Value, binary, cast, const

BLOCK, PANEL = 32, 16
FEWEST_BLOCKS, FEWEST_PANELS = 2, 4
"""The fewest blocks and the fewest panels of a product, whatever the implementation."""

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vbmi", "f16c"})
REQUIRES = _AVX512 | {"amx-tile", "amx-int8"}
REQUIRES_VNNI = _AVX512 - {"avx512vbmi"} | {"avx512vnni"}
_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """See the module. kind: 'q8', 'q4' or 'q4m'."""

    kind: str

    @property
    def name(self) -> str:
        return f"block_product_{self.kind}"

    @property
    def words(self) -> int:
        """Vectors of words per block."""
        return 8 if self.kind == "q8" else 4

    @property
    def columns(self) -> int:
        """Columns that one word has the numbers of."""
        return BLOCK // self.words

    @property
    def dtype(self) -> DType:
        """Type of the words."""
        return int32 if self.kind == "q8" else uint32

    @property
    def parts(self) -> tuple[str, ...]:
        """The buffers of a matrix."""
        return ("words", "scales", "minimums") if self.kind == "q4m" else ("words", "scales")

    def number(self, column: int, word: str) -> str:
        """The text of the number of a column within a word."""
        if self.kind == "q8":
            shift = 24 - 8 * column
            return f"f32(({word}{f' << {shift}' if shift else ''}) >> 24)"
        shift = 8 * (column % 4) + 4 * (column // 4)
        nibble = f"{word}{f' >> {shift}:u32' if shift else ''} & 15:u32"
        return f"f32({nibble})" if self.kind == "q4m" else f"f32(i32({nibble}) - 8)"

    def value(self, column: int, word: Value) -> Value:
        """The same as a value."""
        if self.kind == "q8":
            shift = 24 - 8 * column
            top = binary("shl", word, const(shift, int32)) if shift else word
            return cast(binary("shr", top, const(24, int32)), float32)
        shift = 8 * (column % 4) + 4 * (column // 4)
        low = binary("shr", word, const(shift, uint32)) if shift else word
        nibble = binary("and", low, const(15, uint32))
        if self.kind == "q4m":
            return cast(nibble, float32)
        return cast(binary("sub", cast(nibble, int32), const(8, int32)), float32)

    def meaning(self, name: str = "") -> str:
        """The loop IR text of a function called `name`."""
        size = {part: f"(panels - 1) * {part}_pitch + {PANEL * (self.words if part == 'words' else 1)} * blocks"
                for part in self.parts}
        buffers = [f"in {part}: {self.dtype.short if part == 'words' else 'f16'}[{size[part]}]" for part in self.parts]
        pitches = [f"{part}_pitch: index in 0..{_LIMIT}" for part in self.parts]
        columns = self.columns
        word = f"words[p * words_pitch + {PANEL * self.words} * b + {PANEL} * g + l]"
        least = self.kind == "q4m"
        steps = []
        for k in range(columns):
            x = f"x[{BLOCK} * b + {columns} * g + {k}]"
            steps.append(f"          part[0] = fma({x}, {self.number(k, word)}, part[0])")
            steps += [f"          part[1] = part[1] + {x}"] if least else []
        scaled = [f"        sum[0] = fma(f32({part}[p * {part}_pitch + {PANEL} * b + l]), part[{k}], sum[0])"
                  for k, part in enumerate(self.parts[1:])]
        return "\n".join([
            f"func {name or self.name}(in x: f32[{BLOCK} * blocks], {', '.join(buffers)}, "
            f"out c: f32[{PANEL} * panels], blocks: index in {FEWEST_BLOCKS}..{_LIMIT}, "
            f"panels: index in {panels_at_once(name)}..{_LIMIT}, {', '.join(pitches)})",
            "  for p in 0..panels serial:",
            f"    for l in 0..{PANEL} vector:",
            "      alloc sum: f32[1] register",
            "      sum[0] = 0.0",
            "      for b in 0..blocks serial:",
            f"        alloc part: f32[{1 + least}] register",
            *[f"        part[{k}] = 0.0" for k in range(1 + least)],
            f"        for g in 0..{self.words} serial:",
            *steps,
            *scaled,
            f"      c[{PANEL} * p + l] = sum[0]", ""])


KINDS = {kind: BlockProduct(kind) for kind in ("q8", "q4", "q4m")}


VNNI = "_vnni"


def suffix_for(features: frozenset[str]) -> str | None:
    """The end of the names of the implementations that run with these features; None where none does."""
    return "" if REQUIRES <= features else VNNI if REQUIRES_VNNI <= features else None


def panels_at_once(name: str) -> int:
    """The number of panels that the implementation of that name takes at a time."""
    return limbs_vnni.PANELS if name.endswith(VNNI) else limbs.PANELS


def product_named(name: str) -> BlockProduct | None:
    """The product that a microkernel of such a name computes, as in 'block_product_q4' and 'block_product_q4_vnni'."""
    return next((p for p in KINDS.values() if p.name == name.removesuffix(VNNI)), None)


def block_microkernel(name: str) -> Microkernel | None:
    """The microkernel of such a name."""
    found = product_named(name)
    if found is None:
        return None
    if name.endswith(VNNI):
        return Microkernel(name, found.meaning(name), REQUIRES_VNNI, limbs_vnni.limbs_text(found.kind, name))
    return Microkernel(name, found.meaning(), REQUIRES, limbs.limbs_text(found.kind, name))
