"""Floats as bfloat16, for matrix registers that multiply these.

'bf16x3': a float32 x as the sum of three

    y = x * 2^24                    exactly, subnormals too, as long as it is finite
    h = y to 8 bits, m = y - h to 8 bits, l = y - h - m                     to nearest: l is exact in 8 bits
    a * b * 2^48 = l h' + m h' + m m' + h m' + h l' + h h'                  but for terms below 2^-24 of it

'bf16x1': a bfloat16 x as h = x * 2^12.

bfloat16 has the exponents of float32. The scale keeps whatever float32 can represent away from subnormals, which matrix
registers take for zero. Where something overflows for its sake, or is no finite number, neither is the sum: whoever
asks for such tiles computes it again from x. Other sums, divided by the scale twice, are as exact as in float32 or
better: of 16 products each, they are rounded once.

A word of a panel holds the same part, or plane, of two neighbours along k, the first one in the low half.
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.dtype import float32, uint16, uint32
from minigrad.value import Value, binary, bitcast, cast, const

HALF, UPPER = 0x8000, 0xFFFF0000


@dataclass(frozen=True, slots=True)
class Parts:
    """`planes` of a panel, the parts of a and b that are multiplied, 0 the largest, and the scale of both. From one
    product to the next one of the parts changes."""

    planes: int
    products: tuple[tuple[int, int], ...]
    scale: float


PARTS = {"bf16x3": Parts(3, ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)), 2.0 ** 24),
         "bf16x1": Parts(1, ((0, 0),), 2.0 ** 12)}


def words_of(kind: str, first: Value, second: Value) -> tuple[Value, ...]:
    """The words of two values, float32 or for 'bf16x1' bfloat16: one for each plane, uint32."""
    upper, half = const(UPPER, uint32), const(16, uint32)
    if kind == "bf16x1":
        low, high = (cast(bitcast(x, uint16), uint32) for x in (first, second))
        raw = binary("or", low, binary("shl", high, half))
        scaled = (_scaled(kind, bitcast(x, float32)) for x in (binary("shl", raw, half), binary("and", raw, upper)))
        return (_pair(*[bitcast(x, uint32) for x in scaled]),)
    return tuple([_pair(x, y) for x, y in zip(_three(first), _three(second), strict=True)])


def _pair(x: Value, y: Value) -> Value:
    """The word of the upper halves of two."""
    return binary("or", binary("shr", x, const(16, uint32)), binary("and", y, const(UPPER, uint32)))


def _scaled(kind: str, x: Value) -> Value:
    return binary("mul", x, const(PARTS[kind].scale, float32))


def _three(x: Value) -> tuple[Value, ...]:
    """The bits of h, m and l in the upper halves of uint32; what is in the lower halves does not count."""
    upper = const(UPPER, uint32)

    def rounded(v: Value) -> Value:
        return binary("and", binary("add", bitcast(v, uint32), const(HALF, uint32)), upper)

    y = _scaled("bf16x3", x)
    h = rounded(y)
    rest = binary("sub", y, bitcast(h, float32))
    m = rounded(rest)
    return h, m, bitcast(binary("sub", rest, bitcast(m, float32)), uint32)


def meaning(name: str, kind: str, rows: int, columns: int, along: str, limit: int) -> str:
    """The loop IR text of a tile: see `Tile`."""
    parts = PARTS[kind]
    count = parts.planes
    a, b = (f"({count} * u + {{p}}) * a_pitch + x" if along == "k" else f"({count} * x + {{p}}) * a_pitch + u",
            f"({count} * x + {{p}}) * b_pitch + j")
    last = f"{count * rows - 1} * a_pitch + k" if along == "k" else f"({count} * k - 1) * a_pitch + {rows}"
    sizes = f"in a: u32[max({last}, 0)], in b: u32[max(({count} * k - 1) * b_pitch + {columns}, 0)]"
    least = {"k": 0, "a_pitch": 1, "b_pitch": 1, "c_pitch": columns}
    dims = ", ".join(f"{n}: index in {lo}..{limit}" for n, lo in least.items())
    words = [f"        let {x}{p} = {x}[{place.format(p=p)}]" for x, place in (("a", a), ("b", b))
             for p in range(count)]
    total = "sum[u]"
    for t in range(2):
        for p, q in parts.products:
            total = f"fma({_part(f'a{p}', t)}, {_part(f'b{q}', t)}, {total})"
    out = "c[u * c_pitch + j]"
    return "\n".join([
        f"func {name}({sizes}, inout c: f32[{rows - 1} * c_pitch + {columns}], {dims}, old: index in 0..1)",
        f"  for j in 0..{columns} vector:", f"    alloc sum: f32[{rows}] register",
        f"    for u in 0..{rows} unroll:", "      sum[u] = 0.0",
        "    for x in 0..k serial:", f"      for u in 0..{rows} unroll:", *words, f"        sum[u] = {total}",
        "    if old - 1 >= 0:", f"      for u in 0..{rows} unroll:", f"        {out} = {out} + sum[u]",
        "    else:", f"      for u in 0..{rows} unroll:", f"        {out} = sum[u]", ""])


def _part(word: str, t: int) -> str:
    """Element `t` of a word of bfloat16, as float32."""
    return f"bitcast({word} << 16:u32, f32)" if t == 0 else f"bitcast({word} & {UPPER}:u32, f32)"
