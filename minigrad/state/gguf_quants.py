"""The element formats of GGUF files: how each lays out its blocks, and the float32 values of these.

An `unpack` takes uint8 blocks [n, block_bytes] and returns what `BlockFormat` is made of, in its order: codes uint8
[n, block] in place of words, scales and minimums [n, block/columns], and the float16 that these are multiples of
[n, 1]. Bits are taken apart with whole-array operations.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from minigrad.dtype import bfloat16_to_float32
from minigrad.ops.block_formats import FORMATS, BlockFormat

Unpack = Callable[[np.ndarray], tuple[np.ndarray, ...]]


@dataclass(frozen=True, slots=True)
class QuantKind:
    """One element format: `block` weights are stored together in `block_bytes` bytes; `dequantize` gives their values,
    float32 [n, block]. Those that are quantised have `unpack`."""

    name: str
    block: int
    block_bytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]
    unpack: Unpack | None = None


def dequantized(f: BlockFormat, unpack: Unpack, blocks: np.ndarray) -> np.ndarray:
    """The values of blocks, float32 [n, block]: a number times its scale, plus its minimum."""
    codes, *parts = unpack(blocks)
    own = dict(zip([name for name, *_ in f.parts[1:]], parts, strict=True))

    def whole(part: str, above: str) -> np.ndarray:
        x = own.get(part, own["scales"])
        if f.scale == "paired":
            x = x & 15 if part == "scales" else x >> 4
        values = power_of_two(x) if f.scale == "power" else x.astype(np.float32)
        return (own[above].astype(np.float32) * values if f.nested else values)[..., None]

    numbers = f.numbers(codes).reshape(len(blocks), -1, f.columns).astype(np.float32)
    numbers *= whole("scales", "super_scales")
    if f.least:
        numbers += whole("minimums", "super_minimums")
    return numbers.reshape(len(blocks), -1)


def power_of_two(e: np.ndarray) -> np.ndarray:
    """2**(e - 128) of unsigned bytes, float32."""
    return np.ldexp(np.float32(1), e.astype(np.int32) - 128)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at:at + 2]).view(np.float16)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [n, k] -> [n, 2k]: all low halves, then all high halves, as GGML orders the weights of a block."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: np.ndarray, width: int, run: int) -> np.ndarray:
    """uint8 [n, k] -> [n, k * 8/width]: of each `run` bytes all lowest parts of so many bits, then all next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), -1, 1, run) >> shifts
    parts &= np.uint8((1 << width) - 1)
    return parts.reshape(len(packed), -1)


def _plain(dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    def dequantize(blocks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(blocks).view(dtype).astype(np.float32)
    return dequantize


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return bfloat16_to_float32(np.ascontiguousarray(blocks).view(np.uint16))


def _q4_0(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, then 16 bytes of nibbles; IQ4_NL is alike, with a table."""
    return _nibbles(blocks[:, 2:]), _half(blocks, 0)


def _q4_1(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, m, then 16 bytes of nibbles."""
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, 4 bytes of fifth bits, 16 bytes of nibbles."""
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), _half(blocks, 0)


def _q5_1(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, m, 4 bytes of fifth bits, 16 bytes of nibbles."""
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """4 bytes [n, 4] as 0 or 16, uint8 [n, 32]: bit j belongs to weight j."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, then 32 signed bytes."""
    return blocks[:, 2:], _half(blocks, 0)


def _mxfp4(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """e, then 16 bytes of nibbles."""
    return _nibbles(blocks[:, 1:]), blocks[:, :1]


def _q2_k(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """16 bytes of nibbles, scale below and minimum above, 64 of bit pairs, d, m: a minimum is subtracted."""
    return _bits(blocks[:, 16:80], 2, 32), blocks[:, :16], _half(blocks, 80), -_half(blocks, 82)


def _q3_k(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """32 bytes of third bits, 64 of bit pairs, 12 of scales, d.

    Of the sixteen scales, which are 32 too large, the low nibbles are those of 8 bytes, all low halves first; their
    high bit pairs those of 4 bytes, all lowest ones first.
    """
    codes = _bits(blocks[:, 32:96], 2, 32) | _bits(blocks[:, :32], 1, 32) << 2
    scales = _nibbles(blocks[:, 96:104]) | _bits(blocks[:, 104:108], 2, 4) << 4
    return codes, scales.view(np.int8) - np.int8(32), _half(blocks, 108)


def _k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes [n, 12] -> eight 6-bit scales and eight 6-bit minimums, int8 [n, 8] each.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their low nibble in bytes 8-11
    (scale below, minimum above) and their top two bits in the two high bits of bytes 0-7.
    """
    first, second, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (low & 15) | (first >> 6 << 4)], axis=1)
    minimums = np.concatenate([second & 63, (low >> 4) | (second >> 6 << 4)], axis=1)
    return scales.view(np.int8), minimums.view(np.int8)


def _q4_k(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, m, 12 bytes of scales, 128 of nibbles: a minimum is subtracted."""
    return _bits(blocks[:, 16:], 4, 32), *_k_scales(blocks[:, 4:16]), _half(blocks, 0), -_half(blocks, 2)


def _q5_k(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """As Q4_K with 32 bytes of fifth bits before the nibbles."""
    codes = _bits(blocks[:, 48:], 4, 32) | _bits(blocks[:, 16:48], 1, 32) << 4
    return codes, *_k_scales(blocks[:, 4:16]), _half(blocks, 0), -_half(blocks, 2)


def _q6_k(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 scales (int8), d."""
    codes = _bits(blocks[:, :128], 4, 64) | _bits(blocks[:, 128:192], 2, 32) << 4
    return codes, np.ascontiguousarray(blocks[:, 192:208]).view(np.int8), _half(blocks, 208)


def _iq4_xs(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, 2 bytes of high bit pairs of scales, 4 of their low nibbles, 128 of nibbles; scales are 32 too large.
    """
    scales = _bits(blocks[:, 4:8], 4, 1) | _bits(blocks[:, 2:4], 2, 1) << 4
    return _bits(blocks[:, 8:], 4, 16), scales.view(np.int8) - np.int8(32), _half(blocks, 0)


def _quantised(name: str, unpack: Unpack) -> QuantKind:
    f = FORMATS[name]
    return QuantKind(name, f.block, f.block_bytes, partial(dequantized, f, unpack), unpack)


KINDS: dict[int, QuantKind] = {
    0: QuantKind("F32", 1, 4, _plain(np.float32)),
    1: QuantKind("F16", 1, 2, _plain(np.float16)),
    2: _quantised("Q4_0", _q4_0),
    3: _quantised("Q4_1", _q4_1),
    6: _quantised("Q5_0", _q5_0),
    7: _quantised("Q5_1", _q5_1),
    8: _quantised("Q8_0", _q8_0),
    10: _quantised("Q2_K", _q2_k),
    11: _quantised("Q3_K", _q3_k),
    12: _quantised("Q4_K", _q4_k),
    13: _quantised("Q5_K", _q5_k),
    14: _quantised("Q6_K", _q6_k),
    20: _quantised("IQ4_NL", _q4_0),
    23: _quantised("IQ4_XS", _iq4_xs),
    30: QuantKind("BF16", 1, 2, _bf16),
    39: _quantised("MXFP4", _mxfp4),
}

UNPACK = {kind.name: kind.unpack for kind in KINDS.values() if kind.unpack is not None}

# Names of the formats we know of but do not read, so that the error can name them.
UNREAD = {15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8",
          25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0"}
