"""`Tile`: the inner loop of a packed contraction, as a family of meanings.

    c[u, j] = (c[u, j] if old) + sum(x < k: a[u, x] * b[x, j])          u < rows, j < columns

Panels lie in memory with a pitch: a[u, x] at u * a_pitch + x, or at x * a_pitch + u where `a_along` is 'm'; b[x, j] at
x * b_pitch + j; c[u, j] at u * c_pitch + j. The order of the sum is x = 0, 1, ...; whoever writes an implementation
may round differently only as fused or separate multiply-adds do.

`kind` says what an element of a panel is: 'f32' and 'f64' themselves; 'i16x2' two int16 in a uint32, low half first;
'i8x4' four int8 in a uint32, low byte first; 'u8x4' the same, but bytes of a are unsigned. The latter three multiply
and add pairwise into int32, which wraps. (Their steps of k are so many elements.)

'bf16x2' is two bfloat16 in a uint32, low half first, whose products are added up in float32.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from minigrad.dtype import DType, float32, float64, int32, uint32

KINDS: dict[str, tuple[DType, DType, int]] = {
    "f32": (float32, float32, 1), "f64": (float64, float64, 1),
    "i16x2": (uint32, int32, 2), "i8x4": (uint32, int32, 4), "u8x4": (uint32, int32, 4),
    "bf16x2": (uint32, float32, 2),
}
"""Type of panels, type of sums, and how many elements of the operands are in one of a panel."""

_NAME = re.compile(r"tile_([a-z0-9]+)_(\d+)x(\d+)_([km])")
_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Tile:
    """See the module. `columns` count elements, not vectors."""

    kind: str
    rows: int
    columns: int
    a_along: str = "k"

    @property
    def name(self) -> str:
        return f"tile_{self.kind}_{self.rows}x{self.columns}_{self.a_along}"

    @property
    def panel(self) -> DType:
        return KINDS[self.kind][0]

    @property
    def sum(self) -> DType:
        return KINDS[self.kind][1]

    @property
    def group(self) -> int:
        """Elements of an operand in one element of its panel."""
        return KINDS[self.kind][2]

    def meaning(self, name: str = "") -> str:
        """The loop IR text of a function called `name`."""
        rows, panel, total = self.rows, self.panel.short, self.sum.short
        place = "u * a_pitch + x" if self.a_along == "k" else "x * a_pitch + u"
        last = f"{rows - 1} * a_pitch + k" if self.a_along == "k" else f"(k - 1) * a_pitch + {rows}"
        sizes = f"in a: {panel}[max({last}, 0)], in b: {panel}[max((k - 1) * b_pitch + {self.columns}, 0)]"
        least = {"k": 0, "a_pitch": 1, "b_pitch": 1, "c_pitch": self.columns}
        dims = ", ".join(f"{name}: index in {lo}..{_LIMIT}" for name, lo in least.items())
        zero = {float32: "0.0", float64: "0.0:f64"}.get(self.sum, "0")
        out = "c[u * c_pitch + j]"
        return "\n".join([
            f"func {name or self.name}({sizes}, inout c: {total}[{rows - 1} * c_pitch + {self.columns}], {dims}, "
            "old: index in 0..1)",
            f"  for j in 0..{self.columns} vector:",
            f"    alloc sum: {total}[{rows}] register",
            f"    for u in 0..{rows} unroll:",
            f"      sum[u] = {zero}",
            "    for x in 0..k serial:",
            f"      for u in 0..{rows} unroll:",
            f"        sum[u] = {self._step(place)}",
            "    if old - 1 >= 0:",
            f"      for u in 0..{rows} unroll:",
            f"        {out} = {out} + sum[u]",
            "    else:",
            f"      for u in 0..{rows} unroll:",
            f"        {out} = sum[u]", ""])

    def _step(self, place: str) -> str:
        a, b = f"a[{place}]", "b[x * b_pitch + j]"
        if self.group == 1:
            return f"fma({a}, {b}, sum[u])"
        if self.kind == "bf16x2":
            low, high = (f"fma({_half(a, t)}, {_half(b, t)}, {{}})" for t in range(2))
            return high.format(low.format("sum[u]"))
        bits = 32 // self.group
        total = "sum[u]"
        for t in range(self.group):
            shift = f" >> {bits * t}:u32" if t else ""
            left = f"i32({a}{shift} & 255:u32)" if self.kind == "u8x4" else f"i32(i{bits}({a}{shift}))"
            total = f"{total} + ({left}) * i32(i{bits}({b}{shift}))"
        return total


def _half(word: str, t: int) -> str:
    """Element `t` of a word of bfloat16, as float32."""
    return f"bitcast({word} & 4294901760:u32, f32)" if t else f"bitcast({word} << 16:u32, f32)"


def tile_of(name: str) -> Tile | None:
    """The tile of that name."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in KINDS or not int(found[2]) or not int(found[3]):
        return None
    tile = Tile(found[1], int(found[2]), int(found[3]), found[4])
    return tile if tile.name == name else None


def shape_in(meaning: str) -> tuple[int, int] | None:
    """Rows and columns that a text has if it is a tile's."""
    rows, columns = re.search(r"alloc sum: \w+\[(\d+)\]", meaning), re.search(r"for j in 0\.\.(\d+) vector", meaning)
    return (int(rows[1]), int(columns[1])) if rows is not None and columns is not None else None
