"""Elementwise primitives. Operands have equal shapes and dtypes: the Tensor layer broadcasts and promotes.

Integers wrap. Integer division semantics are in scalars.py. `maximum` and `minimum` give NaN if either operand is NaN.
Comparisons give bool and are IEEE. Float `mod` is the exact a - floor(a/b)*b, and `floordiv` fits it.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import value as V
from minigrad.dtype import ALL, DType, bfloat16_to_float32, bool_, float32_to_bfloat16, int32, uint32
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops import scalars
from minigrad.ops.builders import B
from minigrad.ops.convert import convert
from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise, Op, Shape

FLOATS = frozenset(d for d in ALL if d.is_float)
INTS = frozenset(d for d in ALL if d.is_int)
NUMBERS = FLOATS | INTS
BITS = INTS | {bool_}
ANY = frozenset(ALL)
_KINDS = {ANY: "any", FLOATS: "a float", INTS: "an integer", NUMBERS: "a number", BITS: "an integer or bool",
          frozenset({int32}): "an int32"}

Grads = tuple[Node | None, ...]


def _infer(name: str, count: int, allowed: frozenset[DType], result: DType | None = None) -> Callable[..., Any]:
    """The rule of an op over `count` operands of one shape and one allowed dtype."""

    def infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
        shape, dtype = shapes[0], dtypes[0]
        if count == 2:
            if shapes[1] != shape:
                raise ShapeError(f"[{name}] expected equal shapes, got {list(shape)} and {list(shapes[1])}")
            if dtypes[1] is not dtype:
                raise DTypeError(f"[{name}] expected equal dtypes, got {dtype} and {dtypes[1]}")
        if dtype not in allowed:
            raise DTypeError(f"[{name}] expected {_KINDS[allowed]} type, got {dtype}")
        return shape, result or dtype

    return infer


def _unary(name: str, allowed: frozenset[DType], vjp: Callable[[Node, Node], Node | None],
           reference: Callable[..., Any], flops: int = 1, scalar: Callable[..., Any] | None = None) -> Op:
    def lower(x: V.Value, *, dtype: DType) -> V.Value:
        return V.unary(name, x)

    return Op(name, _infer(name, 1, allowed), lambda node, g: (vjp(node, g),),
              lambda x, *, shape, dtype: reference(x), Elementwise(scalar or lower, flops))


def _binary(name: str, allowed: frozenset[DType], vjp: Callable[[Node, Node], Grads], reference: Callable[..., Any],
            flops: int = 1, scalar: Callable[..., Any] | None = None, result: DType | None = None) -> Op:
    def lower(x: V.Value, y: V.Value, *, dtype: DType) -> V.Value:
        return V.binary(name, x, y)

    return Op(name, _infer(name, 2, allowed, result), vjp, lambda x, y, *, shape, dtype: reference(x, y),
              Elementwise(scalar or lower, flops))


def _no_grad(node: Node, g: Node) -> Grads:
    return (None,) * len(node.inputs)


def _none(node: Node, g: Node) -> None:
    return None


# Unary


def _abs_vjp(node: Node, g: Node) -> Node:
    x = node.inputs[0]
    zero = B.full_like(x, 0)
    signed = B.where(B.lt(x, zero), B.neg(g), g)
    return B.where(B.eq(x, zero), zero, signed)


def _sqrt_vjp(node: Node, g: Node) -> Node:
    return B.div(g, B.add(node, node))


def _tanh_vjp(node: Node, g: Node) -> Node:
    return B.mul(g, B.sub(B.full_like(node, 1), B.mul(node, node)))


def _sigmoid_vjp(node: Node, g: Node) -> Node:
    return B.mul(g, B.mul(node, B.sub(B.full_like(node, 1), node)))


def _sigmoid_reference(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _erf_vjp(node: Node, g: Node) -> Node:
    x = node.inputs[0]
    slope = B.mul(B.full_like(x, 2 / math.sqrt(math.pi)), B.exp(B.neg(B.mul(x, x))))
    return B.mul(g, slope)


def _erf_reference(x: np.ndarray) -> np.ndarray:
    flat = [math.erf(v) for v in x.astype(np.float64).ravel().tolist()]
    return np.array(flat, np.float64).reshape(x.shape).astype(x.dtype)


def _invert_scalar(x: V.Value, *, dtype: DType) -> V.Value:
    return V.unary("not", x) if dtype is bool_ else V.binary("xor", x, V.const(-1, dtype))


NEG = _unary("neg", NUMBERS, lambda n, g: B.neg(g), np.negative)
ABS = _unary("abs", NUMBERS, _abs_vjp, np.abs)
SQRT = _unary("sqrt", FLOATS, _sqrt_vjp, np.sqrt, 4)
EXP = _unary("exp", FLOATS, lambda n, g: B.mul(g, n), np.exp, 10)
LOG = _unary("log", FLOATS, lambda n, g: B.div(g, n.inputs[0]), np.log, 12)
SIN = _unary("sin", FLOATS, lambda n, g: B.mul(g, B.cos(n.inputs[0])), np.sin, 15)
COS = _unary("cos", FLOATS, lambda n, g: B.neg(B.mul(g, B.sin(n.inputs[0]))), np.cos, 15)
TANH = _unary("tanh", FLOATS, _tanh_vjp, np.tanh, 14)
SIGMOID = _unary("sigmoid", FLOATS, _sigmoid_vjp, _sigmoid_reference, 14)
ERF = _unary("erf", FLOATS, _erf_vjp, _erf_reference, 14)
FLOOR = _unary("floor", FLOATS, _none, np.floor)
CEIL = _unary("ceil", FLOATS, _none, np.ceil)
TRUNC = _unary("trunc", FLOATS, _none, np.trunc)
ROUND = _unary("round", FLOATS, _none, np.round)
INVERT = _unary("invert", BITS, _none, np.invert, scalar=_invert_scalar)


# Binary


def _mul_vjp(node: Node, g: Node) -> Grads:
    x, y = node.inputs
    return B.mul(g, y), B.mul(g, x)


def _div_vjp(node: Node, g: Node) -> Grads:
    y = node.inputs[1]
    dx = B.div(g, y)
    return dx, B.neg(B.mul(dx, node))


def _mod_vjp(node: Node, g: Node) -> Grads:
    if not node.dtype.is_float:
        return None, None
    x, y = node.inputs
    return g, B.neg(B.mul(g, B.floordiv(x, y)))


def _pow_vjp(node: Node, g: Node) -> Grads:
    """d/dx = y * x**(y-1), 0 where y is 0; d/dy = x**y * log(x), 0 where x is 0 and y is not negative."""
    x, y = node.inputs
    zero = B.full_like(x, 0)
    dx = B.mul(y, B.pow(x, B.sub(y, B.full_like(y, 1))))
    dy = B.mul(node, B.log(x))
    flat = B.and_(B.eq(x, zero), B.le(zero, y))
    return B.mul(g, B.where(B.eq(y, zero), zero, dx)), B.mul(g, B.where(flat, zero, dy))


def _pick_vjp(wins: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Grads]:
    """The operand that wins takes the gradient; equal operands share it."""

    def vjp(node: Node, g: Node) -> Grads:
        if not node.dtype.is_float:
            return None, None
        x, y = node.inputs
        half = B.mul(g, B.full_like(g, 0.5))
        tie, zero = B.eq(x, y), B.full_like(g, 0)
        return (B.where(tie, half, B.where(wins(x, y), g, zero)), B.where(tie, half, B.where(wins(y, x), g, zero)))

    return vjp


def _floordiv_reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    wide = np.promote_types(x.dtype, np.float32) if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.floor_divide(x.astype(wide), y.astype(wide)).astype(x.dtype))


def _mod_reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return np.asarray(np.mod(x, y))
    rest = np.fmod(x, y)
    return np.asarray(np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest))


def _shift_reference(left: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def reference(x: np.ndarray, n: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        ok = (n >= 0) & (n < bits)
        if left:
            return np.where(ok, np.left_shift(x, np.where(ok, n, 0).astype(x.dtype)), 0).astype(x.dtype)
        shifted = np.right_shift(x, np.where(ok, n, bits - 1).astype(x.dtype))
        return shifted if x.dtype.kind == "i" else np.where(ok, shifted, 0).astype(x.dtype)

    return reference


def _dot_bytes_reference(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    unsigned, signed = (np.ascontiguousarray(a).view(kind).reshape(*a.shape, 4).astype(np.int32)
                        for a, kind in ((w, np.uint8), (x, np.int8)))
    total: np.ndarray = (unsigned * signed).sum(-1, dtype=np.int32)
    return total


def _bits_or_logic(name: str, reference: Callable[..., Any]) -> Op:
    return _binary(name, BITS, _no_grad, reference)


ADD = _binary("add", NUMBERS, lambda n, g: (g, g), np.add)
SUB = _binary("sub", NUMBERS, lambda n, g: (g, B.neg(g)), np.subtract)
MUL = _binary("mul", NUMBERS, _mul_vjp, np.multiply)
DIV = _binary("div", FLOATS, _div_vjp, np.divide, 4)
FLOORDIV = _binary("floordiv", NUMBERS, _no_grad, _floordiv_reference, 6, scalars.floordiv)
MOD = _binary("mod", NUMBERS, _mod_vjp, _mod_reference, 8, scalars.mod)
POW = _binary("pow", FLOATS, _pow_vjp, np.power, 30)
MAXIMUM = _binary("maximum", NUMBERS, _pick_vjp(lambda x, y: B.lt(y, x)), np.maximum,
                  scalar=lambda x, y, *, dtype: V.binary("max", x, y))
MINIMUM = _binary("minimum", NUMBERS, _pick_vjp(lambda x, y: B.lt(x, y)), np.minimum,
                  scalar=lambda x, y, *, dtype: V.binary("min", x, y))
LT = _binary("lt", NUMBERS, _no_grad, np.less, result=bool_)
LE = _binary("le", NUMBERS, _no_grad, np.less_equal, result=bool_)
EQ = _binary("eq", ANY, _no_grad, np.equal, result=bool_)
NE = _binary("ne", ANY, _no_grad, np.not_equal, result=bool_)
AND = _bits_or_logic("and", np.bitwise_and)
OR = _bits_or_logic("or", np.bitwise_or)
XOR = _bits_or_logic("xor", np.bitwise_xor)
SHL = _binary("shl", INTS, _no_grad, _shift_reference(True), 2, scalars.shl)
SHR = _binary("shr", INTS, _no_grad, _shift_reference(False), 2, scalars.shr)
DOT_BYTES = _binary("dot_bytes", frozenset({int32}), _no_grad, _dot_bytes_reference, 4, scalars.dot_bytes)


def _look_up_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, table: tuple[int, ...]) -> tuple[Shape, DType]:
    if dtypes[0] is not uint32 or len(table) != 16:
        raise DTypeError(f"[look_up] expected uint32 and a table of 16 numbers, got {dtypes[0]} and {len(table)}")
    return shapes[0], int32


LOOK_UP = Op("look_up", _look_up_infer, _no_grad,
             lambda x, *, table, shape, dtype: np.array(table, np.int32)[x & 15], Elementwise(scalars.look_up, 4))


# Choice and conversion


def _where_infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    if not shapes[0] == shapes[1] == shapes[2]:
        raise ShapeError(f"[where] expected equal shapes, got {', '.join(str(list(s)) for s in shapes)}")
    if dtypes[0] is not bool_ or dtypes[1] is not dtypes[2]:
        raise DTypeError(f"[where] expected (bool, T, T), got ({', '.join(d.name for d in dtypes)})")
    return shapes[1], dtypes[1]


def _where_vjp(node: Node, g: Node) -> Grads:
    zero = B.full_like(g, 0)
    return None, B.where(node.inputs[0], g, zero), B.where(node.inputs[0], zero, g)


def _where_reference(c: np.ndarray, x: np.ndarray, y: np.ndarray, *, shape: Shape, dtype: DType) -> np.ndarray:
    return np.where(c, x, y)


def _bitcast_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, to: DType, of: DType) -> tuple[Shape, DType]:
    if dtypes[0].bits != to.bits:
        raise DTypeError(f"[bitcast] expected a type of {dtypes[0].bits} bits like {dtypes[0]}, got {to}")
    return shapes[0], to


def _bitcast_reference(x: np.ndarray, *, to: DType, of: DType, shape: Shape, dtype: DType) -> np.ndarray:
    raw = float32_to_bfloat16(x) if of.name == "bfloat16" else x
    result = np.ascontiguousarray(raw).view(to.np).reshape(x.shape)
    return bfloat16_to_float32(result) if to.name == "bfloat16" else result


def _cast_vjp(node: Node, g: Node) -> Grads:
    source = node.inputs[0].dtype
    return (B.cast(g, source) if source.is_float and node.dtype.is_float else None,)


WHERE = Op("where", _where_infer, _where_vjp, _where_reference,
           Elementwise(lambda c, x, y, *, dtype: V.where(c, x, y)))
CAST = Op("cast", lambda shapes, dtypes, *, to: (shapes[0], to), _cast_vjp,
          lambda x, *, to, shape, dtype: convert(x, to), Elementwise(scalars.cast))
BITCAST = Op("bitcast", _bitcast_infer, _no_grad, _bitcast_reference, Elementwise(scalars.bitcast, 0))

ELEMENTWISE = (NEG, ABS, SQRT, EXP, LOG, SIN, COS, TANH, SIGMOID, ERF, FLOOR, CEIL, TRUNC, ROUND, INVERT, ADD, SUB, MUL,
               DIV, FLOORDIV, MOD, POW, MAXIMUM, MINIMUM, LT, LE, EQ, NE, AND, OR, XOR, SHL, SHR, DOT_BYTES, WHERE,
               CAST, BITCAST)
