"""The methods of expressions that need the functions on them, which need the classes: the classes get them here."""
from __future__ import annotations

import operator
from numbers import Integral

from minigrad.errors import ShapeError
from minigrad.expr.core import Expr, Index, Var
from minigrad.expr.divide import floordiv, mod
from minigrad.expr.interval import bounds
from minigrad.expr.sums import make, product_of, scaled, shifted, sum_of
from minigrad.expr.text import to_text

# Operands that are neither expressions nor integers (a Tensor) answer for themselves: NotImplemented.


def _add(self: Expr, other: Index) -> Index:
    if type(other) is int:
        return shifted(self, other) if other else self
    if isinstance(other, Expr):
        return sum_of(self, other)
    return self + int(other) if isinstance(other, Integral) else NotImplemented


def _neg(self: Expr) -> Index:
    return self * -1


def _sub(self: Expr, other: Index) -> Index:
    if type(other) is int:
        return shifted(self, -other) if other else self
    return self + -other if isinstance(other, (int, Expr, Integral)) else NotImplemented


def _rsub(self: Expr, other: Index) -> Index:
    return self * -1 + other if isinstance(other, (int, Expr, Integral)) else NotImplemented


def _mul(self: Expr, other: Index) -> Index:
    if isinstance(other, Expr):
        return product_of(self, other)
    if type(other) is not int:
        if not isinstance(other, Integral):
            return NotImplemented
        other = int(other)
    if other == 0 or other == 1:
        return self if other else 0
    return scaled(self, other)


def _floordiv(self: Expr, other: Index) -> Index:
    return floordiv(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented


def _rfloordiv(self: Expr, other: Index) -> Index:
    return floordiv(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented


def _mod(self: Expr, other: Index) -> Index:
    return mod(self, other) if isinstance(other, (int, Expr, Integral)) else NotImplemented


def _rmod(self: Expr, other: Index) -> Index:
    return mod(other, self) if isinstance(other, (int, Expr, Integral)) else NotImplemented


def bind(self: Var, value: int) -> Var:
    """The same variable with a run-time value. Raises ShapeError when it is out of range."""
    lo, hi = bounds(self)
    try:
        value = operator.index(value)
    except TypeError:
        text = f"[Variable.bind] expected a value of {self.name!r} in {lo}..{hi}, got {value!r}"
        raise ShapeError(text) from None
    if not lo <= value <= hi:
        raise ShapeError(f"[Variable.bind] expected a value of {self.name!r} in {lo}..{hi}, got {value}")
    return Var(self.name, self.lo, self.hi, value)


def _int(self: Expr) -> int:
    raise TypeError(f"[int] expected a number, got the symbolic {self}")


def _reduce(self: Expr) -> tuple:
    return make, (self.terms, self.const)


for cls, methods in (
        (Expr, {"__add__": _add, "__radd__": _add, "__neg__": _neg, "__sub__": _sub, "__rsub__": _rsub,
                "__mul__": _mul, "__rmul__": _mul, "__floordiv__": _floordiv, "__rfloordiv__": _rfloordiv,
                "__mod__": _mod, "__rmod__": _rmod, "__int__": _int, "__reduce__": _reduce,
                "__str__": to_text, "__repr__": to_text}),
        (Var, {"bind": bind})):
    for name, method in methods.items():
        setattr(cls, name, method)
