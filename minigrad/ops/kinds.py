"""Kinds and types of Nodes, interned, each with a number: the key of a plan is made of these numbers.

Equal numbers mean an equal effect on a plan: values of symbolic dims and of run-time numbers are left out.
"""
from __future__ import annotations

from itertools import count
from typing import Any

from minigrad.dtype import DType
from minigrad.errors import DeviceError
from minigrad.expr import Expr, unbind
from minigrad.interned import Table
from minigrad.ops.op import Op, Shape, Storage

MOST = 30_000
"""The most entries of a table; programs whose shapes change all the time would fill it without end."""
MOST_NUMBERS = 10 * MOST
"""The most numbers that are remembered; an equal kind that comes after more of them has another one, and another
plan."""
_numbers = count(1)
_known: dict[tuple[Any, ...], int] = {}
kinds: dict[tuple[Any, ...], Kind] = {}
"""Kinds by operation, explicit device, types of the operands, and params one by one; `kind_of` tells apart params that
are equal in Python and mean different things."""
_types: dict[tuple[Any, ...], Type] = {}
copying: set[Op] = set()
"""The ops that have moved values between devices: mostly none, which spares looking for them in every graph."""


class Type:
    """The type of a value: shape, dtype and device."""

    __slots__ = ("shape", "dtype", "device", "number", "symbolic")
    shape: Shape
    dtype: DType
    device: str
    number: int
    symbolic: bool


class Kind:
    """An operation with its params over operands of certain types, checked: all that Nodes have in common that differ
    in their inputs alone. `type` is that of the result, `nodes` are the Nodes there are, by the serials of their
    inputs, so that the table keeps nothing alive.

    `number` is the same for all types of operands: what a plan's key has of an operation.
    `special` is the rule of an operation that is more than its inputs' values (ops.op.Storage) or has symbolic params,
    '' for most.
    `has_zero`: 0.0 and -0.0, which are equal, make two kinds of this.
    """

    __slots__ = ("op", "type", "nodes", "number", "symbolic", "special", "has_zero")
    op: Op
    type: Type
    nodes: Table
    number: int
    symbolic: bool
    special: str
    has_zero: bool


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


def same_type(a: Type, b: Type) -> bool:
    """True for equal types: they are mostly the same object, but not for ever."""
    return a is b or (a.shape == b.shape and a.dtype is b.dtype and a.device == b.device)


def kind_of(op: Op, device: str | None, types: tuple[Type, ...], params: dict[str, Any]) -> Kind:
    """The one Kind of an operation over operands of these types; `device` as in `apply`. Params are always given in
    the same order. Raises what `op.infer` does, and DeviceError for operands on several devices."""
    key: tuple[Any, ...] = (op, device, types, *params.values())
    found = kinds.get(key)
    if found is not None and found.has_zero:
        key = (*key, repr(params))
        found = kinds.get(key)
    if found is None:
        found = _new_kind(op, device, types, params)
        _add(kinds, key, found)
        if found.has_zero:
            _add(kinds, (*key, repr(params)), found)
    return found


def _new_kind(op: Op, device: str | None, types: tuple[Type, ...], params: dict[str, Any]) -> Kind:
    where = types[0].device if device is None else device
    if device is None and any([t.device != where for t in types]):
        raise DeviceError(f"[{op.name}] expected operands on one device, got {', '.join([t.device for t in types])}")
    symbols: list[Expr] = []
    kind = Kind()
    kind.op, kind.nodes = op, {}
    kind.type = type_of(*op.infer([t.shape for t in types], [t.dtype for t in types], **params), where)
    kind.special = op.lower.rule if isinstance(op.lower, Storage) else ""
    values = [v for k, v in params.items() if kind.special != "scalar" or k != "value"]
    kind.number = _number((op, len(types), where, *[clean(v, symbols) for v in values]))
    kind.symbolic = bool(symbols)
    kind.special = kind.special or ("symbolic" if symbols else "")
    kind.has_zero = "negative" not in params and any([v == 0 and type(v) is float for v in params.values()])
    if types and device is not None:
        copying.add(op)
    return kind


def _number(key: tuple[Any, ...]) -> int:
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST_NUMBERS:
            _known.clear()
        found = _known.setdefault(key, next(_numbers))
    return found


def _add(table: dict[Any, Any], key: tuple[Any, ...], value: Any) -> None:
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
