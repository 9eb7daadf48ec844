"""Kinds and types of Nodes, interned, each with a number: the key of a plan is made of these numbers.

Equal numbers mean an equal effect on a plan: values of symbolic dims and of run-time numbers are left out.
"""
from __future__ import annotations

from itertools import count
from typing import Any

from minigrad.dtype import DType
from minigrad.expr import Expr, unbind
from minigrad.ops.op import Op, Shape, Storage

MOST = 30_000
"""Entries of a table; programs whose shapes change all the time would fill it without end."""
_numbers = count(1)
_known: dict[tuple, int] = {}
kinds: dict[tuple, Kind] = {}
"""By operation, number of inputs, device and params; `kind_of` tells apart what is equal and means different things."""
_types: dict[tuple, Type] = {}


class Type:
    """What a value is: shape, dtype and device."""

    __slots__ = ("shape", "dtype", "device", "number", "symbolic")
    shape: Shape
    dtype: DType
    device: str
    number: int
    symbolic: bool


class Kind:
    """An operation with its params, on a device. `results` are the types of its results by those of its operands.

    `special` is the rule of an operation that is more than its inputs' values (ops.op.Storage) or has symbolic params,
    '' for most.
    `has_zero`: 0.0 and -0.0, which are equal, make two kinds of this.
    """

    __slots__ = ("op", "device", "number", "symbolic", "special", "has_zero", "results")
    op: Op
    device: str
    number: int
    symbolic: bool
    special: str
    has_zero: bool
    results: dict[Any, Type]


def type_of(shape: Shape, dtype: DType, device: str) -> Type:
    """The one Type of these."""
    key = (shape, dtype, device)
    found = _types.get(key)
    if found is None:
        symbols: list[Expr] = []
        found = Type()
        found.shape, found.dtype, found.device = shape, dtype, device
        found.number = _number((clean(shape, symbols), dtype, device))
        found.symbolic = bool(symbols)
        _add(_types, key, found)
    return found


def kind_of(op: Op, count: int, device: str, params: dict[str, Any]) -> Kind:
    """The one Kind of an operation over this many inputs. Params are always given in the same order."""
    key = (op, count, device, *params.values())
    found = kinds.get(key)
    if found is not None and found.has_zero:
        key = (*key, repr(params))
        found = kinds.get(key)
    if found is None:
        symbols: list[Expr] = []
        found = Kind()
        found.op, found.device, found.results = op, device, {}
        found.special = op.lower.rule if isinstance(op.lower, Storage) else ""
        values = [v for k, v in params.items() if found.special != "scalar" or k != "value"]
        found.number = _number((op, count, device, *[clean(v, symbols) for v in values]))
        found.symbolic = bool(symbols)
        found.special = found.special or ("symbolic" if symbols else "")
        found.has_zero = "negative" not in params and any([v == 0 and type(v) is float for v in params.values()])
        _add(kinds, key, found)
        if found.has_zero:
            _add(kinds, (*key, repr(params)), found)
    return found


def _number(key: tuple) -> int:
    found = _known.get(key)
    return _known.setdefault(key, next(_numbers)) if found is None else found


def _add(table: dict, key: tuple, value: Any) -> None:
    if len(table) >= MOST:
        table.clear()
    table[key] = value


def clean(param: Any, symbols: list[Expr]) -> Any:
    """A param without the values of symbolic dims; -0.0 and 0.0, 1 and 1.0 and True stay apart.

    Symbolic dims and what is computed from them are noted in `symbols`.
    """
    kind = type(param)
    if kind is tuple:
        return tuple([p if type(p) is int else clean(p, symbols) for p in param])
    if kind is float:
        return repr(param)
    if kind is bool:
        return ("bool", param)
    if isinstance(param, Expr):
        symbols.append(param)
        return unbind(param)[0]
    if isinstance(param, tuple):
        return tuple([clean(p, symbols) for p in param])
    return param
