"""Protocols of Python and numpy: numbers, iteration, formats, arrays, copies, pickles."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, ClassVar, Self

import numpy as np

from minigrad.config import current
from minigrad.dtype import bfloat16, bool_, float32, int32, uint16
from minigrad.engine.observe import host_reads
from minigrad.engine.sharing import lent, on_host
from minigrad.errors import DTypeError, ShapeError, SharingError
from minigrad.expr import Expr, Index, evaluate
from minigrad.mixins.base import Base, as_axis
from minigrad.mixins.memory import settled
from minigrad.mixins.printing import text_of
from minigrad.ops import build as B
from minigrad.runtime.dlpack import CPU, OPENCL, exported
from minigrad.runtime.registry import canonical


class ProtocolMixin(Base):
    """Methods that the language calls, written with `numpy` and `item`."""

    __slots__ = ()

    __array_priority__: ClassVar[int] = 1000  # `array * tensor` is a tensor, so that gradients and captures see it

    # Sizes

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one dim of it."""
        return self.shape if dim is None else self.shape[as_axis("size", dim, self.ndim)]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def nbytes(self) -> Index:
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_float

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory."""
        return self.dtype.itemsize

    def is_signed(self) -> bool:
        """True where its type has negative numbers."""
        return self.dtype.kind in "if"

    def is_complex(self) -> bool:
        """False: all tensors are real."""
        return False

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True: values are row-major in memory, in whatever order they were computed."""
        return True

    def stride(self, dim: int | None = None) -> Any:
        """By how many elements of memory the next one along each axis is away, in row-major order; of one axis."""
        steps = tuple([B.numel(self.shape[a + 1:]) for a in range(self.ndim)])
        return steps if dim is None else steps[as_axis("stride", dim, self.ndim)]

    def is_same_size(self, other: Self) -> bool:
        """True where both have the same shape."""
        return self.shape == other.shape

    def is_nonzero(self) -> bool:
        """True where the one element is not 0: it reads the value. Raises ShapeError for more."""
        return bool(self)

    @property
    def is_leaf(self) -> bool:
        """True where it has no history that gradients could go through: it requires none, or they are collected in
        it."""
        return not self.needs_grad or self._is_leaf()

    def ndimension(self) -> int:
        return self.ndim

    def __len__(self) -> int:
        if not self.ndim:
            raise DTypeError("[len] expected a tensor with axes, got one of shape []")
        length = self.shape[0]
        return evaluate(length, {}) if isinstance(length, Expr) else length

    def __iter__(self) -> Iterator[Self]:
        return iter([self[i] for i in range(len(self))])

    # Numbers

    def __bool__(self) -> bool:
        if any(d != 1 for d in self.shape):
            raise ShapeError(f"[bool] expected one element, got shape {list(self.shape)}; use .any() or .all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise DTypeError(f"[index] expected an integer tensor, got {self.dtype}")
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, spec: str) -> str:
        """`f"{loss}"` and `f"{loss:.4f}"` show the number in a tensor of shape []."""
        if spec and any(d != 1 for d in self.shape):
            raise ShapeError(f"[format] expected one element for the format {spec!r}, got shape {list(self.shape)}")
        return format(self.item(), spec) if spec or not self.shape else repr(self)

    def __repr__(self) -> str:
        """The values where they are computed already, else the shape: nothing is computed to be shown."""
        values = self._known_values()
        unknown, empty = values is None, values is not None and not values.size
        usual = (float32,) if empty else (float32, int32, bool_)
        facts = {f"device={self.device!r}": unknown or self.device != canonical(current().device),
                 f"size={tuple(self.shape)}": unknown or (empty and self.ndim != 1),
                 f"dtype={self.dtype}": unknown or self.dtype not in usual,
                 "lazy": self.node.storage is None,
                 f"grad_fn=<{self.node.op.name}>": self.needs_grad and not self._is_leaf(),
                 "requires_grad=True": self.needs_grad and self._is_leaf()}
        return text_of(values, [fact for fact, shown in facts.items() if shown])

    # Arrays

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values as `np.asarray` and `np.array` want them: without `copy` a read-only array over the tensor's own
        memory, where that is the host's and the type one of numpy's, else one of its own."""
        direct = on_host(self.node) and self.dtype is not bfloat16 and np.dtype(dtype or self.dtype.np) == self.dtype.np
        if copy is False and not direct:
            raise ValueError(f"[array] expected leave to copy, or the type {self.dtype.np} and a device in the host's "
                             f"memory, got copy=False, {dtype or self.dtype} and the device {self.device}")
        if copy or not direct:
            array = self.numpy()
            return array if dtype is None else array.astype(dtype, copy=False)
        host_reads()
        return lent(settled(self))

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule over the tensor's own memory, or a copy of it where that is asked for or `dl_device` is the
        host, (1, 0), and the tensor elsewhere. Who takes it may write into the memory; operations in place on the
        tensor leave it alone, and give the tensor memory of its own. Raises SharingError for tensors that require
        gradients, and for memory of OpenCL devices, which no library takes."""
        if self.needs_grad:
            raise SharingError("[dlpack] expected a tensor without requires_grad, got one with: call detach() before")
        if stream is not None:
            raise SharingError(f"[dlpack] expected no stream, got {stream!r}: values are computed when they are given")
        direct, target = on_host(self.node), self.__dlpack_device__() if dl_device is None else tuple(dl_device)
        if target != (CPU, 0) or (copy is False and not direct):
            raise SharingError(f"[dlpack] expected the host, dl_device=(1, 0), and for tensors elsewhere leave to copy"
                               f", got {target} and copy={copy} for a tensor on {self.device}: write x.to('CPU')")
        host_reads()
        moved = self if direct else self.to("CPU")
        return exported(lent(settled(moved), not copy), self.dtype is bfloat16, max_version,
                        copy if direct else None)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(the kind of device, its number) as DLPack counts them: (1, 0) for the host, (4, index) for OpenCL."""
        return (CPU, 0) if on_host(self.node) else (OPENCL, max(self.get_device(), 0))

    # Copies

    def __copy__(self) -> Self:
        """Another handle on the same value; of a leaf, a leaf of its own."""
        leaf = self._is_leaf()
        return (self._wrap(self.node) if leaf else self._wrap(self.node, self))._set_requires_grad(leaf or None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The values and the gradient in memory of their own. A leaf stays one; other results lose their history."""
        copied = self._wrap(self.node).contiguous()._set_requires_grad(self._is_leaf() or None)
        memo[id(self)] = copied
        copied.grad = deepcopy(self.grad, memo)
        return copied

    def __reduce__(self) -> tuple[Callable, tuple]:
        """Values, type, device and whether it is a leaf; neither history nor gradient."""
        plain = self.bitcast(uint16) if self.dtype is bfloat16 else self
        return _unpickled, (type(self), plain.numpy(), self.dtype.name, self.device, self._is_leaf() or None)


def _unpickled(kind: type[Base], array: np.ndarray, dtype: str, device: str, requires_grad: bool | None) -> Any:
    return kind.from_blob(array, dtype, device)._set_requires_grad(requires_grad)
