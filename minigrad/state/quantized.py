"""Weight matrices in blocks of quantised numbers, computed with as they are.

A `QuantizedTensor` [N, K] keeps the bits of a GGUF tensor in another order: rows in panels of 16, interleaved, so that
sixteen rows are the lanes of a vector and a product streams each panel front to back. Of each part of its format's
record (`ops/block_formats.py`: words, scales, ...), as many as a row has, G:

    part [panels, G, 16]

A product reads several panels side by side. Panels that would lie half a page or a multiple of it apart, where they
meet in few sets of the first-level cache, are a line further apart in memory: parts are slices of what is `stored`.

`dequantize` is a lazy expression over these; it is evaluated inside the kernel that uses it.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minigrad.dtype import DType, int32
from minigrad.errors import ShapeError
from minigrad.ops.block_formats import BLOCK, FORMATS, GROUPS, SUPER
from minigrad.runtime.host import allocate_aligned
from minigrad.state.gguf_quants import UNPACK
from minigrad.tensor import Tensor

KINDS = tuple(FORMATS)
NEAREST = ("Q8_0", "Q4_0", "Q4_1")
"""Formats that `quantize` can make."""

PANEL = 16
NEAR_SETS, LINE = 2048, 64
"""Bytes between panels a multiple of which is avoided, and by how many."""

PIECE = 1 << 19
"""Weights that are brought into our order at a time: temporaries stay small beside the result."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix of `shape` [N, K], or several [E, N, K], in a format of KINDS. Not a Tensor: see `linear`. `stored` are
    its parts with all that lies between their panels."""

    kind: str
    shape: tuple[int, ...]
    stored: tuple[Tensor, ...]

    @classmethod
    def from_blocks(cls, kind: str, shape: tuple[int, ...], blocks: np.ndarray, device: str | None = None
                    ) -> QuantizedTensor:
        """From the bytes of a GGUF tensor, uint8 of all blocks, row by row. Raises ShapeError."""
        f = FORMATS.get(kind)
        if f is None or len(shape) not in (2, 3) or 0 in shape or shape[-1] % f.block:
            raise ShapeError(f"[quantized] expected a matrix, or several, with rows of a multiple of "
                             f"{BLOCK if f is None else f.block} weights in one of {', '.join(KINDS)}, got "
                             f"{list(shape)} in {kind}")
        size = prod(shape) // f.block * f.block_bytes
        if blocks.size != size:
            raise ShapeError(f"[quantized] expected {size} bytes for {list(shape)} in {kind}, got {blocks.size}")
        *many, rows, columns = shape
        matrices, panels = prod(many), -(-rows // PANEL)
        parts = [_Part(matrices * panels, length, dtype)
                 for length, (_, dtype, _) in zip(lengths(kind, columns), f.parts, strict=True)]
        blocks = blocks.reshape(matrices, rows, -1)
        step = max(1, PIECE // columns // PANEL) * PANEL
        for matrix in range(matrices):
            for start in range(0, rows, step):
                piece = blocks[matrix, start:start + step]
                codes, *others = UNPACK[kind](piece.reshape(-1, f.block_bytes))
                words = pack_codes(codes.reshape(len(piece), -1), f.planes)
                for part, found in zip(parts, (words, *others), strict=True):
                    part.put(matrix * panels + start // PANEL, found.reshape(len(piece), -1))
        return cls(kind, tuple(shape), tuple([part.tensor(device) for part in parts]))

    @classmethod
    def quantize(cls, weight: Tensor | np.ndarray, kind: str, device: str | None = None) -> QuantizedTensor:
        """The nearest quantised matrix, or several, rounded as GGML's reference does; kind is one of NEAREST."""
        values = np.asarray(weight if isinstance(weight, np.ndarray) else weight.float().numpy(), np.float32)
        rows = values.reshape(-1, values.shape[-1]) if values.ndim == 3 and values.size else values
        return cls.from_blocks(kind, values.shape, quantize_blocks(rows, kind), device)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The parts of the format's record, [panels, G, 16] each, lazy."""
        return tuple([t if t.shape[1] == length else t[:, :length]
                      for t, length in zip(self.stored, lengths(self.kind, self.shape[-1]), strict=True)])

    @property
    def words(self) -> Tensor:
        """Codes in words, [panels, K/32 * bits, 16]."""
        return self.parts[0]

    @property
    def scales(self) -> Tensor:
        """Scales of 32 or 16 columns each, [panels, K/32 or K/16, 16]."""
        return self.parts[1]

    def dequantize(self) -> Tensor:
        """The values, float32 of `shape`, lazy."""
        *many, rows, columns = self.shape
        values = _dequantized(self.kind, [t.transpose(1, 2) for t in self.parts])
        return values.reshape(*many, -(-rows // PANEL) * PANEL, columns)[..., :rows, :]

    def rows(self, indices: Tensor) -> Tensor:
        """The values of some rows of a matrix, float32 [*indices.shape, K]: an embedding."""
        return _dequantized(self.kind, [
            t.transpose(1, 2).reshape(-1, t.shape[1])[:self.shape[-2]][indices] for t in self.parts])

    def pick(self, indices: Tensor) -> QuantizedTensor:
        """Some [n, N, K] of several matrices, lazy: the weights of experts."""
        count, panels = self.shape[0], -(-self.shape[1] // PANEL)
        parts = [t.reshape(count, panels, -1, PANEL)[indices].reshape(-1, t.shape[1], PANEL) for t in self.parts]
        shape: tuple[Any, ...] = (*indices.shape, *self.shape[1:])  # how many may be symbolic
        return QuantizedTensor(self.kind, shape, tuple(parts))

    def linear(self, x: Tensor, bias: Tensor | None = None, quantize_activations: bool = False) -> Tensor:
        """x [..., K] times the transposed matrix, plus `bias` [N] if given: [..., N]. Of several matrices, x [E, M, K]
        times each: [E, M, N].

        `quantize_activations` rounds x to signed bytes with a scale for each block of 32 and multiplies integers, which
        is faster and changes results by the rounding.
        """
        if len(self.shape) == 3:
            products = x.matmul(self.dequantize().transpose(1, 2))
            return products if bias is None else products + bias
        if not quantize_activations:
            return x.linear(self.dequantize().transpose(), bias)
        result = self._integer_products(x).reshape(*x.shape[:-1], self.shape[0])
        return result if bias is None else result + bias

    def take_rows(self, order: np.ndarray) -> QuantizedTensor:
        """The matrix of these rows, in this order."""
        made = []
        for t in self.parts:
            rows, device = _rows(t.numpy())[:self.shape[0]][order], t.device
            part = _Part(-(-len(order) // PANEL), rows.shape[1], t.dtype)
            part.put(0, rows)
            made.append(part.tensor(device))
        return QuantizedTensor(self.kind, (len(order), self.shape[1]), tuple(made))

    def nbytes(self) -> int:
        """Bytes of the weights in a file."""
        f = FORMATS[self.kind]
        return prod(self.shape) // f.block * f.block_bytes

    def _integer_products(self, x: Tensor) -> Tensor:
        """x [..., K], rounded, times the transposed matrix: [M, N]."""
        numbers, scales = quantize_rows(x)
        blocks, halves = numbers.shape[1], BLOCK // FORMATS[self.kind].columns
        places = Tensor.arange(0, 32, 8, dtype=int32, device=numbers.device)
        words = ((numbers.reshape(-1, blocks, GROUPS, 4) & 255) << places).sum(-1, dtype=int32)
        sums = numbers.reshape(-1, blocks, halves, BLOCK // halves).sum(-1, dtype=int32).float()
        parts = [t.transpose(1, 2) for t in self.parts]
        means = (sums * scales * (halves / GROUPS)).contiguous()
        found = words.contiguous().byte_products(scales, means, self.kind, *parts)
        return found.reshape(found.shape[0], self.words.shape[0] * PANEL)[:, :self.shape[0]]


def _dequantized(kind: str, parts: list[Tensor]) -> Tensor:
    return parts[0].dequantized(kind, *parts[1:])


class _Part:
    """One part of a format in panels [count, length, 16], zeros where no rows are."""

    def __init__(self, count: int, length: int, dtype: DType):
        step = PANEL * dtype.np.itemsize
        apart = count > 1 and length * step % NEAR_SETS == 0
        self.dtype, self.length = dtype, length
        shape = count, length + apart * -(-LINE // step), PANEL
        self.panels = allocate_aligned(prod(shape) * dtype.np.itemsize).view(dtype.np).reshape(shape)
        self.panels[:, length:] = 0

    def put(self, panel: int, rows: np.ndarray) -> None:
        """Rows [n, length] from the first one of a panel on."""
        rows = rows.view(self.dtype.np)
        whole = len(rows) // PANEL
        if whole:
            grouped = rows[:whole * PANEL].reshape(whole, PANEL, -1)
            self.panels[panel:panel + whole, :self.length] = grouped.transpose(0, 2, 1)
        if whole * PANEL < len(rows):
            self.panels[panel + whole, :self.length, :len(rows) - whole * PANEL] = rows[whole * PANEL:].T
            self.panels[panel + whole, :self.length, len(rows) - whole * PANEL:] = 0

    def tensor(self, device: str | None) -> Tensor:
        """The panels on a device."""
        return Tensor.from_blob(self.panels, dtype=self.dtype, device=device)


def lengths(kind: str, columns: int) -> list[int]:
    """For each part of a format, how many of it a row of so many columns has."""
    return [columns * count // (SUPER * BLOCK) for _, _, count in FORMATS[kind].parts]


def pack_codes(codes: np.ndarray, planes: tuple[int, ...]) -> np.ndarray:
    """Codes uint8 [N, K] as planes of so many bits: the bytes of words, uint8 [N, K/32 * bits * 4]."""
    groups = codes.reshape(len(codes), -1, GROUPS, 4)
    found, below = [], 0
    for width in planes:
        apart = groups.reshape(*groups.shape[:2], width, GROUPS // width, 4)
        packed = np.zeros_like(apart[:, :, :, 0])
        for k in range(GROUPS // width):
            part = apart[:, :, :, k] >> below & ((1 << width) - 1) if width < GROUPS else apart[:, :, :, k]
            packed |= part << (width * k)
        found.append(packed)
        below += width
    return np.ascontiguousarray(np.concatenate(found, axis=2) if len(found) > 1 else found[0]).reshape(len(codes), -1)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> integers -127 to 127, int32 [M, K/32, 32], and scales [M, K/32, 1] that they are multiples of.

    The largest magnitude of a block is 127 times its scale; numbers are rounded to nearest even.
    """
    blocks = x.float().reshape(-1, x.shape[-1] // BLOCK, BLOCK)
    scales = blocks.abs().max(-1, keepdim=True) * (1 / 127)
    return (blocks * (scales == 0).where(0.0, 1 / scales)).round().cast(int32), scales


def quantize_blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """float32 [N, K] -> the bytes of its blocks, uint8 [N, K/32, block bytes]. Raises ShapeError."""
    if kind not in NEAREST or values.ndim != 2 or 0 in values.shape or values.shape[1] % BLOCK:
        raise ShapeError(f"[quantize] expected a matrix with rows of a multiple of {BLOCK} numbers and one of "
                         f"{', '.join(NEAREST)}, got {list(values.shape)} and {kind}")
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


def _rows(panels: np.ndarray) -> np.ndarray:
    """The rows of panels, with those that were added."""
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])
