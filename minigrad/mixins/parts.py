"""Tensors joined and split by PyTorch's further names, windows of signals, and what a tensor is."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from minigrad.dtype import DType, float32, to_dtype
from minigrad.errors import DTypeError, ShapeError, quantity
from minigrad.mixins.base import Base, as_axis, as_count, as_number, as_shape, as_tensor, broadcast_shapes, is_index
from minigrad.mixins.movement import spread


class PartsMixin(Base):
    """Those that join are functions of the class: `Tensor.vstack([a, b])`."""

    __slots__ = ()

    # Apart

    def split_with_sizes(self, sizes: Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Consecutive parts of these sizes along an axis."""
        return self.split(list(sizes), dim)

    def hsplit(self, sections: Any) -> tuple[Self, ...]:
        """As many equal parts along the second axis (of a vector the first), or parts that end before some indices."""
        return self._split_evenly("hsplit", sections, 1 if self.ndim > 1 else 0, 1)

    def vsplit(self, sections: Any) -> tuple[Self, ...]:
        """As many equal parts along the first axis, or parts that end before some indices."""
        return self._split_evenly("vsplit", sections, 0, 2)

    def dsplit(self, sections: Any) -> tuple[Self, ...]:
        """As many equal parts along the third axis, or parts that end before some indices."""
        return self._split_evenly("dsplit", sections, 2, 3)

    def _split_evenly(self, name: str, sections: Any, axis: int, least: int) -> tuple[Self, ...]:
        if self.ndim < least:
            raise ShapeError(f"[{name}] expected at least {least} axes, got {list(self.shape)}")
        sections = self._sections(name, sections)
        if is_index(sections) and (sections < 1 or self.shape[axis] % sections != 0):
            raise ShapeError(f"[{name}] expected sections that divide {self.shape[axis]}, got {sections}")
        return self.tensor_split(sections, axis)

    # Together

    @classmethod
    def hstack(cls, *tensors: Any) -> Self:
        """Joined along the second axis; vectors and numbers along the first."""
        parts = [t.atleast_1d() for t in cls._listed("hstack", tensors)]
        return parts[0].cat(*parts[1:], dim=0 if parts[0].ndim == 1 else 1)

    @classmethod
    def vstack(cls, *tensors: Any) -> Self:
        """Joined along the first axis; vectors are rows."""
        parts = [t.atleast_2d() for t in cls._listed("vstack", tensors)]
        return parts[0].cat(*parts[1:], dim=0)

    @classmethod
    def dstack(cls, *tensors: Any) -> Self:
        """Joined along the third axis, which fewer axes are given."""
        parts = [t.atleast_3d() for t in cls._listed("dstack", tensors)]
        return parts[0].cat(*parts[1:], dim=2)

    @classmethod
    def column_stack(cls, *tensors: Any) -> Self:
        """Joined along the second axis; vectors are columns."""
        parts = [t.reshape(-1, 1) if t.ndim < 2 else t for t in cls._listed("column_stack", tensors)]
        return parts[0].cat(*parts[1:], dim=1)

    @classmethod
    def _listed(cls, name: str, tensors: Any) -> list[Any]:
        parts = [as_tensor(name, t) for t in spread(tensors)]
        if not parts:
            raise ShapeError(f"[{name}] expected at least one tensor, got none")
        return parts

    def atleast_1d(self, *others: Any) -> Any:
        """A number as a vector; else this tensor. Of several tensors, or of a list, as many."""
        if others or not isinstance(self, Base):
            return tuple([t.atleast_1d() for t in _several("atleast_1d", self, others)])
        return self if self.ndim else self.reshape(1)

    def atleast_2d(self, *others: Any) -> Any:
        """A vector as a row; else as `atleast_1d`."""
        if others or not isinstance(self, Base):
            return tuple([t.atleast_2d() for t in _several("atleast_2d", self, others)])
        return self if self.ndim > 1 else self.reshape(1, -1)

    def atleast_3d(self, *others: Any) -> Any:
        """A vector [N] as [1, N, 1], a matrix [M, N] as [M, N, 1]; else as `atleast_1d`."""
        if others or not isinstance(self, Base):
            return tuple([t.atleast_3d() for t in _several("atleast_3d", self, others)])
        return self if self.ndim > 2 else self.atleast_2d().unsqueeze(-1)

    @classmethod
    def broadcast_tensors(cls, *tensors: Any) -> tuple[Self, ...]:
        """Each in the shape that all broadcast to."""
        parts = cls._listed("broadcast_tensors", tensors)
        shape = broadcast_shapes("broadcast_tensors", *[t.shape for t in parts])
        return tuple([t.expand(*shape) for t in parts])

    @classmethod
    def cartesian_prod(cls, *vectors: Any) -> Self:
        """All choices of one element of each vector, the last one changing first, [prod of lengths, count]; of one
        vector itself."""
        parts = cls._listed("cartesian_prod", vectors)
        if any(t.ndim != 1 for t in parts):
            raise ShapeError(f"[cartesian_prod] expected vectors, got {[list(t.shape) for t in parts]}")
        if len(parts) == 1:
            return parts[0]
        count = len(parts)
        grid = cls.broadcast_tensors(*[t.reshape(*[-1 if i == k else 1 for i in range(count)])
                                       for k, t in enumerate(parts)])
        return grid[0].stack(*grid[1:], dim=-1).reshape(-1, count)

    # Elements

    def isin(self, elements: Any, *, invert: bool = False) -> Self:
        """True for each element that is one of `elements` (or none of them): every element is compared with every one
        of those."""
        test = self._operand(elements)
        if not isinstance(test, type(self)):
            return self.ne(test) if invert else self.eq(test)
        found = self.unsqueeze(-1).eq(test.flatten()).any(-1)
        return found.logical_not() if invert else found

    def trapezoid(self, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Self:
        """The integral along an axis by trapezoids, of samples `dx` apart or at `x`: a vector, or of this shape."""
        return self._trapezoids("trapezoid", x, dx, dim).sum(as_axis("trapezoid", dim, self.ndim))

    def cumulative_trapezoid(self, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Self:
        """`trapezoid` up to each sample but the first."""
        return self._trapezoids("cumulative_trapezoid", x, dx, dim).cumsum(dim)

    def _trapezoids(self, name: str, x: Any, dx: float, dim: int) -> Self:
        a = as_axis(name, dim, self.ndim)
        n: Any = self.shape[a]
        pairs = self._cut(a, 1, n) + self._cut(a, 0, max(n - 1, 0)) if n else self
        if x is None:
            return pairs * (dx / 2)
        places = as_tensor(name, self._operand(x))
        if places.ndim == 1:
            places = places.reshape(*[-1 if i == a else 1 for i in range(self.ndim)])
        if places.shape[a] != n:
            raise ShapeError(f"[{name}] expected {quantity(n, 'place')} along axis {dim}, got {list(places.shape)}")
        return pairs * places.diff(dim=a) * 0.5

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """All choices of r elements of a vector, in their order: [count, r]; an element may be chosen again
        `with_replacement`."""
        if self.ndim != 1 or as_count("combinations", "r", r) == 0:
            raise ShapeError(f"[combinations] expected a vector and r above 0, got {list(self.shape)} and {r}")
        choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
        places = np.array([*choose(range(self._known_length("combinations", 0)), r)], np.int32).reshape(-1, r)
        return self[self._from_data(places, None, self.device)]

    def unravel_index(self, shape: Any) -> tuple[Self, ...]:
        """The indices along each axis of `shape` of indices into a flattened tensor of it."""
        lengths, rest = as_shape((shape,) if not isinstance(shape, (tuple, list)) else (tuple(shape),)), self
        if not self.dtype.is_int:
            raise DTypeError(f"[unravel_index] expected integers, got {self.dtype}")
        found = []
        for n in lengths[::-1]:
            found.append(rest % n)
            rest = rest // n
        return tuple(found[::-1])

    def adjoint(self) -> Self:
        """The last two axes exchanged: of real matrices the conjugate transpose."""
        return self.transpose(-1, -2)

    @property
    def mH(self) -> Self:  # noqa: N802  (PyTorch's name)
        """`adjoint`."""
        return self.transpose(-1, -2)

    @property
    def H(self) -> Self:  # noqa: N802  (PyTorch's name)
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"[H] expected a matrix, got {list(self.shape)}; use mH")
        return self.t()

    def conj(self) -> Self:
        """This tensor: all are real."""
        return self

    def swapdims(self, dim0: int, dim1: int) -> Self:
        return self.transpose(dim0, dim1)

    def narrow_copy(self, dim: int, start: int, length: int) -> Self:
        """`narrow`: nothing shares memory."""
        return self.narrow(dim, start, length)

    def sum_to_size(self, *size: Any) -> Self:
        """Summed over what was broadcast from `size`: the sum has that shape."""
        to = tuple(spread(size))
        extra = self.ndim - len(to)
        if extra < 0 or broadcast_shapes("sum_to_size", self.shape, to) != self.shape:
            raise ShapeError(f"[sum_to_size] expected a size that broadcasts to {list(self.shape)}, got {list(to)}")
        axes = [a for a, n in enumerate(self.shape) if a < extra or (to[a - extra] == 1 and n != 1)]
        return self if to == self.shape else (self.sum(tuple(axes)) if axes else self._summing(None)).reshape(*to)

    # Products

    def addbmm(self, batch1: Self, batch2: Self, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * x + alpha * the sum of batch1 @ batch2 over the batch."""
        return self._plus_product("addbmm", batch1, batch2, beta, alpha, batches=True)

    def ger(self, vec2: Self) -> Self:
        return self.outer(vec2)

    # New

    @classmethod
    def logspace(cls, start: float, stop: float, steps: int, base: float = 10.0, *, dtype: DType | str = float32,
                 device: str | None = None, requires_grad: bool | None = None) -> Self:
        """base ** of `steps` evenly spaced exponents, both ends included; computed in float64 beforehand."""
        first, last = (as_number("logspace", "start and stop", v) for v in (start, stop))
        if to_dtype(dtype).is_int:
            first, last = int(first), int(last)
        base = float(as_number("logspace", "base", base))
        values = base ** np.linspace(first, last, as_count("logspace", "steps", steps))
        made = cls._from_data(values.astype(np.float32), None, cls._device(device)) if to_dtype(dtype) is float32 else \
            cls._from_data(values, None, cls._device(device)).cast(dtype)
        return made._set_requires_grad(requires_grad)

    @classmethod
    def hann_window(cls, window_length: int, periodic: bool = True, **options: Any) -> Self:
        """(1 - cos(2 pi k / N)) / 2 for k from 0 on, [window_length]: N is that, or one less if not `periodic`."""
        return cls._window("hann_window", window_length, periodic, lambda t: 0.5 - 0.5 * np.cos(t), options)

    @classmethod
    def hamming_window(cls, window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46,
                       **options: Any) -> Self:
        """alpha - beta * cos(2 pi k / N), as `hann_window`."""
        alpha, beta = as_number("hamming_window", "alpha", alpha), as_number("hamming_window", "beta", beta)
        return cls._window("hamming_window", window_length, periodic, lambda t: alpha - beta * np.cos(t), options)

    @classmethod
    def blackman_window(cls, window_length: int, periodic: bool = True, **options: Any) -> Self:
        """0.42 - 0.5 cos(t) + 0.08 cos(2 t) of t = 2 pi k / N, as `hann_window`."""
        return cls._window("blackman_window", window_length, periodic,
                           lambda t: 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t), options)

    @classmethod
    def bartlett_window(cls, window_length: int, periodic: bool = True, **options: Any) -> Self:
        """1 - |2 k / N - 1|, as `hann_window`."""
        return cls._window("bartlett_window", window_length, periodic, lambda t: 1 - abs(t / math.pi - 1), options)

    @classmethod
    def _window(cls, name: str, length: int, periodic: bool, write: Callable[[np.ndarray], np.ndarray],
                options: dict[str, Any]) -> Self:
        """Computed in float64; options: dtype, device, requires_grad."""
        n = as_count(name, "window_length", length)
        angles = 2 * math.pi * np.arange(n) / max(n if periodic else n - 1, 1)
        values = write(angles) if n > 1 else np.ones(n)
        kind = to_dtype(options.pop("dtype", float32))
        made = cls._from_data(values.astype(np.float32 if kind.bits <= 32 else np.float64), kind, cls._device(
            options.pop("device", None)))
        requires_grad = options.pop("requires_grad", None)
        if options:
            raise TypeError(f"{name}() expected dtype, device and requires_grad by name, got {next(iter(options))!r}")
        return made._set_requires_grad(requires_grad)


def _several(name: str, first: Any, others: tuple[Any, ...]) -> list[Any]:
    """The tensors of `f(a, b)` or `f([a, b])`."""
    return [as_tensor(name, t) for t in ((first, *others) if isinstance(first, Base) else spread((first, *others)))]
