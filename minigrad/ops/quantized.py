"""The numbers that words of quantised weights stand for, as composites: a model's weights are many, each one Node here.

Words are codes in the order that `block_formats.py` states; with them are scales, minimums and what these are multiples
of, as the format's record lists its parts.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from minigrad.dtype import DType, float32, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops import build as B
from minigrad.ops.block_formats import BLOCK, FORMATS, GROUPS, SUPER, BlockFormat
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

INNER = (2, 2, 2, 4)
"""A block's columns: the bits of a group's number, the highest first, and the four of a group."""

ALIKE = {8: 3, 4: 2, 2: 1, 1: 0}
"""The number of those bits that choose a word, in a plane of so many bits."""


def _checked(shapes: Sequence[Shape], dtypes: Sequence[DType], kind: str) -> Shape:
    """The leading axes of the parts of a format, and the number of its blocks. Raises ShapeError, DTypeError."""
    f = FORMATS.get(kind)
    if f is None or len(shapes) != len(f.parts):
        wanted = f"one of {', '.join(FORMATS)}" if f is None else ", ".join(name for name, *_ in f.parts)
        raise ShapeError(f"[dequantized] expected {wanted}, got {kind} and {len(shapes)} parts")
    if tuple(dtypes) != tuple([dtype for _, dtype, _ in f.parts]):
        raise DTypeError(f"[dequantized] expected {', '.join(f'{name} of {dtype}' for name, dtype, _ in f.parts)} for "
                         f"{kind}, got {', '.join(map(str, dtypes))}")
    lead, last = shapes[0][:-1], shapes[0][-1:]
    blocks = last[0] // f.bits if last else 0
    if not last or any(s[:-1] != lead or s[-1] * SUPER != blocks * many
                       for s, (*_, many) in zip(shapes, f.parts, strict=True)):
        ratios = ":".join(str(many) for *_, many in f.parts)
        raise ShapeError(f"[dequantized] expected {', '.join(name for name, *_ in f.parts)} of equal leading axes and "
                         f"last ones as {ratios} for {kind}, got {', '.join(str(list(s)) for s in shapes)}")
    return (*lead, blocks)


def _infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, kind: str) -> tuple[Shape, DType]:
    *lead, blocks = _checked(shapes, dtypes, kind)
    return (*lead, blocks * BLOCK), float32


def _expansion(*parts: Node, kind: str) -> Node:
    f = FORMATS[kind]
    numbers = B.cast(_numbers(f, parts[0]), float32)
    scales, least = factors_of(f, parts[1:], numbers.shape)
    values = B.mul(numbers, scales)
    if least is not None:
        values = B.add(values, least)
    words = parts[0].shape
    return B.reshape(values, (*words[:-1], words[-1] // f.bits * BLOCK))


def _blocks(f: BlockFormat, words: Node) -> Shape:
    """Leading axes of words, and their blocks, those of a super-block apart."""
    *lead, count = words.shape
    blocks = count // f.bits
    return (*lead, blocks // SUPER, SUPER) if f.nested else (*lead, blocks)


def factors_of(f: BlockFormat, parts: Sequence[Node], shape: Shape) -> tuple[Node, Node | None]:
    """Scales and minimums, float32 of a shape [..., blocks, 2, 2, 2, 4] or [..., blocks, 2 or 1, groups].

    They are repeated before they are made floats: what has as many elements as their products is never kept in memory.
    """
    own = dict(zip([name for name, *_ in f.parts[1:]], parts, strict=True))
    many = BLOCK // f.columns

    def whole(part: str, above: str) -> Node:
        x = own.get(part, own["scales"])
        *lead, count = x.shape
        blocks = (count // many // SUPER, SUPER) if f.nested else (count // many,)
        inner = (1,) * (len(shape) - len(lead) - len(blocks) - 1)
        x = _spread(x, (*lead, *blocks, many, *inner), shape)
        if f.scale == "paired":
            x = B.and_(x, B.full_like(x, 15)) if part == "scales" else B.shr(x, B.full_like(x, 4))
        values = _power(x) if f.scale == "power" else B.cast(x, float32)
        if not f.nested:
            return values
        return B.mul(B.cast(_spread(own[above], (*lead, blocks[0], 1, 1, *inner), shape), float32), values)

    return whole("scales", "super_scales"), whole("minimums", "super_minimums") if f.least else None


def _power(e: Node) -> Node:
    """2**(e - 128) of unsigned bytes: float32's bits, of which (e - 1) << 23 has the exponent. The two least numbers
    have no leading one, but 1 << 21 and 1 << 22, which is less than the bits of all others.
    """
    bits = B.cast(e, int32)
    one = B.full_like(bits, 1)
    usual = B.shl(B.sub(bits, one), B.full_like(bits, 23))
    small = B.shl(B.add(B.minimum(bits, one), one), B.full_like(bits, 21))
    return B.bitcast(B.maximum(usual, small), float32)


def _numbers(f: BlockFormat, words: Node) -> Node:
    """Numbers that codes are multiplied as, int32 or uint32 [..., blocks, *INNER]."""
    blocks = _blocks(f, words)
    if f.bits == 8:  # a byte is shifted to the top, and down again with its sign
        shifts = B.add(_every(24, (4,), words), B.mul(_count(4, words), _every(-8, (4,), words)))
        spread = _spread(words, (*blocks, *INNER[:3], 1), (*blocks, *INNER))
        bits = _binary(B.shl, spread, shifts)
        return B.shr(bits, B.full_like(bits, 24))
    if len(f.planes) == 1:
        codes = _codes(f, words, 4)
    else:  # put together four at a time, then taken apart
        four = _codes(f, words, 1)
        four = B.expand(four, (*four.shape[:-1], 4))
        codes = _binary(B.shr, four, B.mul(_count(4, words), _every(8, (4,), words)))
        codes = B.and_(codes, B.full_like(codes, 255))
    if f.table:
        return B.look_up(codes, f.table)
    if not f.zero:
        return codes
    signed = B.cast(codes, int32)
    return B.sub(signed, B.full_like(signed, f.zero))


def _codes(f: BlockFormat, words: Node, each: int) -> Node:
    """Codes, uint32 [..., blocks, 2, 2, 2, each]: of the four columns of a group one by one, or, where `each` is 1, as
    the four bytes of a word."""
    blocks, inner = _blocks(f, words), (*INNER[:3], each)
    grouped = B.reshape(words, (*blocks, f.bits))
    ones = 1 if each == 4 else 0x01010101
    found, first, below = list[Node](), 0, 0
    for width in f.planes:
        chosen = ALIKE[width]
        starts = (*(0 for _ in blocks), first)
        plane = B.slice_(grouped, starts, (*blocks, first + width))
        plane = _spread(plane, (*blocks, *INNER[:chosen], *(1 for _ in inner[chosen:])), (*blocks, *inner))
        masked = B.full_like(plane, ((1 << width) - 1) * ones)
        code = B.and_(_binary(B.shr, plane, _shifts(width, chosen, each, words)), masked)
        code = B.shl(code, B.full_like(code, below)) if below else code
        found.append(code)
        first, below = first + width, below + width
    return reduce(B.or_, found)


def _shifts(width: int, chosen: int, each: int, like: Node) -> Node:
    """Places of the code of each column in its word, [2, 2, 2, each]."""
    inner = (*INNER[:3], each)
    total = _every(0, inner, like)
    steps = [(axis, width << (2 - axis)) for axis in range(chosen, 3)] + ([(3, 8)] if each == 4 else [])
    for axis, step in steps:
        size = inner[axis]
        ones = tuple([size if k == axis else 1 for k in range(4)])
        total = B.add(total, _spread(B.mul(_count(size, like), _every(step, (size,), like)), ones, inner))
    return total


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


def dequantized(*parts: Node, kind: str) -> Node:
    """The parts of a format, [..., count] each as its record says: their values, float32 [..., K]."""
    return apply(DEQUANTIZED, *parts, kind=kind)


def _products_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, kind: str) -> tuple[Shape, DType]:
    *lead, blocks = _checked(shapes[3:], dtypes[3:], kind)
    rows, counts = shapes[0][:1], (GROUPS, 1, BLOCK // FORMATS[kind].columns)
    expected = [(dtype, (*rows, blocks, n)) for dtype, n in zip((int32, float32, float32), counts, strict=True)]
    if list(zip(dtypes[:3], shapes[:3], strict=True)) != expected:
        wanted, got = (", ".join(f"{dtype} {list(shape)}" for dtype, shape in found)
                       for found in (expected, zip(dtypes[:3], shapes[:3], strict=True)))
        raise ShapeError(f"[byte_products] expected {wanted}, got {got}")
    return (*rows, *lead), float32


def _products(x: Node, scales: Node, sums: Node, *parts: Node, kind: str) -> Node:
    f = FORMATS[kind]
    rows = x.shape[0]  # of weights as many copies as of x before they are unpacked: those are never kept in memory
    parts = tuple([B.expand(B.reshape(part, (1, *part.shape)), (rows, *part.shape)) for part in parts])
    words = _unsigned_bytes(f, parts[0])
    *lead, count = words.shape[:-1]
    halves, blocks = BLOCK // f.columns, (count // SUPER, SUPER) if f.nested else (count,)
    full = (*lead, *blocks, halves, GROUPS // halves)
    ones = (1,) * (len(lead) - 1)

    def of_x(node: Node, *inner: int) -> Node:
        return _spread(node, (rows, *ones, *blocks, *inner), full)

    factors, least = factors_of(f, parts[1:], full)
    products = B.dot_bytes(B.reshape(words, full), of_x(x, *full[-2:]))
    total = B.mul(B.mul(B.cast(products, float32), factors), of_x(scales, 1, 1))
    if f.offset:
        less = B.mul(factors, B.full_like(factors, -f.offset))
        least = less if least is None else B.add(least, less)
    if least is not None:
        total = B.add(total, B.mul(least, of_x(sums, halves, 1)))
    return B.reshape(B.sum(total, tuple(range(len(lead), len(full)))), tuple(lead))


def _unsigned_bytes(f: BlockFormat, words: Node) -> Node:
    """Numbers that codes are multiplied as, plus the format's offset: unsigned bytes, the four of a group in a word,
    int32 [..., K/32, 8]."""
    groups = (*words.shape[:-1], words.shape[-1] // f.bits, GROUPS)
    if f.bits == 8:
        return B.reshape(B.xor(words, B.full_like(words, -0x7F7F7F80)), groups)
    codes = _codes(f, words, 1)
    if not f.table:
        return B.reshape(B.cast(codes, int32), groups)
    table = tuple([(n + f.offset + 128 & 255) - 128 for n in f.table])
    bytes_ = []
    for k in range(4):
        byte = B.look_up(B.shr(codes, B.full_like(codes, 8 * k)) if k else codes, table)
        byte = B.and_(byte, B.full_like(byte, 255))
        bytes_.append(B.shl(byte, B.full_like(byte, 8 * k)) if k else byte)
    return B.reshape(reduce(B.or_, bytes_), groups)


PRODUCTS = composite("byte_products", _products_infer, _products, None)


def byte_products(x: Node, scales: Node, sums: Node, *parts: Node, kind: str) -> Node:
    """Rows of x, in bytes, times quantised rows: float32 [M, ...] for parts [..., count].

    x [M, K/32, 8]: four signed bytes each, int32; scales [M, K/32, 1]: what those of a block are multiples of; sums
    [M, K/32, 32/columns]: what x is on average in the groups of four that have a scale in common, times four.
    """
    return apply(PRODUCTS, x, scales, sums, *parts, kind=kind)
