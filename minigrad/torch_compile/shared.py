"""Memory that torch and minigrad share: tensors of one as those of the other, without a copy."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch

from minigrad import Tensor, dtypes
from minigrad.torch_compile.node import DEVICE, DTYPES, TORCH_DTYPES


class Shared(NamedTuple):
    """A Tensor over the memory of a torch tensor, whose axes are those of torch's in the `order` of their strides (None
    where that is their own order)."""

    tensor: Tensor
    order: tuple[int, ...] | None


class _Known(NamedTuple):
    """A Tensor that was made of one torch tensor while it was at `address`, of this shape and type."""

    of: ref[Any]
    address: int
    shape: Any
    dtype: Any
    shared: Shared

    def fits(self, t: Any) -> bool:
        """True for the tensor that this was made of, while it is as it was."""
        return self.address == t.data_ptr() and self.dtype is t.dtype and self.shape == t.shape and \
            (self.shared.order is None) is t.is_contiguous() and self.of() is t


_known: dict[int, _Known] = {}
"""By id of the torch tensor; an entry goes when the tensor does."""


def to_minigrad(t: Any) -> Shared:
    """A Tensor over the memory of a torch tensor; over a copy where its elements do not lie densely."""
    key = id(t)
    known = _known.get(key)
    if known is not None and known.fits(t):
        return known.shared
    dense, order = _dense(t)
    shared = Shared(_over(dense), order)
    if dense.data_ptr() == t.data_ptr():
        _known[key] = _Known(ref(t, lambda _: _known.pop(key, None)), t.data_ptr(), t.shape, t.dtype, shared)
    return shared


def _dense(t: Any) -> tuple[Any, tuple[int, ...] | None]:
    """(a contiguous tensor with the elements of t, the order in which it has the axes of t)."""
    if t.is_contiguous():
        return t, None
    order = order_of(t.stride())
    moved = t.permute(order)
    return (moved, order) if moved.is_contiguous() else (t.contiguous(), None)


def order_of(strides: Sequence[int]) -> tuple[int, ...]:
    """The axes by falling stride."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def inverse_of(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes one."""
    return order_of([-axis for axis in order])


def _over(t: Any) -> Tensor:
    kind = DTYPES[t.dtype]
    if kind is dtypes.bfloat16:
        array = t.detach().view(torch.int16).numpy(force=True).view(np.uint16)
    else:
        array = t.numpy(force=True)
    return Tensor.from_blob(array, kind, DEVICE)


class _Kept(np.ndarray):
    """An array over a buffer of minigrad's, which it keeps from being given away."""

    node: Any


def to_torch(tensor: Tensor) -> Any:
    """A torch tensor over the memory of a realized Tensor, which is kept for as long as torch has it; a copy where
    that memory is torch's own already."""
    node = tensor.lazydata
    buffer, kind = node.storage, node.dtype
    if not buffer.nbytes:
        return torch.empty(node.shape, dtype=TORCH_DTYPES[kind])
    flat = buffer.handle[buffer.offset:buffer.offset + buffer.nbytes]
    array = flat.view(np.int16 if kind is dtypes.bfloat16 else kind.np).reshape(node.shape).view(_Kept)
    array.node = node
    found = torch.from_numpy(array)
    found = found.view(torch.bfloat16) if kind is dtypes.bfloat16 else found
    return found if buffer.base is None else found.clone()
