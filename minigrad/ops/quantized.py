"""The numbers that words of quantised weights stand for, as a composite: a model's weights are many, each one Node
here.

Words are GGUF's bits in the order that `state/quantized.py` states: of 4 signed bytes (Q8_0) or of 8 nibbles (Q4_0,
Q4_1), blocks of 32 numbers with a scale each, and for Q4_1 a least value.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from minigrad.dtype import DType, float32, int32, uint32
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

BLOCK = 32
WORDS = {"Q8_0": (8, int32), "Q4_0": (4, uint32), "Q4_1": (4, uint32)}
"""Words per block, and their type."""


def _infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, kind: str) -> tuple[Shape, DType]:
    if kind not in WORDS or len(shapes) != 2 + (kind == "Q4_1"):
        raise ShapeError(f"[dequantized] expected one of {', '.join(WORDS)}, with minimums for Q4_1 only, "
                         f"got {kind} and {len(shapes) - 1} of scales and minimums")
    count, dtype = WORDS[kind]
    if dtypes[0] is not dtype or not all(d.is_float for d in dtypes[1:]):
        raise DTypeError(f"[dequantized] expected words of {dtype} and floats, got {', '.join(map(str, dtypes))}")
    words, scales = shapes[:2]
    if not words or not scales or words != (*scales[:-1], scales[-1] * count) or any(s != scales for s in shapes[2:]):
        raise ShapeError(f"[dequantized] expected words [..., {count} * B] and scales [..., B] for {kind}, "
                         f"got {', '.join(str(list(s)) for s in shapes)}")
    return (*scales[:-1], scales[-1] * BLOCK), float32


def _expansion(words: Node, scales: Node, *minimums: Node, kind: str) -> Node:
    *lead, blocks = scales.shape
    if kind == "Q8_0":  # a byte is shifted to the top, and down again with its sign
        inner: tuple[Index, ...] = (8, 4)
        shifts = B.add(_every(24, (4,), words), B.mul(_count(4, words), _every(-8, (4,), words)))
        bits = _binary(B.shl, _spread(words, (*lead, blocks, 8, 1), (*lead, blocks, *inner)), shifts)
        numbers = B.shr(bits, B.full_like(bits, 24))
    else:  # the low halves of four bytes, then the high ones
        inner = (4, 2, 4)
        halves = B.expand(B.reshape(B.mul(_count(2, words), _every(4, (2,), words)), (2, 1)), (2, 4))
        shifts = B.add(halves, _spread(B.mul(_count(4, words), _every(8, (4,), words)), (1, 4), (2, 4)))
        bits = _binary(B.shr, _spread(words, (*lead, blocks, 4, 1, 1), (*lead, blocks, *inner)), shifts)
        numbers = B.and_(bits, B.full_like(bits, 15))
        if not minimums:
            signed = B.cast(numbers, int32)
            numbers = B.sub(signed, B.full_like(signed, 8))
    ones = (1,) * len(inner)
    scale, *least = (_spread(B.cast(s, float32), (*lead, blocks, *ones), numbers.shape) for s in (scales, *minimums))
    values = B.mul(B.cast(numbers, float32), scale)
    return B.reshape(B.add(values, least[0]) if least else values, (*lead, blocks * BLOCK))


def _every(value: int, shape: Shape, like: Node) -> Node:
    return B.full(value, shape, like.dtype, like.device)


def _count(size: int, like: Node) -> Node:
    return B.cast(B.iota(size, like.device), like.dtype)


def _spread(x: Node, shape: Shape, to: Shape) -> Node:
    return B.expand(B.reshape(x, shape), to)


def _binary(op: Callable[[Node, Node], Node], x: Node, last: Node) -> Node:
    """Of x and of an operand over its last axes."""
    ones = (1,) * (len(x.shape) - len(last.shape))
    return op(x, _spread(last, (*ones, *last.shape), x.shape))


DEQUANTIZED = composite("dequantized", _infer, _expansion, None)


def dequantized(words: Node, scales: Node, *minimums: Node, kind: str) -> Node:
    """words [..., G], int32 for Q8_0 and else uint32, scales and for Q4_1 minimums [..., K/32]: float32 [..., K]."""
    return apply(DEQUANTIZED, words, scales, *minimums, kind=kind)
