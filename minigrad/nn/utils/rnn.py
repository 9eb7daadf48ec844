"""Sequences of unequal lengths, with PyTorch's names: padded ones, and those that recurrent layers know the ends of."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.tensor import Tensor


class PackedSequence(NamedTuple):
    """Sequences `padded` [T, N, ...] and their `lengths` in 1..T; what lies behind the ends does not count.

    Recurrent layers take and give these. They are kept in the order of the batch, padded: PyTorch's form without
    padding is `data`, with `batch_sizes`, how many sequences have each step.
    """

    padded: Tensor
    lengths: tuple[int, ...]

    def inside(self) -> Tensor:
        """True where a step is one of its sequence, [T, N]."""
        device = self.padded.device
        steps = Tensor.arange(self.padded.shape[0], device=device).unsqueeze(1)
        return steps < Tensor(np.array(self.lengths, np.int32), device=device)

    @property
    def batch_sizes(self) -> list[int]:
        return [sum(n > t for n in self.lengths) for t in range(max(self.lengths))]

    @property
    def data(self) -> Tensor:
        """The elements step by step, in each those of longer sequences first, [sum of lengths, ...]."""
        order = sorted(range(len(self.lengths)), key=lambda k: -self.lengths[k])
        rows = [t * len(order) + k for t in range(max(self.lengths)) for k in order if self.lengths[k] > t]
        return self.padded.flatten(0, 1)[Tensor(np.array(rows, np.int32), device=self.padded.device)]


def _lengths(name: str, lengths: Any, longest: Any, count: Any) -> tuple[int, ...]:
    given = lengths.tolist() if isinstance(lengths, (Tensor, np.ndarray)) else lengths
    if not isinstance(given, (tuple, list)) or len(given) != count:
        raise ShapeError(f"[{name}] expected a length for each of {count} sequences, got {lengths!r}")
    found = tuple([as_count(name, "lengths", n, 1) for n in given])
    if max(found) > longest:
        raise ShapeError(f"[{name}] expected lengths of at most {longest}, got {max(found)}")
    return found


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False,
                         enforce_sorted: bool = True) -> PackedSequence:
    """Sequences [T, N, ...], or [N, T, ...] with `batch_first`, that end after `lengths` steps: integers, or a Tensor
    of them, which is read (inside `jit` give a list). Raises ShapeError for other lengths than 1..T, and unless they
    decrease with `enforce_sorted`."""
    if as_tensor("pack_padded_sequence", input).ndim < 2:
        raise ShapeError(f"[pack_padded_sequence] expected [T, N, ...], got {list(input.shape)}")
    x = input.transpose(0, 1) if batch_first else input
    found = _lengths("pack_padded_sequence", lengths, *x.shape[:2])
    if enforce_sorted and list(found) != sorted(found, reverse=True):
        raise ShapeError(f"[pack_padded_sequence] expected lengths in decreasing order with enforce_sorted=True, got "
                         f"{list(found)}")
    return PackedSequence(x[:max(found)], found)


def pad_packed_sequence(sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
                        total_length: int | None = None) -> tuple[Tensor, Tensor]:
    """([T, N, ...], or [N, T, ...] with `batch_first`, with `padding_value` behind the ends; the lengths, int64).
    T is the largest length, or `total_length`. Raises ShapeError for one that is less."""
    x, longest = sequence.padded, max(sequence.lengths)
    mask = sequence.inside()
    x = mask.reshape(*mask.shape, *[1] * (x.ndim - 2)).where(x, padding_value)
    if total_length is not None:
        total = as_count("pad_packed_sequence", "total_length", total_length)
        if total < longest:
            raise ShapeError(f"[pad_packed_sequence] expected a total_length of at least {longest}, got {total}")
        x = x.pad([(0, total - longest), *[(0, 0)] * (x.ndim - 1)], value=padding_value)
    return x.transpose(0, 1) if batch_first else x, Tensor(np.array(sequence.lengths, np.int64))


def pack_sequence(sequences: Iterable[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """`pack_padded_sequence` of sequences [T, ...] of unequal lengths."""
    given = [as_tensor("pack_sequence", t) for t in sequences]
    return pack_padded_sequence(pad_sequence(given), [len(t) for t in given], enforce_sorted=enforce_sorted)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences [T, ...] of which `pad_sequence` made one Tensor."""
    x = as_tensor("unpad_sequence", padded_sequences)
    x = x if batch_first else x.transpose(0, 1)
    found = _lengths("unpad_sequence", lengths, x.shape[1], x.shape[0])
    return [x[k, :n] for k, n in enumerate(found)]


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences [T, ...] of which `pack_sequence` made one."""
    return [packed_sequences.padded[:n, k] for k, n in enumerate(packed_sequences.lengths)]


def pad_sequence(sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Sequences [T, ...] of unequal lengths in one Tensor [longest, N, ...], or [N, longest, ...] with `batch_first`,
    with `padding_value` behind the ends, or before the beginnings for `padding_side` 'left'."""
    given = [as_tensor("pad_sequence", t) for t in sequences]
    if not given or any(t.ndim < 1 or t.shape[1:] != given[0].shape[1:] for t in given):
        raise ShapeError(f"[pad_sequence] expected sequences [T, ...], equal but for T, got "
                         f"{[list(t.shape) for t in given]}")
    if padding_side not in ("left", "right"):
        raise ShapeError(f"[pad_sequence] expected padding_side 'left' or 'right', got {padding_side!r}")
    longest = max(len(t) for t in given)
    rest = [(0, 0)] * (given[0].ndim - 1)
    rooms = [(longest - len(t), 0) if padding_side == "left" else (0, longest - len(t)) for t in given]
    padded = [t.pad([room, *rest], value=padding_value) for t, room in zip(given, rooms, strict=True)]
    return padded[0].stack(*padded[1:], dim=0 if batch_first else 1)
