"""Weight matrices in blocks of 32 quantised numbers, computed with as they are.

A `QuantizedTensor` [N, K] keeps the bits of a GGUF tensor in another order: rows in panels of 16, interleaved, so that
sixteen rows are the lanes of a vector and a product streams each panel front to back. For panels p:

    words [p, G, 16]          Q8_0: 4 signed bytes of a row, columns 4g .. 4g+3 from the lowest byte up, G = K/4
                              Q4_0, Q4_1: 8 nibbles, columns 8g .. 8g+3 in the low halves of the bytes, the next four
                              in the high halves, G = K/8
    scales [p, K/32, 16]      d of each block of 32 columns, float16
    minimums [p, K/32, 16]    m of each block, float16; Q4_1 only

A product reads several panels side by side. Panels that would lie half a page or a multiple of it apart, where they
meet in few sets of the first-level cache, are a line further apart in memory: these are slices of what is stored.

`dequantize` is a lazy expression over these; it is evaluated inside the kernel that uses it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.dtype import int32
from minigrad.errors import ShapeError
from minigrad.expr import product
from minigrad.tensor import Tensor

KINDS = ("Q8_0", "Q4_0", "Q4_1")
BLOCK, PANEL = 32, 16
NEAR_SETS, LINE = 2048, 64
"""Bytes between panels a multiple of which is avoided, and by how many."""

FEW_ROWS = 16
"""Rows up to which integer products are faster than dequantised ones."""

_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix of `shape` [N, K], K a multiple of 32; kind 'Q8_0', 'Q4_0' or 'Q4_1'. Not a Tensor: see `linear`."""

    kind: str
    shape: tuple[int, int]
    words: Tensor
    scales: Tensor
    minimums: Tensor | None = None

    @classmethod
    def from_blocks(cls, kind: str, shape: tuple[int, ...], blocks: np.ndarray, device: str | None = None
                    ) -> QuantizedTensor:
        """From the bytes of a GGUF tensor, uint8 of N * K/32 blocks, row by row. Raises ShapeError."""
        if kind not in KINDS or len(shape) != 2 or 0 in shape or shape[1] % BLOCK:
            raise ShapeError(f"[quantized] expected a matrix with rows of a multiple of {BLOCK} weights in one of "
                             f"{', '.join(KINDS)}, got {list(shape)} in {kind}")
        rows, columns = shape
        size = _BLOCK_BYTES[kind]
        if blocks.size != rows * (columns // BLOCK) * size:
            raise ShapeError(f"[quantized] expected {rows * (columns // BLOCK) * size} bytes for {list(shape)} in "
                             f"{kind}, got {blocks.size}")
        blocks = blocks.reshape(rows, columns // BLOCK, size)
        heads = 1 if kind != "Q4_1" else 2
        halves = [_panels(np.ascontiguousarray(blocks[:, :, 2 * h:2 * h + 2]).view(np.float16)[:, :, 0])
                  for h in range(heads)]
        packed = blocks[:, :, 2 * heads:]
        words = _bytes_to_words(packed, np.int32) if kind == "Q8_0" else _nibbles_to_words(packed)
        return cls(kind, (rows, columns), *[_stored(part, device) for part in (_panels(words), *halves)])

    @classmethod
    def quantize(cls, weight: Tensor | np.ndarray, kind: str, device: str | None = None) -> QuantizedTensor:
        """The nearest quantised matrix, rounded as GGML's reference does."""
        values = weight if isinstance(weight, np.ndarray) else weight.float().numpy()
        return cls.from_blocks(kind, values.shape, quantize_blocks(np.asarray(values, np.float32), kind), device)

    def dequantize(self) -> Tensor:
        """The values, float32 [N, K], lazy."""
        minimums = None if self.minimums is None else self.minimums.transpose(1, 2)
        values = self.words.transpose(1, 2).dequantized(self.scales.transpose(1, 2), minimums, self.kind)
        rows = -(-self.shape[0] // PANEL) * PANEL
        return values.reshape(rows, self.shape[1])[:self.shape[0]]

    def rows(self, indices: Tensor) -> Tensor:
        """The values of some rows, float32 [*indices.shape, K]: an embedding."""
        def picked(t: Tensor) -> Tensor:
            return t.transpose(1, 2).reshape(-1, t.shape[1])[:self.shape[0]][indices]

        minimums = None if self.minimums is None else picked(self.minimums)
        return picked(self.words).dequantized(picked(self.scales), minimums, self.kind)

    def linear(self, x: Tensor, bias: Tensor | None = None, quantize_activations: bool = False) -> Tensor:
        """x [..., K] times the transposed matrix, plus `bias` [N] if given: [..., N].

        `quantize_activations` rounds x to signed bytes with a scale for each block of 32 and multiplies integers, which
        is faster and changes results by the rounding.
        """
        rows = product(x.shape[:-1])
        if not quantize_activations:
            return x.linear(self.dequantize().transpose(), bias)
        if not isinstance(rows, int) or rows > FEW_ROWS:  # the same numbers as floats
            numbers, scales = quantize_rows(x)
            return (numbers.float() * scales).reshape(x.shape).linear(self.dequantize().transpose(), bias)
        result = self._integer_products(*quantize_rows(x)).reshape(*x.shape[:-1], self.shape[0])
        return result if bias is None else result + bias

    def take_rows(self, order: np.ndarray) -> QuantizedTensor:
        """The matrix of these rows, in this order."""
        parts = [None if t is None else _panels(_rows(t.numpy())[:self.shape[0]][order])
                 for t in (self.words, self.scales, self.minimums)]
        device = self.words.device
        made: list[Any] = [None if part is None else _stored(part, device) for part in parts]
        return QuantizedTensor(self.kind, (len(order), self.shape[1]), *made)

    def nbytes(self) -> int:
        """Bytes of the weights: 34, 18 or 20 per block."""
        return self.shape[0] * self.shape[1] // BLOCK * _BLOCK_BYTES[self.kind]

    def _integer_products(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """x, as `quantize_rows` gives it, times the transposed matrix: [M, N].

        The weights' bytes are made unsigned; what was added, times the sum of x, is subtracted again.
        """
        panels, blocks, _ = self.scales.shape
        factors = self.scales.transpose(1, 2).float().reshape(1, panels, PANEL, blocks, 1)
        w = self.words.transpose(1, 2)
        if self.kind == "Q8_0":
            w, offset = (w ^ -0x7F7F7F80).reshape(1, panels, PANEL, blocks, 8), -128.0
        else:
            halves = Tensor.arange(2, dtype=int32, device=w.device) * 4
            w = w.cast(int32).reshape(panels, PANEL, blocks, 4, 1) >> halves & 0x0F0F0F0F
            w, offset = w.reshape(1, panels, PANEL, blocks, 8), -8.0
        fours = numbers.reshape(-1, 1, 1, blocks, 8, 4)
        places = Tensor.arange(0, 32, 8, dtype=int32, device=w.device)
        x, sums = ((fours & 255) << places).sum(-1, dtype=int32), fours.sum(-1, dtype=int32).float()
        total = w.dot_bytes(x).float() * factors
        least = factors * offset if self.minimums is None else (
            self.minimums.transpose(1, 2).float().reshape(1, panels, PANEL, blocks, 1))
        total = (total + least * sums) * scales.reshape(-1, 1, 1, blocks, 1)
        return total.sum((-2, -1)).reshape(-1, panels * PANEL)[:, :self.shape[0]]


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> integers -127 to 127, int32 [M, K/32, 32], and scales [M, K/32, 1] that they are multiples of.

    The largest magnitude of a block is 127 times its scale; numbers are rounded to nearest even.
    """
    blocks = x.float().reshape(-1, x.shape[-1] // BLOCK, BLOCK)
    scales = blocks.abs().max(-1, keepdim=True) * (1 / 127)
    return (blocks * (scales == 0).where(0.0, 1 / scales)).round().cast(int32), scales


def quantize_blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """float32 [N, K] -> the bytes of its blocks, uint8 [N, K/32, block bytes]. Raises ShapeError."""
    if kind not in KINDS or values.ndim != 2 or 0 in values.shape or values.shape[1] % BLOCK:
        raise ShapeError(f"[quantize] expected a matrix with rows of a multiple of {BLOCK} numbers and one of "
                         f"{', '.join(KINDS)}, got {list(values.shape)} and {kind}")
    with np.errstate(all="ignore"):  # of NaN and infinities nothing is asked
        return _quantized(values.reshape(values.shape[0], -1, BLOCK), kind)


def _quantized(blocks: np.ndarray, kind: str) -> np.ndarray:
    """float32 [N, K/32, 32] -> the blocks' bytes."""
    if kind == "Q8_0":
        scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
        quants = np.rint(blocks * _inverse(scale)).astype(np.int8).view(np.uint8)
        return np.concatenate([_half_bytes(scale), quants], axis=-1)
    if kind == "Q4_0":
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
        scale = largest / np.float32(-8)
        quants = np.clip(blocks * _inverse(scale) + np.float32(8.5), 0, 15).astype(np.uint8)
        return np.concatenate([_half_bytes(scale), _pair_nibbles(quants)], axis=-1)
    least = blocks.min(-1, keepdims=True)
    scale = (blocks.max(-1, keepdims=True) - least) / np.float32(15)
    quants = np.clip((blocks - least) * _inverse(scale) + np.float32(0.5), 0, 15).astype(np.uint8)
    return np.concatenate([_half_bytes(scale), _half_bytes(least), _pair_nibbles(quants)], axis=-1)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, 0 where it is 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _half_bytes(values: np.ndarray) -> np.ndarray:
    """float32 [..., 1] -> the bytes of its float16, uint8 [..., 2]."""
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)


def _pair_nibbles(quants: np.ndarray) -> np.ndarray:
    """[..., 32] -> [..., 16]: number j in the low half of byte j, number 16 + j in the high half."""
    return quants[..., :16] | quants[..., 16:] << 4


def _bytes_to_words(packed: np.ndarray, dtype: type) -> np.ndarray:
    """uint8 [N, B, n] -> words [N, B * n/4]."""
    return np.ascontiguousarray(packed).reshape(packed.shape[0], -1).view(dtype)


def _nibbles_to_words(packed: np.ndarray) -> np.ndarray:
    """GGML's 16 bytes of nibbles per block -> words of 8 columns, as at the top of this file."""
    numbers = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1, 2, 4)
    return _bytes_to_words(numbers[:, :, 0] | numbers[:, :, 1] << 4, np.uint32)


def _panels(rows: np.ndarray) -> np.ndarray:
    """[N, G] -> [panels, G, 16]; rows of zeros fill the last panel."""
    count = -(-rows.shape[0] // PANEL) * PANEL
    if count != rows.shape[0]:
        rows = np.concatenate([rows, np.zeros((count - rows.shape[0], rows.shape[1]), rows.dtype)])
    return np.ascontiguousarray(rows.reshape(-1, PANEL, rows.shape[1]).transpose(0, 2, 1))


def _stored(panels: np.ndarray, device: str | None) -> Tensor:
    """[panels, G, 16] on a device, a line between panels where they would meet in few sets of a cache."""
    count, length, _ = panels.shape
    step = PANEL * panels.itemsize
    if count < 2 or length * step % NEAR_SETS:
        return Tensor(panels, device=device)
    wider = np.zeros((count, length + -(-LINE // step), PANEL), panels.dtype)
    wider[:, :length] = panels
    return Tensor(wider, device=device)[:, :length]


def _rows(panels: np.ndarray) -> np.ndarray:
    """The inverse of `_panels`, with the rows that were added."""
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])
