"""Names of operations: where a module has them."""
from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import minigrad.ops
from minigrad.ops.op import Op


@cache
def _names() -> dict[Op, tuple[str, str]]:
    """The module and the name of each operation that a module has."""
    return dict(reversed([(op, (module, name)) for module, name, op in _operations()]))


def name_of(op: Op) -> tuple[str, str]:
    """The module and the name of an operation; ('', '') for one that is made anew for each use."""
    return _names().get(op, ("", ""))


def _operations() -> Iterator[tuple[str, str, Op]]:
    for info in pkgutil.iter_modules(minigrad.ops.__path__):
        module = import_module(f"minigrad.ops.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Op) and name.isupper():
                yield module.__name__, name, value
