"""Rules of elementwise operations, from minigrad's Nodes to ONNX nodes (`writer.py`)."""
from __future__ import annotations

import numpy as np

from minigrad.dtype import DType, bool_, float64, int64, uint64
from minigrad.onnx.refusal import refuse
from minigrad.onnx.writer import Rule, Writer, carrier
from minigrad.ops import elementwise as E
from minigrad.ops.build import number_of
from minigrad.ops.movement import EXPAND
from minigrad.ops.node import Node
from minigrad.ops.op import Op, Shape

TOP = 1 << 63


def operands(w: Writer, node: Node) -> list[str]:
    """The names of an elementwise operation's operands, those that are only repeated as they are before that: ONNX
    broadcasts them itself."""
    plain = [i.inputs[0] if i.op is EXPAND else i for i in node.inputs]
    if _joined([p.shape for p in plain]) != node.shape:
        plain[0] = node.inputs[0]
    return [w.values[p] for p in plain]


def _joined(shapes: list[Shape]) -> Shape:
    """The shape that these broadcast to."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple([next((d for d in column if d != 1), 1) for column in zip(*padded, strict=True)])


def plain(kind: str) -> Rule:
    """The rule of an operation that ONNX has, of numbers of any type."""
    return lambda w, node: w.narrowed(w.op(kind, *operands(w, node)), node.dtype)


def _compared(kind: str) -> Rule:
    def rule(w: Writer, node: Node) -> str:
        dtype, names = node.inputs[0].dtype, operands(w, node)
        if dtype is uint64 and kind != "Equal":  # as signed numbers, moved by half of the range
            names = [w.op("Add", n, w.constant(-TOP, np.int64)) for n in names]
        return w.op(kind, *names)

    return rule


def _not_equal(w: Writer, node: Node) -> str:
    return w.op("Not", w.op("Equal", *operands(w, node)))


def _extreme(kind: str) -> Rule:
    def rule(w: Writer, node: Node) -> str:
        if node.dtype is uint64:
            raise refuse(f"[onnx] writing {node.op.name} of uint64", "other types")
        names = operands(w, node)
        if node.dtype.is_float:
            return w.op(kind, *names)
        return w.op("Where", w.op("Less", *(names if kind == "Min" else names[::-1])), *names)  # int64 is cut by Max

    return rule


def _bits(logic: str, kind: str) -> Rule:
    return lambda w, node: w.op(logic if node.dtype is bool_ else kind, *operands(w, node))


def _invert(w: Writer, node: Node) -> str:
    if node.dtype is bool_:
        return w.op("Not", w.of(node))
    return w.narrowed(w.op("BitwiseNot", w.of(node)), node.dtype)


def _trunc(w: Writer, node: Node) -> str:
    x = w.of(node)
    return w.op("Where", w.op("Less", x, w.like(0, node.dtype)), w.op("Ceil", x), w.op("Floor", x))


def _where(w: Writer, node: Node) -> str:
    choice, zero, x = node.inputs
    if node.dtype.is_float and choice.op is E.LE and choice.inputs == (x, zero) and number_of(zero) == 0:
        return w.op("Relu", w.values[x])
    condition, yes, no = operands(w, node)
    if node.dtype is not bool_:
        return w.op("Where", condition, yes, no)
    return w.op("Or", w.op("And", condition, yes), w.op("And", w.op("Not", condition), no))


# Division


def _differ_in_sign(w: Writer, rest: str, y: str, zero: str) -> str:
    """True where a remainder is not 0 and has another sign than the divisor: the quotient lies above the floor."""
    signs = w.op("Xor", w.op("Less", rest, zero), w.op("Less", y, zero))
    return w.op("And", w.op("Not", w.op("Equal", rest, zero)), signs)


def _divided(rest_wanted: bool) -> Rule:
    """x // y or x % y of integers: 0 where y is 0, and nothing traps."""
    def rule(w: Writer, node: Node) -> str:
        dtype = node.dtype
        if dtype.is_float:
            return _float_divided(w, node, rest_wanted)
        if dtype is uint64:
            raise refuse(f"[onnx] writing {node.op.name} of uint64", "other types")
        x, y = operands(w, node)
        zero, one, minus = (w.like(n, dtype) for n in (0, 1, -1))
        by_zero, by_minus_one = w.op("Equal", y, zero), w.op("Equal", y, minus)
        safe = w.op("Where", w.op("Or", by_zero, by_minus_one), one, y)
        quotient = w.op("Div", x, safe)
        rest = w.op("Sub", x, w.op("Mul", quotient, safe))
        down = _differ_in_sign(w, rest, safe, zero)
        if rest_wanted:
            found = w.op("Where", down, w.op("Add", rest, safe), rest)
            return w.op("Where", w.op("Or", by_zero, by_minus_one), zero, found)
        found = w.op("Where", down, w.op("Sub", quotient, one), quotient)
        found = w.op("Where", by_minus_one, w.narrowed(w.op("Neg", x), dtype), found)
        return w.op("Where", by_zero, zero, found)

    return rule


def _float_divided(w: Writer, node: Node, rest_wanted: bool) -> str:
    """x % y or x // y of floats by the remainder that C's fmod has exactly, never by x / y, which rounds up to the next
    integer: 1 // 0.1 is 9."""
    x, y = operands(w, node)
    zero, one = w.like(0, node.dtype), w.like(1, node.dtype)
    rest = w.op("Mod", x, y, fmod=1)
    down = _differ_in_sign(w, rest, y, zero)
    if rest_wanted:
        return w.narrowed(w.op("Where", down, w.op("Add", rest, y), rest), node.dtype)
    x, y, rest, zero, one = (w.cast(v, float64) for v in (x, y, rest, zero, one))
    whole = w.op("Round", w.op("Div", w.op("Sub", x, rest), y))  # an integer, but for rounding
    found = w.op("Where", down, w.op("Sub", whole, one), whole)
    found = w.op("Where", w.op("Equal", y, zero), w.op("Div", x, y), found)
    return converted(w, found, float64, node.dtype)


# Bits


def _shifted(left: bool) -> Rule:
    """As bits of uint64; a count out of range gives 0, or the sign."""
    def rule(w: Writer, node: Node) -> str:
        dtype = node.dtype
        x, n = (w.cast(name, int64) for name in operands(w, node))
        last = w.constant(dtype.bits - 1, np.int64)
        ok = w.op("And", w.op("LessOrEqual", w.constant(0, np.int64), n), w.op("LessOrEqual", n, last))
        count = w.cast(w.op("Where", ok, n, last), uint64)

        def shift(bits: str) -> str:
            moved = w.op("BitShift", w.cast(bits, uint64), count, direction="LEFT" if left else "RIGHT")
            return w.cast(moved, int64)

        if left or dtype.kind == "u":
            return _from_int64(w, w.op("Where", ok, shift(x), w.constant(0, np.int64)), dtype)
        negative = w.op("Less", x, w.constant(0, np.int64))
        below = w.op("BitwiseNot", shift(w.op("BitwiseNot", x)))
        return _from_int64(w, w.op("Where", negative, below, shift(x)), dtype)

    return rule


def _from_int64(w: Writer, x: str, dtype: DType) -> str:
    return w.narrowed(x, dtype) if carrier(dtype) is int64 else w.cast(x, dtype)


def _look_up(w: Writer, node: Node) -> str:
    code = w.op("BitwiseAnd", w.of(node), w.constant(15, np.int64))
    return w.op("Gather", w.constant(node.params["table"], np.int32), code, axis=0)


def _dot_bytes(w: Writer, node: Node) -> str:
    x, y = (w.cast(name, int64) for name in operands(w, node))
    total = ""
    for k in range(4):
        base, byte = w.constant(1 << 8 * k, np.int64), w.constant(256, np.int64)
        unsigned, other = (w.op("Mod", w.op("Div", w.op("Sub", v, w.op("Mod", v, base)), base), byte) for v in (x, y))
        signed = w.op("Where", w.op("Less", other, w.constant(128, np.int64)), other, w.op("Sub", other, byte))
        product = w.op("Mul", unsigned, signed)
        total = w.op("Add", total, product) if total else product
    return w.cast(total, node.dtype)


# Conversion


def _cast(w: Writer, node: Node) -> str:
    return converted(w, w.of(node), node.inputs[0].dtype, node.dtype)


def converted(w: Writer, x: str, source: DType, to: DType) -> str:
    """A value of one type as one of another, as minigrad casts: floats to integers saturate, NaN gives 0."""
    if source is to:
        return x
    if source.is_float and to.is_int:
        return _saturated(w, x, to)
    if source is uint64 and to.is_float:
        x = w.cast(x, uint64)
    carried = carrier(to)
    if to is carried or to is uint64:
        return x if carrier(source) is carried and source is not uint64 else w.cast(x, carried)
    return w.cast(w.cast(x, to), carried)


def _saturated(w: Writer, x: str, to: DType) -> str:
    x = w.cast(x, float64)
    x = w.op("Where", w.op("IsNaN", x), w.constant(0.0, np.float64), x)
    most, least = float(to.max), float(to.min)
    inside = w.op("Max", x, w.constant(least, np.float64))
    if to.bits < 64:
        inside = w.op("Min", inside, w.constant(most, np.float64))
        return w.cast(inside, carrier(to))
    below = w.op("Min", inside, w.constant(np.nextafter(most, 0), np.float64))
    whole = w.cast(w.cast(below, to), int64)
    full = w.constant(-1 if to is uint64 else int(to.max), np.int64)
    return w.op("Where", w.op("GreaterOrEqual", x, w.constant(most, np.float64)), full, whole)


ELEMENTWISE: dict[Op, Rule] = {
    **{op: plain(kind) for op, kind in {
        E.NEG: "Neg", E.ABS: "Abs", E.SQRT: "Sqrt", E.EXP: "Exp", E.LOG: "Log", E.SIN: "Sin", E.COS: "Cos",
        E.TANH: "Tanh", E.SIGMOID: "Sigmoid", E.ERF: "Erf", E.FLOOR: "Floor", E.CEIL: "Ceil", E.ROUND: "Round",
        E.ADD: "Add", E.SUB: "Sub", E.MUL: "Mul", E.DIV: "Div", E.POW: "Pow"}.items()},
    E.TRUNC: _trunc, E.INVERT: _invert, E.MAXIMUM: _extreme("Max"), E.MINIMUM: _extreme("Min"),
    E.LT: _compared("Less"), E.LE: _compared("LessOrEqual"), E.EQ: _compared("Equal"), E.NE: _not_equal,
    E.AND: _bits("And", "BitwiseAnd"), E.OR: _bits("Or", "BitwiseOr"), E.XOR: _bits("Xor", "BitwiseXor"),
    E.FLOORDIV: _divided(False), E.MOD: _divided(True), E.SHL: _shifted(True), E.SHR: _shifted(False),
    E.WHERE: _where, E.CAST: _cast, E.LOOK_UP: _look_up, E.DOT_BYTES: _dot_bytes,
}
