"""The contents of the lists, dictionaries, sets and arrays that a captured function reads, and of the environment.

These are changed in place, so that the object alone says nothing. A look at one is a value that is another after a
change: ids of elements, for as long as they live, or bytes. Looks are compared at each call; its key, in which numbers
stand for themselves, tells captures apart.
"""
from __future__ import annotations

import array
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minigrad.capture.arguments import Same, is_plain, static
from minigrad.errors import quantity

MOST_ELEMENTS = 4096
"""The elements of one container, or of those within one, that are looked at at each call."""
MOST_BYTES = 1 << 20
"""The bytes of an array, likewise: a tenth of a millisecond."""

_SEQUENCES = list, tuple, set, frozenset, deque
_BYTES = bytearray, array.array
_ENVIRONMENT = os.environ, getattr(os, "environb", os.environ)
_ADDING = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "add", "clear"})
"""Methods that only change their container: a function that calls one does not depend on what is in there."""
_SHAPE = frozenset({"shape", "dtype", "ndim", "size", "nbytes", "itemsize"})
"""Attributes of arrays that do not depend on elements."""


def is_read(value: Any, then: str | None) -> bool:
    """True for a container of which code reads what is in there: it goes on with this attribute, or with none."""
    if _is_environment(value):
        return True
    if isinstance(value, np.ndarray):
        return then not in _SHAPE and not _is_constant(value)
    if isinstance(value, (*_SEQUENCES, dict, *_BYTES)):
        return then not in _ADDING and not is_plain(value)
    return False


def _is_constant(value: np.ndarray) -> bool:
    """True where neither an array nor the one that it is a view of may be written."""
    return not value.flags.writeable and (value.base is None or (
        isinstance(value.base, np.ndarray) and not value.base.flags.writeable))


def refusal(name: str, value: Any) -> str | None:
    """A sentence that says why a function that reads this is not captured; None where it may be."""
    count = 0
    for part in _within(value):
        if isinstance(part, np.ndarray) and part.nbytes > MOST_BYTES:
            return (f"it reads the array {name!r} of {part.nbytes} bytes, which may change in place; make it a Tensor, "
                    "or set its flags.writeable to False")
        count += len(part) if isinstance(part, (*_SEQUENCES, dict)) else 0
        if count > MOST_ELEMENTS:
            return (f"it reads {name!r}, which has more than {quantity(MOST_ELEMENTS, 'element')} and may change in "
                    "place; make it an argument, or a tuple of numbers")
    return None


def key_of(value: Any) -> Any:
    """A key that is equal for equal contents."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return static(value)
    if isinstance(value, dict):
        return kind, tuple([(static(k), key_of(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple, deque)):
        return "list" if kind is list else "tuple", tuple([key_of(v) for v in value])
    if isinstance(value, (set, frozenset)):
        return "set", frozenset([key_of(v) for v in value])
    if isinstance(value, _BYTES):
        return kind.__name__, bytes(value)
    if _is_environment(value):
        return "environment", tuple(sorted(os.environ.items()))
    return static(value) if is_plain(value) else Same(value)


def looks_at(value: Any) -> Iterator[tuple[Callable[[], Any], Any]]:
    """(a look, what it gives now) at a container and at each one within."""
    for part in _within(value):
        look = _look(part)
        if look is not None:
            yield look, look()


def elements_of(value: Any) -> Iterator[Any]:
    """The elements of a container, and of those within, whose ids looks have."""
    for part in _within(value):
        if isinstance(part, dict):
            yield from part
            yield from part.values()
        elif isinstance(part, _SEQUENCES):
            yield from part


def _within(value: Any) -> Iterator[Any]:
    """A container, and all that are in it, each once."""
    found, seen = [value], {id(value)}
    for part in found:
        yield part
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, _SEQUENCES) else ()
        for v in inner:
            if isinstance(v, (*_SEQUENCES, dict, np.ndarray, *_BYTES)) and not is_plain(v) and id(v) not in seen:
                seen.add(id(v))
                found.append(v)


def _look(value: Any) -> Callable[[], Any] | None:
    if isinstance(value, np.ndarray):
        return None if _is_constant(value) else partial(_bytes_of, value)
    if isinstance(value, dict):
        return partial(_ids_of_items, value)
    if isinstance(value, (tuple, frozenset)):
        return None
    if isinstance(value, _SEQUENCES):
        return partial(_ids, value)
    if isinstance(value, _BYTES):
        return partial(bytes, value)
    return partial(dict, getattr(os.environ, "_data", os.environ))


def _is_environment(value: Any) -> bool:
    return value is os.getenv or any(value is e for e in _ENVIRONMENT)


def _bytes_of(value: np.ndarray) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.tobytes()


def _ids(value: Any) -> list[int]:
    return [*map(id, value)]


def _ids_of_items(value: dict[Any, Any]) -> list[int]:
    return [*map(id, value), *map(id, value.values())]
