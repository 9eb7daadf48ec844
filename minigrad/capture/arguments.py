"""Keys of calls: the structure of arguments and their static values, on which a capture depends besides Tensors.

A key is a tuple of plain values: equal keys mean that a function would build the same graph from the same Tensors.
"""
from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from minigrad.errors import ShapeError
from minigrad.expr import Expr, Index, unbind
from minigrad.tensor import Tensor

PLAIN = (bool, int, str, bytes, complex, type(None), type(Ellipsis))


class Arguments:
    """The Tensors among arguments in the order they are met, the values of Variables, and one key per argument."""

    __slots__ = ("tensors", "dims", "keys", "_first")

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self.tensors: list[Tensor] = []
        self.dims: dict[str, int] = {}
        self._first: dict[int, int] = {}
        keys = [self._tensor(a) if type(a) is Tensor else self.key(a) for a in args]
        if kwargs:
            keys += [(name, self.key(a)) for name, a in kwargs.items()]
        self.keys = tuple(keys)

    def key(self, value: Any) -> Any:
        """Everything about one argument but the data of Tensors and the values of Variables."""
        kind = type(value)
        if kind is Tensor:
            return self._tensor(value)
        if kind in (list, tuple):
            return kind.__name__, tuple([self.key(v) for v in value])
        if isinstance(value, (dict, OrderedDict)):
            return kind, tuple([(static(k), self.key(v)) for k, v in value.items()])
        if isinstance(value, tuple):
            return kind, tuple([self.key(v) for v in value])
        if isinstance(value, Expr):
            return "Index", self.expression(value)
        if is_dataclass(value) and not isinstance(value, type):
            return kind, tuple([self.key(getattr(value, f.name)) for f in fields(value)])
        if kind is slice:
            return "slice", self.key(value.start), self.key(value.stop), self.key(value.step)
        return static(value)

    def _tensor(self, t: Tensor) -> tuple:
        tensors, node = self.tensors, t.node
        first = self._first.setdefault(id(t), len(tensors))
        tensors.append(t)
        shape = node.shape
        for d in shape:
            if type(d) is not int:
                shape = tuple([d if type(d) is int else self.expression(d) for d in shape])
                break
        return "Tensor", shape, node.dtype, node.device, t.needs_grad, t.kept_grad is None, first

    def expression(self, e: Index) -> Index:
        """`e` as a key, without the values of its Variables, which are noted."""
        plain, values = unbind(e)
        for v, value in values.items():
            if self.dims.setdefault(v.name, value) != value:
                raise ShapeError(f"[jit] expected one value of {v.name!r} per call, "
                                 f"got {self.dims[v.name]} and {value}")
        return plain


def static(value: Any) -> Any:
    """A hashable stand-in for a value that is no Tensor: equal only for what gives the same graph."""
    kind = type(value)
    if kind in PLAIN:
        return kind.__name__, value
    if kind is float or kind is range or isinstance(value, np.generic):
        return kind.__name__, repr(value)
    if kind is np.ndarray:
        data = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
        return "ndarray", value.shape, str(value.dtype), data
    return Same(value)


class Same:
    """Equal to another one of the same object, for as long as that object lives."""

    __slots__ = ("_of", "_id")

    def __init__(self, value: Any):
        self._id = id(value)
        try:
            self._of: Callable[[], Any] = ref(value)
        except TypeError:
            self._of = partial(given, value)

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or other._id != self._id:
            return False
        value = self._of()
        return value is not None and value is other._of()


def is_plain(value: Any) -> bool:
    """True for a number, a string, None or a tuple of such: small and immutable, so that it may be kept alive."""
    kind = type(value)
    return kind in PLAIN or kind is float or (kind is tuple and all(map(is_plain, value)))


def given(value: Any) -> Any:
    return value
