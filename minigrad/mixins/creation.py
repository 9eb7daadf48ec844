"""New tensors: filled, counted, random. All are lazy; by default on the configured device, in float32."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad import random
from minigrad.dtype import DType, bool_, float32, float64, int32, int64, number_type, promote, to_dtype, uint64
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Expr, Index, bounds, dim, prove_nonneg
from minigrad.mixins.base import (
    Base,
    as_count,
    as_index,
    as_number,
    as_shape,
    as_tensor,
    broadcast_shapes,
    check_shape,
    join_shapes,
)
from minigrad.mixins.movement import spread
from minigrad.ops import build as B
from minigrad.ops.convert import held
from minigrad.ops.node import Node
from minigrad.ops.op import Shape


class CreationMixin(Base):
    """Class methods that make tensors, and `*_like` methods."""

    __slots__ = ()

    @classmethod
    def _made(cls, node: Node, requires_grad: bool | None) -> Self:
        return cls._wrap(node)._set_requires_grad(requires_grad)

    # Filled

    @classmethod
    def full(cls, shape: Any, fill_value: Any, *, dtype: DType | str | None = None, device: str | None = None,
             requires_grad: bool | None = None) -> Self:
        """Every element is `fill_value`; its type is that of the number unless told. Raises DTypeError where a type
        that is told cannot hold it."""
        if isinstance(fill_value, Expr):
            kind = int32 if dtype is None else to_dtype(dtype)
        else:
            fill_value = as_number("full", "fill_value", fill_value)
            kind = number_type(fill_value) if dtype is None else to_dtype(dtype)
            held("full", fill_value, kind)
        shape = check_shape("full", as_shape((shape,)))
        return cls._made(B.full(fill_value, shape, kind, cls._device(device)), requires_grad)

    @classmethod
    def zeros(cls, *shape: Any, dtype: DType | str = float32, device: str | None = None,
              requires_grad: bool | None = None) -> Self:
        return cls.full(as_shape(shape), 0.0, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def ones(cls, *shape: Any, dtype: DType | str = float32, device: str | None = None,
             requires_grad: bool | None = None) -> Self:
        return cls.full(as_shape(shape), 1.0, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def empty(cls, *shape: Any, dtype: DType | str = float32, device: str | None = None,
              requires_grad: bool | None = None) -> Self:
        """A tensor whose values do not matter (they are 0)."""
        return cls.zeros(*shape, dtype=dtype, device=device, requires_grad=requires_grad)

    def full_like(self, fill_value: Any, *, dtype: DType | str | None = None, device: str | None = None,
                  requires_grad: bool | None = None) -> Self:
        """Of this shape, type and device unless told; every element is `fill_value`."""
        return self.full(self.shape, fill_value, dtype=dtype or self.dtype, device=device or self.device,
                         requires_grad=requires_grad)

    def zeros_like(self, *, dtype: DType | str | None = None, device: str | None = None,
                   requires_grad: bool | None = None) -> Self:
        return self.full_like(0, dtype=dtype, device=device, requires_grad=requires_grad)

    def ones_like(self, *, dtype: DType | str | None = None, device: str | None = None,
                  requires_grad: bool | None = None) -> Self:
        return self.full_like(1, dtype=dtype, device=device, requires_grad=requires_grad)

    # Counted

    @classmethod
    def arange(cls, start: Any, end: Any = None, step: Any = 1, *, dtype: DType | str | None = None,
               device: str | None = None, requires_grad: bool | None = None) -> Self:
        """start, start + step, ... below end (above it for a negative step); of floats float32, of integers int32, or
        int64 where that does not hold them. Raises ShapeError for a step that leads away from the end."""
        start, stop, step = _arange_ends(start, end, step)
        kind = _kind_of_range(start, stop, step) if dtype is None else to_dtype(dtype)
        start, stop, step = (v if isinstance(v, Expr) else _as_held(kind, v) for v in (start, stop, step))
        count: Index
        if isinstance(start, Expr) or isinstance(stop, Expr):
            count = dim((stop - start + step - 1) // step)
            if not prove_nonneg(count):
                raise ShapeError(f"[arange] expected a count that is never negative, got {count}")
        else:
            count = max(0, math.ceil((stop - start) / step))
        name = cls._device(device)
        return cls._made(_sequence(count, start, step, kind, name), requires_grad)

    @classmethod
    def linspace(cls, start: float, stop: float, steps: int, *, dtype: DType | str = float32,
                 device: str | None = None, requires_grad: bool | None = None) -> Self:
        """`steps` evenly spaced numbers, both ends included."""
        steps = as_count("linspace", "steps", steps)
        kind = to_dtype(dtype)
        start, stop = (_as_held(kind, held("linspace", as_number("linspace", "start and stop", v), kind.compute))
                       for v in (start, stop))
        gap = (stop - start) / max(steps - 1, 1)
        order, wide = cls._wrap(B.iota(steps, cls._device(device))), float64 if kind.is_int else float32
        # From the nearer end, so that both ends are exact.
        upper = stop - (steps - 1 - order).cast(wide) * gap
        x = (order * 2 < steps).where(start + order.cast(wide) * gap, upper)
        return x.cast(kind)._set_requires_grad(requires_grad)

    @classmethod
    def eye(cls, n: int, m: int | None = None, *, dtype: DType | str = float32, device: str | None = None,
            requires_grad: bool | None = None) -> Self:
        """Ones on the diagonal of an n by m matrix."""
        n = as_count("eye", "n", n)
        m = n if m is None else as_count("eye", "m", m)
        rows = cls._wrap(B.iota(n, cls._device(device))).reshape(n, 1)
        columns = cls._wrap(B.iota(m, rows.device)).reshape(1, m)
        return rows.eq(columns).cast(dtype)._set_requires_grad(requires_grad)

    def _order(self, axis: int) -> Self:
        """0, 1, ... along one axis, of length 1 along the others."""
        shape = [d if a == axis else 1 for a, d in enumerate(self.shape)]
        return self._wrap(B.iota(self.shape[axis], self.device)).reshape(*shape)

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangle of the last two axes, 0 elsewhere."""
        return self._triangle("tril", diagonal, lambda column, row: column.le(row))

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangle of the last two axes, 0 elsewhere."""
        return self._triangle("triu", diagonal, lambda column, row: column.ge(row))

    def _triangle(self, name: str, diagonal: int, keeps: Callable[[Self, Self], Self]) -> Self:
        place = as_index(diagonal)
        if self.ndim < 2 or place is None:
            raise ShapeError(f"[{name}] expected at least 2 axes and an integer diagonal, got {list(self.shape)} and "
                             f"{diagonal!r}")
        kept = keeps(self._order(self.ndim - 1), self._order(self.ndim - 2) + place)
        return kept.where(self, False if self.dtype is bool_ else 0)

    @classmethod
    def meshgrid(cls, *tensors: Any, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinate grids of vectors, matrix ('ij') or Cartesian ('xy') order. A number is a vector of one."""
        if indexing not in ("ij", "xy"):
            raise ShapeError(f"[meshgrid] expected indexing 'ij' or 'xy', got {indexing!r}")
        order = [as_tensor("meshgrid", t) for t in spread(tensors)]
        if any(t.ndim > 1 for t in order):
            raise ShapeError(f"[meshgrid] expected tensors of one axis, got {join_shapes([t.shape for t in order])}")
        order = [t if t.ndim else t.reshape(1) for t in order]
        if indexing == "xy" and len(order) > 1:
            order[0], order[1] = order[1], order[0]
        shape = [t.shape[0] for t in order]
        rank = len(order)
        grids = [t.reshape(*[-1 if i == j else 1 for j in range(rank)]).expand(*shape) for i, t in enumerate(order)]
        if indexing == "xy" and len(grids) > 1:
            grids[0], grids[1] = grids[1], grids[0]
        return tuple(grids)

    # Random

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Restarts random numbers from a seed."""
        random.manual_seed(seed)

    @classmethod
    def _uniform(cls, shape: Shape, dtype: DType, device: str | None) -> Self:
        if not dtype.is_float:
            raise DTypeError(f"[rand] expected a float type, got {dtype}")
        return cls._wrap(random.uniform(check_shape("rand", shape), dtype, cls._device(device)))

    @classmethod
    def rand(cls, *shape: Any, dtype: DType | str = float32, device: str | None = None,
             requires_grad: bool | None = None) -> Self:
        """Uniform in [0, 1)."""
        return cls._uniform(as_shape(shape), to_dtype(dtype), device)._set_requires_grad(requires_grad)

    @classmethod
    def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, dtype: DType | str = float32,
                device: str | None = None, requires_grad: bool | None = None) -> Self:
        """Uniform in [low, high)."""
        low, high = as_number("uniform", "low", low), as_number("uniform", "high", high)
        if not low <= high:
            raise ShapeError(f"[uniform] expected low <= high, got {low} and {high}")
        x = cls._uniform(as_shape(shape), to_dtype(dtype), device) * (high - low) + low
        return x._set_requires_grad(requires_grad)

    @classmethod
    def randn(cls, *shape: Any, dtype: DType | str = float32, device: str | None = None,
              requires_grad: bool | None = None) -> Self:
        """Standard normal (Box and Muller, 1958)."""
        kind = to_dtype(dtype)
        first = cls._uniform(as_shape(shape), kind.compute, device)
        second = cls._uniform(as_shape(shape), kind.compute, device)
        x = ((1 - first).log() * -2).sqrt() * (second * (2 * math.pi)).cos()
        return x.cast(kind)._set_requires_grad(requires_grad)

    @classmethod
    def normal(cls, *shape: Any, mean: Any = 0.0, std: Any = 1.0, dtype: DType | str = float32,
               device: str | None = None, requires_grad: bool | None = None) -> Self:
        """Normal numbers. As in PyTorch, `normal(mean, std)` of tensors, one of which may be a number, draws one for
        each of their elements, and `normal(mean, std, size)` takes two numbers and a shape as a list."""
        if len(shape) == 3 and isinstance(shape[2], (tuple, list)):
            mean, std, shape = shape[0], shape[1], (shape[2],)
        elif any(isinstance(v, Base) for v in shape or (mean, std)):
            mean, std, *_ = *shape, *(mean, std)[len(shape):]
            shapes = [v.shape for v in (mean, std) if isinstance(v, Base)]
            like = mean if isinstance(mean, Base) else std
            shape, dtype, device = (broadcast_shapes("normal", *shapes),), like.dtype, like.device
        if not isinstance(std, Base) and as_number("normal", "std", std) < 0:
            raise ShapeError(f"[normal] expected std of 0 or more, got {std}")
        x = cls.randn(*shape, dtype=dtype, device=device) * std + mean
        return x._set_requires_grad(requires_grad)

    @classmethod
    def randint(cls, *shape: Any, low: int = 0, high: int = 10, dtype: DType | str | None = None,
                device: str | None = None, requires_grad: bool | None = None) -> Self:
        """Integers in [low, high), where high - low is at most 2**32; int32, or int64 where that does not hold them. As
        in PyTorch, `randint(high, size)` and `randint(low, high, size)` take the shape as a list behind the bounds."""
        if 2 <= len(shape) <= 3 and isinstance(shape[-1], (tuple, list)):
            low, high = shape[:2] if len(shape) == 3 else (0, shape[0])
            shape = (shape[-1],)
        ends = as_index(low), as_index(high)
        if None in ends or not ends[0] < ends[1] or ends[1] - ends[0] > 1 << 32:
            raise ShapeError(f"[randint] expected low < high, at most 2**32 apart, got {low!r} and {high!r}")
        low, high = ends
        kind = promote(number_type(low), number_type(high - 1)) if dtype is None else to_dtype(dtype)
        if kind.is_int and not kind.min <= low < high <= kind.max + 1:
            raise DTypeError(f"[randint] expected a number in {kind}'s {kind.min}..{kind.max}, got {low}..{high - 1}")
        extents = check_shape("randint", as_shape(shape))
        bits = cls._wrap(random.random_bits(extents, cls._device(device))).cast(uint64)
        x = (((bits * (high - low)) >> 32).cast(int64) + low).cast(kind)
        return x._set_requires_grad(requires_grad)

    def rand_like(self, **options: Any) -> Self:
        return self.rand(*self.shape, **{"dtype": self.dtype, "device": self.device, **options})

    def randn_like(self, **options: Any) -> Self:
        return self.randn(*self.shape, **{"dtype": self.dtype, "device": self.device, **options})

    def randint_like(self, low: int, high: int | None = None, **options: Any) -> Self:
        """Integers in [low, high), or [0, low), of this shape and type."""
        low, high = (0, low) if high is None else (low, high)
        return self.randint(*self.shape, low=low, high=high, **{"dtype": self.dtype, "device": self.device, **options})

    # Initial weights: shape is [out, in, ...]

    @classmethod
    def scaled_uniform(cls, *shape: Any, **options: Any) -> Self:
        """Uniform in +-1/sqrt(number of elements)."""
        dims: Any = as_shape(shape)
        bound = 1 / math.sqrt(max(1, math.prod(dims)))
        return cls.uniform(*shape, low=-bound, high=bound, **options)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **options: Any) -> Self:
        """Uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
        bound = math.sqrt(6 / max(1, sum(_fans(shape))))
        return cls.uniform(*shape, low=-bound, high=bound, **options)

    xavier_uniform = glorot_uniform

    @classmethod
    def xavier_normal(cls, *shape: Any, **options: Any) -> Self:
        return cls.normal(*shape, std=math.sqrt(2 / max(1, sum(_fans(shape)))), **options)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **options: Any) -> Self:
        """Uniform in +-sqrt(6 / ((1 + a*a) * fan_in)) (He et al., 2015)."""
        bound = math.sqrt(6 / (1 + a * a) / max(1, _fans(shape)[0]))
        return cls.uniform(*shape, low=-bound, high=bound, **options)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **options: Any) -> Self:
        return cls.normal(*shape, std=math.sqrt(2 / (1 + a * a) / max(1, _fans(shape)[0])), **options)


def _as_held(dtype: DType, number: Any) -> Any:
    """A number as a type holds it: integers are truncated."""
    return number if dtype.is_float else int(number)


def _fans(shape: tuple[Any, ...]) -> tuple[int, int]:
    """Inputs of one output and outputs of one input."""
    dims: Any = as_shape(shape)
    if not dims:
        raise ShapeError("[init] expected a shape [out, in, ...] of at least one axis, got []")
    field = math.prod(dims[2:])
    return (dims[1] if len(dims) > 1 else dims[0]) * field, dims[0] * field


def _arange_ends(start: Any, stop: Any, step: Any) -> tuple[Any, Any, Any]:
    """(start, stop, step), numbers or symbolic; `stop` is the first of them where there is only one."""
    start, stop = (0, start) if stop is None else (start, stop)
    ends: list[Any] = [v if isinstance(v, Expr) else as_number("arange", "start, end and step", v)
                       for v in (start, stop, step)]
    if ends[2] == 0:
        raise ShapeError("[arange] expected a step other than 0")
    if not all(isinstance(v, Expr) or math.isfinite(v) for v in ends):
        raise ShapeError(f"[arange] expected finite numbers, got {start}, {stop} and {step}")
    if not any(isinstance(v, Expr) for v in ends) and (ends[1] - ends[0]) * ends[2] < 0:
        raise ShapeError(f"[arange] expected a step from {start} towards {stop}, got {step}")
    return ends[0], ends[1], ends[2]


def _kind_of_range(start: Any, stop: Any, step: Any) -> DType:
    if any([isinstance(v, float) for v in (start, stop, step)]):
        return float32
    if isinstance(start, Expr) or isinstance(stop, Expr):
        ends = [*bounds(start), *bounds(stop)]
    else:
        ends = [start, start + (stop - start - (1 if step > 0 else -1)) // step * step]
    kind = int32 if all([number_type(e) is int32 for e in ends]) else int64
    for e in ends:
        held("arange", e, kind)
    return kind


def _sequence(count: Index, start: Any, step: Any, dtype: DType, device: str) -> Node:
    """start + step * i."""
    order = B.cast(B.iota(count, device), dtype.compute if dtype.is_float else dtype)
    scaled = B.mul(order, B.full(step, order.shape, order.dtype, device))
    return B.cast(B.add(B.full(start, order.shape, order.dtype, device), scaled), dtype)
