"""Graph building: one function per primitive, with the cheap local rewrites that never change a value.

Rewrites keep IEEE results: x - 0.0, x + -0.0, x * 1 and x / 1 are x; x + 0.0 (it loses -0.0) and x * 0 (NaN) stay.
None looks through a variable (identity.py). Operands are already of one shape and dtype. Equal subgraphs are one object
anyway (node.py). Movement, which needs no constants, stands in build_movement.py.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from minigrad.dtype import DType, bfloat16, bool_, float32, int64
from minigrad.expr import Index
from minigrad.handles import changed
from minigrad.ops import elementwise as E
from minigrad.ops import indexed, movement, storage
from minigrad.ops import reduce as R

# These are exported too; isort would take three lines for each.
# isort: off
from minigrad.ops.build_movement import (
    expand as expand, flip as flip, numel as numel, pad as pad, permute as permute, reshape as reshape,
    slice_ as slice_, unwindow as unwindow, window as window,
)
# isort: on
from minigrad.ops.builders import B
from minigrad.ops.convert import rounded
from minigrad.ops.node import Node, apply, here, is_variable
from minigrad.ops.op import Op, Shape

Number = int | float | bool


# Constants


def const(value: Index | float, dtype: DType, device: str) -> Node:
    """A number, rounded to `dtype`, or an integer Index, of shape ()."""
    if isinstance(value, (int, float)):
        number = rounded(value, dtype)
        negative = number == 0 and math.copysign(1, number) < 0
        return apply(storage.CONST, device=device, value=number, of=dtype, negative=negative)
    if dtype.is_int:
        return apply(storage.CONST, device=device, value=value, of=dtype, negative=False)
    return cast(const(value, int64, device), dtype)


def full(value: Index | float, shape: Shape, dtype: DType, device: str) -> Node:
    """A number, rounded to `dtype`, or an integer Index, of this shape."""
    if here.world:
        return expand(const(value, dtype, device), shape)
    return _full(value, value == 0 and str(value), shape, dtype, device)


@lru_cache(maxsize=256, typed=True)
def _full(value: Index | float, zero: str | bool, shape: Shape, dtype: DType, device: str) -> Node:
    """Those that were asked for last stay: constants come again and again. `zero` tells zeros of both signs apart."""
    made = expand(const(value, dtype, device), shape)
    changed()  # it is nobody's own
    return made


def full_like(x: Node, value: float) -> Node:
    return full(value, x.shape, x.dtype, x.device)


def iota(size: Index, device: str) -> Node:
    return apply(storage.IOTA, device=device, size=size)


def scalar(value: Number, role: str, dtype: DType, device: str) -> Node:
    return apply(storage.SCALAR, device=device, value=value, role=role, of=dtype)


_CONSTANT = frozenset({storage.CONST, movement.EXPAND, movement.RESHAPE})
"""The ops of a Node that may be a constant: a look at it spares most Nodes a call of `constant_of`."""


def constant_of(x: Node) -> Number | None:
    """The number that every element of `x` is, where the graph says so and no gradient may be asked by it."""
    return number_of(x, is_variable)


def number_of(x: Node, hidden: Callable[[Node], bool] = lambda x: False) -> Number | None:
    """The number that every element of `x` is, where the graph says so without a look through Nodes that are
    `hidden`."""
    while x.op is movement.EXPAND or x.op is movement.RESHAPE:
        if hidden(x):
            return None
        x = x.inputs[0]
    if x.op is storage.CONST and not hidden(x):
        value = x.params["value"]
        if isinstance(value, (int, float)):
            return value
    return None


def _is(x: Node, value: float, negative: bool = False) -> bool:
    found = constant_of(x) if x.op in _CONSTANT else None
    return found is not None and found == value and (math.copysign(1, found) < 0) == negative


def _folded(op: Op, inputs: tuple[Node, ...], result: Node) -> Node:
    """`result` as a constant when all of `inputs` are."""
    values = [constant_of(i) for i in inputs]
    if None in values:
        return result
    arrays = [np.asarray(v).astype(float32.np if i.dtype is bfloat16 else i.dtype.np)
              for v, i in zip(values, inputs, strict=True)]
    with np.errstate(all="ignore"):
        value = op.reference(*arrays, shape=(), dtype=result.dtype, **result.params)
    return full(np.asarray(value).item(), result.shape, result.dtype, result.device)


# Elementwise


def _unary(op: Op, x: Node) -> Node:
    result = apply(op, x)
    return _folded(op, (x,), result) if x.op in _CONSTANT else result


def _binary(op: Op, x: Node, y: Node) -> Node:
    result = apply(op, x, y)
    return _folded(op, (x, y), result) if x.op in _CONSTANT and y.op in _CONSTANT else result


def neg(x: Node) -> Node:
    return x.inputs[0] if x.op is E.NEG and not is_variable(x) else _unary(E.NEG, x)


def abs_(x: Node) -> Node:
    return _unary(E.ABS, x)


def sqrt(x: Node) -> Node:
    return _unary(E.SQRT, x)


def exp(x: Node) -> Node:
    return _unary(E.EXP, x)


def log(x: Node) -> Node:
    return _unary(E.LOG, x)


def sin(x: Node) -> Node:
    return _unary(E.SIN, x)


def cos(x: Node) -> Node:
    return _unary(E.COS, x)


def tanh(x: Node) -> Node:
    return _unary(E.TANH, x)


def sigmoid(x: Node) -> Node:
    return _unary(E.SIGMOID, x)


def erf(x: Node) -> Node:
    return _unary(E.ERF, x)


def floor(x: Node) -> Node:
    return _unary(E.FLOOR, x)


def ceil(x: Node) -> Node:
    return _unary(E.CEIL, x)


def trunc(x: Node) -> Node:
    return _unary(E.TRUNC, x)


def round_(x: Node) -> Node:
    return _unary(E.ROUND, x)


def invert(x: Node) -> Node:
    return x.inputs[0] if x.op is E.INVERT else _unary(E.INVERT, x)


def add(x: Node, y: Node) -> Node:
    result = _binary(E.ADD, x, y)
    if x.op not in _CONSTANT and y.op not in _CONSTANT:
        return result
    negative = x.dtype.is_float
    if _is(y, 0, negative):
        return x
    return y if _is(x, 0, negative) else result


def sub(x: Node, y: Node) -> Node:
    result = _binary(E.SUB, x, y)
    return x if _is(y, 0) else result


def mul(x: Node, y: Node) -> Node:
    result = _binary(E.MUL, x, y)
    if x.op not in _CONSTANT and y.op not in _CONSTANT:
        return result
    if _is(y, 1):
        return x
    return y if _is(x, 1) else result


def div(x: Node, y: Node) -> Node:
    result = _binary(E.DIV, x, y)
    return x if _is(y, 1) else result


def floordiv(x: Node, y: Node) -> Node:
    return _binary(E.FLOORDIV, x, y)


def mod(x: Node, y: Node) -> Node:
    return _binary(E.MOD, x, y)


def pow(x: Node, y: Node) -> Node:
    return _binary(E.POW, x, y)


def maximum(x: Node, y: Node) -> Node:
    return _binary(E.MAXIMUM, x, y)


def minimum(x: Node, y: Node) -> Node:
    return _binary(E.MINIMUM, x, y)


def lt(x: Node, y: Node) -> Node:
    return _binary(E.LT, x, y)


def le(x: Node, y: Node) -> Node:
    return _binary(E.LE, x, y)


def eq(x: Node, y: Node) -> Node:
    return _binary(E.EQ, x, y)


def ne(x: Node, y: Node) -> Node:
    return _binary(E.NE, x, y)


def and_(x: Node, y: Node) -> Node:
    return _binary(E.AND, x, y)


def or_(x: Node, y: Node) -> Node:
    return _binary(E.OR, x, y)


def xor(x: Node, y: Node) -> Node:
    return _binary(E.XOR, x, y)


def shl(x: Node, y: Node) -> Node:
    return _binary(E.SHL, x, y)


def shr(x: Node, y: Node) -> Node:
    return _binary(E.SHR, x, y)


def dot_bytes(w: Node, x: Node) -> Node:
    return _binary(E.DOT_BYTES, w, x)


def look_up(x: Node, table: tuple[int, ...]) -> Node:
    """table[x & 15], int32, of uint32 and 16 signed bytes."""
    return apply(E.LOOK_UP, x, table=table)


def where(condition: Node, yes: Node, no: Node) -> Node:
    result = apply(E.WHERE, condition, yes, no)
    known = constant_of(condition)
    if known is not None:
        return yes if known else no
    return yes if yes is no else result


def _exact(source: DType, to: DType) -> bool:
    """True where every value of `source` is one of `to`."""
    if source is bool_ or source is to:
        return True
    if source.is_float and to.is_float:
        return source.bits < to.bits
    if source.is_int and to.is_float:
        return source.bits <= {"float32": 16, "float64": 32}.get(to.name, 8 if to.name == "float16" else 0)
    return (source.kind == to.kind and source.bits < to.bits) or (source.kind == "u" and to.kind == "i"
                                                                and source.bits < to.bits)


def cast(x: Node, to: DType) -> Node:
    """`x` in another type. A cast of an exact (widening) cast is one cast."""
    if x.dtype is to:
        return x
    if x.op is E.CAST and _exact(x.inputs[0].dtype, x.dtype) and x.inputs[0].dtype is not bool_ and \
            not is_variable(x):
        return cast(x.inputs[0], to)
    result = apply(E.CAST, x, to=to)
    return result if constant_of(x) is None else _folded(E.CAST, (x,), result)


def bitcast(x: Node, to: DType) -> Node:
    return x if x.dtype is to else apply(E.BITCAST, x, to=to, of=x.dtype)


# Reduce


def _reduce(op: Op, x: Node, axes: tuple[int, ...], of_nothing: int) -> Node:
    if not axes:
        return x
    result = apply(op, x, axes=axes)
    if 0 not in x.shape:
        return result
    # Made from x all the same, so that a gradient goes back: as many zeros as there are elements.
    return reshape(pad(reshape(x, (0,)), ((0, numel(result.shape)),), of_nothing), result.shape)


def sum(x: Node, axes: tuple[int, ...]) -> Node:
    return _reduce(R.SUM, x, axes, 0)


def prod(x: Node, axes: tuple[int, ...]) -> Node:
    return _reduce(R.PROD, x, axes, 1)


def max(x: Node, axes: tuple[int, ...]) -> Node:
    return _reduce(R.MAX, x, axes, 0)


def min(x: Node, axes: tuple[int, ...]) -> Node:
    return _reduce(R.MIN, x, axes, 0)


def expand_reduced(x: Node, shape: Shape, axes: tuple[int, ...]) -> Node:
    """A reduction's result, repeated along the `axes` that it reduced, in `shape` again."""
    kept = tuple([1 if i in axes else d for i, d in enumerate(shape)])
    return expand(reshape(x, kept), shape)


# Indexed and storage


def gather(x: Node, index: Node, axis: int) -> Node:
    return apply(indexed.GATHER, x, index, axis=axis)


def scatter(base: Node, index: Node, value: Node, axis: int, reduction: str) -> Node:
    if reduction in ("add", "mul") and base.dtype is bool_:
        reduction = "max" if reduction == "add" else "min"  # the sum of two bools is their or, their product their and
    result = apply(indexed.SCATTER, base, index, value, axis=axis, reduction=reduction)
    return base if 0 in index.shape else result


def alias(x: Node) -> Node:
    """Another Node of the same values, without a gradient."""
    return apply(storage.DETACH, x, id=0)


def assign(target: Node, value: Node, region: storage.Region | None = None) -> Node:
    """The target with a region replaced, all of it unless told."""
    return apply(storage.ASSIGN, target, value, region=region or ((0, 1),) * len(target.shape))


SIMPLIFIED: dict[Op, Callable[..., Node]] = {
    movement.RESHAPE: reshape, movement.EXPAND: expand, movement.PERMUTE: permute, movement.SLICE: slice_,
    E.NEG: neg, E.CAST: cast, E.ADD: add, E.SUB: sub, E.MUL: mul, E.DIV: div,
}
"""The functions that may give something simpler than their operation, which no variable hides from a plan."""


def is_simple(op: Op, inputs: Sequence[Node]) -> bool:
    """True where no rewrite of `SIMPLIFIED` could apply to the operation over these."""
    return op not in SIMPLIFIED or not any([i.op is op or number_of(i) is not None for i in inputs])


vars(B).update(globals())
