"""Types of layers' arguments: they are checked against their annotations where a layer is made."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import Base, as_index

_NUMBERS = (bool, int, float, np.number, np.bool_)


def _is_integer(value: Any) -> bool:
    return not isinstance(value, (bool, np.bool_)) and as_index(value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) or (isinstance(value, Base) and value.shape == ())


def _is_truth(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_)) or (_is_integer(value) and value in (0, 1))


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", _is_integer), "float": ("a number", _is_number), "bool": ("True or False", _is_truth),
    "str": ("a string", lambda value: isinstance(value, str))}


_Checks = dict[str, tuple[str, Callable[[Any], bool], bool]]


def as_sizes(name: str, what: str, value: Any, least: int = 0) -> Any:
    """`value`, one integer of `least` or more, or several. Raises ShapeError."""
    for size in value if isinstance(value, (tuple, list)) else (value,):
        if not _is_integer(size) or as_index(size) < least:
            raise ShapeError(f"[{name}] expected {what} as integers of {least} or more, got {value!r}")
    return value


@lru_cache(maxsize=256)
def _checks(function: Callable[..., Any]) -> tuple[inspect.Signature, _Checks]:
    """The signature, and the types that arguments with an annotation of a plain type must have, with True where they
    may be None."""
    signature, found = inspect.signature(function), {}
    for p in signature.parameters.values():
        kind, _, other = str(p.annotation).partition(" | ")
        if kind in _KINDS and other in ("", "None") and p.kind is not p.VAR_POSITIONAL and p.kind is not p.VAR_KEYWORD:
            found[p.name] = (*_KINDS[kind], other == "None")
    return signature, found


def check_arguments(kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raises DTypeError where an argument of a layer of this library is of another type than its annotation says."""
    function = kind.__init__
    if not getattr(function, "__module__", "").startswith("minigrad."):
        return
    signature, checks = _checks(function)
    try:
        given = signature.bind(None, *args, **options).arguments
    except TypeError:
        return  # which the call of __init__ says better
    for name, value in given.items():
        if name in checks:
            expected, fits, optional = checks[name]
            if not fits(value) and not (optional and value is None):
                none = " or None" if optional else ""
                raise DTypeError(f"[{kind.__name__}] expected {name} as {expected}{none}, got {value!r}")
