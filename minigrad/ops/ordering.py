"""The order of rows, and the places of values among rows in order, as composites: sort, topk and searchsorted.

Every element gets an integer key of the same order, NaN last and -0.0 equal to 0.0, and below it in one int64 its
place, so that no two are equal and the order is stable. Blocks of `_BLOCK` are put in order by counting, for each
element, those before it; two runs in order become one by binary searches of each element in the other run, all at once.
That is some `n * (_BLOCK + log2(n)**2)` comparisons in about `4 * log2(n / _BLOCK)` kernels of one loop each. (A
network of compare-and-exchange would be log2(n)**2 / 2 kernels.) Keys of 64 bits are put in order twice, by their lower
and then their upper half. None of this has a gradient.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.dtype import DType, float64, int32, int64, uint32, uint64
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.matrices import cut, filled, kept
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

_BLOCK = 256
_STEPS = 9  # of a binary search in one kernel
_LOWER = 0xFFFFFFFF
_LAST = int(int64.max)  # after every key


def _keys(x: Node) -> Node:
    """int32 or int64 of the same order: NaN is the largest, and -0.0 equals 0.0."""
    kind = x.dtype
    if not kind.is_float:
        if kind is uint32 or kind is uint64:
            signed = int32 if kind is uint32 else int64
            bits = B.bitcast(x, signed)
            return B.xor(bits, filled(bits, int(signed.min)))
        return x if kind is int64 else B.cast(x, int32)
    x = B.cast(x, kind.compute)
    zero = filled(x, 0)
    bits = B.bitcast(B.where(B.eq(x, zero), zero, x), int64 if x.dtype is float64 else int32)
    most = filled(bits, int(bits.dtype.max))
    upward = B.where(B.lt(bits, filled(bits, 0)), B.xor(bits, most), bits)
    return B.where(B.ne(x, x), most, upward)


def _line(x: Node, dtype: DType) -> Node:
    """0, 1, ... along the last axis of x, in its shape."""
    order = B.cast(B.iota(x.shape[-1], x.device), dtype)
    return B.expand(B.reshape(order, (*[1] * (len(x.shape) - 1), x.shape[-1])), x.shape)


def _in_order(x: Node, *, descending: bool, keep: int) -> Node:
    keys = _keys(x)
    keys = B.invert(keys) if descending else keys
    if keys.dtype is int32:
        return _places(_sorted(_with_places(keys), keep))
    lower = B.add(B.and_(keys, filled(keys, _LOWER)), filled(keys, int(int32.min)))
    first = kept(_places(_sorted(_with_places(lower), int(x.shape[1]))))
    upper = B.gather(B.shr(keys, filled(keys, 32)), first, 1)
    return B.gather(first, _places(_sorted(_with_places(upper), keep)), 1)


def _with_places(keys: Node) -> Node:
    """Keys of the range of int32 in the upper half, and places in the lower half of an int64."""
    wide = B.cast(keys, int64)
    return B.or_(B.shl(wide, filled(wide, 32)), _line(wide, int64))


def _places(x: Node) -> Node:
    return B.cast(B.and_(x, filled(x, _LOWER)), int32)


def _sorted(x: Node, keep: int) -> Node:
    """Distinct int64 [rows, n] in order, the first `keep` of them."""
    rows, n = x.shape[0], int(x.shape[1])
    if n <= _BLOCK:
        return cut(_sorted_by_counting(x), 1, 0, keep)
    run = min(_BLOCK, _power_of_two(keep))
    again = 4 * run <= _BLOCK  # so little is kept of each block that what is left is put into blocks again
    blocks = -(-n // _BLOCK) if again else _power_of_two(n) // _BLOCK
    runs = B.reshape(B.pad(x, ((0, 0), (0, blocks * _BLOCK - n)), _LAST), (rows * blocks, _BLOCK))
    runs = cut(_sorted_by_counting(runs), 1, 0, run)
    if again:
        return _sorted(B.reshape(runs, (rows, blocks * run)), keep)
    while blocks > 1:
        blocks //= 2
        merged = _merged(B.reshape(runs, (rows * blocks, 2, run)))
        run = min(2 * run, _power_of_two(keep))
        runs = cut(merged, 1, 0, run)
    return cut(runs, 1, 0, keep)


def _sorted_by_counting(x: Node) -> Node:
    """[rows, n] in order: each element goes to the place that is the number of those before it."""
    keys = kept(x)
    rows, n = x.shape
    others, own = (B.expand(B.reshape(keys, shape), (rows, n, n)) for shape in ((rows, 1, n), (rows, n, 1)))
    return _put(keys, B.sum(B.cast(B.lt(others, own), int32), (2,)))


def _merged(x: Node) -> Node:
    """[rows, 2, m], two runs in order, as one [rows, 2 * m]."""
    keys = kept(x)
    rows, _, m = x.shape
    before = B.add(_count_before(B.flip(keys, (1,)), keys), _line(keys, int32))
    return _put(B.reshape(keys, (rows, 2 * m)), B.reshape(before, (rows, 2 * m)))


def _put(x: Node, places: Node) -> Node:
    """[rows, n] at other places of their rows. Those that share a place are padding, of which there is enough."""
    return B.scatter(filled(x, _LAST), kept(places), x, 1, "set")


def _count_before(runs: Node, wanted: Node, equal: bool = False) -> Node:
    """For each of `wanted` [..., k], how many of [..., n] in order are less (or equal), int32; n is a power of two."""
    axis, step, count = len(runs.shape) - 1, int(runs.shape[-1]), 0
    found = B.full(0, wanted.shape, int32, wanted.device)
    while step:
        half = step // 2
        probe = B.gather(runs, B.add(found, filled(found, half - 1 if half else 0)), axis)
        behind = B.le(probe, wanted) if equal else B.lt(probe, wanted)
        found = B.add(found, B.where(behind, filled(found, max(half, 1)), filled(found, 0)))
        step, count = half, count + 1
        found = kept(found) if step and count % _STEPS == 0 else found
    return found


def _found(x: Node, values: Node, *, right: bool) -> Node:
    n = int(x.shape[-1])
    runs = _keys(x)
    runs = kept(B.pad(runs, (*[(0, 0)] * (len(x.shape) - 1), (0, _power_of_two(n) - n)), int(runs.dtype.max)))
    found = _count_before(runs, _keys(values), right)
    return B.minimum(found, filled(found, n))


def _power_of_two(n: int) -> int:
    """The smallest one of at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _order_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, descending: bool, keep: int) -> tuple[Shape, Any]:
    return (shapes[0][0], keep), int32


ORDER = composite("order", _order_infer, _in_order, lambda node, g: (None,))
SEARCH = composite("search", lambda shapes, dtypes, *, right: (shapes[1], int32), _found, lambda node, g: (None, None))

ORDERINGS = (ORDER, SEARCH)


def order(x: Node, descending: bool, keep: int) -> Node:
    """The places of the first `keep` elements of each row [rows, n] in order, int32 [rows, keep]: of equal ones the
    first comes first."""
    return apply(ORDER, x, descending=descending, keep=keep)


def search(x: Node, values: Node, right: bool) -> Node:
    """The places of values [..., m] among x [..., n] in order, int32, behind equal ones where `right`; x is [n], or has
    the leading axes of the values, and their type."""
    return apply(SEARCH, x, values, right=right)
