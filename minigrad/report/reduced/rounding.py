"""The NUMPY device under rounding: how far results are determined by the types that they are computed in.

The sine of 1e12 in float32, the sign of a difference of nearly equal numbers: two right evaluations may give anything.
A tolerance that covers this would hide mistakes everywhere else. So an element that is off is compared with what the
reference itself gives when every operation that rounds has a random error of the size of a rounding (Monte Carlo
arithmetic). Results that are exact get no error: comparisons of equal numbers, ties and bounds stay what they are.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from minigrad.dtype import bfloat16, float16, float32, float64
from minigrad.engine import reference
from minigrad.ops.convert import convert
from minigrad.ops.node import Node

WIDER = 4
"""By how much another evaluation may lie outside what those with errors show."""

UNIT = {float16: 2.0 ** -10, bfloat16: 2.0 ** -7, float32: 2.0 ** -23, float64: 2.0 ** -52}
"""Units of rounding of the float types."""

ADDING = ("sum", "unwindow", "scatter")
ROUNDING = (*ADDING, "add", "sub", "mul", "div", "mod", "pow", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid",
            "erf", "prod")
EITHER_ZERO = ("sum", "unwindow", "maximum", "minimum", "max", "min")
"""Operations whose zeros are -0.0 or 0.0 as the operands come."""


def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|x - y|, 0 for the same infinities and NaN, infinity for others."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    same = (x == y) | np.isnan(x) & np.isnan(y)
    with np.errstate(all="ignore"):
        return np.where(same, 0, np.nan_to_num(np.abs(x - y), nan=np.inf))


@contextmanager
def numpy_errors(seed: int) -> Iterator[None]:
    """NUMPY evaluates with an error of up to one unit of rounding wherever a result is not exact."""
    rng = np.random.default_rng(seed)
    evaluate = reference.evaluator

    def disturbed(node: Node, operands: list[Any], rounds: bool) -> np.ndarray:
        y = evaluate(node, operands, rounds)
        if not node.dtype.is_float or not operands:
            return y
        adds = node.op.name in ADDING
        if node.op.name == "attention":  # its scores are rounded too, which its result does not show
            unit = UNIT[node.dtype.compute]
            return evaluate(node, _each(lambda a: a * (1 + unit * rng.uniform(-1, 1, a.shape)), operands), rounds)
        parts = evaluate(node, _each(np.abs, operands), rounds) if adds else None
        if node.dtype is float64:
            exact = np.full(y.shape, node.op.name not in ROUNDING)
        elif node.op.name == "cast":
            exact = operands[0].astype(np.float64) == y
        else:
            wide: Any = SimpleNamespace(op=node.op, shape=node.shape, dtype=float64, params=node.params)
            exact = evaluate(wide, _each(_to_float64, operands), rounds) == y
            if adds:  # else a sum may be exact and its parts not
                exact &= evaluate(wide, _each(lambda a: np.abs(_to_float64(a)), operands), rounds) == parts
        if node.op.name in EITHER_ZERO:
            y = any_zero(y, rng)
        dtype = node.dtype if rounds or node.dtype is not bfloat16 else float32  # inside a composite
        return convert(moved(y, parts, exact, UNIT[dtype], rng), dtype)

    reference.evaluator = disturbed
    try:
        yield
    finally:
        reference.evaluator = evaluate


def _each(change: Callable[[np.ndarray], np.ndarray], operands: Any) -> list[Any]:
    """`change` of every operand that is of floats; the factors of a sum of products are a tuple of two."""
    return [tuple(_each(change, a)) if isinstance(a, tuple) else change(a) if a.dtype.kind == "f" else a
            for a in operands]


def _to_float64(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def moved(y: np.ndarray, parts: np.ndarray | None, exact: np.ndarray, unit: float,
          rng: np.random.Generator) -> np.ndarray:
    """y with errors of up to one `unit` of its own size. A sum, of `parts` without their signs, has also errors of what
    it was added up in, float32 at least, and is a multiple of the spacing of these, which depends on the order: parts
    that nearly cancel may cancel."""
    found = y * (1 + unit * rng.uniform(-1, 1, y.shape))
    if parts is not None:
        size = np.abs(np.where(np.isfinite(parts), parts, y)).astype(np.float64) * min(unit, UNIT[float32])
        spacing = size * 2.0 ** -np.maximum(rng.integers(-6, 9, y.shape), 0)
        found = found + size * rng.uniform(-1, 1, y.shape)
        found = np.rint(np.divide(found, spacing, out=np.zeros(y.shape), where=spacing > 0)) * spacing
    return np.where(exact | ~np.isfinite(y), y, found).astype(y.dtype)


def any_zero(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """y with zeros of either sign."""
    return np.where(y == 0, np.where(rng.random(y.shape) < 0.5, -0.0, 0.0), y).astype(y.dtype)
