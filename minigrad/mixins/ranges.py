"""Index tensors out of range: refused where that is known without reading values, and always under
`config(check_indices=True)`.

What an operation accepts is what PyTorch's accepts. `x[index]`, `x[index] = y`, `take`, `put`, `index_put` and
`index_fill` count negative indices from the end, `take_along_dim` takes them modulo the axis, and all others want
0..n - 1. Lists, arrays and constants are looked at when the operation is called. Other tensors are read only under
`check_indices` (`MINIGRAD_CHECK_INDICES=1`), where functions under `jit` run eagerly, because a capture reads nothing.
Without it an index out of range is taken for the nearest one in range: no memory is touched that is not the tensor's.
In `one_hot` and in the classes of `cross_entropy` it is no class at all. Weights that PyTorch refuses, those of
`multinomial` and `cov`, are read and refused there too.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.engine.observe import dry_runs
from minigrad.errors import CaptureError, OutOfRangeError, ShapeError
from minigrad.expr import Index, bounds, evaluate
from minigrad.ops import build as B


def check_indices(name: str, index: Any, size: Index, *, given: Any = None, negative: bool = False,
                  ignored: int | None = None) -> None:
    """Raises OutOfRangeError unless the elements of an integer tensor are in 0..size - 1, or -size..size - 1 where
    `negative` ones are allowed. Those equal to `ignored` do not count. `given`: what the tensor was made from.

    Values are read under `check_indices` alone; those of `given`, where it is a list or an array, and of constants are
    at hand."""
    if given is not None and isinstance(given, (int, list, tuple, np.ndarray, np.integer)):
        values = np.asarray(given)
    elif (constant := B.constant_of(index.node)) is not None and 0 not in index.shape:
        values = np.asarray(constant)
    elif current().check_indices and not dry_runs:
        values = _read(name, index)
    else:
        return
    n = _length(size)
    least = -n if negative else 0
    outside = (values < least) | (values >= n)
    if ignored is not None:
        outside &= values != ignored
    if outside.any():
        place = [int(i) for i in np.argwhere(outside)[0]]
        expected = f"indices in {least}..{n - 1}" if n else "no index"
        raise OutOfRangeError(f"[{name}] expected {expected} for an axis of {n}, got {values[tuple(place)].item()}"
                              f"{f' at {place}' if place else ''}")


def check_weights(name: str, weights: Any, drawn: bool = False) -> None:
    """Under `check_indices`, raises ShapeError unless weights are 0 or more; and, where indices are `drawn` by those of
    each row, finite and not all 0."""
    if not current().check_indices or dry_runs:
        return
    values = _read(name, weights)
    if (values < 0).any() or (drawn and not (np.isfinite(values).all() and (values.sum(-1) > 0).all())):
        expected = "finite weights of 0 or more, some of each row above 0" if drawn else "weights of 0 or more"
        raise ShapeError(f"[{name}] expected {expected}, got {values.tolist()}"[:300])


def _read(name: str, index: Any) -> np.ndarray:
    try:
        return index.numpy()
    except CaptureError as error:
        raise CaptureError(f"[{name}] expected check_indices to be set where the function under jit is called, which "
                           "then runs eagerly, got it set inside: a capture reads no indices") from error


def _length(size: Index) -> int:
    """The length that an axis has at present, or the largest that it can have."""
    try:
        return evaluate(size, {})
    except ShapeError:
        return bounds(size)[1]
