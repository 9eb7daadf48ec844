"""Sources of values, and where they are kept: buffers, constants, generated values, copies, assignment.

Params never use the names `shape` and `dtype`, which every `reference` and `lower` gets for the result: `of` is an
element type, `extents` a shape.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from minigrad import value as V
from minigrad.dtype import DType, int32, int64, uint32, uint64
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index, bounds
from minigrad.ops.builders import B
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Generate, Op, Shape, Storage

Shapes = Sequence[Shape]
DTypes = Sequence[DType]
Indices = tuple[Index, ...]
Region = tuple[tuple[Index, int], ...]


def _no_grad(node: Node, g: Node) -> tuple[Node | None, ...]:
    return (None,) * len(node.inputs)


def _never(*_: np.ndarray, **__: object) -> np.ndarray:
    raise NotImplementedError("[buffer] a buffer has storage and is never computed")


def _same(shapes: Shapes, dtypes: DTypes) -> tuple[Shape, DType]:
    return shapes[0], dtypes[0]


# Constants and generated values


def _number(value: Index | float, dtype: DType) -> np.ndarray:
    return np.asarray(value).astype(np.float32 if dtype.name == "bfloat16" else dtype.np)


def _const_element(index: Indices, *, dtype: DType, value: Index | float, of: DType, negative: bool) -> V.Value:
    return V.const(value, dtype.compute) if isinstance(value, (int, float)) else V.index(value, dtype)


def place_type(size: Index) -> DType:
    """The type of positions along an axis of this length: int32, or int64 where that does not hold them."""
    return int32 if bounds(size)[1] <= 1 << 31 else int64


def _iota_infer(shapes: Shapes, dtypes: DTypes, *, size: Index) -> tuple[Shape, DType]:
    if bounds(size)[0] < 0:
        raise ShapeError(f"[iota] expected a size of 0 or more, got {size}")
    return (size,), place_type(size)


def _random_infer(shapes: Shapes, dtypes: DTypes, *, extents: Shape) -> tuple[Shape, DType]:
    if any(s != () for s in shapes) or any(d not in (uint32, uint64) for d in dtypes):
        raise DTypeError(f"[random_bits] expected a key and a counter of shape () and type uint32 or uint64, "
                         f"got {', '.join(f'{d} {list(s)}' for s, d in zip(shapes, dtypes, strict=True))}")
    return extents, uint32


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
Word = TypeVar("Word")


def _threefry2x32(key: list[Word], x: list[Word], add: Callable[[Word, Word], Word],
                  xor: Callable[[Word, Word], Word], rotate: Callable[[Word, int], Word],
                  number: Callable[[int], Word]) -> list[Word]:
    """Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)."""
    keys = [*key, xor(xor(key[0], key[1]), number(_PARITY))]
    x = [add(x[0], keys[0]), add(x[1], keys[1])]
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            first = add(x[0], x[1])
            x = [first, xor(rotate(x[1], r), first)]
        following = [keys[(block + 1) % 3], keys[(block + 2) % 3]]
        x = [add(x[0], following[0]), add(add(x[1], following[1]), number(block + 1))]
    return x


def _words(v: V.Value) -> tuple[V.Value, V.Value]:
    """The low and the high 32 bits."""
    if v.dtype is uint32:
        return v, V.const(0, uint32)
    return V.cast(v, uint32), V.cast(V.binary("shr", v, V.const(32, uint64)), uint32)


def _random_element(index: Indices, key: V.Value, counter: V.Value, *, dtype: DType, extents: Shape) -> V.Value:
    """Word 0 of threefry(key, (flat element index, counter)); the counter's high half joins the key's."""
    flat: Index = 0
    for i, d in zip(index, extents, strict=True):
        flat = flat * d + i

    def rotate(v: V.Value, r: int) -> V.Value:
        left, right = V.const(r, uint32), V.const(32 - r, uint32)
        return V.binary("or", V.binary("shl", v, left), V.binary("shr", v, right))

    (key_low, key_high), (low, high) = _words(key), _words(counter)
    start = [V.index(flat, uint32), low]
    return _threefry2x32([key_low, V.binary("xor", key_high, high)], start, lambda a, b: V.binary("add", a, b),
                         lambda a, b: V.binary("xor", a, b), rotate, lambda n: V.const(n, uint32))[0]


def _random_reference(key: np.ndarray, counter: np.ndarray, *, extents: tuple[int, ...], shape: Shape, dtype: DType,
                      ) -> np.ndarray:
    count = int(np.prod(extents, dtype=np.int64))
    k, c = int(key), int(counter)
    u32 = np.uint32

    def rotate(v: np.ndarray, r: int) -> np.ndarray:
        return (v << u32(r)) | (v >> u32(32 - r))

    words: list[Any] = [np.full(1, k & 0xFFFFFFFF, u32), np.full(1, (k >> 32) ^ (c >> 32), u32)]
    start = [np.arange(count, dtype=np.int64).astype(u32), np.full(1, c & 0xFFFFFFFF, u32)]
    bits: np.ndarray = _threefry2x32(words, start, np.add, np.bitwise_xor, rotate, u32)[0].reshape(extents)
    return bits


BUFFER = Op("buffer", lambda shapes, dtypes, *, id, extents, of: (extents, of), _no_grad, _never, Storage("buffer"))
"""A leaf whose storage was set at its creation; `id` makes it unique."""

CONST = Op("const", lambda shapes, dtypes, *, value, of, negative: ((), of), _no_grad,
           lambda *, value, of, negative, shape, dtype: _number(value, dtype), Generate(_const_element, 0))
"""A Python number of type `of`, already rounded to it, or an Index. `negative` tells -0.0 from 0.0."""

SCALAR = Op("scalar", lambda shapes, dtypes, *, value, role, of: ((), of), _no_grad,
            lambda *, value, role, of, shape, dtype: _number(value, dtype), Storage("scalar"))
"""A run-time number, passed as an argument and never part of a plan's key. `role` is its meaning: 'counter', 'key'."""

IOTA = Op("iota", _iota_infer, _no_grad, lambda *, size, shape, dtype: np.arange(size, dtype=dtype.np),
          Generate(lambda index, *, dtype, size: V.index(index[0], dtype), 0))
"""0, 1, ... size-1."""

RANDOM_BITS = Op("random_bits", _random_infer, _no_grad, _random_reference, Generate(_random_element, 100))
"""32 random bits per element from (key, counter, flat index) alone."""


# Identities with a meaning for the engine


def _copy_vjp(node: Node, g: Node) -> tuple[Node]:
    return (apply(COPY, g, device=node.inputs[0].device),)


COPY = Op("copy", _same, _copy_vjp, lambda x, *, shape, dtype: x, Storage("copy"))
"""The same value on the Node's own device, which differs from its input's."""

CONTIGUOUS = Op("contiguous", _same, lambda n, g: (g,), lambda x, *, shape, dtype: x, Storage("contiguous"))
"""The same value, kept in memory."""

DETACH = Op("detach", lambda shapes, dtypes, *, id: (shapes[0], dtypes[0]), _no_grad,
            lambda x, *, id, shape, dtype: x, Storage("alias"))
"""The same value without a gradient. `id` (0: none) makes a leaf of autodiff that equals nothing else."""


# Assignment


def _assign_infer(shapes: Shapes, dtypes: DTypes, *, region: Region) -> tuple[Shape, DType]:
    target, value = shapes
    if dtypes[0] is not dtypes[1]:
        raise DTypeError(f"[assign] expected a value of the target's dtype {dtypes[0]}, got {dtypes[1]}")
    if len(value) != len(target) or len(region) != len(target):
        raise ShapeError(f"[assign] expected a value of rank {len(target)} for {list(target)}, got {list(value)}")
    for d, n, (start, step) in zip(target, value, region, strict=True):
        last = start + (n - 1) * step
        if n != 0 and (bounds(start)[1] < 0 or step < 1 or bounds(d - 1 - last)[1] < 0):
            raise ShapeError(f"[assign] expected a region inside {list(target)}, got a value of shape {list(value)} "
                             f"at {[str(s) for s, _ in region]}")
    return target, dtypes[0]


def _assign_vjp(node: Node, g: Node) -> tuple[Node | None, Node | None]:
    target, value = node.inputs
    region: Region = node.params["region"]
    starts, steps = tuple(s for s, _ in region), tuple(s for _, s in region)
    stops = tuple(a + (n - 1) * s + 1 if n != 0 else a for a, n, s in zip(starts, value.shape, steps, strict=True))
    whole = target.shape == value.shape
    rest = None if whole else apply(ASSIGN, g, B.full(0, value.shape, g.dtype, g.device), region=region)
    return rest, B.slice_(g, starts, stops, steps)


def _assign_reference(target: np.ndarray, value: np.ndarray, *, region: tuple[tuple[int, int], ...], shape: Shape,
                      dtype: DType) -> np.ndarray:
    out = np.array(target)
    out[tuple(slice(a, a + n * s, s) for (a, s), n in zip(region, value.shape, strict=True))] = value
    return out


ASSIGN = Op("assign", _assign_infer, _assign_vjp, _assign_reference, Storage("assign"))
"""The target with a region replaced: per axis (start, step), the value's shape gives the lengths. A new version."""

SAME = Op("same", _same, lambda n, g: (g,), lambda x, *, shape, dtype: x, Storage("alias"))
"""The same value and gradient, as another variable (identity.py)."""

ALIASES = frozenset({DETACH, SAME})
"""Operations that differ from their input for autodiff alone."""

STORAGE = (BUFFER, CONST, SCALAR, IOTA, RANDOM_BITS, COPY, CONTIGUOUS, DETACH, SAME, ASSIGN)
