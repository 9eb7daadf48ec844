"""`Node`: what an operator of the table knows of the ATen node that it stands for, beside its arguments."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minigrad import Tensor, dtypes
from minigrad.dtype import DType
from minigrad.errors import MinigradError

DEVICE = "CPU"
"""The device that computes everything: torch's memory is the host's."""

DTYPES: dict[torch.dtype, DType] = {
    torch.bool: dtypes.bool_, torch.uint8: dtypes.uint8, torch.int8: dtypes.int8, torch.int16: dtypes.int16,
    torch.int32: dtypes.int32, torch.int64: dtypes.int64, torch.uint16: dtypes.uint16, torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64, torch.float16: dtypes.float16, torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32, torch.float64: dtypes.float64}
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


class Unsupported(MinigradError):
    """Raised for what an operator of the table cannot do, though it has the name."""


class Node:
    """The node that an operator runs for: `dtypes` are those of its results, as ATen's rules of promotion have them."""

    __slots__ = ("dtypes",)

    def __init__(self, dtypes: list[DType | None]):
        self.dtypes = dtypes

    @property
    def dtype(self) -> DType:
        """The type of the first result."""
        found = self.dtypes[0]
        if found is None:
            raise Unsupported("a result that is no tensor")
        return found

    def typed(self, value: Any) -> Any:
        """An operand in the type of the result; a Python number as it is."""
        return value.cast(self.dtype) if isinstance(value, Tensor) else value

    def tensor(self, value: Any) -> Tensor:
        """A Tensor in the type of the result, of a Tensor or a number."""
        return value.cast(self.dtype) if isinstance(value, Tensor) else self.full((), value)

    def full(self, shape: Any, value: Any) -> Tensor:
        """A number everywhere, in the type of the result."""
        return Tensor.full(tuple(shape), value, dtype=self.dtype, device=DEVICE)


Operator = Callable[..., Any]
"""A function of a Node and of the arguments of an ATen operator, Tensors for torch's tensors, that gives its results: a
Tensor, or a list or tuple of them. The runner casts each to the type that ATen says."""


def plain(function: Callable[..., Any]) -> Operator:
    """The operator that is `function` of its arguments alone."""
    return lambda n, *args, **kwargs: function(*args, **kwargs)
