"""The element formats of GGUF files: blocks of quantised weights and their float32 values.

Every `dequantize` takes uint8 blocks [n, block_bytes] and returns float32 [n, block]. Bits are taken apart with
whole-array operations; `d` is a block's scale, `m` its minimum, both float16.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minigrad.dtype import bfloat16_to_float32


@dataclass(frozen=True, slots=True)
class QuantKind:
    """One element format: `block` weights are stored together in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at:at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [n, k] -> [n, 2k]: all low halves, then all high halves, as GGML orders the weights of a block."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """The 32 bits at byte `at` of every block as 0 or 16, uint8 [n, 32]: bit j belongs to weight j."""
    return np.unpackbits(blocks[:, at:at + 4], axis=1, bitorder="little") << 4


def _plain(dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    def dequantize(blocks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(blocks).view(dtype).astype(np.float32)
    return dequantize


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return bfloat16_to_float32(np.ascontiguousarray(blocks).view(np.uint16))


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    """d * (q - 8): d, then 16 bytes of nibbles."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - 8).astype(np.float32)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """d * q + m: d, m, then 16 bytes of nibbles."""
    out = _nibbles(blocks[:, 4:]).astype(np.float32)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)
    return out


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    """d * (q - 16): d, 4 bytes of fifth bits, 16 bytes of nibbles."""
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (q.astype(np.int8) - 16).astype(np.float32)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    """d * q + m: d, m, 4 bytes of fifth bits, 16 bytes of nibbles."""
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """d * q: d, then 32 signed bytes."""
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes [n, 12] -> eight 6-bit scales and eight 6-bit minimums, float32 [n, 8, 1] each.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their low nibble in bytes 8-11
    (scale below, minimum above) and their top two bits in the two high bits of bytes 0-7.
    """
    first, second, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (low & 15) | (first >> 6 << 4)], axis=1)
    minimums = np.concatenate([second & 63, (low >> 4) | (second >> 6 << 4)], axis=1)
    return scales[..., None].astype(np.float32), minimums[..., None].astype(np.float32)


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    """128 bytes [n, 128] -> [n, 8, 32]: each 32 bytes hold one group of 32 in the low halves and the next in the high.
    """
    quads = packed.reshape(-1, 4, 32)
    return np.stack([quads & 15, quads >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """Eight groups of 32: d * scale * q - m * minimum; d, m, 12 bytes of scales, 128 bytes of nibbles."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    d, m = _half(blocks, 0)[..., None], _half(blocks, 2)[..., None]
    return ((d * scales) * _k_nibbles(blocks[:, 16:]).astype(np.float32) - m * minimums).reshape(-1, 256)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """As Q4_K with 32 bytes of fifth bits before the nibbles: bit g of byte j belongs to weight j of group g."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    d, m = _half(blocks, 0)[..., None], _half(blocks, 2)[..., None]
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    q = (_k_nibbles(blocks[:, 48:]) | high).astype(np.float32)
    return ((d * scales) * q - m * minimums).reshape(-1, 256)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16: d * scale * (q - 32); 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, d.

    Each half of 128 weights takes 64 low bytes and 32 high bytes: weight 32*g + j has its nibble in low byte
    32*(g % 2) + j (upper half for g >= 2) and its two bits at position 2*g of high byte j.
    """
    low = blocks[:, :128].reshape(-1, 2, 64)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    q = (nibbles | high << 4).astype(np.int8) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    values = q.reshape(-1, 16, 16).astype(np.float32)
    return (_half(blocks, 208)[..., None] * scales[..., None] * values).reshape(-1, 256)


KINDS: dict[int, QuantKind] = {
    0: QuantKind("F32", 1, 4, _plain(np.float32)),
    1: QuantKind("F16", 1, 2, _plain(np.float16)),
    2: QuantKind("Q4_0", 32, 18, _q4_0),
    3: QuantKind("Q4_1", 32, 20, _q4_1),
    6: QuantKind("Q5_0", 32, 22, _q5_0),
    7: QuantKind("Q5_1", 32, 24, _q5_1),
    8: QuantKind("Q8_0", 32, 34, _q8_0),
    12: QuantKind("Q4_K", 256, 144, _q4_k),
    13: QuantKind("Q5_K", 256, 176, _q5_k),
    14: QuantKind("Q6_K", 256, 210, _q6_k),
    30: QuantKind("BF16", 1, 2, _bf16),
}

# Names of the formats we know of but do not read, so that the error can name them.
UNREAD = {10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
          21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
          34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
