"""Samples to batches, by PyTorch's rules, and batches as bytes in shared memory."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.errors import ShapeError
from minigrad.tensor import Tensor

_ALIGNED = 64


def default_collate(samples: Sequence[Any]) -> Any:
    """Stacks samples: arrays and Tensors of one shape to Tensors [N, ...], numbers to Tensors [N] of float64, if one of
    them is a float, or int64, tuples and dictionaries part by part; texts stay a list. Raises ShapeError where samples
    differ."""
    return default_convert(collate_arrays(samples))


def default_convert(data: Any) -> Any:
    """The numpy arrays and numbers inside lists, tuples and dictionaries as Tensors; tuples become lists, as in
    PyTorch."""
    return uploaded(as_lists(data), None)


def as_lists(data: Any) -> Any:
    """`data` with lists in the place of tuples without names."""
    if isinstance(data, Mapping):
        return {key: as_lists(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        parts = [as_lists(value) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else parts
    return data


def collate_arrays(samples: Sequence[Any]) -> Any:
    """As `default_collate`, to numpy arrays."""
    first = samples[0]
    if isinstance(first, Tensor | np.ndarray | np.generic | bool | int | float):
        kinds = set(map(type, samples))
        if kinds <= {int, float} and (float in kinds or all(-2**63 <= s < 2**63 for s in samples)):
            return np.array(samples, np.float64 if float in kinds else np.int64)
        return _stacked([_as_array(s) for s in samples])
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, Mapping):
        return {key: collate_arrays([s[key] for s in samples]) for key in first}
    if isinstance(first, Sequence):
        if any(len(s) != len(first) for s in samples):
            raise ShapeError("[default_collate] expected samples of equally many parts, got "
                             f"{sorted({len(s) for s in samples})}")
        parts = [collate_arrays(part) for part in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    raise ShapeError("[default_collate] expected arrays, Tensors, numbers, texts, or tuples and dictionaries of them, "
                     f"got a {type(first).__name__}; collate_fn may take others")


def _as_array(sample: Any) -> np.ndarray:
    """An array, a Tensor or a number as an array: of numbers int64, float64 or bool."""
    if isinstance(sample, int) and not -2**63 <= sample < 2**63:
        raise ShapeError(f"[default_collate] expected integers that int64 holds, got {sample}")
    if isinstance(sample, bool | int | float | np.ndarray | np.generic):
        return np.asarray(sample)
    if isinstance(sample, Tensor):
        return sample.numpy()
    raise ShapeError(f"[default_collate] expected numbers, arrays and Tensors alone, got a {type(sample).__name__} too")


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ShapeError("[default_collate] expected samples of one shape, got "
                         + " and ".join(str(list(s)) for s in sorted(shapes)[:3])
                         + "; give images a size, or a collate_fn that pads")
    return np.stack(arrays)


def mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    """`data` with each leaf changed; lists, tuples and dictionaries are of the same types."""
    if isinstance(data, Mapping):
        return {key: mapped(value, change) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*[mapped(value, change) for value in data])
    if isinstance(data, list | tuple):
        return type(data)([mapped(value, change) for value in data])
    return change(data)


@dataclass(frozen=True, slots=True)
class Packed:
    """The place of an array in shared memory; `kind` is the dtype of the Tensor that it becomes, None for an array."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: str | None


def pack(batch: Any, as_tensors: bool) -> tuple[Any, list[tuple[int, np.ndarray]], int]:
    """(the batch with a `Packed` in the place of each array and Tensor, (offset, array) of them, bytes in all).
    `as_tensors`: arrays become Tensors, too."""
    arrays: list[tuple[int, np.ndarray]] = []
    end = 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if isinstance(leaf, np.generic) and as_tensors:
            leaf = np.asarray(leaf)
        if not isinstance(leaf, Tensor | np.ndarray) or leaf.dtype == object:
            return leaf
        array = np.asarray(leaf.numpy() if isinstance(leaf, Tensor) else leaf, order="C")
        kind = leaf.dtype.name if isinstance(leaf, Tensor) else array.dtype.name if as_tensors else None
        start, end = end, end + -(-array.nbytes // _ALIGNED) * _ALIGNED
        arrays.append((start, array))
        return Packed(start, array.shape, array.dtype, kind)

    return mapped(batch, place), arrays, end


def unpack(batch: Any, memory: Any, device: str | None) -> Any:
    """The batch whose arrays lie in `memory`, as copies: Tensors on `device` and arrays."""
    def take(leaf: Any) -> Any:
        if not isinstance(leaf, Packed):
            return leaf
        count = int(np.prod(leaf.shape, dtype=np.int64))
        view = np.frombuffer(memory, leaf.dtype, count, leaf.offset) if count else np.empty(0, leaf.dtype)
        array = view.reshape(leaf.shape)
        return array.copy() if leaf.kind is None else Tensor(array, dtype=leaf.kind, device=device)

    return mapped(batch, take)


def uploaded(batch: Any, device: str | None) -> Any:
    """The numpy arrays of a batch as Tensors on `device`."""
    return mapped(batch, lambda leaf: Tensor(np.asarray(leaf), device=device)
                  if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != object else leaf)
