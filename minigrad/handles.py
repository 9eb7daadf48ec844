"""Every live Tensor: what a capture journals, and what an assign must not take the old value from."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref


class _Handle(ref):
    __slots__ = ("key",)
    key: int


_handles: dict[int, _Handle] = {}


def _drop(dead: _Handle) -> None:
    if _handles.get(dead.key) is dead:
        del _handles[dead.key]


def register(tensor: Any) -> None:
    """Adds a Tensor; it leaves by itself when it dies."""
    handle = _Handle(tensor, _drop)
    handle.key = key = id(tensor)
    _handles[key] = handle


def live() -> Iterator[Any]:
    """The live Tensors, oldest first."""
    for handle in list(_handles.values()):
        tensor = handle()
        if tensor is not None:
            yield tensor


def count() -> int:
    return len(_handles)
